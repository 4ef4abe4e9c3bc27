"""Captured stages against the same fits without: recomputed on the CPU where a GPU replays them (`replayed.py`)."""

import contextlib
from dataclasses import replace
from functools import partial

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelPruning
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from lightning_tgnn import (
    DynamicNodeClassification,
    EdgeClassification,
    LinkPrediction,
    NodeClassification,
    TemporalDataModule,
    TimelineMonitor,
)
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.data.batches import padding
from lightning_tgnn.strategies import DepCacheStrategy, DistTGLStrategy, PipeTGLStrategy, SvenStrategy
from lightning_tgnn.tasks import LayerLinkPrediction, capture
from lightning_tgnn.tasks.fit_guard import FitGuard
from lightning_tgnn.types import late
from tests.cuda.fits import FITS, fitted, groups, whole_graph
from tests.multiprocess.training import Plain, PlainDescent, build, fit
from tests.tasks.own_parts import GatedMessage, MeanModel
from tests.tasks.replayed import capturing_on_the_cpu


class PlainEdges(Plain, EdgeClassification):
    pass


class PlainNodes(Plain, DynamicNodeClassification):
    pass


class Adam(LinkPrediction):
    pass


def fits(model="tgn", strategy=lambda: "auto", steps=2, run=None, **options):
    """Return a fit as it is and one with captured stages, and how many stages have been recorded."""
    found = []
    for captured in ("off", "auto"):
        with capturing_on_the_cpu() as made:
            data, task = build(model, 12, capture=captured, **options)
            data.num_eval_negatives = 49
            data.setup()
            task.build(data.info)  # for callbacks that look at the weights first
            ended = fit(data, task, strategy(), 1, epochs=steps, **(run or dict)())
            ended["test"] = ended["trainer"].test(task, data, verbose=False)
            found.append(ended)
    return *found, len(made)


FIRST = 12
"""Steps over which rounding stays rounding."""


def check_same(one, other):
    """Compare two fits that differ by rounding, as products of other sizes do."""
    torch.testing.assert_close(one["losses"], other["losses"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(one["gradients"][:FIRST], other["gradients"][:FIRST], rtol=1e-3, atol=2e-5)
    for name, weight in one["weights"].items():
        torch.testing.assert_close(weight, other["weights"][name], rtol=1e-3, atol=1e-4)
    assert one["val"] == pytest.approx(other["val"], abs=1e-3, nan_ok=True)
    assert one["test"][0] == pytest.approx(other["test"][0], abs=1e-3, nan_ok=True)


def check_equal(one, other):
    """Compare two fits bit for bit."""
    for name in ("losses", "gradients"):
        assert torch.equal(one[name], other[name]), name
    for name, table in one["state"].items():
        same = torch.equal(table, other["state"][name]) if isinstance(table, torch.Tensor) else None
        assert table == other["state"][name] if same is None else same, name
    torch.testing.assert_close(one["val"], other["val"], rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(one["test"], other["test"], rtol=0, atol=0, equal_nan=True)


@pytest.fixture
def exact_sizes(monkeypatch):
    """Give each batch a size of its own: without places behind, nothing may differ by a bit."""
    monkeypatch.setattr(padding.Paddings, "_room", lambda self, needed: needed)


TASKS = {
    "links": {},
    "edges": {"task_class": PlainEdges, "labels": torch.arange(190) % 3},
    "nodes": {"task_class": PlainNodes, "labels": (torch.arange(190) % 5 == 0).long()},
}
READS = {
    "time": ("time", "event"),
    "event": ("event", "event"),
    "batch": ("batch", "event"),
    "once": ("batch", "batch"),
}


@pytest.mark.parametrize("model", ["tgn", "jodie", "apan"])
@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("task", TASKS)
def test_it_changes_nothing(model, reads, task):
    past, embed_at = READS[reads]
    plain, captured, made = fits(model, steps=1, past=past, embed_at=embed_at, static_dim=3, **TASKS[task])
    assert made >= 5  # a step of training, and four stages of evaluation
    check_same(plain, captured)


class PyGLayer(Plain, LayerLinkPrediction):
    """TGN's memory with a layer of PyG in the place of its attention."""

    def __init__(self, model, dropout, mailbox_size, **options):
        sizes = {"in_channels": 6, "out_channels": 3, "heads": 2, "edge_dim": 8}
        super().__init__(model, sizes, **options)


@pytest.mark.parametrize("reads", ["time", "once"])
def test_it_changes_nothing_for_a_layer_of_pyg(reads):
    pytest.importorskip("torch_geometric")
    past, embed_at = READS[reads]
    layer = "torch_geometric.nn.TransformerConv"
    plain, captured, made = fits(layer, steps=1, task_class=PyGLayer, past=past, embed_at=embed_at)
    assert made >= 5
    check_same(plain, captured)


def schedule():
    return {"lr_scheduler": partial(torch.optim.lr_scheduler.StepLR, step_size=3, gamma=0.5), "task_class": Adam}


class Looks(Callback):
    """Changes gradients before each step, as a callback may."""

    def on_before_optimizer_step(self, trainer, module, optimizer):
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad *= 0.5


RUNS = {
    "accumulated": ({}, dict(accumulate_grad_batches=3)),
    "clipped": ({}, dict(gradient_clip_val=0.01)),
    "bfloat16": ({}, dict(precision="bf16-mixed")),
    "scheduled": ({**schedule(), "lr_scheduler_config": {"interval": "step"}}, {}),
    "validated often": ({}, dict(val_check_interval=3)),
    "without inference mode": ({}, dict(inference_mode=False)),
    "with dropout": ({"dropout": 0.4}, {}),
    "changed gradients": ({}, dict(callbacks=[Looks()])),
    "watched": ({}, dict(callbacks=[TimelineMonitor(turns=2, first=1)])),
    "regardless": ({"detect_nan": False}, {}),
}


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.usefixtures("exact_sizes")
def test_it_holds_under_what_lightning_does(kind):
    options, run = RUNS[kind]
    plain, captured, made = fits(**options, run=lambda: run)
    assert made
    check_equal(plain, captured)


STRATEGIES = {
    "sven": SvenStrategy,
    "sven, in order": lambda: SvenStrategy(staleness=0, fetch_ahead=False),
    "sven, micro-batches": lambda: SvenStrategy(micro_batches=3, row_cache_mb=0),
    "depcache": DepCacheStrategy,
    "pipetgl": PipeTGLStrategy,
    "disttgl": lambda: DistTGLStrategy(minibatch="auto"),
}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.usefixtures("in_own_group", "exact_sizes")
def test_it_holds_under_strategies(name):
    plain, captured, made = fits(strategy=STRATEGIES[name])
    assert made
    # Its targets and its other rows are padded to the size of both.
    (check_same if name == "pipetgl" else check_equal)(plain, captured)


class BrokenOff(Exception):  # noqa: N818
    pass


class SavesAndBreaks(Callback):
    def __init__(self, path):
        self.path = path

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step == 16:
            trainer.save_checkpoint(self.path)
            raise BrokenOff


def test_a_fit_resumes_in_the_middle_of_an_epoch(tmp_path):
    path = tmp_path / "last.ckpt"
    with capturing_on_the_cpu():
        whole = fit(*build("tgn", 12, Adam, capture="auto", dropout=0.3), "auto", 1)
        with pytest.raises(BrokenOff):
            fit(*build("tgn", 12, Adam, capture="auto", dropout=0.3), "auto", 1, callbacks=[SavesAndBreaks(path)])
        resumed = fit(*build("tgn", 12, Adam, capture="auto", dropout=0.3), "auto", 1, ckpt_path=path)
    assert torch.equal(whole["losses"][16:], resumed["losses"])
    for name, weight in whole["weights"].items():
        assert torch.equal(weight, resumed["weights"][name]), name


class Waits(TorchDispatchMode):
    """Refuses what waits for a device, as CUDA does where it is asked to."""

    waiting = ("_local_scalar_dense", "nonzero", "unique", "masked_select", "is_nonzero", "equal")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__.startswith(self.waiting):
            raise RuntimeError("called a synchronizing operation")
        if func.overloadpacket.__name__ in ("index", "index_put_") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        ):
            raise RuntimeError("called a synchronizing operation")
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def refusing(device):
    with Waits():
        yield


@pytest.fixture
def waits_are_refused(monkeypatch):
    monkeypatch.setattr(capture, "_without_waiting", refusing)


@pytest.mark.parametrize("model", ["tgn", "jodie", "apan"])
@pytest.mark.usefixtures("waits_are_refused")
def test_no_stage_of_the_models_waits(model, caplog):
    with caplog.at_level("INFO"):
        plain, captured, made = fits(model)
    assert made >= 5
    assert "uncaptured" not in caplog.text
    check_same(plain, captured)


class Watching(Callback):
    """Refuses what waits from a step on, in all that a step does but the making of its batch."""

    def __init__(self, first):
        self.first, self.watched, self._mode = first, 0, None

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_step >= self.first:
            self._mode = Waits()
            self._mode.__enter__()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
            self._mode, self.watched = None, self.watched + 1


@pytest.mark.parametrize(("model", "captured"), [("tgn", "off"), ("tgn", "auto"), ("jodie", "auto"), ("apan", "auto")])
def test_twenty_steps_wait_for_nothing(model, captured, monkeypatch):
    monkeypatch.setattr(late, "_SYNCHRONOUS", set())
    # What is read late is on the host by then.
    monkeypatch.setattr(FitGuard, "check_unread", _disable_current_modes_in(FitGuard.check_unread))
    watching = Watching(first=2)
    with capturing_on_the_cpu():
        data, task = build(model, 6, Adam, capture=captured)
        fit_quietly(data, task, watching)
    assert watching.watched == 20


def _disable_current_modes_in(function):
    def without(*arguments):
        with _disable_current_modes():
            return function(*arguments)

    return without


def fit_quietly(data, task, *callbacks):
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = pl.Trainer(accelerator="cpu", max_steps=22, limit_val_batches=0, callbacks=list(callbacks), **quiet)
    trainer.fit(task, datamodule=data)


OWN = {
    "a model of one's own": ({"model": MeanModel}, ["step", "apply_mail"]),
    "a message of one's own": ({"model": "tgn", "message": GatedMessage}, ["step", "apply_mail"]),
}


class Sizeless(PlainDescent):
    """Takes no widths."""

    def __init__(self, model, lr, capture, **widths):
        super().__init__(model, lr=lr, capture=capture)


@pytest.mark.parametrize("name", OWN)
@pytest.mark.usefixtures("waits_are_refused", "exact_sizes")
def test_what_waits_runs_as_it_does_without(name, caplog):
    options, named = OWN[name]
    options = options | ({"task_class": Sizeless} if options["model"] is MeanModel else {})
    with caplog.at_level("INFO"):
        plain, captured, made = fits(**options)
    assert made  # the other stages
    for stage in named:  # once in training, and once in the test that follows
        assert caplog.text.count(f"capture: {stage} runs uncaptured: called a synchronizing operation") in (1, 2)
    check_equal(plain, captured)


def test_pruned_weights_are_not_captured(caplog):
    def run():
        return {"callbacks": [ModelPruning("l1_unstructured", amount=0.3)]}

    with caplog.at_level("INFO"):
        plain, captured, made = fits(steps=3, run=run)
    assert made  # before the first weight was pruned
    assert "pruned and normalized weights are made anew" in caplog.text
    torch.testing.assert_close(plain["losses"], captured["losses"])


class MovesWeights(Callback):
    """Puts the weights elsewhere, as one who loads or freezes them may."""

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx == 4:
            for parameter in module.parameters():
                parameter.data = parameter.data.clone() * 1.01
        if batch_idx == 6:
            next(iter(module.predictor.parameters())).requires_grad_(False)


def test_weights_elsewhere_are_captured_anew():
    plain, captured, _ = fits(steps=1, run=lambda: {"callbacks": [MovesWeights()]})
    check_same(plain, captured)


def test_batches_that_are_not_padded_run_as_they_do_without():
    with capturing_on_the_cpu() as made:
        data, task = build("tgn", 12, capture="auto")
        data.pad = "off"
        fit(data, task, "auto", 1)
    assert not made


GRAPHS = {
    "gcn": whole_graph("gcn"),
    "gat": whole_graph("gat"),
    "gcn with dropout": whole_graph("gcn", dropout=0.5),
    **{model: groups(model) for model in ("tgcn", "wd_gcn", "evolvegcn_o", "evolvegcn_h")},
}


@pytest.mark.parametrize("name", GRAPHS)
def test_static_graphs_and_snapshots_are_captured(name, monkeypatch):
    """What stays where it is needs no padding: a whole graph is one stage, and each group of snapshots another."""

    def fitted_with(capture):
        def make():
            data, task = GRAPHS[name]()
            task.optimization = replace(task.optimization, capture=capture)
            return data, task

        monkeypatch.setitem(FITS, "captured", (make, lambda **_: "auto"))
        return fitted("captured", "cpu", epochs=4)

    with capturing_on_the_cpu() as made:
        plain = fitted_with("off")
        assert not made
        captured = fitted_with("auto")
    # A graph in training and in validation; of 6 groups that are trained and 3 that are validated each once.
    assert len(made) == (2 if name.startswith("g") else 9)
    torch.testing.assert_close(plain["losses"], captured["losses"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(plain["weights"], captured["weights"], rtol=1e-5, atol=1e-6)
    assert plain["figures"] == pytest.approx(captured["figures"])


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("capture", lambda: LinkPrediction(capture="on")),
        ("capture", lambda: NodeClassification(capture=True)),
        ("pad", lambda: TemporalDataModule(pad="on")),
    ],
)
def test_other_choices_are_refused(name, make):
    with pytest.raises(InvalidArgumentError, match=f"{name} must be one of .*'off'"):
        make()


@pytest.mark.parametrize("error", [None, RuntimeError("no graph")])
def test_threads_that_make_batches_may_work_during_a_capture(monkeypatch, error):
    modes, before = [], torch.cuda.graph

    def make(run, args, *, allow_unused_input):
        modes.append(torch.cuda.graph.keywords)
        if error:
            raise error
        return run

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", make)
    with contextlib.suppress(RuntimeError):
        assert capture.graphed(abs, (), allow_unused_input=True) is abs
    assert modes == [{"capture_error_mode": "thread_local"}]
    assert torch.cuda.graph is before
