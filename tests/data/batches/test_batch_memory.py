"""What a batch is said to take is what it takes, and no batch is refused that would have fitted."""

from dataclasses import replace

import lightning.pytorch as pl
import psutil
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lightning_tgnn import LinkPrediction, TemporalDataModule
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.data.batches import sampling as batch_memory
from lightning_tgnn.data.batches.sampling import available_memory, batch_bytes
from lightning_tgnn.files import memory
from tests.data.disks import files_below
from tests.data.example_streams import random_store


class Peak(TorchDispatchMode):
    """Counts the bytes of all tensors that are alive after each operation, but for those that are there already."""

    def __init__(self, there):
        super().__init__()
        self.known = {tensor.untyped_storage()._cdata for tensor in there}
        self.alive, self.highest = {}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, made)):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self.known:
                storage = tensor.untyped_storage()
                self.alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.alive = {key: held for key, held in self.alive.items() if not held[0].expired()}
        self.highest = max(self.highest, sum(size for _, size in self.alive.values()))
        return made


def loader_of(roots, training=True, edge_dim=0, **options):
    data = TemporalDataModule(random_store(600, num_nodes=40, edge_dim=edge_dim), num_workers=0, **options)
    data.sampled_roots = roots
    return data.train_dataloader() if training else data.val_dataloader()


def tensors_of(sampler):
    held = [*vars(sampler.store).values(), *vars(sampler.adjacency).values(), *vars(sampler.negatives).values()]
    return [value for value in held if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize("roots", ["all", "events", "none"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("edge_dim", [0, 7])
@pytest.mark.parametrize("neighbor_sampler", ["most_recent", "uniform"])
def test_the_estimate_is_reached_and_not_far_below_the_peak(roots, training, edge_dim, neighbor_sampler):
    # Uniform sampling looks through what it has drawn for every neighbour: more of them would only take longer.
    width = 1000 if neighbor_sampler == "most_recent" else 100
    options = {"batch_size": 64, "num_neighbors": width, "num_eval_negatives": 5, "neighbor_sampler": neighbor_sampler}
    loader = loader_of(roots, training, edge_dim, **options)
    sampler = loader._sampler
    next(iter(loader))  # compiled loops make tables of their own
    with Peak(tensors_of(sampler)) as measured:
        next(iter(loader))
    estimate = batch_bytes(sampler, 64)
    assert estimate <= measured.highest
    if roots != "none":
        assert estimate >= (0.5 if neighbor_sampler == "most_recent" else 0.25) * measured.highest


@pytest.mark.parametrize("roots", ["all", "none"])
def test_the_estimate_is_reached_where_nodes_are_embedded_once(roots):
    options = {"batch_size": 64, "num_neighbors": 1000, "num_eval_negatives": 20, "past": "batch"}
    loader = loader_of(roots, False, 7, embed_at="batch", **options)
    next(iter(loader))
    with Peak(tensors_of(loader._sampler)) as measured:
        next(iter(loader))
    estimate = batch_bytes(loader._sampler, 64, "batch")
    assert estimate <= measured.highest
    assert roots == "none" or 0.3 * measured.highest <= estimate < batch_bytes(loader._sampler, 64, "event")


def test_the_estimate_grows_with_what_is_asked_for():
    sampler = loader_of("all", edge_dim=3, num_neighbors=10)._sampler
    assert batch_bytes(sampler, 200) == 200 * 3 * 10 * (4 * 8 + 1 + 8) + 200 * 3 * 4
    assert batch_bytes(replace(sampler, num_neighbors=0), 200) == 200 * 3 * 4
    assert batch_bytes(replace(sampler, num_negatives=49), 200) == 200 * 51 * 10 * 41 + 200 * 3 * 4
    assert batch_bytes(replace(sampler, sampled_roots="events"), 1) == 2 * 10 * 25 + 12


@pytest.mark.parametrize("roots", ["all", "events"])
def test_more_than_memory_holds_is_refused_before_it_is_allocated(roots):
    message = "must be few .*, got '10,000,000,000 for 200 events with [23] roots each: at least .* GB, .* GB free'; l"
    with pytest.raises(InvalidArgumentError, match=message):
        loader_of(roots, num_neighbors=10**10)
    next(iter(loader_of("none", num_neighbors=10**10)))


def test_only_more_than_memory_holds_is_refused(monkeypatch):
    needed = batch_bytes(loader_of("all", num_neighbors=50)._sampler, 200)
    monkeypatch.setattr(batch_memory, "available_memory", lambda: needed)
    loader_of("all", num_neighbors=50)
    monkeypatch.setattr(batch_memory, "available_memory", lambda: needed - 1)
    with pytest.raises(InvalidArgumentError, match="lower num_neighbors, batch_size or num_eval_negatives"):
        loader_of("all", num_neighbors=50)
    loader_of("all", num_neighbors=49)
    monkeypatch.setattr(batch_memory, "available_memory", lambda: None)
    loader_of("all", num_neighbors=10**10)


def test_a_batch_is_no_larger_than_its_part_of_the_stream(monkeypatch):
    part = len(loader_of("all").events)
    needed = batch_bytes(loader_of("all")._sampler, part)
    monkeypatch.setattr(batch_memory, "available_memory", lambda: needed)
    assert len(loader_of("all", batch_size=10**9)) == 1


def test_evaluation_is_looked_at_before_training(monkeypatch):
    data = TemporalDataModule(random_store(600, num_nodes=40), num_workers=0, num_eval_negatives=9)
    needed = batch_bytes(loader_of("all")._sampler, 200)
    monkeypatch.setattr(batch_memory, "available_memory", lambda: needed)
    trainer = pl.Trainer(accelerator="cpu", max_epochs=1, num_sanity_val_steps=0, logger=False, barebones=True)
    with pytest.raises(InvalidArgumentError, match="for 90 events with 11 roots each"):
        trainer.fit(LinkPrediction("tgn"), datamodule=data)
    assert trainer.global_step == 0


def test_memory_is_read_from_the_system(tmp_path):
    whole = psutil.virtual_memory().total + psutil.swap_memory().total
    assert 0 < available_memory() <= whole
    (tmp_path / "limited").write_text("5000000\n")
    (tmp_path / "free").write_text("max\n")
    found = [list(memory._limit(tmp_path / name)) for name in ("limited", "free", "none")]
    assert found == [[5_000_000], [], []]


def test_a_full_disk_while_drawing_an_epoch_ahead(tmp_path):
    loader = loader_of("all", presample="epoch", presample_dir=tmp_path)
    message = r"neighbors-1.npy must be where it fits, got .*File too large"
    with pytest.raises(InvalidArgumentError, match=message), files_below(20_000):
        next(iter(loader))
    assert len(list(loader)) == len(loader)
