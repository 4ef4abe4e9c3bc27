"""Every strategy equals the replay of its plan; where it approximates nothing, training in one process as well."""

import gc
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cache

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from lightning_tgnn import (
    BLADStrategy,
    CDFGNNStrategy,
    DepCacheStrategy,
    DepCommStrategy,
    DistTGLStrategy,
    DynamicNodeClassification,
    EdgeClassification,
    NodeClassification,
    PipeTGLStrategy,
    PlannedStrategy,
    SnapshotPartitionStrategy,
    SvenStrategy,
    VertexPartitionStrategy,
)
from lightning_tgnn.algorithms import schedules
from lightning_tgnn.algorithms.partitions.vertex_cut import CUT_METHODS
from lightning_tgnn.algorithms.schedules import DataParallel, EpochsAndCopies, RoundRobin, WholeGraph
from lightning_tgnn.strategies import parts
from lightning_tgnn.strategies.parts import (
    BFloat16,
    HostMemory,
    InOrder,
    MeanGradients,
    Pipelined,
    PowerSGD,
    Replicated,
    RingUpdates,
    Served,
    Sharded,
    TargetsFirst,
    UpdatedByOwners,
    VertexCut,
    WholeStep,
)
from lightning_tgnn.tasks.node_classification import GRAPH_MODELS
from tests.multiprocess import snapshots
from tests.multiprocess import test_cdfgnn as graphs
from tests.multiprocess import training as streams
from tests.multiprocess.ranks import run_ranks
from tests.replay.groups import EitherProcess
from tests.replay.interpreter import replay

GLOBAL_BATCH = 24
EVENTS = 140  # 98 in training, 5 global batches; the last has 2 events, so that of 3 ranks and more some are idle
TRAINED = 98
EPOCHS, STEPS = 5, 25
TRAINER = {"clip": "gradient_clip_val", "accumulate": "accumulate_grad_batches", "looks": "val_check_interval"}
TABLES = ("memory", "memory_time", "mails", "mail_time", "mail_event", "mail_count")
HOSTS = {1: (0,), 2: (0, 1), 3: (0, 0, 1), 4: (0, 0, 1, 1), 8: (0, 0, 0, 0, 1, 1, 1, 1)}


class PlainEdges(streams.Plain, EdgeClassification):
    pass


class PlainNodes(streams.Plain, DynamicNodeClassification):
    pass


class WithMomentum(streams.QuietLinks):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.8)


class Scheduled(streams.QuietLinks):
    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, eps=1e-2)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class PlainVertices(streams.Plain, NodeClassification):
    pass


class Looks(Callback):
    """Keeps the weights that each validation sees."""

    def __init__(self):
        self.weights = []

    def on_validation_end(self, trainer, module):
        self.weights.append(torch.cat([value.detach().flatten() for value in module.parameters()]))


def labelled(kind):
    """Labels most of which are in the first half of each global batch, so that ranks have unequal numbers of them."""
    rng = torch.Generator().manual_seed(3)
    labels = torch.randint(0, {"nodes": 2, "classes": 3, "several": 2}[kind], (EVENTS, 3), generator=rng)
    labels = labels if kind == "several" else labels[:, 0]
    bare = (torch.arange(EVENTS) % GLOBAL_BATCH >= GLOBAL_BATCH // 2) & (torch.rand(EVENTS, generator=rng) < 0.8)
    labels[bare] = -1
    return {"task_class": PlainNodes if kind == "nodes" else PlainEdges, "labels": labels, "hidden_dim": 6}


@dataclass(frozen=True)
class Case:
    """A run.

    Attributes:
        name: Of the case.
        model: What is trained.
        strategy: Makes the strategy, given the hosts of the ranks.
        task: Settings of task and data.
        ranks: On how many ranks.
        on_hosts: Let the launcher say that there are two hosts.
        replays: Whether there is a replay; else a few steps are compared with one process only.
        validate_every: Epochs from one validation to the next.
        batch: Events of a batch, where ranks have batches of their own; None where they share global batches.
        groups: Copies of node state.
        shares: Ranks that share a global batch, where ranks have batches of their own; `ALL` for all.
        passes: Passes over each global batch; None where there is one.
        training: How gradients are clipped and accumulated, and after how many turns a validation looks.
    """

    name: str
    model: str
    strategy: Callable
    task: dict = field(default_factory=dict)
    ranks: tuple = (1, 2, 3, 4)
    on_hosts: bool = False
    replays: bool = True
    validate_every: int = EPOCHS
    batch: int | None = None
    groups: int = 1
    shares: int = 1
    passes: int | None = None
    training: dict = field(default_factory=dict)

    @property
    def is_graph(self):
        return self.model in GRAPH_MODELS

    @property
    def is_snapshots(self):
        return self.model in RECURRENT

    @property
    def makes_groups(self):
        if self.is_snapshots:
            return True
        return self.batch is not None and any(word in self.name for word in ("copies", "disttgl"))

    def steps(self, ranks):
        if self.is_snapshots:
            devices = 1 if self.shares == ALL else ranks // self.shares
            return self.epochs * -(-TRAINED_GROUPS // (self.batch * devices))
        if self.batch is None:
            return STEPS if self.replays else 4
        batches = -(-TRAINED // (self.batch * self.shares))
        if self.passes is not None:
            return self.epochs * (batches + self.passes - 1)
        return self.epochs * -(-batches // (ranks // self.groups))

    @property
    def epochs(self):
        if self.is_snapshots:
            return 4  # loads are known after the first
        if self.batch is None:
            return EPOCHS
        return 3 if self.passes is None else 2  # 27 updates, or some 20

    def build(self, ranks):
        if self.is_graph:
            return graphs.build(self.model, **{"task_class": PlainVertices, **self.task})
        if self.is_snapshots:
            return snapshots.build(self.model, self.batch, **self.task)
        return streams.build(self.model, self.batch or GLOBAL_BATCH // ranks, events=EVENTS, **self.task)

    def fit(self, strategy, ranks):
        if self.is_graph:
            steps = self.steps(ranks)
            settings = {"epochs": steps, "validate_every": steps, "task_class": PlainVertices, **self.task}
            hosts = 2 if self.on_hosts and ranks > 1 else 1
            outcome = graphs.fit(strategy, ranks, self.model, hosts, **settings)
            return outcome | {"val": outcome["figures"]}
        options = {"check_val_every_n_epoch": min(self.validate_every, self.epochs)}
        options |= {TRAINER[name]: value for name, value in self.training.items()}
        if self.on_hosts and self.is_snapshots:
            options |= {"devices": ranks // 2, "num_nodes": 2}
        looks = Looks()
        callbacks = [looks] if "looks" in self.training else []
        outcome = streams.fit(*self.build(ranks), strategy, ranks, callbacks=callbacks, epochs=self.epochs, **options)
        return outcome | {"looks": looks.weights}


SVEN = {
    "bare": {
        "partition": "interval",
        "micro_batches": 1,
        "row_cache_mb": 0,
        "fetch_ahead": False,
        "omit_own_half": False,
        "features_by_event": False,
    },
    "pieces": {"partition": "range", "micro_batches": 2},
    "balanced": {"partition": "reflexbicut", "micro_batches": 3, "prefetch_batches": 2},
    "small cache": {"partition": "metis", "micro_batches": 2, "row_cache_mb": 0.002},
    "not ahead": {"partition": "interval", "micro_batches": 2, "fetch_ahead": False, "prefetch_batches": 0},
    "by destination": {"partition": "reflexbicut", "split_batch": "destination"},
    "ahead, no cache": {"partition": "range", "micro_batches": 1, "row_cache_mb": 0, "fetch_ahead": True},
}
STREAMS = ("tgn", "jodie", "apan")
RECURRENT = ("wd_gcn", "tgcn", "evolvegcn_o", "evolvegcn_h")
TRAINED_GROUPS, ALL = 7, 0


def sven(staleness=0, **options):
    return lambda hosts: SvenStrategy(staleness=staleness, **options)


def planned(schedule, store, order, updates):
    parts = {"schedule": schedule, "store": store, "order": order, "updates": updates}
    return lambda hosts: PlannedStrategy(**parts, hosts=hosts)


def pipetgl(**options):
    return lambda hosts: PipeTGLStrategy(**options)


def disttgl(minibatch, epoch, memory, **options):
    return lambda hosts: DistTGLStrategy(minibatch=minibatch, epoch=epoch, memory=memory, **options)


def cdfgnn(**options):
    return lambda hosts: CDFGNNStrategy(**options)


def spread(name, models, strategy, *task, turned=0, **settings):
    """Return a case of each model. Every one is on 2 ranks, every other one on 3, the others on 4, some on 1.

    Steps and models are the same on all numbers of ranks, so that not every option meets every model on each.

    Args:
        turned: Has the models change places.
    """
    cases = []
    for place, model in enumerate(models):
        on = {2, 3 + (place + turned) % 2} | ({1} if (place + turned) % 3 == 0 else set())
        cases.append(Case(name, model, strategy, *task, ranks=tuple(sorted(on)), **settings))
    return cases


CASES = []
for number, (name, options) in enumerate(SVEN.items()):
    CASES += spread(f"sven {name}", STREAMS, sven(**options), turned=number)
CASES += spread("sven late", STREAMS, sven(1, micro_batches=2), validate_every=1)
CASES += [Case("sven between", model, sven(), ranks=(2, 4), validate_every=1) for model in ("tgn", "apan")]
CASES += [Case("depcomm", model, lambda hosts: DepCommStrategy(), validate_every=1) for model in STREAMS]
CASES += [Case("depcache", model, lambda hosts: DepCacheStrategy(), validate_every=1) for model in STREAMS]
CASES += [Case("depcache late", "tgn", lambda hosts: DepCacheStrategy(staleness=1), ranks=(2,), validate_every=1)]
CASES += [Case("depcache whole mails", "apan", lambda hosts: DepCacheStrategy(make_mails=False), ranks=(2, 3))]
# A rank's past ends with the global batch's.
CASES += [Case("sven past batch", model, sven(), {"past": "batch"}, (4,)) for model in ("tgn", "apan")]
ONCE = {"past": "batch", "embed_at": "batch"}
CASES += spread("sven, nodes once", STREAMS, sven(micro_batches=2), ONCE)
CASES += [Case("depcomm, nodes once", "tgn", lambda hosts: DepCommStrategy(), ONCE, (3,))]
BY_DESTINATION = sven(split_batch="destination", partition="interval", micro_batches=2)
CASES += [Case("sven by destination, past batch", "apan", BY_DESTINATION, {"past": "batch"}, (3, 4))]
CASES += [Case("sven by destination, nodes once", "tgn", BY_DESTINATION, ONCE, (2,))]
CASES += [Case("sven by destination, labels", "tgn", BY_DESTINATION, labelled("several"), (3, 4))]
CASES += [Case(f"sven labels {kind}", "tgn", sven(), labelled(kind), (4,)) for kind in ("nodes", "classes", "several")]
CASES += [
    Case(f"depcache labels {kind}", "tgn", lambda hosts: DepCacheStrategy(), labelled(kind), (4,))
    for kind in ("nodes", "classes", "several")
]
RANGE = Sharded("range", row_cache_mb=0)
PARTS = {
    "in order, late": ("tgn", DataParallel(), RANGE, InOrder(), MeanGradients(1)),
    "owners, late": ("jodie", DataParallel(), Sharded("interval"), UpdatedByOwners(), MeanGradients(1)),
    "replicas, late": ("apan", DataParallel(), Replicated(), InOrder(), MeanGradients(1)),
    "plain rows": ("apan", DataParallel(), Sharded("range"), InOrder(), MeanGradients()),
    "replicas, by destination": ("apan", DataParallel("destination"), Replicated(), InOrder(), MeanGradients()),
    "owners, by destination": ("jodie", DataParallel("destination"), RANGE, UpdatedByOwners(), MeanGradients(1)),
    "three pieces": ("tgn", DataParallel(), RANGE, Pipelined(3, fetch_ahead=False), MeanGradients(1)),
}
for number, (name, (model, *for_plan)) in enumerate(PARTS.items()):
    CASES += spread(name, (model,), planned(*for_plan), turned=number)
# Gradients of an embedding table travel as rows, or as part of all that a rank sends.
STATIC = {"static_dim": 5, "num_nodes": 90}
CASES += [Case("sven late, static rows", "tgn", sven(1, micro_batches=2), STATIC, (2, 3))]
CASES += [Case("depcache, static rows", "jodie", lambda hosts: DepCacheStrategy(), STATIC, (2, 3))]
CASES += [Case("pipetgl, static rows", "tgn", pipetgl(), STATIC, (2, 3), batch=11)]
TURN = {"batch": 11}  # 9 batches: the last one is short, and ranks are left without
TASKS = {"momentum": {"task_class": WithMomentum}, "schedule": {"task_class": Scheduled}}
CASES += [Case("pipetgl", model, pipetgl(), **TURN) for model in STREAMS]
CASES += spread("pipetgl between", STREAMS, pipetgl(), validate_every=1, **TURN)
CASES += [Case("pipetgl momentum", "tgn", pipetgl(), TASKS["momentum"], ranks=(1, 2, 4), **TURN)]
CASES += [Case("pipetgl schedule", "tgn", pipetgl(), TASKS["schedule"], ranks=(1, 2, 3), **TURN)]
clipped = {"training": {"clip": 0.05}, "ranks": (1, 2, 4)}
CASES += [Case("pipetgl clipped", "jodie", pipetgl(), TASKS["schedule"], **clipped, **TURN)]
CASES += [Case("pipetgl accumulated", "tgn", pipetgl(), training={"accumulate": 2}, ranks=(1, 2, 3), **TURN)]
# A validation after every turn sees the latest weights and must change nothing, in the middle of an accumulation, too.
LOOKS = {"training": {"looks": 1}, "validate_every": 1, "ranks": (1, 2, 3)}
CASES += [Case("pipetgl looked at", "tgn", pipetgl(), TASKS["momentum"], **LOOKS, **TURN)]
LOOKS = {"training": {"looks": 1, "accumulate": 2}, "validate_every": 1, "ranks": (1, 2, 4)}
CASES += [Case("pipetgl looked at, accumulated", "jodie", pipetgl(), **LOOKS, **TURN)]
LOOKED_AT = {"looks": 1, "clip": 0.05}, {"looks": 1, "accumulate": 2}
of = {"model": "jodie", "strategy": pipetgl(sends="weights_and_moments"), "batch": 11}
CASES += [Case("pipetgl sends weights_and_moments", task=TASKS["momentum"], ranks=(2, 4), **of)]
for training, ranks in zip(LOOKED_AT, ((3,), (2,)), strict=True):
    looked = {"task": TASKS["schedule"], "training": training, "validate_every": 1}
    CASES += [Case("pipetgl sends weights_and_moments, looked at", ranks=ranks, **of, **looked)]
# A staleness below that of the pipeline; 0 is plain training.
for staleness, ranks in {0: (2, 4), 1: (2, 3), 2: (4,), 3: (4,)}.items():
    name, given = f"pipetgl staleness {staleness}", pipetgl(staleness=staleness)
    CASES += [Case(name, "jodie", given, TASKS["schedule"], ranks=ranks, batch=11, training={"clip": 0.05})]
LOOKED_AT = {"looks": 1}
for staleness, ranks in {0: (2,), 1: (3,)}.items():
    name, given = f"pipetgl staleness {staleness}, looked at", pipetgl(staleness=staleness)
    of = {"training": LOOKED_AT, "validate_every": 1, "batch": 11}
    CASES += [Case(name, "tgn", given, TASKS["momentum"], ranks=ranks, **of)]
CASES += spread("pipetgl in order", STREAMS, pipetgl(targets_first=False), turned=1, **TURN)
CASES += spread("pipetgl passed on", STREAMS, pipetgl(pass_on=True), **TURN)
PASSED_ON = {"ranks": (2,), "training": LOOKED_AT, "validate_every": 1}  # rows of validation, too
CASES += [Case("pipetgl passed on, looked at", "jodie", pipetgl(pass_on=True), **PASSED_ON, batch=6)]
CASES += [Case("pipetgl passed on, two copies", "tgn", pipetgl(pass_on=True, groups=2), batch=11, ranks=(4,), groups=2)]
CASES += [Case("pipetgl passed on, staleness 0", "apan", pipetgl(pass_on=True, staleness=0), **TURN | {"ranks": (3,)})]
CASES += [Case("pipetgl, nodes once", "apan", pipetgl(), ONCE, ranks=(3,), **TURN)]
CASES += [Case("pipetgl ahead", "tgn", pipetgl(prefetch_batches=2), ranks=(2, 4), **TURN)]
OF_TWO = {"batch": 11, "ranks": (2, 4), "groups": 2}  # 9 turns of 9 batches, or 5 in which a rank is left without
CASES += [Case("pipetgl, two copies", model, pipetgl(groups=2), **OF_TWO) for model in STREAMS]
OF_EACH_TWO, LOOKS = OF_TWO | {"ranks": (4,)}, {"training": {"looks": 1}, "validate_every": 1}
CASES += [
    Case("pipetgl, two copies, schedule", "tgn", pipetgl(groups=2), TASKS["schedule"], **OF_EACH_TWO),
    Case("pipetgl, two copies between", "apan", pipetgl(groups=2), validate_every=1, **OF_TWO | {"ranks": (2,)}),
    Case("pipetgl, two copies accumulated", "jodie", pipetgl(groups=2), training={"accumulate": 2}, **OF_TWO),
    Case("pipetgl, two copies looked at", "tgn", pipetgl(groups=2), **LOOKS, **OF_EACH_TWO),
    Case("pipetgl, two copies, moments", "tgn", pipetgl(groups=2, sends="weights_and_moments"), **OF_TWO),
    Case("pipetgl, two copies, one by one", "tgn", pipetgl(groups=2, staleness=0), **OF_EACH_TWO),
    Case("pipetgl, three copies", "tgn", pipetgl(groups=3), batch=11, ranks=(3,), groups=3),
]
IJK = [(2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (2, 1, 2), (1, 2, 2), (1, 1, 1), (1, 3, 1), (2, 2, 2)]


def passes(factors, model, *, looks=False, **options):
    i, j, k = factors
    settings = {"ranks": (i * j * k,), "groups": k, "batch": 11, "shares": i, "passes": j}
    if looks:  # in the middle of passes, which must go on as if nothing had been
        settings |= {"training": {"looks": 1}, "validate_every": 1}
    name = " ".join(str(word) for word in ("disttgl", i, "x", j, "x", k, *options.values()))
    return Case(name, model, disttgl(i, j, k, **options), **settings)


# Each case starts a process for each copy, which takes seconds: not every model with all factors.
CASES += [passes(factors, "tgn") for factors in IJK]
CASES += [passes((1, 2, 1), "jodie", looks=True), passes((2, 1, 2), "jodie")]
CASES += [passes(factors, "apan") for factors in ((2, 1, 1), (1, 2, 2), (2, 2, 1))]
CASES += [passes(factors, "tgn", store="sharded") for factors in IJK]
CUT = {"store": "sharded", "partition": "interval"}
CASES += [passes((2, 2, 1), "apan", **CUT), passes((1, 2, 2), "apan", looks=True, **CUT)]
MEAN = {"schedule": RoundRobin(), "store": HostMemory(), "order": TargetsFirst(), "updates": MeanGradients(1)}
CASES += spread("mean over turns", ("apan",), lambda hosts: PlannedStrategy(**MEAN), **TURN)
CASES += [Case("mean over turns, two copies", "tgn", lambda hosts: PlannedStrategy(**MEAN, groups=2), **OF_TWO)]
EXACT = [{"cache": False, "bits": None}, {"threshold": 0.0, "bits": None}]
CUTS = [("gcn", method, EXACT[0]) for method in CUT_METHODS]
CUTS += [("gcn", "hierarchical", EXACT[1]), ("gat", "hierarchical", EXACT[0]), ("gat", "random", EXACT[1])]
ON_HOSTS = [("gcn", "ebv", EXACT[0]), ("gcn", "random", EXACT[1]), ("gat", "random", EXACT[1])]
for loops in (True, False):
    own = {"self_loops": loops}
    for number, (model, method, options) in enumerate(CUTS):  # on 1 rank there is nothing to cut
        name, strategy = f"cdfgnn {method} {options} {own}", cdfgnn(partition=method, **options)
        CASES += spread(name, (model,), strategy, own, turned=number + 3 * loops, replays=False)
    for model, method, options in ON_HOSTS:
        name, strategy = f"cdfgnn two hosts {method} {own}", cdfgnn(partition=method, **options)
        CASES += [Case(name, model, strategy, own, (4,), True, replays=False)]
TWO = {"num_layers": 2}
SUMMED = WholeGraph(), VertexCut(threshold=0.1), WholeStep(), MeanGradients(1)
CASES += [
    Case("cdfgnn", "gcn", cdfgnn(), TWO),
    Case("cdfgnn paper's threshold", "gcn", cdfgnn(threshold="paper"), TWO),
    Case("cdfgnn best cut", "gcn", cdfgnn(partition="auto", threshold=0.1), TWO, (3,)),
    # On 3 and 4 ranks the mean of the gradients is of other rounding in the last bit, which a coarse quantiser of a
    # GAT's large gradients makes visible.
    Case("cdfgnn", "gat", cdfgnn(), TWO, (1, 2)),
    Case("cdfgnn exact", "gcn", cdfgnn(**EXACT[0]), TWO, (2, 3)),
    Case("cdfgnn exact", "gat", cdfgnn(**EXACT[1]), TWO, (4,), True),
    *(Case("cdfgnn exact", model, cdfgnn(**EXACT[0]), {}, (3,)) for model in ("gatv2", "sage", "gin")),
    *(Case("cdfgnn two hosts", model, cdfgnn(threshold=0.0, bits=16), TWO, (4,), True) for model in ("sage", "gin")),
    *(Case("cdfgnn halo", model, cdfgnn(halo=True, **EXACT[1]), TWO, (2,)) for model in ("gatv2", "sage", "gin")),
    Case("cdfgnn two hosts", "gat", cdfgnn(threshold=0.0, bits=16), TWO, (4,), True),
    Case("cdfgnn three layers", "gcn", cdfgnn(threshold=0.2, bits=4), {}, (2, 4)),
    Case("cdfgnn plain bits", "gcn", cdfgnn(threshold=0.05, bits=None), TWO, (3,)),
    Case("cdfgnn no cache", "gat", cdfgnn(cache=False, bits=8), TWO, (2,)),
    Case("cdfgnn no cache", "gat", cdfgnn(cache=False, bits=16), TWO, (3,)),
    Case("cdfgnn no relay", "gcn", cdfgnn(relay=False, bits=16, threshold=0.1), TWO, (4,), True),
    Case("sums late", "gcn", planned(*SUMMED), TWO, (2, 3)),
    # Without dropout the first sum is formed once. Features are 7 wide, and the narrower rows are summed.
    Case("cdfgnn kept sums", "gcn", cdfgnn(threshold=0.1, bits=16), {"dropout": 0.0}, (2,)),
    Case("cdfgnn kept sums", "gcn", cdfgnn(**EXACT[0]), {"dropout": 0.0, "hidden_dim": 5}, (3,)),
    Case("cdfgnn kept sums", "gcn", cdfgnn(**EXACT[1]), {"dropout": 0.0}, (4,), True),
    Case("cdfgnn narrow", "gcn", cdfgnn(threshold=0.1, bits=None), {"hidden_dim": 5}, (3,)),
    Case("cdfgnn wide heads", "gat", cdfgnn(**EXACT[0]), {"hidden_dim": 16}, (2,)),
    Case("cdfgnn wide heads", "gat", cdfgnn(threshold=0.05, bits=16), {"hidden_dim": 2, **TWO}, (2,)),
    Case("cdfgnn halo", "gcn", cdfgnn(halo=True, **EXACT[0]), {"hidden_dim": 5}, (2,)),
    Case("cdfgnn halo", "gcn", cdfgnn(halo=True, threshold=0.1, bits=16), {"dropout": 0.0}, (3,)),
    Case("cdfgnn halo", "gat", cdfgnn(halo=True, **EXACT[1]), {}, (4,), True),
    Case("cdfgnn halo", "gat", cdfgnn(halo=True, threshold=0.1, bits=16), {"hidden_dim": 16, **TWO}, (2,)),
    Case("cdfgnn sancus", "gcn", cdfgnn(cache="sancus", threshold=0.5, bits=None), TWO, (2,)),
    Case("cdfgnn sancus", "gat", cdfgnn(cache="sancus", threshold=0.5, bits=16), {"dropout": 0.0, **TWO}, (3,)),
    Case("cdfgnn sancus exact", "gcn", cdfgnn(cache="sancus", threshold=0.0, bits=None), {"dropout": 0.0}, (4,), True),
]
NARROW = PowerSGD(rank=1, warm_up=3)
CASES += [
    Case("sven bfloat16", "tgn", sven(gradient_compression="bfloat16"), ranks=(1, 2, 3)),
    Case("sven int8", "tgn", sven(gradient_compression="int8"), ranks=(1, 2)),
    Case("sven powersgd", "tgn", sven(gradient_compression=NARROW), ranks=(1, 2, 3)),
    Case("sven late, int8", "jodie", sven(1, gradient_compression="int8"), ranks=(2,)),
    Case("sven late, powersgd", "apan", sven(1, gradient_compression=NARROW), ranks=(2,)),
    Case("depcache int8", "apan", lambda hosts: DepCacheStrategy(gradient_compression="int8"), ranks=(2,)),
    Case("depcomm bfloat16", "jodie", lambda hosts: DepCommStrategy(gradient_compression="bfloat16"), ranks=(2,)),
    Case("cdfgnn powersgd", "gcn", cdfgnn(**EXACT[0], gradient_compression=NARROW), TWO, (2, 3)),
    Case("cdfgnn int8", "gcn", cdfgnn(**EXACT[0], gradient_compression="int8"), TWO, (2,)),
    passes((1, 2, 1), "jodie", gradient_compression="int8"),
]
# Writes that add up, models without state, and models of pairs.
PAIRS = ("tpnet", "tncn")
CASES += [Case("sven, pairs", model, sven(), ranks=(2, 3, 4)) for model in (*PAIRS, "dygformer", "tgat")]
CASES += [Case("sven, pairs by destination", "tpnet", BY_DESTINATION, ranks=(2, 3))]
CASES += [Case("sven, pairs late", "tpnet", sven(1, micro_batches=2), ranks=(2, 3), validate_every=1)]
CASES += [Case("depcache, pairs", model, lambda hosts: DepCacheStrategy(), ranks=(2, 3)) for model in (*PAIRS, "tgat")]
CASES += [Case("depcomm, pairs", model, lambda hosts: DepCommStrategy(), ranks=(2, 3)) for model in PAIRS]
CASES += [Case("pipetgl, pairs", model, pipetgl(), **TURN) for model in (*PAIRS, "graphmixer")]
CASES += [Case("pipetgl, pairs passed on", "tpnet", pipetgl(pass_on=True), **TURN)]
CASES += [Case("pipetgl, pairs, two copies", "tpnet", pipetgl(groups=2), **OF_TWO)]
CASES += [passes(factors, "tpnet") for factors in ((2, 1, 1), (1, 2, 1), (2, 1, 2))]
CASES += [
    passes((2, 2, 1), "tncn"),
    passes((1, 2, 2), "dygformer"),
    passes((1, 1, 2), "dygformer"),
    passes((2, 2, 1), "tpnet", store="sharded"),
]
GROUPS = {"batch": 2, "shares": 2, "ranks": (2, 4)}
WHOLE_GROUPS = {"batch": 2, "shares": 1, "ranks": (1, 3)}
CUT_GROUPS = {"batch": 3, "shares": ALL, "ranks": (2, 3)}


def blad(**options):
    return lambda hosts: BLADStrategy(**{"processes_per_device": 2, **options})


CASES += [Case("blad", model, blad(), **GROUPS) for model in RECURRENT]
CASES += [Case("blad even", "tgcn", blad(balance="even", open_groups=3), **GROUPS)]
CASES += [Case("blad, one open group", "wd_gcn", blad(open_groups=1), {"vertices": "active"}, **GROUPS)]
CASES += [Case("blad clipped", "wd_gcn", blad(), {"convolution": "rgcn"}, training={"clip": 0.05}, **GROUPS)]
CASES += [Case("blad bfloat16", "tgcn", blad(gradient_compression="bfloat16"), **GROUPS | {"ranks": (2,)})]
CASES += [Case("blad chebyshev", "wd_gcn", blad(), {"convolution": "chebyshev"}, **GROUPS)]


class OnEitherProcess(BLADStrategy):
    def _take_parts(self, processes):
        super()._take_parts(processes)
        self._schedule = EitherProcess(processes, "even")


CASES += [
    Case("blad, on either process", model, lambda hosts: OnEitherProcess(processes_per_device=2), **GROUPS)
    for model in RECURRENT
]


CASES += [Case("blad, one process", "evolvegcn_h", blad(processes_per_device=1), **WHOLE_GROUPS)]
CASES += [
    Case("snapshot partition", model, lambda hosts: SnapshotPartitionStrategy(), **CUT_GROUPS)
    for model in ("tgcn", "evolvegcn_o")
]
CASES += [
    Case(
        "snapshot partition, two hosts",
        "wd_gcn",
        lambda hosts: SnapshotPartitionStrategy(),
        on_hosts=True,
        **CUT_GROUPS | {"ranks": (4,)},
    )
]
COMPRESSED = {"gradient_compression": "bfloat16"}
CASES += [
    Case("snapshot partition", "tgcn", lambda hosts: SnapshotPartitionStrategy(**COMPRESSED), **CUT_GROUPS),
    Case("vertex partition", "tgcn", lambda hosts: VertexPartitionStrategy(**COMPRESSED), **CUT_GROUPS),
]
CASES += [Case("vertex partition", model, lambda hosts: VertexPartitionStrategy(), **CUT_GROUPS) for model in RECURRENT]


def core(cases):
    """Return (ranks, number) of the cases of ``make test``: of each name one on 2 ranks, or else on 3.

    It is the case whose model has been taken least. Of each word with which names begin, one more is on 3 ranks, and
    of each model one on 2 or 3.
    """
    of_name, of_word, model_settings, taken, found = (
        defaultdict(list),
        defaultdict(list),
        defaultdict(list),
        Counter(),
        set(),
    )
    for number, case in enumerate(cases):
        of_name[case.name.partition(" {")[0]].append(number)  # one cut of a graph, whatever is exact about it
        of_word[case.name.split()[0]].append(number)
        model_settings[case.model].append(number)
    for held, counts in ((of_name, (2, 3)), (of_word, (3,)), (model_settings, (2, 3))):
        for name, numbers in held.items():
            on = [[(ranks, number) for number in numbers if ranks in cases[number].ranks] for ranks in counts]
            if not taken[name] and (candidates := next(filter(None, on), None)):
                ranks, number = min(candidates, key=lambda one: taken[cases[one[1]].model])
                taken[cases[number].model] += 1
                found.add((ranks, number))
    return found


def on_rank(rank, ranks, chosen):
    outcomes = {}
    # Each process group has threads that wake up a hundred times a second as long as it is there: many come last.
    for number in sorted(chosen, key=lambda number: (CASES[number].makes_groups, number)):
        case = CASES[number]
        streams.as_torchrun(rank, ranks, 2 if case.on_hosts else 1)
        outcomes[number] = case.fit(case.strategy(HOSTS[ranks]), ranks)
        outcomes[number].pop("trainer", None)
        if isinstance(outcomes[number]["plan"].store, Served):
            gc.collect()  # all ranks leave the memory process, which so can serve the next case
    return outcomes


@pytest.fixture(autouse=True)
def one_thread():
    """As ranks have: on more, sums are of other rounding, and a value may be quantised to the next level."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@cache
def runs(ranks, chosen):
    """Return the outcomes of the chosen cases, rank by rank, or why there are none: no case starts ranks once more."""
    try:
        return run_ranks(on_rank, ranks, chosen, timeout=270)
    except AssertionError as error:
        return str(error)


@pytest.fixture(scope="module")
def found(request):
    """Return a function of a number of ranks that runs all cases that are selected on so many, and no others."""
    chosen = set()
    for item in request.session.items:
        if getattr(item, "module", None) is request.module:  # a doctest has none
            of_case = getattr(item, "callspec", None)
            chosen |= CORE if of_case is None else {(of_case.params["ranks"], of_case.params["number"])}
    return lambda ranks: runs(ranks, tuple(sorted(number for on, number in chosen if on == ranks)))


replays, alone = {}, {}


def replayed(case, plan):
    """Return the replay of a plan; plans that differ only in what must change nothing have one in common."""
    read = plan.schedule, plan.layout.copies, plan.updates, case.name if case.is_graph else None
    key = (case.model, case.batch, str((case.task, case.training)), *read)
    if key not in replays:
        data, task = case.build(plan.layout.ranks)
        replays[key] = replay(
            plan,
            task,
            data,
            STEPS if case.is_graph else case.epochs,
            **{name: value for name, value in case.training.items() if name != "looks"},
        )
    return replays[key]


def in_one_process(case):
    key = case.model, case.batch, str((case.task, case.training)), case.steps(1)
    if key not in alone:
        alone[key] = case.fit("auto", 1)
    return alone[key]


def is_exact(plan):
    """Whether the plan is one of ordinary training."""
    store = plan.store
    approximates = isinstance(store, VertexCut) and (store.bits is not None or (store.cache and store.threshold != 0))
    if isinstance(plan.schedule, RoundRobin | EpochsAndCopies) and plan.layout.ranks > 1:
        return False
    if "groups" in plan.schedule.offers:  # the replay is what one process does
        return False
    if isinstance(plan.updates, RingUpdates):
        return True
    approximates |= plan.updates.compression is not None and plan.layout.ranks > 1
    return not (plan.updates.delay or approximates)


def close(ours, theirs, what):
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4, msg=lambda message: f"{what}: {message}")


def all_near(ours, theirs, what):
    """Compare compressed gradients where ranks compute other parts of a group than in the replay."""
    assert ((ours - theirs).abs() <= 0.02 * theirs.abs().amax(1, keepdim=True)).all(), what


def nearly_all_close(ours, theirs, what):
    """Compare compressed gradients: a value between two levels may go to either, and few are so near to the middle."""
    all_near(ours, theirs, what)
    assert torch.isclose(ours, theirs, rtol=1e-3, atol=1e-5).float().mean() > 0.9, what


def assert_same(outcomes, wanted, metrics, compared=close):
    """Compare what all ranks have in common, and node state, which the first rank of each copy has whole."""
    for rank, outcome in enumerate(outcomes):
        ours, theirs = (torch.stack([*gradients]) for gradients in (outcome["gradients"], wanted["gradients"][rank]))
        compared(ours, theirs, f"gradients of rank {rank}")
        for name, value in wanted["weights"].items():
            close(outcome["weights"][name], value, f"rank {rank}: {name}")
        for name, value in metrics.items():
            # A pair of scores that differ by rounding may change places; of 21 events that is 1 / 441 of the AUC.
            assert outcome["val"][name] == pytest.approx(value, abs=3e-3), (rank, name)
    for ranks, state in zip(outcomes[0]["plan"].layout.copies, wanted["state"] or (), strict=bool(wanted["state"])):
        for table in (*TABLES, "position"):
            held = outcomes[ranks[0]]["state"][table]
            close(torch.as_tensor(held), torch.as_tensor(state[table]), f"{table} of the copy of ranks {ranks}")


def assert_same_answers(outcomes, wanted):
    """Compare the probabilities that ranks predict, each of other vertices."""
    nodes = torch.cat([outcome["answer"]["node"] for outcome in outcomes])
    assert sorted(nodes.tolist()) == sorted(wanted["answer"]["node"].tolist())  # each once
    ours = torch.cat([outcome["answer"]["probability"] for outcome in outcomes])[nodes.argsort()]
    close(ours, wanted["answer"]["probability"], "probabilities")


CORE = core(CASES)
ELSEWHERE = {
    "EpochsAndCopies.negative_sets",
    "GroupPipeline.streams",
    "PowerSGD.rank",
    "PowerSGD.warm_up",
    "ReadOnce.fetch_ahead",
    "SnapshotGroups.split",
    "SnapshotMemory.split",
    "VertexCut.relay",
    "VertexShares.partition",
}
PARAMETERS = [
    pytest.param(
        ranks,
        number,
        id=f"{ranks} ranks, {case.model}, {case.name}",
        marks=() if (ranks, number) in CORE else pytest.mark.full,
    )
    for ranks in HOSTS
    for number, case in enumerate(CASES)
    if ranks in case.ranks
]


@pytest.mark.timeout(280)
@pytest.mark.parametrize(("ranks", "number"), PARAMETERS)
def test_every_strategy_equals_its_replay(ranks, number, found):
    case, run = CASES[number], found(ranks)
    assert not isinstance(run, str), run
    outcomes = [outcome[number] for outcome in run]
    losses, plan = torch.stack([outcome["losses"] for outcome in outcomes], dim=1), outcomes[0]["plan"]
    losses *= case.training.get("accumulate", 1)  # Lightning shows a loss by its share
    assert losses.shape == (case.steps(ranks), ranks)
    assert plan.layout.ranks == ranks
    if "looks" in case.training:  # all ranks see the same weights, and these change from turn to turn
        looks = [torch.stack(outcome["looks"]) for outcome in outcomes]
        assert all(torch.equal(seen, looks[0]) for seen in looks)
        assert len(looks[0].sum(1).unique()) > case.steps(ranks) / 2
    assert case.replays or is_exact(plan)  # one of the two comparisons
    if case.replays:
        wanted = replayed(case, plan)
        # Which rank ends which group of snapshots goes by measured seconds, and ranks may score a part of its targets.
        by_rank = "groups" not in plan.schedule.offers or isinstance(plan.schedule, EitherProcess)
        close(losses if by_rank else losses.mean(1), wanted.losses if by_rank else wanted.losses.mean(1), "losses")
        compression = getattr(plan.updates, "compression", None)
        compared = close if compression is None else nearly_all_close if by_rank else all_near
        assert_same(outcomes, vars(wanted), wanted.metrics, compared)
        if isinstance(compression, BFloat16) and ranks > 1:
            applied = outcomes[0]["gradients"]
            assert torch.equal(applied, applied.bfloat16().float())
    if is_exact(plan):
        wanted = in_one_process(case)
        close(losses.mean(1), wanted["losses"] * case.training.get("accumulate", 1), "mean of losses")
        state = [wanted["state"]] if wanted.get("state") else None
        assert_same(outcomes, wanted | {"state": state, "gradients": [wanted["gradients"]] * ranks}, wanted["val"])
        if case.is_graph:
            assert_same_answers(outcomes, wanted)


def test_the_core_has_every_part_and_option(found):
    """Of the options of parts each has two values at least; other tests of `make test` have the ones listed here."""
    plans = [outcome["plan"] for ranks in (2, 3) for outcome in found(ranks)[0].values()]
    held = [part for plan in plans for part in (plan.schedule, plan.store, plan.order, plan.updates)]
    held += [plan.updates.compression for plan in plans if getattr(plan.updates, "compression", None) is not None]
    kinds = {getattr(parts, name) for name in parts.__all__} | {getattr(schedules, name) for name in schedules.__all__}
    missing = {kind.__name__ for kind in kinds} - {type(part).__name__ for part in held}
    assert missing == {"RandomChunks", "ShuffledBatches"}
    values = defaultdict(set)
    for part in held:
        for option in fields(part):
            values[f"{type(part).__name__}.{option.name}"].add(str(getattr(part, option.name)))
    once = {name for name, found in values.items() if len(found) == 1 and not name.startswith("EitherProcess")}
    assert once == ELSEWHERE
