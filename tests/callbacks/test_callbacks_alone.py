"""Both callbacks where there is nothing for them to do, and what they keep; with ranks: `tests/multiprocess`."""

import logging
import re

import pytest

from lightning_tgnn import (
    AdaptiveMicroBatch,
    CacheThreshold,
    DistTGLStrategy,
    ExchangeMonitor,
    ParallelismMonitor,
    SnapshotMonitor,
    SystemMonitor,
)
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.comm.failure import PeerFailureError
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


@pytest.mark.usefixtures("in_own_group")
def test_what_breaks_off_leaves_no_hook_and_a_store_that_is_replaced_leaves_its_process(monkeypatch):
    data, task = build("jodie", 40)
    monitor = ParallelismMonitor(every_n_steps=1)
    fit(data, task, DistTGLStrategy(), 1, callbacks=[monitor], epochs=1)
    assert monitor.latest["memory_process/rows_read_per_second"] > 0
    first = task.state_store

    def fails(gradient):
        raise ArithmeticError("in backward")

    hook = next(iter(task.parameters())).register_hook(fails)
    with pytest.raises(ArithmeticError):
        fit(data, task, DistTGLStrategy(), 1, callbacks=[monitor], epochs=1)
    hook.remove()
    assert not any(parameter._post_accumulate_grad_hooks for parameter in task.parameters())
    assert task.state_store is not first
    with pytest.raises(PeerFailureError, match="memory process"):
        _ = first.position
    monitor.latest = {}
    fit(data, task, DistTGLStrategy(), 1, callbacks=[monitor], epochs=1)
    assert "parallelism/gradient_variance" in monitor.latest


MONITORS = [SystemMonitor, ExchangeMonitor, ParallelismMonitor, SnapshotMonitor, CacheThreshold]


@pytest.mark.parametrize("is_subclass", [False, True])
@pytest.mark.parametrize("monitor", MONITORS)
def test_a_second_monitor_of_a_kind_is_refused(monitor, is_subclass):
    second = type("Mine", (monitor,), {}) if is_subclass else monitor
    setting = "threshold" if monitor is CacheThreshold else "every_n_steps"
    received = f"got ['{monitor.__name__}', '{second.__name__}']; leave out all but one, and set {setting} of that"
    with pytest.raises(InvalidArgumentError, match=re.escape(f"must be with one {monitor.__name__}, {received}")):
        fit(*build("jodie", 40), "auto", 1, callbacks=[monitor(), second()], epochs=1)


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
