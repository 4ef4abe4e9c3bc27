"""What capture gains on a GPU, beside PyG and TGM, in one run that is meant for six minutes: ``make bench-gpu``.

It needs torch, lightning, torch-geometric and this package. First it trains with and without capture and compares the
losses of 25 steps. Then all play in turns. A table goes to the screen, all numbers to a file of JSON. Where the
wikipedia stream is not at hand, a synthetic one of its size takes its place, and the table says so. On a CPU, for which
``--device cpu --quick`` is there, nothing is captured: that only tries the script.
"""

import argparse
import json
import os
import tempfile
import time
import traceback
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.profiler import ProfilerActivity, profile

from lightning_tgnn import (
    FullGraphDataModule,
    LinkPrediction,
    NodeClassification,
    SnapshotDataModule,
    SnapshotLinkPrediction,
    TemporalDataModule,
)
from lightning_tgnn.data import generate_graph, generate_stream
from tests.benchmarks.ours_tgn import with_features
from tests.benchmarks.rounds import ROOT, Contestant

SOURCE = Path(os.environ.get("LIGHTNING_TGNN_DATA", ROOT / "../shared/data")) / "wikipedia.txt.gz"
EVENTS = 157_474
CAPTURES = ("auto", "off")
SIZES = (200, 600, 2000)
PRECISIONS = ("32-true", "bf16-mixed")
QUIET = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}


class Seconds(Callback):
    """Keeps the losses of steps, and the seconds of a part of each epoch."""

    def __init__(self):
        self.losses, self.training, self.validation = [], [], []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(outputs["loss"].detach())

    def on_train_epoch_start(self, trainer, module):
        self._began = now()

    def on_train_epoch_end(self, trainer, module):
        self.training.append(now() - self._began - sum(self.validation[len(self.training) :]))

    def on_validation_start(self, trainer, module):
        self._validating = now()

    def on_validation_end(self, trainer, module):
        self.validation.append(now() - self._validating)


def now():
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def trainer_of(args, **options):
    return pl.Trainer(accelerator=args.device, devices=1, **QUIET, **options)


def equality(args, source):
    """Return the largest difference of 25 losses with and without capture, and how many stages were recorded."""
    found = {}
    for model in ("tgn", "jodie", "apan"):
        losses = {}
        for capture in CAPTURES:
            pl.seed_everything(0, verbose=False)
            data, kept = TemporalDataModule(source, batch_size=200), Seconds()
            task = LinkPrediction(model, dropout=0.0, capture=capture)
            trainer = trainer_of(args, max_steps=25, limit_val_batches=0, callbacks=[kept])
            trainer.fit(task, datamodule=data)
            losses[capture] = torch.stack(kept.losses).cpu()
        found[model] = float((losses["auto"] - losses["off"]).abs().max())
    return found


def races(args, path):
    """Return events/s, memory and ratios of all contestants, by size and precision."""
    others = {"PyG": "pyg_tgn"} | ({"TGM": "tgm_tgn"} if find_spec("tgm") else {})
    found = {}
    for precision in PRECISIONS[: 1 if args.quick else 2]:
        for size in SIZES[: 1 if args.quick else 3]:
            players = {
                f"capture={capture}": Contestant("ours_tgn", path, size, args.device, precision, "event", capture)
                for capture in CAPTURES
            }
            if precision == PRECISIONS[0]:  # others have no other
                players |= {name: Contestant(module, path, size, args.device) for name, module in others.items()}
            try:
                for player in players.values():
                    player.play()  # warm up
                rounds = [{name: player.play() for name, player in players.items()} for _ in range(args.rounds)]
            finally:
                for player in players.values():
                    player.close()
            found[f"{size}, {precision}"] = {
                name: {
                    "events_per_second": median(one[name]["events"] / one[name]["seconds"] for one in rounds),
                    "device_mb": max(one[name].get("device_mb", 0.0) for one in rounds),
                    "peak_mb": max(one[name]["peak_mb"] for one in rounds),
                }
                for name in players
            }
    return found


def epochs(args, source):
    """Return the seconds of a training epoch and of its validation, with 49 negatives an event; batches of 200."""
    found = {}
    for capture in CAPTURES:
        pl.seed_everything(0, verbose=False)
        seconds = Seconds()
        limits = {"limit_train_batches": 20, "limit_val_batches": 5} if args.quick else {}
        trainer = trainer_of(args, max_epochs=2, callbacks=[seconds], **limits)
        trainer.fit(LinkPrediction("tgn", capture=capture), datamodule=TemporalDataModule(source, batch_size=200))
        found[capture] = {"training": seconds.training[-1], "validation": seconds.validation[-1]}
        found[capture]["val_ap"] = float(trainer.callback_metrics["val/ap"])
    return found


class Profiled(Callback):
    """Profiles steps once all sizes are likely to be recorded."""

    first, steps = 60, 20

    def __init__(self, args):
        self.profiler, self.kinds = None, [ProfilerActivity.CPU]
        if args.device == "cuda":
            self.kinds.append(ProfilerActivity.CUDA)
        if args.quick:
            self.first = 5

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if batch_idx == self.first:
            self.profiler = profile(activities=self.kinds)
            self.began = now()
            self.profiler.start()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx == self.first + self.steps - 1:
            self.seconds = now() - self.began
            self.profiler.stop()
            trainer.should_stop = True


def profiles(args, source):
    """Return milliseconds of a step on the host and on the device, and the kernels that take most of it."""
    found = {}
    for capture in CAPTURES:
        pl.seed_everything(0, verbose=False)
        profiled = Profiled(args)
        trainer = trainer_of(args, max_epochs=1, limit_val_batches=0, callbacks=[profiled])
        trainer.fit(LinkPrediction("tgn", capture=capture), datamodule=TemporalDataModule(source, batch_size=200))
        events = profiled.profiler.key_averages()
        on_device = {event.key: event.self_device_time_total / 1000 / profiled.steps for event in events}
        launched = sum(event.count for event in events if "Launch" in event.key) / profiled.steps
        longest = sorted(on_device.items(), key=lambda item: -item[1])[:8]
        found[capture] = {
            "step_ms": profiled.seconds * 1000 / profiled.steps,
            "device_ms": sum(on_device.values()),
            "launches": launched,
            "kernels_ms": {name[:60]: ms for name, ms in longest if ms},
        }
    return found


def timed(step, count):
    """Return the median milliseconds of a step, after three that do not count."""
    taken = []
    for _ in range(count + 3):
        began = now()
        step()
        taken.append(1000 * (now() - began))
    return median(taken[3:])


class EpochSeconds(Callback):
    def __init__(self):
        self.taken = []

    def on_train_epoch_start(self, trainer, module):
        self._began = now()

    def on_train_epoch_end(self, trainer, module):
        self.taken.append(1000 * (now() - self._began))


def fitted_ms(args, task, data, epochs):
    """Return the median milliseconds of an epoch."""
    seconds = EpochSeconds()
    trainer_of(args, max_epochs=epochs, limit_val_batches=0, callbacks=[seconds]).fit(task, datamodule=data)
    return median(seconds.taken[3:])


def static_graph(args):
    """Return milliseconds of an epoch of a GCN of two layers of 64, ours and of PyG's layers."""
    from torch_geometric.nn import GCNConv

    sizes = (2_000, 20_000) if args.quick else (100_000, 1_000_000)
    graph = generate_graph(*sizes, num_classes=10, feature_dim=64, seed=0)
    found = {}
    for capture in CAPTURES:
        pl.seed_everything(0, verbose=False)
        task = NodeClassification("gcn", hidden_dim=64, capture=capture)
        found[f"capture={capture}"] = fitted_ms(args, task, FullGraphDataModule(graph), 23)
    data = FullGraphDataModule(graph)
    data.setup()
    subgraph = next(iter(data.train_dataloader()))
    edges = torch.stack([subgraph.edges.columns.long(), subgraph.edges.rows.long()])
    edges = edges[:, edges[0] != edges[1]].to(args.device)
    features, labels = subgraph.features.to(args.device), subgraph.labels.to(args.device)
    scored = subgraph.scored.to(args.device)
    layers = nn.ModuleList([GCNConv(64, 64, cached=True), GCNConv(64, 10, cached=True)]).to(args.device)
    optimizer = torch.optim.Adam(layers.parameters(), 0.01)

    def step():
        optimizer.zero_grad()
        hidden = nn.functional.dropout(layers[0](nn.functional.dropout(features), edges).relu())
        nn.functional.cross_entropy(layers[1](hidden, edges)[scored], labels[scored]).backward()
        optimizer.step()

    return found | {"PyG": timed(step, 20)}


class PyGTGCN(nn.Module):
    """T-GCN of PyG's layers: three graph convolutions in the gates of a GRU, twice; in the form of our models."""

    embedding_dim = 64

    def __init__(self, info):
        super().__init__()
        from torch_geometric.nn import GCNConv

        widths = (info.feature_dim, 64)
        self.convolutions = nn.ModuleList(GCNConv(width, 3 * 64) for width in widths)
        self.gates = nn.ModuleList(nn.Linear(2 * 64, 2 * 64) for _ in widths)
        self.proposals = nn.ModuleList(nn.Linear(2 * 64, 64) for _ in widths)
        self.edges = {}

    def start(self, rows):
        return (None, None)

    def step(self, snapshot, carried, operators, *, last):
        if snapshot.number not in self.edges:
            edges = snapshot.layers[0][0]
            ends = torch.stack([edges.columns.long(), edges.rows.long()])
            self.edges[snapshot.number] = ends[:, ends[0] != ends[1]]
        rows, after = snapshot.features, []
        for convolve, gate, propose, state in zip(self.convolutions, self.gates, self.proposals, carried, strict=True):
            update, reset, new = convolve(rows, self.edges[snapshot.number]).split(64, dim=1)
            state = torch.zeros_like(new) if state is None else state
            gates = gate(torch.cat([update + reset, state], 1)).sigmoid()
            proposal = propose(torch.cat([new, gates[:, :64] * state], 1)).tanh()
            rows = gates[:, 64:] * state + (1 - gates[:, 64:]) * proposal
            after.append(rows)
        return tuple(after), rows if last else None


def snapshots(args):
    """Return milliseconds of an epoch of T-GCN, ours and of PyG's layers."""
    stream = generate_stream(num_events=5_000 if args.quick else 60_000, num_sources=1000, num_destinations=1000)
    found = {}
    models = {f"capture={capture}": ("tgcn", {"capture": capture, "hidden_dim": 64}) for capture in CAPTURES}
    for name, (model, options) in {**models, "PyG": (PyGTGCN, {})}.items():
        pl.seed_everything(0, verbose=False)
        data = SnapshotDataModule(stream, num_snapshots=12, group_size=4, vertices="all")
        found[name] = fitted_ms(args, SnapshotLinkPrediction(model, **options), data, 10)
    return found


@contextmanager
def stream_file(args):
    """Yield a file of the stream, and what it is called."""
    if SOURCE.exists() and not args.quick:
        yield str(SOURCE), "wikipedia"
        return
    with tempfile.TemporaryDirectory() as folder:
        events = 20_000 if args.quick else EVENTS
        stream = generate_stream(num_events=events, num_sources=8227, num_destinations=1000, seed=0)
        path = Path(folder) / "stream.txt"
        columns = [stream.src.numpy(), stream.dst.numpy(), stream.time.numpy().astype(np.int64)]
        np.savetxt(path, np.stack(columns, 1), fmt="%d")
        yield str(path), f"synthetic stream of {events:,} events"


def show(name, numbers, depth=0):
    """Print numbers within numbers."""
    if isinstance(numbers, dict):
        print(f"{'  ' * depth}{name}")
        for key, value in numbers.items():
            show(key, value, depth + 1)
    else:
        shown = f"{numbers:,.4g}" if isinstance(numbers, float) else numbers
        print(f"{'  ' * depth}{name}: {shown}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small data and few cases, to try the script")
    parser.add_argument("--json", default="build/bench-gpu.json", help="where the numbers go")
    parser.add_argument("--only", default="", help="parts whose names hold this")
    args = parser.parse_args()
    device = torch.cuda.get_device_name() if args.device == "cuda" else args.device
    found = {"device": device, "torch": torch.__version__}
    with stream_file(args) as (path, stream):
        found["stream"] = stream
        store = with_features(path)
        parts = {
            "largest difference of 25 losses, captured and not": lambda: equality(args, store),
            "TGN in turns": lambda: races(args, path),
            "seconds of an epoch of batches of 200": lambda: epochs(args, store),
            "a step of 200 events, profiled": lambda: profiles(args, store),
            "GCN, ms of an epoch": lambda: static_graph(args),
            "T-GCN, ms of an epoch": lambda: snapshots(args),
        }
        for name, part in parts.items():
            if args.only not in name:
                continue
            began = time.perf_counter()
            try:
                found[name] = part()
            except Exception as error:  # what comes after it is worth its minutes
                traceback.print_exc()
                found[name] = {"failed": f"{type(error).__name__}: {error}"}
            show(name, found[name])
            print(f"  ({time.perf_counter() - began:.0f} s)", flush=True)
            Path(args.json).parent.mkdir(parents=True, exist_ok=True)
            Path(args.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
