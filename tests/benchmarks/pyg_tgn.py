"""PyG's TGNMemory as its documentation has it, in rounds: pyg_tgn.py SOURCE BATCH_SIZE DEVICE."""

import sys

import torch
from torch.nn import BCEWithLogitsLoss, Linear
from torch_geometric.data import TemporalData
from torch_geometric.loader import TemporalDataLoader
from torch_geometric.nn import TGNMemory, TransformerConv
from torch_geometric.nn.models.tgn import IdentityMessage, LastAggregator, LastNeighborLoader

from lightning_tgnn.data import read_events
from tests.benchmarks.rounds import Turns

DIM = 100


class GraphAttentionEmbedding(torch.nn.Module):
    def __init__(self, msg_dim, time_enc):
        super().__init__()
        self.time_enc = time_enc
        self.conv = TransformerConv(DIM, DIM // 2, heads=2, dropout=0.1, edge_dim=msg_dim + time_enc.out_channels)

    def forward(self, x, last_update, edge_index, t, msg):
        rel_t = last_update[edge_index[0]] - t
        return self.conv(x, edge_index, torch.cat([msg, self.time_enc(rel_t.to(x.dtype))], dim=-1))


class LinkPredictor(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin_src, self.lin_dst, self.lin_final = Linear(DIM, DIM), Linear(DIM, DIM), Linear(DIM, 1)

    def forward(self, z_src, z_dst):
        return self.lin_final((self.lin_src(z_src) + self.lin_dst(z_dst)).relu())


class PyGTGN(torch.nn.Module):
    """Memory, embedding and predictor, and the two structures that the documentation keeps beside them."""

    def __init__(self, data, lr=1e-4):
        super().__init__()
        msg_dim = data.msg.size(-1)
        message = IdentityMessage(msg_dim, DIM, DIM)
        self.data = data
        self.memory = TGNMemory(data.num_nodes, msg_dim, DIM, DIM, message, LastAggregator())
        self.gnn, self.predictor = GraphAttentionEmbedding(msg_dim, self.memory.time_enc), LinkPredictor()
        self.neighbors = LastNeighborLoader(data.num_nodes, size=10, device=data.t.device)
        self.assoc = torch.empty(data.num_nodes, dtype=torch.long, device=data.t.device)
        self.optimizer = torch.optim.Adam(self.parameters(), lr=lr)
        self.criterion = BCEWithLogitsLoss()

    def reset(self):
        self.memory.reset_state()
        self.neighbors.reset_state()

    def scores(self, batch):
        n_id, edge_index, e_id = self.neighbors(batch.n_id)
        self.assoc[n_id] = torch.arange(n_id.size(0), device=n_id.device)
        z, last_update = self.memory(n_id)
        z = self.gnn(z, last_update, edge_index, self.data.t[e_id], self.data.msg[e_id])
        source = z[self.assoc[batch.src]]
        return self.predictor(source, z[self.assoc[batch.dst]]), self.predictor(source, z[self.assoc[batch.neg_dst]])

    def take_in(self, batch):
        self.memory.update_state(batch.src, batch.dst, batch.t, batch.msg)
        self.neighbors.insert(batch.src, batch.dst)

    def train_on(self, batch):
        self.optimizer.zero_grad()
        positive, negative = self.scores(batch)
        loss = self.criterion(positive, torch.ones_like(positive)) + self.criterion(
            negative, torch.zeros_like(negative)
        )
        self.take_in(batch)
        loss.backward()
        self.optimizer.step()
        self.memory.detach()


def wikipedia(source, msg_dim):
    stream = read_events(source)
    msg = torch.randn(len(stream), msg_dim) if msg_dim else torch.zeros(len(stream), 0)
    return TemporalData(src=stream.src, dst=stream.dst, t=stream.time.long(), msg=msg)


def main(source, batch_size, device):
    torch.manual_seed(0)
    data = wikipedia(source, 172).to(device)
    train, _, _ = data.train_val_test_split(0.15, 0.15)
    loader = TemporalDataLoader(train, batch_size=int(batch_size), neg_sampling_ratio=1.0)
    model, turns = PyGTGN(data).to(device), Turns()
    model.train()
    while True:
        model.reset()
        for batch in loader:
            model.train_on(batch)
            if not turns.step(batch.num_events):
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
