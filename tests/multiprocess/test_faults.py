"""What the other ranks do when one dies or fails, and what is refused before a run starts."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lightning_tgnn import DepCacheStrategy, SvenStrategy
from lightning_tgnn.algorithms.schedules import DataParallel
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.types import RankLayout
from tests.multiprocess import faulty_run
from tests.multiprocess.faulty_run import PAIRS, RANKS
from tests.multiprocess.ranks import Started, free_port, run_ranks
from tests.multiprocess.training import as_torchrun, build, fit


def start(run, where, how, folder, victim=1):
    Path(folder).mkdir(parents=True, exist_ok=True)
    ranks = 2 if run in PAIRS else RANKS
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    shared |= {"TORCHELASTIC_RUN_ID": str(folder), "LOCAL_WORLD_SIZE": str(ranks), "GROUP_RANK": "0"}
    shared |= {"VICTIM": str(victim)}
    started = []
    for rank in range(ranks):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        pipe = f"{folder}/{where}-{rank}.pipe"
        started.append(Started(faulty_run.main, (run, where, how, str(folder)), shared | own, pipe))
    return started


def finish(started, timeout):
    """Return exit codes and what was printed."""
    deadline = time.monotonic() + timeout
    try:
        return list(zip(*[process.finish(deadline) for process in started], strict=True))
    finally:
        for process in started:
            process.kill()


def break_one(run, where, how, folder, victim=1):
    """Let a rank die or fail; the other ranks have to end with its name."""
    codes, outputs = finish(start(run, where, how, folder, victim), timeout=60)
    for rank in {*range(len(codes))} - {victim}:
        assert codes[rank] == 1, (where, how, codes[rank], outputs[rank])
        words = {
            "raise": f"rank {victim} has failed with ValueError: this rank is unwell",
            "nan": f"rank {victim} has failed with NotFiniteError: loss in batch ",
        }.get(how, f"rank {victim} has gone")
        assert words in outputs[rank], (where, how, rank, outputs[rank][-3000:])
        assert "Traceback" not in outputs[rank], (where, how, rank, outputs[rank][-3000:])
    assert (Path(folder) / "last.ckpt").exists(), (where, how)


@pytest.mark.timeout(280)
def test_the_others_end_and_name_the_rank_and_the_last_checkpoint_resumes(tmp_path):
    cases = [
        ("dispatch", "kill"),
        ("aggregation", "kill"),
        ("all_reduce", "kill"),
        ("dispatch", "raise"),
        ("loss", "nan"),
    ]
    for where, how in cases:
        folder = tmp_path / where / how
        break_one("sven", where, how, folder)
        codes, outputs = finish(start("sven", "nowhere", how, folder), timeout=60)
        assert codes == (0, 0, 0), outputs
        assert all("finished 12" in output for output in outputs), outputs


@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    ("where", "how"), [("announcement", "kill"), ("announcement", "raise"), ("dispatch", "raise"), ("loss", "nan")]
)
def test_nobody_waits_for_what_a_rank_that_fails_was_to_announce(tmp_path, where, how):
    break_one("announced", where, how, tmp_path)
    codes, outputs = finish(start("announced", "nowhere", how, tmp_path), timeout=60)
    assert codes == (0, 0, 0), outputs
    assert all("finished 12" in output for output in outputs), outputs


def refused(message, strategy, ranks, **options):
    data, task = build("tgn", 8, **options)
    with pytest.raises(InvalidArgumentError, match=message):
        fit(data, task, strategy, ranks)


def on_rank(rank, ranks, folder):
    import lightning.pytorch as pl
    from lightning.pytorch.demos.boring_classes import BoringModel

    from lightning_tgnn.files.partitions import save_partition

    as_torchrun(rank, ranks)
    data, _ = build("tgn", 8)
    owner = torch.arange(30) % ranks
    files = {name: Path(folder) / f"{name}-{rank}.pt" for name in ("ranks", "graph", "range", "good")}
    save_partition(files["ranks"], owner, 5, "interval", data.info.fingerprint)
    save_partition(files["graph"], owner, ranks, "interval", "another")
    save_partition(files["range"], owner + 1, ranks, "interval", data.info.fingerprint)
    save_partition(files["good"], owner, ranks, "interval", data.info.fingerprint)
    refused("partition must be for 2 ranks, got '5 ranks", SvenStrategy(partition=files["ranks"]), ranks)
    refused("partition must be of this graph", SvenStrategy(partition=str(files["graph"])), ranks)
    refused("partition must be ranks in 0 .. 1, got 2", SvenStrategy(partition=files["range"]), ranks)
    refused("partition must be one of reflexbicut", SvenStrategy(partition="alphabetical"), ranks)
    refused("a rank for each of 30 nodes", SvenStrategy(partition=torch.zeros(4, dtype=torch.int64)), ranks)
    fit(*build("tgn", 8), SvenStrategy(partition=files["good"]), ranks, epochs=1)
    apart = SvenStrategy(partition=(owner + rank) % ranks)
    data, task = build("tgn", 8)
    fit(data, task, apart, ranks, epochs=1)
    assert torch.equal(task.state_store.owner, owner)  # that of the first rank, whatever the others were given

    for strategy in (SvenStrategy(), DepCacheStrategy()):
        trainer = pl.Trainer(accelerator="cpu", devices=ranks, strategy=strategy, logger=False, max_steps=1)
        with pytest.raises(
            InvalidArgumentError, match=r"model must be a task with the stages.*apply_mail.*BoringModel"
        ):
            trainer.fit(BoringModel())
    return True


def test_what_cannot_work_is_refused(tmp_path):
    assert run_ranks(on_rank, 2, str(tmp_path)) == [True, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"micro_batches": 0}, "micro_batches must be"),
        ({"micro_batches": "many"}, "micro_batches must be"),
        ({"staleness": 2}, "staleness must be 0 or 1, got 2"),
        ({"staleness": -1}, "staleness must be"),
        ({"row_cache_mb": -1}, "row_cache_mb must be"),
        ({"row_cache": 1}, "option of SvenStrategy must be one of .*row_cache_mb.*, got 'row_cache'"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        SvenStrategy(**options)


def test_a_loss_scale_that_may_change_before_gradients_are_applied_is_refused():
    strategy = SvenStrategy(parallel_devices=[torch.device("cpu")])
    strategy.connect(build("tgn", 8)[1])
    settings = {"precision": "16-mixed", "optimizers": [], "lightning_module": strategy.lightning_module}
    with pytest.raises(InvalidArgumentError, match=r"precision.* got '16-mixed'; set precision='bf16-mixed', or stale"):
        strategy.setup(SimpleNamespace(state=SimpleNamespace(fn="fit"), **settings))


def test_more_ranks_than_events_are_refused():
    data, _ = build("tgn", 8)
    data.sampled_roots = "all"
    with pytest.raises(InvalidArgumentError, match="ranks must be at most the events of a split"):
        data.val_dataloader().follow(DataParallel(), RankLayout.of(30), 0)
