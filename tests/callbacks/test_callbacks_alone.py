"""Both callbacks where there is nothing for them to do, and what they keep; with ranks: `tests/multiprocess`."""

import logging

import pytest

from lightning_tgnn import AdaptiveMicroBatch, ExchangeMonitor
from lightning_tgnn.checks import InvalidArgumentError
from tests.multiprocess.training import build, fit


def notices(caplog, callback, strategy):
    with caplog.at_level(logging.INFO):
        outcome = fit(*build("jodie", 40), strategy, 1, callbacks=[callback], epochs=1)
    return outcome, [record.message for record in caplog.records if type(callback).__name__ in record.message]


def test_without_a_strategy_that_shares_state_both_say_so_once(caplog):
    _, tuning = notices(caplog, AdaptiveMicroBatch(), "auto")
    _, monitoring = notices(caplog, ExchangeMonitor(), "auto")
    assert tuning == ["AdaptiveMicroBatch has nothing to do: SingleDeviceStrategy has no micro-batches"]
    assert monitoring == ["ExchangeMonitor has nothing to do: SingleDeviceStrategy shares no node state"]


def test_counts_are_refused_when_the_callbacks_are_made():
    with pytest.raises(InvalidArgumentError, match="trial must be an integer of at least 1, got 0"):
        AdaptiveMicroBatch(trial=0)
    with pytest.raises(InvalidArgumentError, match="every_n_steps must be an integer of at least 1, got 0"):
        ExchangeMonitor(0)


@pytest.mark.parametrize("found", [None, 3])
def test_what_was_found_is_kept(found):
    callback, other = AdaptiveMicroBatch(), AdaptiveMicroBatch()
    callback.micro_batches = found
    other.load_state_dict(callback.state_dict())
    assert other.micro_batches == found
