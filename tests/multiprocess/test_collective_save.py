"""A checkpoint that ranks write together holds what the one file holds, and a run goes on with it in the same way."""

import gc
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lightning_tgnn import Predictor, SvenStrategy
from lightning_tgnn.__main__ import main as command
from lightning_tgnn.comm import Messages
from lightning_tgnn.files import checkpoint_folder
from lightning_tgnn.files.checkpoint_folder import SavedTable
from lightning_tgnn.files.checkpoints import WholeCheckpointIO
from lightning_tgnn.strategies.parts.collective_checkpoints import save_sharded
from lightning_tgnn.types import OneOfEach, OwnRows
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.sharded_runs import STEP, STRATEGIES, differing, run
from tests.multiprocess.training import QuietLinks, as_torchrun, build, fit

RESUMED = ("sven", "sven, int8", "sven, powersgd", "pipetgl, two copies", "disttgl, passes", "cdfgnn")
"""Each loads what the others do not: rows, residuals, turns, copies, kept rows, caches."""
WRITTEN = [name for name in STRATEGIES if name != "depcache"]
MOVED = {"sven": "depcache", "pipetgl": "pipetgl", "cdfgnn": "cdfgnn"}
"""What goes on with which checkpoint on other numbers of ranks."""


def saved(folder, kind, name):
    return f"{folder}/{kind}/{name}/step={STEP}.ckpt"


def goes_on_alike(name, ranks, folder, of):
    """Hold a run that goes on with a folder against one that goes on with the file."""
    file, parts = (
        run(name, ranks, f"{folder}/{ranks}/{kind}/{name}", ckpt_path=saved(folder, kind, of), sharded=kind != "full")
        for kind in ("full", "sharded")
    )
    assert len(file["losses"]) > 1
    assert torch.equal(parts["losses"], file["losses"]), name
    assert not differing(parts["weights"], file["weights"]), name


def on_rank(rank, ranks, folder):
    as_torchrun(rank, ranks)
    read = WholeCheckpointIO().load_checkpoint
    for name in WRITTEN:
        whole = run(name, ranks, f"{folder}/full/{name}", sharded=False)
        parts = run(name, ranks, f"{folder}/sharded/{name}")
        assert torch.equal(parts["losses"], whole["losses"]), name
        file, written = read(saved(folder, "full", name)), read(saved(folder, "sharded", name))
        assert not differing(written, file), (name, differing(written, file))
        if name in RESUMED:
            resumed = run(name, ranks, f"{folder}/resumed/{name}", ckpt_path=saved(folder, "sharded", name))
            assert torch.equal(resumed["losses"], whole["losses"][-len(resumed["losses"]) :]), name
            assert not differing(resumed["weights"], whole["weights"]), name
            del resumed
        del whole, parts, file, written
        gc.collect()  # nobody keeps a memory process from the next
    return True


def elsewhere(rank, ranks, folder):
    as_torchrun(rank, ranks)
    for of, name in MOVED.items():
        goes_on_alike(name, ranks, folder, of)
    if ranks == 1:
        through_other_doors(saved(folder, "sharded", "sven"), saved(folder, "full", "sven"), folder)
    else:
        reads_only_its_own(saved(folder, "sharded", "sven"))
        holds_rows_of_groups(rank, f"{folder}/groups.ckpt")
    return True


def reads_only_its_own(path):
    """No rank reads a table whole that it needs a part of, and no part is checked by two of them."""
    whole, SavedTable._whole = SavedTable._whole, None
    checksum, checked = checkpoint_folder.checksum, []
    checkpoint_folder.checksum = lambda part: (checked.append(part), checksum(part))[1]
    try:
        data, task = build("tgn", 8, task_class=QuietLinks, events=110, dropout=0.3)
        strategy = SvenStrategy(partition="range", state_dict_type="sharded")
        state = fit(data, task, strategy, 3, ckpt_path=path)["state"]
    finally:
        SavedTable._whole, checkpoint_folder.checksum = whole, checksum
    assert state["position"]
    by_rank = [None] * 3
    dist.all_gather_object(by_rank, checked)
    assert sorted(part for own in by_rank for part in own) == sorted(Path(path).glob("*/*.distcp"))
    assert [len(own) for own in by_rank] == [1, 1, 0]  # of the two ranks that have written


def holds_rows_of_groups(rank, path):
    """The first rank has a table of its own, the other two share one."""
    group, start, nodes = (1, 2 * (rank - 1), torch.tensor([3, 1, 2, 0])[2 * rank - 2 :][:2]) if rank else (0, 0, None)
    rows = OwnRows(nodes * 10.0 if rank else torch.ones(4), start, 4, nodes)
    own = {"rows": rows, "same": torch.full((2,), group), "rank": rank}
    task_table = OwnRows(torch.full((1, 2), rank), rank, 3)
    held = {
        "copies": OneOfEach(own, group),
        "each": OneOfEach([rank], rank),
        "table": task_table,
        "of all": torch.eye(2),
    }
    save_sharded(held, path, Messages(range(3), rank, dist.new_group()), from_first)
    expected = {
        "copies": [
            {"rows": torch.ones(4), "same": torch.tensor([0, 0]), "rank": 0},
            {"rows": torch.tensor([0.0, 10.0, 20.0, 30.0]), "same": torch.tensor([1, 1]), "rank": 1},
        ],
        "each": [[0], [1], [2]],
        "table": torch.tensor([[0, 0], [1, 1], [2, 2]]),
        "of all": torch.eye(2),
    }
    assert not differing(WholeCheckpointIO().load_checkpoint(path), expected)


def from_first(value):
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def through_other_doors(parts, file, folder):
    states = [QuietLinks.load_from_checkpoint(path) for path in (parts, file)]
    assert not differing(*(task.state_store.state_dict() for task in states))
    assert not differing(*(dict(task.state_dict()) for task in states))
    answers = []
    for number, path in enumerate((parts, file)):
        data, _ = build("tgn", 24, events=110)
        predictor = Predictor.from_checkpoint(path, data, task=QuietLinks)
        answers.append(predictor.score(torch.tensor([1, 2, 3]), torch.tensor([20, 21, 22]), predictor.latest_time))
        predictor.save(f"{folder}/predictor-{number}.pt")
        Path(folder, "pairs.csv").write_text("src,dst\n1,20\n2,21\n")
        words = [
            "--task",
            "tests.multiprocess.training.QuietLinks",
            "--score",
            f"{folder}/pairs.csv",
            "--output",
            f"{folder}/scores-{number}.csv",
        ]
        data.store.save(f"{folder}/store-{number}")
        os.environ.pop("LOCAL_RANK", None)
        command(["predict", "--ckpt_path", path, "--source", f"{folder}/store-{number}", *words])
    assert torch.equal(*map(torch.as_tensor, answers))
    scores = [Path(folder, f"scores-{number}.csv").read_text() for number in (0, 1)]
    assert scores[0] == scores[1]


@pytest.mark.timeout(400)
def test_it_holds_what_one_file_holds_and_a_run_goes_on_with_any_number_of_ranks(tmp_path):
    assert all(run_ranks(on_rank, 2, str(tmp_path), timeout=250))
    for ranks in (3, 1):
        assert all(run_ranks(elsewhere, ranks, str(tmp_path), timeout=120))
