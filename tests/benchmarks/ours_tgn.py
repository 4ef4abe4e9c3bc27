"""Our TGN through Lightning's Trainer, in rounds: ours_tgn.py SOURCE BATCH_SIZE DEVICE PRECISION EMBED_AT [CAPTURE].

Without CAPTURE the stages are timed, which are then not captured.
"""

import sys
import time
from collections import defaultdict
from typing import ClassVar

import lightning.pytorch as pl
import numpy as np
from lightning.pytorch.callbacks import Callback

from lightning_tgnn import EventStore, LinkPrediction, TemporalDataModule
from lightning_tgnn.data import read_events
from tests.benchmarks.rounds import Turns


class TimedLinkPrediction(LinkPrediction):
    """Adds up the seconds of each stage."""

    seconds: ClassVar = defaultdict(float)

    def timed(self, stage, call, *arguments):
        start = time.perf_counter()
        result = call(*arguments)
        self.seconds[stage] += time.perf_counter() - start
        return result

    def fetch(self, nodes):
        return self.timed("fetch", super().fetch, nodes)

    def apply_mail(self, rows):
        return self.timed("update memory", super().apply_mail, rows)

    def embed(self, updated, batch):
        return self.timed("embed", super().embed, updated, batch)

    def score(self, embeddings, batch):
        return self.timed("score", super().score, embeddings, batch)

    sends_raw_mails = True

    def make_mails(self, updated, batch):
        return self.timed("make mails", super().make_mails, updated, batch)

    def commit(self, update):
        return self.timed("commit", super().commit, update)

    def backward(self, loss, *arguments, **options):
        self.timed("backward", lambda: super(TimedLinkPrediction, self).backward(loss, *arguments, **options))


class Rounds(Callback):
    def __init__(self):
        self.turns = Turns()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        before = self.turns.round
        seconds = getattr(module, "seconds", {})
        trainer.should_stop = not self.turns.step(len(batch), stages=dict(seconds))
        if self.turns.round > before:
            seconds.clear()


def with_features(source):
    """Return a stream with the 172 random features that all contestants have."""
    stream = read_events(source)
    features = np.random.default_rng(0).standard_normal((len(stream), 172), dtype=np.float32)
    columns = (stream.src.numpy(), stream.dst.numpy(), stream.time.numpy())
    return EventStore.from_arrays(*columns, edge_features=features)


def main(source, batch_size, device, precision, embed_at, capture=None):
    pl.seed_everything(0, verbose=False)
    store = with_features(source)
    past = {"event": "time", "batch": "batch"}[embed_at]
    data = TemporalDataModule(store, batch_size=int(batch_size), past=past, embed_at=embed_at)
    trainer = pl.Trainer(
        accelerator=device,
        devices=1,
        precision=precision,
        max_epochs=5,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Rounds()],
    )
    task = TimedLinkPrediction("tgn") if capture is None else LinkPrediction("tgn", capture=capture)
    trainer.fit(task, datamodule=data)


if __name__ == "__main__":
    main(*sys.argv[1:])
