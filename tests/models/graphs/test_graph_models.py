"""GCN and GAT against dense matrices, the sparse product against its derivative, dropout by vertex."""

import pickle
from copy import deepcopy
from dataclasses import replace
from functools import partial

import pytest
import torch

from lightning_tgnn.data import Graph, generate_graph
from lightning_tgnn.data.graphs.loader import CuttableGraph, GraphLoader
from lightning_tgnn.models import GAT, GCN, GIN, GATv2, GraphSAGE
from lightning_tgnn.models.graphs.replica_dropout import DroppedRows, ReplicaDropout
from lightning_tgnn.models.graphs.sparse_product import sparse_product, whole
from lightning_tgnn.types import SparseRows
from tests.largest_tensor import LargestTensor


@pytest.fixture(scope="module")
def graph():
    return generate_graph(30, 90, 3, 5, seed=1).with_options(undirected=True, self_loops=False)


@pytest.fixture(scope="module")
def part(graph):
    return GraphLoader(CuttableGraph(graph, partial(graph.weights, "symmetric")), "train", 0).subgraph


def dense(graph: Graph, weights):
    matrix = torch.zeros(graph.num_nodes, graph.num_nodes)
    matrix[graph.dst, graph.src] = weights
    return matrix


@pytest.mark.parametrize(("hidden", "classes"), [(8, 3), (8, 12), (4, 3)])
@pytest.mark.parametrize("training", [True, False])
def test_gcn_equals_dense_matrices_with_its_gradients(graph, part, hidden, classes, training):
    torch.manual_seed(0)
    model = GCN(5, hidden, classes, 3, 0.0, layer_norm=True).train(training)
    matrix = dense(graph, graph.weights("symmetric"))

    def slow(values):
        for layer, weight in enumerate(model.weights):
            values = matrix @ values @ weight.weight.T + model.biases[layer]
            if layer < 2:
                values = torch.nn.functional.layer_norm(values, (hidden,), *model.norms[layer].parameters()).relu()
        return values

    for _ in range(2):  # with sums that are formed, and that were kept
        assert_same(model(part, whole), slow(graph.features), model)


@pytest.mark.parametrize(("hidden", "classes"), [(8, 3), (12, 13), (8, 9)])
def test_gat_equals_a_softmax_over_the_edges_with_its_gradients(graph, part, hidden, classes):
    torch.manual_seed(0)
    model = GAT(5, hidden, classes, 2, 2, 0.0, layer_norm=False)
    linked = dense(graph, torch.ones(len(graph.src))) > 0

    values = graph.features
    for number, layer in enumerate(model.layers):
        rows = (values @ layer.weight.weight.T).view(30, layer.heads, layer.head_dim)
        heads = []
        for head in range(layer.heads):
            into = (rows[:, head] @ layer.of_destination[head]).unsqueeze(1)
            out = (rows[:, head] @ layer.of_source[head]).unsqueeze(0)
            logits = torch.nn.functional.leaky_relu(into + out, 0.2).masked_fill(~linked, -torch.inf)
            heads.append(logits.softmax(1).nan_to_num(0.0) @ rows[:, head])  # nothing to attend to: 0
        values = torch.cat(heads, dim=1) + layer.bias
        if number == 0:
            values = torch.nn.functional.elu(values)
    assert_same(model(part, whole), values, model)


@pytest.mark.parametrize(("hidden", "classes"), [(8, 3), (8, 12), (4, 3)])
@pytest.mark.parametrize("loops", [False, True])
def test_sage_equals_means_by_dense_matrices_with_its_gradients(graph, hidden, classes, loops):
    torch.manual_seed(0)
    model = GraphSAGE(5, hidden, classes, 3, 0.0, layer_norm=True)
    linked = dense(graph, torch.ones(len(graph.src))).fill_diagonal_(0)
    values = graph.features
    for number, layer in enumerate(model.layers):
        mean = linked @ values / linked.sum(1, keepdim=True).clamp(min=1)
        values = values @ layer.own.weight.T + layer.own.bias + mean @ layer.neighbor.weight.T
        if number < 2:
            values = torch.nn.functional.layer_norm(values, (hidden,), *model.norms[number].parameters()).relu()
    assert_same(model(part_of(graph, loops), whole), values, model)


@pytest.mark.parametrize(("hidden", "classes"), [(8, 3), (8, 12), (4, 3)])
@pytest.mark.parametrize("loops", [False, True])
def test_gin_equals_sums_by_dense_matrices_with_its_gradients(graph, hidden, classes, loops):
    torch.manual_seed(0)
    model = GIN(5, hidden, classes, 2, 0.0, layer_norm=False)
    linked = dense(graph, torch.ones(len(graph.src))).fill_diagonal_(0)
    values = graph.features
    for number, layer in enumerate(model.layers):
        torch.nn.init.constant_(layer.eps, 0.3)
        total = (1 + layer.eps) * values + linked @ values
        values = (total @ layer.inner.weight.T + layer.bias).relu() @ layer.outer.weight.T + layer.outer.bias
        values = values.relu() if number == 0 else values
    assert_same(model(part_of(graph, loops), whole), values, model)


def test_gatv2_equals_a_softmax_over_the_edges_with_its_gradients(graph, part):
    torch.manual_seed(0)
    model = GATv2(5, 8, 3, 2, 2, 0.0, layer_norm=False)
    linked = dense(graph, torch.ones(len(graph.src))) > 0
    values = graph.features
    for number, layer in enumerate(model.layers):
        rows, attending = (
            (values @ weight.weight.T).view(30, layer.heads, layer.head_dim)
            for weight in (layer.weight, layer.weight_destination)
        )
        heads = []
        for head in range(layer.heads):
            both = torch.nn.functional.leaky_relu(attending[:, None, head] + rows[None, :, head], 0.2)
            logits = (both @ layer.attention[head]).masked_fill(~linked, -torch.inf)
            heads.append(logits.softmax(1).nan_to_num(0.0) @ rows[:, head])
        values = torch.cat(heads, dim=1) + layer.bias
        values = torch.nn.functional.elu(values) if number == 0 else values
    assert_same(model(part, whole), values, model)


@pytest.mark.parametrize("name", ["sage", "gin", "gatv2"])
def test_layers_are_those_of_pyg(graph, name):
    from torch_geometric.nn import GATv2Conv, GINConv, SAGEConv

    torch.manual_seed(0)
    edges = torch.stack([graph.src, graph.dst]).long()
    if name == "sage":
        model, theirs = GraphSAGE(5, 8, 3, 1, 0.0, layer_norm=False), SAGEConv(5, 3)
        weights = {"lin_l.weight": "neighbor.weight", "lin_l.bias": "own.bias", "lin_r.weight": "own.weight"}
    elif name == "gin":
        inner = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.ReLU(), torch.nn.Linear(3, 3))
        model, theirs = GIN(5, 8, 3, 1, 0.0, layer_norm=False), GINConv(inner, train_eps=True)
        weights = {"nn.0.weight": "inner.weight", "nn.0.bias": "bias", "nn.2.weight": "outer.weight"}
        weights |= {"nn.2.bias": "outer.bias", "eps": "eps"}
    else:
        model, theirs = GATv2(5, 8, 3, 1, 2, 0.0, layer_norm=False), GATv2Conv(5, 3, add_self_loops=False)
        weights = {"lin_l.weight": "weight.weight", "lin_r.weight": "weight_destination.weight"}
        weights |= {"bias": "bias"}
    own = dict(model.layers[0].named_parameters())
    held = {key: own[value] for key, value in weights.items()}
    if name == "gatv2":
        held |= {"att": own["attention"].unsqueeze(0)}
    held |= {key: torch.zeros_like(value) for key, value in theirs.state_dict().items() if key not in held}
    theirs.load_state_dict({key: value.reshape(theirs.state_dict()[key].shape) for key, value in held.items()})
    if name != "gatv2":
        edges = edges[:, edges[0] != edges[1]]
    found = model(part_of(graph, False), whole)
    torch.testing.assert_close(found, theirs(graph.features, edges), rtol=1e-4, atol=1e-5)


def part_of(graph, loops):
    other = graph.with_options(undirected=False, self_loops=loops)
    return GraphLoader(CuttableGraph(other, partial(other.weights, "symmetric")), "train", 0).subgraph


def assert_same(found, wanted, model):
    """Compare logits, and the gradients of all parameters."""
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    pull = torch.randn(found.shape, generator=torch.Generator().manual_seed(5))
    ours, theirs = (torch.autograd.grad((of * pull).sum(), [*model.parameters()]) for of in (found, wanted))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


class Counting:
    """A sum over replicas that keeps how wide each was and whether its gradient is asked for."""

    def __init__(self):
        self.widths = []

    def __call__(self, values, key, blocks=(), then=None):
        self.widths.append((values.shape[1], values.requires_grad))
        return whole(values, key, blocks, then)


def test_the_narrower_rows_travel_and_the_first_sum_once(part):
    def summed(model, parts=(part, part)):
        count = Counting()
        for some in parts:
            model(some, count)
        return count.widths

    wide = part.features.shape[1]  # 5
    layers = [(8, True), (3, True)]
    assert summed(GCN(wide, 8, 3, 3, 0.0, layer_norm=False)) == [(wide, False), *layers, *layers]
    assert summed(GCN(wide, 4, 9, 2, 0.0, layer_norm=False)) == [(wide, False), (4, True), (4, True)]
    dropping = GCN(wide, 4, 9, 2, 0.5, layer_norm=False)
    assert summed(dropping) == [(4, True), (4, True)] * 2
    assert summed(dropping.eval()) == [(4, True), (4, True)] * 2
    dropping = GCN(wide, 4, 9, 2, 0.5, layer_norm=False, dropout_on_sums=True)
    assert summed(dropping) == [(wide, False), (4, True), (4, True)]
    assert summed(GAT(wide, 8, 9, 2, 2, 0.0, layer_norm=False)) == [(2 * 5, True), (8 + 1, True)] * 2
    assert summed(GAT(wide, 12, 13, 2, 2, 0.0, layer_norm=False)) == [(2 * 6, True), (12 + 1, True)] * 2

    model = GCN(wide, 8, 3, 2, 0.0, layer_norm=False)
    assert summed(model.eval(), parts=(part,)) == [(wide, False), (3, True)]
    assert summed(model.train(), parts=(part,)) == [(wide, False), (3, True)]
    assert summed(model.eval(), parts=(part,)) == [(3, True)]  # what training has formed serves evaluation
    others = replace(part, edges=replace(part.edges)), replace(part, features=part.features + 1)
    for other in others:  # another graph, or the same with other features
        assert summed(model.train(), parts=(other,)) == [(wide, False), (3, True)]
        torch.testing.assert_close(model(other, whole), deepcopy(model)(other, whole))
    fresh = GCN(wide, 8, 3, 2, 0.0, layer_norm=False)
    with torch.inference_mode():
        fresh(part, whole)
    fresh(part, whole).sum().backward()  # what a first pass in inference mode has kept can be trained on


def test_many_columns_are_summed_some_at_a_time(monkeypatch, part):
    model = GCN(5, 8, 3, 2, 0.0, layer_norm=False)
    monkeypatch.setattr("lightning_tgnn.models.graphs.sparse_product._COLUMNS", 2)
    count = Counting()
    found = model(part, count)
    assert count.widths == [(2, False), (2, False), (1, False), (3, True)]
    torch.testing.assert_close(found, deepcopy(model)(part, whole))
    assert "sum" not in str([*model.state_dict()])
    assert pickle.loads(pickle.dumps(model))._first_sum.kept(part) is None


def test_the_sparse_product_has_the_gradients_of_numerical_differences():
    edges = SparseRows.of(torch.tensor([0, 1, 1, 3]), torch.tensor([2, 2, 0, 1]), torch.ones(4), 4)
    weights = torch.rand(4, dtype=torch.float64, requires_grad=True)
    rows = torch.rand(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w, r: sparse_product(edges, w, r), (weights, rows))


def test_dropout_goes_by_vertex_and_epoch(part, monkeypatch):
    def dropped_by(dropout, nodes=part.nodes, seed=0):
        return dropout(torch.ones(len(nodes), 1000), dropout.mask(nodes, 1000, seed))

    dropout = ReplicaDropout(0.3, 1)
    dropped = dropped_by(dropout)
    assert float((dropped == 0).float().mean()) == pytest.approx(0.3, abs=0.01)
    assert float(dropped.mean()) == pytest.approx(1, abs=0.02)
    assert torch.equal(dropped_by(dropout, part.nodes[5:9]), dropped[5:9])  # wherever the vertex is
    assert not torch.equal(dropped_by(dropout, seed=1), dropped)
    assert not torch.equal(dropped_by(ReplicaDropout(0.3, 2)), dropped)
    places, rows = torch.tensor([4, 2]), DroppedRows(dropout, part)
    assert torch.equal(rows(torch.ones(2, 1000), places), dropped_by(dropout, seed=part.seed)[places])
    monkeypatch.setattr("lightning_tgnn.models.graphs.replica_dropout._VERTICES_AT_ONCE", 7)
    assert torch.equal(dropped_by(dropout), dropped)
    assert dropout.eval().mask(part.nodes, 1000, 0) is None


def test_random_bits_of_dropout_are_not_there_for_all_vertices_at_once():
    nodes, values, dropout = torch.arange(400_000), torch.ones(400_000, 6), ReplicaDropout(0.3, 1)
    with LargestTensor() as torchs:
        dropout(values, dropout.mask(nodes, 6, 0))
    assert torchs.largest == values.numel() * values.element_size()


def test_a_product_with_fixed_weights_does_not_keep_its_rows():
    edges = SparseRows.of(torch.tensor([0, 1]), torch.tensor([1, 0]), torch.ones(2), 2)
    for needs_weights in (False, True):
        kept = []
        weights, rows = torch.ones(2, requires_grad=needs_weights), torch.ones(2, 3, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda one, kept=kept: kept.append(one.shape), lambda one: one):
            sparse_product(edges, weights, rows)
        assert (rows.shape in kept) == needs_weights
