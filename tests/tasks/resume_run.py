"""Runs of the command, for `test_resume`: they kill themselves at a moment, or write down what has come out."""

import os
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import torch
from lightning.pytorch.callbacks import Callback

from lightning_tgnn.files.runs import deciding_callback
from tests.multiprocess.ranks import forking

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "quickstart.yaml"
SHORT = [
    "--data.synthetic={num_events: 1000, num_sources: 40, num_destinations: 50, edge_feature_dim: 3}",
    *("--data.held_out_nodes=0", "--data.batch_size=50", "--data.num_neighbors=5", "--data.num_eval_negatives=3"),
    *("--model.memory_dim=16", "--model.embedding_dim=16", "--model.time_dim=8", "--model.mailbox_size=3"),
    *("--model.dropout=0.2", "--model.lr=0.01", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"),
    *("--trainer.enable_model_summary=false", "--test_after_fit=false"),
]
STEPWISE = (
    "{class_path: ModelCheckpoint, init_args: {filename: last, every_n_train_steps: 4, enable_version_counter: false}}"
)


class Kill(Callback):
    """Ends the process as a power cut would.

    Args:
        moment: ``"step"``, ``"validation"`` of an epoch, or ``"saving"``: when a checkpoint is about to be written.
        number: Of the step, of the epoch, or of the checkpoint in this process, all from 0.
    """

    def __init__(self, moment: str, number: int):
        self.moment, self.number, self.saved = moment, number, 0

    def reach(self, moment, number):
        if (moment, number) == (self.moment, self.number):
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.reach("step", trainer.global_step)

    def on_validation_batch_start(self, trainer, module, batch, batch_idx):
        self.reach("validation", trainer.current_epoch)

    def on_save_checkpoint(self, trainer, module, checkpoint):
        self.reach("saving", self.saved)
        self.saved += 1


class WriteDown(Callback):
    """Writes down what a run has come to."""

    def __init__(self, path: str):
        self.path = path

    def on_fit_end(self, trainer, module):
        best = deciding_callback(trainer)
        torch.save(
            {
                "weights": module.state_dict(),
                "state": module.state_store.state_dict(),
                "step": trainer.global_step,
                "optimizer": trainer.optimizers[0].state_dict()["state"],
                "loss": trainer.callback_metrics["train/loss"],
                "best": (best.best_model_score, Path(best.best_model_path).name),
            },
            self.path,
        )


def run(folder, arguments, *, kill=None, result=None):
    """Return the exit code of ``lightning-tgnn fit`` in a process of its own, and what it has said."""
    words = ["fit", f"--config={RECIPE}", *SHORT, f"--trainer.callbacks+={STEPWISE}", *arguments]
    if kill is not None:
        given = f"init_args: {{moment: {kill[0]}, number: {kill[1]}}}"
        words.append(f"--trainer.callbacks+={{class_path: tests.tasks.resume_run.Kill, {given}}}")
    if result is not None:
        given = f"init_args: {{path: {result}}}"
        words.append(f"--trainer.callbacks+={{class_path: tests.tasks.resume_run.WriteDown, {given}}}")
    folder.mkdir(exist_ok=True)
    process = forking().Process(target=_command, args=(str(folder), words))
    process.start()
    process.join(timeout=120)
    if process.is_alive():
        process.kill()
        raise AssertionError(f"took too long: {words}")
    return process.exitcode, (folder / "said.txt").read_text()


def _command(folder, words):
    from lightning_tgnn.__main__ import main

    os.chdir(folder)
    torch.set_num_threads(1)
    sys.argv = ["lightning-tgnn", *words]
    with open("said.txt", "w") as said, redirect_stdout(said), redirect_stderr(said):
        try:
            main()
        except SystemExit as stopped:
            print(stopped.code, file=sys.stderr)
            sys.exit(1)
