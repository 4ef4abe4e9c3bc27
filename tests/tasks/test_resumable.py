"""What a checkpoint fixes for tasks and DataModules in Python, and what it does not."""

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.optim.lr_scheduler import LinearLR, OneCycleLR, SequentialLR, StepLR

from lightning_tgnn import FullGraphDataModule, LinkPrediction, NodeClassification, TemporalDataModule
from lightning_tgnn.checks import CheckpointError, InvalidArgumentError
from lightning_tgnn.tasks import EdgeClassification, LayerLinkPrediction
from tests.data.example_streams import random_store
from tests.tasks.own_parts import Loaders

STORE = random_store(60, 12, edge_dim=2, seed=5)
SIZES = {"memory_dim": 6, "embedding_dim": 6, "time_dim": 4}
LABELS = {"num_events": 120, "with_labels": True, "num_sources": 20, "num_destinations": 20}
TASKS = {
    "link": lambda **more: LinkPrediction(**{"dropout": 0.0, **SIZES, **more}),
    "layer": lambda **more: LayerLinkPrediction(
        **{"layer": "torch_geometric.nn.SAGEConv", "layer_args": {"in_channels": 6, "out_channels": 6}, **SIZES, **more}
    ),
    "edges": lambda **more: EdgeClassification(**{**SIZES, **more}),
    "graph": lambda **more: NodeClassification(**{"model": "gat", "hidden_dim": 8, **more}),
}
GRAPH = {"num_nodes": 30, "num_edges": 60}
DATA = {
    "link": lambda **more: TemporalDataModule(STORE, **{"batch_size": 20, "num_eval_negatives": 3, **more}),
    "layer": lambda **more: TemporalDataModule(STORE, **{"batch_size": 20, "num_eval_negatives": 3, **more}),
    "edges": lambda **more: TemporalDataModule(synthetic=LABELS | {"label": "community"}, **{"batch_size": 20, **more}),
    "graph": lambda **more: FullGraphDataModule(synthetic=GRAPH, **more),
}


def trainer(**options):
    quiet = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "logger": False,
        "enable_checkpointing": False,
    }
    return pl.Trainer(accelerator="cpu", num_sanity_val_steps=0, **{"max_epochs": 1, **quiet, **options})


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    paths = {}
    for name, task in TASKS.items():
        paths[name] = tmp_path_factory.mktemp("saved") / f"{name}.ckpt"
        once = trainer()
        once.fit(task(), DATA[name]())
        once.save_checkpoint(paths[name])
    return paths


@pytest.mark.parametrize("stage", ["fit", "test"])
@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (
            "link",
            {"model": "jodie"},
            r"LinkPrediction\(model=\.\.\.\) must be 'tgn', as in the checkpoint, got 'jodie'",
        ),
        ("link", {"num_heads": 1}, r"LinkPrediction\(num_heads=\.\.\.\) must be 2, .* got 1; give that, or run fit"),
        ("link", {"mailbox_size": 4}, r"mailbox_size=\.\.\.\) must be 10, .* got 4"),
        ("link", {"static_dim": 3}, r"static_dim=\.\.\.\) must be 0, .* got 3"),
        ("layer", {"layer_args": {"in_channels": 6, "out_channels": 6, "aggr": "max"}}, r"layer_args=.* 'aggr': 'max'"),
        ("layer", {"layer": "torch_geometric.nn.GATConv"}, r"\(layer=\.\.\.\) must be '.*SAGEConv', .*GATConv'"),
        ("edges", {"hidden_dim": 50}, r"EdgeClassification\(hidden_dim=\.\.\.\) must be 100, .* got 50"),
        ("graph", {"heads": 2}, r"NodeClassification\(heads=\.\.\.\) must be 4, .* got 2"),
        ("graph", {"layer_norm": True}, r"NodeClassification\(layer_norm=\.\.\.\) must be False, .* got True"),
    ],
)
def test_a_task_that_contradicts_its_checkpoint_is_refused_by_name(checkpoints, stage, name, arguments, message):
    with pytest.raises(CheckpointError, match=message):
        getattr(trainer(), stage)(TASKS[name](**arguments), datamodule=DATA[name](), ckpt_path=checkpoints[name])


@pytest.mark.parametrize(
    ("name", "arguments", "always"),
    [
        ("link", {"num_neighbors": 4}, True),
        ("link", {"neighbor_sampler": "uniform"}, True),
        ("link", {"val_ratio": 0.2}, True),
        ("link", {"split_by": "time"}, True),
        ("link", {"held_out_nodes": 0.1}, True),
        ("link", {"seed": 1}, False),
        ("link", {"negatives": "all"}, False),
        ("link", {"num_train_negatives": 2}, False),
        ("link", {"eval_negatives": "all"}, False),
        ("link", {"num_eval_negatives": 5}, False),
        ("graph", {"normalization": "row"}, True),
        ("graph", {"self_loops": False}, True),
        ("graph", {"seed": 1}, False),
    ],
)
def test_data_that_contradict_a_checkpoint_are_refused_by_name(checkpoints, name, arguments, always):
    ((argument, value),) = arguments.items()
    for stage in ("fit", "validate"):
        run = getattr(trainer(), stage)
        options = {"datamodule": DATA[name](**arguments), "ckpt_path": checkpoints[name]}
        if stage == "fit" or always:
            with pytest.raises(
                CheckpointError, match=rf"DataModule\({argument}=\.\.\.\) must be .* got {value!r}; give"
            ):
                run(TASKS[name](), **options)
        else:
            run(TASKS[name](), **options)


OTHERS = [
    ("link", {"num_neighbors": 4}),
    ("link", {"held_out_nodes": 0.1}),
    ("link", {"val_ratio": 0.2}),
    ("graph", {"normalization": "row"}),
]


@pytest.mark.parametrize(("name", "arguments"), OTHERS)
def test_what_has_been_trained_is_not_evaluated_on_other_splits_or_neighbours(checkpoints, name, arguments):
    ((argument, value),) = arguments.items()
    message = rf"DataModule\({argument}=\.\.\.\) must be .*, as in training, got {value!r}; give that"
    trained, other = TASKS[name](), DATA[name](**arguments)
    trainer(limit_val_batches=0).fit(trained, DATA[name]())
    for task in (trained, type(trained).load_from_checkpoint(checkpoints[name])):
        for stage in ("validate", "test", "predict"):
            run = getattr(trainer(), stage)
            with pytest.raises(InvalidArgumentError, match=message):
                run(task, datamodule=other)
            run(task, datamodule=DATA[name](seed=1))  # which decides no more than what is drawn
    again = trainer()
    again.fit(trained, other)
    again.validate(trained, other)


def test_what_was_refused_or_not_known_does_not_count_as_training(tmp_path):
    other = trainer(limit_val_batches=0)
    other.fit(TASKS["link"](), DATA["link"](val_ratio=0.25))
    other.save_checkpoint(tmp_path / "other.ckpt")
    task, data = TASKS["link"](), DATA["link"](past="batch", embed_at="batch")
    trainer(limit_val_batches=0).fit(task, data)
    with pytest.raises(CheckpointError, match="as in the checkpoint"):
        trainer().validate(task, data, ckpt_path=tmp_path / "other.ckpt")
    trainer().validate(task, data)
    unknown = TASKS["link"]()
    trainer(limit_val_batches=0).fit(unknown, Loaders(data))
    trainer().validate(unknown, data)


def test_a_checkpoint_from_before_nodes_could_be_embedded_once_goes_on_as_it_was_trained(tmp_path):
    first = trainer()
    first.fit(TASKS["link"](), DATA["link"](past="batch"))
    path = tmp_path / "before.ckpt"
    first.save_checkpoint(path)
    checkpoint = torch.load(path, weights_only=False)
    (settings,) = (kept["settings"] for kept in checkpoint.values() if isinstance(kept, dict) and "settings" in kept)
    assert settings.pop("embed_at") == "event"
    torch.save(checkpoint, path)
    for stage in ("fit", "validate"):
        run, data = getattr(trainer(max_epochs=2), stage), DATA["link"](past="batch", embed_at="batch")
        with pytest.raises(CheckpointError, match=r"embed_at=\.\.\.\) must be 'event', as in the .* got 'batch'"):
            run(TASKS["link"](), datamodule=data, ckpt_path=path)
    again = trainer(max_epochs=2)
    again.fit(TASKS["link"](), DATA["link"](past="batch"), ckpt_path=path)
    assert again.global_step == 2 * first.global_step


@pytest.mark.parametrize("known", [True, False])
def test_a_size_of_batches_that_was_not_known_is_not_compared(tmp_path, known):
    keep = ModelCheckpoint(tmp_path, filename="within", every_n_train_steps=2)
    first = trainer(limit_val_batches=0, enable_checkpointing=True, callbacks=[keep])
    first.fit(TASKS["link"](), DATA["link"]() if known else Loaders(DATA["link"]()))
    go_on = {"datamodule": DATA["link"](batch_size=10 if known else 20), "ckpt_path": tmp_path / "within.ckpt"}
    then = trainer(limit_val_batches=0)
    if known:
        with pytest.raises(CheckpointError, match="batch_size must be 20 to resume in the middle of this epoch, got"):
            then.fit(TASKS["link"](), **go_on)
    else:
        then.fit(TASKS["link"](), **go_on)
        assert then.global_step == 3


@pytest.mark.parametrize("name", ["layer", "edges"])
def test_a_checkpoint_of_another_task_is_refused(checkpoints, name):
    task = TASKS[name]()
    with pytest.raises(CheckpointError, match=rf"model must be LinkPrediction, as in .* got '{type(task).__name__}'"):
        trainer().test(task, datamodule=DATA[name](), ckpt_path=checkpoints["link"])


class OfMyOwn(LinkPrediction):
    """A subclass, whose weights are the same."""

    may_change = LinkPrediction.may_change | {"mailbox_size"}


def test_a_subclass_may_go_on_and_say_what_may_change(checkpoints):
    task = OfMyOwn(**SIZES, dropout=0.0, mailbox_size=4)
    once = trainer(max_epochs=2)
    once.fit(task, DATA["link"](), ckpt_path=checkpoints["link"])
    assert (task.hparams.mailbox_size, once.global_step) == (4, 6)


@pytest.mark.parametrize("name", TASKS)
def test_what_may_change_is_used(checkpoints, name):
    once = trainer(max_epochs=2)
    task = TASKS[name](lr=0.5, weight_decay=0.25)
    once.fit(task, DATA[name](), ckpt_path=checkpoints[name])
    group = once.optimizers[0].param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (0.5, 0.25)
    again = trainer(max_epochs=2)
    again.fit(TASKS[name](), DATA[name](), ckpt_path=checkpoints[name])
    assert again.optimizers[0].param_groups[0]["lr"] == TASKS[name]().hparams.lr


class Scheduled(LinkPrediction):
    """A schedule by its name."""

    def __init__(self, schedule, lr, **more):
        super().__init__(lr=lr, **more)
        self.schedule = schedule

    may_change = LinkPrediction.may_change | {"schedule"}

    def configure_optimizers(self):
        parameters = [*self.parameters()]
        if self.schedule == "sgd":
            return torch.optim.SGD(parameters, lr=self.lr)
        if self.schedule == "two groups":
            return torch.optim.Adam([{"params": parameters[:3]}, {"params": parameters[3:]}], lr=self.lr)
        if self.schedule == "another order":
            return torch.optim.Adam(parameters[::-1], lr=self.lr)
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr)
        schedulers = {
            "step": lambda: StepLR(optimizer, step_size=2, gamma=0.5),
            "warm-up": lambda: SequentialLR(
                optimizer, [LinearLR(optimizer, 0.1, total_iters=2), StepLR(optimizer, 2, 0.5)], milestones=[3]
            ),
            "one cycle": lambda: OneCycleLR(optimizer, max_lr=self.lr, total_steps=9),
            "a longer cycle": lambda: OneCycleLR(optimizer, max_lr=self.lr, total_steps=12),
        }
        if self.schedule is None:
            return optimizer
        return [optimizer], [{"scheduler": schedulers[self.schedule](), "interval": "step"}]


class Rates(pl.Callback):
    """Keeps the learning rate of every step."""

    def __init__(self):
        self.rates = []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])


@pytest.mark.parametrize("schedule", [None, "step", "warm-up", "one cycle"])
def test_a_learning_rate_that_changes_keeps_its_schedule(tmp_path, schedule):
    def rates(lr, epochs, ckpt_path=None):
        record = Rates()
        once = trainer(max_epochs=epochs, callbacks=[record])
        once.fit(Scheduled(schedule, lr, **SIZES), DATA["link"](), ckpt_path=ckpt_path)
        once.save_checkpoint(tmp_path / f"{lr}-{epochs}.ckpt")
        return torch.tensor(record.rates)

    first, whole = rates(0.125, 1), rates(0.25, 3)
    assert len(whole) == 9
    assert torch.allclose(first, whole[:3] / 2)
    assert torch.allclose(rates(0.25, 3, tmp_path / "0.125-1.ckpt"), whole[3:])
    assert torch.equal(rates(0.25, 3, tmp_path / "0.25-3.ckpt"), whole[9:])


@pytest.mark.parametrize(
    ("saved", "given", "message"),
    [
        ("step", "sgd", r"optimizers must be \['Adam'\], as in the checkpoint, got \['SGD'\]; resume with those"),
        ("step", "one cycle", r"schedulers must be \['StepLR'\], as in the .*, got \['OneCycleLR'\]; resume with"),
        (
            "one cycle",
            "a longer cycle",
            r"total_steps of the schedulers must be \[9\], as in the checkpoint, got \[12\]; keep max_epochs",
        ),
        (
            None,
            "two groups",
            r"parameters of the optimizers' groups must be .*, as in the checkpoint, got .*; resume",
        ),
        (
            None,
            "another order",
            r"parameters of the optimizers' groups must be .*, as in the checkpoint, got .*; resume",
        ),
    ],
)
def test_other_optimizers_and_schedulers_are_refused(tmp_path, saved, given, message):
    once = trainer()
    once.fit(Scheduled(saved, 0.1, **SIZES), DATA["link"]())
    once.save_checkpoint(tmp_path / "saved.ckpt")
    with pytest.raises(CheckpointError, match=message):
        trainer(max_epochs=2).fit(Scheduled(given, 0.1, **SIZES), DATA["link"](), ckpt_path=tmp_path / "saved.ckpt")
