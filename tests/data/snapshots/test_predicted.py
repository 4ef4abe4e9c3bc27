"""What a pass is told of its groups, compared with sums over each of their snapshots."""

import numpy as np
import pytest

from lightning_tgnn.data.snapshots.loader import PredictedGroups
from lightning_tgnn.types import KeptSizes
from lightning_tgnn.types.snapshots import SnapshotPass

VERTICES, EDGES, SCORED = np.array([3, 5, 0, 8]), np.array([6, 1, 0, 20]), np.array([2.0, 0.0, 7.0, 1.5])


class Loads:
    """Seconds that are easy to add up."""

    def forward(self, vertices, edges, targets=None):
        return vertices + 0.5 * edges + (0 if targets is None else 10 + targets)

    def backward(self, vertices, edges, targets=None):
        return 2.0 * edges + (0 if targets is None else 3 * targets)


def predicted_by(loads, kept=None):
    over = SnapshotPass(3, 1, epoch=0, order=(3, 0, 2), group_size=3)
    return over, PredictedGroups(VERTICES, EDGES, SCORED).predicted_by(over, loads, kept)


def test_nobody_knows_seconds_before_they_are_measured():
    over, known = predicted_by(None, KeptSizes(1.0, 1.0, 1.0, 1.0, 1.0))
    assert known.forward is known.backward is known.kept is None
    over, known = predicted_by(None)
    assert known is over


def test_the_last_snapshot_of_a_group_has_its_head():
    loads, over_and_known = Loads(), predicted_by(Loads(), kept=KeptSizes(1.0, 0.5, 2.0, 0.25, 0.1, most_vertices=4))
    over, known = over_and_known
    for place, group in enumerate(over.order):
        numbers = over.snapshots_of(group)
        for at, number in enumerate(numbers):
            of = VERTICES[number], EDGES[number]
            scored = SCORED[number] if number == group else None
            assert known.forward[place][at] == loads.forward(*of, scored)
            assert known.backward[place][at] == loads.backward(*of, scored)
            rows = min(VERTICES[number], 4)
            expected = 1 + 0.5 * rows if scored is None else 2 + 0.25 * rows + 0.1 * scored
            assert known.kept[place][at] == pytest.approx(expected)
        assert len(known.forward[place]) == len(known.kept[place]) == len(numbers)
