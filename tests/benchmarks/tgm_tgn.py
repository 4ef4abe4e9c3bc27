"""TGM's TGN with its loader, hooks and encoder, in rounds: tgm_tgn.py SOURCE BATCH_SIZE DEVICE."""

import sys

import torch
from tgm import DGraph
from tgm.constants import PADDED_NODE_ID
from tgm.data import DGData, DGDataLoader
from tgm.hooks import DeduplicationHook, HookManager, NegativeEdgeSamplerHook, RecencyNeighborHook
from tgm.nn import LinkPredictor, TGNMemory
from tgm.nn.encoder import GraphAttentionEmbedding, IdentityMessage, LastAggregator
from torch.nn.functional import binary_cross_entropy_with_logits

from lightning_tgnn.data import read_events
from tests.benchmarks.rounds import Turns

DIM, NEIGHBORS, TRAINED = 100, 10, 0.7


class TGMTGN(torch.nn.Module):
    """Memory, embedding and predictor of TGM, trained on batches that its hooks have filled."""

    def __init__(self, num_nodes, msg_dim, lr=1e-4):
        super().__init__()
        message = IdentityMessage(msg_dim, DIM, DIM)
        self.memory = TGNMemory(num_nodes, msg_dim, DIM, DIM, message, LastAggregator())
        self.gnn = GraphAttentionEmbedding(DIM, DIM, msg_dim, self.memory.time_enc)
        self.predictor = LinkPredictor(DIM, hidden_dim=DIM)
        self.optimizer = torch.optim.Adam(self.parameters(), lr=lr)

    def embed(self, batch):
        """Return the embeddings of the batch's distinct nodes."""
        neighbors, roots = batch.nbr_nids[0], batch.seed_nids[0]
        found = (neighbors != PADDED_NODE_ID).nonzero(as_tuple=True)
        edges = torch.stack([batch.global_to_local(roots[found[0]]), batch.global_to_local(neighbors[found])]).long()
        memory, last_update = self.memory(batch.unique_nids)
        return self.gnn(memory, last_update, edges, batch.nbr_edge_time[0][found], batch.nbr_edge_x[0][found])

    def train_on(self, batch):
        self.optimizer.zero_grad()
        embeddings = self.embed(batch)
        source, true, false = (
            embeddings[batch.global_to_local(nodes).long()] for nodes in (batch.edge_src, batch.edge_dst, batch.neg)
        )
        positive, negative = self.predictor(source, true), self.predictor(source, false)
        loss = binary_cross_entropy_with_logits(positive, torch.ones_like(positive))
        loss = loss + binary_cross_entropy_with_logits(negative, torch.zeros_like(negative))
        loss.backward()
        self.optimizer.step()
        self.memory.update_state(batch.edge_src, batch.edge_dst, batch.edge_time, batch.edge_x)
        self.memory.detach()


def main(source, batch_size, device):
    torch.manual_seed(0)
    stream = read_events(source)
    count = int(TRAINED * len(stream))
    edges = torch.stack([stream.src, stream.dst], 1)[:count].int()
    data = DGData.from_raw(stream.time.long()[:count], edges, torch.randn(count, 172))
    graph = DGraph(data, device=device)
    num_nodes = int(max(stream.src.max(), stream.dst.max())) + 1
    hooks = HookManager(keys=["train"])
    hooks.register("train", NegativeEdgeSamplerHook(int(edges[:, 1].min()), int(edges[:, 1].max())))
    nodes, times = ["edge_src", "edge_dst", "neg"], ["edge_time", "edge_time", "neg_time"]
    hooks.register("train", RecencyNeighborHook(num_nodes, [NEIGHBORS], nodes, times))
    hooks.register("train", DeduplicationHook())
    model, turns = TGMTGN(num_nodes, 172).to(device), Turns()
    model.train()
    while True:
        model.memory.reset_state()
        hooks.reset_state()
        with hooks.activate("train"):
            for batch in DGDataLoader(graph, int(batch_size), hook_manager=hooks):
                model.train_on(batch)
                if not turns.step(len(batch.edge_src)):
                    return


if __name__ == "__main__":
    main(*sys.argv[1:])
