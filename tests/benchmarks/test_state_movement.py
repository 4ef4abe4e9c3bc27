"""What a step of `sven` and of `depcache` moves, and what that takes: bytes, messages, tensor operations, milliseconds.

On two ranks of one start, strategies in turns. Stages "fetch" and "write" are counted: everything that goes for rows of
node state, and what makes mails. Compiled loops count as no tensor operation.
"""

import os
import time
from collections import Counter
from pathlib import Path
from statistics import median

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_tgnn import DepCacheStrategy, EventStore, SvenStrategy, TemporalDataModule
from tests.benchmarks.rounds import ROOT
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.training import QuietLinks, as_torchrun, fit

SOURCE = Path(os.environ.get("LIGHTNING_TGNN_DATA", ROOT / "../shared/data")) / "wikipedia.txt.gz"
BATCH, STEPS, WARM_UP, ROUNDS, FEATURES = 300, 60, 20, 3, 172
STRATEGIES = {
    "sven": lambda: SvenStrategy(partition="interval", micro_batches=1),
    "depcache": lambda: DepCacheStrategy(),
}
MOVES = {"fetch", "write"}


class Operations(TorchDispatchMode):
    """Counts tensor operations."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


class Meter(Callback):
    """Counts what stages move, from a step on.

    Args:
        counts_operations: Count tensor operations, which takes time, in place of milliseconds.
    """

    def __init__(self, counts_operations):
        self.operations = Operations() if counts_operations else None
        self.seconds, self.steps, self.sent, self.messages = 0.0, 0, Counter(), Counter()

    def on_train_start(self, trainer, module):
        self.traffic = trainer.strategy.exchange.traffic
        module.stages.add(self)

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if batch_idx == WARM_UP:
            self.seconds, self.before = 0.0, self.traffic.snapshot()
            if self.operations:
                self.operations.count = 0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx + 1 == STEPS:
            flows, steps = self.traffic.since(self.before), STEPS - WARM_UP
            self.sent = {name: flow.sent / steps / 1e3 for name, flow in flows.items()}
            self.messages = {name: flow.calls / steps for name, flow in flows.items()}
            module.stages.remove(self)

    def enter(self, stage, turn):
        if stage in MOVES:
            self.began = time.perf_counter()
            if self.operations:
                self.operations.__enter__()

    def leave(self, stage, turn):
        if stage in MOVES:
            if self.operations:
                self.operations.__exit__(None, None, None)
            self.seconds += time.perf_counter() - self.began

    def found(self):
        steps = STEPS - WARM_UP
        return {
            "milliseconds": 1e3 * self.seconds / steps,
            "operations": self.operations.count / steps if self.operations else None,
            "kilobytes": self.sent,
            "messages": self.messages,
        }


def stream():
    """Return Wikipedia's events with features of their usual width; the file has none."""
    data = TemporalDataModule(str(SOURCE))
    data.setup()
    store = data.store
    features = torch.rand(len(store.src), FEATURES, generator=torch.Generator().manual_seed(0))
    return EventStore.from_arrays(store.src, store.dst, store.time, features)


def on_rank(rank, ranks):
    as_torchrun(rank, ranks)
    events = stream()
    found = {name: [] for name in STRATEGIES}
    for number in range(ROUNDS + 1):
        for name, strategy in STRATEGIES.items():
            meter = Meter(counts_operations=not number)
            torch.manual_seed(7)
            data = TemporalDataModule(events, batch_size=BATCH, num_workers=1)
            limits = {"limit_train_batches": STEPS, "limit_val_batches": 0}
            outcome = fit(data, QuietLinks("tgn"), strategy(), ranks, callbacks=[meter], epochs=1, **limits)
            found[name].append(meter.found() | {"losses": outcome["losses"]})
    return found


@pytest.mark.skipif(not SOURCE.exists(), reason=f"needs {SOURCE}")
@pytest.mark.timeout(900)
def test_what_a_step_moves(benchmark):
    ranks = int(os.environ.get("RANKS", 2))
    found = benchmark.pedantic(run_ranks, args=(on_rank, ranks), kwargs={"timeout": 800}, rounds=1)
    print(f"\nTGN, wikipedia, {ranks} ranks x {BATCH} events, a rank and step, mean of the ranks")
    for name in STRATEGIES:
        counted = [of[name][0] for of in found]
        sent = {kind: sum(one["kilobytes"][kind] for one in counted) / ranks for kind in counted[0]["kilobytes"]}
        took = [sum(of[name][number]["milliseconds"] for of in found) / ranks for number in range(1, ROUNDS + 1)]
        base = [sum(of["depcache"][number]["milliseconds"] for of in found) / ranks for number in range(1, ROUNDS + 1)]
        ratios = [mine / other for mine, other in zip(took, base, strict=True)]
        print(f"  {name:9} {sum(sent.values()):6.1f} KB  {sum(counted[0]['messages'].values()):4.1f} messages  "
              f"{counted[0]['operations']:5.0f} tensor operations  {median(took):5.1f} ms, "
              f"{median(ratios):.2f} of depcache ({min(ratios):.2f} to {max(ratios):.2f})")  # fmt: skip
        print("            " + ", ".join(f"{kind} {kb:.1f} KB in {counted[0]['messages'][kind]:.1f}"
                                         for kind, kb in sent.items()))  # fmt: skip
        assert all(torch.equal(one[name][0]["losses"], one[name][1]["losses"]) for one in found)
