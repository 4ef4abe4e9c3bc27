"""What the package does, as JSON, to be compared while its code is simplified; deleted when that is done.

    python -m tests.frozen.record after.json [SECTION …]
    python -m tests.frozen.compare tests/frozen/before.json after.json

Numbers are equal to the bit on one kind of processor alone (before.json: an Intel Xeon with AMX, torch 2.13.0).
On another one record commit b52654c there first, with this file.
"""

import hashlib
import inspect
import json
import os
import random
import re
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import lightning.pytorch as pl
import torch

ROOT = Path(__file__).parents[2]
FILES = Path(__file__).parent / "files"
DATA = Path(os.environ.get("LIGHTNING_TGNN_DATA", ROOT / ".." / "shared" / "data")).resolve()
STEPS = 25
TRIED = 100
PACKAGES = ("", ".algorithms", ".callbacks", ".comm", ".data", ".metrics", ".models", ".serving", ".state", ".tasks")
COMMANDS = ("fit", "test", "validate", "predict", "pretrain-static", "partition", "bench", "plan", "simulate", "report")
KINDS = ("events", "graph", "snapshots")
# Sources of recipes that cannot be fetched have others in their place.
SOURCES = {"bitcoinotc": "soc-sign-bitcoinotc.csv.gz", "collegemsg": "CollegeMsg.txt.gz", "cora": "cora.npz"}
SOURCES |= {"jodie-wikipedia": "wikipedia.txt.gz", "wikipedia": "wikipedia.txt.gz", "mooc": "CollegeMsg.txt.gz"}
WIKIPEDIA = ["--source", DATA / "wikipedia.txt.gz", "--devices", 2, "--steps", 5, "--warmup", 2, "--rounds", 1]
CORA = ["--kind", "graph", "--source", DATA / "cora.npz", "--devices", 2, "--epochs", 3, "--warmup", 2, "--rounds", 1]
BITCOIN = ["--kind", "snapshots", "--source", DATA / "soc-sign-bitcoinotc.csv.gz", "--devices", 2, "--epochs", 3]
BITCOIN += ["--num_snapshots", 50, "--warmup", 2, "--rounds", 1]
EVENTS = "sven,sven:staleness=1,depcomm,depcache,pipetgl,disttgl:minibatch=2,disttgl:epoch=2,disttgl:memory=2"
GRAPHS = "cdfgnn,cdfgnn:cache=false:bits=none,cdfgnn:cache=sancus:threshold=0.1"
BYTES = {
    "events": [*WIKIPEDIA, "--strategies", EVENTS],
    "graph": [*CORA, "--strategies", GRAPHS],
    "snapshots": [*BITCOIN, "--strategies", "blad,vertex_partition,snapshot_partition"],
}
COSTS = (
    "{seconds: {sample: 0.001, gather: 0.001, fetch: 0.002, update: 0.006, embed: 0.018, score: 0.002, write: 0.003, "
    "backward: 0.028, step: 0.002, other: 0.001}, bytes: {rows: 400000, updates: 200000, gradients: 1200000}, "
    "batch_size: 600, shares: {targets: 0.5, repeated: 0.5, ahead: 0}}"
)
LOADS = (
    "{loads: {graph 1: [1e-4, 0, 2e-9], nn 1: [1e-4, 3e-9, 0], head: [1e-4, 1e-9, 0], backward: [4e-4, 5e-9, 3e-9]}, "
    "widths: {graph 1: 16, nn 1: 64, head: 64}, exchanged_widths: {graph 1: 64}, backward_width: 144, "
    "state_width: 64, embedding_width: 64, rates: [[0.7, 1.0], [1.0, 0.8]], hand_over: 1e-4, gradients: 120000, "
    "update: 0.001, message: 1e-4}"
)
FORECASTS = {
    "events": ["--stages", COSTS, "--strategy", "sven,sven:staleness=1:micro_batches=2:ahead=0.5,depcomm,depcache,"
               "pipetgl,pipetgl:groups=2,disttgl,disttgl:minibatch=2,disttgl:epoch=2"],
    "snapshots": ["--stages", LOADS, "--strategy", "blad,blad:processes_per_device=2,blad:split=paper,"
                  "snapshot_partition,vertex_partition", "--group_size", 8, "--snapshots",
                  "{count: 100, vertices: 5000, edges: 50000, varies: 7}"],
}  # fmt: skip


class Outcome(pl.Callback):
    """Writes losses, weights and node state of a run to a file for each rank."""

    def __init__(self, path):
        self.path, self.losses = path, []

    def on_train_batch_end(self, trainer, task, outputs, batch, batch_idx):
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs
        self.losses.append(None if loss is None else float(loss.detach()))

    def on_train_end(self, trainer, task):
        store = getattr(task, "_state_store", None)
        found = {
            "losses": self.losses,
            "weights": digest(dict(task.named_parameters())),
            "node state": None if store is None else digest(store.snapshot()),
        }
        Path(f"{self.path}.{trainer.global_rank}").write_text(json.dumps(found))


def digest(held):
    """Return a digest of all tensors and numbers in a nested value."""
    found = hashlib.blake2b(digest_size=12)

    def add(value):
        if isinstance(value, torch.Tensor):
            found.update(f"{value.dtype}{tuple(value.shape)}".encode())
            found.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        elif isinstance(value, dict):
            for name in sorted(value, key=str):
                found.update(str(name).encode())
                add(value[name])
        elif isinstance(value, list | tuple):
            for one in value:
                add(one)
        elif hasattr(value, "__dict__") and not isinstance(value, type):
            add(vars(value))
        else:
            found.update(repr(value).encode())

    add(held)
    return found.hexdigest()


def names(folder):
    """Return the public names, with their signatures."""
    found = {}
    for name in PACKAGES:
        package = import_module(f"lightning_tgnn{name}")
        for public in getattr(package, "__all__", None) or [one for one in dir(package) if one[0] != "_"]:
            value = getattr(package, public)
            try:
                found[f"{package.__name__}.{public}"] = str(inspect.signature(value)) if callable(value) else "value"
            except (TypeError, ValueError):
                found[f"{package.__name__}.{public}"] = "callable"
    return found


def run(*arguments, folder):
    """Run the command of this package; return what it prints."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", "lightning_tgnn", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr[-3000:]}")
    return done.stdout


def options(folder):
    """Return types and defaults of the options of every command, and the whole settings of recipes."""
    found = {}
    for name in COMMANDS:
        kinds = {"bench": KINDS, "partition": KINDS[:2], "plan": KINDS[::2], "simulate": KINDS[::2]}.get(name, (None,))
        for kind in kinds:
            text = run(name, *([] if kind is None else ["--kind", kind]), "--help", folder=folder)
            text = re.sub(r"\s+", " ", text)
            for part in re.split(r"(?= --[a-z][\w.+]* )", text):
                of_option = re.match(r" (--[\w.+]+) .*(\((?:required, )?type: .*?\)) ?$", part)
                if of_option:
                    found[f"{name} {kind} {of_option[1]}"] = of_option[2]
    for recipe in recipes():
        found[recipe.name] = run("fit", "--config", recipe, "--print_config", folder=folder).splitlines()
    return found


def recipes():
    return sorted((ROOT / "recipes").glob("*.yaml"))


def source_of(recipe):
    (line,) = [line.split("#")[0] for line in recipe.read_text().splitlines() if line.strip().startswith("source:")]
    name = line.split(":", 1)[1].strip()
    if Path(name).name in SOURCES.values():
        return DATA / Path(name).name
    return DATA / SOURCES[name] if name in SOURCES else ROOT / name if (ROOT / name).is_file() else name


def fits(folder):
    """Return losses, weights and node state of every recipe over some steps, on as many processes as it has."""
    found = {}
    for recipe in recipes():
        if "gdelt" in recipe.stem:  # a stream of 174 GB
            continue
        path = Path(folder) / recipe.stem
        text = recipe.read_text()
        arguments = ["fit", "--config", recipe, "--data.source", source_of(recipe), "--trainer.max_steps", STEPS]
        arguments += ["--trainer.limit_val_batches", 0, "--trainer.max_epochs", STEPS]
        if "num_nodes: 2" in text or "num_nodes: 4" in text:
            arguments += ["--trainer.num_nodes", 1, "--trainer.devices", 4 if "disttgl" in recipe.stem else 2]
        arguments += ["--trainer.callbacks+=tests.frozen.record.Outcome", f"--trainer.callbacks.path={path}"]
        try:
            if "static" in recipe.stem:
                given = ["--config", recipe, "--data.source", source_of(recipe)]
                run("pretrain-static", *given, "--epochs", 1, folder=folder)
            if "sven" in recipe.stem:  # as many micro-batches as are fastest add up in another order
                arguments += ["--trainer.strategy.init_args.micro_batches", 1]
            if "blad" in recipe.stem:  # measured seconds decide who computes what
                arguments += ["--trainer.strategy.init_args.balance", "even"]
                arguments += ["--trainer.strategy.init_args.reorder", "false"]
            run(*arguments, folder=folder)
        except RuntimeError as error:
            found[recipe.name] = str(error).splitlines()[-1]
            continue
        found[recipe.name] = [json.loads(one.read_text()) for one in sorted(path.parent.glob(f"{path.name}.[0-9]*"))]
    return found


def sent(folder):
    """Return the bytes that every strategy sends, by kind."""
    found = {}
    for kind, arguments in BYTES.items():
        output = Path(folder) / f"bench-{kind}"
        run("bench", *arguments, "--output", output, folder=folder)
        results = json.loads((output / "bench.json").read_text())
        found[kind] = only_counts(results)
    return found


def only_counts(held):
    """Return what of a nested value does not depend on the clock."""
    if isinstance(held, dict):
        kept = {name: only_counts(value) for name, value in held.items() if not re.search(CLOCK, name)}
        return {name: value for name, value in kept.items() if value not in (None, {}, [])}
    if isinstance(held, list):
        return [only_counts(value) for value in held]
    return held


CLOCK = (
    r"second|speed|time|share|hidden|rounds|idle|wait|flight|python|torch|cpu|host|machine|memory_mb|peak|version|date"
)


def forecasts(folder):
    """Return what is forecast from given seconds of stages."""
    found = {}
    for kind, arguments in FORECASTS.items():
        output, far = Path(folder) / f"{kind}.json", Path(folder) / f"{kind}-hosts.json"
        run("simulate", *arguments, "--ranks", "2,4,8", "--output", output, folder=folder)
        # One pipeline over several hosts is refused.
        on_hosts = [str(one).replace("pipetgl,pipetgl:groups", "pipetgl:groups") for one in arguments]
        run("simulate", *on_hosts, "--ranks", 8, "--hosts", 2, "--link", "400:0.2", "--output", far, folder=folder)
        found[kind] = [json.loads(output.read_text()), json.loads(far.read_text())]
    return found


def verdicts(folder):
    """Return which of the mutated files are accepted, and the argument that the refusal of others names."""
    from lightning_tgnn.checks import LightningTGNNError
    from tests.fuzz import loop
    from tests.fuzz.test_fuzz_readers import TARGETS

    found = {}
    for kind in TARGETS:
        target, told = kind(), []
        seeds = target.seeds()
        for number in range(TRIED):
            rng = random.Random(f"{target.name} 0 {number}")
            files = seeds[number] if number < len(seeds) else target.mutate(rng.choice(seeds), rng, seeds)
            place = Path(folder) / "fuzz" / target.name.replace("/", "_") / "case"
            loop.shutil.rmtree(place, ignore_errors=True)
            loop.write(place, files)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    target.read(place)
                    told.append("accepted")
                except LightningTGNNError as refused:
                    told.append(f"{type(refused).__name__} {str(refused).replace(str(place), '')[:24]}")
                except Exception as fault:
                    told.append(f"fault {type(fault).__name__}")
        found[target.name] = told
    return found


def make_files():
    """Write small files of each kind, as the code of today does."""
    FILES.mkdir()
    data = ["--data.source", "synthetic", "--data.synthetic", "{num_events: 400, edge_feature_dim: 2}"]
    with TemporaryDirectory() as name:
        folder = Path(name)
        model = [
            "--config",
            ROOT / "recipes/quickstart.yaml",
            *data,
            "--model.memory_dim",
            8,
            "--model.time_dim",
            8,
            "--trainer.max_epochs",
            1,
        ]
        run("fit", *model, "--data.batch_size", 50, folder=folder)
        (checkpoint,) = folder.rglob("last.ckpt")
        checkpoint.rename(FILES / "last.ckpt")
        run(
            "data", "generate", "--output", FILES / "store", "--num_events", 400, "--edge_feature_dim", 2, folder=folder
        )
        run(
            "partition", "--source", FILES / "store", "--ranks", 2, "--batch_size", 50, "--output", "cut", folder=folder
        )
        (folder / "cut/reflexbicut.pt").rename(FILES / "owner.pt")
    from lightning_tgnn import Predictor, SnapshotDataModule

    Predictor.from_checkpoint(FILES / "last.ckpt").save(FILES / "predictor.pt")
    SnapshotDataModule(FILES / "store", num_snapshots=6, group_size=2, folder=FILES / "snapshots").setup()


def old_files(folder):
    """Return what is read from files that code of before has written."""
    from lightning_tgnn import Predictor, SnapshotDataModule
    from lightning_tgnn.data import EventStore
    from lightning_tgnn.files.partitions import given_partition

    found = {}
    for name in ("last.ckpt", "predictor.pt"):
        load = Predictor.from_checkpoint if name == "last.ckpt" else Predictor.load
        predictor = load(FILES / name)
        late = predictor.latest_time + 1
        best = predictor.top_k([1, 2], late, k=2)
        found[name] = [predictor.score([1, 2], [3, 4], late).tolist(), best.destinations.tolist()]
    store = EventStore.open(FILES / "store")
    found["store"] = [digest([store.src, store.dst, store.time, store.edge_features]), store.num_events]
    found["owner.pt"] = digest(given_partition(FILES / "owner.pt", "nodes", store.num_nodes, 2, None, ["hash"]))
    data = SnapshotDataModule(FILES / "store", num_snapshots=6, group_size=2, folder=FILES / "snapshots")
    data.setup("fit")
    found["snapshots"] = digest(list(data.train_dataloader()))
    return found


SECTIONS = {
    "names": names, "options": options, "forecasts": forecasts, "bytes": sent, "verdicts": verdicts,
    "files": old_files, "fits": fits,
}  # fmt: skip


def main():
    if not FILES.exists():
        make_files()
    output, *chosen = sys.argv[1:]
    with TemporaryDirectory() as folder:
        found = {name: SECTIONS[name](folder) for name in chosen or SECTIONS}
    Path(output).write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
