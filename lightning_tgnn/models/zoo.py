"""TGN, JODIE and APAN, put together from the shared parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from lightning_tgnn.checks import InvalidArgumentError, check_choice, check_fraction, check_int, refusal
from lightning_tgnn.models.embeddings import TemporalAttention, TimeProjection
from lightning_tgnn.models.layer_embedding import LayerEmbedding
from lightning_tgnn.models.memory_tgnn import MemoryTGNN
from lightning_tgnn.models.memory_updaters import GRUUpdater, MailboxAttentionUpdater, RNNUpdater
from lightning_tgnn.models.time_encoding import TimeEncoder
from lightning_tgnn.types import StateSpec, StreamInfo

# Deviations above the mean beyond which less than one gap in a hundred lies, whatever their distribution (Chebyshev).
_LONGEST = 10


@dataclass(frozen=True)
class ModelConfig:
    """Widths and rates of a memory-based temporal GNN.

    Attributes:
        memory_dim: Width of the node memory.
        embedding_dim: Width of the embeddings.
        time_dim: Width of the time encoding.
        num_heads: Attention heads of TGN and APAN.
        mailbox_size: Mails that APAN keeps per node.
        static_dim: Width of the static node memory, 0 for none.
        dropout: Rate, in [0, 1).

    Raises:
        InvalidArgumentError: A value is out of range, or the heads do not divide a width.
    """

    memory_dim: int = 100
    embedding_dim: int = 100
    time_dim: int = 100
    num_heads: int = 2
    mailbox_size: int = 10
    static_dim: int = 0
    dropout: float = 0.1

    def __post_init__(self) -> None:
        for name in ("memory_dim", "embedding_dim", "time_dim", "num_heads", "mailbox_size"):
            check_int(name, getattr(self, name), minimum=1, cure="give a width, for example 100")
        check_int("static_dim", self.static_dim, minimum=0, cure="give a width, or 0 for no static memory")
        check_fraction("dropout", self.dropout, cure="0.1 is usual")
        for name in ("memory_dim", "embedding_dim"):
            width = getattr(self, name)
            if width % self.num_heads:
                requirement = f"a multiple of num_heads={self.num_heads}"
                raise InvalidArgumentError(refusal(name, requirement, width, "change one of the two"))


def _tgn(config: ModelConfig, info: StreamInfo) -> MemoryTGNN:
    spec = _spec(config, info)
    updater = GRUUpdater(spec, _time_encoder(config, info))
    embedding = TemporalAttention(
        config.memory_dim,
        info.edge_feature_dim,
        config.embedding_dim,
        _time_encoder(config, info),
        num_heads=config.num_heads,
        dropout=config.dropout,
    )
    return MemoryTGNN(spec, info, updater, embedding, static_dim=config.static_dim)


def _jodie(config: ModelConfig, info: StreamInfo) -> MemoryTGNN:
    spec = _spec(config, info)
    updater = RNNUpdater(spec, _time_encoder(config, info))
    embedding = TimeProjection(config.memory_dim, config.embedding_dim, info.gap_mean)
    return MemoryTGNN(spec, info, updater, embedding, static_dim=config.static_dim)


def _apan(config: ModelConfig, info: StreamInfo) -> MemoryTGNN:
    spec = _spec(config, info, mailbox_size=config.mailbox_size, own_half=False)
    time_encoder = _time_encoder(config, info)
    updater = MailboxAttentionUpdater(spec, time_encoder, config.num_heads, config.dropout)
    embedding = TimeProjection(config.memory_dim, config.embedding_dim, info.gap_mean, sampled_roots="events")
    return MemoryTGNN(spec, info, updater, embedding, static_dim=config.static_dim)


def build_with_layer(layer: nn.Module, config: ModelConfig, info: StreamInfo) -> MemoryTGNN:
    """Return TGN with a graph layer of another library in place of its attention; see `LayerEmbedding`."""
    spec = _spec(config, info)
    updater = GRUUpdater(spec, _time_encoder(config, info))
    embedding = LayerEmbedding(layer, config.embedding_dim, _time_encoder(config, info))
    return MemoryTGNN(spec, info, updater, embedding, static_dim=config.static_dim)


_BUILDERS: dict[str, Callable[[ModelConfig, StreamInfo], MemoryTGNN]] = {"tgn": _tgn, "jodie": _jodie, "apan": _apan}
MODEL_NAMES = tuple(_BUILDERS)


def build_model(name: str, config: ModelConfig, info: StreamInfo) -> MemoryTGNN:
    """Return the model called ``name`` for a stream.

    Raises:
        InvalidArgumentError: There is no model of that name.
    """
    return _BUILDERS[check_choice("model", name, MODEL_NAMES)](config, info)


def _time_encoder(config: ModelConfig, info: StreamInfo) -> TimeEncoder:
    return TimeEncoder(config.time_dim, info.gap_mean, info.gap_mean + _LONGEST * info.gap_std)


def _spec(config: ModelConfig, info: StreamInfo, *, mailbox_size: int = 1, own_half: bool = True) -> StateSpec:
    mail_dim = 2 * config.memory_dim + info.edge_feature_dim
    return StateSpec(info.num_nodes, config.memory_dim, mail_dim, mailbox_size, own_half)
