"""Answers of a trained model while events keep coming."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.checks import DataError, InvalidArgumentError, check_int, refusal
from lightning_tgnn.data import TemporalDataModule
from lightning_tgnn.data.streams.columns import float_column
from lightning_tgnn.models import LinkPredictor
from lightning_tgnn.serving.build import Parts, catch_up, from_checkpoint, from_saved
from lightning_tgnn.serving.device import usable_device
from lightning_tgnn.serving.live_state import Events
from lightning_tgnn.serving.ranking import Excluded, Ranking, embed
from lightning_tgnn.serving.saved_predictor import write_predictor
from lightning_tgnn.serving.tables import by_name
from lightning_tgnn.tasks import MemoryTask


class TopK(NamedTuple):
    """The best candidates of S sources.

    Attributes:
        destinations: [S, K], the users' ids, the best first, of equals the one that is first among the candidates;
            masked (`numpy.ma`) where a source has fewer than K candidates.
        probabilities: float32 [S, K], NaN where there is no destination.
    """

    destinations: np.ma.MaskedArray
    probabilities: np.ndarray


class Predictor:
    """Follows a stream and answers questions about any time after its latest event, in the users' own node ids.

    Make one with `from_checkpoint` or `load`. Answers take in all events observed so far. The state after ``n`` events
    is that of an epoch over them in batches of the size that the model was trained with, the last batch ending with the
    latest event; it does not depend on how many events each call of `observe` brings, nor on questions in between.

    Times are numbers in the unit of the stream, or dates, which are taken as the seconds since 1970 (UTC where they
    name no zone), as in a DataFrame to train on. Where sources and destinations are numbered apart (``bipartite``), an
    id is looked up on its own side. A checkpoint computes in float32, whatever precision it was trained in.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._live = parts.live
        self._numbers = parts.numbers

    def __repr__(self) -> str:
        task, info = self._live.task, self._parts.info
        model = f"{type(task).__name__}({task.hparams.get('model')!r})"
        return f"Predictor({model}, {info.num_nodes:,} nodes, latest time {self._parts.clock.latest})"

    @classmethod
    def from_checkpoint(
        cls,
        path: str | Path,
        data: TemporalDataModule | str | Path | None = None,
        *,
        catch_up_stream: bool = True,
        task: type[MemoryTask] | None = None,
        device: torch.device | str = "cpu",
        root: str | Path | None = None,
        trust: bool = False,
        **arguments: Any,
    ) -> Predictor:
        """Return a predictor that has seen the stream that the model was trained on.

        Nothing that the checkpoint holds or names is run. It may name a task of this package, the layers of
        `lightning_tgnn.trust`, and a stream that can be read as it lies there; a stream that would have to be
        downloaded, converted or unpickled is refused unless you give it as ``data``, or trust the checkpoint.

        Args:
            path: A checkpoint of a run.
            data: The DataModule of that run; None makes it again from what the checkpoint says of it, and a name or
                path does so with another source.
            catch_up_stream: Take in the events of the stream that come after the state in the checkpoint, validation
                and test part as two more parts; otherwise stop where training has stopped.
            task: The class of the task, for a subclass of your own; None takes the one that the checkpoint names, of
                this package.
            device: Where node state and model are.
            root: Folder of the named streams, for a ``data`` that is a name; None takes ``data``, or for a stream that
                the checkpoint names the folder that it says.
            trust: Import whatever the checkpoint names, and prepare its stream where it says.
            **arguments: Of the task, in place of those of the checkpoint, such as ``layer=MyLayer``.

        Raises:
            CheckpointError: It is no checkpoint of a task on event streams, one of another stream or of other settings
                of the DataModule, or one that names what it may not.
            InvalidArgumentError: The DataModule cannot be made again, its neighbours are not the most recent ones, or
                there is no such device.
        """
        parts = from_checkpoint(path, data, task, usable_device(device), root=root, trust=trust, given=arguments)
        predictor = cls(parts)
        if catch_up_stream:
            catch_up(predictor._parts)
        return predictor

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        task: type[MemoryTask] | None = None,
        device: torch.device | str = "cpu",
        trust: bool = False,
        **arguments: Any,
    ) -> Predictor:
        """Return what `save` has written; needs no stream.

        Args:
            path: The file. Nothing that it holds or names is run, as with `from_checkpoint`.
            task: The class of the task, for a subclass of your own; None takes the one that the file names.
            device: Where node state and model are.
            trust: Import whatever the file names.
            **arguments: Of the task, in place of those of the file, such as ``layer=MyLayer``.

        Raises:
            CheckpointError: The file is something else, or names what it may not.
            InvalidArgumentError: There is no such device.
        """
        return cls(from_saved(path, task, usable_device(device), trust=trust, given=arguments))

    def save(self, path: str | Path) -> None:
        """Write weights, node state, latest neighbours and open batch to a file that appears when it is complete."""
        write_predictor(self._parts.state_dict(), path)

    @property
    def ids_are_integers(self) -> bool:
        """Whether the stream's ids of nodes are integers; otherwise they are strings."""
        return self._numbers.are_integers

    @property
    def id_type(self) -> np.dtype:
        """Type of the stream's ids of nodes."""
        return self._numbers.ids.dtype

    @property
    def edge_feature_names(self) -> tuple[str, ...] | None:
        """What the edge features of the stream are called, in their order; None where that is not known."""
        return self._parts.info.edge_feature_names

    def knows(self, nodes: Any, side: str | None = None) -> np.ndarray:
        """Return whether each node is one of the stream that the model was trained on, bool [R].

        Args:
            nodes: Ids [R], or one.
            side: ``"source"`` or ``"destination"``, where these are numbered apart and share ids.

        Raises:
            InvalidArgumentError: Ids are of the wrong kind, or it is not said which side is meant.
        """
        return self._numbers.are_known("nodes", nodes, side)

    @property
    def num_events(self) -> int:
        """Events of the stream that have been taken in."""
        return self._live.num_events

    @property
    def latest_time(self) -> float:
        """Time of the latest event, in the unit of the stream; -inf before the first one."""
        return self._parts.clock.latest

    @torch.no_grad()
    def observe(self, src: Any, dst: Any, time: Any, edge_features: Any = None) -> None:
        """Take in new events, in the order given.

        Args:
            src: Ids [B] of the sources, or one.
            dst: Ids [B] of the destinations.
            time: Numbers or dates [B], ascending, none before `latest_time`.
            edge_features: Numbers [B, d_edge], where the model was trained with edge features, or a DataFrame, whose
                columns are found by `edge_feature_names` where these are known.

        Raises:
            InvalidArgumentError: Columns differ in length, or ids are of the wrong kind.
            DataError: A node is unknown, or a time or feature is not as it has to be.
        """
        sources = self._numbers.find("src", src, "source")
        destinations = self._numbers.find("dst", dst, "destination")
        _check_length("dst", len(destinations), len(sources))
        times = self._parts.clock.of_events(time, len(sources))
        features = self._features(edge_features, len(sources))
        self._live.append(Events(sources, destinations, times, features))
        self._parts.is_destination[destinations] = True
        if self._parts.seen is not None:
            self._parts.seen.add(sources, destinations)
        self._parts.clock.advance()

    @torch.no_grad()
    def close_batch(self) -> None:
        """End the open batch here, as the end of the training, validation or test part does."""
        self._live.close_batch()

    @torch.no_grad()
    def reset(self) -> None:
        """Return to the state before the first event; nodes and weights stay."""
        self._parts.reset()

    @torch.no_grad()
    def score(self, src: Any, dst: Any, time: Any = None) -> np.ndarray:
        """Return the probability of each pair at its time, float32 [B].

        Args:
            src: Ids [B] of the sources, or one.
            dst: Ids [B] of the destinations.
            time: Numbers or dates [B], or one for all, none before `latest_time`; None is `latest_time`.

        Raises:
            InvalidArgumentError: The model predicts no links, or columns differ in length.
            DataError: A node is unknown or a time too early.
        """
        predictor = self._link_predictor()
        sources = self._numbers.find("src", src, "source")
        destinations = self._numbers.find("dst", dst, "destination")
        _check_length("dst", len(destinations), len(sources))
        times = self._parts.clock.of_queries(time, len(sources))
        nodes, moments = torch.cat([sources, destinations]), times.repeat(2)
        logits, _ = predictor(embed(self._live, nodes, moments), len(sources), 0)
        return logits.sigmoid().cpu().numpy()

    @torch.no_grad()
    def top_k(
        self, src: Any, time: Any = None, k: int = 10, candidates: Any = None, *, exclude_seen: bool = False
    ) -> TopK:
        """Return the ``k`` most probable destinations of each source at its time, never the source itself.

        Sources at equal times are fastest: the candidates are embedded once per distinct time, and those of the latest
        time are kept (0.4 GB for a million of width 100) for further questions about the same candidates at that time.
        An event that is observed ends that: a candidate's neighbours may have changed with it.

        Args:
            src: Ids [S], or one.
            time: Numbers or dates [S], or one for all, none before `latest_time`; None is `latest_time`.
            k: Destinations per source.
            candidates: Ids of destinations to choose from, of which one that is repeated counts once; None takes all
                that have been one so far, in the order of the stream's ids.
            exclude_seen: Leave out the destinations that the source has had an event with as their source. One that is
                left with fewer than ``k`` candidates gets these, and masked places.

        Raises:
            InvalidArgumentError: The model predicts no links, there are fewer candidates than ``k``, or the predictor
                comes from a file of an earlier version, which does not tell the pairs of its events.
            DataError: A node is unknown or a time too early.
        """
        ranking = self._ranking
        sources = self._numbers.find("src", src, "source")
        times = self._parts.clock.of_queries(time, len(sources))
        if candidates is None:
            choice = self._parts.is_destination.nonzero().squeeze(1)
        else:
            choice = _distinct(self._numbers.find("candidates", candidates, "destination"))
        check_int("k", k, minimum=1, cure="10 is usual")
        if len(choice) < k:
            raise InvalidArgumentError(refusal("k", f"at most the {len(choice)} candidates", k, "ask for fewer"))
        places, logits = ranking.best(sources, times, choice, k, self._excluded(sources, choice, exclude_seen))
        is_none = logits.isneginf()
        found = np.ma.MaskedArray(self._numbers.ids[choice[places].numpy()], is_none.numpy())
        return TopK(found, logits.sigmoid().masked_fill(is_none, torch.nan).numpy())

    @torch.no_grad()
    def embed(self, nodes: Any, time: Any = None, side: str | None = None) -> np.ndarray:
        """Return the embedding of each node at its time, float32 [R, d_emb].

        Args:
            nodes: Ids [R], or one.
            time: Numbers or dates [R], or one for all, none before `latest_time`; None is `latest_time`.
            side: ``"source"`` or ``"destination"``, where these are numbered apart and share ids.

        Raises:
            InvalidArgumentError: It is not said which side is meant, or columns differ in length.
            DataError: A node is unknown or a time too early.
        """
        numbers = self._numbers.find("nodes", nodes, side)
        times = self._parts.clock.of_queries(time, len(numbers))
        return embed(self._live, numbers, times).float().cpu().numpy()

    def _excluded(self, sources: Tensor, candidates: Tensor, exclude_seen: bool) -> Excluded:
        rows, nodes = torch.arange(len(sources)), sources
        if exclude_seen:
            if self._parts.seen is None:
                cure = "make the predictor from its checkpoint, and save it again"
                raise InvalidArgumentError(refusal("exclude_seen", "False for such a file", True, cure))
            of_rows, seen = self._parts.seen.of_sources(sources)
            rows, nodes = torch.cat([rows, of_rows]), torch.cat([nodes, seen])
        return Excluded.of_nodes(rows, nodes, candidates, len(sources), self._parts.info.num_nodes)

    @cached_property
    def _ranking(self) -> Ranking:
        return Ranking(self._live, self._link_predictor())

    def _link_predictor(self) -> LinkPredictor:
        predictor = getattr(self._live.task, "predictor", None)
        if not isinstance(predictor, LinkPredictor):
            cure = "ask for embeddings, or train a LinkPrediction"
            raise InvalidArgumentError(refusal("task", "a LinkPrediction", type(self._live.task).__name__, cure))
        return predictor

    def _features(self, values: Any, count: int) -> Tensor:
        width = self._parts.info.edge_feature_dim
        if values is None and width == 0:
            return torch.empty(count, 0)
        cure = "give what the stream of training has for every event"
        if values is None:
            raise DataError(refusal("edge_features", f"of shape {[count, width]}", None, cure))
        column = float_column("edge_features", by_name(values, self.edge_feature_names), np.float32, ndim=2)
        if column.shape != (count, width):
            raise DataError(refusal("edge_features", f"of shape {[count, width]}", list(column.shape), cure))
        return torch.from_numpy(column)


def _distinct(nodes: Tensor) -> Tensor:
    """Return each node once, in the order in which they come."""
    import pandas as pd

    return torch.from_numpy(pd.unique(nodes.numpy()))


def _check_length(name: str, length: int, expected: int) -> None:
    if length != expected:
        cure = "give one value per row"
        raise InvalidArgumentError(refusal(name, f"as long as src, {expected}", length, cure))
