"""What Lightning's Trainer offers, under CDFGNN on two ranks against one process."""

import warnings
from dataclasses import replace

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping, ModelCheckpoint, OnExceptionCheckpoint

from lightning_tgnn import CDFGNNStrategy, FullGraphDataModule, NodeClassification
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.test_cdfgnn import Recorder, graph
from tests.multiprocess.training import as_torchrun

OPTIONS = {
    "plain": {"enable_progress_bar": True},  # it asks for metrics on rank 0 alone
    "clipped norm": {"gradient_clip_val": 0.05},
    "clipped values": {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    "accumulated": {"accumulate_grad_batches": 2},
    "bf16": {"precision": "bf16-mixed"},
    "stopped": {"max_epochs": 20},
    "several classes": {},
}
OF_TASK = {"several classes": {"dropout": 0.5, "dropout_on_sums": True}}
EXACT = {"cache": False, "bits": None}


class Descent(NodeClassification):
    """Adam divides gradients by their size, so that clipping would hardly show."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def trainer(ranks, strategy, callbacks=(), **options):
    settings = {"max_epochs": 4, "accelerator": "cpu", "devices": ranks, "strategy": strategy, "logger": False}
    settings |= {"num_sanity_val_steps": 0, "enable_progress_bar": False, "enable_model_summary": False}
    settings |= {"enable_checkpointing": any(isinstance(callback, Checkpoint) for callback in callbacks)}
    return pl.Trainer(**(settings | options), callbacks=list(callbacks))


def of_several_classes():
    """The graph with labels [N, C], some vertices without, and weights of edges."""
    plain = graph()
    labels = torch.stack([plain.labels == 0, plain.labels > 0, plain.labels == 2], dim=1).long()
    labels[~(plain.train | plain.val | plain.test)] = -1
    weights = torch.rand(len(plain.src), generator=torch.Generator().manual_seed(3)) + 0.1
    return replace(plain, labels=labels, edge_weights=weights)


def fitted(name, ranks, strategy, folder):
    """Train with some of the options and evaluate the best checkpoint in a new task and Trainer."""
    torch.manual_seed(1)
    data = FullGraphDataModule(of_several_classes() if name == "several classes" else graph())
    settings = {"dropout": 0.0} | OF_TASK.get(name, {})
    task, recorder = Descent("gcn", hidden_dim=8, **settings), Recorder()
    keep = ModelCheckpoint(f"{folder}/{name}", monitor="val/accuracy", mode="max", filename="{epoch}")
    stop = EarlyStopping("train/loss", patience=1, min_delta=0.05, check_on_train_epoch_end=True)
    runner = trainer(ranks, strategy(), [recorder, keep, *([stop] if name == "stopped" else [])], **OPTIONS[name])
    runner.fit(task, datamodule=data)
    best = keep.best_model_path
    loaded, again = Descent("gcn", hidden_dim=8, **settings), trainer(ranks, strategy())
    (metrics,) = again.validate(loaded, data, ckpt_path=best, verbose=False)
    metrics |= again.test(loaded, data, ckpt_path=best, verbose=False)[0]
    (answer,) = again.predict(loaded, data, ckpt_path=best)
    chosen = best.rsplit("/", 1)[1], runner.current_epoch
    return {"losses": torch.stack(recorder.losses), "figures": metrics, "answer": answer, "chosen": chosen}


class Fails(pl.Callback):
    """Ends a run by an error in its third epoch."""

    def __init__(self, hook):
        setattr(self, hook, self._raise)

    def _raise(self, trainer, *_):
        if trainer.current_epoch == 2:
            raise RuntimeError("an error")


def goes_on(ranks, options, hook, folder):
    """Train without a break and with one; return whether the weights are the same, and what is said of it."""

    def train(*callbacks, resume=None):
        torch.manual_seed(1)
        task = NodeClassification("gcn", hidden_dim=8, dropout=0.0)
        runner = trainer(ranks, CDFGNNStrategy(**options), callbacks)
        runner.fit(task, datamodule=FullGraphDataModule(graph()), ckpt_path=resume)
        return torch.cat([weight.detach().flatten() for weight in task.parameters()])

    whole = train()
    with pytest.raises(RuntimeError, match="an error"):
        train(Fails(hook), OnExceptionCheckpoint(folder))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        resumed = train(resume=f"{folder}/on_exception.ckpt")
    told = any("the epoch is trained again with cached rows" in str(one.message) for one in said)
    return torch.equal(resumed, whole), told


BROKEN_OFF = {
    "without a cache": (EXACT, "on_after_backward"),
    "before the step": ({"threshold": 0.0, "bits": 8}, "on_train_batch_start"),
    "within the step": ({"threshold": 0.0, "bits": 8}, "on_after_backward"),
}


CACHES = {
    "exact": EXACT,
    "cache": {"bits": None},
    "cache and 8 bits": {},
    "paper": {"threshold": "paper"},
    "sancus": {"cache": "sancus", "threshold": 0.1, "bits": None},
}


def learnt(options):
    """Train a GCN for 80 epochs; return its test accuracy and the share of the rows that it has sent."""
    settings = {"num_nodes": 1200, "num_edges": 9000, "num_classes": 4, "noise": 3.0, "homophily": 0.6, "seed": 7}
    data, task = FullGraphDataModule("synthetic", synthetic=settings), NodeClassification("gcn", dropout=0.0)
    torch.manual_seed(1)
    runner = trainer(2, CDFGNNStrategy(**options), max_epochs=80, limit_val_batches=0)
    runner.fit(task, datamodule=data)
    rows = runner.strategy.replica_state.replicas.take_rows().values()
    (metrics,) = runner.test(task, data, verbose=False)
    return metrics["test/accuracy"], sum(row.sent for row in rows) / sum(row.possible for row in rows)


def every_option(rank, ranks, folder):
    as_torchrun(rank, ranks)
    answers = {name: fitted(name, ranks, lambda: CDFGNNStrategy(**EXACT), folder) for name in OPTIONS}
    answers["learnt"] = {name: learnt(options) for name, options in CACHES.items()}
    return answers | {name: goes_on(ranks, *how, f"{folder}/{name}") for name, how in BROKEN_OFF.items()}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    ours = run_ranks(every_option, 2, str(tmp_path_factory.mktemp("ranks")), timeout=150)
    folder = str(tmp_path_factory.mktemp("alone"))
    return ours, {name: fitted(name, 1, lambda: "auto", folder) for name in OPTIONS}


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_the_trainer_do_what_they_do_in_one_process(name, outcomes):
    ranks, alone = [outcome[name] for outcome in outcomes[0]], outcomes[1][name]
    # Sums of other rounding, and in bfloat16 of fewer digits.
    close = {"rtol": 0.03, "atol": 0.03} if name == "bf16" else {"rtol": 1e-3, "atol": 1e-4}
    torch.testing.assert_close((ranks[0]["losses"] + ranks[1]["losses"]) / 2, alone["losses"], **close)
    assert ranks[0]["figures"] == ranks[1]["figures"]
    assert ranks[0]["chosen"] == ranks[1]["chosen"]
    nodes = torch.cat([outcome["answer"]["node"] for outcome in ranks])
    assert sorted(nodes.tolist()) == list(range(graph().num_nodes))  # each vertex once
    if name != "bf16":
        assert ranks[0]["chosen"] == alone["chosen"]
        assert ranks[0]["figures"] == pytest.approx(alone["figures"], abs=1e-4)
        ours = torch.cat([outcome["answer"]["probability"] for outcome in ranks])[nodes.argsort()]
        torch.testing.assert_close(ours, alone["answer"]["probability"], **close)


def test_an_epoch_taken_again_is_exact_or_a_warning_says_that_it_is_not(outcomes):
    exact = [outcomes[0][0][name][0] for name in BROKEN_OFF], [outcomes[0][1][name][0] for name in BROKEN_OFF]
    assert exact == ([True, True, False],) * 2
    assert [outcomes[0][0][name][1] for name in BROKEN_OFF] == [False, False, True]  # the first rank says it


def test_the_options_make_a_difference(outcomes):
    _, alone = outcomes
    for name in set(OPTIONS) - {"plain", "stopped"}:
        assert not torch.allclose(alone[name]["losses"], alone["plain"]["losses"], rtol=1e-4), name
    assert 1 < alone["stopped"]["chosen"][1] < OPTIONS["stopped"]["max_epochs"]


def test_a_cache_sends_fewer_rows_and_learns_as_much(outcomes):
    learnt = outcomes[0][0]["learnt"]
    exact, _ = learnt["exact"]
    assert exact > 0.8  # of four classes
    for name in ("cache", "cache and 8 bits", "paper"):
        accuracy, sent = learnt[name]
        assert accuracy > exact - 0.01
        assert sent < 0.5
    assert learnt["cache"][1] < learnt["sancus"][1]
