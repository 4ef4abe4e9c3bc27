"""T-GCN and EvolveGCN, ours beside those of PyTorch Geometric Temporal: pyg_temporal.py SOURCE [EPOCHS] [SEEDS].

Both train on the same groups of the same snapshots with the same features, negatives, head and optimizer, two layers of
64, an epoch of one after an epoch of the other, on one thread. Seconds are the processor's, so that other work on the
machine counts little. The library needs ``pip install --no-deps torch-geometric-temporal``: its EvolveGCN imports
``torch_sparse`` for an annotation only, which is left out where it is not installed.
"""

import sys
import time
from collections import defaultdict
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from types import ModuleType

import torch
from torch import nn

from lightning_tgnn.data import SnapshotDataModule
from lightning_tgnn.metrics import LinkMetrics
from lightning_tgnn.models import SnapshotOperators
from lightning_tgnn.tasks import SnapshotLinkPrediction
from lightning_tgnn.types import SnapshotBatch

WIDTH, LAYERS, GROUP, RATE = 64, 2, 8, 0.005


def library(name, kind):
    """Return a class of a recurrent layer, without what the library imports beside it."""
    package = "torch_geometric_temporal"
    if "torch_sparse" not in sys.modules and find_spec("torch_sparse") is None:
        sys.modules["torch_sparse"] = ModuleType("torch_sparse")
        sys.modules["torch_sparse"].SparseTensor = object
    if package not in sys.modules:
        root = find_spec(package).submodule_search_locations[0]
        for part in ("", ".nn", ".nn.recurrent"):
            sys.modules[package + part] = ModuleType(package + part)
            sys.modules[package + part].__path__ = [root + part.replace(".", "/")]
    return getattr(import_module(f"{package}.nn.recurrent.{name}"), kind)


class Theirs(nn.Module):
    """Two layers of the library in the form of our models."""

    embedding_dim = WIDTH

    def __init__(self, name, info):
        super().__init__()
        self.name = name
        if name == "tgcn":
            kind, arguments = library("temporalgcn", "TGCN"), (WIDTH, WIDTH)
        elif name == "evolvegcn_o":
            kind, arguments = library("evolvegcno", "EvolveGCNO"), (WIDTH,)
        else:
            kind, arguments = library("evolvegcnh", "EvolveGCNH"), (info.num_nodes, WIDTH)
        self.layers = nn.ModuleList(kind(*arguments) for _ in range(LAYERS))
        self.edges = {}

    def start(self, rows):
        if self.name != "tgcn":
            for layer in self.layers:
                layer.reinitialize_weight()
        return (None,) * LAYERS

    def edge_index(self, snapshot):
        """Return the edges without loops, which the library adds itself; made once."""
        if snapshot.number not in self.edges:
            edges = snapshot.layers[0][0]
            ends = torch.stack([edges.columns, edges.rows])
            self.edges[snapshot.number] = ends[:, ends[0] != ends[1]]
        return self.edges[snapshot.number]

    def step(self, snapshot, carried, operators, *, last):
        rows, after, edge_index = snapshot.features, [], self.edge_index(snapshot)
        for layer, state in zip(self.layers, carried, strict=True):
            if self.name == "tgcn":
                rows = layer(rows, edge_index, None, state)
                after.append(rows)
            else:
                rows = layer(rows, edge_index).relu()
                after.append(None)
        return tuple(after), rows if last else None


def groups_of(data, split):
    loader = {"train": data.train_dataloader, "val": data.val_dataloader, "test": data.test_dataloader}[split]()
    return [group for batch in loader for group in batch.groups]


class Contestant:
    """A model and its optimizer."""

    def __init__(self, data, model, seed, operators=None, **arguments):
        torch.manual_seed(seed)
        self.task = SnapshotLinkPrediction(model, lr=RATE, detect_nan=False, **arguments)
        self.task.build(data.info)
        self.task.operators = operators or SnapshotOperators()
        self.optimizer = torch.optim.Adam(self.task.parameters(), RATE)
        self.seconds, self.metrics = [], []

    def epoch(self, groups):
        start = time.process_time()
        for group in groups:
            self.optimizer.zero_grad()
            self.task.default_group_order(self.task, SnapshotBatch((group,))).backward()
            self.optimizer.step()
        self.seconds.append(time.process_time() - start)

    @torch.no_grad()
    def average_precision(self, groups):
        metrics = LinkMetrics()
        for group in groups:
            carried, embeddings = self.task.start(group), None
            for snapshot in group.snapshots:
                carried, embeddings = self.task.step(snapshot, carried, last=snapshot.number == group.number)
            positive, negatives = self.task.score(embeddings, group)
            metrics.compare(positive, negatives[:, 0], torch.zeros_like(positive, dtype=torch.bool))
        return float(metrics.against_first["ap"].compute())


def with_features(data):
    """Give the snapshots 64 features: two of degrees and random ones, which tell the vertices apart."""
    fixed = torch.randn(data.info.num_nodes, WIDTH - 2, generator=torch.Generator().manual_seed(0))
    whole = data.snapshots
    for number in range(len(whole)):
        snapshot = whole[number]
        features = torch.cat([snapshot.features, fixed], 1)
        whole._made[number] = replace(snapshot, features=features)
    data.__dict__["info"] = replace(data.info, feature_dim=WIDTH)


def contestants_of(data, name, seed):
    plain = SnapshotOperators(reuse=False)
    return {
        "ours": Contestant(data, name, seed, hidden_dim=WIDTH),
        "ours, nothing kept or left out": Contestant(data, name, seed, plain, hidden_dim=WIDTH, skip_unread=False),
        "PyG Temporal": Contestant(data, lambda info: Theirs(name, info), seed),
    }


def compare(data, name, epochs, seeds):
    """Print seconds of an epoch and the test AP of the epoch of the best validation AP, seed by seed."""
    results, seconds = defaultdict(list), defaultdict(list)
    for seed in range(seeds):
        contestants, best = contestants_of(data, name, seed), {}
        for _ in range(epochs):
            train, val, test = (groups_of(data, split) for split in ("train", "val", "test"))
            for kind, contestant in contestants.items():
                contestant.epoch(train)
                figure = contestant.average_precision(val)
                if figure > best.get(kind, (0.0, 0.0))[0]:
                    best[kind] = figure, contestant.average_precision(test)
        for kind, contestant in contestants.items():
            seconds[kind] += contestant.seconds[1:]
            results[kind].append(best[kind][1])
    theirs = median(seconds["PyG Temporal"])
    for kind, metrics in results.items():
        took, shown = median(seconds[kind]), ", ".join(f"{figure:.3f}" for figure in metrics)
        print(f"{name:12} {kind:32} {took:7.2f} s/epoch  {theirs / took:5.2f} times  test AP {shown}", flush=True)


def main():
    source, epochs, seeds = (*sys.argv[1:], *("6", "3")[len(sys.argv) - 2 :])
    torch.set_num_threads(1)
    data = SnapshotDataModule(
        source, num_snapshots=50, group_size=GROUP, vertices="all", features="degree", num_workers=0
    )
    data.setup("fit")
    with_features(data)
    for name in ("tgcn", "evolvegcn_o", "evolvegcn_h"):
        compare(data, name, int(epochs), int(seeds))


if __name__ == "__main__":
    main()
