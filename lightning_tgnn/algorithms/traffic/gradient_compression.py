"""Gradients in fewer bytes: rounded to bfloat16, quantised to int8, or as products of narrow matrices (PowerSGD)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, TypeGuard

import torch
from torch import Tensor
from typing_extensions import override

from lightning_tgnn.checks import InvalidArgumentError, check_int, check_not_negative
from lightning_tgnn.types.outline import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL

WEIGHTS, PIECES = "weights", "pieces of weights"
"""Kinds of bytes: gradients that are summed on their way, and those that one rank sums up."""

_FLOAT = 4  # bytes
_BLOCK = 256
_LEVELS = 127


class GradientCompression(ABC):
    """How gradients are compressed before they are sent.

    Attributes:
        name: Name by which a user chooses the compression.
        has_residual: Whether each rank keeps the part that has not travelled, and adds it to its next gradient.
        travels: Collectives in which all ranks sum up compressed gradients; see `gradient_travels`.
    """

    name: ClassVar[str]
    travels: ClassVar[tuple[str, ...]]
    has_residual: ClassVar[bool] = False

    @abstractmethod
    def nbytes(self, shapes: Sequence[Sequence[int]]) -> int:
        """Return the bytes of a compressed gradient.

        To average gradients over M ranks, each rank sends ``2 (M - 1) / M`` times as many bytes, on average.

        Args:
            shapes: Shapes of the weights.
        """


class PieceCompression(GradientCompression):
    """Compresses each block of consecutive values by itself.

    Attributes:
        block: Values of a block; the last block of a weight is filled up with zeros.
        block_bytes: Bytes of a compressed block.
    """

    travels = (ALL_TO_ALL, ALL_GATHER)
    block: ClassVar[int]
    block_bytes: ClassVar[int]

    def blocks(self, shape: Sequence[int]) -> int:
        """Return the blocks of a weight."""
        return -(-prod(shape) // self.block)

    @override
    def nbytes(self, shapes: Sequence[Sequence[int]]) -> int:
        return self.block_bytes * sum(self.blocks(shape) for shape in shapes)

    @abstractmethod
    def encode(self, values: Tensor) -> Tensor:
        """Return values [n * block] as bytes, uint8 [n, block_bytes]."""

    @abstractmethod
    def decode(self, data: Tensor) -> Tensor:
        """Return the values of bytes, float32 [n * block]."""


@dataclass(frozen=True)
class BFloat16(PieceCompression):
    """Sends gradients in bfloat16, half of the bytes, and sums them in float32.

    Each value is rounded twice, before the sum and after it, however many ranks there are.
    """

    name = "bfloat16"
    block = 1
    block_bytes = 2

    @override
    def encode(self, values: Tensor) -> Tensor:
        return values.to(torch.bfloat16).unsqueeze(1).view(torch.uint8)

    @override
    def decode(self, data: Tensor) -> Tensor:
        return data.contiguous().view(torch.bfloat16).flatten().float()


@dataclass(frozen=True)
class Int8(PieceCompression):
    """Sends gradients as multiples of a scale for each 256 values, a quarter of the bytes, with error feedback.

    Levels are -127 to 127, and the largest value of a block is level 127 or -127. Zero stays zero. A block that holds
    NaN or an infinity has no finite value afterwards. See "error feedback" in Karimireddy and others, ICML 2019.
    """

    name = "int8"
    has_residual = True
    block = _BLOCK
    block_bytes = _FLOAT + _BLOCK

    @override
    def encode(self, values: Tensor) -> Tensor:
        rows = values.float().view(-1, self.block)
        scale = rows.abs().amax(1, keepdim=True) / _LEVELS
        levels = (rows / scale.where(scale > 0, torch.ones_like(scale))).round_().nan_to_num_(0.0, 0.0, 0.0)
        levels = levels.clamp_(-_LEVELS, _LEVELS).to(torch.int8)
        return torch.cat([scale.flatten().view(torch.uint8).view(-1, _FLOAT), levels.view(torch.uint8)], dim=1)

    @override
    def decode(self, data: Tensor) -> Tensor:
        scale, levels = data.split([_FLOAT, self.block], dim=1)
        return (levels.contiguous().view(torch.int8) * scale.flatten().view(torch.float32).unsqueeze(1)).flatten()


@dataclass(frozen=True)
class PowerSGD(GradientCompression):
    """Sends the gradient of a matrix as the product of two narrow matrices, with error feedback, by torch's hook.

    See Vogels, Karimireddy and Jaggi, NeurIPS 2019, and `torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook`.
    Gradients that would not shrink to less than half travel as they are, such as vectors.

    Args:
        rank: Columns of the narrow matrices.
        warm_up: Steps before compression begins; their gradients travel as they are.

    Raises:
        InvalidArgumentError: ``rank`` is no integer of at least 1, or ``warm_up`` none of at least 0.
    """

    name = "powersgd"
    has_residual = True
    travels = (ALL_REDUCE,) * 3  # what it leaves alone, then the left and then the right matrices

    rank: int = 4
    warm_up: int = 100

    least_gain: ClassVar[int] = 2
    """A matrix travels as a product where it is more than so many times the bytes of that."""

    def __post_init__(self) -> None:
        check_int("rank", self.rank, minimum=1, cure="1 to 8 are usual")
        check_int("warm_up", self.warm_up, minimum=0, cure="give steps, for example 100, or 0")

    @staticmethod
    def matrix_of(shape: Sequence[int]) -> tuple[int, int]:
        """Return rows and columns of a weight as a matrix; neighbouring dimensions are joined so that the sum is least.

        >>> PowerSGD.matrix_of([2, 50, 200]), PowerSGD.matrix_of([7])
        ((100, 200), (7, 1))
        """
        cuts = range(1, len(shape)) if len(shape) > 1 else (1,)
        return min(((prod(shape[:cut]), prod(shape[cut:])) for cut in cuts), key=sum)

    def narrow_sizes(self, shapes: Sequence[Sequence[int]]) -> tuple[int, int, int]:
        """Return the numbers that travel: as they are, of the left and of the right matrices."""
        plain = left = right = 0
        for shape in shapes:
            rows, columns = self.matrix_of(shape)
            rank = min(rows, columns, self.rank)
            if (rows + columns) * rank * self.least_gain < rows * columns:
                left, right = left + rows * rank, right + columns * rank
            else:
                plain += rows * columns
        return plain, left, right

    @override
    def nbytes(self, shapes: Sequence[Sequence[int]]) -> int:
        return _FLOAT * sum(self.narrow_sizes(shapes))


_KINDS: tuple[type[BFloat16 | Int8 | PowerSGD], ...] = (BFloat16, Int8, PowerSGD)
COMPRESSIONS: tuple[str, ...] = tuple(kind.name for kind in _KINDS)
"""Names of compressions, from the one that changes least to the one that sends least."""


def gradient_compression(given: GradientCompression | str | None) -> GradientCompression | None:
    """Return the compression that a user has chosen by its name or with its settings; None for no compression.

    Raises:
        InvalidArgumentError: ``given`` is neither a known name, nor a `GradientCompression`, nor None.

    >>> gradient_compression("powersgd")
    PowerSGD(rank=4, warm_up=100)
    """
    if given is None or isinstance(given, GradientCompression):
        return given
    if is_compression(given):
        return _KINDS[COMPRESSIONS.index(given)]()
    requirement = f"{', '.join(COMPRESSIONS)}, one of them with settings such as PowerSGD(rank=2), or None"
    cure = "'bfloat16' changes least, None sends gradients as they are"
    raise InvalidArgumentError("gradient_compression", requirement, given, cure)


def is_compression(name: object) -> TypeGuard[str]:
    """Whether there is a compression of this name."""
    return isinstance(name, str) and name in COMPRESSIONS


def updates_as_they_are(given: GradientCompression | str | None) -> int:
    """Return for how many updates a compression leaves gradients as they are before it begins.

    >>> updates_as_they_are("powersgd"), updates_as_they_are("int8")
    (100, 0)
    """
    kind = gradient_compression(given)
    return kind.warm_up if isinstance(kind, PowerSGD) else 0


def compressed_bytes(name: str, exact: float) -> float | None:
    """Return the compressed bytes of ``exact`` bytes in float32; None if they depend on the shapes of weights.

    Weights are assumed to fill their blocks. Small weights are padded and take more bytes; see
    `GradientCompression.nbytes`.

    >>> compressed_bytes("bfloat16", 1024.0), compressed_bytes("int8", 1024.0)
    (512.0, 260.0)
    """
    kind = _KINDS[COMPRESSIONS.index(name)]
    return exact / _FLOAT * kind.block_bytes / kind.block if issubclass(kind, PieceCompression) else None


def gradient_travels(compression: str | None) -> tuple[str, ...]:
    """Return the collectives in which all ranks sum up gradients, as named in `lightning_tgnn.types.outline.Stage`.

    Gradients that can be summed on their way round a ring go in all-reduces. Otherwise pieces go from each rank to
    each, and then the sums of the pieces.

    Args:
        compression: Its name; None for none.

    >>> gradient_travels(None), gradient_travels("int8")
    (('all_reduce',), ('all_to_all', 'all_gather'))
    """
    return (ALL_REDUCE,) if compression is None else _KINDS[COMPRESSIONS.index(compression)].travels


def gradient_traffic(compression: str | None, size: float, updates: int, ranks: int) -> dict[str, float]:
    """Return the bytes of gradients that all ranks send, by kind: `WEIGHTS` or `PIECES`.

    Args:
        compression: Its name; None for none.
        size: Bytes of the gradients of an update, as they travel.
        updates: How many.
        ranks: M.

    Raises:
        InvalidArgumentError: The size is negative.
    """
    check_not_negative("gradient_bytes", size, cure="4 bytes a weight are usual")
    kind = PIECES if ALL_TO_ALL in gradient_travels(compression) else WEIGHTS
    return {kind: updates * 2.0 * (ranks - 1) * size}
