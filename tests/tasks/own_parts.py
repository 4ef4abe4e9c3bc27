"""A model, a message function, a sampler, a task and a DataModule as a user may write them."""

import lightning.pytorch as pl
import torch
from torch import nn

from lightning_tgnn import LinkPrediction
from lightning_tgnn.data import random_below
from lightning_tgnn.models import MemoryModel


class MeanModel(MemoryModel):
    """A GRU memory; embeddings of a node's own memory and the mean of its neighbours'."""

    def __init__(self, info, width=6, **options):
        super().__init__(info, memory_dim=width, embedding_dim=width + 1, **options)
        self.cell = nn.GRUCell(self.spec.mail_dim, width)
        self.out = nn.Linear(2 * width, width + 1)

    def update_memory(self, rows):
        return self.cell(rows.mails[:, 0], rows.memory)

    def embed(self, updated, batch):
        mask = batch.neighbor_mask.unsqueeze(-1)
        around = (updated.memory[batch.neighbor_index] * mask).sum(1) / mask.sum(1).clamp(min=1)
        return self.out(torch.cat([updated.memory[batch.root_index], around], dim=1))


class SumModel(MeanModel):
    """Mails the sum of two memories and a mean of features: what a strategy must not take for two memories."""

    def __init__(self, info, width=6):
        super().__init__(info, width, mail_dim=width + 1)

    def mail(self, own, other, features):
        return torch.cat([own + 2 * other + 0.1, features.mean(1, keepdim=True)], dim=1)


class SwappedModel(MeanModel):
    """Mails of the usual width, in another order."""

    def mail(self, own, other, features):
        return torch.cat([features, other, own + 1], dim=1)


class PushModel(MemoryModel):
    """Reads no neighbours: its mails go to them, and three are kept."""

    def __init__(self, info, width=6):
        super().__init__(info, memory_dim=width, embedding_dim=width, sampled_roots="events", mailbox_size=3)
        self.cell = nn.GRUCell(self.spec.mail_dim, width)

    def update_memory(self, rows):
        filled = torch.arange(3) < rows.mail_count.unsqueeze(1)
        mean = (rows.mails * filled.unsqueeze(-1)).sum(1) / filled.sum(1, keepdim=True)
        return self.cell(mean, rows.memory)

    def embed(self, updated, batch):
        return updated.memory[batch.root_index]


class GatedMessage(nn.Module):
    """Learns what of a mail counts."""

    def __init__(self, memory_dim, edge_dim, width=5):
        super().__init__()
        self.gate = nn.Linear(memory_dim + edge_dim, memory_dim)
        self.out = nn.Linear(memory_dim, width)

    def forward(self, own, other, features):
        return self.out(own + other * self.gate(torch.cat([other, features], dim=1)).sigmoid())


def near(dst, events, seed, epoch, num, candidates, **others):
    """Draw among the candidates with the lowest numbers, but not the true destination."""
    half = len(candidates) // 2
    drawn = candidates[random_below(half, seed, epoch, events.unsqueeze(1), torch.arange(num))]
    return torch.where(drawn == dst.unsqueeze(1), candidates[half], drawn)


class Near:
    """The same with a setting."""

    def __init__(self, among: int = 3):
        self.among = among

    def __call__(self, events, seed, epoch, num, candidates, **others):
        return candidates[random_below(self.among, seed, epoch, events.unsqueeze(1), torch.arange(num))]


class OwnLinks(LinkPrediction):
    """A task whose mails differ from those of its model."""

    def make_mails(self, updated, batch):
        update = super().make_mails(updated, batch)
        update.mails.mul_(0.5)
        return update


class Loaders(pl.LightningDataModule):
    """Loaders of a user's own DataModule, which tells neither its settings nor the size of batches."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.info = inner, inner.info

    def train_dataloader(self):
        return self.inner.train_dataloader()

    def val_dataloader(self):
        return self.inner.val_dataloader()
