"""Mutated files thrown at every reader: only our own exceptions come out, and what is accepted is right.

A short time each, always the same files; see `tests.fuzz.loop` for other ones, for longer.
"""

import logging

import pytest

from tests.fuzz import array_targets, run_targets, state_targets, text_targets
from tests.fuzz.loop import LEAST, ONLY, SECONDS, fuzz

_MANY = 200  # of so many some cannot be right
TARGETS = [
    text_targets.Snap,
    text_targets.Jodie,
    text_targets.NamedCsv,
    text_targets.PlacedCsv,
    text_targets.DatedCsv,
    text_targets.ToldApart,
    text_targets.TglFolder,
    array_targets.Parquet,
    array_targets.SavedStore,
    array_targets.CraftedStore,
    array_targets.GraphArchive,
    array_targets.GraphFolder,
    array_targets.OgbFolder,
    array_targets.Archive,
    state_targets.Partition,
    state_targets.SavedPredictor,
    state_targets.Checkpoint,
    state_targets.Questions,
    run_targets.Logs,
    run_targets.Page,
    run_targets.GeneratedGraph,
]


@pytest.mark.timeout(2 * SECONDS + 300)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_only_what_is_right_is_accepted_and_only_our_own_exceptions_come_out(target, tmp_path, capsys):
    logging.disable(logging.INFO)
    try:
        outcome = fuzz(target(), tmp_path)
    finally:
        logging.disable(logging.NOTSET)
    with capsys.disabled():
        print(f"\n{target.name}: {outcome.tried} tried, {outcome.accepted} accepted, {outcome.refused} refused")
    assert not outcome.faults, "\n\n".join(outcome.faults.values())
    assert outcome.tried >= (LEAST if ONLY is None else 1)
    assert outcome.refused or outcome.tried < _MANY
