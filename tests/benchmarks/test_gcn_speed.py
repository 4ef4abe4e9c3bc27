"""Seconds per full-batch step of a two-layer GCN, ours against PyG's and DGL's, in turns in one process."""

import time
from functools import partial
from statistics import median

import pytest
import torch
from torch.nn.functional import dropout

from lightning_tgnn.data import generate_graph
from lightning_tgnn.data.graphs.loader import CuttableGraph, GraphLoader
from lightning_tgnn.models import GCN
from lightning_tgnn.models.graphs.sparse_product import whole

HIDDEN, CLASSES, FEATURES = 64, 10, 64


class NothingKept:
    """In place of the sums that training keeps."""

    def of(self, subgraph, replicas):
        return None

    kept = of


def ours(graph, rate, *, keeps=True):
    subgraph = GraphLoader(CuttableGraph(graph, partial(graph.weights, "symmetric")), "train", 0).subgraph
    model = GCN(FEATURES, HIDDEN, CLASSES, 2, rate, layer_norm=False)
    if not keeps:
        model._first_sum = NothingKept()
    return model, lambda: model(subgraph, whole)


def pyg(graph, rate):
    from torch_geometric.nn import GCNConv

    # As a sparse matrix: its fastest form on the CPU.
    size = (graph.num_nodes, graph.num_nodes)
    edges = torch.stack([graph.dst, graph.src])
    matrix = torch.sparse_coo_tensor(edges, graph.weights("symmetric"), size).coalesce().to_sparse_csr()
    layers = torch.nn.ModuleList(GCNConv(a, b, normalize=False) for a, b in ((FEATURES, HIDDEN), (HIDDEN, CLASSES)))
    return layers, lambda: layers[1](dropout(layers[0](dropout(graph.features, rate), matrix).relu(), rate), matrix)


def dgl_layers(graph, rate):
    import dgl

    made = dgl.graph((graph.src, graph.dst), num_nodes=graph.num_nodes)
    layers = torch.nn.ModuleList(
        dgl.nn.GraphConv(a, b, norm="both") for a, b in ((FEATURES, HIDDEN), (HIDDEN, CLASSES))
    )
    return layers, lambda: layers[1](made, dropout(layers[0](made, dropout(graph.features, rate)).relu(), rate))


@pytest.mark.timeout(600)
def test_gcn_against_pyg_and_dgl(benchmark):
    pytest.importorskip("torch_geometric")
    pytest.importorskip("dgl")
    graph = generate_graph(100_000, 1_000_000, CLASSES, FEATURES).with_options(undirected=False, self_loops=True)
    labels = graph.labels[graph.train]

    def step(model, forward, optimizer):
        began = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(forward()[graph.train], labels).backward()
        optimizer.step()
        return time.perf_counter() - began

    contestants = {}
    for name, build, rate in (
        ("ours", ours, 0.0),
        ("ours, nothing kept", partial(ours, keeps=False), 0.0),
        ("PyG", pyg, 0.0),
        ("DGL", dgl_layers, 0.0),
        ("ours, dropout 0.5", ours, 0.5),
        ("PyG, dropout 0.5", pyg, 0.5),
        ("DGL, dropout 0.5", dgl_layers, 0.5),
    ):
        model, forward = build(graph, rate)
        contestants[name] = (model, forward, torch.optim.Adam(model.parameters()))
        step(*contestants[name])
    times = {name: [] for name in contestants}

    def one_round():
        for name, contestant in contestants.items():
            times[name].append(step(*contestant))

    benchmark.pedantic(one_round, rounds=15, iterations=1)
    medians = {name: median(values) for name, values in times.items()}
    benchmark.extra_info.update(medians)
    print(f"\nGCN, {graph.num_nodes:,} vertices, {len(graph.src):,} edges")
    for name, value in medians.items():
        own = "ours, dropout 0.5" if "dropout" in name else "ours"
        ratios = [theirs / mine for mine, theirs in zip(times[own], times[name], strict=True)]
        print(f"  {name:18} {1e3 * value:7.1f} ms a step, {median(ratios):.2f} times ours")
    assert all(value > 0 for value in medians.values())
