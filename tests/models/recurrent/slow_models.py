"""The models on snapshots from their formulas: dense matrices, loops over snapshots, vertices and gates."""

import torch
from torch import sigmoid, tanh
from torch.nn.functional import leaky_relu

from tests.models.recurrent.snapshots import dense


def convolved(kind, rows, weight, snapshot, layer):
    """Return sum_s H_s X W_s, row by row, with every H_s as a dense matrix."""
    matrices = [dense(edges, len(rows)) for edges in snapshot.layers[layer]]
    count = len(matrices[0])
    same = torch.eye(len(rows))[:count]
    if kind == "gcn":
        terms = matrices[:1]
    elif kind == "chebyshev":
        terms = [same, matrices[0]]
        while len(terms) < len(weight):
            terms.append(2 * matrices[0] @ terms[-1] - terms[-2])
    else:
        terms = [same, *matrices]
    assert len(terms) == len(weight)
    made = [
        sum(sum(term[row, of] * rows[of] for of in range(len(rows))) @ w for term, w in zip(terms, weight, strict=True))
        for row in range(count)
    ]
    return torch.stack(made) if made else torch.zeros(0, weight.shape[2])


def wd_gcn(model, kind, snapshots, rows):
    """Return the embeddings: for every vertex i, f, g and o of an LSTM."""
    hidden = [[torch.zeros(model.embedding_dim) for _ in range(rows)] for _ in model.cells]
    cells = [[torch.zeros(model.embedding_dim) for _ in range(rows)] for _ in model.cells]
    for snapshot in snapshots:
        values = snapshot.features
        for layer, (convolution, cell) in enumerate(zip(model.convolutions, model.cells, strict=True)):
            made = convolved(kind, values, convolution.weight, snapshot, layer) + convolution.bias
            lstm, outputs = cell.module, []
            for place in range(len(made)):
                row = int(snapshot.vertices[place])
                ahead = lstm.weight_ih @ made[place].relu() + lstm.bias_ih
                i, f, g, o = (ahead + lstm.weight_hh @ hidden[layer][row] + lstm.bias_hh).chunk(4)
                cells[layer][row] = sigmoid(f) * cells[layer][row] + sigmoid(i) * tanh(g)
                hidden[layer][row] = sigmoid(o) * tanh(cells[layer][row])
                outputs.append(hidden[layer][row])
            values = torch.stack(outputs) if outputs else torch.zeros(0, model.embedding_dim)
    return torch.stack(hidden[-1])


def tgcn(model, kind, snapshots, rows):
    """Return the embeddings: every gate a convolution of X, then a linear map of [convolution, H]."""
    width = model.embedding_dim
    states = [[torch.zeros(width) for _ in range(rows)] for _ in model.layers]
    for snapshot in snapshots:
        values = snapshot.features
        for layer, cell in enumerate(model.layers):
            gates = [
                convolved(
                    kind, values, cell.convolution.weight[:, :, gate * width : (gate + 1) * width], snapshot, layer
                )
                + cell.convolution.bias[gate * width : (gate + 1) * width]
                for gate in range(3)
            ]
            linear = [
                (torch.cat([cell.from_convolution[gate], cell.from_state[gate]]), cell.bias.view(3, -1)[gate])
                for gate in range(3)
            ]
            outputs = []
            for place in range(len(gates[0])):
                state = states[layer][int(snapshot.vertices[place])]
                z, r = (
                    sigmoid(torch.cat([gates[gate][place], state]) @ linear[gate][0] + linear[gate][1])
                    for gate in range(2)
                )
                proposal = tanh(torch.cat([gates[2][place], r * state]) @ linear[2][0] + linear[2][1])
                outputs.append(z * state + (1 - z) * proposal)
                states[layer][int(snapshot.vertices[place])] = outputs[-1]
            values = torch.stack(outputs) if outputs else torch.zeros(0, width)
    return torch.stack(states[-1])


def evolvegcn(model, kind, snapshots, rows):
    """Return the embeddings, all layers of all snapshots computed, the weights evolved column by column."""
    weights = list(model.weights)
    for snapshot in snapshots:
        values = snapshot.features
        for layer, cell in enumerate(model.cells):
            read = summary(model.summaries[layer], values) if len(model.summaries) else None
            weights[layer] = torch.stack(
                [evolved(cell, term, weights[layer][term], read) for term in range(len(weights[layer]))]
            )
            values = leaky_relu(convolved(kind, values, weights[layer], snapshot, layer), (1 / 8 + 1 / 3) / 2)
    embeddings = [torch.zeros(model.embedding_dim) for _ in range(rows)]
    for place in range(len(values)):
        embeddings[int(snapshots[-1].vertices[place])] = values[place]
    return torch.stack(embeddings)


def evolved(cell, term, weight, read):
    """Return one matrix of weights behind a GRU that takes each of its columns for a state."""
    w_z, w_r, w_h = cell.input[term].chunk(3)
    u_z, u_r, u_h = cell.state[term].chunk(3)
    b_z, b_r, b_h = cell.bias[term].chunk(3)
    columns = []
    for column in range(weight.shape[1]):
        q = weight[:, column]
        x = q if read is None else read[:, column]
        z = sigmoid(w_z @ x + u_z @ q + b_z[:, column])
        r = sigmoid(w_r @ x + u_r @ q + b_r[:, column])
        proposal = tanh(w_h @ x + u_h @ (r * q) + b_h[:, column])
        columns.append((1 - z) * q + z * proposal)
    return torch.stack(columns, 1)


def summary(module, rows):
    """Return the rows of the highest scores times tanh of these, as columns, the last one again where they are few."""
    scores = [row @ module.scorer / module.scorer.norm() for row in rows]
    best = sorted(range(len(rows)), key=lambda place: -scores[place].item())[: module.columns]
    if not best:
        return torch.zeros(rows.shape[1], module.columns)
    best += best[-1:] * (module.columns - len(best))
    return torch.stack([rows[place] * tanh(scores[place]) for place in best], 1)


REFERENCES = {"wd_gcn": wd_gcn, "tgcn": tgcn, "evolvegcn_o": evolvegcn, "evolvegcn_h": evolvegcn}
