"""What is refused on all ranks is printed by one of them, and all end with a status that is not 0."""

import os
import sys
import time
from datetime import timedelta

import lightning.pytorch as pl
import pytest
import torch.distributed as dist

from lightning_tgnn import LinkPrediction, SnapshotDataModule
from lightning_tgnn.__main__ import main
from tests.multiprocess.ranks import Started, free_port

DATA = (
    "--data",
    "SnapshotDataModule",
    "--data.source",
    "synthetic",
    "--data.num_snapshots",
    "6",
    "--data.group_size",
    "2",
)
TRAINER = ("--trainer.strategy", "blad", "--trainer.devices", "2", "--trainer.accelerator", "cpu")


def script(folder):
    data = SnapshotDataModule("synthetic", num_snapshots=6, group_size=2)
    trainer = pl.Trainer(strategy="blad", devices=2, accelerator="cpu", max_epochs=1, logger=False)
    try:
        trainer.fit(LinkPrediction("jodie"), datamodule=data)
    except Exception:  # as Python does with what nobody catches
        sys.excepthook(*sys.exc_info())
        sys.exit(1)


def command(folder):
    os.chdir(folder)
    main(["fit", "--model", "LinkPrediction", *DATA, *TRAINER])


def mistyped(folder):
    main(["fit", "--trainer.devicess", "2"])


def ended(function, folder, **environment):
    """Return exit codes and what was printed by two ranks that run a function as if torchrun had started them."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "GROUP_RANK": "0"}
    shared |= {"TORCHELASTIC_RUN_ID": "test", "LOCAL_WORLD_SIZE": "2", **environment}
    started, deadline = [], time.monotonic() + 90
    try:
        for rank in range(2):
            own = shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            started.append(Started(function, (str(folder),), own, folder / f"{function.__name__}-{rank}.pipe"))
        return zip(*[process.finish(deadline) for process in started], strict=True)
    finally:
        for process in started:
            process.kill()


@pytest.mark.timeout(200)
@pytest.mark.parametrize("function", [script, command])
def test_what_a_run_refuses_is_printed_once(function, tmp_path):
    codes, printed = ended(function, tmp_path)
    assert codes == (1, 1), printed
    both = "".join(printed)
    assert both.count("datamodule must be a TemporalDataModule") == 1, both
    assert both.count("snapshots SnapshotLinkPrediction") == 1, both
    assert both.count("Traceback") == (function is script), both


def test_what_is_mistyped_under_torchrun_is_printed_once(tmp_path):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    agent = {"MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    codes, printed = ended(mistyped, tmp_path, **agent)
    assert codes == (2, 2), printed
    assert "".join(printed).count("did you mean '--trainer.devices'?") == 1, printed
