"""What the ranks will need, counted over real batches before training starts."""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor

from lightning_tgnn.algorithms.demand import Demand
from lightning_tgnn.checks import check_int
from lightning_tgnn.data.loader import EventLoader
from lightning_tgnn.types import EventBatch


def presample_demand(loader: EventLoader, ranks: int, batches: int = 32) -> Demand:
    """Make some batches of ``loader`` as ``ranks`` ranks would, and count the rows that travel (Sven, section 3.1.2).

    A rank needs the row of a node twice in a batch if it reads the node and mails it: once fetched, once sent back.
    Batches are spread evenly over the loader's events and drawn as in epoch 0; all of them are taken if there are no
    more.

    Args:
        loader: Of the training part, with the batch size of one rank.
        ranks: M, at least 1.
        batches: Global batches to look at, at least 1.

    Raises:
        InvalidArgumentError: A number is below 1, or there are fewer events than ranks.
    """
    check_int("ranks", ranks, minimum=1, cure="give the number of ranks, M")
    check_int("batches", batches, minimum=1, cure="32 is usual")
    parts = [_without_files(loader).shard(rank, ranks) for rank in range(ranks)]
    total = len(parts[0])
    numbers = torch.linspace(0, total - 1, min(batches, total)).round().long().tolist()
    nodes = [torch.cat([_rows(part._make(number, 0)) for number in numbers]) for part in parts]
    rank = torch.arange(ranks).repeat_interleave(torch.tensor([len(rows) for rows in nodes]))
    return Demand.of(rank, torch.cat(nodes), ranks, loader._organizer.store.num_nodes)


def _without_files(loader: EventLoader) -> EventLoader:
    """Return a loader that draws each batch anew: a few batches do not need an epoch drawn ahead."""
    plain = copy(loader)
    plain._presampled = None
    return plain


def _rows(batch: EventBatch) -> Tensor:
    """Return the nodes whose rows ``batch`` fetches, and those whose rows it sends back."""
    return torch.cat([batch.nodes, batch.mail_nodes])
