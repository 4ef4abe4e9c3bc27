"""The loader of full-batch training: whose subgraph it hands out, of which split, and with which seed."""

import tracemalloc
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_tgnn.data import Graph, generate_graph
from lightning_tgnn.data.graphs.loader import CuttableGraph, GraphLoader, subgraphs
from lightning_tgnn.types import SparseRows
from tests.contracts.test_loaders import values
from tests.largest_tensor import LargestTensor

RANKS, HOSTS, SPLITS = 3, torch.tensor([0, 0, 1]), ("train", "val", "test")


@pytest.fixture
def whole():
    graph = generate_graph(40, 160, 3, 4, seed=2)
    drawn = torch.rand(len(graph.src), generator=torch.Generator().manual_seed(1))
    return CuttableGraph(graph, drawn.__getitem__)


def cut(whole):
    return torch.arange(len(whole.graph.src)) % RANKS


def test_a_halo_has_all_edges_into_the_vertices_of_a_rank(whole):
    graph, part = whole.graph, cut(whole)
    every = sorted(
        zip(graph.src.tolist(), graph.dst.tolist(), whole.weights(torch.arange(len(graph.src))).tolist(), strict=True)
    )
    for rank in range(RANKS):
        found = whole.subgraphs(part, HOSTS, rank, halo=True)["train"]
        plain, halo = subgraphs(graph, whole.weights, part, HOSTS, rank)["train"], found.halo
        assert plain.halo is None
        assert values(replace(found, halo=None)) == values(plain)
        own = set(found.nodes.tolist())
        wanted = [(u, v, weight) for u, v, weight in every if v in own]
        nodes, edges = halo.nodes, halo.edges
        others = sorted({u for u, _, _ in wanted} - own)
        assert nodes.tolist() == [*found.nodes.tolist(), *others]
        assert others  # the test would show nothing
        assert torch.equal(halo.features, graph.features[nodes])
        per_edge = zip(nodes[edges.columns].tolist(), nodes[edges.rows].tolist(), edges.weights.tolist(), strict=True)
        assert sorted(per_edge) == wanted
    assert GraphLoader(whole, "train", 0).subgraph.halo is None


@pytest.mark.parametrize("relay", [True, False])
def test_each_rank_gets_its_own_subgraph_of_the_split(whole, relay):
    graph, part = whole.graph, cut(whole)
    for split in SPLITS:
        scored = []
        for rank in range(RANKS):
            (found,) = GraphLoader(whole, split, 0).shard(part, HOSTS, rank, relay=relay)
            expected = subgraphs(graph, whole.weights, part, HOSTS, rank, relay=relay)[split]
            assert values(replace(found, seed=0)) == values(expected)
            assert len(found.hops) == 1 + relay
            scored += found.nodes[found.scored].tolist()
        assert sorted(scored) == getattr(graph, split).nonzero().flatten().tolist()


def test_without_a_cut_the_subgraph_is_the_whole_graph(whole):
    for split in SPLITS:
        subgraph = GraphLoader(whole, split, 0).subgraph
        assert subgraph.nodes.tolist() == list(range(whole.graph.num_nodes))
        assert subgraph.scored.tolist() == getattr(whole.graph, split).nonzero().flatten().tolist()


def test_a_subgraph_is_made_once_and_not_taken_for_another(whole):
    part = cut(whole)
    first = whole.subgraphs(part, HOSTS, 0)
    assert whole.subgraphs(part, HOSTS, 0) is first
    for other in ((part, HOSTS, 1), (part, HOSTS.flip(0), 0), ((part + 1) % RANKS, HOSTS, 0)):
        assert values(whole.subgraphs(*other)["train"]) != values(first["train"])
    assert len(whole.subgraphs(part, HOSTS, 0, relay=False)["train"].hops) == 1


def test_the_seed_of_dropout_is_of_the_seed_and_the_epoch_alone(whole):
    def drawn(seed, epoch, rank):
        loader = GraphLoader(whole, "train", seed).shard(cut(whole), HOSTS, rank)
        loader.set_epoch(epoch)
        (subgraph,) = loader
        return subgraph.seed

    seeds = {(seed, epoch): drawn(seed, epoch, 0) for seed, epoch in product((0, 5, 6), range(3))}
    assert len(set(seeds.values())) == len(seeds)
    assert all(drawn(*of, rank) == seed for of, seed in seeds.items() for rank in range(RANKS))


def test_memory_of_a_subgraph_does_not_grow_with_vertices_times_ranks(monkeypatch):
    monkeypatch.setattr("lightning_tgnn.algorithms.partitions.replicas._CELLS", 1 << 14)  # of its pieces
    vertices = 400_000
    src = torch.arange(vertices, dtype=torch.int32)
    dst, features = (src + 1) % vertices, torch.zeros(1, 1).expand(vertices, 1)
    masks = {name: torch.arange(vertices) % 3 == number for number, name in enumerate(SPLITS)}
    graph = Graph(src, dst, features, torch.zeros(vertices, dtype=torch.int64), **masks)
    peaks = {}
    for ranks in (8, 64):
        owner, hosts = src * ranks // vertices, torch.arange(ranks) // 8
        for _ in range(2):  # the first time loops are compiled
            tracemalloc.start()
            with LargestTensor() as torchs:
                part = subgraphs(graph, lambda edges: torch.ones(len(edges)), owner, hosts, 3)["train"]
            peaks[ranks] = max(tracemalloc.get_traced_memory()[1], torchs.largest)
            tracemalloc.stop()
        assert len(part.nodes) == vertices // ranks + 1
    assert peaks[64] < 7 * vertices  # a table of vertices by ranks has 64 bytes a vertex
    assert peaks[64] <= peaks[8]  # a rank that has less needs less


def narrow(edges):
    """Return the same with a transpose of int32."""
    names = ("starts_back", "columns_back", "edges_back")
    return replace(edges, **{name: getattr(edges, name).int() for name in names})


@settings(max_examples=40, deadline=None)
@given(
    edges=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 2)), min_size=3, max_size=30),
    halo=st.booleans(),
    chunk=st.integers(1, 9),
)
def test_the_edges_of_a_rank_are_sorted_as_compressed_rows_are(edges, halo, chunk):
    src, dst, owner = (torch.tensor(column) for column in zip(*edges, strict=True))
    masks = {name: torch.arange(6) % 3 == number for number, name in enumerate(SPLITS)}
    graph = Graph(src, dst, torch.rand(6, 1), torch.zeros(6, dtype=torch.int64), **masks)
    weights = torch.arange(len(src)).float()  # which tell edges between the same vertices
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lightning_tgnn.data.graphs.loader._CHUNK", chunk)
        for rank in range(RANKS):
            part = subgraphs(graph, weights.__getitem__, owner.to(torch.uint8), HOSTS, rank, halo=halo)["train"]
            place = torch.full((6,), -1)
            place[part.nodes] = torch.arange(len(part.nodes))
            own = owner == rank
            expected = SparseRows.of(place[src[own]], place[dst[own]], weights[own], len(part.nodes))
            assert values(part.edges) == values(narrow(expected))
            if halo:
                into, of = place[dst] >= 0, part.halo.nodes
                place[of] = torch.arange(len(of))
                ends = place[src[into]], place[dst[into]]
                expected = SparseRows.of(*ends, weights[into], len(part.nodes), len(of))
                assert values(part.halo.edges) == values(narrow(expected))
