"""A predictor of what several ranks have trained: its answers are those of evaluation in one process."""

import numpy as np
import torch

from lightning_tgnn import LinkPrediction, Predictor, SvenStrategy
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.training import as_torchrun, build, fit
from tests.serving.runs import trainer

RANKS, BATCH = 2, 12
MODELS = ("tgn", "apan")


def built(model, batch_size):
    return build(model, batch_size, task_class=LinkPrediction)


def on_rank(rank, ranks, folder):
    as_torchrun(rank, ranks)
    for model in MODELS:
        run = fit(*built(model, BATCH), SvenStrategy(partition="interval"), ranks, epochs=1)
        run["trainer"].save_checkpoint(f"{folder}/{model}.ckpt")


def columns(store, events):
    ends = (store.node_ids[column[events]] for column in (store.src, store.dst))
    return *ends, store.time[events].numpy(), store.edge_features[events].numpy()


def test_answers_are_those_of_evaluation(tmp_path):
    run_ranks(on_rank, RANKS, str(tmp_path))
    for model in MODELS:
        path = tmp_path / f"{model}.ckpt"
        data, task = built(model, RANKS * BATCH)
        results = trainer().predict(task, datamodule=data, ckpt_path=path)
        expected = [float(result["probability"][0]) for result in results]
        predictor = Predictor.from_checkpoint(path, data, catch_up_stream=False)
        saved = torch.load(path, weights_only=True)["lightning_tgnn"]["state"]
        assert predictor.num_events == saved["position"] == len(data.split.train)
        predictor.observe(*columns(data.store, data.split.val))
        predictor.close_batch()
        scored = []
        for events in data.split.test.split(RANKS * BATCH):
            src, dst, time, _ = columns(data.store, events[:1])
            scored.append(float(predictor.score(src, dst, time)[0]))
            predictor.observe(*columns(data.store, events))
        np.testing.assert_allclose(scored, expected, atol=1e-5)
