import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_tgnn.algorithms.partitions.demand import Demand
from lightning_tgnn.algorithms.partitions.partition_cost import balance_report


def by_hand(weights, owner):
    """Matrix, cost and saved traffic, entry by entry."""
    ranks = len(weights[0])
    matrix = [[0] * ranks for _ in range(ranks)]
    cost, saved = [0] * ranks, [0] * ranks
    for node, row in enumerate(weights):
        for rank, weight in enumerate(row):
            matrix[owner[node]][rank] += weight
            if owner[node] == rank:
                saved[rank] += weight
            else:
                cost[rank] += weight
                cost[owner[node]] += weight
    return matrix, cost, saved


def demand_of(weights):
    entries = [(r, v) for v, row in enumerate(weights) for r, weight in enumerate(row) for _ in range(weight)]
    ranks, nodes = torch.tensor(entries, dtype=torch.int64).reshape(-1, 2).T
    return Demand.of(ranks, nodes, len(weights[0]), len(weights))


@st.composite
def partitioned(draw):
    ranks = draw(st.integers(1, 4))
    weights = draw(st.lists(st.lists(st.integers(0, 5), min_size=ranks, max_size=ranks), min_size=1, max_size=10))
    return weights, draw(st.lists(st.integers(0, ranks - 1), min_size=len(weights), max_size=len(weights)))


@settings(deadline=None)
@given(partitioned())
def test_equals_a_count_by_hand(case):
    weights, owner = case
    report = balance_report(demand_of(weights), torch.tensor(owner))
    matrix, cost, saved = by_hand(weights, owner)
    assert report.matrix.tolist() == matrix
    assert report.cost.tolist() == cost
    assert report.saved.tolist() == saved
    assert report.maximum == max(cost)
    assert report.max_over_mean == (pytest.approx(max(cost) * len(cost) / sum(cost)) if sum(cost) else 1.0)
    links = [(i, j) for i in range(len(cost)) for j in range(len(cost)) if i != j]
    busiest = max((matrix[i][j] for i, j in links), default=0)
    assert all(report.residual[i, j] == busiest - matrix[i][j] for i, j in links)
    assert report.residual.diagonal().tolist() == [0] * len(cost)


def test_three_nodes_by_hand():
    # Node 0 lives on rank 0 and rank 1 needs it 5 times; node 1 on 1, needed by 0 and 1; node 2 at home on rank 0.
    report = balance_report(demand_of([[0, 5], [2, 3], [7, 0]]), torch.tensor([0, 1, 0]))
    assert report.matrix.tolist() == [[7, 5], [2, 3]]
    assert report.cost.tolist() == [7, 7]
    assert report.saved.tolist() == [7, 3]
    assert report.residual.tolist() == [[0, 0], [3, 0]]
    assert (report.maximum, report.max_over_mean) == (7, 1.0)
