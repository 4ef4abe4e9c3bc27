"""The threshold above which a changed row is sent again follows what training shows (CDFGNN, section 4.1)."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_tgnn.checks import InvalidArgumentError, check_fraction, check_not_negative, check_share


@dataclass
class ThresholdController:
    """Sets the threshold from the training accuracy after every epoch (Eq. 6 and 7).

    The threshold is relaxed while the accuracy is above its moving mean, and tightened when it falls below. The paper
    prints Eq. 6 the other way round, against its own explanation and Figure 7.

    Attributes:
        threshold: The threshold, eps.
        mean: Moving mean of the accuracy; None before the first epoch.
        rise: By how much the accuracy has to lie above the mean to relax.
        fall: By how much the accuracy has to lie below the mean to tighten.
        least: The lowest threshold.
        greatest: The highest threshold.
        step: The most that the threshold changes by in an epoch.
        relax: Factor by which the threshold is relaxed.
        tighten: Factor by which the threshold is tightened.
    """

    threshold: float = 0.006
    mean: float | None = None
    rise: float = 0.02
    fall: float = 0.001
    least: float = 0.001
    greatest: float = 0.3
    step: float = 0.01
    relax: float = 1.05
    tighten: float = 0.9

    def __post_init__(self) -> None:
        check_fraction("threshold", self.threshold, cure="0.006 is the default to begin with")
        check_not_negative("rise", self.rise, cure="0.02 is usual")
        check_not_negative("fall", self.fall, cure="0.001 is usual")
        _check_bounds(self.least, self.greatest)

    def update(self, accuracy: float) -> float:
        """Take in the training accuracy of an epoch, in [0, 1], and return the threshold of the next."""
        mean = accuracy if self.mean is None else self.mean
        if accuracy > mean + self.rise and self.threshold < self.greatest:
            self.threshold = min(self.relax * self.threshold, self.threshold + self.step, self.greatest)
        elif accuracy < mean - self.fall and self.threshold > self.least:
            self.threshold = max(self.tighten * self.threshold, self.threshold - self.step, self.least)
        self.mean = 0.8 * mean + 0.2 * accuracy
        return self.threshold


@dataclass
class ErrorController:
    """Sets the threshold of a sum from the error that it causes and from the share of rows that are sent.

    After every epoch the threshold falls where the changes that were held back are larger than ``error``. Otherwise it
    rises as long as more than ``share`` of the rows are sent. The paper steers by the training accuracy instead, which
    stays at its greatest value once a graph is learned by heart, whatever is held back.

    Attributes:
        threshold: The threshold, eps.
        error: The greatest root mean square of the changes held back, relative to the root mean square of the rows.
        share: The share of the rows above which the threshold rises, in [0, 1].
        least: The lowest threshold.
        greatest: The highest threshold.
    """

    threshold: float = 0.05
    error: float = 0.03
    share: float = 0.1
    least: float = 0.001
    greatest: float = 0.3

    def __post_init__(self) -> None:
        check_fraction("threshold", self.threshold, cure="0.05 is the default to begin with")
        check_not_negative("error", self.error, cure="0.03 is usual")
        check_share("share", self.share, cure="0.1 is usual")
        _check_bounds(self.least, self.greatest)

    def update(self, share: float, error: float) -> float:
        """Take in the share of rows sent and the error of an epoch, and return the threshold of the next."""
        if error > self.error:
            self.threshold = max(0.9 * self.threshold, self.least)
        elif share > self.share:
            self.threshold = min(1.1 * self.threshold, self.greatest)
        return self.threshold


def _check_bounds(least: float, greatest: float) -> None:
    check_fraction("greatest", greatest, cure="0.3 is usual")
    check_fraction("least", least, cure="0.001 is usual", zero_allowed=False)
    if least > greatest:
        raise InvalidArgumentError("least", "below greatest", least, f"give one of at most greatest={greatest}")
