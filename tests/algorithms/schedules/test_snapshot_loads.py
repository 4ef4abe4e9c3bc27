"""The load model against loads that are known, and on measurements that a busy machine has disturbed."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from lightning_tgnn.algorithms.schedules.snapshot_loads import (
    Load,
    LoadModel,
    Measured,
    backward_seconds,
    forward_seconds,
)
from lightning_tgnn.checks import DataError, InvalidArgumentError

TRUE = {"graph 1": Load(1e-4, 0.0, 2e-9), "nn 1": Load(5e-5, 4e-9, 0.0), "head": Load(1e-3, 1e-9, 0.0, 2e-7)}


def measured(operator, load, count, rng, noise=0.0, outliers=0.0, most=1):
    """Return calls on random sizes; some of them take 3 to 30 times as long."""
    found = []
    for _ in range(count):
        snapshots = int(rng.integers(1, most + 1))
        vertices, edges = 64 * rng.uniform(1e3, 7e3), 64 * rng.uniform(2e3, 1e5)
        targets = rng.uniform(1e3, 1e5) if load.target else 0.0
        seconds = load.call * snapshots + load.vertex * vertices + load.edge * edges + load.target * targets
        seconds *= 1 + noise * rng.uniform(-1, 1)
        seconds *= rng.uniform(3, 30) if rng.random() < outliers else 1
        found.append(Measured(operator, seconds, snapshots, vertices, edges, targets=targets))
    return found


@seed(16)
@settings(max_examples=50, deadline=None)
@given(st.tuples(*[st.floats(1e-10, 1e-7)] * 2), st.floats(1e-6, 1e-3), st.integers(1, 4), st.integers(0, 99))
def test_a_linear_load_is_found(per_unit, per_call, most, number):
    load, rng = Load(per_call, *per_unit), np.random.default_rng(number)
    model = LoadModel.fit(measured("backward", load, 60, rng, most=most))
    assert model.error(measured("backward", load, 30, rng, most=most))["backward"] < 1e-6


def test_calls_that_took_far_too_long_hardly_move_the_model():
    rng = np.random.default_rng(0)
    calls = [call for name, load in TRUE.items() for call in measured(name, load, 300, rng, 0.05, outliers=0.05)]
    held_out = [call for name, load in TRUE.items() for call in measured(name, load, 100, rng, 0.05)]
    errors = LoadModel.fit(calls).error(held_out)
    assert set(errors) == set(TRUE)
    assert max(errors.values()) < 0.06  # 0.025 is the noise


def test_noise_does_not_make_the_sum_too_low():
    rng = np.random.default_rng(0)
    true = [call for name, load in TRUE.items() for call in measured(name, load, 500, rng)]
    noisy = [
        replace(call, seconds=call.seconds * factor)
        for call, factor in zip(true, rng.gamma(8, 1 / 8, 1500), strict=True)
    ]
    model = LoadModel.fit(noisy)
    predicted = sum(model.seconds_of(call) for call in true)
    assert predicted == pytest.approx(sum(call.seconds for call in true), rel=0.04)


def test_no_load_is_negative():
    falling = [Measured("nn 1", 4.0 - vertices, 1, vertices, 0.0) for vertices in (1.0, 2.0, 3.0)]
    load = LoadModel.fit(falling).loads["nn 1"]
    assert min(load) >= 0
    assert load.vertex == load.edge == 0


def test_a_model_travels_as_plain_values():
    model = LoadModel(TRUE, frozenset({"head", "graph 1"}))
    assert pickle.loads(pickle.dumps(model)) == model
    held = model.to_dict()
    assert held["loads"]["head"] == [1e-3, 1e-9, 0.0, 2e-7]
    assert LoadModel.from_dict(**held) == model
    three = {name: load[:3] for name, load in held["loads"].items()}  # as written where nothing is known of targets
    assert LoadModel.from_dict(three).loads["head"] == Load(1e-3, 1e-9, 0.0)


def test_what_the_last_snapshot_takes_more_is_told_from_the_others():
    """Of three processes, one of which ends every group, as a pipeline has them."""
    rng, every, more = np.random.default_rng(16), Load(1e-4, 2e-9, 3e-9), Load(5e-4, 0.0, 8e-9, 3e-7)
    calls = []
    for _ in range(60):
        sizes = rng.uniform(1e4, 1e6, (3, 2))
        last = tuple(sizes[-1]) if rng.random() < 1 / 3 else None
        seconds = 3 * every.call + sizes.sum(axis=0) @ np.array(every[1:3])
        targets = 0.0 if last is None else rng.uniform(1e3, 1e5)
        seconds += 0.0 if last is None else more.call + np.array([*last, targets]) @ np.array(more[1:])
        calls.append(Measured("backward", float(seconds), 3, *sizes.sum(axis=0).tolist(), last, targets))
        calls += [Measured(name, 1e-3, 1, *sizes[0].tolist(), last) for name in ("graph 1", "nn 1")]
        calls += [] if last is None else [Measured("nn 2", 1e-3, 1, *last, last)]
    model = LoadModel.fit(calls)
    assert model.last_only == {"head", "nn 2"}
    np.testing.assert_allclose(model.loads["backward"], every, rtol=1e-6, atol=1e-16)
    np.testing.assert_allclose(model.loads["last backward"], more, rtol=1e-6, atol=1e-16)
    assert model.error(calls)["backward"] < 1e-6
    inner, last = np.array([1e5, 2e5, 9e9]), np.array([3e5, 4e5, 1e4])  # targets of an inner snapshot are of no group
    (found,) = backward_seconds(model, [np.stack([inner, last])], 1.0)
    of_last = model.predict("last backward", *last[:2], targets=last[2])
    each = model.predict("backward", *np.stack([inner, last]).T[:2])
    np.testing.assert_allclose(found, [each[0], each[1] + of_last])


def test_the_head_goes_by_what_it_scores():
    """The links of the next snapshot, which may be many more or fewer than the edges of the last one."""
    rng = np.random.default_rng(16)
    calls = [replace(call, edges=0.0) for call in measured("head", Load(1e-4, 1e-10, 0.0, 5e-8), 90, rng, noise=0.05)]
    model = LoadModel.fit(calls[:60])
    assert model.error(calls[60:])["head"] < 0.06
    unknown = [replace(call, targets=0.0) for call in calls]
    assert LoadModel.fit(unknown[:60]).error(unknown[60:])["head"] > 0.3
    sizes = [np.array([[10, 40, 7], [20, 50, 3000]])]
    (seconds,) = forward_seconds(model, sizes, {"head": 1.0})
    assert seconds[0] == 0
    assert seconds[1] == pytest.approx(1e-4 + 5e-8 * 3000, rel=0.2)


def test_the_seconds_of_groups_are_the_sums_of_their_operators():
    model = LoadModel({**TRUE, "backward": Load(1e-3, 1e-9, 1e-9)})
    sizes = [np.array([[10, 40, 9], [20, 50, 9], [0, 0, 9]]), np.array([[30, 90, 9]])]
    forward = forward_seconds(model, sizes, {"graph 1": 16, "nn 1": 64, "head": 8})
    graph = model.predict("graph 1", np.array([160, 320, 0]), np.array([640, 800, 0]))
    nn = model.predict("nn 1", np.array([640, 1280, 0]), np.array([2560, 3200, 0]))
    head = [0, 0, model.predict("head", 0, 0, targets=9)]
    np.testing.assert_allclose(forward[0], graph + nn + head)
    assert [len(own) for own in forward] == [3, 1]
    assert forward[1][0] > model.predict("head", 30 * 8, 90 * 8)
    backward = backward_seconds(model, sizes, 100)
    np.testing.assert_allclose(backward[0], [1e-3 + 50e-7, 1e-3 + 70e-7, 1e-3])


def test_what_cannot_be_fitted_is_refused():
    with pytest.raises(DataError, match="of at least one call, got 0; train the first epoch"):
        LoadModel.fit([])
    with pytest.raises(InvalidArgumentError, match="seconds of 'nn 1' must be a finite number above 0, got nan"):
        Measured("nn 1", float("nan"), 1, 1.0, 1.0)
    with pytest.raises(InvalidArgumentError, match="edges of 'nn 1' must be a finite number of at least 0, got -1"):
        Measured("nn 1", 1.0, 1, 1.0, -1.0)
    with pytest.raises(InvalidArgumentError, match=r"operator must be one of .*'nn 1'.*did you mean 'nn 1'"):
        LoadModel(TRUE).predict("nn1", 1, 1)
    with pytest.raises(InvalidArgumentError, match="load of 'nn 1' must be three or four finite numbers of at least 0"):
        LoadModel.from_dict({"nn 1": [1.0, -1.0, 0.0]})
    with pytest.raises(InvalidArgumentError, match=r"sizes must be an array \[snapshots, 3\] for each group"):
        forward_seconds(LoadModel(TRUE), [np.zeros((2, 2))], {"nn 1": 1})
