"""A strategy of parts that a user chooses: what it takes, and what it refuses before there is a task."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader

from lightning_tgnn import (
    BLADStrategy,
    CDFGNNStrategy,
    DepCacheStrategy,
    DepCommStrategy,
    DistTGLStrategy,
    FullGraphDataModule,
    LinkPrediction,
    NodeClassification,
    PipeTGLStrategy,
    SnapshotPartitionStrategy,
    SvenStrategy,
    TemporalDataModule,
    VertexPartitionStrategy,
)
from lightning_tgnn.algorithms.schedules import DataParallel, RoundRobin, SnapshotGroups, WholeGraph
from lightning_tgnn.algorithms.schedules.validator import faults, programs
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.strategies.parts import (
    GroupPipeline,
    HostMemory,
    InOrder,
    Int8,
    MeanGradients,
    Pipelined,
    PowerSGD,
    Replicated,
    RingUpdates,
    Sharded,
    SnapshotMemory,
    TargetsFirst,
    VertexCut,
    WholeStep,
)
from lightning_tgnn.strategies.planned import PlannedStrategy
from lightning_tgnn.types import OrderPart, Plan, RankLayout, Schedule, StorePart, UpdatesPart
from lightning_tgnn.types.layout import families_of
from tests.data.example_streams import random_store

CPU = torch.device("cpu")
OF_EVENTS = {"schedule": DataParallel(), "store": Sharded(), "order": Pipelined(), "updates": MeanGradients(1)}
KINDS = {"schedule": Schedule, "store": StorePart, "order": OrderPart, "updates": UpdatesPart}
STRATEGIES = (SvenStrategy, DepCacheStrategy, DepCommStrategy, DistTGLStrategy, CDFGNNStrategy, BLADStrategy)
STRATEGIES += (SnapshotPartitionStrategy, VertexPartitionStrategy)
OF_A_GRAPH = {"schedule": WholeGraph(), "store": VertexCut(), "order": WholeStep()}


def test_the_plan_is_of_the_parts():
    strategy = PlannedStrategy(**OF_EVENTS, prefetch_batches=3)
    plan = strategy.plan(None, None)
    assert [plan.schedule, plan.store, plan.order, plan.updates] == list(OF_EVENTS.values())
    assert plan.layout == strategy.layout
    assert strategy.prefetch_batches == 3
    assert strategy.shares_node_state
    assert strategy.plan(None, None).store is plan.store


def test_weights_change_at_once_unless_something_else_is_said():
    strategy = PlannedStrategy(**OF_A_GRAPH)
    assert strategy.plan(None, None).updates == MeanGradients(0)
    assert strategy.prefetch_batches is None
    assert not strategy.shares_node_state


@pytest.mark.parametrize("name", OF_EVENTS)
@pytest.mark.parametrize(
    ("part", "shown"), [("sven", "'sven'"), (7, "7"), (Sharded, "Sharded"), (object(), "object"), ([], r"\[\]")]
)
def test_what_is_no_part_is_refused(name, part, shown):
    with pytest.raises(InvalidArgumentError, match=f"{name} must be the {name} of a plan, got .*{shown}.*; take "):
        PlannedStrategy(**{**OF_EVENTS, name: part})


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"store": Replicated()}, "order must be one that fits DataParallel, Replicated, MeanGradients"),
        ({"schedule": WholeGraph()}, "schedule must be one that fits Sharded, Pipelined, MeanGradients"),
        ({"schedule": Sharded(), "store": DataParallel()}, "schedule must be the schedule of a plan, got 'Sharded'"),
        ({"order": MeanGradients(), "updates": InOrder()}, "order must be the order of a plan, got 'MeanGradients'"),
    ],
)
def test_parts_that_do_not_fit_are_refused_at_once(parts, message):
    with pytest.raises(InvalidArgumentError, match=message):
        PlannedStrategy(**{**OF_EVENTS, **parts})


def test_an_option_that_there_is_not_is_refused():
    own = "schedule, store, order, updates, groups, hosts, prefetch_batches, state_dict_type"
    requirement = f"one of {own}, or an option of DDPStrategy"
    with pytest.raises(InvalidArgumentError, match=f"option of PlannedStrategy must be {requirement}, got 'staleness'"):
        PlannedStrategy(**OF_EVENTS, staleness=1)


@pytest.mark.parametrize("delay", [-1, 2, True, 0.5])
def test_a_delay_is_refused_by_the_name_that_a_user_has_written(delay):
    with pytest.raises(InvalidArgumentError, match=r"^delay must be "):
        MeanGradients(delay)
    with pytest.raises(InvalidArgumentError, match=r"^staleness must be "):
        SvenStrategy(staleness=delay)


@pytest.mark.parametrize(
    ("strategy", "cure"),
    [(lambda: PlannedStrategy(**OF_EVENTS), "or delay=0"), (lambda: SvenStrategy(staleness=1), "or staleness=0")],
)
def test_a_loss_scale_is_refused_with_the_argument_that_a_user_has_written(strategy, cure):
    trainer = SimpleNamespace(state=SimpleNamespace(fn="fit"), precision="16-mixed")
    run = SimpleNamespace(group_of=lambda family: None, ranks=1, rank=0, device=CPU, writes_own_rows=False)
    updates = strategy().plan(None, trainer).updates.open(run)
    with pytest.raises(InvalidArgumentError, match=cure):
        updates.check(trainer)


@pytest.mark.parametrize("compression", ["bfloat16", "int8", PowerSGD(rank=2)])
def test_a_loss_scale_is_refused_where_compression_keeps_something_back(compression):
    trainer = SimpleNamespace(state=SimpleNamespace(fn="fit"), precision="16-mixed")
    run = SimpleNamespace(group_of=lambda family, way="": None, ranks=1, rank=0, device=CPU, writes_own_rows=False)
    updates = DepCacheStrategy(gradient_compression=compression).plan(None, trainer).updates.open(run)
    if compression == "bfloat16":
        updates.check(trainer)
        return
    with pytest.raises(InvalidArgumentError, match=r"without a loss scale where gradients travel as .*got '16-mixed'"):
        updates.check(trainer)


@pytest.mark.parametrize("compression", ["fp8", 8, "BFloat16", True])
def test_a_compression_that_there_is_not_is_refused(compression):
    with pytest.raises(InvalidArgumentError, match=r"gradient_compression must be bfloat16, int8, powersgd, one of"):
        SvenStrategy(gradient_compression=compression)


@pytest.mark.parametrize(("settings", "message"), [({"rank": 0}, "rank must be"), ({"warm_up": -1}, "warm_up must be")])
def test_settings_of_a_compression_are_refused_where_they_cannot_work(settings, message):
    with pytest.raises(InvalidArgumentError, match=message):
        PowerSGD(**settings)


def test_every_strategy_of_the_mean_takes_compression_by_one_name():
    for kind in STRATEGIES:
        strategy = kind(gradient_compression="int8")
        assert strategy._mean.compresses_by == Int8(), kind
        assert kind()._mean.compresses_by is None
    assert MeanGradients(0, "powersgd") == MeanGradients(compression=PowerSGD())


def test_batches_ahead_of_a_loader_that_makes_none_are_refused():
    strategy = PlannedStrategy(**OF_EVENTS, prefetch_batches=2)
    strategy._state = SimpleNamespace(loader=lambda loader: loader)
    with pytest.raises(InvalidArgumentError, match="prefetch_batches must be left out: a DataLoader makes no batches"):
        strategy.process_dataloader(DataLoader([1]))
    data = TemporalDataModule(synthetic={"num_events": 60}, num_workers=0)
    data.setup()
    assert strategy.process_dataloader(data.train_dataloader()).prefetch_batches == 2


@pytest.mark.parametrize("missing", ["schedule", "store", "order"])
def test_a_part_that_is_not_given_is_missed(missing):
    with pytest.raises(TypeError, match=missing):
        PlannedStrategy(**{name: part for name, part in OF_EVENTS.items() if name != missing})


@pytest.mark.parametrize("hosts", [(), 3, ("a", "b"), (0, -1), (True, False), (0.0, 1.0)])
def test_hosts_are_integers_from_0_on(hosts):
    with pytest.raises(InvalidArgumentError, match="hosts must be an integer from 0 on for each rank, got "):
        PlannedStrategy(**OF_EVENTS, hosts=hosts)


def test_hosts_are_numbered_from_0_on_and_as_many_as_ranks(monkeypatch):
    monkeypatch.setattr(PlannedStrategy, "world_size", 3)
    assert PlannedStrategy(**OF_EVENTS, hosts=[5, 5, 2]).layout.hosts == (1, 1, 0)
    with pytest.raises(InvalidArgumentError, match="hosts must be as many as the 3 ranks, got "):
        _ = PlannedStrategy(**OF_EVENTS, hosts=(0, 1)).layout


def test_ranks_that_do_not_fill_pipelines_are_refused_before_they_are_started(monkeypatch):
    monkeypatch.setattr(PlannedStrategy, "world_size", 3)
    strategy = PlannedStrategy(schedule=SnapshotGroups(2), store=SnapshotMemory(), order=GroupPipeline())
    with pytest.raises(InvalidArgumentError, match=r"the 2 processes per device, got 3; .*of SnapshotGroups"):
        strategy.check_launch()
    for length in (0, 2):
        with pytest.raises(InvalidArgumentError, match=f"pipeline_length must be of .* got {length}; return"):
            RankLayout.of(3).with_pipelines(length)


def test_several_groups_are_refused_where_a_graph_is_cut():
    data = FullGraphDataModule("synthetic", synthetic={"num_nodes": 60, "num_edges": 200})
    data.prepare_data()
    data.setup("fit")
    layout = RankLayout.of(2, families=families_of(2, copies=2))
    task, trainer = NodeClassification(), SimpleNamespace(state=SimpleNamespace(fn="validate"))
    run = SimpleNamespace(schedule=WholeGraph(), layout=layout, ranks=2, task=task, trainer=trainer)
    state = VertexCut().open(run)
    state.give(run, {})
    with pytest.raises(InvalidArgumentError, match=r"groups must be 1 under WholeGraph, .* got 2; leave it out, or "):
        state.loader(data.train_dataloader())


class Backwards(DataParallel):
    """The last events first."""

    def turns(self, layout, rank, over):
        turns = super().turns(layout, rank, over)[::-1]
        return [replace(turn, resets=number == 0) for number, turn in enumerate(turns)]


class TwoCopies(DataParallel):
    def turns(self, layout, rank, over):
        return [replace(turn, copy=1) for turn in super().turns(layout, rank, over)]


class OneDraw(DataParallel):
    def turns(self, layout, rank, over):
        return [replace(turn, draw=7) for turn in super().turns(layout, rank, over)]


class HalfOfABatch(DataParallel):
    def turns(self, layout, rank, over):
        turns = super().turns(layout, rank, over)
        return [replace(turn, events=turn.events[: len(turn.events) // 2]) for turn in turns]


class EverySecond(DataParallel):
    def turns(self, layout, rank, over):
        return [replace(turn, events=turn.of[rank :: layout.ranks]) for turn in super().turns(layout, rank, over)]


class LastPartFirst(DataParallel):
    def turns(self, layout, rank, over):
        return super().turns(layout, layout.ranks - 1 - rank, over)


class Altered(DataParallel):
    """Turns of which a function of rank, index and turn makes others."""

    def __init__(self, alter):
        super().__init__()
        object.__setattr__(self, "alter", alter)

    def turns(self, layout, rank, over):
        return [self.alter(rank, index, turn) for index, turn in enumerate(super().turns(layout, rank, over))]


class Anew(RoundRobin):
    """Whole batches, another on each rank; a run that goes on begins anew."""

    def turns(self, layout, rank, over):
        return super().turns(layout, rank, replace(over, first=0))


class UncountedBatches(RoundRobin):
    def batches_per_turn(self, layout):
        return 1


class OneLane(RoundRobin):
    def lanes(self, layout):
        return 1


class WholeBatchesShared(RoundRobin):
    offers = DataParallel.offers


class PartsInTurn(DataParallel):
    offers = RoundRobin.offers


class OneTurnLess(DataParallel):
    def turns(self, layout, rank, over):
        return super().turns(layout, rank, over)[rank:]


class NoTurns(DataParallel):
    def turns(self, layout, rank, over):
        return None


def without_last(at):
    """Return what drops the last event of rank 0 in one turn."""
    return lambda rank, index, turn: replace(turn, events=turn.events[:-1]) if (rank, index) == (0, at) else turn


class Order(Callback):
    def __init__(self):
        self.first, self.resets = [], []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.first.append(batch.shared.first)
        self.resets.append(batch.shared.resets)


def train(strategy, *tasks, **options):
    """Fit one task after the other; all but the last are refused."""
    order = Order()
    data = TemporalDataModule(random_store(60, 9, seed=1), batch_size=10, num_neighbors=2, num_workers=0, **options)
    silent = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "limit_val_batches": 0}
    settings = {"accelerator": "cpu", "devices": 1, "max_epochs": 1, "callbacks": [order], **silent}
    sizes = {"memory_dim": 4, "embedding_dim": 4, "time_dim": 4}
    trainer = pl.Trainer(strategy=strategy, **settings)
    for task in tasks:
        with pytest.raises(InvalidArgumentError, match="delay must be 0 with several optimizers"):
            trainer.fit(task, datamodule=data)
    trainer.fit(LinkPrediction("tgn", **sizes), datamodule=data)
    return order


@pytest.mark.usefixtures("in_own_group")
def test_one_rank_follows_its_schedule_too():
    order = train(PlannedStrategy(**{**OF_EVENTS, "schedule": Backwards(), "order": InOrder()}))
    assert order.first == [40, 30, 20, 10, 0]


@pytest.mark.usefixtures("in_own_group")
@pytest.mark.parametrize(
    ("schedule", "options", "message"),
    [
        (TwoCopies(), {}, "schedule must be turns that read and write the rank.s own copy of node state"),
        (HalfOfABatch(), {}, "schedule must be turns of whole global batches, or of a part .*; set ranks of the turn"),
        (OneDraw(), {"presample": "epoch"}, "schedule must be turns of the sets that it says.*; set presample='off'"),
    ],
)
def test_turns_that_nobody_can_take_are_refused(schedule, options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        train(PlannedStrategy(**{**OF_EVENTS, "schedule": schedule, "order": InOrder()}), **options)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (
            LastPartFirst(),
            r"parts of a batch that do not .* order of the ranks, got .*events=range\(0, 10\), of=range\(0, 20\)",
        ),
        (EverySecond(), r"turns of consecutive events, got .*events=range\(0, 20, 2\)"),
        (OneTurnLess(), r"as many turns on every rank, got \[3, 2\]; give the other ranks turns without events"),
        (
            UncountedBatches(),
            "one whose batches_per_turn says .* play at once, 2, got 1; return 2 from its batches_per",
        ),
        (OneLane(), "one whose lanes says how many global batches .* play at once, 2, got 1; return 2 from its lanes"),
        (WholeBatchesShared(), "turns of one global batch at once, where it offers 'shared batches', got 2; offer"),
        (PartsInTurn(), "turns of whole global batches, another .* offers 'pipeline', got '1 on 2 ranks'; offer"),
        (NoTurns(), "a Sequence of turns for every rank, got None"),
        (
            Altered(without_last(0)),
            r"parts that have all events of .*, got 'range\(0, 20\) without range\(9, 10\)'; give",
        ),
        (Altered(without_last(2)), r"parts that have all events .* 'range\(40, 42\) without range\(40, 41\)'"),
        (Altered(lambda rank, index, turn: replace(turn, resets=False)), "turns that begin an epoch of .* set resets"),
        (
            Altered(lambda rank, index, turn: replace(turn, draw=None)),
            "turns that name the set of negatives .*set draw",
        ),
    ],
)
def test_parts_that_do_not_follow_each_other_on_ranks_are_refused(schedule, message):
    data = TemporalDataModule(random_store(60, 9, seed=1), batch_size=10, num_neighbors=2, num_workers=0)
    data.setup()
    with pytest.raises(InvalidArgumentError, match=f"schedule must be {message}"):
        next(iter(data.train_dataloader().follow(schedule, RankLayout.of(2), 1)))
    destinations = data.train_dataloader().follow(DataParallel("destination"), RankLayout.of(2), 1)
    assert sum(len(batch) for batch in destinations) < len(destinations.events)


def test_a_schedule_that_begins_anew_where_a_run_goes_on_is_refused():
    """On another number of ranks: three batches have been trained, which are no whole turns of two."""
    data = TemporalDataModule(random_store(200, 9, seed=1), batch_size=10, num_neighbors=2, num_workers=0)
    data.setup()
    state = data.train_dataloader().state_dict() | {"batches": 3, "position": 3}
    right, anew = (data.train_dataloader().follow(kind(), RankLayout.of(2), 1) for kind in (RoundRobin, Anew))
    right.load_state_dict(state)
    assert next(iter(right)).shared.first == 40
    anew.load_state_dict(state)
    with pytest.raises(InvalidArgumentError, match=r"turns that resume at event 30 of .* begin at `first` of the pass"):
        next(iter(anew))


def test_the_rate_counts_the_events_of_all_ranks_whoever_has_them():
    def a_quarter(rank, index, turn):
        middle = turn.of.start + len(turn.of) // 4
        events = range(middle, turn.of.stop) if rank else range(turn.of.start, middle)
        return replace(turn, events=events, cut=())

    data = TemporalDataModule(random_store(60, 9, seed=1), batch_size=10, num_neighbors=2, num_workers=0)
    data.setup()
    for rank in range(2):
        counted, task = [], LinkPrediction("tgn")
        task._rate = SimpleNamespace(add=counted.append)
        task._trainer = SimpleNamespace(world_size=2, log_every_n_steps=0)
        for batch in data.train_dataloader().follow(Altered(a_quarter), RankLayout.of(2), rank):
            task.on_train_batch_end(None, batch, 0)
        assert counted == ([20, 20] if rank == 0 else [20, 20, 2])  # the last two events are no four


class Opens(Replicated):
    def open(self, run):
        return SimpleNamespace(give=print)


class UpdatesNothing(MeanGradients):
    def open(self, run, *, may_be_unused=False):
        return None


@pytest.mark.usefixtures("in_own_group")
@pytest.mark.parametrize(
    ("part", "message"),
    [
        (
            {"store": Opens()},
            "store must be a part whose open returns OpenState: Opens.open, got 'SimpleNamespace without",
        ),
        ({"updates": UpdatesNothing()}, "WeightUpdates: UpdatesNothing.open, got 'NoneType without .*check_optimizers"),
    ],
)
def test_a_part_that_opens_something_else_is_refused(part, message):
    with pytest.raises(InvalidArgumentError, match=message):
        train(PlannedStrategy(**{**OF_EVENTS, "order": InOrder(), **part}))


class NoData(DataParallel):
    def __repr__(self):
        return object.__repr__(self)


def test_a_schedule_is_told_by_what_it_says():
    with pytest.raises(InvalidArgumentError, match=r"schedule must be one whose repr says what it is, .* data class"):
        PlannedStrategy(**{**OF_EVENTS, "schedule": NoData()})


@pytest.mark.usefixtures("in_own_group")
def test_a_layout_of_other_groups_is_refused():
    class Apart(PlannedStrategy):
        def plan(self, task, trainer):
            plan = super().plan(task, trainer)
            return replace(plan, layout=RankLayout.of(1))

    with pytest.raises(
        InvalidArgumentError, match="families of the layout must be groups of consecutive ranks that share a copy"
    ):
        train(Apart(**OF_EVENTS))


@pytest.mark.usefixtures("in_own_group")
def test_a_partition_that_is_neither_a_method_nor_a_file_is_refused_on_one_rank_too():
    with pytest.raises(InvalidArgumentError, match="or a file, got 'metiss'; did you mean 'metis'"):
        train(SvenStrategy(partition="metiss"))
    with pytest.raises(InvalidArgumentError, match=r"or a file, got 'none/there\.pt'; make one with"):
        train(SvenStrategy(partition=Path("none/there.pt")))


class TwoOptimizers(LinkPrediction):
    def configure_optimizers(self):
        return [torch.optim.SGD(self.parameters(), lr=0.1), torch.optim.SGD(self.parameters(), lr=0.1)]


@pytest.mark.usefixtures("in_own_group")
def test_what_was_refused_for_its_optimizers_can_be_put_right():
    task = TwoOptimizers("tgn", memory_dim=4, embedding_dim=4, time_dim=4)
    task.automatic_optimization = False
    assert train(PlannedStrategy(**OF_EVENTS), task).first == [0, 10, 20, 30, 40]


@pytest.mark.parametrize("order", [TargetsFirst(), InOrder()], ids=lambda order: type(order).__name__)
@pytest.mark.parametrize("store", [HostMemory(), HostMemory(True)], ids=str)
@pytest.mark.parametrize("ranks", range(1, 6))
def test_a_pipeline_needs_no_process_to_be_proved(order, store, ranks):
    """No rank waits for ever, every batch reads what all before have written, and updates come in their order."""
    outline = Plan(RankLayout.of(ranks), RoundRobin(), store, order, RingUpdates()).outline("a pipeline")
    assert faults(programs(outline, ranks, 9), outline, ranks) == []
    assert outline.staleness == ranks - 1


def test_what_does_not_go_with_ranks_that_take_turns_is_refused():
    pipeline = {"schedule": RoundRobin(), "store": HostMemory(), "order": TargetsFirst(), "updates": RingUpdates()}
    PlannedStrategy(**pipeline)
    with pytest.raises(InvalidArgumentError, match=r"store must be one that fits DataParallel.*offers pipeline"):
        PlannedStrategy(**(OF_EVENTS | {"store": HostMemory(), "order": InOrder()}))
    for part, message in {
        Sharded("range"): "store must be one that fits RoundRobin, .*: none of them offers shared batches",
        InOrder(): None,
        DataParallel(): "store must be one that fits .*: none of them offers pipeline",
        MeanGradients(1): None,
        Pipelined(): "order must be one that fits .*: none of them offers pieces",
    }.items():
        place = next(name for name, kind in KINDS.items() if isinstance(part, kind))
        with pytest.raises(InvalidArgumentError, match=message) if message else nullcontext():
            PlannedStrategy(**(pipeline | {place: part}))


def test_ranks_on_several_machines_share_no_memory():
    layout = RankLayout((0, 0, 1), {"state": ((0, 1, 2),)})
    requirement = "groups must be so many that the ranks of each are on one machine"
    with pytest.raises(InvalidArgumentError, match=f"{requirement}.*got 'ranks of a group on 2 machines'"):
        HostMemory().open(SimpleNamespace(layout=layout, rank=0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pass_on": "auto"}, "pass_on must be True or False, got 'auto'; False is usual"),
        ({"pass_on": True, "targets_first": False}, "pass_on must be left out with targets_first=False, got True; le"),
    ],
)
def test_options_of_a_pipeline_that_cannot_work_are_refused(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        PipeTGLStrategy(**options)


def test_a_plan_is_made_without_starting_a_rank():
    made = SvenStrategy().plan_for(8, hosts=2)
    assert made.layout.hosts == (0,) * 4 + (1,) * 4
    assert made.layout.copies == (tuple(range(8)),)
    assert SnapshotPartitionStrategy().plan_for(8).order.open_groups == 8
    for ranks, hosts in ((3, 2), (0, 1), (2, 0)):
        with pytest.raises(InvalidArgumentError, match="ranks must be as many on each of"):
            SvenStrategy().plan_for(ranks, hosts)
    with pytest.raises(InvalidArgumentError, match="groups must be a divisor of the 3 ranks, got 2"):
        PipeTGLStrategy(groups=2).plan_for(3)
    with pytest.raises(InvalidArgumentError, match="minibatch must be a number where nothing is trained, got 'auto'"):
        DistTGLStrategy(minibatch="auto").plan_for(2)
