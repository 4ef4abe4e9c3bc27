"""What a plan means: one process plays all ranks, one after the other, as slowly and plainly as can be.

Of a plan it reads who works on what (`Plan.schedule`), by how many turns gradients come late (`Plan.updates`), and how
sums over the replicas of a vertex travel (`Plan.store`); of a task its stages, its steps and its optimizer. Where rows
lie, in which pieces they travel and in what order stages follow each other must change nothing, so nobody asks here.
"""

from dataclasses import dataclass
from types import SimpleNamespace

import torch

from tests.replay.graphs import Graphs
from tests.replay.groups import Groups
from tests.replay.streams import Streams
from tests.replay.weights import weights_of

KINDS = {"events": Streams, "graph": Graphs, "groups": Groups}


@dataclass
class Replay:
    """What comes out.

    Attributes:
        losses: [T, P], of every turn and rank.
        gradients: By rank, what each update that it hears of has applied, [G] each, in the order of the parameters.
        weights: By name.
        state: Tables of every copy of node state; None for graphs.
        metrics: Of the validation after the last turn.
    """

    losses: torch.Tensor
    gradients: list
    weights: dict
    state: list | None
    metrics: dict


def replay(plan, task, data, epochs, *, clip=None, accumulate=1):
    """Train a task that nobody has trained, as a plan says, and validate it."""
    make_acquainted(task, data)
    held = weights_of(plan, task, accumulate)
    held.clip = clip
    (kind,) = plan.schedule.offers & KINDS.keys()
    play = KINDS[kind](plan, task, data)
    losses = []
    for epoch in range(epochs):
        turns = [plan.schedule.turns(plan.layout, rank, play.over(epoch)) for rank in range(plan.layout.ranks)]
        for number, at_once in enumerate(zip(*turns, strict=True)):
            outcomes = play.turn(at_once, number, held)
            losses.append([float(loss.detach()) for loss in outcomes])
            held.end_turn(number, is_last=number == len(turns[0]) - 1)
    held.hold(-1)
    weights = {name: value.detach().clone() for name, value in task.named_parameters()}
    state = play.state()  # before validation, which leaves no trace
    heard = [held.heard(rank) for rank in range(plan.layout.ranks)]
    return Replay(torch.tensor(losses), heard, weights, state, play.validate())


def make_acquainted(task, data):
    """Stand in for the Trainer: task and data ask it for each other, and metrics for those of all ranks."""
    strategy = SimpleNamespace(reduce=lambda metrics, reduce_op: metrics)  # each rank its own; see `Graphs`
    trainer = SimpleNamespace(lightning_module=task, datamodule=data, strategy=strategy, testing=False, global_rank=0)
    trainer.progress_bar_callback = None
    trainer.callbacks = []
    trainer.gradient_clip_val, trainer.is_last_batch, trainer.current_epoch, trainer.max_epochs = None, True, 0, 1
    task.trainer = data.trainer = trainer
    task.log = lambda *arguments, **options: None
    data.prepare_data()
    data.setup("fit")
    task.configure_model()
