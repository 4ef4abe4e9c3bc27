"""T-GCN: a GRU per vertex whose gates see graph convolutions (Zhao et al., IEEE T-ITS 2020)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_tgnn.models.recurrent.convolution import BuildConvolution, GraphConvolution
from lightning_tgnn.models.recurrent.state_rows import read_rows, state_places, write_rows
from lightning_tgnn.types import Carried, Operators, Snapshot


class TGCNLayer(nn.Module):
    """Update gate, reset gate and proposal, each linear in ``[convolution of X, H]``, as in PyTorch Geometric Temporal.

    A convolution and the linear map behind it are linear together: their weights are multiplied, not their results, so
    that all three gates take one product with the graph and one with weights.

    Args:
        in_dim: Width of X.
        hidden_dim: d, width of H.
        convolution: Makes a convolution of two widths.
    """

    def __init__(self, in_dim: int, hidden_dim: int, convolution: BuildConvolution) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.convolution = convolution(in_dim, 3 * hidden_dim)  # what all gates read: update, reset, proposal
        self.from_convolution = nn.Parameter(torch.empty(3, hidden_dim, hidden_dim))
        self.from_state = nn.Parameter(torch.empty(3, hidden_dim, hidden_dim))
        self.bias = nn.Parameter(torch.empty(3 * hidden_dim))
        limit = (2 * hidden_dim) ** -0.5  # of torch.nn.Linear(2 d, d)
        for parameter in (self.from_convolution, self.from_state, self.bias):
            nn.init.uniform_(parameter, -limit, limit)

    def incoming(self, rows: Tensor, snapshot: Snapshot, layer: int, operators: Operators) -> Tensor:
        """Return what the gates get from X, [n_k, 3 d]."""
        made = self.convolution
        if not isinstance(made, GraphConvolution):
            gates = made(rows, snapshot, layer, operators).unflatten(1, (3, -1)).transpose(0, 1)
            with operators.timed("nn", layer):
                return torch.bmm(gates, self.from_convolution).transpose(0, 1).flatten(1) + self.bias
        terms, in_dim = made.weight.shape[:2]
        with operators.timed("nn", layer):
            gate_weights = made.weight.view(terms * in_dim, 3, -1).transpose(0, 1)
            weight = torch.bmm(gate_weights, self.from_convolution).transpose(0, 1).reshape(terms, in_dim, -1)
            bias = torch.bmm(made.bias.view(3, 1, -1), self.from_convolution).flatten() + self.bias
        return made.filter(rows, weight, bias, snapshot, layer, operators)

    def gated(self, incoming: Tensor, state: Tensor) -> Tensor:
        """Return the new state [n_k, d]."""
        width = self.hidden_dim
        gate_weights = self.from_state[:2].transpose(0, 1).reshape(width, -1)
        update, reset = torch.addmm(incoming[:, : 2 * width], state, gate_weights).sigmoid().split(width, dim=1)
        proposal = torch.addmm(incoming[:, 2 * width :], reset * state, self.from_state[2]).tanh()
        return torch.lerp(proposal.to(state.dtype), state, update.to(state.dtype))  # autocast leaves state as it is


class TGCN(nn.Module):
    """Layers of `TGCNLayer`, each of which reads the states of the one before.

    A vertex's embedding is its last state where it was last there; 0 if it never was.

    Args:
        in_dim: F.
        hidden_dim: Width of every state.
        num_layers: At least 1.
        convolution: Makes a convolution of two widths, called as `GraphConvolution` is.
    """

    def __init__(self, in_dim: int, hidden_dim: int, num_layers: int, convolution: BuildConvolution) -> None:
        super().__init__()
        widths = [in_dim, *[hidden_dim] * (num_layers - 1)]
        self.layers = nn.ModuleList(TGCNLayer(width, hidden_dim, convolution) for width in widths)
        self.embedding_dim = hidden_dim

    def start(self, rows: int) -> Carried:
        """Return the state of a group's rows before its first snapshot: 0."""
        weight = next(self.parameters())
        return tuple(weight.new_zeros(rows, self.embedding_dim) for _ in self.layers)

    def step(
        self, snapshot: Snapshot, carried: Carried, operators: Operators, *, last: bool
    ) -> tuple[Carried, Tensor | None]:
        """Return the state behind a snapshot, and the embeddings [m, d] if it is the last one."""
        rows, after = snapshot.features, []
        for layer, (cell, state) in enumerate(zip(self.layers, carried, strict=True)):
            assert isinstance(cell, TGCNLayer)
            incoming = cell.incoming(rows, snapshot, layer, operators)
            with operators.timed("rnn", layer):
                places = state_places(snapshot, len(incoming), len(state))
                rows = cell.gated(incoming, read_rows(state, places))
                after.append(write_rows(state, places, rows))
        return tuple(after), after[-1] if last else None
