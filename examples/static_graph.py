"""A static graph cut over two processes: a GCN on all vertices at once, with the strategy "cdfgnn".

python examples/static_graph.py
"""

import lightning.pytorch as pl

from lightning_tgnn import CacheThreshold, CDFGNNStrategy, FullGraphDataModule, NodeClassification


def main() -> None:
    """Train and test on two processes."""
    pl.seed_everything(0)
    settings = {"num_nodes": 2000, "num_edges": 20_000, "num_classes": 5, "feature_dim": 16, "noise": 10.0}
    data = FullGraphDataModule("synthetic", synthetic=settings)  # or an .npz file, a dgl.DGLGraph, a PyG Data
    cache = CacheThreshold()
    trainer = pl.Trainer(
        strategy=CDFGNNStrategy(threshold="adaptive", bits=8),  # cache=False, bits=None is exact
        accelerator="cpu",
        devices=2,
        max_epochs=60,
        check_val_every_n_epoch=20,
        log_every_n_steps=1,  # an epoch is one step
        callbacks=[cache],
        default_root_dir="runs/static_graph",
        enable_progress_bar=False,
    )
    task = NodeClassification("gcn", dropout=0.0)  # dropout would change every row, so that all would be sent
    trainer.fit(task, datamodule=data)
    trainer.test(task, datamodule=data)
    if trainer.is_global_zero:
        shares = [share for _, share in cache.history]
        print(f"rows sent: {sum(shares) / len(shares):.0%} of all")


if __name__ == "__main__":
    main()
