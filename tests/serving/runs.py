"""Small trained models for tests of predictors."""

import lightning.pytorch as pl
import torch

from lightning_tgnn import LinkPrediction, TemporalDataModule

SMALL = {"memory_dim": 8, "embedding_dim": 8, "time_dim": 4, "mailbox_size": 3}


def trainer(**options):
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    return pl.Trainer(**{"accelerator": "cpu", "max_epochs": 1, "limit_val_batches": 0, **quiet, **options})


def data_module(store, **options):
    return TemporalDataModule(store, **{"batch_size": 20, "num_neighbors": 4, "num_eval_negatives": 1, **options})


def fitted(path, data, model="tgn", task=None, **options):
    """Train, leave a checkpoint at ``path``, and return the task."""
    torch.manual_seed(0)
    task = task or LinkPrediction(model, **{**SMALL, **options})
    run = trainer()
    run.fit(task, datamodule=data)
    run.save_checkpoint(path)
    return task
