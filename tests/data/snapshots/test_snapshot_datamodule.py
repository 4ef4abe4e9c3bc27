"""What Lightning, checkpoints and commands ask of the DataModule."""

import json
import pickle
from copy import copy, deepcopy

import lightning.pytorch as pl
import pytest
import torch

from lightning_tgnn import SnapshotDataModule
from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.data.snapshots import whole_snapshots
from lightning_tgnn.files import memory
from lightning_tgnn.types import KnownData
from tests.data.example_streams import random_store

QUIET = {"num_workers": 0, "prefetch_batches": 0, "group_size": 3, "val_ratio": 0.2, "test_ratio": 0.2}


def data_of(source=None, **options):
    return SnapshotDataModule(source or random_store(150, edge_dim=1), **{"num_snapshots": 10, **QUIET, **options})


def test_a_recipe_makes_the_same_snapshots_again(tmp_path):
    folder = random_store(150, edge_dim=1).save(tmp_path / "store")
    data = data_of(
        folder, target="edges", labels="sign", weights=0, lifetime=30.0, vertices_per_batch=8, fanouts=[3, 2]
    )
    recipe = json.loads(json.dumps(data.recipe))
    again = SnapshotDataModule(**recipe)
    assert again.recipe == data.recipe
    assert again.info == data.info
    assert again.fixed_settings(training=True) == data.fixed_settings(training=True)
    one, other = (next(iter(made.train_dataloader())).groups[0] for made in (data, again))
    assert torch.equal(one.nodes, other.nodes)


@pytest.mark.parametrize("options", [{}, {"vertices_per_batch": 8, "fanouts": [3, 2]}])
def test_what_has_been_read_can_be_copied_and_sent(options):
    data = data_of(**options)
    wanted = [batch.groups for batch in data.train_dataloader()]
    sent = pickle.dumps(data)
    for again in (deepcopy(data), pickle.loads(sent)):
        for batch, groups in zip(again.train_dataloader(), wanted, strict=True):
            assert all(torch.equal(one.nodes, other.nodes) for one, other in zip(batch.groups, groups, strict=True))
            for one, other in zip(batch.groups[0].snapshots, groups[0].snapshots, strict=True):
                assert torch.equal(one.layers[0][0].columns, other.layers[0][0].columns)
    unread = data_of(**options)
    unread.setup()
    assert len(sent) < 1.1 * len(pickle.dumps(unread))  # without the snapshots that it has made


def test_settings_that_decide_what_is_trained_are_fixed():
    data = data_of()
    assert isinstance(data, KnownData)
    trained, shown = (data.fixed_settings(training=training) for training in (True, False))
    assert set(trained) - set(shown) == {
        "negatives", "negative_sampler", "vertices_per_batch", "fanouts", "num_hops", "shuffle", "seed",
    }  # fmt: skip
    assert json.loads(json.dumps(trained)) == trained
    assert shown["num_snapshots"] == 10
    assert data_of(group_size=4).fixed_settings(training=False) != shown


def test_hyperparameters_are_plain_values():
    data = data_of(features=torch.zeros(15, 3))
    assert data.hparams["data"]["num_snapshots"] == 10
    assert data.hparams["data"]["features"] == "Tensor"
    assert "group_size=3: not read yet" in repr(data)
    data.setup()
    assert "SnapshotSequence(10 snapshots of 15 vertices, " in repr(data)


def test_snapshots_that_memory_does_not_hold_are_refused_unless_they_are_in_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 1000)
    with pytest.raises(
        DataError, match=r"source must be small enough for memory, got '10 snapshots .*; give folder=\.\.\."
    ):
        data_of().setup()
    data_of(folder=tmp_path / "made").setup()


@pytest.mark.parametrize("present", ["seen", "active", "all"])
def test_the_memory_that_snapshots_take_is_told_about_right(present, monkeypatch):
    data, told = data_of(vertices=present, features="degree"), []
    monkeypatch.setattr(whole_snapshots, "check_fits", lambda *args, **_: told.append(args[2]))
    data.setup()
    taken = 0
    for snapshot in data.snapshots:
        (matrix,) = snapshot.layers[0]
        tensors = [getattr(matrix, name) for name in vars(matrix)] + [snapshot.vertices, snapshot.features]
        taken += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert told[0] == pytest.approx(taken, rel=0.35)


def test_a_folder_that_nobody_has_prepared_is_refused(tmp_path):
    data = copy(data_of(folder=tmp_path / "none"))
    data._make_ready = lambda: None  # as on a machine whose process has not prepared it
    with pytest.raises(
        InvalidArgumentError, match=r"folder must be prepared, got .*none'; call the DataModule's prepare"
    ):
        data.setup()


class Counting(pl.LightningModule):
    """Notes which groups it is trained and validated on, by epoch, and saves itself after two batches."""

    def __init__(self, path=None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.path, self.trained, self.validated = path, [], []

    def training_step(self, batch, index):
        self.trained.append((self.current_epoch, *(group.number for group in batch.groups)))
        return self.weight * sum(group.share for group in batch.groups)

    def on_train_batch_end(self, *_):
        if self.path is not None and len(self.trained) == 2:
            self.trainer.save_checkpoint(self.path)

    def validation_step(self, batch, index):
        self.validated += [group.number for group in batch.groups]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fitted(data, model, path=None):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "num_sanity_val_steps": 0}
    trainer = pl.Trainer(accelerator="cpu", max_epochs=2, enable_checkpointing=False, **quiet)
    trainer.fit(model, datamodule=data, ckpt_path=path)


@pytest.mark.parametrize("sampled", [{}, {"vertices_per_batch": 60, "fanouts": 3}])
def test_a_trainer_plays_every_group_once_an_epoch_and_goes_on_in_the_middle(sampled, tmp_path):
    whole = Counting(tmp_path / "early.ckpt")
    fitted(data_of(batch_size=2, **sampled), whole)
    for epoch in range(2):
        numbers = [number for at, *numbers in whole.trained if at == epoch for number in numbers]
        rounds = len(numbers) // 5
        assert sorted(numbers) == sorted(list(range(5)) * rounds)
    assert whole.trained[: len(whole.trained) // 2] != whole.trained[len(whole.trained) // 2 :]
    assert sorted(set(whole.validated)) == [5, 6]
    resumed = Counting()
    fitted(data_of(batch_size=2, **sampled), resumed, tmp_path / "early.ckpt")
    assert resumed.trained == whole.trained[2:]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0; 1 is usual"),
        ({"negatives": 0}, "negatives must be an integer of at least 1, got 0"),
        ({"negative_sampler": "some"}, "negative_sampler must be one of 'all', 'destination', got 'some'"),
        ({"normalization": "symetric"}, "normalization must be one of .* did you mean 'symmetric'"),
        ({"num_hops": 0}, "num_hops must be an integer of at least 1, got 0"),
        ({"num_snapshots": None}, "num_snapshots, window, events_per_snapshot must be one of them given, got None"),
        ({"window": 3.0}, "num_snapshots, window, events_per_snapshot must be one of them given"),
    ],
)
def test_arguments_that_cannot_work_are_refused_at_once(options, told):
    with pytest.raises(InvalidArgumentError, match=told):
        data_of(**options)
