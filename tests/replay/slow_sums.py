"""Sums over the replicas of a vertex-cut, vertex by vertex: CDFGNN's Algorithm 2, and blocks that SANCUS skips."""

import torch


class SlowSums:
    """Algorithm 2 over dictionaries: one process that plays all ranks; leaders of hosts pass on what they gather."""

    def __init__(self, replicas, threshold, bits, relay):
        self.replicas = replicas
        self.where, self.master, self.leader, self.hosts = (
            replicas.where,
            replicas.master,
            replicas.leader,
            replicas.hosts,
        )
        self.threshold, self.bits, self.relay = threshold, bits, relay
        self.used, self.told, self.first = {}, {}, True
        self.held = self.size = self.sent = 0.0

    def leader_of(self, rank, v):
        return self.leader[self.hosts[rank]][v] if self.relay else rank

    def coded(self, row, blocks):
        """Return what a receiver decodes, of each block of columns by itself."""
        if self.bits is None:
            return row
        return torch.cat([self.coded_block(block) for block in row.split(blocks or (len(row),))])

    def coded_block(self, row):
        low, high = row.min().double(), row.max().double()
        if low == high:
            return row.clone()
        levels = ((row.double() - low) * ((2**self.bits - 1) / (high - low)) + 0.5).floor()
        return (levels * ((high - low) / (2**self.bits - 1)) + low).float()

    def differs(self, row, old, blocks):
        if self.first:
            return True
        pairs = zip(row.split(blocks or len(row)), old.split(blocks or len(row)), strict=True)
        far = any(bool((new - known).abs().max() > self.threshold * known.abs().max()) for new, known in pairs)
        self.held += 0.0 if far else float((row - old).double().square().sum())
        self.size += float(old.double().square().sum())
        return far

    @property
    def error(self):
        """The root mean square of what the last step has held back, relative to the rows; None of the first step."""
        return (self.held / self.size) ** 0.5 if self.size else None

    def step(self, values, blocks=()):
        """``values[rank][vertex]`` to sums of the same form, and how many rows were sent."""
        sent, sums = 0, [{} for _ in values]
        self.held = self.size = 0.0
        for v, ranks in enumerate(self.where):
            if len(ranks) == 1:
                sums[ranks[0]][v] = values[ranks[0]][v]
                continue
            master, active = self.master[v], False
            leads = [rank for rank in ranks if rank in (master, self.leader_of(rank, v))]
            gathered = {rank: [] for rank in leads}
            for rank in sorted(ranks, key=lambda rank: (rank in leads, rank == master)):
                row = values[rank][v] if rank == master else sum([values[rank][v], *gathered.get(rank, [])])
                above = None if rank == master else master if rank in leads else self.leader_of(rank, v)
                old = self.used.get((rank, v), torch.zeros_like(row))
                if self.differs(row, old, blocks):
                    plain = rank == master or self.bits is None
                    self.used[rank, v] = row if plain else old + self.coded(row - old, blocks)
                    sent += rank != master
                    active |= above in (master, None)
                if above is not None:
                    gathered[above].append(self.used[rank, v])
            total = sum([self.used[master, v], *gathered[master]])
            told = self.told.get(v, torch.zeros_like(total))
            if active and self.differs(total, told, blocks):
                self.told[v] = total if self.bits is None else told + self.coded(total - told, blocks)
                sent += len(ranks) - 1
            for rank in ranks:
                sums[rank][v] = self.told[v]
        self.first, self.sent = False, sent
        return sums, sent


class SlowBlocks(SlowSums):
    """Each rank sends all rows of a hop, or none where together they have changed by little."""

    def step(self, values, blocks=()):
        """Arguments and results are those of `SlowSums.step`."""
        ranks, sent = range(len(values)), 0
        gathered = [{v: [] for v in of_rank} for of_rank in values]
        for hop in range(len(self.replicas.above(0, 0, self.relay))):
            arriving = []
            for rank in ranks:
                above = {v: self.replicas.above(v, rank, self.relay)[hop] for v in values[rank]}
                rows = {v: sum([values[rank][v], *gathered[rank][v]]) for v in values[rank] if above[v] >= 0}
                sent += self.bring_up(rows, lambda v, rank=rank, hop=hop: (rank, hop, v), self.bits, blocks)
                arriving += [(above[v], v, self.used[rank, hop, v]) for v in rows]
            for rank, v, row in arriving:
                gathered[rank][v].append(row)
        sums = [dict(of_rank) for of_rank in values]
        for rank in ranks:
            mine = [v for v in values[rank] if self.master[v] == rank and len(self.where[v]) > 1]
            self.bring_up({v: values[rank][v] for v in mine}, lambda v, rank=rank: (rank, v), None, blocks)
            totals = {v: sum([self.used[rank, v], *gathered[rank][v]]) for v in mine}
            if self.bring_up(totals, lambda v: v, self.bits, blocks):
                sent += sum(len(self.where[v]) - 1 for v in mine)
            for v in mine:
                for other in self.where[v]:
                    sums[other][v] = self.used[v]
        self.first = False
        return sums, sent

    def bring_up(self, rows, name, bits, blocks):
        """Take up all rows, or none; return how many."""
        old = {v: self.used.get(name(v), torch.zeros_like(row)) for v, row in rows.items()}
        if not rows:
            return 0
        change = max(float((row - old[v]).abs().max()) for v, row in rows.items())
        if not self.first and change <= self.threshold * max(float(row.abs().max()) for row in old.values()):
            return 0
        for v, row in rows.items():
            self.used[name(v)] = row if bits is None else old[v] + self.coded(row - old[v], blocks)
        return len(rows)
