"""The first value that is not finite ends a run, and nothing of it is written."""

import math

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, OnExceptionCheckpoint

from lightning_tgnn import (
    EdgeClassification,
    EventStore,
    FullGraphDataModule,
    LinkPrediction,
    NodeClassification,
    TemporalDataModule,
)
from lightning_tgnn.checks import InvalidArgumentError, NotFiniteError
from lightning_tgnn.data import generate_graph
from lightning_tgnn.strategies import SvenStrategy
from lightning_tgnn.tasks.value_checks import check_finite, check_finite_step
from tests.data.example_streams import random_store

BREAKS_AT = 3
QUIET = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
SIZES = {"memory_dim": 4, "embedding_dim": 4, "time_dim": 4, "dropout": 0.0}


class Break(Callback):
    """Makes something of a step NaN or infinite."""

    def __init__(self, what, value=math.nan, at=BREAKS_AT):
        self.what, self.value, self.at = what, value, at

    def on_before_backward(self, trainer, module, loss):
        if trainer.global_step == self.at and self.what == "gradient":
            list(module.parameters())[2].register_hook(lambda gradient: gradient * self.value)
        if trainer.global_step == self.at and self.what == "loss":
            loss.data.fill_(self.value)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step == self.at and self.what == "weight":
            next(iter(module.parameters())).data[0] = self.value

    def on_validation_start(self, trainer, module):
        if self.what == "validation" and not trainer.sanity_checking:
            next(iter(module.parameters())).data.fill_(self.value)


def links(**options):
    data = TemporalDataModule(random_store(90, 9, seed=1), batch_size=10, num_neighbors=2, num_eval_negatives=2)
    return data, LinkPrediction("tgn", **SIZES, **options)


def edges(**options):
    store = random_store(90, 9, seed=1)
    store = EventStore.from_arrays(store.src, store.dst, store.time, labels=torch.arange(90) % 3)
    return TemporalDataModule(store, batch_size=10, num_neighbors=2), EdgeClassification("tgn", **SIZES, **options)


def nodes(**options):
    data = FullGraphDataModule(generate_graph(30, 80, 3, 5, seed=2))
    return data, NodeClassification(hidden_dim=4, dropout=0.0, **options)


def train(made, folder, fault, **options):
    data, task = made
    every = ModelCheckpoint(folder, every_n_train_steps=1, save_top_k=-1, save_last=True, save_on_exception=True)
    best = ModelCheckpoint(folder / "best", monitor="train/loss", save_last=True, save_on_exception=True)
    trainer = pl.Trainer(max_epochs=6, callbacks=[fault, every, best], **(QUIET | options))
    trainer.fit(task, datamodule=data)
    return trainer


def steps_written(folder):
    written = [torch.load(path, weights_only=True) for path in folder.rglob("*.ckpt")]
    for held in written:
        assert all(value.isfinite().all() for value in held["state_dict"].values() if value.is_floating_point())
    return {held["global_step"] for held in written}


@pytest.mark.parametrize("make", [links, edges, nodes])
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("loss", r"loss in batch \d of epoch \d must be finite, got nan; .*lower the learning rate.*detect_nan=False"),
        ("gradient", r"weight .+ must be finite, got nan; "),
        ("weight", r"weight .+ must be finite, got nan; "),
        ("validation", r"scores of the validation must be finite, got nan; "),
    ],
)
def test_it_ends_there_and_no_checkpoint_is_written(tmp_path, make, what, message):
    with pytest.raises(NotFiniteError, match=message):
        train(make(), tmp_path, Break(what))
    last = BREAKS_AT if what in ("loss", "gradient") else BREAKS_AT - 1
    if what != "validation":
        assert max(steps_written(tmp_path)) == last
    else:
        steps_written(tmp_path)


class Idle(LinkPrediction):
    """Has a weight that gets a gradient and changes no loss."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.idle = torch.nn.Parameter(torch.ones(3))
        self.rows = torch.nn.Embedding(5, 2, sparse=True)

    def training_step(self, batch, batch_idx):
        unused = self.rows(torch.tensor([1, 1, 4])).sum() + self.idle.sum()
        return super().training_step(batch, batch_idx) + torch.where(unused.isnan(), 0.0, unused) * 0.0

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)

    def on_before_backward(self, loss):
        super().on_before_backward(loss)
        if self.global_step == self.breaks_at:
            self.idle.register_hook(lambda gradient: gradient * math.nan)


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (0, "gradient of idle in batch 0 of epoch 0 must be finite, got nan; lower"),
        (
            1,
            "weight idle in batch 50 of epoch 0 must be finite, got nan; a gradient of an earlier batch was probably",
        ),
        (69, "weight idle must be finite, got nan; lower"),  # the last batch of the epoch
    ],
)
def test_weights_are_looked_at_now_and_then_and_at_the_end(at, message):
    data = TemporalDataModule(random_store(1000, 9, seed=1), batch_size=10, num_neighbors=2)
    task = Idle("tgn", **SIZES)
    task.breaks_at = at
    trainer = pl.Trainer(max_epochs=1, limit_val_batches=0, enable_checkpointing=False, **QUIET)
    with pytest.raises(NotFiniteError, match=message):
        trainer.fit(task, datamodule=data)


def test_a_gradient_is_seen_by_the_next_loss():
    data, task = links()
    trainer = pl.Trainer(
        max_epochs=1, limit_val_batches=0, enable_checkpointing=False, callbacks=[Break("gradient")], **QUIET
    )
    with pytest.raises(
        NotFiniteError, match=f"weight .+ in batch {BREAKS_AT + 1} of epoch 0 must be finite, got nan; a gra"
    ):
        trainer.fit(task, datamodule=data)


@pytest.mark.parametrize("make", [links, nodes])
def test_infinite_buffers_are_left_alone(tmp_path, make):
    data, task = make()
    task.register_buffer("mask", torch.tensor([0.0, -math.inf]))
    trainer = train((data, task), tmp_path, Break("nothing"))
    assert trainer.state.finished
    assert list(tmp_path.rglob("*.ckpt"))


def test_the_largest_gradient_is_named_where_it_is_finite(tmp_path):
    class Offset(LinkPrediction):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) + (math.inf if self.global_step == BREAKS_AT else 0)

    with pytest.raises(NotFiniteError, match=r"loss .* got inf; the largest gradient is [0-9.e-]+ of [a-z._0-9]+; low"):
        train((links()[0], Offset("tgn", **SIZES)), tmp_path, Break("nothing"))
    assert max(steps_written(tmp_path)) == BREAKS_AT


def test_no_other_callback_writes_one_either(tmp_path):
    keep = OnExceptionCheckpoint(tmp_path / "other")
    data, task = links()
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=2, logger=False, enable_progress_bar=False, callbacks=[Break("loss"), keep]
    )
    with pytest.raises(NotFiniteError):
        trainer.fit(task, datamodule=data)
    assert not list((tmp_path / "other").rglob("*.ckpt"))


@pytest.mark.parametrize("make", [links, nodes])
@pytest.mark.parametrize("what", ["loss", "weight", "gradient"])
def test_it_can_be_turned_off(tmp_path, make, what):
    trainer = train(make(detect_nan=False), tmp_path, Break(what), limit_val_batches=0, num_sanity_val_steps=0)
    assert trainer.state.finished
    written = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
    assert any(value.isnan().any() for value in written.values()) == (what != "loss")


def test_weights_that_came_so_are_no_earlier_batch_s():
    data, task = links()
    trainer = pl.Trainer(max_epochs=1, limit_val_batches=0, enable_checkpointing=False, **QUIET)
    trainer.fit(task, datamodule=data)
    next(iter(task.parameters())).data[0] = math.nan
    again = pl.Trainer(max_epochs=1, num_sanity_val_steps=0, enable_checkpointing=False, **QUIET)
    with pytest.raises(NotFiniteError, match=r"weight .+ in batch 0 of epoch 0 must be finite, got nan; lower"):
        again.fit(task, datamodule=data)


class BreakAndSave(Callback):
    """Breaks a gradient that is not applied at once, and asks for a checkpoint."""

    def __init__(self, path):
        self.path = path

    def on_before_backward(self, trainer, module, loss):
        if trainer.fit_loop.batch_idx == BREAKS_AT - 1:
            list(module.parameters())[2].register_hook(lambda gradient: gradient * math.nan)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx == BREAKS_AT - 1:
            assert all(weight.isfinite().all() for weight in module.parameters())
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


@pytest.mark.parametrize("detect_nan", [True, False])
@pytest.mark.parametrize(
    ("options", "place"),
    [
        (lambda: {"accumulate_grad_batches": BREAKS_AT + 1}, "lightning_tgnn.fit"),
        (lambda: {"strategy": SvenStrategy(staleness=1), "devices": 1}, "lightning_tgnn.strategy"),
    ],
)
@pytest.mark.usefixtures("in_own_group")
def test_gradients_that_wait_are_looked_at_before_they_are_saved(tmp_path, options, place, detect_nan):
    data, task = links(detect_nan=detect_nan)
    path = tmp_path / "waiting.ckpt"
    trainer = pl.Trainer(
        max_epochs=1,
        limit_val_batches=0,
        enable_checkpointing=False,
        callbacks=[BreakAndSave(path)],
        **(QUIET | options()),
    )
    if not detect_nan:
        trainer.fit(task, datamodule=data)
        gradients = torch.load(path, weights_only=True)[place]["gradients"]
        assert any(gradient.isnan().any() for gradient in gradients.values())
        return
    with pytest.raises(NotFiniteError, match=r"gradient [a-z._0-9]+ must be finite, got nan; lower"):
        trainer.fit(task, datamodule=data)
    assert not path.exists()


class OfManyKinds(Idle):
    """Has parameters that no optimizer changes, of kinds that few operations take, and a gradient without entries."""

    breaks_at = None

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.empty = torch.nn.Parameter(torch.ones(0, 3))
        for number, value in enumerate(ODD):
            self.register_parameter(f"odd{number}", torch.nn.Parameter(value, requires_grad=False))

    def training_step(self, batch, batch_idx):
        nothing = self.rows(torch.tensor([], dtype=torch.int64)).sum() + self.empty.sum()
        return LinkPrediction.training_step(self, batch, batch_idx) + nothing


ODD = [
    torch.tensor([1, 2]),
    torch.tensor(True),
    torch.tensor([1.0, -2.0]).to(torch.float8_e5m2),
    torch.tensor([1 + 2j]).conj(),
    torch.zeros(0, dtype=torch.int64),
    torch.eye(2).to_sparse(),
]


def test_parameters_of_every_kind_are_looked_at():
    data = links()[0]
    trainer = pl.Trainer(max_epochs=1, limit_val_batches=0, enable_checkpointing=False, **QUIET)
    trainer.fit(OfManyKinds("tgn", **SIZES), datamodule=data)
    assert trainer.state.finished


@pytest.mark.parametrize("kind", [torch.float8_e5m2, torch.complex64, torch.bfloat16])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_what_is_not_finite_is_found_in_every_kind(kind, value):
    plain = {str(number): value for number, value in enumerate(ODD)}
    check_finite_step("here", torch.tensor(1.0), plain)
    check_finite("held", plain.items())
    broken = torch.tensor([1.0, value]).to(kind)
    with pytest.raises(NotFiniteError, match=f"weight x here must be finite, got {value}; a gradient of an earlier"):
        check_finite_step("here", torch.tensor(1.0), plain | {"x": broken})
    with pytest.raises(NotFiniteError, match=f"held x must be finite, got {value}; lower"):
        check_finite("held", [*plain.items(), ("x", broken)])
    weight = torch.nn.Parameter(torch.ones(2, dtype=kind))
    weight.grad = broken
    with pytest.raises(NotFiniteError, match=f"gradient of x here must be finite, got {value}; lower"):
        check_finite_step("here", torch.tensor(1.0), plain | {"x": weight})
    weight.grad = torch.ones(2, dtype=kind)
    with pytest.raises(NotFiniteError, match=r"loss here must be finite, got inf; the largest gradient is 1 of x; "):
        check_finite_step("here", torch.tensor(math.inf), plain | {"x": weight})


@pytest.mark.parametrize("make", [links, nodes])
def test_whether_to_look_is_yes_or_no(make):
    with pytest.raises(InvalidArgumentError, match="detect_nan must be True or False, got 'no'"):
        make(detect_nan="no")


def test_a_large_gradient_is_none_that_is_not_finite(tmp_path):
    train(links(), tmp_path, Break("gradient", 1e25), limit_val_batches=0)  # its square is infinite


def test_a_second_fit_saves_on_exceptions_again(tmp_path):
    data, task = links()
    keep = ModelCheckpoint(tmp_path, save_on_exception=True)
    fault = Break("loss")
    options = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
    trainer = pl.Trainer(max_epochs=1, callbacks=[fault, keep], **options)
    with pytest.raises(NotFiniteError):
        trainer.fit(task, datamodule=data)
    fault.what = "nothing"
    trainer.fit(links()[1], datamodule=data)
    assert keep.save_on_exception


def test_a_learning_rate_that_overflows_is_one_line():
    task = NodeClassification(lr=1e39, hidden_dim=4)
    data = FullGraphDataModule(generate_graph(num_nodes=60, num_edges=200, seed=0))
    with pytest.raises(NotFiniteError, match=r"the learning rate must be one that float32 holds, got 1e\+39"):
        pl.Trainer(max_epochs=3, enable_checkpointing=False, **QUIET).fit(task, datamodule=data)
