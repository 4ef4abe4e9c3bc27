"""Plans over event streams: every copy of node state is a dictionary, and what ranks write is merged event by event."""

from collections import defaultdict
from dataclasses import replace

import torch

from lightning_tgnn.algorithms.schedules import RoundRobin
from lightning_tgnn.types import Pass, StateRows


class Table:
    """A copy of node state: the memory of each node that was written, and all mails that were ever delivered to it."""

    def __init__(self, spec):
        self.spec, self.position = spec, 0
        self.memory, self.mails = {}, defaultdict(list)

    def rows(self, nodes):
        """Return the rows of nodes; of a node's mails the latest, each in its slot."""
        count, slots = len(nodes), self.spec.mailbox_size
        memory, mails = torch.zeros(count, self.spec.memory_dim), torch.zeros(count, slots, self.spec.mail_dim)
        memory_time, mail_time = torch.zeros(count).double(), torch.zeros(count, slots).double()
        mail_event, mail_count = torch.zeros(count, slots).long(), torch.zeros(count).long()
        for place, node in enumerate(nodes.tolist()):
            if node in self.memory:
                memory[place], memory_time[place] = self.memory[node]
            mail_count[place] = len(self.mails[node])
            for number, (mail, time, event) in enumerate(self.mails[node]):  # a later one takes the place of the oldest
                slot = place, number % slots
                mails[slot], mail_time[slot], mail_event[slot] = mail, time, event
        return StateRows(memory, memory_time, mails, mail_time, mail_event, mail_count)

    def copy(self):
        """Return a table that later writes to this one leave alone."""
        other = Table(self.spec)
        other.memory, other.position = dict(self.memory), self.position
        other.mails = defaultdict(list, {node: list(mails) for node, mails in self.mails.items()})
        return other

    def write(self, written):
        """Take in what ranks have written in one turn: the latest event's memory of a node, and one mail to a node."""
        memory, mails = defaultdict(list), defaultdict(list)
        for batch, change in written:
            latest = {}
            for event, *ends in zip(batch.events.tolist(), batch.src.tolist(), batch.dst.tolist(), strict=True):
                latest |= dict.fromkeys(ends, event)
            for node, row, time in zip(change.nodes.tolist(), change.memory, change.memory_time, strict=True):
                memory[node].append((latest[node], (row, time)))
            sent = zip(change.mail_nodes.tolist(), change.mails, change.mail_time, change.mail_event, strict=True)
            for node, mail, time, event in sent:
                mails[node].append((int(event), (mail, time, event)))
            self.position = change.position if len(batch) else self.position
        for node, candidates in memory.items():
            self.memory[node] = self.sum(node, candidates) if self.spec.decays else latest_of(candidates)
        for node, candidates in mails.items():
            self.mails[node].append(latest_of(candidates))

    def sum(self, node, candidates):
        """Return what is held and what is added of a node, all decayed to the latest time."""
        zero = torch.zeros(self.spec.memory_dim), torch.tensor(0.0).double()
        rows = [self.memory.get(node, zero), *(row for _, row in candidates)]
        latest = max(time for _, time in rows)
        blocks = (
            torch.tensor(self.spec.decays).double().repeat_interleave(self.spec.memory_dim // len(self.spec.decays))
        )
        return sum(row * torch.exp(-blocks * (latest - time)) for row, time in rows).float(), latest


def trained(task):
    return [parameter for parameter in task.parameters() if parameter.requires_grad]


def gradient(loss, parameters):
    """Return the gradient of each parameter; zeros where it has no part."""
    return torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)


def latest_of(candidates):
    """Return what is given with the latest event."""
    return max(candidates, key=lambda candidate: candidate[0])[1]


class Streams:
    """Turns of all ranks over a stream of events."""

    def __init__(self, plan, task, data):
        self.plan, self.task, self.data = plan, task, data
        self.copies = defaultdict(lambda: Table(task.state_spec))
        self.read = defaultdict(lambda: Table(task.state_spec))  # of each rank, at its last turn that has read
        self.training = self.followed(data.train_dataloader())
        self.parameters = trained(task)
        task.train()

    def followed(self, loader):
        """Return the loader of each rank."""
        plan = self.plan
        return [loader.follow(plan.schedule, plan.layout, rank) for rank in range(plan.layout.ranks)]

    def over(self, epoch):
        return Pass(len(self.training[0].events), self.data.batch_size, epoch)

    def turn(self, turns, number, weights):
        """Return the loss of each rank, with its gradients in ``weights``."""

        def step(rank, batch):
            weights.before(number, rank)
            loss = self.task.training_step(batch, number)
            weights.after(number, rank, len(batch) > 0, gradient(loss, self.parameters))
            return loss.detach()

        return self.run(turns, self.training, step)

    @torch.no_grad()
    def validate(self):
        """Continue behind the training split; metrics are over the events of all ranks."""
        self.task.eval()
        loaders, plan = self.followed(self.data.val_dataloader()), self.plan
        over = Pass(len(loaders[0].events), self.data.batch_size)
        turns = [plan.schedule.turns(plan.layout, rank, over) for rank in range(plan.layout.ranks)]
        for number, per_rank in enumerate(zip(*turns, strict=True)):
            self.run(per_rank, loaders, lambda rank, batch, number=number: self.task.validation_step(batch, number))
        return {f"val/{name}": float(value) for name, value in self.task.metric_values(self.task.val_metrics).items()}

    def run(self, turns, loaders, step):
        """Run a step for each rank: one global batch after the other, its ranks on one node state."""
        for turn in turns:
            if turn.resets:
                self.copies[turn.copy] = Table(self.task.state_spec)
        outcomes, together = {}, defaultdict(list)
        for rank in sorted(range(len(turns)), key=lambda rank: self.plan.layout.copy_of(rank)[1]):
            turn = turns[rank]
            together[turn.copy, turn.of.start, None if turn.events else rank] += [rank]
        for ranks in together.values():
            written = defaultdict(list)
            for rank in ranks:
                self.task.stage_order = self.order(turns[rank], rank, written)
                batch = loaders[rank].batch(turns[rank])
                batch = replace(batch, shared=replace(batch.shared, share=self.share(turns, rank)))
                outcomes[rank] = step(rank, batch)
            for copy, changes in written.items():
                self.copies[copy].write(changes)
        return [outcomes[rank] for rank in range(len(turns))]

    def share(self, turns, rank):
        """Return the weight that makes the mean over the ranks of an update that of its events."""
        if isinstance(self.plan.schedule, RoundRobin):  # those who have the same place in every copy
            _, place = self.plan.layout.copy_of(rank)
            together = [turns[ranks[place]] for ranks in self.plan.layout.copies]
        else:
            together = turns
        events = sum(len(turn.events) for turn in together)
        return len(turns[rank].events) * len(together) / events if events else 0.0

    def order(self, turn, rank, written):
        """Return the order of a turn's stages, which reads the turn's copy of node state and notes what is written."""
        if turn.reads:
            self.read[rank] = self.copies[turn.copy].copy()
        table = self.read[rank]

        def in_order(task, batch):
            updated = task.apply_mail(table.rows(batch.nodes))
            if turn.writes:
                written[turn.copy].append((batch, task.make_mails(updated, batch)))
            return task.score(task.embed(updated, batch), batch)

        return in_order

    def state(self):
        """Return the tables of every copy."""
        return [
            {"position": table.position, **vars(table.rows(torch.arange(table.spec.num_nodes)))}
            for _, table in sorted(self.copies.items())
        ]
