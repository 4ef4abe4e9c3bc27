"""The controller of the threshold."""

import pytest

from lightning_tgnn.algorithms.traffic.cache_policy import ErrorController, ThresholdController
from lightning_tgnn.checks import InvalidArgumentError


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rise": "x"}, "rise must be"),
        ({"greatest": -1}, "greatest must be"),
        ({"least": 0.0}, "least must be"),
        ({"least": 0.5}, r"least must be below greatest, got 0\.5; give one of at most greatest=0\.3"),
    ],
)
def test_bounds_that_cannot_be_kept_are_refused(arguments, message):
    with pytest.raises(InvalidArgumentError, match=message):
        ThresholdController(**arguments)


def test_a_threshold_that_would_never_send_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"threshold must be a number in \[0, 1\), got 1.5"):
        ThresholdController(threshold=1.5)


def test_the_threshold_follows_error_and_share_as_worked_out_by_hand():
    controller = ErrorController()
    assert controller.update(0.5, 0.01) == pytest.approx(0.055)  # many rows, and little held back
    assert controller.update(0.05, 0.01) == pytest.approx(0.055)  # few rows
    assert controller.update(0.5, 0.04) == pytest.approx(0.0495)  # too much held back, however many are sent
    for _ in range(100):
        controller.update(1.0, 0.0)
    assert controller.threshold == controller.greatest
    for _ in range(100):
        controller.update(0.0, 1.0)
    assert controller.threshold == controller.least


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"error": -1.0}, "error must be"),
        ({"share": 1.5}, "share must be"),
        ({"least": 0.5}, r"least must be below greatest, got 0\.5"),
    ],
)
def test_what_an_error_cannot_be_kept_by_is_refused(arguments, message):
    with pytest.raises(InvalidArgumentError, match=message):
        ErrorController(**arguments)
