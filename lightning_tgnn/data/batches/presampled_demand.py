"""What the ranks will need, counted over real batches before training starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_tgnn.algorithms.partitions.demand import Demand
from lightning_tgnn.algorithms.schedules import DataParallel
from lightning_tgnn.checks import InvalidArgumentError, check_int, refusal
from lightning_tgnn.data.batches.loader import EventLoader
from lightning_tgnn.types import EventBatch, RankLayout, SharedWrites, Turn


@dataclass(frozen=True)
class Presampled:
    """Global batches of the training split that were made ahead.

    Attributes:
        numbers: Of the batches in an epoch, ascending.
        events: int64 [E], the ids of their events.
        demand: The rows that travel in them.
    """

    numbers: list[int]
    events: Tensor
    demand: Demand


def presample_demand(loader: EventLoader, ranks: int, batches: int = 32) -> Demand:
    """Make some batches of ``loader`` as ``ranks`` ranks would, and count the rows that travel (Sven, section 3.1.2).

    A rank needs the row of a node twice in a batch if it reads the node and mails it: once fetched, once sent back.
    Batches are spread evenly over the loader's events and drawn as in epoch 0; all of them are taken if there are no
    more.

    Args:
        loader: Of the training split, with the batch size of one rank.
        ranks: M, at least 1.
        batches: Global batches to look at, at least 1.

    Raises:
        InvalidArgumentError: A number is below 1, or there are fewer events than ranks.
    """
    loaders = _loaders(loader, ranks, batches)
    return _presample(loaders, _spread(range(len(loaders[0])), batches)).demand


def presample_apart(loader: EventLoader, ranks: int, batches: int = 32) -> tuple[Presampled, Presampled]:
    """Do the same on two samples that share no batch: one to fit a partition on, the other to judge it on.

    Both are spread evenly over the loader's events. Where there are fewer than twice ``batches``, half of them are
    fitted and the others judged.

    Args:
        loader: Of the training split, with the batch size of one rank.
        ranks: M, at least 1.
        batches: Global batches of each sample, at least 1.

    Returns:
        The sample to fit on, and the sample to judge on.

    Raises:
        InvalidArgumentError: A number is below 1, there are fewer events than ranks, or only one batch.
    """
    loaders = _loaders(loader, ranks, batches)
    total = len(loaders[0])
    if total == 1:
        requirement = (
            f"below the {len(loader.events):,} events of the training split, so that there is a batch to judge on"
        )
        cure = "give a smaller batch_size or fewer ranks"
        raise InvalidArgumentError(refusal("batch_size times ranks", requirement, loaders[0].global_batch_size, cure))
    fitted = _spread(range(total), min(batches, total // 2))
    judged = _spread(sorted(set(range(total)) - set(fitted)), batches)
    return _presample(loaders, fitted), _presample(loaders, judged)


def presample_steps(loader: EventLoader, ranks: int, batches: int) -> Iterator[tuple[list[Tensor], SharedWrites]]:
    """Yield what consecutive global batches from the middle of ``loader`` read, rank by rank, and what they write.

    Args:
        loader: Of the training split, with the batch size of one rank.
        ranks: M, at least 2.
        batches: How many, all if there are no more.

    Raises:
        InvalidArgumentError: A number is below 1, or there are fewer events than ranks.
    """
    epoch = _first_epoch(_loaders(loader, ranks, batches))
    total = len(epoch[0][1])
    first = max(total - batches, 0) // 2
    for number in range(first, min(first + batches, total)):
        made = [own.batch(turns[number]) for own, turns in epoch]
        together = made[0].shared.together
        assert together is not None
        yield [batch.nodes for batch in made], together


def _loaders(loader: EventLoader, ranks: int, batches: int) -> list[EventLoader]:
    """Return the loader of every rank."""
    check_int("ranks", ranks, minimum=1, cure="give the number of ranks, M")
    check_int("batches", batches, minimum=1, cure="32 is usual")
    layout = RankLayout.of(ranks)
    return [_without_files(loader).follow(DataParallel(), layout, rank) for rank in range(ranks)]


def _spread(numbers: Sequence[int], count: int) -> list[int]:
    """Return ``count`` of the numbers, evenly spread; all of them if there are no more."""
    places = torch.linspace(0, len(numbers) - 1, min(count, len(numbers))).round().long()
    return [numbers[place] for place in places.tolist()]


def _presample(loaders: list[EventLoader], numbers: list[int]) -> Presampled:
    nodes = [torch.cat([_rows(own.batch(turns[number])) for number in numbers]) for own, turns in _first_epoch(loaders)]
    rank = torch.arange(len(loaders)).repeat_interleave(torch.tensor([len(rows) for rows in nodes]))
    events = loaders[0].events.split(loaders[0].global_batch_size)
    demand = Demand.of(rank, torch.cat(nodes), len(loaders), loaders[0]._organizer.store.num_nodes)
    return Presampled(numbers, torch.cat([events[number] for number in numbers]), demand)


def _first_epoch(loaders: list[EventLoader]) -> list[tuple[EventLoader, Sequence[Turn]]]:
    """Return every rank's loader with its turns in epoch 0."""
    return [(loader, loader.turns(0)) for loader in loaders]


def _without_files(loader: EventLoader) -> EventLoader:
    """Return a loader that draws each batch anew: a few batches do not need an epoch drawn ahead."""
    plain = copy(loader)
    plain._presampled = None
    return plain


def _rows(batch: EventBatch) -> Tensor:
    """Return the nodes whose rows ``batch`` fetches, and those whose rows it sends back."""
    return torch.cat([batch.nodes, batch.mail_nodes])
