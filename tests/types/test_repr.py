"""What a shell shows of batches, streams, DataModules and predictors: a line or two."""

import lightning.pytorch as pl
import pytest

from lightning_tgnn import FullGraphDataModule, LinkPrediction, Predictor, SnapshotDataModule, TemporalDataModule
from lightning_tgnn.checks import LightningTGNNError
from tests.data.example_streams import random_store

LONGEST = 240


def test_a_line_or_two_with_shapes_and_no_numbers_of_tensors(tmp_path):
    store = random_store(400, num_nodes=60, edge_dim=4)
    data = TemporalDataModule(store, batch_size=100, num_eval_negatives=3, num_workers=0)
    assert repr(data) == "TemporalDataModule(source='EventStore', batch_size=100: not read yet)"
    batch = next(iter(data.train_dataloader()))
    graphs = FullGraphDataModule(synthetic={"num_nodes": 50, "num_edges": 100})
    part = next(iter(graphs.train_dataloader()))
    task = LinkPrediction("tgn", memory_dim=4, embedding_dim=4, time_dim=4)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    trainer = pl.Trainer(accelerator="cpu", max_steps=2, limit_val_batches=0, enable_checkpointing=False, **quiet)
    trainer.fit(task, datamodule=data)
    rows = task.state_store.fetch(batch.nodes).wait()
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    predictor = Predictor.from_checkpoint(tmp_path / "run.ckpt", data)
    steps = SnapshotDataModule(store, num_snapshots=9, group_size=2)
    assert repr(steps) == "SnapshotDataModule(source='EventStore', group_size=2: not read yet)"
    group = next(iter(steps.train_dataloader())).groups[0]
    seen = [store, data, data.adjacency, data.train_dataloader(), batch, rows, graphs, graphs.graph, part, predictor]
    seen += [steps, steps.sequence, steps.train_dataloader(), group, group.snapshots[0], group.targets]
    for value in seen:
        shown = repr(value)
        assert shown.startswith(f"{type(value).__name__}("), shown
        assert len(shown) <= LONGEST, shown
        assert "\n" not in shown, shown
        assert "tensor(" not in shown, shown
    assert "400 events" in repr(data)
    assert repr(predictor).startswith("Predictor(LinkPrediction('tgn'), 60 nodes, latest time ")
    assert repr(data.train_dataloader()) == "EventLoader(280 events, 3 batches of 100)"


def test_columns_that_are_misspelt_are_suggested(tmp_path):
    (tmp_path / "events.csv").write_text("user,item,when\n1,2,3\n1,3,4\n")
    with pytest.raises(LightningTGNNError, match=r"got 'itm'; did you mean 'item'\?"):
        TemporalDataModule(tmp_path / "events.csv", columns={"src": "user", "dst": "itm", "time": "when"}).setup()
    with pytest.raises(LightningTGNNError, match=r"got 'tme'; did you mean 'time'\?"):
        TemporalDataModule(tmp_path / "events.csv", columns={"src": "user", "dst": "item", "tme": "when"}).setup()
