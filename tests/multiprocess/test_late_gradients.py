"""Gradients that come a step late: over two fits, for parameters that a step leaves out, accumulated, and by hand."""

import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from lightning_tgnn import DepCommStrategy, SvenStrategy
from lightning_tgnn.checks import InvalidArgumentError
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.training import DelayedByHand, PlainDescent, as_torchrun, build, fit

RANKS = 2
STEPS = 6  # of an epoch
LR, DECAY, SLOPE = 0.02, 0.5, 3.0
EVENTS = 140  # 5 batches of an epoch, which neither 2 nor 3 divides
WITHIN = {2: 8, 3: 7}  # batches, of which so many go into a step, after which some have been accumulated


def sven(**options):
    return SvenStrategy(partition="range", micro_batches=1, **options)


ACCUMULATING = {
    "sven, staleness 0": lambda: sven(staleness=0),
    "sven, staleness 1": lambda: sven(staleness=1),
    "depcomm": lambda: DepCommStrategy(partition="range"),
}
LATE = ("sven, staleness 1",)
STATIC = {"events": EVENTS, "static_dim": 3, "num_nodes": 90}  # most of whose rows no event touches


class EveryOther(PlainDescent):
    """Uses a parameter in every other step; decay tells a gradient of zero from none."""

    def build_head(self):
        super().build_head()
        self.odd = torch.nn.Parameter(torch.ones(3))

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) + (SLOPE * self.odd.sum() if batch_idx % 2 else 0)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=LR, weight_decay=DECAY)


class ByHand(PlainDescent):
    passes, optimizers_wanted = 1, 1

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        optimizer = self.optimizers()
        optimizer.zero_grad()
        for number in range(self.passes):
            self.manual_backward(loss / self.passes, retain_graph=number + 1 < self.passes)
        optimizer.step()
        return {"loss": loss.detach()}

    def configure_optimizers(self):
        return [torch.optim.SGD(self.parameters(), lr=0.02) for _ in range(self.optimizers_wanted)]


class TwoPasses(ByHand):
    passes = 2


class TwoOptimizers(ByHand):
    optimizers_wanted = 2


class KeepEveryBatch(Callback):
    """Saves checkpoints between the steps of the optimizer as well, which `ModelCheckpoint` does not."""

    def __init__(self, folder):
        self.folder, self.batches = folder, 0

    def on_train_batch_end(self, trainer, *_):
        self.batches += 1
        trainer.save_checkpoint(f"{self.folder}/{self.batches}.ckpt")


def same(ours, theirs):
    return all(torch.equal(ours["weights"][name], value) for name, value in theirs["weights"].items())


def close(ours, theirs, what):
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4, msg=lambda message: f"{what}: {message}")


def accumulated(ranks, folder):
    """Return losses and weights of runs that accumulate gradients; each goes on exactly between two of its steps."""
    outcomes = {}
    for name, strategy in ACCUMULATING.items():
        for batches, within in WITHIN.items():
            case = f"{folder}/{name}/{batches}"
            options = {"accumulate_grad_batches": batches}
            once = fit(*build("tgn", 12, **STATIC), strategy(), ranks, callbacks=[KeepEveryBatch(case)], **options)
            flows = once["trainer"].strategy._updates.traffic.flows
            assert flows["gradient_rows"].calls > 0
            for batch in (1, within) if name in LATE else (within,):
                made = build("tgn", 12, **STATIC)
                resumed = fit(*made, strategy(), ranks, ckpt_path=f"{case}/{batch}.ckpt", **options)
                assert torch.equal(resumed["losses"], once["losses"][batch:]), (case, batch)
                assert same(resumed, once), (case, batch)
            outcomes[name, batches] = once["losses"], once["weights"]
    return outcomes


def on_rank(rank, ranks, folder):
    as_torchrun(rank, ranks)
    once = fit(*build("tgn", 12), sven(), ranks, epochs=2)

    data, task = build("tgn", 12)
    strategy = sven()
    trainer = fit(data, task, strategy, ranks, epochs=1)["trainer"]
    trainer.validate(task, data, verbose=False)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(task, datamodule=data)
    continued = {name: value.detach() for name, value in task.named_parameters()}
    assert same({"weights": continued}, once)
    trainer.fit_loop.max_epochs = 3
    another = build("tgn", 12)[1]
    trainer.fit(another, datamodule=data)  # other weights: the gradient that is left is not theirs
    assert len(trainer.strategy.strategy_state()["gradients"]) == len(list(another.parameters()))

    keep = ModelCheckpoint(folder, every_n_train_steps=1, save_top_k=-1, filename="{step}")
    options = {"task_class": EveryOther}
    make = lambda: sven(find_unused_parameters=True)  # noqa: E731
    data, task = build("tgn", 12, **options)
    used = fit(data, task, make(), ranks, callbacks=[keep], enable_checkpointing=True)
    for step in (2, 3, 7):
        resumed = fit(*build("tgn", 12, **options), make(), ranks, ckpt_path=f"{folder}/step={step}.ckpt")
        assert same(resumed, used), step

    assert same(fit(*build("tgn", 12, task_class=ByHand), sven(), ranks), once)
    with pytest.raises(InvalidArgumentError, match="staleness must be 0 where manual_backward is called more than on"):
        fit(*build("tgn", 12, task_class=TwoPasses), sven(), ranks)
    with pytest.raises(
        InvalidArgumentError, match=r"staleness must be 0 with several optimizers.* got 1; set staleness"
    ):
        fit(*build("tgn", 12, task_class=TwoOptimizers), sven(), ranks)
    waiting = fit(*build("tgn", 12, task_class=ByHand), sven(staleness=0), ranks)
    halves = fit(*build("tgn", 12, task_class=TwoPasses), sven(staleness=0), ranks)
    assert all(torch.allclose(halves["weights"][name], value, atol=1e-6) for name, value in waiting["weights"].items())
    made = build("tgn", 12, events=EVENTS, **options)
    of_several = fit(*made, make(), ranks, accumulate_grad_batches=3)
    return used["weights"]["odd"], of_several["weights"]["odd"], accumulated(ranks, folder)


@pytest.mark.timeout(180)
def test_late_gradients(tmp_path):
    expected = torch.ones(3)
    for step in range(2 * STEPS - 1):  # the last one's gradient is still to come
        if step % STEPS % 2:
            expected = expected - LR * (SLOPE + DECAY * expected)
    of_several = torch.ones(3)
    for _ in range(2 * 2 - 1):  # batches 1 and 3 use it, each in a step whose last batch does not
        of_several = of_several - LR * (SLOPE / 3 + DECAY * of_several)
    outcomes = []
    for odd, odd_of_several, outcome in run_ranks(on_rank, RANKS, str(tmp_path), timeout=150):
        torch.testing.assert_close(odd, expected)
        torch.testing.assert_close(odd_of_several, of_several)
        outcomes.append(outcome)
    for name, batches in outcomes[0]:
        made = build("tgn", 12 * RANKS, DelayedByHand if name in LATE else PlainDescent, **STATIC)
        alone = fit(*made, "auto", 1, accumulate_grad_batches=batches)
        losses = torch.stack([outcome[name, batches][0] for outcome in outcomes]).mean(0)
        close(losses, alone["losses"], f"{name}, {batches}: losses")
        for outcome in outcomes:
            for key, value in alone["weights"].items():
                close(outcome[name, batches][1][key], value, f"{name}, {batches}: {key}")
