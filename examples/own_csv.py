"""A CSV of your own: train on it, look at the metrics, ask for the best ten products of some customers.

python examples/own_csv.py
"""

from pathlib import Path

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_tgnn import LinkPrediction, Predictor, TemporalDataModule

EVENTS = Path(__file__).parents[1] / "recipes" / "example_events.csv"  # 3,000 purchases: put your file here
COLUMNS = {"src": "customer", "dst": "product", "time": "timestamp", "edge_features": ["price", "rating"]}


def main() -> None:
    """Train, test and answer."""
    pl.seed_everything(0)
    # Customers and products are two sets of nodes, so equal ids do not mean the same node.
    data = TemporalDataModule(EVENTS, columns=COLUMNS, bipartite=True, batch_size=100, num_eval_negatives=20)
    task = LinkPrediction(model="tgn", lr=1e-3)
    best = ModelCheckpoint(monitor="val/ap", mode="max")
    trainer = pl.Trainer(
        max_epochs=2, accelerator="cpu", callbacks=[best], default_root_dir="runs/own_csv", enable_progress_bar=False
    )
    trainer.fit(task, datamodule=data)
    trainer.test(task, datamodule=data, ckpt_path=best.best_model_path)

    predictor = Predictor.from_checkpoint(best.best_model_path)  # reads the CSV again, from where the checkpoint says
    tomorrow = predictor.latest_time + 86_400
    customers = ["customer-24", "customer-21"]
    answer = predictor.top_k(customers, tomorrow, k=10)
    for customer, products, probabilities in zip(customers, *answer, strict=True):
        listed = ", ".join(f"{name} ({p:.2f})" for name, p in zip(products, probabilities, strict=True))
        print(f"{customer}: {listed}")


if __name__ == "__main__":
    main()
