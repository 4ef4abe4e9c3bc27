"""Where the vertices of a vertex-cut are, vertex by vertex, over sets."""

import torch


class SlowReplicas:
    """All replicas on all ranks.

    Attributes:
        where: Of each vertex the ranks that have it, ascending.
        master: Of each vertex the rank that sums up.
        leader: Of each host and vertex the rank that speaks for the host; -1 for none.
        hosts: Of each rank.
        present: bool [P, N].
    """

    def __init__(self, src, dst, owner, num_nodes, hosts):
        self.hosts = hosts.tolist()
        ranks, where = len(self.hosts), [set() for _ in range(num_nodes)]
        for u, v, rank in zip(src.tolist(), dst.tolist(), owner.tolist(), strict=True):
            where[u].add(rank)
            where[v].add(rank)
        self.where = [sorted(have or {vertex % ranks}) for vertex, have in enumerate(where)]
        self.master, self.leader = [], [[-1] * num_nodes for _ in range(max(self.hosts) + 1)]
        self.present = torch.zeros(ranks, num_nodes, dtype=torch.bool)
        for vertex, have in enumerate(self.where):
            turn = {rank: (rank + vertex) % ranks for rank in have}
            of_host = [[rank for rank in have if self.hosts[rank] == host] for host in range(len(self.leader))]
            master = max(have, key=lambda rank: (len(of_host[self.hosts[rank]]), turn[rank]))
            self.master.append(master)
            for host, some in enumerate(of_host):
                if some:
                    self.leader[host][vertex] = master if master in some else max(some, key=turn.get)
            self.present[have, vertex] = True

    def above(self, vertex, rank, relay):
        """Return to which rank a replica goes in each hop; -1 for none."""
        master, leader = self.master[vertex], self.leader[self.hosts[rank]][vertex]
        stays = rank not in self.where[vertex] or rank == master
        if not relay or not 1 < len(self.leader) < len(self.hosts):
            return [-1 if stays else master]
        return [-1 if stays or rank == leader else leader, -1 if stays or rank != leader else master]
