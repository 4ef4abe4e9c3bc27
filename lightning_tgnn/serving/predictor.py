"""Answers of a trained model while events keep coming."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError, check_int
from lightning_tgnn.data.readers.frame_columns import Times
from lightning_tgnn.models import LinkPredictor, PairModel
from lightning_tgnn.serving.follower import StreamFollower, check_length
from lightning_tgnn.serving.ranking import EmbeddingRanking, Excluded, PairRanking, Ranking, embed, score_pairs
from lightning_tgnn.tasks.event_classification import EventClassification

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False, eq=False)
class TopK:
    """The best candidates of S sources. It prints as the table of `to_frame`, and unpacks as its first two attributes.

    Attributes:
        destinations: [S, K], the users' ids, the best first; equal candidates keep their order. Masked (`numpy.ma`)
            where a source has fewer than K candidates.
        probabilities: float32 [S, K], NaN where there is no destination.
        sources: [S], the users' ids.
        position: Events of the stream that the answer has taken in.
    """

    destinations: np.ma.MaskedArray
    probabilities: np.ndarray
    sources: np.ndarray
    position: int = 0

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each destination: source, rank from 1, destination and probability."""
        import pandas as pd

        kept = ~np.ma.getmaskarray(self.destinations)
        row, place = np.nonzero(kept)
        columns = {"source": self.sources[row], "rank": place + 1, "destination": self.destinations.data[kept]}
        return pd.DataFrame({**columns, "probability": self.probabilities[kept]})

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter((self.destinations, self.probabilities))

    def __repr__(self) -> str:
        return repr(self.to_frame())

    def _repr_html_(self) -> str:
        return str(self.to_frame()._repr_html_())  # type: ignore[operator]


class Classes(NamedTuple):
    """The classes of B events.

    Attributes:
        labels: int64 [B], the most probable class of each; bool [B, C] where an event may be of several.
        probabilities: float32 [B, C].
    """

    labels: np.ndarray
    probabilities: np.ndarray


class Predictor(StreamFollower):
    """Follows a stream and answers questions about any time after its latest event, in the users' own node ids.

    Make one with `from_checkpoint` or `load`. Answers take in all events observed so far. The state after ``n`` events
    equals the state of an epoch over them, in batches of the size that the model was trained with; batches also end
    where the splits end and with the latest event. The state does not depend on how many events each call of `observe`
    brings, nor on questions in between.

    Times are numbers in the unit of the stream, or dates, which are taken as the seconds since 1970 (UTC if they name
    no zone), as in a DataFrame to train on.

    Threads may ask side by side and observe in between: an answer is of one position of the stream, and `observe` takes
    in all of its events or none. Several questions of one position stand in a block under `paused`.
    If sources and destinations are numbered apart (``bipartite``), an id is
    looked up on its own side. A predictor computes in float32, whatever precision the model was trained in.
    """

    @torch.no_grad()
    def score(self, src: ArrayLike, dst: ArrayLike, time: Times | None = None) -> np.ndarray:
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
        check_length("dst", len(destinations), len(sources))
        with self.paused():
            times = self._state.clock.query_times(time, len(sources))
            nodes, moments, count = torch.cat([sources, destinations]), times.repeat(2), len(sources)
            if isinstance(predictor, PairModel):
                pairs = torch.arange(2 * count).split([count, count])
                logits = score_pairs(self._live, nodes, moments, *pairs)
            else:
                logits, _ = predictor(embed(self._live, nodes, moments), count, 0)
        return logits.sigmoid().cpu().numpy()

    @torch.no_grad()
    def top_k(
        self,
        src: ArrayLike,
        time: Times | None = None,
        k: int = 10,
        candidates: ArrayLike | None = None,
        *,
        exclude_seen: bool = False,
    ) -> TopK:
        """Return the ``k`` most probable destinations of each source at its time, never the source itself.

        Sources at equal times are fastest: unless the model scores pairs, the candidates are embedded once per distinct
        time, and embeddings at the latest time are kept (0.4 GB for a million of width 100) for further questions about
        them at that time. Observing an event discards them, because a candidate's neighbours may have changed.

        Args:
            src: Ids [S], or one.
            time: Numbers or dates [S], or one for all, none before `latest_time`; None is `latest_time`.
            k: Destinations per source.
            candidates: Ids of destinations to choose from; a repeated id counts once. None takes all nodes that have
                been a destination so far, in the order of the stream's ids.
            exclude_seen: Leave out the destinations of the source's own events so far. A source that is left with fewer
                than ``k`` candidates gets these, and masked places.

        Raises:
            InvalidArgumentError: The model predicts no links, there are fewer candidates than ``k``, or, with
                ``exclude_seen``, the predictor comes from a file of an earlier version, which has no pairs of events.
            DataError: A node is unknown or a time too early.
        """
        ranking = self._ranking
        sources = self._numbers.find("src", src, "source")
        check_int("k", k, minimum=1, cure="10 is usual")
        given = None if candidates is None else _distinct(self._numbers.find("candidates", candidates, "destination"))
        with self.paused() as position:
            times = self._state.clock.query_times(time, len(sources))
            choice = self._state.is_destination.nonzero().squeeze(1) if given is None else given
            if len(choice) < k:
                raise InvalidArgumentError("k", f"at most the {len(choice)} candidates", k, "ask for fewer")
            places, logits = ranking.best(sources, times, choice, k, self._excluded(sources, choice, exclude_seen))
        is_none = logits.isneginf()
        found = np.ma.MaskedArray(self._numbers.ids[choice[places].numpy()], is_none.numpy())
        probabilities = logits.sigmoid().masked_fill(is_none, torch.nan).numpy()
        return TopK(found, probabilities, self._numbers.ids[sources.numpy()], position)

    @torch.no_grad()
    def classify(
        self, src: ArrayLike, dst: ArrayLike, time: Times | None = None, edge_features: ArrayLike | None = None
    ) -> Classes:
        """Return the classes of events that have not been observed, of a model that was trained on labels of events.

        Args:
            src: Ids [B] of the sources, or one.
            dst: Ids [B] of the destinations.
            time: Numbers or dates [B], or one for all, none before `latest_time`; None is `latest_time`.
            edge_features: As for `observe`.

        Raises:
            InvalidArgumentError: The model predicts no labels of events, or columns differ in length.
            DataError: A node is unknown, a time too early, or a feature is invalid.
        """
        task = self._live.task
        if not isinstance(task, EventClassification):
            cure = "ask for scores or embeddings, or train an EdgeClassification"
            raise InvalidArgumentError("task", "one of labels of events", type(task).__name__, cure)
        sources = self._numbers.find("src", src, "source")
        destinations = self._numbers.find("dst", dst, "destination")
        check_length("dst", len(destinations), len(sources))
        count = len(sources)
        features = self._features(edge_features, count).to(task.device)
        with self.paused():
            times = self._state.clock.query_times(time, count)
            embeddings = embed(self._live, torch.cat([sources, destinations]), times.repeat(2))
        logits = task.classify(embeddings, features if features.shape[1] else None, count)
        found = task.probabilities(logits)
        labels = found > 0.5 if self._state.info.multi_label else found.argmax(1)
        return Classes(labels.cpu().numpy(), found.float().cpu().numpy())

    @torch.no_grad()
    def embed(self, nodes: ArrayLike, time: Times | None = None, side: str | None = None) -> np.ndarray:
        """Return the embedding of each node at its time, float32 [R, d_emb].

        Args:
            nodes: Ids [R], or one.
            time: Numbers or dates [R], or one for all, none before `latest_time`; None is `latest_time`.
            side: ``"source"`` or ``"destination"``, where these are numbered apart and share ids.

        Raises:
            InvalidArgumentError: ``side`` is missing where sources and destinations are numbered apart, columns differ
                in length, or the model scores pairs and embeds no nodes.
            DataError: A node is unknown or a time too early.
        """
        if isinstance(self._live.task.model, PairModel):
            cure = "ask for scores or for the best destinations"
            raise InvalidArgumentError("model", "one that embeds nodes", type(self._live.task.model).__name__, cure)
        numbers = self._numbers.find("nodes", nodes, side)
        with self.paused():
            times = self._state.clock.query_times(time, len(numbers))
            return embed(self._live, numbers, times).float().cpu().numpy()

    def _excluded(self, sources: Tensor, candidates: Tensor, exclude_seen: bool) -> Excluded:
        rows, nodes = torch.arange(len(sources)), sources
        if exclude_seen:
            if self._state.seen is None:
                cure = "make the predictor from its checkpoint, and save it again"
                raise InvalidArgumentError("exclude_seen", "False for such a file", True, cure)
            seen_rows, seen = self._state.seen.for_sources(sources)
            rows, nodes = torch.cat([rows, seen_rows]), torch.cat([nodes, seen])
        return Excluded.for_nodes(rows, nodes, candidates, len(sources), self._numbers.count)

    @cached_property
    def _ranking(self) -> Ranking:
        predictor = self._link_predictor()
        if isinstance(predictor, PairModel):
            return PairRanking(self._live)
        return EmbeddingRanking(self._live, predictor)

    def _link_predictor(self) -> LinkPredictor | PairModel[Any]:
        if isinstance(self._live.task.model, PairModel):
            return self._live.task.model
        predictor = dict(self._live.task.named_children()).get("predictor")
        if not isinstance(predictor, LinkPredictor):
            cure = "ask for embeddings, for labels by classify, or train a LinkPrediction"
            raise InvalidArgumentError("task", "a LinkPrediction", type(self._live.task).__name__, cure)
        return predictor


def _distinct(nodes: Tensor) -> Tensor:
    """Return each node once, in the order in which they come."""
    import pandas as pd

    return torch.from_numpy(pd.unique(nodes.numpy()))
