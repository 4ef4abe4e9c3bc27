"""Plans over event streams: every copy of node state is a dictionary, and what ranks write is merged event by event."""

from collections import defaultdict
from dataclasses import replace

import torch

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
            self.position = change.position
        for node, candidates in memory.items():
            self.memory[node] = latest_of(candidates)
        for node, candidates in mails.items():
            self.mails[node].append(latest_of(candidates))


def trained(task):
    return [parameter for parameter in task.parameters() if parameter.requires_grad]


def gradient(loss, task):
    """Return the gradient of each trained parameter; zeros where it has no part."""
    return torch.autograd.grad(loss, trained(task), allow_unused=True, materialize_grads=True)


def latest_of(candidates):
    """Return what is given with the latest event."""
    return max(candidates, key=lambda candidate: candidate[0])[1]


class Streams:
    """Turns of all ranks over a stream of events."""

    def __init__(self, plan, task, data):
        self.plan, self.task, self.data = plan, task, data
        self.copies = defaultdict(lambda: Table(task.state_spec))
        self.training = self.followed(data.train_dataloader())

    def followed(self, loader):
        """Return the loader of each rank."""
        plan = self.plan
        return [loader.follow(plan.schedule, plan.layout, rank) for rank in range(plan.layout.ranks)]

    def over(self, epoch):
        return Pass(len(self.training[0].events), self.data.batch_size, epoch)

    def turn(self, turns, number):
        """Return loss and gradient of each rank; what they write is there from the next turn on."""
        self.task.train()
        losses = self.run(turns, self.training, lambda batch: self.task.training_step(batch, number))
        return [(loss, gradient(loss, self.task)) for loss in losses]

    @torch.no_grad()
    def validate(self):
        """Continue behind the training split; figures are over the events of all ranks."""
        self.task.eval()
        loaders, plan = self.followed(self.data.val_dataloader()), self.plan
        over = Pass(len(loaders[0].events), self.data.batch_size)
        turns = [plan.schedule.turns(plan.layout, rank, over) for rank in range(plan.layout.ranks)]
        for number, of_ranks in enumerate(zip(*turns, strict=True)):
            self.run(of_ranks, loaders, lambda batch, number=number: self.task.validation_step(batch, number))
        return {f"val/{name}": float(value) for name, value in self.task.figures(self.task.val_metrics).items()}

    def run(self, turns, loaders, step):
        """Run a step for each rank, all on node state as it was before the turn; then write."""
        written = defaultdict(list)
        for turn in turns:
            if turn.resets:
                self.copies[turn.copy] = Table(self.task.state_spec)
        outcomes = []
        for turn, loader in zip(turns, loaders, strict=True):
            self.task.stage_order = self.order(turn, written)
            batch = loader.batch(turn)
            share = len(turn.events) * turn.ranks / len(turn.of)
            outcomes.append(step(replace(batch, shared=replace(batch.shared, share=share))))
        for copy, changes in written.items():
            self.copies[copy].write(changes)
        return outcomes

    def order(self, turn, written):
        """Return the order of a turn's stages, which reads the turn's copy of node state and notes what is written."""
        table = self.copies[turn.copy] if turn.reads else Table(self.task.state_spec)

        def in_order(task, batch):
            updated = task.apply_mail(table.rows(batch.nodes))
            if turn.writes:
                written[turn.copy].append((batch, task.make_mails(updated, batch)))
            return task.score(task.embed(updated, batch), batch)

        return in_order

    def state(self):
        """Return the tables of the first copy."""
        table = self.copies[0]
        return {"position": table.position, **vars(table.rows(torch.arange(table.spec.num_nodes)))}
