"""The rows that ranks will need, counted over batches of the training split before training starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy

import torch
from torch import Tensor

from lightning_tgnn.algorithms.partitions.demand import Demand, DemandSample, reliability
from lightning_tgnn.algorithms.schedules import DataParallel
from lightning_tgnn.algorithms.schedules.data_parallel import in_split_order, rank_of
from lightning_tgnn.algorithms.streams.dedup import organize
from lightning_tgnn.checks import InvalidArgumentError, check_int
from lightning_tgnn.data.batches.loader import EventLoader
from lightning_tgnn.data.batches.organizer import mailed, read_by
from lightning_tgnn.types import RankLayout, SharedWrites
from lightning_tgnn.types.schedule import TIME

MOST_EVENTS = 1 << 20
"""Events that are counted at most: of a longer training split, batches that are spread evenly over it."""
JUDGED = 32

_EVENTS_AT_ONCE = 1 << 16


def presample_demand(
    loader: EventLoader,
    ranks: int,
    batches: int | None = None,
    schedule: DataParallel | None = None,
) -> DemandSample:
    """Draw batches of ``loader`` as ``ranks`` ranks would, and count the rows that travel (Sven, section 3.1.2).

    A rank needs the row of a node twice in a batch if it reads the node and mails it: once fetched, once sent back.
    Batches are drawn as in epoch 0. Each is drawn once, whole, and dealt out to the ranks, so what it takes depends on
    the events that are counted, at most `MOST_EVENTS`, not on the number of ranks.

    Args:
        loader: Of the training split, with the batch size of one rank.
        ranks: M, at least 1.
        batches: Global batches to look at, spread evenly; None for all, up to `MOST_EVENTS`.
        schedule: How a global batch is dealt out; by time if None.

    Raises:
        InvalidArgumentError: A number is below 1, or there are fewer events than ranks.
    """
    counter = _Counter(loader, ranks, schedule or DataParallel())
    if batches is not None:
        check_int("batches", batches, minimum=1, cure="32 is usual, and None takes all")
    return counter.sample(range(counter.total), batches)


def presample_apart(
    loader: EventLoader,
    ranks: int,
    judged: int = JUDGED,
    schedule: DataParallel | None = None,
) -> tuple[DemandSample, DemandSample]:
    """Do the same on two samples that share no batch: one to judge a partition on, all others to fit it on.

    Args:
        loader: Of the training split, with the batch size of one rank.
        ranks: M, at least 1.
        judged: Global batches to judge on, spread evenly, at least 1; a quarter of all where that is less.
        schedule: How a global batch is dealt out; by time if None.

    Returns:
        The sample to fit on, and the sample to judge on.

    Raises:
        InvalidArgumentError: A number is below 1, there are fewer events than ranks, or only one batch.
    """
    check_int("batches", judged, minimum=1, cure="32 is usual")
    counter = _Counter(loader, ranks, schedule or DataParallel())
    if counter.total == 1:
        requirement = (
            f"below the {len(loader.events):,} events of the training split, so that there is a batch to judge on"
        )
        cure = "give a smaller batch_size or fewer ranks"
        raise InvalidArgumentError("batch_size times ranks", requirement, counter.size, cure)
    count = min(judged, max(counter.total // 4, 1))
    apart = ((2 * torch.arange(count) + 1) * counter.total // (2 * count)).tolist()  # the middle of each of as many
    rest = sorted(set(range(counter.total)) - set(apart))
    return counter.sample(rest, None), counter.sample(apart, None)


def presample_steps(loader: EventLoader, ranks: int, batches: int) -> Iterator[tuple[list[Tensor], SharedWrites]]:
    """Yield what consecutive global batches from the middle of ``loader`` read, rank by rank, and what they write.

    Args:
        loader: Of the training split, with the batch size of one rank.
        ranks: M, at least 2.
        batches: How many, all if there are no more.

    Raises:
        InvalidArgumentError: A number is below 1, or there are fewer events than ranks.
    """
    check_int("ranks", ranks, minimum=1, cure="give the number of ranks, M")
    check_int("batches", batches, minimum=1, cure="32 is usual")
    plain = copy(loader)
    plain._presampled = None  # a few batches do not need an epoch drawn ahead
    layout = RankLayout.of(ranks)
    epoch = [(own, own.turns(0)) for rank in range(ranks) for own in [plain.follow(DataParallel(), layout, rank)]]
    total = len(epoch[0][1])
    first = max(total - batches, 0) // 2
    for number in range(first, min(first + batches, total)):
        made = [own.batch(turns[number]) for own, turns in epoch]
        together = made[0].shared.together
        assert together is not None
        yield [batch.nodes for batch in made], together


class _Counter:
    """Counts the rows that travel in global batches of a training split."""

    def __init__(self, loader: EventLoader, ranks: int, schedule: DataParallel) -> None:
        check_int("ranks", ranks, minimum=1, cure="give the number of ranks, M")
        self._events, self._sampler = loader.events, loader._sampler
        self._ranks, self._split = ranks, schedule.split_batch
        layout = RankLayout.of(ranks)
        schedule.check(layout, len(loader.events))
        self.size = schedule.global_batch_size(layout, loader.batch_size)
        self.total = -(-len(loader.events) // self.size)

    def sample(self, numbers: Sequence[int], count: int | None) -> DemandSample:
        """Count in so many of some batches, evenly spread; in all of them if there are no more."""
        count = max(MOST_EVENTS // self.size, 2) if count is None else count
        places = torch.linspace(0, len(numbers) - 1, min(count, len(numbers))).round().long()
        numbers = [numbers[place] for place in places.tolist()]
        halves = self._demand(numbers[::2]), self._demand(numbers[1::2])
        events = torch.cat([self._batch(number) for number in numbers])
        return DemandSample(numbers, events, halves[0].plus(halves[1]), reliability(*halves))

    def _batch(self, number: int) -> Tensor:
        return self._events[number * self.size : (number + 1) * self.size]

    def _demand(self, numbers: Sequence[int]) -> Demand:
        """Return the sum over batches; what is not added yet is never more than that."""
        none, num_nodes = torch.empty(0, dtype=torch.int64), self._sampler.store.num_nodes
        whole, waiting = Demand.of(none, none, self._ranks, num_nodes), list[Demand]()
        at_once = max(_EVENTS_AT_ONCE // self.size, 1)
        for start in range(0, len(numbers), at_once):
            rank, node = (torch.cat(part) for part in zip(*self._rows(numbers[start : start + at_once]), strict=True))
            waiting.append(Demand.of(rank, node, self._ranks, num_nodes))
            if sum(len(one.count) for one in waiting) >= len(whole.count):
                whole, waiting = whole.plus(*waiting), []
        return whole.plus(*waiting)

    def _rows(self, numbers: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield ranks and nodes of the rows that batches fetch, and of those that they send back."""
        sampler, batches = self._sampler, [self._batch(number) for number in numbers]
        store, roots, num_nodes = sampler.store, sampler.sampled_roots, sampler.store.num_nodes
        events, sizes = torch.cat(batches), torch.tensor([len(batch) for batch in batches])
        batch = torch.arange(len(batches)).repeat_interleave(sizes)
        sample = sampler.sample(events, 0, torch.stack([own[0] for own in batches])[batch])
        rank = self._rank_of(batch, sizes, store.dst[events])
        reader = batch * self._ranks + rank
        read = organize((reader.unsqueeze(1) * num_nodes + read_by(store, events, sample, roots)).flatten()).distinct
        yield read // num_nodes % self._ranks, read % num_nodes
        receivers = mailed(store, events, sample, roots)
        # Split by destination, only the rank of a batch's latest event mails a node.
        sender = reader if self._split == TIME else batch
        sent = organize((sender.unsqueeze(1) * num_nodes + receivers).flatten())
        yield rank[sent.last // receivers.shape[1]], sent.distinct % num_nodes

    def _rank_of(self, batch: Tensor, sizes: Tensor, destination: Tensor) -> Tensor:
        """Return the rank of every event, int64 [B]."""
        order = in_split_order(self._split, destination, batch)
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order)) - (sizes.cumsum(0) - sizes)[batch]
        return rank_of(place, sizes[batch], self._ranks)
