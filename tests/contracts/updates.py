"""Every kind of weight updates, and what its contract is held with: on one, two and three ranks of one start."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import SimpleNamespace

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import get_protocol_members

from lightning_tgnn.algorithms.schedules import DataParallel
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.comm import Exchange, Messages, ProcessGroups, Traffic
from lightning_tgnn.strategies.parts import MeanGradients, PowerSGD, RingUpdates
from lightning_tgnn.strategies.parts.compressed_mean import RESIDUALS
from lightning_tgnn.types import RankLayout, Run, UpdatesPart, WeightUpdates
from tests.replay.compressed import slow_mean

RANKS, STEPS, LR, DECAY, CLIP = 3, 7, 0.2, 0.3, 0.4
WIDTH, WIDER = 3, 8
TABLE = 7  # rows of an embedding table


def descent(parameters):
    return torch.optim.SGD(parameters, lr=LR, weight_decay=DECAY)


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=0.05, weight_decay=DECAY)


@dataclass(frozen=True)
class Updates:
    """A kind of updates.

    Attributes:
        part: Of a plan.
        delay: Of the mean: ``w[t+1] = w[t] - lr * mean of the ranks' gradients at w[t - delay]``.
        optimizer: Makes the optimizer of parameters.
    """

    part: UpdatesPart
    delay: int = 0
    optimizer: Callable = descent

    @property
    def takes_turns(self):
        """Whether there is an update for each rank; see `tests.contracts.turns`."""
        return isinstance(self.part, RingUpdates)


SENDS = ("gradients", "weights_and_moments")
# A new kind is added here in a line.
UPDATES = {"mean": Updates(MeanGradients(0)), "mean a step late": Updates(MeanGradients(1), 1)}
for compression in ("bfloat16", "int8", PowerSGD(rank=1, warm_up=2)):
    for delay, late in enumerate(("", " a step late")):
        part = MeanGradients(delay, compression)
        UPDATES[f"mean by {part.compression.name}{late}"] = Updates(part, delay)
UPDATES |= {f"in turn by {sends}": Updates(RingUpdates(sends), optimizer=adam) for sends in SENDS}
UPDATES |= {"in turn, staleness 0": Updates(RingUpdates(staleness=0), optimizer=adam)}
# What any optimizer keeps travels with the weights.
COMPRESSED = [name for name in UPDATES if name.startswith("mean by")]
OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=LR),
    "momentum": partial(torch.optim.SGD, lr=LR, momentum=0.7, dampening=0.2),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.02, momentum=0.5, centered=True),
    "amsgrad": partial(torch.optim.Adam, lr=0.02, amsgrad=True),
    "adafactor": partial(torch.optim.Adafactor, lr=0.02),
    **{kind.__name__: partial(kind, lr=0.02) for kind in (torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax)},
    **{kind.__name__: partial(kind, lr=0.02) for kind in (torch.optim.Adagrad, torch.optim.Adadelta)},
    **{kind.__name__: partial(kind, lr=0.02) for kind in (torch.optim.ASGD, torch.optim.Rprop)},
}
UPDATES |= {
    f"in turn with {name}": Updates(RingUpdates("weights_and_moments"), optimizer=optimizer)
    for name, optimizer in OPTIMIZERS.items()
}


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


def trainings(name):
    """Return the rank counts and trainings of a kind."""
    if name in COMPRESSED:
        few = [(1, "plain"), *((2, training) for training in ("plain", "clipped", "resumed often", "unused"))]
        return [*few, *((RANKS, training) for training in TRAININGS)]
    if not UPDATES[name].takes_turns:
        return [(ranks, training) for ranks in (1, 2, RANKS) for training in TRAININGS]
    if name.startswith("in turn with"):
        return [(RANKS, "resumed, unused")]
    held = [training for training in TRAININGS if not TRAININGS[training].by_hand]  # which is refused
    fewer = [(1, "clipped"), (2, "clipped"), (2, "resumed often"), (2, "unused")]
    return [*fewer, *((RANKS, training) for training in held)]


CASES = [(name, ranks, training) for name in UPDATES for ranks, training in trainings(name)]


def inputs(rank, step):
    generator = torch.Generator().manual_seed(100 * rank + step)
    return torch.randn(5, WIDTH, generator=generator, dtype=torch.float64)


def uses(rank, step):
    """Whether a rank's step uses the parameter that may be left out: by all, by some, by nobody."""
    return (True, rank == 0, False)[step % 3]


def arguments(rank, step, case):
    return inputs(rank, step), uses(rank, step) or not case.unused, looked_up(rank, step)


def looked_up(rank, step):
    """Return rows of the table: a few, on the last rank none now and then, or all, which are less as a whole."""
    if step % 4 == 3:
        return torch.arange(TABLE)
    few = torch.tensor([(rank + step) % TABLE, (2 * rank + 1) % TABLE, (rank + step) % TABLE])
    return few[: 0 if rank == 2 and step % 2 else 3]


SHAPES = {"last": (WIDTH,), "odd": (WIDTH,), "first": (WIDTH, WIDTH), "wide": (WIDTH, WIDER), "out": (WIDER,)}


class Tiny(pl.LightningModule):
    """Two ways of two layers, an embedding table, and a parameter that a step may leave out."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(TABLE, WIDTH, dtype=torch.float64)
        torch.nn.init.constant_(self.table.weight, 0.3)
        generator = torch.Generator().manual_seed(3)
        for name, shape in SHAPES.items():
            value = torch.randn(shape, generator=generator, dtype=torch.float64)
            self.register_parameter(name, torch.nn.Parameter(value))

    def forward(self, given, with_odd, rows):
        hidden = (given @ self.first).tanh()
        answer = hidden @ self.last + (given @ self.wide).sin() @ self.out
        loss = ((answer - 1) ** 2).mean() + ((self.table(rows) * self.last).sum(1) - 1).square().sum()
        return loss + ((given @ self.odd).sin().mean() if with_odd else 0)


@dataclass
class Rank:
    """Trains on one rank as the runner does."""

    kind: Updates
    case: Case
    run: Run
    group: object
    task: Tiny = field(default_factory=Tiny)
    made: list = field(default_factory=list)

    number: int = 0

    def __post_init__(self):
        self.optimizer = None
        self.updates = self.opened()

    def opened(self):
        return self.kind.part.open(self.run, may_be_unused=self.case.unused)

    def attach(self, pending, state=None):
        self.task.automatic_optimization = not self.case.by_hand
        held = self.optimizer
        self.optimizer = self.kind.optimizer(self.task.parameters())
        if held is not None:
            self.optimizer.load_state_dict(held.state_dict() if state is None else state)
        self.task.trainer = self.trainer()
        options = {"process_group": self.group, "find_unused_parameters": self.case.unused}
        self.model = DistributedDataParallel(self.task, **options)
        self.updates.attach(self.task, self.model, pending)
        self.updates.check_optimizers([self.optimizer])

    def trainer(self):
        """Return what updates ask a Trainer."""
        loop = SimpleNamespace(
            _num_ready_batches_reached=lambda: self.number == STEPS - 1,
            batch_progress=SimpleNamespace(current=SimpleNamespace(ready=1)),
        )
        return SimpleNamespace(
            strategy=SimpleNamespace(optimizers=[self.optimizer]),
            fit_loop=SimpleNamespace(epoch_loop=loop),
            accumulate_grad_batches=1,
            profiler=None,
            gradient_clip_val=None,
            gradient_clip_algorithm=None,
            precision_plugin=SimpleNamespace(_clip_gradients=lambda *given, **options: self.clip()),
        )

    def clip(self):
        if self.case.clips:
            torch.nn.utils.clip_grad_norm_(self.task.parameters(), CLIP)

    def step(self, number):
        self.number = number
        self.updates.begin_turn(5)

        def passes():
            self.optimizer.zero_grad()
            loss = self.model(*arguments(self.run.rank, number, self.case))
            if self.case.starts:
                self.updates.start()
            self.updates.before_backward()
            loss.backward()
            return loss.detach()

        def update(closure):
            outcome = closure()
            self.clip()
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
            self.updates.show()
            weights.append({name: value.detach().clone() for name, value in self.task.named_parameters()})
            pending.append(deepcopy(self.updates.state_dict()))
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
        flows = getattr(self.updates, "traffic", Traffic()).snapshot()
        return {"weights": weights, "losses": losses, "pending": pending, "made": self.made, "flows": flows}

    def resume(self):
        """Go on with what the first rank writes into a checkpoint."""
        saved = [deepcopy((self.task.state_dict(), self.optimizer.state_dict(), self.updates.state_dict()))]
        if self.group is not None:
            dist.broadcast_object_list(saved, src=0, group=self.group)
        weights, state, pending = saved[0]
        self.task = Tiny()
        self.task.load_state_dict(weights)
        self.updates = self.opened()
        self.attach(pending, state)


@cache
def reference(name, ranks, training):
    """Return the weights after every step, losses and steps updated after of every rank, by the formula."""
    kind, case = UPDATES[name], TRAININGS[training]
    if kind.takes_turns:
        return in_turn(kind, case, ranks)
    task = Tiny()
    optimizer = kind.optimizer(task.parameters())
    weights, losses, made, waiting, all_pending = [], [], [], [], []
    mean_of = slow_mean(kind.part.compression, ranks)
    for number in range(STEPS):
        answers = [gradients(task, rank, number, case) for rank in range(ranks)]
        losses.append([loss for loss, _ in answers])
        waiting.append(means([given for _, given in answers], mean_of))
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
            waiting, mean_of = [], slow_mean(kind.part.compression, ranks)
    return SimpleNamespace(weights=weights, losses=losses, made=[made] * ranks, pending=all_pending)


def in_turn(kind, case, ranks):
    """Return the same of ranks that take turns: one update for each, and weights that lack the latest of them."""
    part, task = kind.part, Tiny()
    late = ranks - 1 if part.staleness is None else part.staleness
    optimizer = kind.optimizer(task.parameters())
    weights, losses, made = [], [], [[] for _ in range(ranks)]
    versions = [kept(task)]  # since all ranks had the same weights
    for number in range(STEPS):
        before = len(versions) - 1
        losses.append([])
        for rank in range(ranks):
            latest = kept(task)
            task.load_state_dict(versions[max(before + rank - late, 0)])
            loss, given = gradients(task, rank, number, case)
            losses[-1].append(loss)
            task.load_state_dict(latest)
            for name, gradient in given.items():
                task.get_parameter(name).grad = gradient
            if case.clips:
                torch.nn.utils.clip_grad_norm_(task.parameters(), CLIP)
            optimizer.step()
            versions.append(kept(task))
            # Those that the passes wait for are made before, quietly; the end of an epoch brings those of later ranks.
            others = min(late, before + rank) + (ranks - 1 - rank if number == STEPS - 1 else 0)
            made[rank] += [number] * (1 + (others if part.sends == "gradients" else 0))
        weights.append({name: value.detach().clone() for name, value in task.named_parameters()})
        if number + 1 in {*case.drops, *case.fits}:
            versions = versions[-1:]
    return SimpleNamespace(weights=weights, losses=losses, made=made, pending=None)


def kept(task):
    return {name: value.clone() for name, value in task.state_dict().items()}


def gradients(task, rank, number, case):
    loss = task(*arguments(rank, number, case))
    names, values = zip(*task.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, values, allow_unused=True)
    return loss.detach(), dict(zip(names, found, strict=True))


def mean(given):
    """Return the mean over the ranks, where those that left a parameter out count as 0; None where all did."""
    if all(gradient is None for gradient in given):
        return None
    return sum(0 if gradient is None else gradient for gradient in given) / len(given)


def means(given, mean_of):
    """Return the mean over the ranks by name; None where all leave a parameter out."""
    found = {name: mean([gradients[name] for gradients in given]) for name in given[0]}
    names = [name for name in found if name != "table.weight"]  # which travels as it is
    zeros = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    filled = [[zeros[name] if one[name] is None else one[name] for name in names] for one in given]
    compressed = dict(zip(names, mean_of(filled), strict=True))
    return {name: None if value is None else compressed.get(name, value) for name, value in found.items()}


def missing_members(updates):
    return [name for name in get_protocol_members(WeightUpdates) if not hasattr(updates, name)]


def twice_by_hand(rank):
    """Return why a second backward pass before a step is refused, or None."""
    rank.attach({})
    rank.task.automatic_optimization = False
    try:
        for _ in range(2):
            rank.updates.before_backward()
    except InvalidArgumentError as error:
        return str(error)
    return None


def on_rank(rank, ranks):
    families = {str(count): (tuple(range(count)),) for count in range(1, ranks + 1)}
    groups = ProcessGroups(RankLayout.of(ranks, families=families), rank)
    for family in families:
        groups.of(family, "compressed")  # which all ranks have to make together
    outcomes = {"refused": {}, "members": {}, "moved": {}}
    for name in COMPRESSED:
        moved = on_fewer_ranks(open_rank(name, Case(), groups, rank, ranks), groups)
        outcomes["moved"][name] = moved
    for name, count, training in CASES:
        if rank < count:
            outcomes[name, count, training] = open_rank(name, TRAININGS[training], groups, rank, count).train()
    for name in UPDATES:
        opened = open_rank(name, Case(), groups, rank, ranks)
        outcomes["members"][name] = missing_members(opened.updates)
        outcomes["refused"][name] = twice_by_hand(opened)
    return outcomes


def on_fewer_ranks(trained, groups):
    """Return what two ranks have kept back that go on where three were, and what these had, all rows of all."""
    trained.attach({})
    for number in range(STEPS):
        trained.step(number)
    saved = [trained.updates.state_dict()]
    dist.broadcast_object_list(saved, src=0)
    if trained.run.rank > 1:
        return None
    two = Rank(trained.kind, trained.case, replaced(trained.run, groups), groups.of("2"))
    two.attach(saved[0])
    return two.updates.state_dict().get(RESIDUALS), saved[0].get(RESIDUALS)


def replaced(run, groups):
    return replace(run, layout=RankLayout.of(2), group_of=lambda family, way="": groups.of("2", way))


def open_rank(name, case, groups, rank, count):
    def way(to_all):
        return Messages(tuple(range(count)) if to_all else (rank,), rank, groups.of(str(count)) if to_all else None)

    run = Run(
        layout=RankLayout.of(count),
        schedule=DataParallel(),
        rank=rank,
        task=None,
        trainer=None,
        device=torch.device("cpu"),
        exchange=Exchange(),
        group_of=lambda family, way="": groups.of(str(count), way),
        broadcast=lambda value: value,
        messages=lambda family, within_copy=False: way(family == "gradients"),
        host_messages=lambda family, way: Messages(tuple(range(count)), rank, groups.of(str(count))),
        send_gradients=lambda: None,
    )
    return Rank(UPDATES[name], case, run, groups.of(str(count)))
