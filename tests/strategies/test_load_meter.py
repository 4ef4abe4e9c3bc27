"""What is measured of snapshots, and what is predicted by it."""

import numpy as np
import pytest
import torch

from lightning_tgnn.algorithms.schedules.snapshot_loads import Load, LoadModel
from lightning_tgnn.comm import HandOver, Messages
from lightning_tgnn.strategies.parts.group_pipeline import PipelinedGroups
from lightning_tgnn.strategies.parts.load_meter import LoadMeter, MeasuredLoads
from tests.multiprocess import snapshots


class Counting(LoadMeter):
    """A clock that goes on by 1 at each look."""

    seconds = 0.0

    def _now(self):
        self.seconds += 1.0
        return self.seconds


def heard_of(model, **options):
    """Return the calls of the largest group, in one process."""
    data, task = snapshots.build(model, 1, **options)
    data.setup("fit")
    task.build(data.info)
    calls, meter = [], Counting(torch.device("cpu"))
    meter.add(calls.append, task.stages)
    to_nobody = HandOver(Messages(), (0,), None, slots=1, through_memory=True)
    batch = data.train_dataloader().largest_group()
    PipelinedGroups(to_nobody, 1, meter)(task, batch)
    return batch.groups[0], calls


@pytest.mark.parametrize(("convolution", "products"), [("gcn", 1), ("chebyshev", 2)])
def test_all_calls_of_an_operator_on_a_snapshot_are_one(convolution, products):
    group, calls = heard_of("tgcn", convolution=convolution)
    operators = ["graph 1", "nn 1", "rnn 1", "graph 2", "nn 2", "rnn 2", "forward"]
    named = [(call.measured.operator, call.snapshots) for call in calls]
    every = {(name, (snapshot.number,)) for snapshot in group.snapshots for name in operators}
    numbers = tuple(snapshot.number for snapshot in group.snapshots)
    assert sorted(named) == sorted(every | {("head", numbers[-1:]), ("backward", numbers)})
    for call in calls:
        assert call.measured.seconds == sum(end - begin for begin, end in call.spans)
        if call.measured.operator.startswith("graph"):
            assert len(call.spans) == products
        sizes = [(len(one.vertices), len(one.layers[0][0].columns)) for one in group.snapshots]
        own = sizes[numbers.index(call.snapshots[0]) :][: len(call.snapshots)]
        vertices, edges = map(sum, zip(*own, strict=True))
        is_head = call.measured.operator == "head"  # which reads no edges
        assert (call.measured.vertices, call.measured.edges) == (vertices, 0 if is_head else edges)
        assert call.measured.targets == (len(group.targets) if is_head or call.measured.operator == "backward" else 0)
        assert call.measured.last == (sizes[-1] if call.snapshots[-1] == group.number else None)


@pytest.mark.parametrize(
    ("model", "last_only"),
    [("tgcn", set()), ("evolvegcn_o", {"graph 1", "nn 1", "graph 2", "nn 2"}), ("evolvegcn_h", {"graph 2", "nn 2"})],
)
def test_what_only_a_last_snapshot_has_is_found(model, last_only):
    _, calls = heard_of(model)
    found = LoadModel.fit([call.measured for call in calls if call.measured.operator != "forward"])
    assert found.last_only == last_only | {"head"}


def test_a_last_snapshot_is_charged_with_what_it_takes_more():
    loads = {"graph 1": 1.0, "nn 1": 2.0, "rnn 1": 4.0, "head": 8.0, "backward": 16.0, "last backward": 32.0}
    per_target = {"head": 0.25, "last backward": 0.5}
    found = {name: Load(0.0, 0.0, each, per_target.get(name, 0.0)) for name, each in loads.items()}
    model = LoadModel(found, frozenset({"nn 1", "head"}))
    predicted, sizes = MeasuredLoads(model, ["graph 1"]), (np.array([5, 5]), np.array([10, 0]))
    targets = np.array([0, 3])
    assert predicted.forward(*sizes).tolist() == [40.0, 0.0]
    assert predicted.forward(*sizes, targets).tolist() == [140.0, 0.75]
    assert predicted.step(*sizes, last=True).tolist() == [60.0, 0.0]
    assert predicted.backward(*sizes).tolist() == [160.0, 0.0]
    assert predicted.backward(*sizes, targets).tolist() == [480.0, 1.5]


def test_products_that_are_kept_have_no_forecast_to_be_wrong():
    """They are formed in the first epoch, which is fitted, and cost nothing in the second, on which it is judged."""
    model = LoadModel({"graph 1": Load(1e-3, 0.0, 0.0), "graph 2": Load(1e-3, 0.0, 0.0)})
    loads = MeasuredLoads(model, {"graph 1"})
    assert [loads.predicts(name) for name in ("graph 1", "graph 2", "graph 3")] == [False, True, False]
