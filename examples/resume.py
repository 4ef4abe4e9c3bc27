"""A run that stops in the middle of an epoch and continues ends with the weights of one that never stopped.

python examples/resume.py
"""

from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_tgnn import LinkPrediction, TemporalDataModule

FOLDER = Path("runs/resume")


def run(name: str, *, steps: int = -1, resume_from: str | None = None) -> LinkPrediction:
    """Train two epochs of 28 steps, or stop after some steps, and return the task."""
    pl.seed_everything(0)
    data = TemporalDataModule("synthetic", synthetic={"num_events": 4000}, batch_size=100)
    task = LinkPrediction(model="tgn", memory_dim=32, embedding_dim=32, time_dim=16)
    # Node state, position in the stream and random states are in the checkpoint, so it may be of any step.
    save = ModelCheckpoint(FOLDER / name, filename="{step}", every_n_train_steps=10, save_top_k=-1)
    trainer = pl.Trainer(
        max_epochs=2,
        max_steps=steps,
        accelerator="cpu",
        callbacks=[save],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(task, datamodule=data, ckpt_path=resume_from)
    return task


def main() -> None:
    """Train without a stop, and with one at step 40."""
    whole = run("whole")
    run("stopped", steps=40)
    resumed = run("resumed", resume_from=str(FOLDER / "stopped" / "step=40.ckpt"))
    pairs = zip(whole.parameters(), resumed.parameters(), strict=True)
    print("equal, bit for bit:", all(torch.equal(one, other) for one, other in pairs))


if __name__ == "__main__":
    main()
