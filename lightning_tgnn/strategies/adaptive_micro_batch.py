"""Finds the number of micro-batches of Sven's pipeline during training.

The callback is here and not in `callbacks/`, because `TunedRunner` adds one, and strategies import no callbacks.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, Checkpoint
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from lightning.pytorch.utilities.types import STEP_OUTPUT
from typing_extensions import override

from lightning_tgnn.algorithms.traffic.granularity_tuner import (
    GranularityTuner,
    choose_granularity,
    fit_redundancy,
    prefix_redundancy,
    transfer_speed,
)
from lightning_tgnn.comm import Flow, StepTraffic
from lightning_tgnn.state.nodes.step_fetch import ANNOUNCED_PIECES
from lightning_tgnn.strategies.parts.pipelined_order import ADAPTIVE, Pipelined, PipelinedOrder
from lightning_tgnn.strategies.runner import PlanRunner
from lightning_tgnn.strategies.stage_recorder import wait_for_device
from lightning_tgnn.types import EventBatch, OrderPart

_NOTHING = "AdaptiveMicroBatch has nothing to do"


class _Guess(NamedTuple):
    """n by the formula, and how it came about."""

    micro_batches: int
    reason: str


class AdaptiveMicroBatch(Callback):
    """Sets n of ``SvenStrategy(micro_batches="adaptive")`` to the fastest value here (Sven, section 3.3.2, appendix D).

    The strategy adds this callback itself. Pass one to the Trainer only to change its arguments.

    It measures how often nodes repeat in the first batches and how fast rows travel, guesses n by Sven's Eq. 12, and
    then tries that n, its neighbours and 1; see `GranularityTuner` for the steps and `transfer_speed` for S. All ranks
    change n at the same step; the slowest rank's times decide. Losses depend on n by rounding only. Rows are asked for
    while their speed is measured. Before and after, with n of at most 2, they are announced.

    A resumed run keeps the n that was found. The callback does nothing if ``micro_batches`` is a number, or under
    another strategy.

    Args:
        warm_up: Steps that are not measured.
        profile: Steps, with n = 1, in which repetition and speed are measured.
        trial: Steps of each n that is tried.
        largest: The largest n to try.

    Raises:
        InvalidArgumentError: A count is too small.
    """

    def __init__(self, *, warm_up: int = 5, profile: int = 20, trial: int = 20, largest: int = 8) -> None:
        self._options = {"warm_up": warm_up, "profile": profile, "trial": trial, "largest": largest}
        GranularityTuner(1, **self._options)  # refuses now what would not work in training
        self.micro_batches: int | None = None
        self._tuner: GranularityTuner | None = None
        self._order: PipelinedOrder | None = None
        self._clock = perf_counter

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._tuner = None
        strategy = trainer.strategy
        self._order = strategy.order if isinstance(strategy, PlanRunner) else None
        if not isinstance(strategy, PlanRunner) or self._order is None:
            rank_zero_info(f"{_NOTHING}: {type(strategy).__name__} has no micro-batches")
        elif (given := _given(strategy)) is not None:
            rank_zero_info(f"{_NOTHING}: micro_batches={given} is given; 'adaptive' leaves it to be found")
        elif trainer.world_size == 1:
            rank_zero_info(f"{_NOTHING}: one rank exchanges nothing")
        elif self.micro_batches is not None:
            self._set(trainer, self.micro_batches)
            self._keep(self.micro_batches)
        else:
            self._tuner = GranularityTuner(self._order.micro_batches, **self._options)
            self._traffic = StepTraffic(strategy.exchange.traffic)
            self._sizes: list[int] = []
            self._rates: list[float] = []
            self._set(trainer, self._tuner.micro_batches)

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: object, batch_idx: int
    ) -> None:
        if self._tuner is None:
            return
        if self._tuner.profiling:
            self._traffic.begin()
        self._began = self._now(trainer)

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: STEP_OUTPUT, batch: object, batch_idx: int
    ) -> None:
        tuner = self._tuner
        if tuner is None:
            return
        seconds = self._now(trainer) - self._began
        if tuner.profiling:
            assert isinstance(batch, EventBatch)
            self._profile(batch)
        tuner.record(seconds)
        if tuner.wanted == "proposal":
            # Measured on every rank, but one guess for all: ranks with different n would wait for each other for ever.
            guess = trainer.strategy.broadcast(self._guess())
            rank_zero_info(f"AdaptiveMicroBatch: {guess.reason}")
            tuner.propose(guess.micro_batches)
        elif tuner.wanted == "comparison":
            times = torch.tensor(tuner.times, dtype=torch.float64, device=trainer.strategy.root_device)
            tuner.compare(trainer.strategy.reduce(times, reduce_op="max").tolist())
        self._set(trainer, tuner.micro_batches)
        if tuner.wanted == "nothing":
            self.micro_batches, self._tuner = tuner.best, None
            self._keep(tuner.best)
            tried = ", ".join(f"n = {n} {1e3 * time:.1f} ms" for n, time in sorted(tuner.medians.items()))
            rank_zero_info(f"AdaptiveMicroBatch: n = {tuner.best} from here on; median step: {tried or 'not compared'}")

    def _now(self, trainer: pl.Trainer) -> float:
        # A step has ended when the device is done. It is waited for only while n is being sought.
        wait_for_device(trainer.strategy.root_device)
        return self._clock()

    def _profile(self, batch: EventBatch) -> None:
        """Measure a step's exchange, and repetition in its batch and in the first halves and quarters of it."""
        self._traffic.end()
        for size in sorted({len(batch) // share for share in (1, 2, 4)} - {0}):
            self._sizes.append(size)
            self._rates.append(prefix_redundancy(batch, size))

    def _guess(self) -> _Guess:
        """Return n by Eq. 12; what it was where that is not known."""
        assert self._tuner is not None
        dispatch, request = self._traffic.flows.get("dispatch"), self._traffic.flows.get("request")
        transfer, latency = _per_exchange(dispatch), _per_exchange(request)
        size = max(self._sizes, default=0)
        repeated = [size * rate for s, rate in zip(self._sizes, self._rates, strict=True) if s == size]
        if len(set(self._sizes)) < 2 or not any(repeated) or not transfer or not latency:
            return _Guess(self._tuner.best, f"n = {self._tuner.best} as it was, for want of metrics to reckon with")
        a, b = fit_redundancy(self._sizes, self._rates)
        speed = transfer_speed(sum(repeated) / len(repeated), transfer, latency)
        n = choose_granularity(a, b, size, speed)
        return _Guess(
            n,
            f"n = {n} by formula for {size} events: A = {a:.3f}, B = {b:.1f}, S = {speed:.1f} "
            f"(transfer {1e3 * transfer:.2f} ms, latency {1e3 * latency:.2f} ms)",
        )

    def _keep(self, micro_batches: int) -> None:
        """Let nobody announce what an n of so many does not use."""
        assert self._order is not None
        if micro_batches > ANNOUNCED_PIECES:
            self._order.stop_announcing()

    def _set(self, trainer: pl.Trainer, micro_batches: int) -> None:
        assert self._order is not None
        self._order.uses_announced = self._tuner is None or not self._tuner.profiling  # which measures requests
        if micro_batches != self._order.micro_batches or micro_batches == self.micro_batches:
            self._order.micro_batches = micro_batches
            if trainer.is_global_zero:
                for logger in trainer.loggers:
                    logger.log_metrics({"sven/micro_batches": micro_batches}, step=trainer.global_step)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"micro_batches": self.micro_batches}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.micro_batches = state_dict["micro_batches"]


def _per_exchange(flow: Flow | None) -> float:
    return flow.in_flight / flow.waits if flow is not None and flow.waits else 0.0


def _given(strategy: PlanRunner) -> int | None:
    """Return the number that the plan of a strategy gives for n; None where it leaves that to be found."""
    assert strategy.planned is not None
    order = strategy.planned.order
    return order.micro_batches if isinstance(order, Pipelined) and isinstance(order.micro_batches, int) else None


class TunedRunner(PlanRunner):
    """Runs a plan, and brings an `AdaptiveMicroBatch` where the plan leaves n to be found."""

    @property
    def order_part(self) -> OrderPart:
        """The order of the plan."""
        raise NotImplementedError

    @override
    def connect(self, model: pl.LightningModule) -> None:
        super().connect(model)
        order = self.order_part
        if not (isinstance(order, Pipelined) and order.micro_batches == ADAPTIVE):
            return
        callbacks = model.trainer.callbacks  # type: ignore[attr-defined]
        if not any(isinstance(given, AdaptiveMicroBatch) for given in callbacks):
            # Before those that save, which Lightning has last: they save what it has found, and a checkpoint that is
            # about to be read gives it back.
            saving = sum(isinstance(given, Checkpoint) for given in callbacks)
            callbacks.insert(len(callbacks) - saving, AdaptiveMicroBatch())
