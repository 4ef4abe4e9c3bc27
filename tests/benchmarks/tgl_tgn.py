"""TGN as TGL computes it, in blocks of DGL, in rounds: tgl_tgn.py SOURCE BATCH_SIZE cpu.

TGL (Zhou et al., "TGL: A General Framework for Temporal GNN Training on Billion-Scale Graphs", PVLDB 15, 2022) is no
package that could be installed, and its models name a CUDA device. So this is a TGN of our own that computes what TGL's
does: each root and each sampled neighbour is a vertex of its own in a block, whose memory is updated there, and
attention is message passing of DGL. This package draws the past neighbours; TGL's own sampler is compiled as well.
"""

import sys

import dgl
import dgl.function as fn
import torch
from dgl.nn.functional import edge_softmax
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, leaky_relu

from lightning_tgnn.data import read_events
from lightning_tgnn.data.streams.temporal_adjacency import TemporalAdjacency
from tests.benchmarks.rounds import Turns

DIM, HEADS, NEIGHBORS, FEATURES, TRAINED = 100, 2, 10, 172, 0.7


class TimeEncoding(nn.Module):
    def __init__(self):
        super().__init__()
        self.angle = nn.Linear(1, DIM)
        self.angle.weight = nn.Parameter(10 ** -torch.linspace(0, 9, DIM).unsqueeze(1))

    def forward(self, elapsed):
        return torch.cos(self.angle(elapsed.float().unsqueeze(1)))


class Attention(nn.Module):
    """One layer of attention from the roots of a block to their neighbours."""

    def __init__(self):
        super().__init__()
        self.encode = TimeEncoding()
        self.query = nn.Linear(2 * DIM, DIM)
        self.key, self.value = (nn.Linear(2 * DIM + FEATURES, DIM) for _ in range(2))
        self.out, self.dropout, self.norm = nn.Linear(2 * DIM, DIM), nn.Dropout(0.1), nn.LayerNorm(DIM)

    def forward(self, block, states):
        own = states[: block.num_dst_nodes()]
        queries = self.query(torch.cat([own, self.encode(torch.zeros(len(own)))], dim=1))
        said = torch.cat([states[len(own) :], block.edata["features"], self.encode(block.edata["elapsed"])], dim=1)
        keys, values = (weights(said).view(-1, HEADS, DIM // HEADS) for weights in (self.key, self.value))
        asked = queries[block.edges()[1]].view_as(keys)
        weights = self.dropout(edge_softmax(block, leaky_relu((asked * keys).sum(-1, keepdim=True), 0.2)))
        block.edata["said"] = (values * weights).flatten(1)
        block.update_all(fn.copy_e("said", "m"), fn.sum("m", "heard"))
        return self.norm(torch.relu(self.out(torch.cat([block.dstdata["heard"], own], dim=1))))


class TGLTGN(nn.Module):
    """Memory and mailbox of all nodes, updater, attention and predictor."""

    def __init__(self, stream, num_nodes, lr=1e-4):
        super().__init__()
        self.stream, self.features = stream, torch.randn(len(stream), FEATURES)
        self.adjacency = TemporalAdjacency.build(stream.src, stream.dst, num_nodes)
        self.memory, self.memory_time = torch.zeros(num_nodes, DIM), torch.zeros(num_nodes).double()
        self.mails = torch.zeros(num_nodes, 2 * DIM + FEATURES)
        self.encode, self.updater = TimeEncoding(), nn.GRUCell(3 * DIM + FEATURES, DIM)
        self.attention = Attention()
        self.source, self.destination, self.last = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, 1)
        self.optimizer = torch.optim.Adam(self.parameters(), lr=lr)

    def reset(self):
        for table in (self.memory, self.memory_time, self.mails):
            table.zero_()

    def block(self, roots, events):
        """Return the block of roots and their neighbours, and node and time of each of its sources."""
        time = self.stream.time
        found = self.adjacency.most_recent(roots, torch.searchsorted(time, time[events]), NEIGHBORS)
        root, place = found.mask.nonzero(as_tuple=True)
        count, past = len(roots), found.events[root, place]
        senders = torch.arange(count, count + len(root))
        block = dgl.create_block((senders, root), num_src_nodes=count + len(root), num_dst_nodes=count)
        block.edata["features"] = self.features[past]
        block.edata["elapsed"] = time[events[root]] - time[past]
        return block, torch.cat([roots, found.nodes[root, place]]), time[torch.cat([events, past])]

    def updated(self, nodes, time):
        """Return the memory of vertices with the mails of their nodes taken in."""
        elapsed = self.encode(time - self.memory_time[nodes])
        return self.updater(torch.cat([self.mails[nodes], elapsed], dim=1), self.memory[nodes])

    def train_on(self, events, negatives):
        self.optimizer.zero_grad()
        src, dst, count = self.stream.src[events], self.stream.dst[events], len(events)
        block, nodes, time = self.block(torch.cat([src, dst, negatives]), events.repeat(3))
        memory = self.updated(nodes, time)
        source, true, false = self.attention(block, memory).split(count)
        positive, negative = (
            self.last(torch.relu(self.source(source) + self.destination(other))) for other in (true, false)
        )
        loss = binary_cross_entropy_with_logits(positive, torch.ones_like(positive))
        loss = loss + binary_cross_entropy_with_logits(negative, torch.zeros_like(negative))
        loss.backward()
        self.optimizer.step()
        self.write(events, src, dst, memory[: 2 * count].detach())

    def write(self, events, src, dst, memory):
        """Write the memory of sources and destinations, and their mails, of which the latest stays."""
        ends, sides = torch.stack([src, dst], dim=1).flatten(), memory.view(2, -1, DIM).transpose(0, 1)
        features = self.features[events].repeat_interleave(2, dim=0)
        mails = torch.cat([sides.flatten(0, 1), sides.flip(1).flatten(0, 1), features], dim=1)
        nodes, number = ends.unique(return_inverse=True)
        last = torch.zeros_like(nodes).scatter_reduce_(0, number, torch.arange(len(ends)), "amax")
        self.memory[nodes], self.mails[nodes] = sides.flatten(0, 1)[last], mails[last]
        self.memory_time[nodes] = self.stream.time[events].repeat_interleave(2)[last]


def main(source, batch_size, _):
    torch.manual_seed(0)
    stream = read_events(source)
    num_nodes = int(max(stream.src.max(), stream.dst.max())) + 1
    model, turns, lowest = TGLTGN(stream, num_nodes), Turns(), int(stream.dst.min())
    model.train()
    while True:
        model.reset()
        for events in torch.arange(int(TRAINED * len(stream))).split(int(batch_size)):
            model.train_on(events, torch.randint(lowest, num_nodes, (len(events),)))
            if not turns.step(len(events)):
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
