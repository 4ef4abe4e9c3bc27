import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_tgnn.algorithms.partitions.simple import (
    PARTITION_METHODS,
    interval_partition,
    metis_partition,
    range_partition,
)
from lightning_tgnn.checks import InvalidArgumentError

needs_dgl = pytest.mark.skipif(sys.version_info >= (3, 12), reason="dgl needs Python < 3.12")


@pytest.fixture(params=[pytest.param("dgl", marks=needs_dgl), "pymetis"])
def library(request, monkeypatch):
    """Whose METIS there is."""
    if request.param == "pymetis":
        monkeypatch.setitem(sys.modules, "dgl", None)


@settings(deadline=None)
@given(st.integers(1, 200), st.integers(1, 20))
def test_range_and_interval_are_even(num_nodes, ranks):
    owners = range_partition(num_nodes, ranks)
    assert owners.tolist() == sorted(owners.tolist())
    assert interval_partition(num_nodes, ranks).tolist() == [node % ranks for node in range(num_nodes)]
    for owner in (owners, interval_partition(num_nodes, ranks)):
        assert owner.dtype == torch.int64
        sizes = torch.bincount(owner, minlength=ranks)
        assert len(sizes) == ranks
        assert sizes.max() - sizes.min() <= 1


def communities(count, size):
    """Disjoint complete graphs of shuffled nodes, joined in a ring by one edge each."""
    node = torch.randperm(count * size, generator=torch.Generator().manual_seed(0)).view(count, size)
    inside = [torch.combinations(members) for members in node]
    ring = torch.stack([node[:, 0], node[:, 0].roll(1)], dim=1)
    return torch.cat([*inside, ring]).T


def edge_cut(owner, src, dst):
    return int((owner[src] != owner[dst]).sum())


@pytest.mark.usefixtures("library")
def test_metis_cuts_less_than_range_and_interval(capfd):
    src, dst = communities(40, 12)
    owner = metis_partition(src, dst, 480, 4)
    assert owner.dtype == torch.int64
    simple = (range_partition(480, 4), interval_partition(480, 4))
    assert edge_cut(owner, src, dst) < 0.1 * min(edge_cut(other, src, dst) for other in simple)
    assert torch.bincount(owner, minlength=4).max() < 1.1 * 120
    assert capfd.readouterr().out == ""


@pytest.mark.usefixtures("library")
def test_metis_takes_repeats_loops_and_nodes_without_edges():
    src, dst = communities(3, 8)
    loops = torch.arange(24)
    repeated = (torch.cat([src, dst, loops, src]), torch.cat([dst, src, loops, dst]))
    owner = metis_partition(*repeated, 30, 3)
    assert edge_cut(owner, src, dst) < 0.5 * edge_cut(interval_partition(30, 3), src, dst)
    assert owner.shape == (30,)
    assert set(owner.tolist()) == {0, 1, 2}


@pytest.mark.usefixtures("library")
def test_metis_without_anything_to_cut():
    none = torch.empty(0, dtype=torch.int64)
    assert metis_partition(none, none, 5, 2).tolist() == [0, 1, 0, 1, 0]
    assert metis_partition(torch.tensor([1]), torch.tensor([1]), 5, 2).tolist() == [0, 1, 0, 1, 0]
    assert metis_partition(torch.tensor([0]), torch.tensor([1]), 3, 1).tolist() == [0, 0, 0]


def test_without_metis_it_is_said_what_to_do(monkeypatch):
    for name in ("dgl", "pymetis"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidArgumentError) as refused:
        metis_partition(torch.tensor([0]), torch.tensor([1]), 2, 2)
    assert str(refused.value) == (
        "partition must be other than 'metis' without dgl or pymetis, got 'metis'; pip install pymetis, "
        "or take another method"
    )


@pytest.mark.parametrize("method", [range_partition, interval_partition])
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 2), "num_nodes must be an integer of at least 1, got 0; give the number of nodes, N"),
        ((5, 0), "ranks must be an integer of at least 1, got 0; give the number of ranks, M"),
    ],
)
def test_sizes_that_cannot_work_are_refused(method, sizes, message):
    with pytest.raises(InvalidArgumentError) as refused:
        method(*sizes)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("src", "dst", "message"),
    [
        ([3], [0], "src must be in [0, 3), got 3; number from 0, or give the right total"),
        ([0], [-1], "dst must be in [0, 3), got -1; number from 0, or give the right total"),
        ([0, 1], [2], "dst must be as long as src, 2, got 1; give both ends of every edge"),
    ],
)
def test_edges_out_of_range_are_refused(src, dst, message):
    with pytest.raises(InvalidArgumentError) as refused:
        metis_partition(torch.tensor(src), torch.tensor(dst), 3, 2)
    assert str(refused.value) == message


def test_the_methods_by_name():
    assert PARTITION_METHODS == ("reflexbicut", "range", "interval", "metis")
