"""Runs on snapshots that are resumed in the middle of an epoch, on as many ranks and on fewer."""

import itertools
from contextlib import nullcontext
from unittest import mock

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from lightning_tgnn import BLADStrategy, PlannedStrategy, SnapshotPartitionStrategy, VertexPartitionStrategy
from lightning_tgnn.algorithms.partitions.simple import metis_partition
from lightning_tgnn.algorithms.schedules import SharedGroups, SnapshotGroups
from lightning_tgnn.checks import CheckpointError
from lightning_tgnn.strategies.parts import (
    GroupPipeline,
    SnapshotMemory,
    VertexShares,
    snapshot_memory,
    vertex_shares,
)
from tests.multiprocess import snapshots
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.training import as_torchrun, fit

SLOW, ALONE = np.array([[0.5, 1.0], [1.0, 0.5]]), np.ones((2, 2))
GROUPS = 4  # of an update, over all ranks
EPOCHS, TURNS = 4, 2
STRATEGIES = {
    "blad": lambda: BLADStrategy(processes_per_device=2),
    "blad, even": lambda: BLADStrategy(processes_per_device=2, balance="even", reorder=False),
    "blad, one process": lambda: BLADStrategy(processes_per_device=1),
    "snapshot partition": SnapshotPartitionStrategy,
    "vertex partition": VertexPartitionStrategy,
}
STEPS = {"blad, even": 1}  # in the first epoch, the others in the second, when loads are known
MODELS = {"snapshot partition": "evolvegcn_h", "vertex partition": "wd_gcn"}


def devices(strategy, ranks):
    return {"blad, one process": ranks, "blad": ranks // 2, "blad, even": ranks // 2}.get(strategy, 1)


def prepare(name, ranks, groups=GROUPS, **options):
    size = groups // devices(name, ranks)
    options |= {"task_class": snapshots.AdamSnapshots, "hidden_dim": 6}
    return snapshots.build(MODELS.get(name, "tgcn"), size, **options)


def assert_same(ours, theirs, name, step=0):
    assert torch.equal(ours["losses"], theirs["losses"][step:]), (name, ours["losses"], theirs["losses"])
    assert all(torch.equal(ours["weights"][key], value) for key, value in theirs["weights"].items()), name
    assert ours["val"] == theirs["val"], name


def on_rank(rank, ranks, folder):
    as_torchrun(rank, ranks)
    calls = itertools.count()
    # METIS may give other parts at each call.
    others = lambda *given: (metis_partition(*given) + next(calls)) % given[-1]  # noqa: E731
    # As where equal operators share a device; on CPUs they hardly slow each other down.
    slow = mock.patch.object(snapshot_memory, "rates_of_processes", return_value=SLOW)
    with mock.patch.object(vertex_shares, "metis_partition", others), slow:
        return resumed_runs(ranks, folder)


def resumed_runs(ranks, folder):
    found = {}
    for name, strategy in STRATEGIES.items():
        step = STEPS.get(name, 3)
        keep = ModelCheckpoint(f"{folder}/{name}", every_n_train_steps=step, save_top_k=-1, filename="{step}")
        once = fit(*prepare(name, ranks), strategy(), ranks, callbacks=[keep], epochs=EPOCHS, enable_checkpointing=True)
        assert len(once["losses"]) == EPOCHS * TURNS
        path = f"{folder}/{name}/step={step}.ckpt"
        assert_same(fit(*prepare(name, ranks), strategy(), ranks, epochs=EPOCHS, ckpt_path=path), once, name, step)
        if name == "blad, even":  # with nothing measured a run repeats itself
            assert_same(fit(*prepare(name, ranks), strategy(), ranks, epochs=EPOCHS), once, name)
        if name == "vertex partition":  # a checkpoint after a run has the parts, though none was saved within it
            over = fit(*prepare(name, ranks), strategy(), ranks, epochs=1)["trainer"]
            assert "partition" in over.strategy.strategy_state()
        found[name] = once["losses"], once["weights"]
    saved = torch.load(f"{folder}/blad/step=3.ckpt", weights_only=True)["lightning_tgnn.strategy"]
    assert {"graph 1", "nn 2", "rnn 1", "last backward", "head"} <= saved["loads"]["loads"].keys()
    assert saved["rates"][0] == [[0.5, 1.0], [1.0, 0.5]]
    assert all(0 < share < 1 for share in saved["kept_sizes"][:-1])  # of this machine's memory: splits keep within it
    return found


def fewer(rank, ranks, folder, found):
    """Take checkpoints of four ranks over: updates have the same groups, so the losses are those of the run itself."""
    as_torchrun(rank, ranks)
    for name in STRATEGIES if ranks > 1 else ("blad, one process",):
        step = STEPS.get(name, 3)
        path = f"{folder}/{name}/step={step}.ckpt"
        losses, weights = found[name]
        resumed = fit(*prepare(name, ranks), STRATEGIES[name](), ranks, epochs=EPOCHS, ckpt_path=path)
        ours = torch.stack([resumed["losses"]]) / ranks
        if ranks > 1:
            torch.distributed.all_reduce(ours)
        assert torch.allclose(ours[0], losses[step:], rtol=1e-3, atol=1e-4), (name, ours[0], losses[step:])
        for key, value in weights.items():
            torch.testing.assert_close(resumed["weights"][key], value, rtol=1e-2, atol=1e-3)
        with pytest.raises(CheckpointError, match="batch_size must be such that an update has 4 groups, to resume in"):
            fit(*prepare(name, ranks, 6), STRATEGIES[name](), ranks, epochs=EPOCHS, ckpt_path=path)
    return True


@pytest.mark.timeout(280)
def test_runs_resume_and_move_to_fewer_ranks(tmp_path):
    outcomes = run_ranks(on_rank, 4, str(tmp_path), timeout=200)
    found = {
        name: (torch.stack([outcome[name][0] for outcome in outcomes]).mean(0), outcomes[0][name][1])
        for name in STRATEGIES
    }
    for ranks in (2, 1):
        assert all(run_ranks(fewer, ranks, str(tmp_path), found, timeout=120))


OTHERS = [0.3, 0.0, 0.3, 0.0, 0.0, float("inf")]
"""Limits of another machine."""


def on_other_machine(rank, ranks, folder):
    """Return the limits that a run resumes with: of a checkpoint of this machine, of another one, and of nobody's."""
    as_torchrun(rank, ranks)
    keep = ModelCheckpoint(folder, every_n_train_steps=3, filename="once")
    fit(*prepare("blad", ranks), STRATEGIES["blad"](), ranks, callbacks=[keep], epochs=2, enable_checkpointing=True)
    found = []
    for where in ("as it was", "other memory", "more ranks", "other cut", "nobody's"):
        path = f"{folder}/{rank} {where}.ckpt"
        checkpoint = torch.load(f"{folder}/once.ckpt", weights_only=True)
        saved = checkpoint["lightning_tgnn.strategy"]
        saved["kept_sizes"] = OTHERS  # two snapshots of a group at most, on the first process
        memory, ranks, *pipeline, partition = saved["machines"]
        others = {
            "other memory": [1e9, ranks, *pipeline, partition],
            "more ranks": [memory, ranks + 2, *pipeline, partition],
            "other cut": [memory, ranks, *pipeline, partition + 1],
        }
        saved["machines"] = others.get(where, saved["machines"])
        if where == "nobody's":
            del saved["machines"]
        torch.save(checkpoint, path)
        strategy = STRATEGIES["blad"]()
        fit(*prepare("blad", ranks), strategy, ranks, epochs=2, ckpt_path=path)
        found.append(list(strategy.snapshot_state.state_dict()["kept_sizes"]))
    return found


@pytest.mark.timeout(120)
def test_limits_of_another_machine_are_not_taken_over(tmp_path):
    ours, theirs = run_ranks(on_other_machine, 2, str(tmp_path), timeout=100)
    assert ours == theirs  # all ranks choose the same splits
    kept, *anew = ours
    assert kept == OTHERS
    assert all(0 < of_any < 0.01 and vertex > 0 for of_any, vertex, *_ in anew)


def plans(ranks):
    """Return plans of parts that a user names: through all ranks, to each a group, and to each some vertices."""
    chain, dealt = SnapshotGroups(None, "even"), SnapshotGroups(1)
    for schedule, order in ((chain, GroupPipeline()), (dealt, GroupPipeline()), (SharedGroups(), VertexShares())):
        yield PlannedStrategy(schedule=schedule, store=SnapshotMemory(), order=order), ranks if schedule == dealt else 1


def several(rank, ranks):
    """Train the head alone, in half precision, and by plans; what no weight has part in is handed over all the same."""
    as_torchrun(rank, ranks)
    losses = []
    for options in ({"vertices": "all"}, {"vertices": "seen"}):
        data, task = snapshots.build("wd_gcn", 4, **options)
        task.trainer = None
        data.prepare_data()
        task.build(data.info)
        task.model.requires_grad_(False)
        before = [value.clone() for value in task.model.parameters()]
        outcome = fit(data, task, BLADStrategy(processes_per_device=ranks), ranks, epochs=2)
        assert all(torch.equal(*pair) for pair in zip(before, task.model.parameters(), strict=True))
        losses.append(outcome["losses"])
        data, task = snapshots.build("wd_gcn", 4, **options)
        strategy = BLADStrategy(processes_per_device=ranks, balance="even", reorder=False)
        losses.append(fit(data, task, strategy, ranks, epochs=2, precision="bf16-mixed")["losses"])
    for strategy, devices in plans(ranks):
        losses.append(fit(*snapshots.build("wd_gcn", 4 // devices), strategy, ranks, epochs=2)["losses"])
    return torch.stack(losses)


def test_two_processes_train_a_head_alone_in_half_precision_and_by_plans_as_one_does():
    (alone,), together = run_ranks(several, 1), torch.stack(run_ranks(several, 2)).mean(0)
    torch.testing.assert_close(together, alone, rtol=2e-2, atol=1e-3)


def ordered_runs(rank, ranks):
    """Train in the orders that contention asks for, in the usual ones and in the orders of Algorithm 1."""
    as_torchrun(rank, ranks)
    found = []
    for rates, split in ((SLOW, "search"), (ALONE, "search"), (None, "paper")):
        data, task = snapshots.build("tgcn", 4, hidden_dim=6, reuse=False, vertices="all")
        turned = []

        class Noting(Callback):
            def on_train_batch_end(self, trainer, pl_module, *others, turned=turned):
                usual, widths = pl_module.operators.inner.weights_first, pl_module.operators.widths
                orders = pl_module.operators._orders.values()
                chosen = (one for order in orders for one in order.items())
                turned.append(sum(first != usual(layer, *widths[layer]) for layer, first in chosen))

        patched = mock.patch.object(snapshot_memory, "rates_of_processes", return_value=rates)
        with nullcontext() if rates is None else patched:
            strategy = BLADStrategy(processes_per_device=2, split=split)
            outcome = fit(data, task, strategy, ranks, epochs=EPOCHS, callbacks=[Noting()])
        assert (np.asarray(strategy.snapshot_state.rates) <= 1).all()
        assert (np.asarray(strategy.snapshot_state.rates) > 0).all()
        found.append((outcome["losses"], outcome["weights"], turned))
    return found


def rates_without_orders(rank, ranks):
    """Return what is known of contention where convolutions do not ask, and where a rank has had no group."""
    from torch_geometric.nn import GATConv

    as_torchrun(rank, ranks)
    found = []
    for model, options in (("wd_gcn", {"convolution": GATConv}), ("tgcn", {"group_size": 1, "reuse": False})):
        data, task = snapshots.build(model, 4, hidden_dim=6, vertices="all", **options)
        strategy = BLADStrategy(processes_per_device=2)
        fit(data, task, strategy, ranks, epochs=2)
        found.append(strategy.snapshot_state.rates)
    return found


@pytest.mark.timeout(120)
def test_contention_is_measured_only_where_layers_have_an_order_to_choose():
    first, second = run_ranks(rates_without_orders, 2, timeout=100)
    assert first[0] is second[0] is None
    assert first[1] == second[1]
    assert np.shape(first[1]) == (2, 2)


@pytest.mark.timeout(120)
def test_processes_run_layers_in_other_orders_and_train_the_same():
    outcomes = run_ranks(ordered_runs, 2, timeout=100)
    slow, alone, printed = zip(*outcomes, strict=True)
    for found in (slow, printed):
        assert torch.allclose(sum(one[0] for one in found), sum(one[0] for one in alone), rtol=1e-4)
        for name, value in alone[0][1].items():
            torch.testing.assert_close(found[0][1][name], value, rtol=1e-3, atol=1e-4)
        assert sum(one[2][-1] for one in found) > 0
        assert all(one[2][0] == 0 for one in found)  # in the first turn nothing has been measured yet
