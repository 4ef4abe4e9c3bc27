"""One process of a machine prepares a graph, all read it."""

import lightning.pytorch as pl

from lightning_tgnn import FullGraphDataModule, NodeClassification
from lightning_tgnn.data import generate_graph
from tests.data.example_graphs import write_ogb
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.training import as_torchrun


class Counting(FullGraphDataModule):
    """Counts how often it prepares."""

    prepared = 0

    def prepare_data(self):
        self.prepared += 1
        super().prepare_data()


def _train(rank, ranks, cases):
    as_torchrun(rank, ranks)
    seen = []
    for options in cases:
        data = Counting(**options)
        trainer = pl.Trainer(
            strategy="cdfgnn",
            accelerator="cpu",
            devices=ranks,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(NodeClassification("gcn", hidden_dim=4), datamodule=data)
        seen.append((data.prepared, data.info, float(trainer.callback_metrics["val/accuracy"])))
    return seen


def test_one_rank_prepares_and_all_read(tmp_path):
    graph = generate_graph(60, 200, 3, 4, seed=2)
    sizes = {"num_nodes": 60, "num_edges": 200, "num_classes": 3, "feature_dim": 4, "seed": 2}
    cases = [
        {"source": write_ogb(tmp_path / "tables", graph)},
        {"source": write_ogb(tmp_path / "archives", graph, archives=True)},
        {"source": "synthetic", "synthetic": sizes | {"folder": str(tmp_path / "made")}},
    ]
    first, second = run_ranks(_train, 2, cases)
    for one, other in zip(first, second, strict=True):
        assert (one[0], other[0]) == (1, 0)
        assert one[1:] == other[1:]
        assert one[1] == FullGraphDataModule(graph).info
