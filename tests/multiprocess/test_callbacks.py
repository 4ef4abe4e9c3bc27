"""The callbacks on two ranks: n changes everywhere at once and alters no loss; what is logged is what was counted."""

import copy
import csv
import json
import os
import pickle
import warnings
from pathlib import Path
from unittest import mock

import lightning.pytorch as pl
import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import (
    Callback,
    LearningRateFinder,
    ModelCheckpoint,
    OnExceptionCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_tgnn import (
    AdaptiveMicroBatch,
    Baselines,
    DepCacheStrategy,
    DepCommStrategy,
    DistTGLStrategy,
    ExchangeMonitor,
    LinkPrediction,
    ParallelismMonitor,
    PipeTGLStrategy,
    StaticMemory,
    StaticPretraining,
    SvenStrategy,
)
from lightning_tgnn.callbacks import exchange_monitor
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.comm import failure
from lightning_tgnn.files.static_memory import load_static_memory
from tests.algorithms.schedules.example_outlines import copies
from tests.multiprocess.ranks import forking, free_port, run_ranks
from tests.multiprocess.training import as_torchrun, build, fit

RANKS, EPOCHS, WINDOW, STEPS_PER_EPOCH = 2, 5, 4, 6
# What a step at each n takes on each rank. Rank 0 alone would take 3, rank 1 alone 1; the slowest decides: 2.
SECONDS = ({1: 5.0, 2: 3.0, 3: 1.0, 4: 9.0}, {1: 1.0, 2: 3.0, 3: 5.0, 4: 9.0})
COUNTS = 16  # bytes in which a rank tells another how many rows follow
TUNING = {"warm_up": 2, "profile": 3, "trial": 2, "largest": 4}
MONITORED = {
    "sven": lambda: SvenStrategy(partition="interval", staleness=0),
    "depcomm": lambda: DepCommStrategy(partition="interval"),
    "depcache": lambda: DepCacheStrategy(),
}

AVERAGED = {
    **MONITORED,
    "pipetgl": lambda: PipeTGLStrategy(),
    "disttgl": lambda: DistTGLStrategy(memory=2),
}
SEARCHED = {"sven": SvenStrategy, **{name: AVERAGED[name] for name in ("depcache", "pipetgl")}}


class Used(Callback):
    """Keeps the n of every step."""

    def __init__(self):
        self.used = []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.used.append(trainer.strategy.order.micro_batches)


class StopsWhenFound(Callback):
    """Ends the run one step after its tuner has found n, however many steps that took."""

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        tuners = (held for held in trainer.callbacks if isinstance(held, AdaptiveMicroBatch))
        trainer.should_stop = all(tuner.micro_batches is not None for tuner in tuners)


class GivenTimes(AdaptiveMicroBatch):
    """Tunes by a clock of its own, from a guess of its own."""

    def __init__(self, rank):
        super().__init__(**TUNING)
        self._seconds, self._time = SECONDS[rank], 0.0
        self._clock = self._tick

    def _tick(self):
        self._time += self._seconds[self._order.micro_batches]
        return self._time

    def _guess(self):
        return super()._guess()._replace(micro_batches=3)


class Untuned(Callback):
    """Stands where a tuner would."""

    micro_batches = None


class Counted(Callback):
    """Counts each step by itself, beside whoever else reads the counters."""

    def __init__(self):
        self.steps = []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self._before = trainer.strategy.exchange.traffic.snapshot()
        self._asked = self._cache(module)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        traffic = trainer.strategy.exchange.traffic
        flows = traffic.since(self._before)
        asked, found = (now - before for now, before in zip(self._cache(module), self._asked, strict=True))
        self.steps.append(
            {
                "sent": {name: flow.sent for name, flow in flows.items()},
                "both": sum(flow.sent + flow.received for flow in flows.values()),
                "to": torch.tensor([flow.sent_to for flow in flows.values()]).sum(0).tolist(),
                "asked": asked,
                "found": found,
                "entries": len(batch.root_index) + int(batch.neighbor_mask.sum()),
                "distinct": len(batch.nodes),
                "written": len(torch.cat([batch.src, batch.dst]).unique()),
            }
        )
        traffic.take()  # another reader

    def _cache(self, module):
        return getattr(module.state_store, "asked", 0), getattr(module.state_store, "found", 0)


def tuned(callback, *, epochs=EPOCHS, micro_batches="adaptive", **options):
    used = Used()
    data, task = build("tgn", 24 // RANKS)
    strategy = SvenStrategy(partition="interval", staleness=0, micro_batches=micro_batches)
    outcome = fit(data, task, strategy, RANKS, callbacks=[used, callback], epochs=epochs, **options)
    return outcome.pop("trainer"), {"used": used.used, "losses": outcome["losses"], "found": callback.micro_batches}


def brought():
    """Return n of the steps of a run whose strategy brings its tuner, and what the tuner has found."""
    used, saving = Used(), ModelCheckpoint(save_top_k=0)
    data, task = build("tgn", 24 // RANKS)
    strategy = SvenStrategy(partition="interval", micro_batches="adaptive")
    callbacks = [used, StopsWhenFound(), saving]
    trainer = fit(data, task, strategy, RANKS, callbacks=callbacks, enable_checkpointing=True)["trainer"]
    trainer.fit_loop.max_epochs = 100  # more steps than trials of every n would take
    trainer.fit(task, datamodule=data)
    tuner_places = [place for place, held in enumerate(trainer.callbacks) if isinstance(held, AdaptiveMicroBatch)]
    (place,) = tuner_places  # of two fits
    assert place < trainer.callbacks.index(saving)
    return {"used": used.used, "found": trainer.callbacks[place].micro_batches}


def monitored(name, folder):
    counted = Counted()
    loggers = [CSVLogger(folder, name, version=0)]
    if name == "sven":
        loggers.append(TensorBoardLogger(folder, "tensorboard", version=0))
    data, task = build("tgn", 24 // RANKS)
    monitor, drawn, draw = ExchangeMonitor(every_n_steps=WINDOW), [], exchange_monitor.residual_figure
    with mock.patch.object(exchange_monitor, "residual_figure", lambda sent: drawn.append(sent.clone()) or draw(sent)):
        fit(data, task, MONITORED[name](), RANKS, callbacks=[counted, monitor], epochs=2, logger=loggers)
    return {"steps": counted.steps, "latest": monitor.latest, "drawn": drawn}


def edge_bank(strategy, ranks):
    """Return the metrics of the baseline in validation and test, with one global batch for any number of ranks."""
    data, task = build("jodie", 24 // ranks)
    outcome = fit(data, task, strategy, ranks, callbacks=[Baselines()], epochs=1)
    (tested,) = outcome["trainer"].test(task, datamodule=data, verbose=False)
    return {name: value for name, value in (outcome["val"] | tested).items() if "/edgebank" in name}


def in_passes(folder):
    """Return what the monitor has found at the end of a run in which ranks read in turn."""
    data, task = build("jodie", 12)
    monitor = ParallelismMonitor(every_n_steps=4)
    logger = CSVLogger(folder, "passes", version=0)
    strategy = DistTGLStrategy(epoch=RANKS)
    outcome = fit(data, task, strategy, RANKS, callbacks=[ExchangeMonitor(1), monitor], epochs=1, logger=logger)
    served = task.state_store.served
    assert outcome["gradients"].isfinite().all()
    return {"latest": monitor.latest, "served": served, "steps": len(outcome["losses"])}


def in_lanes():
    """Return what each turn has sent where ranks begin batches in turn, over rows that are cut."""
    counted, strategy = Counted(), DistTGLStrategy(epoch=RANKS, store="sharded", partition="interval")
    fit(*build("tgn", 12), strategy, RANKS, callbacks=[counted], epochs=1, limit_val_batches=0)
    return [step["sent"] for step in counted.steps]


def static_rows(rank, ranks, folder):
    """Pretrain, then return the rows after runs that keep and train them, and why other files on ranks are refused."""
    file = f"{folder}/static.pt"
    sven = lambda: SvenStrategy(partition="interval")  # noqa: E731
    built = lambda: build("tgn", 24 // ranks, static_dim=4)  # noqa: E731
    fit(*built(), sven(), ranks, callbacks=[StaticPretraining(file)], epochs=1, limit_val_batches=0)
    dist.barrier()
    rows = {"file": load_static_memory(file).rows}
    for trained in (False, True):
        outcome = fit(*built(), sven(), ranks, callbacks=[StaticMemory(file, trained)], epochs=1)
        rows[trained] = outcome["weights"]["model.static_memory.weight"]
    held = torch.load(file)
    torch.save({**held, "rows": held["rows"] + rank}, f"{folder}/static-{rank}.pt")
    try:
        fit(*built(), sven(), ranks, callbacks=[StaticMemory(f"{folder}/static-{rank}.pt")], epochs=1)
    except InvalidArgumentError as error:
        rows["refused"] = str(error)
    return rows


class Decay(Callback):
    """Changes weights after every step."""

    @torch.no_grad()
    def on_train_batch_end(self, trainer, module, *_):
        for weight in module.parameters():
            weight.mul_(0.99)


def decayed(strategy, ranks, **options):
    """Return why a run is refused whose weights change by themselves; None where it is not."""
    try:
        fit(*build("tgn", 20, lr=1e-2), strategy, ranks, callbacks=[Decay()], epochs=1, **options)
    except InvalidArgumentError as error:
        return str(error)
    return None


def compared_after(ranks):
    """Return how often ranks that take turns have compared their weights when a fit is over, and when it is saved."""
    outcome = fit(*build("tgn", 20), PipeTGLStrategy(), ranks, epochs=1)
    traffic = outcome["trainer"].strategy._updates._messages.traffic
    counts = [traffic.snapshot()["sizes of weights"].calls]
    outcome["trainer"].strategy.lightning_module_state_dict()
    return [*counts, traffic.snapshot()["sizes of weights"].calls]


def searched(make, ranks):
    """Return what a run ends with, without and with a search for a rate at its beginning that changes nothing."""
    ends = []
    for callbacks in ([], [LearningRateFinder(num_training_steps=3, update_attr=False)]):
        data, task = build("tgn", 20)
        found = fit(data, task, make(), ranks, callbacks=callbacks, epochs=1, max_steps=5, limit_val_batches=0)
        ends.append([*found["weights"].values(), *found["trainer"].strategy.strategy_state()["gradients"].values()])
    return ends


def averaged(strategy, ranks):
    """Train with averages of the weights, look at them, and copy the task in between."""
    data, task = build("tgn", 15)
    trained = fit(data, task, strategy, ranks, callbacks=[StochasticWeightAveraging(1e-2, 1)])
    first = trained["trainer"].test(task, data, verbose=False)
    copies = [copy.deepcopy(task), pickle.loads(pickle.dumps(task))]
    second = trained["trainer"].test(task, data, verbose=False)
    weights = [torch.cat([weight.detach().flatten() for weight in one.parameters()]) for one in (task, *copies)]
    return {
        "weights": weights[0],
        "copied": all(torch.equal(weights[0], others) for others in weights[1:]),
        "with state": any(one.has_state_store for one in copies),
        "undisturbed": first == second,
    }


def on_rank(rank, ranks, folder):
    as_torchrun(rank, ranks)
    answers = {
        "fixed": tuned(Untuned(), micro_batches=2)[1],
        "measured": tuned(AdaptiveMicroBatch(**TUNING))[1],
    }
    answers["overruled"] = tuned(AdaptiveMicroBatch(**TUNING), micro_batches=3, epochs=1)[1]
    answers["brought"] = brought()
    logger = CSVLogger(folder, "tuned", version=0)
    trainer, answers["given"] = tuned(GivenTimes(rank), logger=logger)
    checkpoint = str(Path(folder) / "tuned.ckpt")
    trainer.save_checkpoint(checkpoint)
    _, answers["resumed"] = tuned(GivenTimes(rank), epochs=EPOCHS + 1, ckpt_path=checkpoint)
    answers["passes"] = in_passes(folder)
    answers["lanes"] = in_lanes()
    answers["edge bank"] = {name: edge_bank(make(), ranks) for name, make in MONITORED.items()}
    answers |= {name: monitored(name, folder) for name in MONITORED}
    answers["compared"] = compared_after(ranks)
    answers["decayed"] = [
        decayed(PipeTGLStrategy(), ranks),
        decayed(PipeTGLStrategy(), ranks, limit_val_batches=0),
        decayed(PipeTGLStrategy(sends="weights_and_moments"), ranks),
        decayed(SvenStrategy(), ranks),
    ]
    answers["searched"] = {name: searched(make, ranks) for name, make in SEARCHED.items()}
    answers["averaged"] = {name: averaged(make(), ranks) for name, make in AVERAGED.items()}
    return answers | {"static": static_rows(rank, ranks, folder)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def ranks(folder):
    return run_ranks(on_rank, RANKS, str(folder), timeout=150)


def rows(folder, name):
    with (folder / name / "version_0" / "metrics.csv").open() as lines:
        return [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(lines)]


def reported(folder, name):
    return [row for row in rows(folder, name) if "exchange/total_bytes" in row]


def test_all_ranks_change_n_at_the_same_step_and_the_slowest_decides(ranks):
    plan = [1] * (2 + 3) + [3] * 2 + [2] * 2 + [4] * 2 + [1] * 2  # then 2 has won, whose neighbours have been tried
    for answer in ranks:
        used = answer["given"]["used"]
        assert used == plan + [2] * (EPOCHS * STEPS_PER_EPOCH - len(plan))
        assert answer["given"]["found"] == 2


def test_ranks_that_take_turns_do_not_come_to_have_other_weights(ranks):
    for answer in ranks:
        *refused, others, sven = answer["decayed"]
        assert len(set(refused)) == 1
        assert refused[0].startswith("weights must be changed by the gradients of all ranks alone, where ranks take")
        assert others is sven is None


def test_weights_are_compared_where_they_may_have_changed(ranks):
    for answer in ranks:
        assert answer["compared"] == [1, 1]  # in the validation at the end: nothing has changed since


@pytest.mark.parametrize("name", SEARCHED)
def test_a_run_is_the_same_after_a_search_for_a_rate(ranks, name):
    for answer in ranks:
        without, after = answer["searched"][name]
        assert len(without) == len(after)
        for one, other in zip(without, after, strict=True):
            assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))


@pytest.mark.parametrize("name", AVERAGED)
def test_a_task_is_averaged_and_copied_between_runs(ranks, name):
    answers = [answer["averaged"][name] for answer in ranks]
    assert torch.equal(*(answer["weights"] for answer in answers))
    alone = name == "disttgl"  # of which each of two ranks has node state of its own
    for answer in answers:
        assert (answer["copied"], answer["with state"], answer["undisturbed"]) == (True, alone, True)


def test_with_a_real_clock_ranks_stay_together(ranks):
    assert ranks[0]["measured"]["used"] == ranks[1]["measured"]["used"]
    assert len(set(ranks[0]["measured"]["used"])) > 1
    assert ranks[0]["measured"]["found"] == ranks[1]["measured"]["found"] is not None


def test_the_strategy_brings_what_finds_n(ranks):
    for answer in ranks:
        assert len(set(answer["brought"]["used"])) > 1
        assert answer["brought"]["found"] == ranks[0]["brought"]["found"] == answer["brought"]["used"][-1]


@pytest.mark.parametrize("case", ["given", "measured"])
def test_losses_do_not_depend_on_n(ranks, case):
    for answer in ranks:
        torch.testing.assert_close(answer[case]["losses"], answer["fixed"]["losses"], rtol=1e-4, atol=1e-5)


def test_a_number_overrules(ranks):
    for answer in ranks:
        assert answer["overruled"]["used"] == [3] * STEPS_PER_EPOCH
        assert answer["overruled"]["found"] is None


def test_a_resumed_run_keeps_what_was_found(ranks):
    for answer in ranks:
        assert answer["resumed"]["used"] == [2] * STEPS_PER_EPOCH


def test_n_is_logged_where_it_changes(ranks, folder):
    logged = [row["sven/micro_batches"] for row in rows(folder, "tuned") if "sven/micro_batches" in row]
    assert logged == [3, 2, 4, 1, 2]


def test_parallelism_is_logged_where_ranks_read_in_turn(ranks, folder):
    logged = [row for row in rows(folder, "passes") if "parallelism/effective" in row]
    assert len(logged) == -(-ranks[0]["passes"]["steps"] // 4)
    for row in logged:
        assert 0 < row["parallelism/effective"] <= RANKS
        assert 0 < row["memory_process/busy_share"] < 1
        assert row["parallelism/information_loss"] == logged[0]["parallelism/information_loss"] > 0
    for row in logged[:-1]:  # in the last turn nobody reads or writes
        assert row["memory_process/wait_milliseconds"] > 0
        assert row["memory_process/rows_read_per_second"] > 0
        assert row["memory_process/rows_written_per_second"] > 0
        assert row["memory_process/queue_depth"] > 0
    (spread,) = {row.get("parallelism/gradient_variance") for row in logged[1:2]}
    assert spread == pytest.approx(logged[1]["parallelism/gradient_variance_epoch"])  # there is nothing else
    assert spread > 0
    assert "parallelism/gradient_variance" not in logged[-1]  # the last turn leaves a rank without events
    assert ranks[0]["passes"]["latest"] == ranks[1]["passes"]["latest"]
    assert ranks[0]["passes"]["served"].rows_read > 0


def test_the_lane_that_begins_a_batch_has_rows_and_all_ranks_take_part(ranks):
    """As the outline says: what is asked for and written is of the rank whose lane begins; the other one answers."""
    outline, steps = copies(epoch=RANKS, sharded=True).outline(), [answer["lanes"] for answer in ranks]
    assert len(steps[0]) == len(steps[1]) == 13
    for turn, per_rank in enumerate(zip(*steps, strict=True)):
        for rank, sent in enumerate(per_rank):
            begins = bool(outline.begins_batch(turn, rank, RANKS)) and turn < 12  # nothing begins behind the last
            assert (sent["request"] > COUNTS, sent["aggregation"] > COUNTS) == (begins, begins), (turn, rank, sent)
            assert (sent["dispatch"] > 0) == (not begins and turn < 12), (turn, rank, sent)


@pytest.fixture(scope="module")
def edge_bank_alone():
    return edge_bank("auto", 1)


@pytest.mark.parametrize("name", MONITORED)
def test_edge_bank_measures_what_one_process_does(ranks, edge_bank_alone, name):
    parts = [f"{part}/{bank}/ap" for part in ("val", "test") for bank in ("edgebank", "edgebank_window")]
    assert all(0.4 < edge_bank_alone[part] < 1 for part in parts)
    for answer in ranks:
        assert answer["edge bank"][name] == pytest.approx(edge_bank_alone, abs=1e-6, nan_ok=True)


def windows():
    """Steps of each window: the last of an epoch is shorter."""
    for epoch in range(2):
        first = epoch * STEPS_PER_EPOCH
        yield range(first, first + WINDOW)
        yield range(first + WINDOW, first + STEPS_PER_EPOCH)


@pytest.mark.parametrize("name", MONITORED)
def test_what_is_logged_is_what_was_counted(ranks, folder, name):
    logged = reported(folder, name)
    assert len(logged) == 4
    for row, window in zip(logged, windows(), strict=True):
        every = [[answer[name]["steps"][step] for step in window] for answer in ranks]
        flat = [step for steps in every for step in steps]
        operations = {operation for step in flat for operation in step["sent"]}
        for operation in operations:
            sent = sum(step["sent"].get(operation, 0) for step in flat)
            assert row[f"exchange/{operation}_bytes"] == pytest.approx(sent / len(window))
        total = sum(sum(step["sent"].values()) for step in flat)
        assert row["exchange/total_bytes"] == pytest.approx(total / len(window))
        load = [sum(step["both"] for step in steps) for steps in every]
        assert row["exchange/max_over_mean"] == pytest.approx(max(load) * RANKS / sum(load))
        assert 0 <= row["exchange/hidden_share"] <= 1
        asked, found = (sum(step[what] for step in flat) for what in ("asked", "found"))
        assert row.get("exchange/cache_hit_rate", 0) == pytest.approx(found / asked if asked else 0)
        assert row["sven/staleness"] == 0
        assert row.get("sven/micro_batches") == (1 if name == "sven" else None)
        distinct, written, entries = (sum(step[k] for step in flat) for k in ("distinct", "written", "entries"))
        d_row = 6 + 2 * 6 + 4
        assert row["exchange/formula_sven_bytes"] == pytest.approx((distinct + written) * d_row * 2 / len(window))
        assert row["exchange/formula_depcomm_bytes"] == pytest.approx((entries * 6 + written * d_row) * 2 / len(window))
    assert ranks[0][name]["latest"] == ranks[1][name]["latest"]


def test_sven_sends_less_than_the_formula_of_depcomm_and_uses_its_cache(ranks):
    latest = ranks[0]["sven"]["latest"]
    assert latest["exchange/cache_hit_rate"] > 0
    assert latest["exchange/total_bytes"] < ranks[0]["depcomm"]["latest"]["exchange/total_bytes"]


def test_tensorboard_has_curves_and_the_heat_map(ranks, folder):
    events = EventAccumulator(str(folder / "tensorboard" / "version_0"), size_guidance={"images": 0}).Reload()
    assert {"exchange/total_bytes", "exchange/hidden_share", "sven/staleness"} <= set(events.Tags()["scalars"])
    assert len(events.Images("exchange/residual")) == 2
    curve = [event.value for event in events.Scalars("exchange/total_bytes")]
    assert curve == pytest.approx([row["exchange/total_bytes"] for row in reported(folder, "sven")])


def test_the_heat_map_is_of_the_bytes_between_each_pair_in_its_epoch(ranks):
    assert ranks[1]["sven"]["drawn"] == []
    assert len(ranks[0]["sven"]["drawn"]) == 2
    for epoch, matrix in enumerate(ranks[0]["sven"]["drawn"]):
        for rank in range(RANKS):
            steps = ranks[rank]["sven"]["steps"][epoch * STEPS_PER_EPOCH : (epoch + 1) * STEPS_PER_EPOCH]
            sent = torch.tensor([step["to"] for step in steps]).sum(0)
            assert matrix[rank].tolist() == sent.tolist()
            assert sent[rank] == 0
            assert sent.sum() == sum(sum(step["sent"].values()) for step in steps)


def test_static_node_memory_is_the_same_on_all_ranks(ranks):
    first, second = (answer["static"] for answer in ranks)
    for rows in (first, second):
        assert torch.equal(rows[False], rows["file"])
        assert not torch.isclose(rows[True], rows["file"]).all(1).any()
    for what in ("file", False, True):
        assert torch.equal(first[what], second[what])
    for rows in (first, second):
        assert "path must be the same file on all ranks" in rows["refused"]


CHOSEN = {
    "sven": lambda: SvenStrategy(partition="interval"),
    "sven, sharded": lambda: SvenStrategy(partition="interval", state_dict_type="sharded"),
    "pipetgl": lambda: PipeTGLStrategy(),
    "disttgl": lambda: DistTGLStrategy(minibatch=2, store="sharded"),
}


def choose(rank, ranks, folder):
    """Return by strategy what each rank takes for the best checkpoint; each has a training loss of its own."""
    as_torchrun(rank, ranks)
    chosen = {}
    for name, strategy in CHOSEN.items():
        best = [
            ModelCheckpoint(f"{folder}/{name}/named", monitor="val/ap", mode="max", filename="{step} {train/loss:.9f}"),
            ModelCheckpoint(f"{folder}/{name}/chosen", monitor="train/loss", every_n_train_steps=2, save_top_k=2),
        ]
        data, task = build("tgn", 12, task_class=LinkPrediction)
        trainer = fit(data, task, strategy(), ranks, callbacks=best, epochs=3, enable_checkpointing=True)["trainer"]
        chosen[name] = [(one.best_model_path, float(one.best_model_score), *sorted(one.best_k_models)) for one in best]
        assert not any("_monitor_candidates" in vars(one) for one in best)
        trainer.test(task, datamodule=data, ckpt_path=best[0].best_model_path, verbose=False)
    return chosen


def test_all_ranks_take_the_first_ones_figures_for_the_names_and_choice_of_checkpoints(tmp_path):
    first, second = run_ranks(choose, 2, str(tmp_path))
    assert first == second
    for named, chosen in first.values():
        for path, _, *kept in (named, chosen):
            assert path in kept
            assert all(Path(one).exists() for one in kept)
        assert "train/loss=0" in named[0] or "train/loss=1" in named[0]


class Fails(Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if batch_idx == 2:
            raise RuntimeError("of a callback")


def fail(rank, ranks, port, failing, state_dict_type, folder):
    """Write down by what a rank ends, and whether it has warned that nothing is saved."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    as_torchrun(rank, ranks)
    places = folder / "kept", folder / "other"
    saving = [ModelCheckpoint(places[0], filename="a", save_on_exception=True), OnExceptionCheckpoint(places[1])]
    callbacks = [*saving, *([Fails()] if rank in failing else [])]
    strategy = SvenStrategy(partition="interval", state_dict_type=state_dict_type)
    if len(failing) < ranks:  # nobody else will come
        failure._ALIKE_SECONDS = 1.0
    ended = None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            fit(*build("tgn", 12), strategy, ranks, callbacks=callbacks, epochs=1, enable_checkpointing=True)
        except Exception as error:
            ended = type(error).__name__
    said = [str(warning.message) for warning in warned if "no checkpoint is saved" in str(warning.message)]
    (folder / f"{rank}.json").write_text(json.dumps([ended, said]))


def ends_of(failing, folder, state_dict_type="full"):
    port = free_port()
    processes = [
        forking().Process(target=fail, args=(rank, 2, port, failing, state_dict_type, folder)) for rank in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        process.kill()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("state_dict_type", ["full", "sharded"])
def test_an_error_of_all_ranks_leaves_a_checkpoint(tmp_path, state_dict_type):
    assert ends_of((0, 1), tmp_path, state_dict_type) == [["RuntimeError", []]] * 2
    data, task = build("tgn", 12)
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
    trainer.validate(task, datamodule=data, ckpt_path=tmp_path / "kept/a.ckpt", verbose=False)
    assert task.state_store.position == 2 * 24


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_of_one_rank_leaves_none_and_nobody_waits_for_ever(tmp_path, failing):
    ends = ends_of((failing,), tmp_path)
    said = f"rank {failing}: no checkpoint is saved on RuntimeError, by which not all ranks end"
    assert ends[failing] == ["RuntimeError", [said, said]]
    assert ends[1 - failing][0] is not None
    assert not list(tmp_path.rglob("*.ckpt"))
