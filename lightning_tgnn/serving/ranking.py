"""The best of many candidates for some sources, without the destinations that they have had."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.data import EventStore
from lightning_tgnn.models import LinkPredictor, PairModel
from lightning_tgnn.serving.live_state import LiveState


def highest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the ``k`` highest scores of every row and their columns; equal scores come in the order of their columns.

    Args:
        scores: [S, C].
        k: 1 to C.

    Returns:
        The scores, [S, k], descending, and the columns, int64 [S, k].

    >>> import torch
    >>> highest(torch.tensor([[3.0, 5.0, 3.0, 3.0, 5.0]]), 3)
    (tensor([[5., 5., 3.]]), tensor([[1, 4, 0]]))
    """
    best, columns = scores.topk(min(k + 1, scores.shape[1]), dim=1)
    # Among equals torch chooses as it likes. That is put right below, unless it has left one out for a later one.
    may_lack_one = best[:, k - 1] == best[:, -1]
    in_order = scores[may_lack_one].argsort(dim=1, descending=True, stable=True)
    columns[may_lack_one] = in_order[:, : columns.shape[1]]
    columns = columns[:, :k].sort(dim=1).values
    best, order = scores.gather(1, columns).sort(dim=1, descending=True, stable=True)
    return best, columns.gather(1, order)


_CANDIDATES_PER_PIECE = 16_384
_SOURCES_PER_PIECE = 1024


def embed(live: LiveState, nodes: Tensor, times: Tensor) -> Tensor:
    """Return the embeddings of ``nodes`` (int64 [R]) at ``times`` (float64 [R]), float32 [R, d_emb]."""
    pieces = zip(nodes.split(_CANDIDATES_PER_PIECE), times.split(_CANDIDATES_PER_PIECE), strict=True)
    if not len(nodes):
        return torch.empty(0, live.task.embedding_dim, device=live.task.device)
    embedded = [live.task.embed(*live.query(some, when)) for some, when in pieces]
    return torch.cat(embedded) if len(embedded) > 1 else embedded[0]


class Excluded:
    """Candidates that some sources must not get.

    Args:
        rows: int64 [Z], position among the S sources.
        places: int64 [Z], position among the candidates.
        num_sources: S.
    """

    def __init__(self, rows: Tensor, places: Tensor, num_sources: int) -> None:
        self._places = places[rows.argsort(stable=True)]
        self._counts = torch.bincount(rows, minlength=num_sources)
        self._starts = self._counts.cumsum(0) - self._counts

    @classmethod
    def for_nodes(cls, rows: Tensor, nodes: Tensor, candidates: Tensor, num_sources: int, num_nodes: int) -> Excluded:
        """Return the exclusion of nodes (int64 [Z]); nodes that are not in ``candidates`` (int64 [C]) are ignored."""
        place = torch.full((num_nodes,), -1)
        place[candidates] = torch.arange(len(candidates))
        places = place[nodes]
        return cls(rows[places >= 0], places[places >= 0], num_sources)

    def of(self, sources: Tensor) -> tuple[Tensor, Tensor]:
        """Return the position among ``sources`` (int64 [G]) and the place of every excluded pair, int64 [Z] each."""
        counts = self._counts[sources]
        rows = torch.arange(len(sources)).repeat_interleave(counts)
        within = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[rows]
        return rows, self._places[self._starts[sources][rows] + within]


def score_pairs(live: LiveState, nodes: Tensor, time: Tensor, source: Tensor, destination: Tensor) -> Tensor:
    """Return the logits of pairs by a `PairModel`, float32 [P].

    Args:
        live: Answers.
        nodes: int64 [R].
        time: float64 [R], the time of each; both nodes of a pair have the same.
        source: int64 [P], which of the nodes the source is.
        destination: int64 [P], which of the nodes the destination is.
    """
    model = live.task.model
    assert isinstance(model, PairModel)
    updated, batch = live.query(nodes, time)
    return model.score_in_pieces(updated, batch, source.to(live.task.device), destination.to(live.task.device)).float()


class Ranking:
    """Finds the best of many candidates for some sources.

    Args:
        live: Answers.
    """

    def __init__(self, live: LiveState) -> None:
        self._live = live

    def best(self, src: Tensor, times: Tensor, candidates: Tensor, k: int, excluded: Excluded) -> tuple[Tensor, Tensor]:
        """Return the ``k`` best candidates of every source.

        Args:
            src: int64 [S].
            times: float64 [S], since the first event of the stream.
            candidates: int64 [C], distinct nodes.
            k: At most C.
            excluded: Candidates that are excluded for some sources.

        Returns:
            Positions among the candidates, int64 [S, k], the best first, and their logits, float32 [S, k], -inf where a
            source has no more candidates.
        """
        places = torch.empty(len(src), k, dtype=torch.int64)
        logits = torch.empty(len(src), k)
        moments, moment_of = times.unique(return_inverse=True)
        order = moment_of.argsort(stable=True)
        groups = order.split(torch.bincount(moment_of, minlength=len(moments)).tolist())
        for time, sharing in zip(moments, groups, strict=True):
            for group in sharing.split(_SOURCES_PER_PIECE):
                pieces = self._logits(src[group], candidates, time)
                places[group], logits[group] = self._best_of(pieces, len(group), k, excluded.of(group))
        return places, logits

    def _logits(self, src: Tensor, candidates: Tensor, time: Tensor) -> Iterator[Tensor]:
        """Yield the logits of sources and some candidates at a time, [G, c], in the order of the candidates."""
        raise NotImplementedError

    def _best_of(
        self, pieces: Iterator[Tensor], count: int, k: int, excluded: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        device = self._live.task.device
        out_rows, out_places = (numbers.to(device) for numbers in excluded)
        best = torch.empty(count, 0, device=device)
        places, start = torch.empty(count, 0, dtype=torch.int64, device=device), 0
        for logits in pieces:
            end = start + logits.shape[1]
            is_here = (out_places >= start) & (out_places < end)
            logits[out_rows[is_here], out_places[is_here] - start] = -torch.inf
            own = torch.arange(start, end, device=device).expand(logits.shape)
            best, chosen = highest(torch.cat([best, logits], dim=1), min(k, end))
            places, start = torch.cat([places, own], dim=1).gather(1, chosen), end
        return places.cpu(), best.cpu()


class PairRanking(Ranking):
    """Ranks by a `PairModel`, which looks at each source and candidate together."""

    def _logits(self, src: Tensor, candidates: Tensor, time: Tensor) -> Iterator[Tensor]:
        for piece in candidates.split(_CANDIDATES_PER_PIECE):
            nodes = torch.cat([src, piece])
            pairs = torch.cartesian_prod(torch.arange(len(src)), torch.arange(len(src), len(nodes))).unbind(1)
            yield score_pairs(self._live, nodes, time.expand(len(nodes)), *pairs).view(len(src), len(piece))


class EmbeddingRanking(Ranking):
    """Ranks by the embeddings of sources and candidates.

    A candidate's embedding depends on the time alone, so candidates are embedded once per distinct time. The embeddings
    of the latest time are kept for further questions about the same candidates at that time, until an event comes. They
    take a row per candidate, 0.4 GB for a million candidates of width 100.

    Args:
        live: Answers.
        predictor: Scores pairs of embeddings.
    """

    def __init__(self, live: LiveState, predictor: LinkPredictor) -> None:
        super().__init__(live)
        self._predictor = predictor
        self._kept: tuple[tuple[int, float], Tensor, Tensor] | None = None  # version and time, candidates, their rows
        self._embedding = threading.Lock()

    def _logits(self, src: Tensor, candidates: Tensor, time: Tensor) -> Iterator[Tensor]:
        sources = self._predictor.source(embed(self._live, src, time.expand(len(src))))
        for piece in self._destinations(candidates, time).split(_CANDIDATES_PER_PIECE):
            yield self._predictor.every_pair(sources, piece)

    def _destinations(self, candidates: Tensor, time: Tensor) -> Tensor:
        """Return the candidates' embeddings as the link predictor transforms them, [C, d_emb]."""
        asked = (self._live.version, float(time))
        with self._embedding:  # of several that ask the same one embeds
            if self._kept is None or self._kept[0] != asked or not torch.equal(self._kept[1], candidates):
                self._kept = None  # there is room for one table
                self._kept = asked, candidates, self._embedded(candidates, time)
            return self._kept[2]

    def _embedded(self, candidates: Tensor, time: Tensor) -> Tensor:
        rows = torch.empty(len(candidates), self._predictor.destination.out_features, device=self._live.task.device)
        for start in range(0, len(candidates), _CANDIDATES_PER_PIECE):
            piece = candidates[start : start + _CANDIDATES_PER_PIECE]
            embeddings = embed(self._live, piece, time.expand(len(piece)))
            rows[start : start + len(piece)] = self._predictor.destination(embeddings)
        return rows


_EVENTS_AT_ONCE = 1 << 22
MOST_NODES = 1 << 31


class SeenPairs:
    """Distinct pairs of source and destination, kept up to date as events come.

    Args:
        keys: int64 [P], ``source * 2^31 + destination`` of every pair, strictly ascending; none if None.
    """

    def __init__(self, keys: Tensor | None = None) -> None:
        self._keys = torch.empty(0, dtype=torch.int64) if keys is None else keys
        self._new = array("q")  # one buffer: a tensor for each event would take seventy times the memory
        self._merging = threading.Lock()

    @classmethod
    def from_stream(cls, store: EventStore, end: int) -> SeenPairs:
        """Return the pairs of the first ``end`` events."""
        seen = cls()
        for start in range(0, end, _EVENTS_AT_ONCE):
            piece = slice(start, min(start + _EVENTS_AT_ONCE, end))
            seen.add(store.src[piece], store.dst[piece])
        return seen

    @classmethod
    def from_saved(cls, keys: Tensor, num_nodes: int) -> SeenPairs:
        """Return the pairs of `saved`."""
        return cls(keys // num_nodes * MOST_NODES + keys % num_nodes)

    def saved(self, num_nodes: int) -> Tensor:
        """Return ``source * num_nodes + destination`` of every pair, int64 [P], strictly ascending."""
        keys = self.keys()
        return keys // MOST_NODES * num_nodes + keys % MOST_NODES

    def add(self, src: Tensor, dst: Tensor) -> None:
        """Take in new events, int64 [B] each."""
        self._new.frombytes((src * MOST_NODES + dst).numpy().tobytes())
        if len(self._new) > max(_EVENTS_AT_ONCE, len(self._keys)):
            self.keys()

    def put_back(self, keys: Tensor, new: array[int], count: int) -> None:
        """Return to what there was: the pairs, the buffer of new ones and its length."""
        del new[count:]
        self._keys, self._new = keys, new

    def mark(self) -> tuple[Tensor, array[int], int]:
        """Return what `put_back` takes."""
        return self._keys, self._new, len(self._new)

    def clear(self) -> None:
        """Return to the state before the first event."""
        self._keys, self._new = self._keys[:0], array("q")

    def keys(self) -> Tensor:
        """Return the keys of all pairs, int64 [P], strictly ascending."""
        with self._merging:  # of several readers one does it
            if self._new:
                # Put in where they belong: to sort all again would take far longer than the question that asks.
                old, new = self._keys.numpy(), np.unique(np.array(self._new))
                if len(old):
                    new = new[old[np.searchsorted(old, new).clip(max=len(old) - 1)] != new]
                self._keys = torch.from_numpy(np.insert(old, np.searchsorted(old, new), new))
                self._new = array("q")
            return self._keys

    def for_sources(self, src: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pairs of some sources.

        Args:
            src: int64 [S].

        Returns:
            Position among the sources, int64 [Z], and destination, int64 [Z], of every pair.
        """
        keys = self.keys()
        first = torch.searchsorted(keys, src * MOST_NODES)
        count = torch.searchsorted(keys, (src + 1) * MOST_NODES) - first
        rows = torch.arange(len(src)).repeat_interleave(count)
        within = torch.arange(len(rows)) - (count.cumsum(0) - count)[rows]
        return rows, keys[first[rows] + within] % MOST_NODES
