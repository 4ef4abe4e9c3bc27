"""Two processes on one machine share the events of a step and the node state, with the strategy "sven".

Run it: `python examples/two_processes.py`

Lightning starts the second process, which runs this file, too. On several machines start it by torchrun on each.
"""

import lightning.pytorch as pl

from lightning_tgnn import ExchangeMonitor, LinkPrediction, SvenStrategy, TemporalDataModule


def main() -> None:
    """Train and test on two processes."""
    pl.seed_everything(0)
    # batch_size counts per process: a step takes 2 x 100 events.
    data = TemporalDataModule("synthetic", synthetic={"num_events": 6000, "edge_feature_dim": 16}, batch_size=100)
    strategy = SvenStrategy(partition="reflexbicut", staleness=0)  # staleness=0 gives the result of one process
    trainer = pl.Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=2,
        max_epochs=1,
        log_every_n_steps=10,
        callbacks=[ExchangeMonitor()],  # logs the bytes that the processes exchange
        default_root_dir="runs/two_processes",
        enable_progress_bar=False,
    )
    task = LinkPrediction(model="tgn")
    trainer.fit(task, datamodule=data)
    if trainer.is_global_zero:  # one of the two; the metrics are over all events and equal on both
        print(f"validation AP {float(trainer.callback_metrics['val/ap']):.4f}")
        print("bytes exchanged: tensorboard --logdir runs/two_processes")


if __name__ == "__main__":
    main()
