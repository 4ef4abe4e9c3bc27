"""What BLAD's strategies refuse, and which devices their processes have; no process is started."""

import re
from types import SimpleNamespace

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy

from lightning_tgnn import (
    BLADStrategy,
    SnapshotDataModule,
    SnapshotLinkPrediction,
    SnapshotPartitionStrategy,
    VertexPartitionStrategy,
)
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.strategies.parts import GroupPipeline, group_memory
from lightning_tgnn.types.layout import PIPELINES
from tests.multiprocess import snapshots
from tests.multiprocess.training import fit

pytestmark = pytest.mark.usefixtures("in_own_group")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"processes_per_device": 3},
            r"processes_per_device must be 1, 2 or 'auto', got 3; 2 is a pipeline; Sn",
        ),
        ({"processes_per_device": 0}, r"processes_per_device must be"),
        ({"balance": "fair"}, r"balance must be one of 'even', 'load', got 'fair'"),
        ({"open_groups": 0}, r"open_groups must be"),
        ({"split": "even"}, r"split must be one of 'paper', 'search', got 'even'"),
        ({"streams": 3}, r"streams must be 1 or 2, got 3"),
        ({"streams": 2, "processes_per_device": 2}, r"streams must be 1 with processes_per_device=2, got 2"),
        ({"groups": 2}, r"option of BLADStrategy must be one of .*processes_per_device.*got 'groups'"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        BLADStrategy(**options)


def test_odd_numbers_of_processes_are_refused_before_they_are_started():
    with pytest.raises(
        InvalidArgumentError,
        match=r"num_nodes must be a multiple of the 2 processes per device, got 3; set devices=4, or 1",
    ):
        pl.Trainer(accelerator="cpu", devices=3, strategy=BLADStrategy(processes_per_device=2), logger=False)
    pl.Trainer(accelerator="cpu", devices=3, strategy=BLADStrategy(processes_per_device=1), logger=False)


def test_the_processes_of_a_gpu_have_it_in_common():
    gpus = [torch.device("cuda", number) for number in (0, 1)]
    strategy = BLADStrategy(processes_per_device=2, parallel_devices=gpus)
    assert strategy.parallel_devices == [gpus[0], gpus[0], gpus[1], gpus[1]]
    assert strategy.num_processes == 4
    assert strategy._get_process_group_backend() == "gloo"
    strategy.parallel_devices = gpus[:1]
    assert strategy._schedule.processes == 2
    for alone in (BLADStrategy(processes_per_device=1, parallel_devices=gpus), BLADStrategy(parallel_devices=gpus)):
        assert alone.parallel_devices == gpus
        assert alone._get_process_group_backend() == "nccl"
    processes = [torch.device("cpu")] * 2
    assert BLADStrategy(parallel_devices=processes).parallel_devices == processes


@pytest.mark.parametrize(
    ("strategy", "pipelines"),
    [
        (BLADStrategy(processes_per_device=2), ((0, 1), (2, 3))),
        (BLADStrategy(), ((0,), (1,), (2,), (3,))),
        (BLADStrategy(processes_per_device=1), ((0,), (1,), (2,), (3,))),
        (SnapshotPartitionStrategy(), ((0, 1, 2, 3),)),
        (VertexPartitionStrategy(), ((0,), (1,), (2,), (3,))),
    ],
)
def test_ranks_of_a_device_are_a_pipeline(strategy, pipelines):
    pl.Trainer(accelerator="cpu", devices=4, strategy=strategy, logger=False)
    assert strategy.layout.families[PIPELINES] == pipelines


def test_open_groups_are_as_many_as_ranks_where_nobody_says():
    strategy = SnapshotPartitionStrategy()
    pl.Trainer(accelerator="cpu", devices=4, strategy=strategy, logger=False)
    assert strategy.plan(None, None).order == GroupPipeline(4)


def fitted(free, monkeypatch, data_options=None):
    """Train on one rank with so many bytes free."""
    monkeypatch.setattr(group_memory, "available_memory", lambda: free)
    data, task = snapshots.build("tgcn", 2, group_size=6, hidden_dim=64, **data_options or {})
    settings = {"accelerator": "cpu", "devices": 1, "max_epochs": 1, "logger": False, "enable_checkpointing": False}
    strategy = BLADStrategy(processes_per_device=1)
    trainer = pl.Trainer(strategy=strategy, **settings, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(task, datamodule=data)
    return trainer.global_step


def test_groups_that_do_not_fit_are_refused_with_the_size_that_would(monkeypatch):
    message = r"group_size must be so small.* got '6, of which a rank keeps .* free'; set group_size=(\d), or"
    with pytest.raises(InvalidArgumentError, match=message) as refused:
        fitted(500_000, monkeypatch)
    assert 1 <= int(re.search(r"group_size=(\d)", str(refused.value))[1]) < 6
    with pytest.raises(InvalidArgumentError, match="give vertices_per_batch, or strategy='vertex_partition'"):
        fitted(10_000, monkeypatch)
    assert fitted(None, monkeypatch) == fitted(10**9, monkeypatch) == 4


def test_groups_of_which_a_batch_does_not_fit_are_refused_too(monkeypatch):
    options = {"data": {"vertices_per_batch": 12, "fanouts": 2}}
    with pytest.raises(InvalidArgumentError, match=r"group_size must be so .*; lower vertices_per_batch, or more dev"):
        fitted(10_000, monkeypatch, options)
    assert fitted(None, monkeypatch, options) == fitted(10**9, monkeypatch, options)


def kept(task, group, *, last):
    """Return the bytes that a step on the last snapshot of a group keeps, in the group's own size."""
    snapshot, found = group.snapshots[-1], {}
    read = [snapshot.features, snapshot.vertices, group.targets.rows, *task.parameters()]
    read += [tensor for layer in snapshot.layers for edges in layer for tensor in vars(edges).values()]
    known = {tensor.untyped_storage().data_ptr() for tensor in read}

    def count(tensor):
        found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        carried = task.start(group)
        _, embeddings = task.step(snapshot, carried, last=last)
        if last:
            task.loss(embeddings, group)
    return sum(size for place, size in found.items() if place not in known)


@pytest.mark.parametrize("model", ["tgcn", "wd_gcn", "evolvegcn_h", "own"])
def test_what_a_snapshot_keeps_is_told_without_a_tensor_of_its_size(model):
    from torch_geometric.nn import GATConv

    own = {"convolution": lambda before, after: GATConv(before, after)} if model == "own" else {}
    sizes = {"num_nodes": 3000, "num_edges": 20000, "num_snapshots": 5, "feature_dim": 16}
    data = SnapshotDataModule("synthetic_snapshots", synthetic=sizes, group_size=2, vertices="all")
    task = SnapshotLinkPrediction("wd_gcn" if own else model, hidden_dim=24, **own)
    data.prepare_data()
    task.build(data.info)
    probe = data.train_dataloader().largest_group()
    (group,) = probe.groups
    seen, step = [], task.step

    def watched(snapshot, carried, *, last):
        seen.append(max(len(snapshot.vertices), *(len(tensor) for tensor in carried)))
        return step(snapshot, carried, last=last)

    task.step = watched
    random = torch.get_rng_state()
    told = group_memory.kept_bytes(task, group, in_batches=False)
    assert torch.equal(torch.get_rng_state(), random)
    assert max(seen) <= 512
    task.step = step
    vertices, targets = (np.array([len(of)]) for of in (group.snapshots[-1].vertices, group.targets))
    # GAT replaces the loops that a snapshot has, and adds those that the made-up one lacks.
    assert told.of(vertices) == pytest.approx(kept(task, group, last=False), rel=0.1)
    assert told.of(vertices, targets) == pytest.approx(kept(task, group, last=True), rel=0.1)
    assert told.of(vertices, targets) > told.of(vertices) + 24 * 4 * targets  # the head reads three rows for a link


class Particular(snapshots.PlainSnapshots):
    """Logs in its steps and its loss, looks its vertices up, and has random numbers at the start of a group."""

    def start(self, group):
        torch.rand(1)
        return super().start(group)

    def step(self, snapshot, carried, *, last):
        self.log("vertices", float(len(snapshot.vertices)))
        return super().step(snapshot, carried, last=last)

    def loss(self, embeddings, group):
        self.log("weights of vertices", torch.ones(snapshots.NODES)[group.nodes].sum())
        return super().loss(embeddings, group)


def test_a_task_of_ones_own_is_asked_for_made_up_groups(monkeypatch):
    monkeypatch.setattr(group_memory, "available_memory", lambda: 10**9)
    data, task = snapshots.build("tgcn", 2, task_class=Particular)
    trainer(max_epochs=1, strategy=BLADStrategy(processes_per_device=1)).fit(task, datamodule=data)
    assert not {"log", "log_dict"} & vars(task).keys()
    random, (group,) = torch.get_rng_state(), data.train_dataloader().largest_group().groups
    vars(task)["log"] = own = print
    group_memory.kept_bytes(task, group, in_batches=False)
    assert torch.equal(torch.get_rng_state(), random)
    assert vars(task)["log"] is own


@pytest.mark.parametrize(("devices", "sharing"), [((0, 0, 1), 2), ((0, 1, 2, 3), 1), ((), 1)])
def test_the_memory_of_a_gpu_is_that_of_the_ranks_that_have_it(monkeypatch, devices, sharing):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (600, 1200))
    strategy = DDPStrategy(parallel_devices=[torch.device("cuda", number) for number in devices])
    run = SimpleNamespace(device=torch.device("cuda", 0), trainer=SimpleNamespace(strategy=strategy))
    assert group_memory.memory_of_rank(run) == 600 / sharing
    assert group_memory.capacity_of_rank(run) == 1200 / sharing


def test_batches_that_have_all_vertices_are_batches(monkeypatch):
    seen = []
    monkeypatch.setattr(group_memory.KeptGroups, "check", lambda groups, run: seen.append(groups.in_batches))
    for options in ({"vertices_per_batch": 10_000, "fanouts": 3}, {}):
        data, task = snapshots.build("tgcn", 2, data=options)
        strategy = BLADStrategy(processes_per_device=1)
        trainer(max_epochs=1, strategy=strategy).fit(task, datamodule=data)
    assert seen == [True, False]


def test_what_is_never_trained_may_be_large():
    sizes = np.array([1.0, 1.0, 1.0, 1.0, 50.0])
    of_all = group_memory.KeptGroups(range(4), sizes, 2 * sizes, 2, 1, 2, in_batches=False)
    assert of_all.need(2).tolist() == [2, 3, 3, 3]  # the last snapshot, and one before it
    of_pair = group_memory.KeptGroups(range(5), sizes, 2 * sizes, 2, 2, 2, in_batches=False)
    assert of_pair.need(2).tolist() == [2, 2, 2, 2, 100]  # each process has one, the first those of two groups


@pytest.mark.parametrize("num_hops", [1, 2])
def test_a_batch_of_vertices_keeps_what_its_neighbourhood_does(num_hops):
    sizes = {"num_nodes": 3000, "num_edges": 20000, "num_snapshots": 5, "feature_dim": 16}
    batches = {"vertices_per_batch": 600, "fanouts": 4, "num_hops": num_hops}
    data = SnapshotDataModule("synthetic_snapshots", synthetic=sizes, group_size=2, vertices="all", **batches)
    task = SnapshotLinkPrediction("wd_gcn", hidden_dim=24, convolution="chebyshev" if num_hops > 1 else "gcn")
    data.prepare_data()
    task.build(data.info)
    (group,) = data.train_dataloader().largest_group().groups
    told = group_memory.kept_bytes(task, group, in_batches=True)
    of_batch = np.array([len(group.snapshots[-1].vertices)])
    assert told.most_vertices == max(len(snapshot.vertices) for snapshot in group.snapshots) < sizes["num_nodes"]
    whole, targets = np.array([sizes["num_nodes"]]), np.array([len(group.targets)])
    assert told.of(whole) == told.of(np.array([told.most_vertices]))
    assert told.of(of_batch) == pytest.approx(kept(task, group, last=False), rel=0.15)
    assert told.of(of_batch, targets) == pytest.approx(kept(task, group, last=True), rel=0.15)


def trainer(**options):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return pl.Trainer(accelerator="cpu", devices=1, enable_model_summary=False, **quiet, **options)


def test_snapshots_that_an_evaluation_was_first_to_ask_for_are_trained():
    for model in ("wd_gcn", "evolvegcn_o"):
        data, task = snapshots.build(model, 2)
        runner = trainer(max_epochs=1)
        runner.test(task, datamodule=data, verbose=False)
        runner.fit(task, datamodule=data)
        assert runner.global_step == 4


def test_a_loss_scale_is_refused():
    data, task = snapshots.build("tgcn", 2)
    strategy = BLADStrategy(processes_per_device=1)
    runner = trainer(max_epochs=1, strategy=strategy)
    runner.strategy.precision_plugin.precision = "16-mixed"
    with pytest.raises(InvalidArgumentError, match=r"precision=.*without a loss scale.*got '16-mixed'; set precision"):
        runner.fit(task, datamodule=data)


def test_a_second_fit_knows_loads_of_its_own_model_only():
    data, task = snapshots.build("tgcn", 2)
    strategy = BLADStrategy(processes_per_device=1)
    runner = trainer(max_epochs=3, strategy=strategy)
    runner.fit(task, datamodule=data)
    known = strategy.snapshot_state.loads
    assert known is not None
    runner.fit_loop.max_epochs = 4
    runner.fit(task, datamodule=data)
    assert strategy.snapshot_state.loads is known
    runner.fit_loop.max_epochs = 5
    other, model = snapshots.build("wd_gcn", 2)
    runner.fit(model, datamodule=other)
    assert strategy.snapshot_state.loads is not known


@pytest.mark.parametrize("vertices", [8, 10_000])
def test_vertices_that_are_cut_are_trained_all_at_once(vertices):
    data, task = snapshots.build("tgcn", 2, data={"vertices_per_batch": vertices, "fanouts": 3})
    strategy = VertexPartitionStrategy(partition="interval")
    with pytest.raises(InvalidArgumentError, match="vertices_per_batch must be left out where the vertices of a snap"):
        trainer(max_epochs=1, strategy=strategy).fit(task, datamodule=data)


def test_a_convolution_that_reads_edges_is_not_cut_by_vertices():
    from torch_geometric.nn import GCNConv

    data, task = snapshots.build("wd_gcn", 2, convolution=lambda before, after: GCNConv(before, after))
    with pytest.raises(InvalidArgumentError, match=r"convolution must be one of the built-in ones.*got 'OwnConvolu"):
        trainer(max_epochs=1, strategy=VertexPartitionStrategy(partition="interval")).fit(task, datamodule=data)


def test_groups_that_take_turns_on_two_streams_run_one_after_the_other_on_a_cpu():
    found = []
    for streams in (1, 2):
        data, task = snapshots.build("tgcn", 4, hidden_dim=6)
        found.append(fit(data, task, BLADStrategy(streams=streams), 1, epochs=3))
    one, two = found
    assert torch.equal(one["losses"], two["losses"])
    assert all(torch.equal(one["weights"][name], value) for name, value in two["weights"].items())
