"""The contract of `WeightUpdates`: the formula of each kind, step by step, and the same bits on all ranks."""

from math import prod

import pytest
import torch

from lightning_tgnn.strategies.parts import PowerSGD
from lightning_tgnn.strategies.parts.compressed_mean import RESIDUALS
from tests.contracts.updates import (
    CASES,
    COMPRESSED,
    RANKS,
    SHAPES,
    STEPS,
    TABLE,
    UPDATES,
    WIDTH,
    looked_up,
    on_rank,
    reference,
)
from tests.multiprocess.ranks import run_ranks

WEIGHTS = sum(prod(shape) for shape in SHAPES.values())  # without the table


@pytest.fixture(scope="module")
def trained():
    return run_ranks(on_rank, RANKS)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_weights_follow_the_formula(case, trained):
    ranks = case[1]
    expected = reference(*case)
    for rank in range(ranks):
        found = trained[rank][case]
        assert found["made"] == expected.made[rank]
        torch.testing.assert_close(found["losses"], [losses[rank] for losses in expected.losses], rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(found["weights"], expected.weights, rtol=1e-9, atol=1e-11)  # names the step


@pytest.mark.parametrize("case", [case for case in CASES if not UPDATES[case[0]].takes_turns], ids=str)
def test_pending_means_are_saved(case, trained):
    ranks = case[1]
    expected = reference(*case)
    for rank in range(ranks):
        for found, late in zip(trained[rank][case]["pending"], expected.pending, strict=True):
            found = {key: value for key, value in found.items() if key != RESIDUALS}
            assert bool(found) == bool(late)
            for means in late:
                found = {key: value.view_as(means[key]) for key, value in found.items()}
                torch.testing.assert_close(found, means, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_all_ranks_have_the_same_weights_bit_for_bit(case, trained):
    first = trained[0][case]["weights"]
    for rank in range(1, case[1]):
        for ours, theirs in zip(trained[rank][case]["weights"], first, strict=True):
            assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("ranks", [2, RANKS])
@pytest.mark.parametrize("name", ["mean", "mean a step late"])
def test_gradients_of_a_table_travel_as_rows_where_that_is_less(name, ranks, trained):
    value = torch.float64.itemsize
    steps = range(STEPS)
    for rank in range(ranks):
        sent, whole, exchanges = 0, 0, 0
        for step in steps:
            touched = [len(looked_up(other, step).unique()) for other in range(ranks)]
            by_rows = sum(touched) * (WIDTH + 1) < 2 * TABLE * WIDTH
            assert by_rows == (step % 4 != 3), "both ways are held"
            sent += by_rows * (ranks - 1) * touched[rank] * (WIDTH + 1) * value
            summed = (WEIGHTS + (not by_rows) * TABLE * WIDTH) * value
            whole += 2 * (ranks - 1) * summed // ranks
            exchanges += 2 * by_rows  # numbers, and rows
        flows = trained[rank][name, ranks, "plain"]["flows"]
        assert (flows["gradient_rows"].sent, flows["gradient_rows"].calls) == (sent, exchanges)
        assert (flows["gradients"].sent, flows["gradients"].calls) == (whole, len(steps))
    assert trained[0][name, 1, "plain"]["flows"] == {}


@pytest.mark.parametrize("ranks", [2, RANKS])
@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_gradients_are_of_as_many_bytes_as_the_formula_says(name, ranks, trained):
    compression, value = UPDATES[name].part.compresses_by, torch.float64.itemsize

    def ring(count):
        return 2 * (ranks - 1) * count * value // ranks

    whole_tables = sum(ring(TABLE * WIDTH) for step in range(STEPS) if step % 4 == 3)
    shapes = list(SHAPES.values())
    for rank in range(ranks):
        if isinstance(compression, PowerSGD):
            steps = [ring(WEIGHTS)] * compression.warm_up
            steps += [sum(map(ring, compression.narrow_sizes(shapes)))] * (STEPS - compression.warm_up)
        else:
            blocks = sum(compression.blocks(shape) for shape in shapes)
            own = blocks * (rank + 1) // ranks - blocks * rank // ranks
            there, back = blocks - own, (ranks - 1) * own
            steps = [(there + back) * compression.block_bytes] * STEPS
        assert trained[rank][name, ranks, "plain"]["flows"]["gradients"].sent == sum(steps) + whole_tables
    assert trained[0][name, 1, "plain"]["flows"] == {}


@pytest.mark.parametrize("name", COMPRESSED)
def test_what_is_kept_back_goes_over_to_fewer_ranks(name, trained):
    after, before = trained[0]["moved"][name]
    if "bfloat16" in name:
        assert after is before is None
        return
    ours, theirs = after["state"], before["state"]
    assert (len(ours["residuals"]), len(theirs["residuals"])) == (2, RANKS)
    assert theirs["residuals"].any()
    torch.testing.assert_close(ours["residuals"].sum(0), theirs["residuals"].sum(0))
    for key in theirs.keys() - {"residuals"}:  # the same on all ranks, or of a piece of the sum each
        assert torch.equal(ours[key], theirs[key]), key


@pytest.mark.parametrize("name", ["mean", "mean a step late"])
def test_rows_on_two_ranks_add_up_to_the_sum_of_whole_tables_bit_for_bit(name, trained):
    expected = reference(name, 2, "clipped")
    for found, wanted in zip(trained[1][name, 2, "clipped"]["weights"], expected.weights, strict=True):
        assert torch.equal(found["table.weight"], wanted["table.weight"])


@pytest.mark.parametrize("name", UPDATES)
def test_members(name, trained):
    assert trained[0]["members"][name] == []


PAIRS = [("clipped", "resumed often"), ("unused", "resumed, unused"), ("plain", "two fits"), ("plain", "by hand"),
         ("plain", "resumed at once"), ("unused", "three fits, unused"), ("plain", "not told to start")]  # fmt: skip


# Where ranks take turns, a fit ends with all updates on all of them.
GOING_ON = [
    (name, ranks, once, other)
    for name in UPDATES
    for ranks in (1, 2, RANKS)
    for once, other in PAIRS
    if {(name, ranks, once), (name, ranks, other)} <= {*CASES} and not (UPDATES[name].takes_turns and "fits" in other)
]


@pytest.mark.parametrize(("name", "ranks", "once", "other"), GOING_ON)
def test_going_on_changes_no_bit(name, ranks, once, other, trained):
    ours, theirs = (trained[0][name, ranks, training]["weights"][-1] for training in (once, other))
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize("name", UPDATES)
def test_a_second_pass_by_hand_is_refused_where_it_would_be_lost(name, trained):
    for rank in range(RANKS):
        refused = trained[rank]["refused"][name]
        if UPDATES[name].delay:
            assert refused.startswith("delay must be 0 where manual_backward is called more than once")
        else:
            assert refused is None
