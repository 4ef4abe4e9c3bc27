"""Plans over a graph that is cut over the ranks: a thread a rank, of which one runs at a time, and sums by hand."""

from concurrent.futures import ThreadPoolExecutor
from copy import copy
from threading import Barrier, Lock

import torch

from lightning_tgnn.algorithms.traffic.cache_policy import ErrorController, ThresholdController
from lightning_tgnn.state.replicas.hops import ReplicaHops
from lightning_tgnn.strategies.parts.partition import choose_edge_partition
from lightning_tgnn.types import EVERY, Pass
from tests.replay.slow_replicas import SlowReplicas
from tests.replay.slow_sums import SlowBlocks, SlowSums
from tests.replay.streams import gradient, trained


class Graphs:
    """Turns of all ranks on the whole graph. The ranks' tasks have their weights in common."""

    def __init__(self, plan, task, data):
        self.plan, self.task, self.data = plan, task, data
        self.ranks, hosts = range(plan.layout.ranks), torch.tensor(plan.layout.hosts)
        src, dst, num_nodes = data.train_dataloader().edges
        self.part = choose_edge_partition(
            plan.store.partition, (src, dst, num_nodes), hosts, task.trainer, lambda part: part
        )
        self.replicas = SlowReplicas(src, dst, self.part, num_nodes, hosts)
        self.sums, self.threshold, self.thresholds = {}, plan.store.threshold, {}
        self.controller = ThresholdController() if self.threshold == "paper" else None
        if self.controller is not None:
            self.threshold = self.controller.threshold
        self.is_adaptive = self.threshold == "adaptive"
        self.tasks = [copy(task) for _ in self.ranks]
        for own in self.tasks:
            own.trainer = task.trainer  # a copy has none
        self.accuracy = None

    def over(self, epoch):
        return Pass(0, 0, epoch)

    def turn(self, turns, number, weights):
        """Return the loss of each rank, with its gradients in ``weights``."""
        weights.before(number, 0)
        if self.controller is not None and self.accuracy is not None:
            self.threshold = self.controller.update(self.accuracy)
        for name, sums in self.sums.items() if self.is_adaptive else ():
            if sums.error is not None:
                possible = 2 * sum(len(ranks) - 1 for ranks in self.replicas.where)
                self.thresholds[name].update(sums.sent / possible, sums.error)
        loaders = self.loaders(self.data.train_dataloader())
        for loader, turn in zip(loaders, turns, strict=True):
            loader.set_epoch(turn.draw)

        def step(rank, task, part):
            task.train()
            loss = task.training_step(part, number)
            return loss, gradient(loss, trained(task))

        outcomes = self.together(step, loaders)
        for rank, (_, gradients) in enumerate(outcomes):
            weights.after(number, rank, True, gradients)
        self.accuracy = sum(task.train_accuracy for task in self.tasks) / len(self.tasks)
        return [loss for loss, _ in outcomes]

    def validate(self):
        """Return the metrics over the vertices of all ranks."""

        @torch.no_grad()
        def step(rank, task, part):
            task.eval()
            task.validation_step(part, 0)

        self.together(step, self.loaders(self.data.val_dataloader()))
        return {name: float(value) for name, value in self.task.val_metrics.compute().items()}

    def loaders(self, loader):
        """Return the loader of each rank's part."""
        hosts = torch.tensor(self.plan.layout.hosts)
        how = {"relay": self.plan.store.relay, "halo": self.plan.store.halo}
        return [loader.shard(self.part, hosts, rank, **how) for rank in self.ranks]

    def together(self, step, loaders):
        """Run a step on every rank; sums wait until all have come to them."""
        parts = [next(iter(loader)) for loader in loaders]
        meeting = Meeting(self, [part.nodes.tolist() for part in parts])

        def on_rank(rank):
            def summed(values, key, blocks=(), then=None):
                # Also what needs no gradient is of training where gradients are recorded.
                direction = "forward" if torch.is_grad_enabled() else "evaluation"
                sums = Summed.apply(values, meeting, rank, key, direction, blocks)
                if then is None or direction == "evaluation" or len(self.ranks) == 1:
                    return sums if then is None else then(sums, EVERY)
                # In two pieces, as ranks do: other rounding may send another row, or another level of 8 bits.
                hops = ReplicaHops(parts[rank].hops, len(values))
                rows = torch.cat([then(sums[places], places) for places in (hops.alone, hops.shared)])
                return rows[torch.cat([hops.alone, hops.shared]).argsort()]

            self.tasks[rank].replicas = summed
            try:
                with meeting.turn_to_run:
                    return step(rank, self.tasks[rank], parts[rank])
            except BaseException:
                meeting.barrier.abort()
                raise

        with ThreadPoolExecutor(len(self.ranks)) as threads:
            return list(threads.map(on_rank, self.ranks))

    def total(self, per_rank, name, blocks):
        """Return the sums, {vertex: row} for each rank; those that a cache holds back are as they were.

        Without a cache nobody remembers what was sent before: sums begin anew. An evaluation is exact.
        """
        store = self.plan.store
        if name.endswith("evaluation"):
            return SlowSums(self.replicas, 0.0, None, store.relay).step(per_rank)[0]
        skips = store.cache == "sancus"
        if name not in self.sums or not store.cache or (skips and name.endswith("backward")):
            slow = SlowBlocks if skips and name.endswith("forward") else SlowSums
            self.sums[name] = slow(self.replicas, 0.0, store.bits, store.relay)
        if self.is_adaptive:
            self.sums[name].threshold = self.thresholds.setdefault(name, ErrorController()).threshold
        else:
            self.sums[name].threshold = self.threshold
        return self.sums[name].step(per_rank, blocks)[0]

    def state(self):
        return None


class Meeting:
    """Where the ranks of a step meet to add up."""

    def __init__(self, graphs, nodes):
        self.graphs, self.nodes = graphs, nodes
        self.turn_to_run = Lock()
        self.barrier = Barrier(len(nodes), action=self.add_up)
        self.given, self.sums = {}, []

    def sum(self, rank, values, name, blocks):
        """Return the sums at a rank's replicas, [n, k] as the values are."""
        self.given[rank] = values, name, blocks
        self.turn_to_run.release()
        try:
            self.barrier.wait()  # the last one to come adds up
        finally:
            self.turn_to_run.acquire()
        return torch.stack([self.sums[rank][vertex] for vertex in self.nodes[rank]])

    def add_up(self):
        ((name, blocks),) = {given[1:] for given in self.given.values()}  # all ranks are at the same sum
        values = [dict(zip(nodes, self.given[rank][0], strict=True)) for rank, nodes in enumerate(self.nodes)]
        self.sums = self.graphs.total(values, name, blocks)


class Summed(torch.autograd.Function):
    """The sum of a layer; its gradient is summed in the same way."""

    @staticmethod
    def forward(ctx, values, meeting, rank, key, direction, blocks):
        ctx.of = meeting, rank, key, blocks
        return meeting.sum(rank, values.detach(), f"{key}/{direction}", blocks)

    @staticmethod
    def backward(ctx, gradient):
        meeting, rank, key, blocks = ctx.of
        return meeting.sum(rank, gradient, f"{key}/backward", blocks), None, None, None, None, None
