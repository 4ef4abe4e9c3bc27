"""Every kind of weight updates, and what its contract is held with: on one, two and three ranks of one start."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import lightning.pytorch as pl
import torch
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import get_protocol_members

from lightning_tgnn.algorithms.schedules import DataParallel
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.comm import Exchange, Messages, ProcessGroups
from lightning_tgnn.strategies.parts import MeanGradients
from lightning_tgnn.types import RankLayout, Run, WeightUpdates

RANKS, STEPS, LR, DECAY, CLIP = 3, 7, 0.2, 0.3, 0.4
WIDTH = 3


@dataclass(frozen=True)
class Updates:
    """A kind of updates: ``w[t+1] = w[t] - lr * mean of the ranks' gradients at w[t - delay]``."""

    part: MeanGradients
    delay: int


# A new kind is added here in a line.
UPDATES = {"mean": Updates(MeanGradients(0), 0), "mean a step late": Updates(MeanGradients(1), 1)}


@dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
        stops: Steps after which it is resumed from what was saved.
        fits: Steps after which the same updates follow the model in another fit.
        forgets: Steps after which what is pending is dropped.
        follows: Steps after which other updates follow the model.
        unused: Whether steps leave a parameter out, on some ranks or on all.
        clips: Whether gradients are clipped inside of the update.
        by_hand: Whether the backward pass comes before the step.
        starts: Whether the order tells it when to send.
    """

    stops: tuple = ()
    fits: tuple = ()
    forgets: tuple = ()
    follows: tuple = ()
    unused: bool = False
    clips: bool = False
    by_hand: bool = False
    starts: bool = True

    @property
    def drops(self):
        """Steps after which nothing of before is applied."""
        return {*self.forgets, *self.follows}


TRAININGS = {
    "plain": Case(),
    "not told to start": Case(starts=False),
    "clipped": Case(clips=True),
    "by hand": Case(by_hand=True),
    "unused": Case(unused=True),
    "unused and clipped": Case(unused=True, clips=True),
    "resumed at once": Case(stops=(1,)),
    "resumed often": Case(stops=(2, 3, 5), clips=True),
    "resumed, unused": Case(stops=(1, 4), unused=True),
    "two fits": Case(fits=(3,)),
    "three fits, unused": Case(fits=(2, 4), unused=True),
    "forgotten": Case(forgets=(3,)),
    "followed by others": Case(follows=(4,), unused=True),
}
CASES = [(name, ranks, training) for name in UPDATES for ranks in (1, 2, RANKS) for training in TRAININGS]


def inputs(rank, step):
    generator = torch.Generator().manual_seed(100 * rank + step)
    return torch.randn(5, WIDTH, generator=generator, dtype=torch.float64)


def uses(rank, step):
    """Whether a rank's step uses the parameter that may be left out: by all, by some, by nobody."""
    return (True, rank == 0, False)[step % 3]


class Tiny(pl.LightningModule):
    """Two layers and a parameter that a step may leave out."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        for name, shape in {"last": (WIDTH,), "odd": (WIDTH,), "first": (WIDTH, WIDTH)}.items():
            value = torch.randn(shape, generator=generator, dtype=torch.float64)
            self.register_parameter(name, torch.nn.Parameter(value))

    def forward(self, given, with_odd):
        hidden = (given @ self.first).tanh()
        return ((hidden @ self.last - 1) ** 2).mean() + ((given @ self.odd).sin().mean() if with_odd else 0)


def descent(task):
    return torch.optim.SGD(task.parameters(), lr=LR, weight_decay=DECAY)


@dataclass
class Rank:
    """Trains on one rank as the runner does."""

    kind: Updates
    case: Case
    run: Run
    group: object
    task: Tiny = field(default_factory=Tiny)
    made: list = field(default_factory=list)

    def __post_init__(self):
        self.task.automatic_optimization = not self.case.by_hand
        self.updates = self.opened()

    def opened(self):
        return self.kind.part.open(self.run, may_be_unused=self.case.unused)

    def attach(self, pending):
        options = {"process_group": self.group, "find_unused_parameters": self.case.unused}
        self.model = DistributedDataParallel(self.task, **options)
        self.updates.attach(self.task, self.model, pending)
        self.optimizer = descent(self.task)

    def step(self, number):
        def passes():
            self.optimizer.zero_grad()
            loss = self.model(inputs(self.run.rank, number), uses(self.run.rank, number) or not self.case.unused)
            if self.case.starts:
                self.updates.start()
            self.updates.before_backward()
            loss.backward()
            return loss.detach()

        def update(closure):
            outcome = closure()
            if self.case.clips:
                torch.nn.utils.clip_grad_norm_(self.task.parameters(), CLIP)
            self.optimizer.step()
            self.made.append(number)
            return outcome

        if self.case.by_hand:
            loss = passes()
            self.updates.step(lambda: None, update)
            return loss
        return self.updates.step(passes, update)

    def train(self):
        """Return the weights after every step and after the end, the losses, and what was pending."""
        assert isinstance(self.updates.waited, float)
        self.attach({})
        weights, losses, pending = [], [], []
        for number in range(STEPS):
            losses.append(self.step(number))
            weights.append({name: value.detach().clone() for name, value in self.task.named_parameters()})
            pending.append({name: value.clone() for name, value in self.updates.state_dict().items()})
            done = number + 1
            if done in self.case.stops:
                self.resume()
            if done in self.case.fits:
                self.updates.finish()
                self.attach({})
            if done in self.case.forgets:
                self.updates.forget()
                assert self.updates.state_dict() == {}
                self.attach({})
            if done in self.case.follows:
                self.updates.finish()
                self.updates = self.opened()
                self.attach({})
        self.updates.finish()
        return {"weights": weights, "losses": losses, "pending": pending, "made": self.made}

    def resume(self):
        saved, pending = self.task.state_dict(), self.updates.state_dict()
        self.task = Tiny()
        self.task.automatic_optimization = not self.case.by_hand
        self.task.load_state_dict(saved)
        self.updates = self.opened()
        self.attach(pending)


def reference(kind, case, ranks):
    """Return the weights after every step, the losses of every rank and the steps updated after, by the formula."""
    task = Tiny()
    optimizer = descent(task)
    weights, losses, made, waiting, all_pending = [], [], [], [], []
    for number in range(STEPS):
        answers = [gradients(task, rank, number, case) for rank in range(ranks)]
        losses.append([loss for loss, _ in answers])
        waiting.append({name: mean([given[name] for _, given in answers]) for name, _ in task.named_parameters()})
        if len(waiting) > kind.delay:
            for name, gradient in waiting.pop(0).items():
                task.get_parameter(name).grad = None if gradient is None else gradient.clone()
            if case.clips:
                torch.nn.utils.clip_grad_norm_(task.parameters(), CLIP)
            optimizer.step()
            made.append(number)
        weights.append({name: value.detach().clone() for name, value in task.named_parameters()})
        all_pending.append([{name: value for name, value in late.items() if value is not None} for late in waiting])
        if number + 1 in case.drops:
            waiting = []
    return SimpleNamespace(weights=weights, losses=losses, made=made, pending=all_pending)


def gradients(task, rank, number, case):
    loss = task(inputs(rank, number), uses(rank, number) or not case.unused)
    names, values = zip(*task.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, values, allow_unused=True)
    return loss.detach(), dict(zip(names, found, strict=True))


def mean(given):
    """Return the mean over the ranks, where those that left a parameter out count as 0; None where all did."""
    if all(gradient is None for gradient in given):
        return None
    return sum(0 if gradient is None else gradient for gradient in given) / len(given)


def missing_members(updates):
    return [name for name in get_protocol_members(WeightUpdates) if not hasattr(updates, name)]


def twice_by_hand(rank):
    """Return why a second backward pass before a step is refused, or None."""
    rank.task.automatic_optimization = False
    rank.attach({})
    try:
        for _ in range(2):
            rank.updates.before_backward()
    except InvalidArgumentError as error:
        return str(error)
    return None


def on_rank(rank, ranks):
    families = {str(count): (tuple(range(count)),) for count in range(1, ranks + 1)}
    groups = ProcessGroups(RankLayout.of(ranks, families=families), rank)
    outcomes = {"refused": {}, "members": {}}
    for name, count, training in CASES:
        if rank < count:
            outcomes[name, count, training] = open_rank(name, TRAININGS[training], groups, rank, count).train()
    for name in UPDATES:
        opened = open_rank(name, Case(), groups, rank, ranks)
        outcomes["members"][name] = missing_members(opened.updates)
        outcomes["refused"][name] = twice_by_hand(opened)
    return outcomes


def open_rank(name, case, groups, rank, count):
    run = Run(
        layout=RankLayout.of(count),
        schedule=DataParallel(),
        rank=rank,
        task=None,
        trainer=None,
        device=torch.device("cpu"),
        exchange=Exchange(),
        group_of={"gradients": groups.of(str(count))}.get,
        broadcast=lambda value: value,
        messages=lambda family: Messages(tuple(range(count)), rank, groups.of(str(count))),
        host_messages=lambda family, way: Messages(tuple(range(count)), rank, groups.of(str(count))),
        send_gradients=lambda: None,
    )
    return Rank(UPDATES[name], case, run, groups.of(str(count)))
