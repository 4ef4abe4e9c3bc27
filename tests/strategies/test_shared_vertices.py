"""Groups of snapshots whose vertices are cut: which ones are, and what is refused."""

from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch

from lightning_tgnn import SnapshotDataModule, SnapshotLinkPrediction, VertexPartitionStrategy
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.strategies.parts import VertexShares
from lightning_tgnn.strategies.parts.vertex_shares import KeptPartition
from tests.multiprocess.training import Record

pytestmark = pytest.mark.usefixtures("in_own_group")

DENSE = {"num_nodes": 30, "num_edges": 3000, "num_snapshots": 6}  # so that any two vertices reach all


def fit(strategy="auto", **options):
    """Train on dense snapshots; return the losses."""
    data = SnapshotDataModule("synthetic_snapshots", synthetic=DENSE, group_size=2, seed=3, **options)
    torch.manual_seed(7)
    task, record = SnapshotLinkPrediction("tgcn", hidden_dim=5, lr=0.02), Record()
    trainer(strategy, callbacks=[record]).fit(task, datamodule=data)
    return record.losses


def trainer(strategy, **options):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    settings = {"accelerator": "cpu", "devices": 1, "max_epochs": 1, "enable_model_summary": False, **quiet}
    return pl.Trainer(strategy=strategy, **settings, **options)


BATCHES = {"vertices_per_batch": 27, "fanouts": 12}


def test_batches_that_reach_all_vertices_are_batches():
    data = SnapshotDataModule("synthetic_snapshots", synthetic=DENSE, group_size=2, seed=3, **BATCHES)
    data.prepare_data()
    (group,) = data.train_dataloader().largest_group().groups
    assert len(group.nodes) == DENSE["num_nodes"]
    with pytest.raises(InvalidArgumentError, match=r"vertices_per_batch must be left out where the vertices of a snap"):
        fit(VertexPartitionStrategy(partition="interval"), **BATCHES)


def test_batches_are_evaluated_whole_where_vertices_are_cut():
    metrics = []
    for strategy in ("auto", VertexPartitionStrategy(partition="interval")):
        data = SnapshotDataModule("synthetic_snapshots", synthetic=DENSE, group_size=2, seed=3, **BATCHES)
        torch.manual_seed(7)
        task = SnapshotLinkPrediction("tgcn", hidden_dim=5)
        metrics.append(trainer(strategy).test(task, datamodule=data, verbose=False))
    assert metrics[0] == metrics[1]


def test_parts_that_metis_has_found_are_kept_for_as_many_ranks():
    def task(partition="metis", ranks=2):
        run = SimpleNamespace(exchange=None, rank=0, ranks=ranks, device=torch.device("cpu"))
        shared = VertexShares(partition).open(run, None)
        return SimpleNamespace(group_order=shared), shared

    kept, parts = KeptPartition(), torch.tensor([1, 0, 1])
    (first, shared) = task()
    kept.note(first, 2)
    assert kept.state_dict() == {}  # nobody has asked yet
    shared.owner = parts
    kept.note(first, 2)
    kept.note(None, 2)  # when the run is over
    saved = kept.state_dict()
    assert (saved["partition"][0], saved["partition"][1].dtype) == (2, torch.uint8)
    later = KeptPartition()
    later.load_state_dict(saved)
    for partition, ranks, is_given in (("metis", 2, True), ("metis", 3, False), ("interval", 2, False)):
        other, shared = task(partition, ranks)
        later.give(other, ranks)
        assert ("owner" in vars(shared)) is is_given
        assert not is_given or torch.equal(shared.owner, parts)
