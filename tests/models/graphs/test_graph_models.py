"""GCN and GAT against dense matrices, the sparse product against its derivative, dropout by vertex."""

from dataclasses import replace

import pytest
import torch

from lightning_tgnn.data import Graph, generate_graph
from lightning_tgnn.data.graphs.loader import GraphLoader, WholeGraph
from lightning_tgnn.models import GAT, GCN
from lightning_tgnn.models.graphs.replica_dropout import ReplicaDropout
from lightning_tgnn.models.graphs.sparse_product import sparse_product
from lightning_tgnn.tasks.node_classification import alone
from lightning_tgnn.types import SparseRows


@pytest.fixture(scope="module")
def graph():
    return generate_graph(30, 90, 3, 5, seed=1).with_options(undirected=True, self_loops=False)


@pytest.fixture(scope="module")
def part(graph):
    return GraphLoader(WholeGraph(graph, graph.weights("symmetric")), "train", 0).subgraph


def dense(graph: Graph, weights):
    matrix = torch.zeros(graph.num_nodes, graph.num_nodes)
    matrix[graph.dst, graph.src] = weights
    return matrix


def test_gcn_equals_dense_matrices(graph, part):
    torch.manual_seed(0)
    model = GCN(5, 8, 3, 3, 0.0, layer_norm=True)
    matrix, hidden = dense(graph, graph.weights("symmetric")), graph.features
    for layer, weight in enumerate(model.weights):
        hidden = matrix @ hidden @ weight.weight.T + model.biases[layer]
        if layer < 2:
            hidden = torch.nn.functional.layer_norm(hidden, (8,)).relu()
    torch.testing.assert_close(model(part, alone), hidden, rtol=1e-4, atol=1e-5)


def test_gat_equals_a_softmax_over_the_edges(graph, part):
    torch.manual_seed(0)
    model = GAT(5, 8, 3, 2, 2, 0.0, layer_norm=False)
    linked = dense(graph, torch.ones(len(graph.src))) > 0
    hidden = graph.features
    for number, layer in enumerate(model.layers):
        rows = (hidden @ layer.weight.weight.T).view(30, layer.heads, layer.head_dim)
        heads = []
        for head in range(layer.heads):
            into = (rows[:, head] @ layer.of_destination[head]).unsqueeze(1)
            out = (rows[:, head] @ layer.of_source[head]).unsqueeze(0)
            logits = torch.nn.functional.leaky_relu(into + out, 0.2).masked_fill(~linked, -torch.inf)
            heads.append(logits.softmax(1).nan_to_num(0.0) @ rows[:, head])  # nothing to attend to: 0
        hidden = torch.cat(heads, dim=1) + layer.bias
        if number == 0:
            hidden = torch.nn.functional.elu(hidden)
    torch.testing.assert_close(model(part, alone), hidden, rtol=1e-4, atol=1e-5)


def test_the_sparse_product_has_the_gradients_of_numerical_differences():
    edges = SparseRows.of(torch.tensor([0, 1, 1, 3]), torch.tensor([2, 2, 0, 1]), torch.ones(4), 4)
    weights = torch.rand(4, dtype=torch.float64, requires_grad=True)
    rows = torch.rand(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w, r: sparse_product(edges, w, r), (weights, rows))


def test_dropout_goes_by_vertex_and_epoch(part):
    dropout, values = ReplicaDropout(0.3, 1), torch.ones(len(part.nodes), 1000)
    dropped = dropout(values, part)
    assert float((dropped == 0).float().mean()) == pytest.approx(0.3, abs=0.01)
    assert float(dropped.mean()) == pytest.approx(1, abs=0.02)
    some = replace(part, nodes=part.nodes[5:9])
    assert torch.equal(dropout(values[5:9], some), dropped[5:9])  # wherever the vertex is
    assert not torch.equal(dropout(values, replace(part, seed=1)), dropped)
    assert not torch.equal(ReplicaDropout(0.3, 2)(values, part), dropped)
    assert torch.equal(dropout.eval()(values, part), values)
