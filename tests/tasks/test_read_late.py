"""Asynchronous devices: values are read a batch later, and the same values are refused."""

import contextlib
import math

import lightning.pytorch as pl
import pytest
import torch

from lightning_tgnn.checks import InvalidArgumentError, NotFiniteError
from lightning_tgnn.metrics import (
    ExpectedMeanReciprocalRank,
    HitsAtK,
    LinkAUROC,
    LinkAveragePrecision,
    LinkMetrics,
    MeanReciprocalRank,
)
from lightning_tgnn.state import LocalStateStore
from lightning_tgnn.state.nodes import local
from lightning_tgnn.types import StateSpec, StateUpdate, late
from tests.multiprocess.training import build, fit
from tests.tasks.test_capture import Waits
from tests.tasks.test_not_finite import BREAKS_AT, QUIET, Break, links


@pytest.fixture
def behind(monkeypatch):
    """Take the CPU for an asynchronous device."""
    monkeypatch.setattr(late, "_SYNCHRONOUS", set())


@pytest.mark.usefixtures("behind")
def test_a_loss_is_looked_at_a_batch_later(tmp_path):
    data, task = links()
    trainer = pl.Trainer(**QUIET, max_epochs=2, default_root_dir=tmp_path, callbacks=[Break("loss")])
    with pytest.raises(NotFiniteError, match=f"loss in batch {BREAKS_AT} of epoch 0 must be finite, got nan"):
        trainer.fit(task, data)
    assert trainer.global_step == BREAKS_AT + 1
    assert not list(tmp_path.rglob("*.ckpt"))


@pytest.mark.usefixtures("behind")
def test_the_last_loss_of_an_epoch_is_looked_at_where_it_ends(tmp_path):
    data, task = links()
    steps = len(data.train_dataloader())
    trainer = pl.Trainer(**QUIET, max_epochs=1, default_root_dir=tmp_path, callbacks=[Break("loss", at=steps - 1)])
    with pytest.raises(NotFiniteError, match=f"loss in batch {steps - 1} of epoch 0"):
        trainer.fit(task, data)
    assert not list(tmp_path.rglob("*.ckpt"))


@pytest.mark.usefixtures("behind")
def test_scores_are_looked_at_a_batch_later(tmp_path):
    data, task = links()
    trainer = pl.Trainer(**QUIET, max_epochs=2, default_root_dir=tmp_path, callbacks=[Break("validation")])
    with pytest.raises(NotFiniteError, match="scores of the validation must be finite, got nan"):
        trainer.fit(task, data)


@pytest.mark.usefixtures("behind")
def test_scores_of_a_single_batch_are_looked_at_in_the_end(tmp_path):
    data, task = links()
    callbacks = [Break("validation")]
    trainer = pl.Trainer(**QUIET, max_epochs=2, limit_val_batches=1, default_root_dir=tmp_path, callbacks=callbacks)
    with pytest.raises(NotFiniteError, match="scores of the validation"):
        trainer.fit(task, data)


def test_a_fit_is_the_same(monkeypatch):
    at_once = fit(*build("tgn", 12), "auto", 1, val_check_interval=3)
    monkeypatch.setattr(late, "_SYNCHRONOUS", set())
    ours = fit(*build("tgn", 12), "auto", 1, val_check_interval=3)
    assert torch.equal(at_once["losses"], ours["losses"])
    assert at_once["val"] == ours["val"]
    for name, table in at_once["state"].items():
        assert torch.equal(table, ours["state"][name]) if isinstance(table, torch.Tensor) else True, name


METRICS = [LinkAveragePrecision, LinkAUROC, MeanReciprocalRank, ExpectedMeanReciprocalRank, HitsAtK]


@pytest.mark.parametrize("make", METRICS)
def test_metrics_of_a_batch_wait_for_nothing_and_come_to_the_same(make, monkeypatch):
    rng = torch.Generator().manual_seed(3)
    one, other = make(), make()
    negatives = 1 if make in METRICS[:2] else 9
    batches = [torch.randint(0, 5, (7, 1 + negatives), generator=rng).float() for _ in range(3)]
    for batch in batches:
        one.update(batch[:, 0], batch[:, 1:])
    monkeypatch.setattr(late, "_SYNCHRONOUS", set())
    with Waits():
        for batch in batches:
            other.update(batch[:, 0], batch[:, 1:])
    assert torch.equal(one.compute(), other.compute())
    assert one.compute().dtype == other.compute().dtype


@pytest.mark.parametrize("make", METRICS)
@pytest.mark.parametrize("where", ["positive", "negatives"])
@pytest.mark.usefixtures("behind")
def test_metrics_refuse_nan_in_the_end(make, where):
    metric = make()
    metric.update(torch.zeros(2), torch.ones(2, 1))
    scores = {"positive": torch.zeros(2), "negatives": torch.ones(2, 1)}
    scores[where][1] = math.nan
    metric.update(*scores.values())
    with pytest.raises(InvalidArgumentError, match="free of NaN"):
        metric.compute()


@pytest.mark.usefixtures("behind")
def test_all_metrics_of_links_wait_for_nothing():
    metrics = LinkMetrics()
    rng = torch.Generator().manual_seed(3)
    with Waits():
        for unseen in (0.0, 0.5):
            positive, negatives = torch.rand(6, generator=rng), torch.rand(6, 49, generator=rng)
            metrics.update(positive, negatives, torch.rand(6, generator=rng) < unseen)
    assert metrics.compute().keys() == {*metrics.names}


@pytest.mark.usefixtures("behind")
@pytest.mark.parametrize("seed", range(5))
def test_snapshots_keep_old_rows_without_asking_which(seed, monkeypatch):
    monkeypatch.setattr(local, "_MOST_REPEATED", 24)
    spec = StateSpec(12, 3, 4, 2, own_half=False)
    store, rng = LocalStateStore(spec), torch.Generator().manual_seed(seed)

    def write(position, mode=contextlib.nullcontext):
        nodes, others = (torch.randperm(12, generator=rng)[:5] for _ in range(2))
        memory, mails = torch.rand(5, 3, generator=rng), torch.rand(5, 4, generator=rng)
        times = torch.rand(5, generator=rng).double()
        events = torch.arange(position, position + 5)
        update = StateUpdate(nodes, memory, times, others, mails, times, events, position + 5, nodes[:0])
        with mode():
            store.commit(update)

    for position in range(0, 20, 5):
        write(position)
    before = {name: table.clone() for name, table in vars(store.rows).items()}
    snapshot = store.snapshot()
    for position in range(20, 30, 5):
        write(position, Waits)
    for position in range(30, 200, 5):  # more rows than there are nodes, several times: now and then it asks
        write(position)
    assert snapshot["old"]._rows <= 3 * 12
    saved = store.state_dict(snapshot)
    store.restore(snapshot)
    for name, table in before.items():
        assert torch.equal(table, getattr(store.rows, name)), name
        assert torch.equal(table, saved[name]), name
