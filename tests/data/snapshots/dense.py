"""Snapshots as dense matrices, worked out edge by edge: the slow reference of what the loaders give."""

import torch


def dense_matrix(matrix, columns=None):
    """Return a `SparseRows` as a dense matrix, and hold its transpose to it."""
    rows, width = len(matrix.starts) - 1, len(matrix.starts_back) - 1
    forth, back = torch.zeros(rows, width), torch.zeros(rows, width)
    for row in range(rows):
        for entry in range(matrix.starts[row], matrix.starts[row + 1]):
            forth[row, matrix.columns[entry]] += matrix.weights[entry]
    for column in range(width):
        for entry in range(matrix.starts_back[column], matrix.starts_back[column + 1]):
            back[matrix.columns_back[entry], column] += matrix.weights[matrix.edges_back[entry]]
    assert torch.equal(forth, back)
    return forth


def normalized(edges, num_nodes, *, undirected=True, self_loops=True, normalization="symmetric"):
    """Return the matrix [N, N] of edges (source, destination, weight): row v, column u is what goes from u to v."""
    sums = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    for src, dst, weight in edges:
        sums[dst, src] += weight
        if undirected and src != dst:
            sums[src, dst] += weight
    if self_loops:
        for node in range(num_nodes):
            sums[node, node] += 1
    found = torch.zeros_like(sums)
    for v in range(num_nodes):
        for u in range(num_nodes):
            into, out = sums[v].abs().sum(), sums[:, u].abs().sum()
            divisor = {"symmetric": (into * out).sqrt(), "row": into, "none": torch.tensor(1.0)}[normalization]
            found[v, u] = sums[v, u] / divisor if sums[v, u] else 0
    return found.float()


def in_whole_graph(snapshot, relation=0):
    """Return a whole snapshot's matrix between all vertices that its group has, [m, m], given how many there are."""
    matrix = dense_matrix(snapshot.layers[0][relation])
    size = int(snapshot.vertices.max()) + 1 if len(snapshot.vertices) else 0
    found = torch.zeros(size, size)
    found[snapshot.vertices[:, None], snapshot.vertices] = matrix
    return found
