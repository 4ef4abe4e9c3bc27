"""Rows worth sending, and the controller of the threshold."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_tgnn.algorithms.cache_policy import ThresholdController, rows_to_send
from lightning_tgnn.checks import InvalidArgumentError

NUMBERS = st.lists(st.lists(st.floats(-4, 4, width=32), min_size=3, max_size=3), max_size=6)


@settings(deadline=None)  # loops are compiled in the first one
@given(NUMBERS, st.integers(0, 9), st.floats(0, 0.9))
def test_rows_go_where_they_differ_by_more_than_the_threshold(lists, seed, threshold):
    values = torch.tensor(lists).reshape(-1, 3)
    sent = values * torch.rand(values.shape, generator=torch.Generator().manual_seed(seed))
    wanted = []
    for row, old in zip(values.tolist(), sent.tolist(), strict=True):
        difference = max(abs(np.float32(a) - np.float32(b)) for a, b in zip(row, old, strict=True))
        wanted.append(bool(difference > np.float32(threshold * max(abs(np.float32(b)) for b in old))))
    assert rows_to_send(values, sent, threshold).tolist() == wanted


def test_what_has_not_changed_stays_with_a_threshold_of_zero():
    values = torch.tensor([[1.0, 2.0], [0.0, 0.0]])
    assert not rows_to_send(values, values.clone(), 0.0).any()
    assert rows_to_send(values, torch.zeros(2, 2), 0.0).tolist() == [True, False]


def test_the_threshold_follows_the_accuracy_as_worked_out_by_hand():
    controller = ThresholdController(threshold=0.1)
    assert controller.update(0.5) == 0.1  # the first epoch is its own mean
    assert controller.update(0.6) == pytest.approx(0.105)  # 0.6 > 0.5 + 0.02: 1.05 * 0.1
    assert controller.mean == pytest.approx(0.8 * 0.5 + 0.2 * 0.6)
    assert controller.update(0.53) == pytest.approx(0.105)  # between the two limits
    assert controller.update(0.4) == pytest.approx(0.095)  # below: max(0.0945, 0.095)


def test_the_threshold_stays_within_its_bounds():
    rising, falling = ThresholdController(threshold=0.29), ThresholdController(threshold=0.002)
    for epoch in range(100):
        rising.update(epoch / 100)
        falling.update(1 - epoch / 100)
    assert rising.threshold == 0.3
    assert falling.threshold == 0.001


def test_a_threshold_that_would_never_send_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"threshold must be a number in \[0, 1\), got 1.5"):
        ThresholdController(threshold=1.5)
