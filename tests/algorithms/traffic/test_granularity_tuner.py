import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_tgnn import TemporalDataModule
from lightning_tgnn.algorithms.traffic.granularity_tuner import (
    GranularityTuner,
    choose_granularity,
    fit_redundancy,
    prefix_redundancy,
    transfer_speed,
)
from lightning_tgnn.checks import InvalidArgumentError
from tests.data.example_streams import random_store


def run(tuner, seconds, guess, *, slowest=lambda times: times):
    """Run to the end where a step at n takes ``seconds(step, n)``; return the n of every step."""
    used = []
    while tuner.wanted != "nothing":
        if tuner.wanted == "proposal":
            tuner.propose(guess)
        elif tuner.wanted == "comparison":
            tuner.compare(slowest(tuner.times))
        else:
            used.append(tuner.micro_batches)
            tuner.record(seconds(len(used), used[-1]))
    return used


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 10), st.integers(1, 12))
def test_the_fastest_is_found_from_any_guess(fastest, guess, largest, trial):
    tuner = GranularityTuner(2, warm_up=1, profile=2, trial=trial, largest=largest)
    run(tuner, lambda step, n: 1 + abs(n - fastest), guess)
    assert tuner.best == tuner.micro_batches == min(fastest, largest)
    assert all(tuner.medians[n] == 1 + abs(n - fastest) for n in tuner.medians)


def test_the_order_of_things():
    tuner = GranularityTuner(3, warm_up=2, profile=3, trial=7, largest=8)
    used = run(tuner, lambda step, n: {1: 5.0, 2: 3.0, 3: 4.0}[n], guess=2)
    assert used == [3] * 2 + [1] * 3 + [2] * 5 + [1] * 5 + [3] * 5 + [2] * 2 + [1] * 2 + [3] * 2
    assert tuner.best == 2
    assert tuner.medians == {1: 5.0, 2: 3.0, 3: 4.0}


def test_only_the_profile_is_measured():
    tuner = GranularityTuner(2, warm_up=2, profile=3, trial=1)
    profiled = []
    for _ in range(5):
        profiled.append(tuner.profiling)
        tuner.record(1.0)
    tuner.propose(2)
    assert [*profiled, tuner.profiling] == [False, False, True, True, True, False]


def test_it_goes_on_in_the_direction_that_was_faster():
    tuner = GranularityTuner(1, warm_up=0, profile=1, trial=1)
    used = run(tuner, lambda step, n: 10.0 - n if n < 5 else 9.0, guess=2)
    assert used == [1, 2, 1, 3, 3, 4, 4, 5]
    assert tuner.best == 4


def test_what_is_no_faster_changes_nothing():
    tuner = GranularityTuner(1, warm_up=0, profile=1, trial=4)
    run(tuner, lambda step, n: 1.0, guess=3)
    assert tuner.best == 3


def test_a_step_in_five_may_be_slow_for_other_reasons():
    tuner = GranularityTuner(1, warm_up=0, profile=5, trial=20)
    run(tuner, lambda step, n: 50.0 if step % 5 == 1 else abs(n - 3) + 1.0, guess=2)
    assert tuner.best == 3
    assert tuner.medians[3] == 1.0


def test_the_slowest_rank_decides():
    tuner = GranularityTuner(1, warm_up=0, profile=1, trial=2)
    run(tuner, lambda step, n: float(n), guess=2, slowest=lambda times: [4 - time for time in times])
    assert tuner.best == 8


def test_without_choice_there_is_no_trial():
    tuner = GranularityTuner(1, warm_up=0, profile=1, largest=1)
    assert run(tuner, lambda step, n: 1.0, guess=5) == [1]
    assert tuner.best == 1


@pytest.mark.parametrize("name", ["profile", "trial", "largest"])
def test_counts_below_one_are_refused(name):
    with pytest.raises(InvalidArgumentError, match=f"{name} must be an integer of at least 1, got 0"):
        GranularityTuner(1, **{name: 0})


@given(st.floats(0.3, 0.9), st.floats(-5, 0), st.integers(100, 2000), st.floats(1e-4, 1.0), st.floats(1e-5, 1e-2))
def test_speed_makes_the_formula_the_best_cut(a, b, size, transfer, latency):
    speed = transfer_speed(a * size + b, transfer, latency)
    n = choose_granularity(a, b, size, speed)
    best = math.sqrt(transfer / latency)
    assert n == pytest.approx(max(1, math.floor(best)), abs=1 if abs(best - round(best)) < 1e-6 else 0)
    # The optimum of what a step waits and pays for n pieces lies between n and n + 1.
    cost = {k: transfer / k + latency * k for k in range(1, n + 4)}
    assert min(cost, key=cost.__getitem__) in (n, n + 1)


@pytest.mark.parametrize("sampled_roots", ["all", "none"])
def test_redundancy_of_a_prefix_is_counted_entry_by_entry(sampled_roots):
    data = TemporalDataModule(random_store(), batch_size=16, num_neighbors=3, num_train_negatives=2, num_workers=0)
    data.sampled_roots = sampled_roots
    for batch in data.train_dataloader():
        count = len(batch)
        for events in {1, count // 2, count}:
            rows = [*range(events), *range(count, count + events)]
            rows += [2 * count + 2 * event + k for event in range(events) for k in range(2)]
            entries = [int(batch.root_index[row]) for row in rows]
            if sampled_roots == "all":
                pairs = [zip(batch.neighbor_index[row], batch.neighbor_mask[row], strict=True) for row in rows]
                entries += [int(place) for pair in pairs for place, there in pair if there]
            assert prefix_redundancy(batch, events) == pytest.approx(1 - len(set(entries)) / len(entries))


@pytest.mark.parametrize("roots", ["all", "none"])
def test_nodes_that_are_embedded_once_repeat_as_often(roots):
    rates = []
    for embed_at in ("event", "batch"):
        options = {"batch_size": 32, "num_neighbors": 3, "num_workers": 0, "past": "batch", "embed_at": embed_at}
        data = TemporalDataModule(random_store(200, 20), **options)
        data.sampled_roots = roots
        rates.append([prefix_redundancy(batch, size) for batch in data.train_dataloader() for size in (1, 8)])
    assert rates[0] == rates[1]
    assert max(rates[0]) > 0


def test_larger_prefixes_repeat_more():
    data = TemporalDataModule(random_store(600, 60), batch_size=64, num_neighbors=3, num_workers=0)
    data.sampled_roots = "all"
    sizes, rates = [], []
    for batch in list(data.train_dataloader())[1:5]:
        for size in (16, 32, 64):
            sizes.append(size)
            rates.append(prefix_redundancy(batch, size))
    a, b = fit_redundancy(sizes, rates)
    assert torch.tensor(rates).view(-1, 3).diff(dim=1).min() > 0
    assert b < 0 < a <= 1.05
