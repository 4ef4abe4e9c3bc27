"""The loader of full-batch training: whose subgraph it hands out, of which split, and with which seed."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from lightning_tgnn.algorithms.partitions.replicas import Replicas
from lightning_tgnn.data import generate_graph
from lightning_tgnn.data.graphs.loader import GraphLoader, WholeGraph
from lightning_tgnn.data.graphs.subgraphs import subgraphs
from tests.contracts.test_loaders import values

RANKS, HOSTS, SPLITS = 3, torch.tensor([0, 0, 1]), ("train", "val", "test")


@pytest.fixture
def whole():
    graph = generate_graph(40, 160, 3, 4, seed=2)
    return WholeGraph(graph, torch.rand(len(graph.src), generator=torch.Generator().manual_seed(1)))


def cut(whole):
    return torch.arange(len(whole.graph.src)) % RANKS


@pytest.mark.parametrize("relay", [True, False])
def test_each_rank_gets_its_own_subgraph_of_the_split(whole, relay):
    graph, part = whole.graph, cut(whole)
    replicas = Replicas.of(graph.src, graph.dst, part, graph.num_nodes, HOSTS)
    for split in SPLITS:
        scored = []
        for rank in range(RANKS):
            (found,) = GraphLoader(whole, split, 0).shard(part, HOSTS, rank, relay=relay)
            expected = subgraphs(graph, whole.weights, part, replicas, rank, relay=relay)[split]
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
