"""The roofline of a training step of TGN: what each stage computes and moves, against what the processor could do.

Every stage has its operations (matrix products and compiled loops), the bytes that its tensor operations and loops read
and write, its page faults, its time, and the least time that these operations and bytes would take at the rates that a
large product and a copy reach on the same threads. A tensor operation counts each operand once and a view not at all. A
compiled loop counts its arrays once, and what it gathers entry by entry.
"""

import os
import resource
import time
from collections import Counter, defaultdict
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from lightning_tgnn import EventStore, LinkPrediction, TemporalDataModule
from lightning_tgnn.data import read_events
from lightning_tgnn.models.memory import attention_loops, gate_loops
from tests.benchmarks.rounds import ROOT

SOURCE = Path(os.environ.get("LIGHTNING_TGNN_DATA", ROOT / "../shared/data")) / "wikipedia.txt.gz"
WARM_UP, TIMED, COUNTED, FEATURES = 40, 60, 10, 172
OF_A_COSINE, OF_A_GATE = 20, 60  # operations: a reduced phase with its polynomial; three rational functions


class Counts(TorchDispatchMode):
    """Counts operations and bytes."""

    def __init__(self):
        super().__init__()
        self.operations = self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        packet = function.overloadpacket
        in_place = packet.__name__.endswith("_") and not packet.__name__.startswith("_")
        packet = getattr(torch.ops.aten, packet.__name__[:-1], packet) if in_place else packet
        if packet in flop_registry:
            self.operations += flop_registry[packet](*args, **(kwargs or {}), out_val=result)
        if not function.is_view:
            operands = [one for one in tree_leaves((args, kwargs, result)) if isinstance(one, torch.Tensor)]
            self.bytes += sum(one.numel() * one.element_size() for one in operands)
        return result


def _of_attention(counts, name, arguments):
    """Count a loop of the attention: see `attention_loops.forward` and `backward` for the arguments."""
    arrays = arguments[3:] if name == "backward" else arguments[1:]
    query, states, weight, _, features, _, _, _, _, lengths = arrays[:10]
    entries, heads, width, times = int(lengths.sum()), query.shape[0], query.shape[2], weight.shape[0]
    whole = sum(one.nbytes for one in arrays if one is not states and one is not features)
    counts.bytes += whole + 4 * entries * (width - times)
    counts.operations += entries * (4 * heads * width + OF_A_COSINE * times)
    if name == "backward":  # a neighbour's gradient is made of two vectors a head
        counts.bytes += 8 * entries * states.shape[1]
        counts.operations += entries * (4 * heads * (states.shape[1] + times) + OF_A_COSINE * times)


def _of_gates(counts, name, arguments):
    counts.bytes += sum(one.nbytes for one in arguments)
    counts.operations += OF_A_GATE * arguments[-1].shape[0] * arguments[3].shape[1]


@pytest.fixture
def counted_loops(monkeypatch):
    """Yield what has the compiled loops count into the counts it is set to."""
    holder = {"counts": None}
    for module, count in ((attention_loops, _of_attention), (gate_loops, _of_gates)):
        for name in ("forward", "backward"):
            loop = getattr(module, name)

            def call(*arguments, name=name, loop=loop, count=count):
                if holder["counts"] is not None:
                    count(holder["counts"], name, arguments)
                return loop(*arguments)

            monkeypatch.setattr(module, name, call)
    return holder


class Watched(LinkPrediction):
    """Makes stages of what Lightning does beside ours."""

    def backward(self, loss, *arguments, **options):
        with self.stages("backward"):
            super().backward(loss, *arguments, **options)

    def optimizer_step(self, epoch, batch_idx, optimizer, closure):
        def timed():
            loss = closure()
            self.stages("optimizer").__enter__()
            return loss

        super().optimizer_step(epoch, batch_idx, optimizer, timed)
        self.stages("optimizer").__exit__(None, None, None)


class Meter(Callback):
    """Hears of stages: times some steps, then counts in others."""

    def __init__(self, holder):
        self.holder = holder
        self.seconds, self.faults = Counter(), Counter()
        self.counts = defaultdict(Counts)
        self.phase = None

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if batch_idx == WARM_UP:
            self.phase = "timed"
            module.stages.add(self)
            self.began, self.faults_before = time.perf_counter(), _faults()
        elif batch_idx == WARM_UP + TIMED:
            self.seconds["step"], self.faults["step"] = time.perf_counter() - self.began, _faults() - self.faults_before
            self.phase = "counted"

    def enter(self, stage, turn):
        self.since = time.perf_counter(), _faults()
        if self.phase == "counted":
            self.holder["counts"] = self.counts[stage]
            self.counts[stage].__enter__()

    def leave(self, stage, turn):
        if self.phase == "counted":
            self.counts[stage].__exit__(None, None, None)
            self.holder["counts"] = None
        else:
            self.seconds[stage] += time.perf_counter() - self.since[0]
            self.faults[stage] += _faults() - self.since[1]


def _faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _best(work, repeats=20):
    took = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        took.append(time.perf_counter() - begin)
    return min(took)


def rates(precision):
    """Return operations and bytes per second: of a product of 2,048 x 2,048, and of a copy of 8 MB."""
    square = torch.rand(2048, 2048, dtype=torch.bfloat16 if "bf16" in precision else torch.float32)
    product = 2 * 2048**3 / _best(lambda: square @ square, 8)
    block, other = torch.rand(2_000_000), torch.rand(2_000_000)
    return product, 2 * block.nbytes / _best(lambda: other.copy_(block))


@pytest.mark.skipif(not SOURCE.exists(), reason=f"needs {SOURCE}")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("batch_size", [200, 600])
def test_roofline(benchmark, counted_loops, batch_size, precision):
    pl.seed_everything(0, verbose=False)
    stream = read_events(str(SOURCE))
    features = np.random.default_rng(0).standard_normal((len(stream), FEATURES), dtype=np.float32)
    store = EventStore.from_arrays(stream.src.numpy(), stream.dst.numpy(), stream.time.numpy(), edge_features=features)
    meter = Meter(counted_loops)
    trainer = pl.Trainer(
        accelerator="cpu",
        precision=precision,
        max_epochs=1,
        limit_train_batches=WARM_UP + TIMED + COUNTED,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[meter],
    )
    data = TemporalDataModule(store, batch_size=batch_size)
    benchmark.pedantic(trainer.fit, args=(Watched("tgn"),), kwargs={"datamodule": data}, rounds=1)
    product, copy = rates(precision)
    print(f"\nTGN, wikipedia, batch {batch_size}, {precision}, {torch.get_num_threads()} threads: "
          f"products {product / 1e9:,.0f} GFLOP/s, copies {copy / 1e9:.1f} GB/s")  # fmt: skip
    print(f"  {'stage':12} {'MFLOP':>8} {'MB':>7} {'faults':>7} {'ms':>7} {'least ms':>9}")
    inside = [stage for stage in meter.seconds if stage != "step"]
    total = 0.0
    for stage in inside:
        counts = meter.counts[stage]
        operations, moved = counts.operations / COUNTED, counts.bytes / COUNTED
        least = 1e3 * max(operations / product, moved / copy)
        total += least
        print(f"  {stage:12} {operations / 1e6:8.1f} {moved / 1e6:7.1f} {meter.faults[stage] / TIMED:7.0f} "
              f"{1e3 * meter.seconds[stage] / TIMED:7.2f} {least:9.2f}")  # fmt: skip
    rest = meter.seconds["step"] - sum(meter.seconds[stage] for stage in inside)
    faults = meter.faults["step"] - sum(meter.faults[stage] for stage in inside)
    print(f"  {'the rest':12} {'':8} {'':7} {faults / TIMED:7.0f} {1e3 * rest / TIMED:7.2f}")
    print(f"  {'step':12} {'':8} {'':7} {meter.faults['step'] / TIMED:7.0f} "
          f"{1e3 * meter.seconds['step'] / TIMED:7.2f} {total:9.2f}")  # fmt: skip
    assert {"fetch", "update", "embed", "score", "write", "backward", "optimizer"} <= set(inside)
    assert all(meter.counts[stage].bytes > 0 for stage in inside)
