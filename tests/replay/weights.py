"""Which weights a turn of a plan sees, and what changes them: every version is kept, in one process."""

from itertools import pairwise

import torch

from lightning_tgnn.strategies.parts import RingUpdates
from tests.replay.compressed import slow_mean


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

    def heard(self, rank):
        """Return the gradients that the hooks of a rank hear of."""
        return self.applied

    def end_step(self):
        if self.scheduler is not None:
            self.scheduler.step()


class Together(Weights):
    """All ranks have the same weights; each turn's mean of their gradients is applied, some turns late."""

    def __init__(self, *settings):
        super().__init__(*settings)
        self.pending, self.of_turn = [], []
        self.mean_of = slow_mean(self.plan.updates.compression, self.plan.layout.ranks)

    def before(self, turn, rank):
        self.hold(-1)

    def after(self, turn, rank, has_events, gradients):
        self.of_turn.append(gradients)

    def end_turn(self, turn, is_last):
        self.pending.append(self.mean_of(self.of_turn))
        self.of_turn = []
        if len(self.pending) > self.plan.updates.delay:
            self.update(self.pending.pop(0), self.rate)
        self.end_step()


class InTurn(Weights):
    """An update for each place of a pipeline, in their order; a batch lacks the latest of those before it.

    It is of the mean of all pipelines' ranks in that place.
    """

    def __init__(self, *settings):
        super().__init__(*settings)
        self.places, part = list(zip(*self.plan.layout.copies, strict=True)), self.plan.updates  # the ranks in each
        self.length, ranks = len(self.places), self.plan.layout.ranks
        self.staleness = self.length - 1 if part.staleness is None else part.staleness
        self.sends, self.sums = part.sends, [None] * ranks
        self.heard_by = [[] for _ in range(ranks)]
        self.begin_epoch()

    def begin_epoch(self):
        self.step, self.versions_after = 0, [len(self.versions) - 1]  # the version after so many of its updates

    def before(self, turn, rank):
        _, place = self.plan.layout.copy_of(rank)
        wanted = max(self.step * self.length + place - self.staleness, 0)
        self.catch_up(wanted)
        self.hold(self.versions_after[wanted])

    def catch_up(self, wanted):
        """Make the first updates of the epoch, so many; ranks without a gradient leave theirs out."""
        while len(self.versions_after) <= wanted:
            place = (len(self.versions_after) - 1) % self.length
            found = [self.sums[rank] for rank in self.places[place] if self.sums[rank] is not None]
            if found:
                copies = len(self.places[place])
                self.update([sum(weight_grad) / copies for weight_grad in zip(*found, strict=True)], self.rate)
            self.versions_after.append(len(self.versions) - 1)

    def after(self, turn, rank, has_events, gradients):
        if has_events:
            share = [gradient / self.accumulate for gradient in gradients]
            held = self.sums[rank]
            self.sums[rank] = share if held is None else [a + b for a, b in zip(held, share, strict=True)]

    def end_turn(self, turn, is_last):
        if (turn + 1) % self.accumulate and not is_last:
            return
        first = self.step * self.length
        self.catch_up(first + self.length)
        for place, ranks in enumerate(self.places):
            for rank in ranks:
                self.listen(rank, first + place, first + self.length if is_last else first + place + 1)
        self.sums, self.step = [None] * len(self.sums), self.step + 1
        if is_last:  # all ranks have all updates before the next epoch
            self.begin_epoch()
        self.end_step()

    def listen(self, rank, own, end):
        """Note the updates that a rank makes in its step: those before are made before its passes, and quietly."""
        first, end = (max(own - self.staleness, 0), end) if self.sends == "gradients" else (own, own + 1)
        for before, version in pairwise(self.versions_after[first : end + 1]):
            if version != before:
                self.heard_by[rank].append(self.applied[version - 1])

    def heard(self, rank):
        return self.heard_by[rank]
