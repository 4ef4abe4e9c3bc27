"""Which weights a turn of a plan sees, and what changes them: every version is kept, in one process."""

import torch

from lightning_tgnn.strategies.parts import RingUpdates


def weights_of(plan, task, accumulate=1):
    kind = InTurn if isinstance(plan.updates, RingUpdates) else Together
    return kind(plan, task, accumulate)


class Weights:
    """All versions of the weights; version k is there after k updates.

    Attributes:
        applied: What each update has applied, [G] each.
    """

    def __init__(self, plan, task, accumulate):
        self.plan, self.task, self.accumulate = plan, task, accumulate
        configured = task.configure_optimizers()
        is_scheduled = isinstance(configured, tuple)
        self.optimizer = configured[0][0] if is_scheduled else configured
        self.scheduler = configured[1][0]["scheduler"] if is_scheduled else None
        self.parameters = [parameter for parameter in task.parameters() if parameter.requires_grad]
        self.versions, self.applied, self.clip = [], [], None
        self.keep()

    def keep(self):
        self.versions.append([parameter.detach().clone() for parameter in self.parameters])

    @torch.no_grad()
    def hold(self, version):
        """Have the task compute with a version."""
        for parameter, value in zip(self.parameters, self.versions[version], strict=True):
            parameter.copy_(value)

    def update(self, gradients, rate):
        """Make the next version of the latest one, with the learning rate of a step."""
        self.hold(-1)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        self.applied.append(torch.cat([gradient.flatten() for gradient in gradients]))
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
        (group,) = self.optimizer.param_groups
        now, group["lr"] = group["lr"], rate
        self.optimizer.step()
        group["lr"] = now
        self.keep()

    @property
    def rate(self):
        return self.optimizer.param_groups[0]["lr"]

    def end_step(self):
        if self.scheduler is not None:
            self.scheduler.step()


class Together(Weights):
    """All ranks have the same weights; each turn's mean of their gradients is applied, some turns late."""

    def __init__(self, *settings):
        super().__init__(*settings)
        self.pending, self.of_turn = [], []

    def before(self, turn, rank):
        self.hold(-1)

    def after(self, turn, rank, has_events, gradients):
        self.of_turn.append(gradients)

    def end_turn(self, turn, is_last):
        ranks = self.plan.layout.ranks
        self.pending.append([sum(of_weight) / ranks for of_weight in zip(*self.of_turn, strict=True)])
        self.of_turn = []
        if len(self.pending) > self.plan.updates.delay:
            self.update(self.pending.pop(0), self.rate)
        self.end_step()


class InTurn(Weights):
    """An update for each place of a pipeline, in their order, by the mean of all pipelines' ranks in that place.

    A rank computes with the version after its own last update.
    """

    def __init__(self, *settings):
        super().__init__(*settings)
        self.places = list(zip(*self.plan.layout.copies, strict=True))  # the ranks in each
        self.own = [0] * self.plan.layout.ranks
        self.sums = [None] * self.plan.layout.ranks

    def before(self, turn, rank):
        self.hold(self.own[rank])

    def after(self, turn, rank, has_events, gradients):
        if has_events:
            share = [gradient / self.accumulate for gradient in gradients]
            held = self.sums[rank]
            self.sums[rank] = share if held is None else [a + b for a, b in zip(held, share, strict=True)]

    def end_turn(self, turn, is_last):
        if (turn + 1) % self.accumulate and not is_last:
            return
        for ranks in self.places:
            found = [self.sums[rank] for rank in ranks if self.sums[rank] is not None]
            if found:
                self.update([sum(of_weight) / len(ranks) for of_weight in zip(*found, strict=True)], self.rate)
            for rank in ranks:
                self.own[rank] = len(self.versions) - 1
        self.sums = [None] * len(self.sums)
        if is_last:  # all ranks have all updates before the next epoch
            self.own = [len(self.versions) - 1] * len(self.own)
        self.end_step()
