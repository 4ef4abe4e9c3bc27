"""Which rows are worth sending again, how they are packed, and how a receiver adds them (CDFGNN, section 4.1).

On the CPU each function is one compiled pass over memory, because memory bounds its speed. On other devices it consists
of tensor operations.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lightning_tgnn.algorithms.traffic.quantize import (
    Blocks,
    block_ends,
    dequantize_by_tensors,
    quantize_by_tensors,
    quantized_width,
)


class Changed(NamedTuple):
    """Rows that have changed enough, and by how much the others have changed.

    Attributes:
        rows: int64 [g], positions of the changed rows, ascending.
        held: Sum of the squares of ``z - z~`` over the other rows.
        size: Sum of the squares of ``z~`` over all rows.
    """

    rows: Tensor
    held: float
    size: float


def changed_rows(values: Tensor, places: Tensor, sent: Tensor, threshold: float, blocks: Blocks = ()) -> Changed:
    """Return which rows differ from the rows last sent by more than the threshold (Algorithm 2, line 4).

    A row is sent if ``max |z - z~| > eps * max |z~|`` in one of its blocks: the paper has one block, in which large
    values would hide the changes of small ones. With a threshold of 0 every row that has changed is sent. A row that
    has become NaN is sent as well, so that no rank keeps the old row.

    Args:
        values: float32 [m, k].
        places: int64 [n], the rows of ``values`` that are z.
        sent: float32 [n, k], z~.
        threshold: eps.
        blocks: As in `quantize`.
    """
    if not values.shape[1]:
        return Changed(places[:0], 0.0, 0.0)
    if values.device.type == "cpu":
        from lightning_tgnn.algorithms.traffic import row_change_loops  # late: the compiler takes a second to import

        ends = block_ends(values.shape[1], blocks)
        going, held, size = row_change_loops.changed(values.numpy(), places.numpy(), sent.numpy(), ends, threshold)
        return Changed(torch.from_numpy(going).nonzero().squeeze(1), held, size)
    return changed_rows_by_tensors(values, places, sent, threshold, blocks)


def changed_rows_by_tensors(
    values: Tensor, places: Tensor, sent: Tensor, threshold: float, blocks: Blocks = ()
) -> Changed:
    """Return the same as `changed_rows`, on any device."""
    difference = (values[places] - sent).abs_()
    widths = list(blocks or (values.shape[1],))
    pairs = zip(difference.split(widths, 1), sent.abs().split(widths, 1), strict=True)
    stays = torch.stack([change.amax(1) <= threshold * old.amax(1) for change, old in pairs]).all(0)  # NaN does not
    held = torch.where(stays.unsqueeze(1), difference, 0).square_().sum()
    return Changed(stays.logical_not_().nonzero().squeeze(1), float(held), float(sent.square().sum()))


def changed_block(values: Tensor, places: Tensor, sent: Tensor, threshold: float, blocks: Blocks = ()) -> Changed:
    """Return all rows if one of them has changed by more than the threshold, none otherwise (SANCUS).

    All are sent if ``max |z - z~| > eps * max |z~|`` over all of them, or if a value has become NaN. Arguments and
    result are as in `changed_rows`, but that ``blocks`` have no effect.
    """
    difference, size = (values[places] - sent).abs_(), float(sent.square().sum())
    if not sent.numel() or bool(difference.max() <= threshold * sent.abs().max()):
        return Changed(torch.arange(0, device=sent.device), float(difference.square().sum()), size)
    return Changed(torch.arange(len(places), device=sent.device), 0.0, size)


def quantize_rows(values: Tensor, places: Tensor, bits: int, blocks: Blocks = ()) -> tuple[Tensor, float]:
    """Return rows of ``values`` (float32 [m, k]) as `quantize` makes them, uint8 [n, bytes], and the greatest error."""
    if values.device.type == "cpu" and values.shape[1]:
        from lightning_tgnn.algorithms.traffic import row_change_loops

        data, ends = _room(len(places), values.shape[1], bits, blocks), block_ends(values.shape[1], blocks)
        error = row_change_loops.quantize_rows(values.numpy(), places.numpy(), ends, bits, data.numpy())
        return data, float(error)
    return quantize_rows_by_tensors(values, places, bits, blocks)


def quantize_rows_by_tensors(values: Tensor, places: Tensor, bits: int, blocks: Blocks = ()) -> tuple[Tensor, float]:
    """Return the same as `quantize_rows`, on any device."""
    rows = values[places]
    data = quantize_by_tensors(rows, bits, blocks)
    return data, _greatest(rows - dequantize_by_tensors(data, rows.shape[1], bits, blocks))


def quantize_changes(
    values: Tensor, places: Tensor, table: Tensor, entries: Tensor, bits: int, blocks: Blocks = ()
) -> tuple[Tensor, float]:
    """Return the quantised difference of rows from rows of a table, and add it to the table as a receiver will.

    Both sides then continue from the same row, and the errors of quantisation do not add up.

    Args:
        values: float32 [m, k].
        places: int64 [n], the rows of ``values`` to take.
        table: float32 [t, k]; written.
        entries: int64 [n], distinct, the rows of the table with which they are compared.
        bits: 2, 4, 8 or 16.
        blocks: As in `quantize`.

    Returns:
        uint8 [n, bytes], and the greatest error.
    """
    if values.device.type == "cpu" and values.shape[1]:
        from lightning_tgnn.algorithms.traffic import row_change_loops as loops

        data, ends = _room(len(places), values.shape[1], bits, blocks), block_ends(values.shape[1], blocks)
        error = loops.quantize_changes(
            values.numpy(), places.numpy(), table.numpy(), entries.numpy(), ends, bits, data.numpy()
        )
        return data, float(error)
    return quantize_changes_by_tensors(values, places, table, entries, bits, blocks)


def quantize_changes_by_tensors(
    values: Tensor, places: Tensor, table: Tensor, entries: Tensor, bits: int, blocks: Blocks = ()
) -> tuple[Tensor, float]:
    """Return and write the same as `quantize_changes`, on any device."""
    rows = values[places] - table[entries]
    data = quantize_by_tensors(rows, bits, blocks)
    decoded = dequantize_by_tensors(data, rows.shape[1], bits, blocks)
    table.index_add_(0, entries, decoded)
    return data, _greatest(rows - decoded)


def add_quantized(table: Tensor, entries: Tensor, data: Tensor, bits: int, blocks: Blocks = ()) -> None:
    """Add quantised rows to rows of a table.

    Args:
        table: float32 [t, k]; written.
        entries: int64 [n], may repeat.
        data: uint8 [n, bytes].
        bits: 2, 4, 8 or 16.
        blocks: As in `quantize`.
    """
    if table.device.type == "cpu" and table.shape[1]:
        from lightning_tgnn.algorithms.traffic import row_change_loops

        ends = block_ends(table.shape[1], blocks)
        row_change_loops.add_quantized(table.numpy(), entries.numpy(), data.numpy(), ends, bits)
    else:
        table.index_add_(0, entries, dequantize_by_tensors(data, table.shape[1], bits, blocks))


def add_rows(table: Tensor, entries: Tensor, rows: Tensor) -> None:
    """Add rows (float32 [n, k]) to rows of a table; entries may repeat, and negative entries are left out."""
    if table.device.type == "cpu":
        from lightning_tgnn.algorithms.traffic import row_change_loops

        row_change_loops.add_rows(table.numpy(), entries.numpy(), rows.numpy())
    else:
        taken = entries >= 0
        table.index_add_(0, entries[taken], rows[taken])


def _room(rows: int, columns: int, bits: int, blocks: Blocks) -> Tensor:
    return torch.empty(rows, quantized_width(columns, bits, blocks), dtype=torch.uint8)


def _greatest(differences: Tensor) -> float:
    return float(differences.abs().max()) if differences.numel() else 0.0
