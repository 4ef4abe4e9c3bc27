"""Compression of gradients over the fits of a run: which weights it is of, and what is kept back from step to step."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor, nn

from lightning_tgnn.algorithms.traffic.gradient_compression import GradientCompression, PieceCompression, PowerSGD
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.comm import Exchange, Traffic
from lightning_tgnn.strategies.parts.gradient_pieces import CompressedSum, SumOfPieces, SumOfProducts
from lightning_tgnn.types import Run
from lightning_tgnn.types.layout import GRADIENTS

RESIDUALS = "gradient compression"
"""Under what name a checkpoint has what is kept back, beside gradients by the names of their weights."""


class CompressedMean:
    """Compresses a run's gradients before they are sent, and keeps what the compression leaves out.

    Args:
        compression: None for none.
        run: What begins.
        traffic: Where bytes are counted.
        background: Whether the rank computes while gradients travel.

    Attributes:
        sum: Sums up the gradients of the weights; None where they travel as they are, or there is one rank.
    """

    def __init__(
        self, compression: GradientCompression | None, run: Run, traffic: Traffic, *, background: bool
    ) -> None:
        self._compression, self._background, self._sharded = compression, background, run.writes_own_rows
        self.sum: CompressedSum | None = None
        self._weights: list[tuple[str, list[int]]] = []
        self._group: dist.ProcessGroup | None = None
        if compression is not None:
            # Its messages, sent when those before have come, must not meet what the rank sends meanwhile.
            self._group = run.group_of(GRADIENTS, "compressed")
        self._exchange = Exchange(run.ranks, run.rank, self._group, run.device)
        self._exchange.traffic = traffic

    def open(
        self,
        parameters: Sequence[tuple[str, nn.Parameter]],
        tables: Collection[Tensor],
        kept: Mapping[str, Any] | None,
    ) -> None:
        """Begin anew with the weights of a model, or continue with what a checkpoint has of them.

        Args:
            parameters: Names and parameters of the model, in its order.
            tables: Embedding tables, whose gradients travel as they are.
            kept: What `state_dict` returned; None for nothing.
        """
        apart = {id(table) for table in tables}
        own = [(name, one) for name, one in parameters if one.requires_grad and id(one) not in apart]
        self._weights = [(name, list(one.shape)) for name, one in own]
        if self._compression is not None and self._group is not None:
            shapes = [one.shape for _, one in own]
            self.sum = _new_sum(self._compression, shapes, self._exchange, self._group, background=self._background)
        if kept is None:
            return
        if self.sum is None or any(kept[name] != value for name, value in self._of().items()):
            what = "gradients travel otherwise than before, or other weights are trained"
            rank_zero_info(f"{what}: what compression has kept back of them is dropped")
        else:
            self.sum.load_state_dict(kept["state"])

    def _of(self) -> dict[str, Any]:
        """Return what is kept back, as plain values."""
        assert self._compression is not None
        return {"compression": self._compression.name, "weights": [[name, [*shape]] for name, shape in self._weights]}

    def forget(self) -> None:
        """Drop what is kept back: it is of other weights."""
        self.sum = None

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint has to hold; all ranks have to call it together.

        The first rank has it whole, unless each writes its own.
        """
        state = {} if self.sum is None else self.sum.state_dict(sharded=self._sharded)
        return {**self._of(), "state": state} if state else {}

    def refuse_loss_scale(self, precision: object) -> None:
        """Refuse a loss scale where something is kept back.

        Raises:
            InvalidArgumentError: The compression keeps a part of the gradients for the next step.
        """
        if self._compression is None or not self._compression.has_residual:
            return
        cure = "set precision='bf16-mixed', or gradient_compression='bfloat16': what is kept back has the scale before"
        requirement = f"without a loss scale where gradients travel as {self._compression.name}"
        raise InvalidArgumentError("Trainer(precision=...)", requirement, precision, cure)


def sum_alone(compression: GradientCompression, shapes: Sequence[torch.Size], device: torch.device) -> CompressedSum:
    """Return what compresses and sums up the gradients of this rank alone; nothing travels.

    It takes what each rank takes beside its messages. All ranks have to call it together.

    Args:
        compression: Without its first steps in which gradients travel as they are.
        shapes: Of the weights.
        device: Where the gradients are.
    """
    group: dist.ProcessGroup | None = None
    if isinstance(compression, PowerSGD):  # torch's hook needs a group
        compression = replace(compression, warm_up=0)
        # Kept until all groups end: a thread of gloo that has just ended a sum must not be the last to let go of it.
        group, _ = dist.new_subgroups(group_size=1)
    return _new_sum(compression, shapes, Exchange(1, 0, group, device), group, background=False)


def _new_sum(
    compression: GradientCompression,
    shapes: Sequence[torch.Size],
    exchange: Exchange,
    group: dist.ProcessGroup | None,
    *,
    background: bool,
) -> CompressedSum:
    if isinstance(compression, PieceCompression):
        return SumOfPieces(compression, shapes, exchange, background=background)
    assert isinstance(compression, PowerSGD)
    return SumOfProducts(compression, shapes, exchange, group)
