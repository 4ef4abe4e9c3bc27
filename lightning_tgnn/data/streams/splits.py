"""Chronological splits, and nodes held out of training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError, check_choice, check_fraction
from lightning_tgnn.data.streams.event_store import EventStore

SPLIT_BY = ("events", "time")


@dataclass(frozen=True)
class Split:
    """The training, validation and test splits of a stream, in time order.

    Attributes:
        train: int64, event ids of the training split, without events of held-out nodes.
        val: int64, event ids.
        test: int64, event ids.
        unseen: bool [N], nodes that no training event has.
        held_out: bool [N], which of them were held out.
    """

    train: Tensor
    val: Tensor
    test: Tensor
    unseen: Tensor
    held_out: Tensor


def chronological_split(
    store: EventStore,
    *,
    val_ratio: float,
    test_ratio: float,
    by: str = "events",
    held_out: float | Tensor = 0.0,
    seed: int = 0,
    ends: tuple[int, int] | None = None,
) -> Split:
    """Cut a stream in three splits by time.

    Args:
        store: The stream.
        val_ratio: Share of the validation split.
        test_ratio: Share of the test split, the last one.
        by: Whether shares count ``events`` or ``time`` span.
        held_out: Share of the nodes of validation and test whose events leave the training split (TGN, section 5:
            the inductive setting); or bool [N], these nodes.
        seed: Of the choice of held-out nodes.
        ends: Where the training and validation splits end, whatever the shares; None goes by these.

    Raises:
        InvalidArgumentError: A split would be empty.
    """
    check_choice("split_by", by, SPLIT_BY)
    for name, ratio in {"val_ratio": val_ratio, "test_ratio": test_ratio}.items():
        check_fraction(name, ratio, zero_allowed=False, cure="0.15 is usual")
    if not isinstance(held_out, Tensor):
        check_fraction("held_out_nodes", held_out, cure="0.1 is usual, 0 holds none out")
    train_end, val_end = _boundaries(store, val_ratio, test_ratio, by) if ends is None else ends
    sizes = {"training": train_end, "validation": val_end - train_end, "test": len(store) - val_end}
    _check_sizes(sizes, val_ratio, test_ratio, by)

    kept = torch.ones(train_end, dtype=torch.bool)
    out = torch.zeros(store.num_nodes, dtype=torch.bool)
    if isinstance(held_out, Tensor) or held_out:
        out = held_out if isinstance(held_out, Tensor) else _held_out_nodes(store, train_end, held_out, seed)
        kept = ~(out[store.src[:train_end]] | out[store.dst[:train_end]])
        if not kept.any():
            requirement, cure = "a share that leaves events to train on", "0.1 is usual, 0 holds none out"
            raise InvalidArgumentError("held_out_nodes", requirement, held_out, cure)
    train = kept.nonzero().squeeze(1)
    unseen = torch.ones(store.num_nodes, dtype=torch.bool)
    unseen[store.src[train]] = False
    unseen[store.dst[train]] = False
    return Split(train, torch.arange(train_end, val_end), torch.arange(val_end, len(store)), unseen, out)


def _boundaries(store: EventStore, val_ratio: float, test_ratio: float, by: str) -> tuple[int, int]:
    shares = (1 - val_ratio - test_ratio, 1 - test_ratio)
    if by == "events":
        train_end, val_end = (round(share * len(store)) for share in shares)
        return train_end, val_end
    start, span = store.time[0], store.time[-1] - store.time[0]
    train_end, val_end = (int(torch.searchsorted(store.time, start + share * span)) for share in shares)
    return train_end, val_end


def _check_sizes(sizes: dict[str, int], val_ratio: float, test_ratio: float, by: str) -> None:
    for name, size in sizes.items():
        if size < 1:
            shares = {"val_ratio": val_ratio, "test_ratio": test_ratio, "split_by": by}
            cure = f"change {shares} or bring more events"
            raise InvalidArgumentError(f"the {name} split", "at least one event", size, cure)


def _held_out_nodes(store: EventStore, train_end: int, share: float, seed: int) -> Tensor:
    """Return bool [N]: a random ``share`` of the nodes that validation and test have."""
    later = torch.cat([store.src[train_end:], store.dst[train_end:]]).unique()
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(later), generator=generator)[: max(1, round(share * len(later)))]
    out = torch.zeros(store.num_nodes, dtype=torch.bool)
    out[later[chosen]] = True
    return out
