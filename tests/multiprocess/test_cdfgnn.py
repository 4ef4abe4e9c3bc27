"""CDFGNN on several ranks: its cache and quantiser against a slow simulation, resuming, and what its callbacks see."""

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_tgnn import CacheThreshold, CDFGNNStrategy, ExchangeMonitor, FullGraphDataModule, NodeClassification
from lightning_tgnn.algorithms.traffic.cache_policy import ErrorController, ThresholdController
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.comm import Exchange
from lightning_tgnn.data import Graph, generate_graph
from lightning_tgnn.data.graphs.loader import subgraphs
from lightning_tgnn.state import CachedReplicaSum
from lightning_tgnn.types import EVERY
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.training import Quiet, as_torchrun
from tests.replay.slow_replicas import SlowReplicas
from tests.replay.slow_sums import SlowBlocks, SlowSums

HOSTS = torch.tensor([0, 0, 1, 1])


def graph():
    """60 vertices: a star whose hub is on every rank, isolated vertices, loops, and communities."""
    made = generate_graph(60, 150, 3, 7, seed=2)
    inner = (made.src < 56) & (made.dst < 56)
    spokes = torch.arange(30)
    src = torch.cat([made.src[inner], spokes, torch.tensor([5, 5])])
    dst = torch.cat([made.dst[inner], torch.full_like(spokes, 7), torch.tensor([5, 9])])
    return Graph(src, dst, made.features, made.labels, made.train, made.val, made.test)


class Recorder(pl.Callback):
    """Keeps losses, gradients and logits by vertex."""

    def __init__(self):
        self.losses, self.gradients = [], []

    def on_train_batch_end(self, trainer, module, outputs, part, batch_idx):
        self.losses.append(outputs["loss"].detach())

    def on_before_optimizer_step(self, trainer, module, optimizer):
        self.gradients.append(torch.cat([parameter.grad.flatten().clone() for parameter in module.parameters()]))


class QuietNodes(Quiet, NodeClassification):
    pass


def build(model="gcn", self_loops=True, task_class=QuietNodes, **options):
    torch.manual_seed(1)  # not seed_everything: that would seed whatever other tests start from this process
    data = FullGraphDataModule(graph(), self_loops=self_loops)
    settings = {"hidden_dim": 8, "num_layers": 3, "dropout": 0.3, "layer_norm": True, "heads": 2} | options
    return data, task_class(model, **settings)


def fit(
    strategy,
    ranks,
    model="gcn",
    hosts=1,
    epochs=4,
    callbacks=(),
    ckpt_path=None,
    logger=False,
    validate_every=1,
    saved_at=None,
    **options,
):
    (data, task), recorder = build(model, **options), Recorder()
    trainer = pl.Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=ranks // hosts,
        num_nodes=hosts,
        max_epochs=epochs,
        callbacks=[recorder, *callbacks],
        logger=logger,
        enable_checkpointing=any(isinstance(callback, ModelCheckpoint) for callback in callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        check_val_every_n_epoch=validate_every,
        log_every_n_steps=1,
    )
    trainer.fit(task, datamodule=data, ckpt_path=ckpt_path)
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    plan = getattr(trainer.strategy, "planned", None)
    state = getattr(trainer.strategy, "replica_state", None)
    replicas, controller = state and state.replicas, state and state.controller
    if replicas:
        state._follow_errors()  # of the last step, as a checkpoint does
    (answer,) = trainer.predict(task, datamodule=data)
    if saved_at is not None:  # by whoever has looked at what was trained
        trainer.save_checkpoint(saved_at)
    return {
        "losses": torch.stack(recorder.losses),
        "gradients": torch.stack(recorder.gradients),
        "weights": {name: value.clone() for name, value in task.state_dict().items()},
        "figures": metrics,
        "answer": answer,
        "threshold": replicas and (replicas.threshold, dict(replicas.thresholds)),
        "mean": controller and controller.mean,
        "rows": replicas and replicas.rows,
        "plan": plan,
    }


BLOCKS = [(0.0, None, True), (0.15, None, True), (0.2, None, False), (0.2, 8, True), (0.25, 4, False)]
SUMS = [(0.0, None), (0.0, 8), (0.2, None), (0.2, 8), (0.05, 4), (0.2, 2), (0.05, 16)]
SUMS = [(True, threshold, bits, relay) for threshold, bits in SUMS for relay in (True, False)]
SUMS += [("sancus", threshold, bits, relay) for threshold, bits, relay in BLOCKS]
STEPS, WIDTH = 6, 5


def values_of(rank, step, count):
    """Values that move by steps of different size, some not at all."""
    still = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(rank))
    moved = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))
    return still + moved * (torch.arange(count) % 3).unsqueeze(1) * 0.1


def cut(ranks):
    whole = graph()
    part = torch.arange(len(whole.src)) * 7 % ranks
    return whole, part, SlowReplicas(whole.src, whole.dst, part, whole.num_nodes, HOSTS)


def sum_cases(rank, ranks):
    whole, part, _ = cut(ranks)
    exchange = Exchange(ranks, rank, torch.distributed.new_group())
    answers = []
    for cache, threshold, bits, relay in SUMS:
        own = subgraphs(whole, torch.ones(len(whole.src)).__getitem__, part, HOSTS, rank, relay=relay)["train"]
        assert len(own.hops) == 1 + relay
        sums = CachedReplicaSum(exchange, own.hops, len(own.nodes), cache=cache, bits=bits, threshold=threshold)
        steps = [sums.total(values_of(rank, step, len(own.nodes)), "layer", "forward") for step in range(STEPS)]
        answers.append((own.nodes, steps, sums.take_rows()["layer/forward"]))
    assert_late_sums_are_the_same(exchange, own)
    return answers


def assert_late_sums_are_the_same(exchange, own):
    """Compare rows of sums with what is computed of some of them while others are on their way, in three steps."""
    count, order = len(own.nodes), []
    torch.manual_seed(1)
    weight = torch.nn.Linear(WIDTH, 3)

    def then(sums, places):
        sums.register_hook(lambda grad: order.append((len(grad), "gradient")))
        order.append((len(sums), "sums"))
        return weight(sums).relu() * own.nodes[places].unsqueeze(1)

    for cache, bits in ((True, None), (True, 8), (False, None)):
        several = [CachedReplicaSum(exchange, own.hops, count, cache=cache, bits=bits, threshold=0.1) for _ in range(2)]
        for step in range(3):
            found = []
            for sums, late in zip(several, (False, True), strict=True):
                order.clear()
                values = values_of(exchange.rank, step, count).requires_grad_()
                rows = sums(values, "key", (), then) if late else then(sums(values, "key"), EVERY)
                (rows * torch.arange(3.0)).sum().backward()
                found.append([rows.detach(), values.grad, weight.weight.grad])
                weight.zero_grad()
            torch.testing.assert_close(*found, rtol=1e-4, atol=1e-3)  # gradients of weights are sums over vertices
        assert several[0].take_rows() == several[1].take_rows()
        alone, shared = len(several[0].hops.alone), len(several[0].hops.shared)
        assert min(alone, shared) > 0
        # Gradients of the shared rows are sent before the others are computed.
        assert order == [(alone, "sums"), (shared, "sums"), (shared, "gradient"), (alone, "gradient")]


@pytest.mark.timeout(300)
def test_cache_and_quantiser_equal_the_simulation():
    outcomes, ranks = run_ranks(sum_cases, 4, timeout=280), 4
    _, _, replicas = cut(ranks)
    for number, (cache, threshold, bits, relay) in enumerate(SUMS):
        slow, sent = (SlowBlocks if cache == "sancus" else SlowSums)(replicas, threshold, bits, relay), 0
        nodes = [outcomes[rank][number][0] for rank in range(ranks)]
        for step in range(STEPS):
            values = [values_of(rank, step, len(nodes[rank])) for rank in range(ranks)]
            per_vertex = [dict(zip(nodes[r].tolist(), values[r], strict=True)) for r in range(ranks)]
            wanted, count = slow.step(per_vertex)
            sent += count
            for rank in range(ranks):
                ours = outcomes[rank][number][1][step]
                theirs = torch.stack([wanted[rank][v] for v in nodes[rank].tolist()])
                torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
        assert sum(outcomes[rank][number][2].sent for rank in range(ranks)) == sent
        possible = sum(outcomes[rank][number][2].possible for rank in range(ranks))
        assert possible == STEPS * 2 * int((replicas.present.sum(0) - 1).sum())
        # A third of the vertices stands still, but no block does.
        assert sent == possible if cache == "sancus" and threshold == 0 else sent < possible


KEPT = {
    "epochs": (None, {"every_n_epochs": 1}),
    "validation": (8, {"every_n_epochs": 1, "save_on_train_epoch_end": False}),
    "steps": (8, {"every_n_train_steps": 1}),
    "paper": (8, {"every_n_epochs": 1}),
}


def of_an_older_version(path, copy):
    """Return a copy of a checkpoint in which the ranks of edges are int32, as they were before they had 8 bits."""
    saved = torch.load(path, weights_only=True)
    (holder,) = holders_of("part", saved)
    assert holder["part"].dtype == torch.uint8
    holder["part"] = holder["part"].int()
    torch.save(saved, copy)
    return copy


def holders_of(key, held):
    """Return the dicts in what is held that have a key."""
    if not isinstance(held, dict):
        return []
    return [held] * (key in held) + [holder for value in held.values() for holder in holders_of(key, value)]


def resumed_cases(rank, ranks, folder):
    as_torchrun(rank, ranks)
    first = {"adaptive": ErrorController().threshold, "paper": ThresholdController().threshold}
    for name, (bits, when) in KEPT.items():
        keep = ModelCheckpoint(f"{folder}/{name}", save_top_k=-1, filename="{step}", **when)
        threshold = "paper" if name == "paper" else "adaptive"
        strategy = lambda bits=bits, threshold=threshold: CDFGNNStrategy(bits=bits, threshold=threshold)  # noqa: E731
        once = fit(strategy(), ranks, epochs=8, callbacks=[keep], validate_every=2)
        path = f"{folder}/{name}/step=4.ckpt"
        torch.load(path, weights_only=True)
        again = fit(strategy(), ranks, epochs=8, ckpt_path=path, validate_every=2)
        assert torch.equal(once["losses"][4:], again["losses"]), (name, once["losses"], again["losses"])
        assert once["threshold"] == again["threshold"], name
        assert {once["threshold"][0], *once["threshold"][1].values()} - {first[threshold]}, name
        assert once["mean"] == again["mean"], name
        assert all(torch.equal(once["weights"][key], again["weights"][key]) for key in once["weights"]), name
        if name == "steps":
            later = f"{folder}/later.ckpt"
            fit(strategy(), ranks, epochs=4, validate_every=2, saved_at=later)
            again = fit(strategy(), ranks, epochs=8, validate_every=2, ckpt_path=later)
            assert torch.equal(once["losses"][4:], again["losses"]), (once["losses"], again["losses"])
            repeated = fit(strategy(), ranks, epochs=8, validate_every=2)
            assert torch.equal(once["losses"], repeated["losses"])
            fixed = fit(CDFGNNStrategy(threshold=0.0), ranks, epochs=5, ckpt_path=path)
            assert fixed["threshold"] == (0.0, {})  # what is set goes before what a checkpoint has found
            # The cut of the checkpoint goes before the strategy's, and is what it was where its ranks have 32 bits.
            older = fit(
                CDFGNNStrategy(bits=bits, partition="random"),
                ranks,
                epochs=8,
                ckpt_path=of_an_older_version(path, f"{folder}/older-{rank}.ckpt"),
                validate_every=2,
            )
            assert torch.equal(once["losses"][4:], older["losses"]), (once["losses"], older["losses"])
            assert all(torch.equal(once["weights"][key], older["weights"][key]) for key in once["weights"])
    return True


@pytest.mark.timeout(200)
def test_a_run_repeats_and_resumes_bit_for_bit(tmp_path):
    assert run_ranks(resumed_cases, 3, str(tmp_path), timeout=120) == [True] * 3


def monitored_cases(rank, ranks, folder):
    as_torchrun(rank, ranks)
    monitor, logger = CacheThreshold(threshold=0.05), TensorBoardLogger(folder, "cache", version=0)
    outcome = fit(CDFGNNStrategy(), ranks, epochs=5, callbacks=[monitor, ExchangeMonitor()], logger=logger)
    return monitor.history, outcome["threshold"], outcome["figures"]


@pytest.mark.timeout(120)
def test_the_callback_sets_the_threshold_and_logs_what_all_ranks_did(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    outcomes = run_ranks(monitored_cases, 2, str(tmp_path), timeout=110)
    assert outcomes[0][0] == outcomes[1][0]
    history, threshold, _ = outcomes[0]
    assert history[0] == (0.05, 1.0)  # the first exchange sends everything
    assert len(history) == 5
    assert all(0 < share < 1 for _, share in history[1:])  # after it some rows stay
    assert history[-1][0] == pytest.approx(sum(threshold[1].values()) / len(threshold[1]), rel=0.11)  # a step later
    logged = EventAccumulator(str(tmp_path / "cache" / "version_0"), size_guidance={"scalars": 0}).Reload()
    keys = {"cache/threshold", "cache/sent", "cache/bytes", "cache/bytes_saved", "cache/layer 2/backward_error"}
    assert keys <= set(logged.Tags()["scalars"])
    assert "cache/epochs" in logged.Tags()["images"]


def width_cases(rank, ranks):
    as_torchrun(rank, ranks)
    settings = {"ranks": ranks, "model": "gat", "epochs": 1, "dropout": 0.0}
    first = [fit(CDFGNNStrategy(cache=False, bits=bits), **settings)["losses"] for bits in (None, 8)]

    strategy, losses = CDFGNNStrategy(), []
    data = FullGraphDataModule(graph())
    silent = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(strategy=strategy, accelerator="cpu", devices=ranks, max_epochs=2, **silent)
    for number, strategy_of_fit in enumerate([strategy, strategy, CDFGNNStrategy()]):
        torch.manual_seed(1)
        recorder = Recorder()
        if strategy_of_fit is not strategy:
            trainer = pl.Trainer(strategy=strategy_of_fit, accelerator="cpu", devices=ranks, max_epochs=2, **silent)
        trainer.callbacks.append(recorder)
        trainer.fit_loop.max_epochs = 4 if number == 1 else 2
        trainer.fit(NodeClassification(hidden_dim=8 if number == 0 else 12, dropout=0.0), datamodule=data)
        losses.append(torch.stack(recorder.losses))
        trainer.callbacks.remove(recorder)
    sums = strategy_of_fit.replica_state.replicas
    values = torch.ones(sums.hops._num_nodes, 3)
    sums.total(values, "own", "forward")
    with pytest.raises(InvalidArgumentError, match="values must be 3 columns wide, as before for 'own', got 2"):
        sums.total(values[:, :2], "own", "forward")
    return first, losses


@pytest.mark.timeout(150)
def test_heads_are_quantised_apart_and_one_fit_leaves_nothing_to_the_next():
    for (exact, coarse), (_, again, fresh) in run_ranks(width_cases, 2, timeout=140):
        torch.testing.assert_close(coarse, exact, rtol=0.02, atol=0)
        assert torch.equal(again, fresh)
