"""Compressions of gradients that a plan may have: the bytes that they leave, and the seconds that they take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import lightning.pytorch as pl
import torch
from torch.nn import Embedding

from lightning_tgnn.algorithms.traffic.gradient_compression import (
    COMPRESSIONS,
    gradient_compression,
    updates_as_they_are,
)
from lightning_tgnn.checks import check_choice
from lightning_tgnn.strategies.parts.compressed_mean import sum_alone
from lightning_tgnn.strategies.stage_recorder import wait_for_device

FLOAT = 4  # bytes of a weight
_REPEATS = 7


@dataclass(frozen=True)
class CompressedGradients:
    """What a compression makes of the gradients of a model.

    Attributes:
        nbytes: Of what travels; embedding tables travel as they are.
        seconds: In which a process compresses its gradients, sums up what arrives and restores the sum.
    """

    nbytes: float
    seconds: float


def chosen_compressions(written: str | None) -> list[str]:
    """Return the compressions that a user lets a plan have, separated by commas.

    Raises:
        InvalidArgumentError: A name is none of `COMPRESSIONS`.
    """
    names = list(dict.fromkeys(word.strip() for word in (written or "").split(",") if word.strip()))
    for name in names:
        check_choice("gradient_compression", name, COMPRESSIONS)
    return names


def too_short_for(compression: str | None, updates: int) -> str:
    """Say why a recipe of so many updates would send all gradients as they are; empty where it would not.

    Args:
        compression: Of gradients, its name; None for none.
        updates: Of the weights.

    >>> too_short_for("powersgd", 12)
    'powersgd leaves the gradients of the first 100 updates as they are, and the recipe has 12'
    """
    plain = updates_as_they_are(compression)
    if not plain or updates > plain:
        return ""
    return f"{compression} leaves the gradients of the first {plain} updates as they are, and the recipe has {updates}"


def gradient_bytes(task: pl.LightningModule) -> float:
    """Return the bytes of the gradients of all weights that are trained."""
    return float(FLOAT * sum(weights.numel() for weights in task.parameters() if weights.requires_grad))


def measured_compressions(task: pl.LightningModule, device: torch.device) -> dict[str, CompressedGradients]:
    """Return what each compression makes of the gradients of a task; all processes have to call it together.

    Seconds are for a process that sums up all pieces; where several do it, each has a part of them.

    Args:
        task: Whose weights.
        device: Where its gradients are.
    """
    tables = {id(module.weight): module.weight.numel() for module in task.modules() if isinstance(module, Embedding)}
    shapes = [weights.shape for weights in task.parameters() if weights.requires_grad and id(weights) not in tables]
    plain, found = FLOAT * sum(tables.values()), {}
    values = torch.randn(sum(shape.numel() for shape in shapes), device=device)
    for name in COMPRESSIONS:
        kind = gradient_compression(name)
        assert kind is not None
        taken = []
        summed = sum_alone(kind, shapes, device)
        for _ in range(1 + _REPEATS):
            wait_for_device(device)
            begin = perf_counter()
            summed.start(values.clone()).wait()
            wait_for_device(device)
            taken.append(perf_counter() - begin)
        found[name] = CompressedGradients(float(plain + kind.nbytes(shapes)), median(taken[1:]))
    return found


def describe_gradients(exact: float, compressed: Mapping[str, CompressedGradients], ranks: int) -> list[str]:
    """Say what a rank sends of gradients for an update, by compression; nothing of one rank.

    Args:
        exact: Bytes of the gradients.
        compressed: What each compression makes of them.
        ranks: Of the cluster.
    """
    if ranks == 1:
        return []
    share = 2 * (ranks - 1) / ranks / 1e3
    kinds = [
        f"{share * one.nbytes:,.0f} with {name}, which takes {1e3 * one.seconds:.1f} ms"
        for name, one in compressed.items()
    ]
    own = f"a rank sends {share * exact:,.0f} kB of gradients for an update as they are"
    return [f"{', '.join([own, *kinds])}: see gradient_compression"]
