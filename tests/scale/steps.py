"""Steps on a stream of the size of GDELT and on a large graph: ``python -m tests.scale.steps STEP FOLDER SIZES``."""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import lightning.pytorch as pl
import torch

from lightning_tgnn import CDFGNNStrategy, EventStore, FullGraphDataModule, TemporalDataModule
from lightning_tgnn.__main__ import main
from lightning_tgnn.data import generate_stream
from lightning_tgnn.data.sources.convert import ColumnFiles
from lightning_tgnn.data.streams.kept_adjacency import adjacency_of, write_adjacency
from lightning_tgnn.data.streams.store_manifest import write_manifest
from lightning_tgnn.tasks import LinkPrediction, NodeClassification

PIECES = 20
ROOTS = 6000
QUIET = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}


def write(folder: Path, events: int, nodes: int) -> dict:
    """Write a stream in pieces that follow each other; each is drawn by itself."""
    folder.mkdir()
    sources, end = nodes * 10 // 11, 0.0
    with ColumnFiles(folder) as files:
        for piece in range(PIECES):
            size = events * (piece + 1) // PIECES - events * piece // PIECES
            drawn = generate_stream(num_events=size, num_sources=sources, num_destinations=nodes - sources, seed=piece)
            times = drawn.time.numpy() - float(drawn.time[0]) + end
            files.append({"src": drawn.src.numpy(), "dst": drawn.dst.numpy(), "time": times})
            end = float(times[-1])
    write_manifest(folder, nodes)
    return {}


def inspect(folder: Path, events: int, nodes: int) -> dict:
    """Look at the stream."""
    with TemporaryDirectory(dir=folder.parent) as output:
        main(["data", "inspect", f"--source={folder}", f"--output={output}"])
        return json.loads((Path(output) / "stream.json").read_text())["counts"]


def sort(folder: Path, events: int, nodes: int) -> dict:
    """Write the adjacency."""
    write_adjacency(folder)
    return {}


def sample(folder: Path, events: int, nodes: int) -> dict:
    """Return millions of roots per second of ten neighbours each, of one and of two threads, from pages in memory.

    Behind them stands the same by processor time, times the threads: what it is where nothing else runs.
    """
    store = EventStore.open(folder)
    adjacency = adjacency_of(store)
    draws = {
        "most recent": lambda roots, before: adjacency.most_recent(roots, before, 10),
        "uniform": lambda roots, before: adjacency.uniform(roots, before, 10, 0, 0),
    }
    torch.set_num_threads(1)  # of a draw: its loops run side by side with those of other draws
    taken = torch.arange(len(store) - 100 * ROOTS // 2, len(store)).view(100, -1)
    batches = [(torch.cat([store.src[one], store.dst[one]]), one.repeat(2)) for one in taken]
    found = {}
    for name, draw in draws.items():
        for threads in (1, 1, 2):  # the first one warms up
            with ThreadPoolExecutor(threads) as pool:
                begin, busy = time.perf_counter(), time.process_time()
                list(pool.map(lambda batch, draw=draw: draw(*batch), batches))
                seconds = time.perf_counter() - begin, (time.process_time() - busy) / threads
                found[f"{name}, threads: {threads}"] = [2 * taken.numel() / one / 1e6 for one in seconds]
    return found


def train(folder: Path, events: int, nodes: int) -> dict:
    """Train 200 batches."""
    data = TemporalDataModule(folder, batch_size=600, num_neighbors=10)
    task = LinkPrediction("tgn", memory_dim=32, embedding_dim=32, time_dim=16)
    trainer = pl.Trainer(**QUIET, devices=1, max_steps=200, limit_val_batches=0, num_sanity_val_steps=0)
    begin = time.perf_counter()
    trainer.fit(task, datamodule=data)
    assert trainer.global_step == 200
    return {"seconds": time.perf_counter() - begin}


def cut(folder: Path, edges: int, nodes: int) -> dict:
    """Cut a graph over two ranks, and train an epoch."""
    size = {"num_nodes": nodes, "num_edges": edges, "num_classes": 10, "feature_dim": 16}
    data = FullGraphDataModule("synthetic", synthetic={**size, "folder": str(folder)})
    task = NodeClassification("gcn", hidden_dim=16, num_layers=2)
    strategy = CDFGNNStrategy(partition="hdrf")
    trainer = pl.Trainer(**QUIET, strategy=strategy, devices=2, max_epochs=1, limit_val_batches=0)
    begin = time.perf_counter()
    trainer.fit(task, datamodule=data)
    return {"seconds": time.perf_counter() - begin}


if __name__ == "__main__":
    step, place, *sizes = sys.argv[1:]
    steps = {"write": write, "inspect": inspect, "sort": sort, "sample": sample, "train": train, "cut": cut}
    metrics = steps[step](Path(place), *map(int, sizes))
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(json.dumps(metrics), flush=True)
