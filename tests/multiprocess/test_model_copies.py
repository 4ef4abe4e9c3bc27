"""What ranks do not sum up: buffers that a step changes, and parameters that come to be trained later."""

import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from lightning_tgnn import DepCacheStrategy, DistTGLStrategy, PipeTGLStrategy, SvenStrategy
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.files.checkpoints import WholeCheckpointIO
from lightning_tgnn.strategies.processes.model_copies import ModelCopies
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.training import PlainDescent, as_torchrun, build, fit
from tests.tasks.own_parts import MeanModel

STRATEGIES = {
    "sven": lambda: SvenStrategy(micro_batches=2),
    "sven, sharded": lambda: SvenStrategy(staleness=0, state_dict_type="sharded"),
    "depcache": DepCacheStrategy,
    "pipetgl": PipeTGLStrategy,
    "disttgl": lambda: DistTGLStrategy(epoch=2),
}
STEP = 4


class ScaledModel(MeanModel):
    """Divides by a running size of what this rank has seen, changed in place, and counts steps in a new tensor."""

    def __init__(self, info):
        super().__init__(info)
        self.register_buffer("size", torch.ones(()))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("table", torch.zeros(1000), persistent=False)

    def embed(self, updated, batch):
        out = super().embed(updated, batch)
        if self.training and len(out):
            self.size.mul_(0.9).add_(out.detach().norm(dim=1).mean(), alpha=0.1)
            self.count = self.count + batch.time[:1].sum() % 7
        return out / self.size


class Seen(Callback):
    """Keeps the buffers that validations have."""

    def __init__(self):
        self.sizes = []

    def on_validation_batch_start(self, trainer, task, batch, batch_idx, dataloader_idx=0):
        self.sizes.append(float(task.model.size))


class Unfreezes(Callback):
    """Trains a layer from the second epoch on."""

    def on_train_epoch_start(self, trainer, task):
        task.model.out.weight.requires_grad_(trainer.current_epoch > 0)


class Forgets(MeanModel):
    """Leaves a weight out of every second step."""

    def embed(self, updated, batch):
        self.calls = getattr(self, "calls", 0) + 1
        out = super().embed(updated, batch)
        return out if self.calls % 2 else 0 * updated.memory[batch.root_index, :1] + out.detach()


class BeginsFrozen(ScaledModel):
    """Does not train its layer."""

    def __init__(self, info):
        super().__init__(info)
        self.out.weight.requires_grad_(False)


def prepared(model=ScaledModel):
    data, _ = build("tgn", 6, events=80)
    torch.manual_seed(7)
    return data, PlainDescent(model=model)


def on_rank(rank, ranks, folder):
    as_torchrun(rank, ranks)
    answers = {}
    for name, strategy in STRATEGIES.items():
        keep = ModelCheckpoint(f"{folder}/{name}", every_n_train_steps=STEP, save_top_k=-1, filename="{step}")
        seen = Seen()
        data, task = prepared()
        fit(data, task, strategy(), ranks, callbacks=[keep, seen], epochs=2, enable_checkpointing=True)
        path = f"{folder}/{name}/step={STEP}.ckpt"
        data, resumed = prepared()
        fit(data, resumed, strategy(), ranks, epochs=2, ckpt_path=path)  # saves nothing, which changes nothing
        saved = WholeCheckpointIO().load_checkpoint(path)["state_dict"]
        for key, value in task.state_dict().items():
            assert torch.equal(resumed.state_dict()[key], value), (name, key)
        answers[name] = (seen.sizes, float(task.model.size), float(task.model.count), float(saved["model.size"]))
    for name in ("sven", "depcache"):
        with pytest.raises(InvalidArgumentError, match=r"trained parameters must be .* got \['model.out.weight'\]"):
            fit(*prepared(BeginsFrozen), STRATEGIES[name](), ranks, callbacks=[Unfreezes()], epochs=2)
    message = (
        "all that the task trains, got 'a step that leaves some out'; give SvenStrategy find_unused_parameters=True"
    )
    with pytest.raises(RuntimeError, match=message):
        fit(*prepared(Forgets), SvenStrategy(), ranks, epochs=2)
    fit(*prepared(Forgets), SvenStrategy(find_unused_parameters=True), ranks, epochs=1)
    return answers


@pytest.mark.timeout(200)
def test_all_ranks_have_the_first_ones_buffers_and_train_the_same(tmp_path):
    first, second = run_ranks(on_rank, 2, str(tmp_path), timeout=190)
    assert first == second
    for name, (seen, size, count, saved) in first.items():
        assert len({*seen, 1.0}) > 2, name  # they change
        assert size != 1, name
        assert saved not in (1, size), name
        assert count > 0, name


def test_one_rank_may_train_more_later():
    outcome = fit(*prepared(BeginsFrozen), "auto", 1, callbacks=[Unfreezes()], epochs=2)
    assert torch.isfinite(outcome["losses"]).all()


class FirstOfTwo:
    """Messages of the first rank, to a second one that has other values of some buffers."""

    ranks, place = 2, 0

    def __init__(self, differing):
        self.differing = differing

    def gather(self, own):
        return [own, own | dict.fromkeys(self.differing, b"")]


def test_only_what_differs_is_sent_and_shapes_have_to_fit():
    model = torch.nn.BatchNorm1d(2)
    model.register_buffer("sparse", torch.eye(2).to_sparse())
    sent = []

    def broadcast(value):
        if isinstance(value, dict):
            sent.append({*value})
            return {name: torch.full_like(tensor, 3) for name, tensor in value.items()}
        return value

    model.register_buffer("wide", torch.ones(1).expand(4))
    model.register_buffer("own", torch.ones(3), persistent=False)
    model._ddp_params_and_buffers_to_ignore = ["left_alone"]
    model.register_buffer("left_alone", torch.ones(3))
    for differing in ([], ["running_mean", "num_batches_tracked", "wide"]):
        copies = ModelCopies(model, FirstOfTwo(differing), broadcast)
        copies.show()
        assert sent.pop() == {*differing}
    assert model.running_mean.tolist() == [3, 3]
    assert model.wide.tolist() == [3, 3, 3, 3]
    assert {*copies._buffers()} == {"running_mean", "running_var", "num_batches_tracked", "wide"}
    copies.hide()
    assert model.running_mean.tolist() == [0, 0]
    assert model.running_var.tolist() == [1, 1]
    saved = [{}, {"running_mean": torch.ones(2)}]
    ModelCopies(model, FirstOfTwo([]), broadcast, saved)
    assert model.running_mean.tolist() == [0, 0]
    ModelCopies(model, FirstOfTwo([]), broadcast, saved[::-1])
    assert model.running_mean.tolist() == [1, 1]
    ModelCopies(model, FirstOfTwo([]), broadcast, [{"running_mean": torch.zeros(2)}] * 3)  # of another number of ranks
    assert model.running_mean.tolist() == [1, 1]
    message = r"buffer running_mean of the model must be of the shape \[9\] .* got \[2\];"
    with pytest.raises(InvalidArgumentError, match=message):
        ModelCopies(model, FirstOfTwo([]), broadcast, [{"running_mean": torch.zeros(9)}] * 2)
