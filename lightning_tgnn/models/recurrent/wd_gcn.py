"""WD-GCN: graph convolutions, and an LSTM per vertex behind each (Manessi et al., Pattern Recognition 2020)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_tgnn.models.recurrent.cells import BuildCell, RecurrentCell
from lightning_tgnn.models.recurrent.convolution import BuildConvolution
from lightning_tgnn.models.recurrent.state_rows import read_rows, state_places, write_rows
from lightning_tgnn.types import Carried, Operators, Snapshot


class WDGCN(nn.Module):
    """Layers of a graph convolution with ReLU and a recurrent cell per vertex, which reads the convolution's rows.

    A vertex's embedding is the last cell's output where it was last there; 0 if it never was.

    Args:
        in_dim: F.
        hidden_dim: Width of every convolution and cell.
        num_layers: At least 1.
        convolution: Makes a convolution of two widths, called as `GraphConvolution` is.
        cell: Makes a recurrent cell of two widths, called as torch's are.
    """

    def __init__(
        self,
        in_dim: int,
        hidden_dim: int,
        num_layers: int,
        convolution: BuildConvolution,
        cell: BuildCell = nn.LSTMCell,
    ) -> None:
        super().__init__()
        widths = [in_dim]
        self.convolutions, self.cells = nn.ModuleList(), nn.ModuleList()
        for _ in range(num_layers):
            self.convolutions.append(convolution(widths[-1], hidden_dim))
            made = RecurrentCell(cell(hidden_dim, hidden_dim), hidden_dim)
            self.cells.append(made)
            widths.append(made.widths[0])
        self.embedding_dim = widths[-1]

    def _layers(self) -> list[tuple[nn.Module, RecurrentCell]]:
        return list(zip(self.convolutions, self.cells, strict=True))  # type: ignore[arg-type]

    def start(self, rows: int) -> Carried:
        """Return the state of a group's rows before its first snapshot: 0."""
        weight = next(self.parameters())
        return tuple(weight.new_zeros(rows, width) for _, cell in self._layers() for width in cell.widths)

    def step(
        self, snapshot: Snapshot, carried: Carried, operators: Operators, *, last: bool
    ) -> tuple[Carried, Tensor | None]:
        """Return the state behind a snapshot, and the embeddings [m, d] if it is the last one."""
        after: list[Tensor] = []
        rows, first = snapshot.features, 0
        for layer, (convolution, cell) in enumerate(self._layers()):
            rows = torch.relu(convolution(rows, snapshot, layer, operators))
            state = carried[first : first + len(cell.widths)]
            first += len(state)
            with operators.timed("rnn", layer):
                places = state_places(snapshot, len(rows), len(state[0]))
                made = cell(rows, tuple(read_rows(part, places) for part in state))
                after += (write_rows(part, places, new) for part, new in zip(state, made, strict=True))
            rows = made[0]
        return tuple(after), after[-len(cell.widths)] if last else None
