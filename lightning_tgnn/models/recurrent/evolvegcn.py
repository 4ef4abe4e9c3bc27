"""EvolveGCN: graph convolutions whose weights a GRU evolves (Pareja et al., AAAI 2020; IBM/EvolveGCN)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from lightning_tgnn.models.recurrent.filters import GraphFilter
from lightning_tgnn.models.recurrent.state_rows import state_places, write_rows
from lightning_tgnn.types import Carried, Operators, Snapshot

# What the random slopes of IBM's RReLU are on average, and in its evaluation. Random ones would make a step depend on
# who computes it.
_SLOPE = (1 / 8 + 1 / 3) / 2


class MatrixGRU(nn.Module):
    """A GRU whose state is a matrix of weights, column by column.

    Args:
        terms: S, matrices that are evolved side by side.
        in_dim: Rows of each.
        out_dim: Columns of each.
    """

    def __init__(self, terms: int, in_dim: int, out_dim: int) -> None:
        super().__init__()
        # Update gate, reset gate and proposal, one below the other.
        self.input = nn.Parameter(torch.empty(terms, 3 * in_dim, in_dim))
        self.state = nn.Parameter(torch.empty(terms, 3 * in_dim, in_dim))
        self.bias = nn.Parameter(torch.zeros(terms, 3 * in_dim, out_dim))
        for parameter in (self.input, self.state):
            nn.init.uniform_(parameter, -(in_dim**-0.5), in_dim**-0.5)

    def forward(self, weight: Tensor, read: Tensor | None) -> Tensor:
        """Return the evolved weights [S, d_in, d_out].

        Args:
            weight: Those before.
            read: What is read, [d_in, d_out]; the weights themselves if None.
        """
        rows = weight.shape[1]
        gates, proposal = self.state.split([2 * rows, rows], dim=1)
        if read is None:
            both, own = self.input.split([2 * rows, rows], dim=1)
            ahead = torch.baddbmm(self.bias, torch.cat([both + gates, own], dim=1), weight)
            gate_rows = ahead[:, : 2 * rows]
        else:
            ahead = torch.baddbmm(self.bias, self.input, read.expand(len(weight), -1, -1))
            gate_rows = torch.baddbmm(ahead[:, : 2 * rows], gates, weight)
        update, reset = gate_rows.sigmoid().split(rows, dim=1)
        proposed = torch.baddbmm(ahead[:, 2 * rows :], proposal, reset * weight).tanh()
        return torch.lerp(weight, proposed.to(weight.dtype), update.to(weight.dtype))


class Summary(nn.Module):
    """The rows with the highest learned scores, each times tanh of its score, as columns.

    Where there are fewer rows than columns the last chosen one is repeated, as in IBM's code; where there are none the
    summary is 0. Rows of nearly equal scores may change places with rounding.

    Args:
        in_dim: Width of the rows.
        columns: How many are taken.
    """

    def __init__(self, in_dim: int, columns: int) -> None:
        super().__init__()
        self.columns = columns
        self.scorer = nn.Parameter(torch.empty(in_dim))
        nn.init.uniform_(self.scorer, -(in_dim**-0.5), in_dim**-0.5)

    def forward(self, rows: Tensor) -> Tensor:
        """Return float32 [d_in, columns] of ``rows`` [n, d_in]."""
        if not len(rows):
            return 0 * self.scorer.unsqueeze(1).expand(-1, self.columns)
        scores = rows @ (self.scorer / self.scorer.norm())
        highest, places = scores.topk(min(self.columns, len(rows)))
        chosen = (rows[places] * highest.tanh().unsqueeze(1)).t()
        missing = self.columns - len(places)
        return torch.cat([chosen, chosen[:, -1:].expand(-1, missing)], dim=1) if missing else chosen


class EvolveGCN(nn.Module):
    """Layers of a graph convolution whose weights change from snapshot to snapshot; the embeddings are the last one's.

    A vertex that is not in the last snapshot has the embedding 0.

    Args:
        in_dim: F.
        hidden_dim: Width of every layer.
        num_layers: At least 1.
        graph_filter: What is summed up, with the evolved weights.
        reads_rows: Whether this is -H, whose weights evolve by a summary of the rows that the layer reads; otherwise
            -O, whose weights evolve by themselves.
        skip_unread: Leave out convolutions whose result nothing reads: in -O all before the last snapshot, in -H those
            of the last layer. The result is the same.
    """

    def __init__(
        self,
        in_dim: int,
        hidden_dim: int,
        num_layers: int,
        graph_filter: GraphFilter,
        *,
        reads_rows: bool,
        skip_unread: bool = True,
    ) -> None:
        super().__init__()
        self.filter, self.skip_unread = graph_filter, skip_unread
        self.embedding_dim = hidden_dim
        widths = [in_dim, *[hidden_dim] * (num_layers - 1)]
        sizes = [(graph_filter.terms, width, hidden_dim) for width in widths]
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(size)) for size in sizes)
        for weight in self.weights:
            nn.init.uniform_(weight, -(hidden_dim**-0.5), hidden_dim**-0.5)
        self.cells = nn.ModuleList(MatrixGRU(*size) for size in sizes)
        self.summaries = nn.ModuleList(Summary(width, hidden_dim) for width in widths if reads_rows)

    def start(self, rows: int) -> Carried:
        """Return the weights before a group's first snapshot, and rows [m, 0] that tell how many the group has."""
        return *self.weights, self.weights[0].new_zeros(rows, 0)

    def step(
        self, snapshot: Snapshot, carried: Carried, operators: Operators, *, last: bool
    ) -> tuple[Carried, Tensor | None]:
        """Return the weights of a snapshot, and the embeddings [m, d] if it is the last one."""
        evolved: list[Tensor] = []
        rows: Tensor = snapshot.features
        end = len(self.cells) - 1
        for layer, (cell, weight) in enumerate(zip(self.cells, carried, strict=False)):
            with operators.timed("rnn", layer):
                read = self.summaries[layer](operators.everyone(rows)) if self.summaries else None
                evolved.append(cell(weight, read))
            is_read = last or (len(self.summaries) > 0 and layer < end)
            if is_read or not self.skip_unread:
                convolved = self.filter(rows, evolved[-1], None, snapshot, layer, operators)
                rows = leaky_relu(convolved, _SLOPE)
        total = len(carried[-1])
        return (*evolved, carried[-1]), self._placed(rows, snapshot, total) if last else None

    def _placed(self, rows: Tensor, snapshot: Snapshot, total: int) -> Tensor:
        places = state_places(snapshot, len(rows), total)
        return write_rows(rows.new_zeros(total, self.embedding_dim), places, rows)
