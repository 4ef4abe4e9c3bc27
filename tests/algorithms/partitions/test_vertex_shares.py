"""The rows that ranks need of each other, against whole products."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_tgnn.algorithms.partitions.vertex_shares import share_of_snapshot, share_of_targets
from lightning_tgnn.models.graphs.sparse_product import sparse_product
from lightning_tgnn.types import Snapshot, SnapshotGroup, SparseRows, Targets


def travel(rows, links, rank, ranks):
    """Return what every rank's rows become when they are sent, as an exchange does."""
    pieces = [rows[sender][links[sender].sent].split(links[sender].to)[rank] for sender in range(ranks)]
    assert tuple(len(piece) for piece in pieces) == links[rank].received
    return torch.cat([rows[rank], *pieces])


@settings(deadline=None, max_examples=40, derandomize=True)
@given(vertices=st.integers(1, 9), edges=st.integers(0, 25), ranks=st.integers(1, 4), seed=st.integers(0, 99))
def test_shares_make_the_whole_product(vertices, edges, ranks, seed):
    rng = torch.Generator().manual_seed(seed)
    rows, present = 11, torch.randperm(11, generator=rng)[:vertices].sort().values
    src, dst = torch.randint(vertices, (2, edges), generator=rng)
    kinds = torch.randint(2, (edges,), generator=rng)
    weights = torch.rand(edges, generator=rng)
    relations = tuple(
        SparseRows.of(src[kinds == kind], dst[kinds == kind], weights[kinds == kind], vertices) for kind in (0, 1)
    )
    features = torch.rand(vertices, 3, generator=rng)
    snapshot = Snapshot(4, present, features, (relations, relations))
    owner = torch.randint(ranks, (rows,), generator=rng)
    shares, links = zip(*(share_of_snapshot(snapshot, owner, rank, ranks) for rank in range(ranks)), strict=True)
    for rank, share in enumerate(shares):
        owned = torch.nonzero(owner == rank).squeeze(1)
        whole_rows = owned[share.vertices]  # rows of the whole group
        assert whole_rows.tolist() == [row for row in present.tolist() if owner[row] == rank]
        places = torch.searchsorted(present, whole_rows)
        assert torch.equal(share.features, features[places])
        everything = travel([each.features for each in shares], links, rank, ranks)
        for kind, edges_of in enumerate(share.layers[1]):
            ours = sparse_product(edges_of, edges_of.weights, everything)
            wanted = sparse_product(relations[kind], relations[kind].weights, features)[places]
            torch.testing.assert_close(ours, wanted)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(targets=st.integers(0, 12), ranks=st.integers(1, 4), seed=st.integers(0, 99))
def test_every_target_is_one_ranks_and_finds_its_rows(targets, ranks, seed):
    rng = torch.Generator().manual_seed(seed)
    owner, rows = torch.randint(ranks, (9,), generator=rng), torch.randint(9, (targets, 3), generator=rng)
    group = SnapshotGroup(0, 0, (), torch.arange(9), Targets(rows))
    embeddings = torch.rand(9, 2, generator=rng)
    shares = [share_of_targets(group, owner, rank, ranks) for rank in range(ranks)]
    found = []
    for rank, (mine, places, _) in enumerate(shares):
        own = [embeddings[owner == each] for each in range(ranks)]
        everything = travel(own, [links for _, _, links in shares], rank, ranks)
        torch.testing.assert_close(everything[places], embeddings[rows[mine]])
        found += mine.tolist()
    assert sorted(found) == list(range(targets))


def test_nothing_travels_on_one_rank():
    edges = SparseRows.of(torch.tensor([0, 1]), torch.tensor([1, 0]), torch.ones(2), 2)
    snapshot = Snapshot(0, torch.arange(2), torch.ones(2, 1), ((edges,),))
    share, links = share_of_snapshot(snapshot, torch.zeros(2).long(), 0, 1)
    assert links.to == links.received == (0,)
    assert len(links.sent) == 0
    assert torch.equal(share.layers[0][0].columns, edges.columns)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_may_own_nothing(ranks):
    edges = SparseRows.of(torch.tensor([0]), torch.tensor([1]), torch.ones(1), 2)
    snapshot = Snapshot(0, torch.arange(2), torch.ones(2, 1), ((edges,),))
    share, links = share_of_snapshot(snapshot, torch.zeros(2).long(), ranks - 1, ranks)
    assert len(share.vertices) == 0
    assert share.rows_after(0) == 0
    assert sum(links.received) == 0
