"""Plans over groups of snapshots: each update's groups one after the other, whole, in one process."""

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
import torch

from lightning_tgnn.algorithms.schedules import SnapshotGroups
from lightning_tgnn.types import RankLayout
from tests.replay.streams import gradient


@dataclass(frozen=True)
class EitherProcess(SnapshotGroups):
    """A third of the groups is the first process's alone, a third the second's, and the others are cut behind one."""

    def turns(self, layout, rank, over):
        def own(part):
            whole = over.snapshots_of(part.group)
            split = (len(whole), 0, 1)[part.group % 3]
            return replace(part, snapshots=whole[split:] if rank % 2 else whole[:split])

        return [replace(turn, parts=tuple(map(own, turn.parts))) for turn in super().turns(layout, rank, over)]


class Groups:
    """Turns of all ranks on groups of snapshots."""

    def __init__(self, plan, task, data):
        self.plan, self.task, self.data = plan, task, data
        self.devices = plan.schedule.global_batch_size(plan.layout, 1)
        data.batch_size *= self.devices  # one process trains the groups of all
        self.loader = data.train_dataloader().follow(SnapshotGroups(1), RankLayout.of(1), 0)

    def over(self, epoch):
        self.loader.set_epoch(epoch)
        self.batches = list(self.loader)
        over = self.loader.passed()
        known = self.loads(over, epoch) if epoch else {}  # after the first epoch
        return type(over)(**vars(over) | {"batch_size": over.batch_size // self.devices} | known)

    @staticmethod
    def loads(over, epoch):
        """Return predicted seconds, others in every epoch: they decide who computes what, and change no result."""
        rng = np.random.default_rng(epoch)
        lengths = [len(over.snapshots_of(group)) for group in over.order]
        forward, backward = (tuple(rng.random(length) ** 3 for length in lengths) for _ in range(2))
        return {"forward": forward, "backward": backward}

    def turn(self, turns, number, weights):
        """Return the loss of each rank: of the groups that it ends; several that end one share it."""
        batch, ranks = self.batches[number], self.plan.layout.ranks
        ends = self.who_ends(turns)
        assert sorted(ends) == sorted(group.number for group in batch.groups)
        weights.before(number, 0)
        self.task.train()
        losses, gradients = torch.zeros(ranks), []
        for group in batch.groups:
            carried, embeddings = self.task.start(group), None
            for snapshot in group.snapshots:
                carried, embeddings = self.task.step(snapshot, carried, last=snapshot.number == group.number)
            loss = self.task.loss(embeddings, group) / len(batch.groups)
            for rank in ends[group.number]:
                losses[rank] += ranks * loss.detach() / len(ends[group.number])
            gradients.append(gradient(loss, weights.parameters))
        # The mean over the ranks, of which only some have a gradient: as if one had all.
        total = [ranks * sum(weight_grad) for weight_grad in zip(*gradients, strict=True)]
        for rank in range(ranks):
            weights.after(number, rank, True, total if rank == 0 else [torch.zeros_like(each) for each in total])
        return list(losses)

    def who_ends(self, turns):
        """Return by group who computes its last snapshot; check that each snapshot is computed once, in order."""
        parts = defaultdict(list)
        for rank, turn in enumerate(turns):
            for part in turn.parts:
                parts[part.group].append((rank, part))
        ends = {}
        for group, of_group in parts.items():
            whole = list(range(of_group[0][1].first, group + 1))
            if all(list(part.snapshots) == whole for _, part in of_group):  # vertices are cut, or one rank has all
                ends[group] = [rank for rank, _ in of_group]
                continue
            assert [number for _, part in of_group for number in part.snapshots] == whole
            ends[group] = [rank for rank, part in of_group if group in part.snapshots]
        return ends

    @torch.no_grad()
    def validate(self):
        """Return the metrics over all groups."""
        self.task.eval()
        for number, batch in enumerate(self.data.val_dataloader()):
            self.task.validation_step(batch, number)
        return {f"val/{name}": float(value) for name, value in self.task.metric_values(self.task.val_metrics).items()}

    def state(self):
        return None
