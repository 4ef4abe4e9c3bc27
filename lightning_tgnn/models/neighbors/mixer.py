"""MLP-Mixer blocks over the neighbours of a node, and encodings of their times."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FixedTimeEncoder(nn.Module):
    """``cos(t w)`` with frequencies that are not learned, from 1 down to 10^-9 (GraphMixer, section 3.1; DyGLib).

    Args:
        dim: Width of the encoding.
    """

    frequency: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("frequency", 10 ** torch.linspace(0, -9, dim, dtype=torch.float64))

    def forward(self, elapsed: Tensor) -> Tensor:
        """Encode elapsed times, float64 [...], in seconds, to float32 [..., dim]."""
        return torch.cos(elapsed.unsqueeze(-1) * self.frequency).float()


class LearnedTimeEncoder(nn.Module):
    """``cos(t w + b)`` with learned frequencies, which begin as in `FixedTimeEncoder` (TGAT; DyGLib).

    Args:
        dim: Width of the encoding.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.frequency = nn.Parameter(10 ** torch.linspace(0, -9, dim))
        self.phase = nn.Parameter(torch.zeros(dim))

    def forward(self, elapsed: Tensor) -> Tensor:
        """Encode elapsed times, float32 [...], to [..., dim]."""
        return torch.cos(torch.addcmul(self.phase, elapsed.unsqueeze(-1), self.frequency))


class MixerBlock(nn.Module):
    """One block of MLP-Mixer: an MLP over the tokens, then one over the channels (GraphMixer, section 3.1).

    Args:
        tokens: K.
        channels: d.
        dropout: Of both MLPs.
        token_factor: Width of the hidden layer over the tokens, by K.
        channel_factor: Width of the hidden layer over the channels, by d.
    """

    def __init__(
        self, tokens: int, channels: int, dropout: float, token_factor: float = 0.5, channel_factor: float = 4.0
    ) -> None:
        super().__init__()
        self.token_norm, self.channel_norm = nn.LayerNorm(tokens), nn.LayerNorm(channels)
        self.over_tokens = _mlp(tokens, max(int(tokens * token_factor), 1), dropout)
        self.over_channels = _mlp(channels, int(channels * channel_factor), dropout)

    def forward(self, rows: Tensor) -> Tensor:
        """Mix rows, [n, K, d]."""
        rows = rows + self.over_tokens(self.token_norm(rows.transpose(1, 2))).transpose(1, 2)
        return rows + self.over_channels(self.channel_norm(rows))


def _mlp(width: int, hidden: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, width), nn.Dropout(dropout)
    )
