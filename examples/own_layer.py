"""A graph layer of your own in the place of TGN's attention.

Run it: `python examples/own_layer.py`

It needs dgl, which comes with this package on Python before 3.12. A layer of PyG would do as well.
"""

from typing import Any

import dgl.function as fn
import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from lightning_tgnn import TemporalDataModule
from lightning_tgnn.tasks import LayerLinkPrediction


class GatedMean(nn.Module):
    """Mixes a node with the mean of its latest neighbours by a gate of its own.

    A layer that is not of PyG is called with a `dgl.DGLBlock` and the states at the senders and the receivers of its
    edges, and returns a row for each receiver.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, width)
        self.gate = nn.Linear(2 * width, width)

    def forward(self, block: Any, ends: tuple[Tensor, Tensor]) -> Tensor:
        """Return the embeddings of the receivers, float32 [R, width]."""
        senders, receivers = ends
        with block.local_scope():
            block.srcdata["state"] = self.project(senders)
            block.update_all(fn.copy_u("state", "mail"), fn.mean("mail", "mean"))  # 0 where there is no neighbour
            mean = block.dstdata["mean"]
        gate = self.gate(torch.cat([receivers, mean], dim=1)).sigmoid()
        return gate * receivers + (1 - gate) * mean


def main() -> None:
    """Train TGN's memory with the layer."""
    pl.seed_everything(0)
    data = TemporalDataModule("synthetic", synthetic={"num_events": 6000}, batch_size=100, num_eval_negatives=9)
    widths = {"memory_dim": 32, "embedding_dim": 32, "time_dim": 16}
    task = LayerLinkPrediction(GatedMean, {"width": 32}, **widths, lr=3e-3)
    trainer = pl.Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(task, datamodule=data)
    trainer.test(task, datamodule=data)


if __name__ == "__main__":
    main()
