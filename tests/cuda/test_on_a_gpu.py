"""What a run on a GPU offers beside the losses: precision, resuming, other devices' checkpoints, monitors, answers."""

import csv

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger

from lightning_tgnn import ParallelismMonitor, SnapshotMonitor, SystemMonitor, TimelineMonitor
from lightning_tgnn.serving import Predictor
from tests.cuda.fits import FITS, fitted, in_a_process
from tests.multiprocess.training import PlainDescent

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
# In half precision too where all gradients have the loss scale of their own step.
PRECISIONS = {
    "sven, tgn": ["bf16-mixed"],
    "depcache, tgn": ["bf16-mixed", "16-mixed"],
    "pipetgl, tgn": ["bf16-mixed"],
    "disttgl, mini-batch": ["bf16-mixed", "16-mixed"],
    "blad, tgcn": ["bf16-mixed"],
    "cdfgnn, gcn": ["bf16-mixed", "16-mixed"],
}


class KeepsFirstEpoch(Callback):
    """Saves a checkpoint at the end of the first epoch."""

    def __init__(self, path):
        self._path = path

    def on_train_epoch_end(self, trainer, module):
        if trainer.current_epoch == 0:
            trainer.save_checkpoint(self._path)


def trained(name, device, path, **options):
    return fitted(name, device, callbacks=[KeepsFirstEpoch(path)], **options)


def resumed(name, device, path, **options):
    return fitted(name, device, ckpt_path=path, **options)


def on_the_gpu(name, folder):
    """Return all fits of a kind that a GPU makes, in one process; one goes on with a checkpoint of the CPU."""
    # First of all: what makes products deterministic is read once.
    found = {"once": trained(name, "cuda", f"{folder}/one.ckpt", deterministic=True)}
    found["again"] = resumed(name, "cuda", f"{folder}/one.ckpt", deterministic=True)
    found["plain"] = trained(name, "cuda", f"{folder}/cuda.ckpt", deterministic=False)
    found |= {precision: fitted(name, "cuda", precision=precision) for precision in PRECISIONS[name]}
    found["from the cpu"] = resumed(name, "cuda", f"{folder}/cpu.ckpt")
    return found


@pytest.fixture(scope="module")
def fits(request, tmp_path_factory):
    """Fits of a kind on the CPU, on a GPU, and on the CPU again with a checkpoint of the GPU."""
    folder = str(tmp_path_factory.mktemp("checkpoints"))
    found = {"cpu": in_a_process(trained, request.param, "cpu", f"{folder}/cpu.ckpt")}
    found |= in_a_process(on_the_gpu, request.param, folder)
    return found | {"from the gpu": in_a_process(resumed, request.param, "cpu", f"{folder}/cuda.ckpt")}


@pytest.mark.parametrize("fits", PRECISIONS, indirect=True)
def test_mixed_precision_trains(fits, request):
    for precision in PRECISIONS[request.node.callspec.params["fits"]]:
        ours, whole = fits[precision]["losses"], fits["plain"]["losses"]
        torch.testing.assert_close(ours.mean(), whole.mean(), rtol=0.05, atol=0.02)
        assert not torch.equal(ours, whole)


@pytest.mark.parametrize("fits", PRECISIONS, indirect=True)
def test_a_resumed_fit_is_that_without_a_break(fits):
    assert torch.equal(fits["once"]["weights"], fits["again"]["weights"])
    assert fits["once"]["figures"] == fits["again"]["figures"]


@pytest.mark.parametrize(("first", "then"), [("plain", "from the gpu"), ("cpu", "from the cpu")])
@pytest.mark.parametrize("fits", PRECISIONS, indirect=True)
def test_a_checkpoint_goes_on_on_another_device(fits, first, then):
    torch.testing.assert_close(fits[first]["weights"], fits[then]["weights"], rtol=1e-3, atol=1e-4)


def monitored(name, folder, *monitors):
    logger = CSVLogger(folder)
    fitted(name, "cuda", callbacks=monitors, logger=logger, log_every_n_steps=1)
    logger.save()
    with open(f"{logger.log_dir}/metrics.csv") as file:
        return list(csv.DictReader(file))


def timed(name, folder):
    timeline = TimelineMonitor(turns=2, first=3)
    return monitored(name, folder, SystemMonitor(), timeline, ParallelismMonitor()), timeline.timeline is not None


@pytest.mark.parametrize("name", ["sven, tgn", "depcache, tgn", "pipetgl, tgn", "disttgl, mini-batch"])
def test_monitors_time_the_stages_of_a_gpu(name, tmp_path):
    rows, has_timeline = in_a_process(timed, name, tmp_path)
    found = {key: [float(row[key]) for row in rows if row[key]] for key in rows[0]}
    assert has_timeline
    assert min(found["system/events_per_second"]) > 0
    assert min(found["time/embed"]) > 0
    assert min(found["time/step"]) > 0


def loads(folder):
    return monitored("blad, tgcn", folder, SystemMonitor(), SnapshotMonitor())


def test_the_snapshot_monitor_measures_a_gpu(tmp_path):
    rows = in_a_process(loads, tmp_path)
    assert any(key.startswith("snapshots/") for key in rows[0])


def answers(path):
    trained("sven, tgn", "cuda", path)
    (data, _), found = FITS["sven, tgn"][0](), []
    for device in ("cpu", "cuda"):
        predictor = Predictor.from_checkpoint(path, data, task=PlainDescent, device=device)
        found.append(torch.from_numpy(predictor.score(range(5), range(5, 10))))
    return found


def test_a_predictor_answers_on_a_gpu(tmp_path):
    torch.testing.assert_close(*in_a_process(answers, tmp_path / "one.ckpt"), rtol=1e-4, atol=1e-5)


def on_one_after_the_other(name):
    return fitted(name, "cuda"), fitted(name, "cpu"), fitted(name, "cuda")


def test_a_process_trains_on_a_gpu_and_then_on_the_cpu_and_back():
    first, second, third = in_a_process(on_one_after_the_other, "sven, tgn")
    torch.testing.assert_close(first["losses"], second["losses"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(first["losses"], third["losses"], rtol=1e-4, atol=1e-5)
