"""CDFGNN: what the other ranks do when one dies, runs taken over by fewer ranks, and what is refused."""

import logging
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch.utils.data import DataLoader

from lightning_tgnn import (
    CDFGNNStrategy,
    FullGraphDataModule,
    LinkPrediction,
    NodeClassification,
    SvenStrategy,
    TemporalDataModule,
)
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.data import Graph
from lightning_tgnn.files.partitions import save_partition
from tests.data.example_streams import random_store
from tests.multiprocess.faulty_run import RANKS, cdfgnn
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.test_cdfgnn import Recorder, fit, graph
from tests.multiprocess.test_faults import break_one
from tests.multiprocess.training import as_torchrun

EXCHANGES = ("gather_forward", "scatter_backward", "all_reduce")
MESSAGE = (
    "the checkpoint is of ranks=4, hosts=1, relay=True: with ranks={}, hosts=1, relay=True, cut and caches start anew"
)


def resumed_cases(rank, ranks, folder):
    as_torchrun(rank, ranks)
    losses = {}
    for where in ("nowhere", *EXCHANGES):
        recorder = Recorder()
        cdfgnn(f"{folder}/{where}", [recorder])
        losses[where] = torch.stack(recorder.losses)
    return losses


@pytest.mark.timeout(400)
def test_the_others_end_and_name_the_rank_and_the_last_checkpoint_resumes(tmp_path):
    for where in EXCHANGES:
        break_one("cdfgnn", where, "kill", tmp_path / where)
        assert (tmp_path / where / "last.ckpt").exists()
    for losses in run_ranks(resumed_cases, RANKS, str(tmp_path)):
        for where in EXCHANGES:
            left = len(losses[where])
            assert 1 < left < len(losses["nowhere"]), where
            assert torch.equal(losses[where], losses["nowhere"][-left:]), where


class AtTheStart(Callback):
    """Keeps weights and optimizer as they are before the first step."""

    def on_train_start(self, trainer, module):
        self.weights = {name: value.clone() for name, value in module.model.state_dict().items()}
        self.optimizer = [value.clone() for state in trainer.optimizers[0].state.values() for value in state.values()]
        replicas = trainer.strategy.replica_state.replicas
        self.thresholds = replicas and dict(replicas.thresholds)


class Heard(logging.Handler):
    def __init__(self):
        super().__init__(logging.INFO)
        self.lines = []
        logging.getLogger("lightning.pytorch.utilities.rank_zero").addHandler(self)

    def emit(self, record):
        self.lines.append(record.getMessage())


OPTIONS = {"exact": {"cache": False, "bits": None}, "cached": {}}


def four(rank, ranks, folder):
    as_torchrun(rank, ranks)
    answers = {}
    for name, options in OPTIONS.items():
        keep = ModelCheckpoint(f"{folder}/{name}", every_n_epochs=1, save_top_k=-1, filename="{epoch}")
        answers[name] = fit(CDFGNNStrategy(**options), ranks, epochs=6, callbacks=[keep])["losses"]
    return answers


def fewer(rank, ranks, folder):
    as_torchrun(rank, ranks)
    answers = {}
    for name, options in OPTIONS.items():
        path, begin, heard = f"{folder}/{name}/epoch=2.ckpt", AtTheStart(), Heard()
        outcome = fit(CDFGNNStrategy(**options), ranks, epochs=6, ckpt_path=path, callbacks=[begin])
        saved = torch.load(path, weights_only=True)
        weights = {key.removeprefix("model."): value for key, value in saved["state_dict"].items()}
        assert all(torch.equal(value, weights[key]) for key, value in begin.weights.items()), name
        state = [value for state in saved["optimizer_states"][0]["state"].values() for value in state.values()]
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(begin.optimizer, state, strict=True)), name
        assert heard.lines.count(MESSAGE.format(ranks)) == (rank == 0), heard.lines
        answers[name] = outcome["losses"], outcome["rows"], begin.thresholds
        if ranks > 1:
            assert begin.thresholds == saved["lightning_tgnn.strategy"]["thresholds"]
    return answers


@pytest.mark.timeout(280)
def test_a_run_of_four_ranks_goes_on_with_fewer_and_says_so(tmp_path):
    once = run_ranks(four, 4, str(tmp_path))
    wanted = torch.stack([losses["exact"] for losses in once]).mean(0)
    for ranks in (2, 1):
        outcomes = run_ranks(fewer, ranks, str(tmp_path))
        losses = torch.stack([outcome["exact"][0] for outcome in outcomes]).mean(0)
        torch.testing.assert_close(losses, wanted[3:], rtol=2e-3, atol=1e-4)
        assert all(len(outcome["cached"][0]) == 3 for outcome in outcomes)


class Plain(pl.LightningModule):
    """Has never heard of replicas."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).sum()

    def train_dataloader(self):
        return DataLoader(torch.ones(4, 2))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class WithReplicas(Plain):
    """Has, but brings a loader that cannot be cut."""

    def __init__(self):
        super().__init__()
        self.replicas = lambda values, key: values


def refused(message, strategy, ranks, task=None, data=None):
    trainer = pl.Trainer(
        accelerator="cpu", devices=ranks, strategy=strategy, logger=False, max_epochs=1, enable_model_summary=False
    )
    with pytest.raises(InvalidArgumentError, match=message):
        trainer.fit(task or NodeClassification(hidden_dim=8), datamodule=data)


def refusals(rank, ranks, folder):
    as_torchrun(rank, ranks)
    data, events = FullGraphDataModule(graph()), TemporalDataModule(random_store(190, 30))
    part = torch.arange(data.info.num_edges) % ranks
    files = {name: Path(folder) / f"{name}-{rank}.pt" for name in ("ranks", "graph", "range", "good")}
    save_partition(files["ranks"], part, 5, "ebv", data.info.fingerprint)
    save_partition(files["graph"], part, ranks, "ebv", "another")
    save_partition(files["range"], part + 1, ranks, "ebv", data.info.fingerprint)
    save_partition(files["good"], part, ranks, "ebv", data.info.fingerprint)

    def refused_partition(message, partition, data=data):
        refused(message, CDFGNNStrategy(partition=partition), ranks, data=data)

    refused_partition("partition must be for 2 ranks, got '5 ranks.*lightning-tgnn partition`", files["ranks"])
    refused_partition("partition must be of this graph, got .*; make one", str(files["graph"]))
    refused_partition("partition must be ranks in 0 .. 1, got 2", files["range"])
    refused_partition("partition must be one of hierarchical, .* or a file, got .*alphabetical", "alphabetical")
    refused_partition(f"a rank for each of {data.info.num_edges} edges", torch.zeros(4, dtype=torch.int64))
    refused_partition("partition must be of integers, got 'torch.float32'", part.float())
    fit(CDFGNNStrategy(partition=files["good"]), ranks, epochs=1)
    apart = CDFGNNStrategy(partition=(part + rank) % ranks)
    fit(apart, ranks, epochs=1)
    assert torch.equal(apart.replica_state._cut.long(), part)  # that of the first rank, whatever the others were given

    split = torch.eye(4, dtype=torch.bool)
    edge = torch.tensor([0])
    tiny = Graph(edge, edge + 1, torch.ones(4, 2), torch.tensor([0, 1, 1, 1]), split[0] | split[3], split[1], split[2])
    tiny_data = FullGraphDataModule(tiny, undirected=False, self_loops=False)
    for partition in ("hierarchical", "random"):
        refused_partition("ranks must be at most one for each of 1 edges, got 2; use fewer", partition, tiny_data)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy=CDFGNNStrategy(partition=edge),
        logger=False,
        max_epochs=2,
        enable_checkpointing=False,
    )
    trainer.fit(NodeClassification(hidden_dim=8), tiny_data)  # a rank that is given no edge takes part all the same
    assert trainer.global_step == 2

    refused("datamodule must be a FullGraphDataModule, got 'TemporalDataModule'", CDFGNNStrategy(), ranks, data=events)
    wanted = "must be a strategy that shares node state over ranks, got 'CDFGNNStrategy.*set strategy='sven'"
    refused(wanted, CDFGNNStrategy(), ranks, LinkPrediction(), events)
    wanted = "datamodule must be a TemporalDataModule, got 'FullGraphDataModule'; .*NodeClassification"
    refused(wanted, SvenStrategy(), ranks, LinkPrediction(), data)
    refused("model must be a task with the stages.*'cdfgnn' for a static graph", SvenStrategy(), ranks, data=data)
    refused("model must be a task that adds up over replicas.*'Plain'", CDFGNNStrategy(), ranks, Plain())
    refused("dataloader must be of a graph that can be cut, got 'Data", CDFGNNStrategy(), ranks, WithReplicas())
    return True


@pytest.mark.timeout(200)
def test_what_cannot_work_is_refused_on_every_rank(tmp_path):
    assert run_ranks(refusals, 2, str(tmp_path), timeout=190) == [True, True]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_is_refused_where_there_is_none():
    with pytest.raises(MisconfigurationException, match="CUDAAccelerator"):
        pl.Trainer(accelerator="cuda", strategy="cdfgnn")
    strategy = CDFGNNStrategy(parallel_devices=[torch.device("cuda", 0)])
    with pytest.raises(InvalidArgumentError, match=r"accelerator=.* must be a device that is there, got 'cuda'; set"):
        strategy.setup_environment()
