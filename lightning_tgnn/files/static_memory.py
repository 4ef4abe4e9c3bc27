"""Static node memory in files: a pretrained row per node (DistTGL, section 3.1)."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.files.tensors import load_tensors
from lightning_tgnn.files.whole import write_tensors

FORMAT = "lightning_tgnn.StaticMemory"
CURE = "make one with `lightning-tgnn pretrain-static` for this stream, split and width"


@dataclass(frozen=True)
class StaticRows:
    """What a file of static node memory holds.

    Attributes:
        rows: float32 [N, d]; zeros for nodes without an event in the training split.
        trained: Nodes that have one.
        fingerprint: Of the stream.
        training: `digest` of the events of the training split.
        task: What they were trained for.
    """

    rows: Tensor
    trained: int
    fingerprint: str
    training: str
    task: str


def digest(values: Tensor) -> str:
    """Return a digest of the type, shape and values of a tensor.

    >>> digest(torch.arange(3)) == digest(torch.arange(4))
    False
    """
    array = values.detach().cpu().contiguous().numpy()
    found = hashlib.blake2b(f"{array.dtype}{array.shape}".encode(), digest_size=16)
    found.update(array.data)
    return found.hexdigest()


def save_static_memory(path: Path, held: StaticRows) -> None:
    """Write static node memory; the file appears, or replaces what was there, only when it is complete.

    Raises:
        InvalidArgumentError: ``path`` cannot be written, or the disk is full.
    """
    write_tensors(path, {"format": FORMAT, **asdict(held)})


def load_static_memory(path: Path) -> StaticRows:
    """Return what `save_static_memory` has written.

    Raises:
        InvalidArgumentError: The file does not exist, or holds something else.
    """
    try:
        saved = load_tensors(path)
        if saved.pop("format") != FORMAT:
            raise ValueError("a file of something else")
        held = StaticRows(**{field.name: saved.pop(field.name) for field in fields(StaticRows)})
    except FileNotFoundError:
        raise InvalidArgumentError("path", "a file of static node memory", str(path), CURE) from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        received = f"{path}: {str(error).partition(chr(10))[0]}"
        raise InvalidArgumentError("path", "a file of static node memory", received, CURE) from error
    fault = _fault(held)
    if fault is not None:
        raise InvalidArgumentError("path", "a file of static node memory", f"{path} with {fault}", CURE)
    return held


def _fault(held: StaticRows) -> str | None:
    rows = held.rows
    if not isinstance(rows, Tensor) or rows.layout != torch.strided or rows.is_meta:
        return f"rows of type {type(rows).__name__}"
    if rows.dtype != torch.float32 or rows.ndim != 2 or not rows.numel():
        return f"rows {rows.dtype} {list(rows.shape)}"
    if not torch.isfinite(rows).all():
        return "a value that is NaN or infinite"
    texts = (held.fingerprint, held.training, held.task)
    if type(held.trained) is not int or not all(isinstance(text, str) for text in texts):
        return "other entries"
    return None
