"""TGN, JODIE and APAN, put together from the shared parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn

from lightning_tgnn.checks import InvalidArgumentError, check_choice, check_fraction, check_int
from lightning_tgnn.models.memory.embeddings import TemporalAttention, TimeProjection
from lightning_tgnn.models.memory.layer_embedding import LayerEmbedding
from lightning_tgnn.models.memory.memory_tgnn import MemoryTGNN
from lightning_tgnn.models.memory.memory_updaters import GRUUpdater, MailboxAttentionUpdater, RNNUpdater
from lightning_tgnn.models.memory.message import Message, MessageFunction
from lightning_tgnn.models.memory.time_encoding import TimeEncoder
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
            width = check_int(name, getattr(self, name), minimum=1, cure="give a width, for example 100")
            object.__setattr__(self, name, width)  # as a plain int
        check_int("static_dim", self.static_dim, minimum=0, cure="give a width, or 0 for no static memory")
        check_fraction("dropout", self.dropout, cure="0.1 is usual")
        for name in ("memory_dim", "embedding_dim"):
            width = getattr(self, name)
            if width % self.num_heads:
                requirement = f"a multiple of num_heads={self.num_heads}"
                raise InvalidArgumentError(name, requirement, width, "change one of the two")


@dataclass(frozen=True)
class Mails:
    """How a model reads mails.

    Attributes:
        message: Builds the function that makes a message of a mail, see `Message`; None takes the mail as it is.
        raw: Whether mails hold the memories of both ends and the features of the event; otherwise they hold anything of
            that width.
    """

    message: Callable[[int, int], MessageFunction] | None = None
    raw: bool = True


def _tgn(config: ModelConfig, info: StreamInfo, mails: Mails) -> MemoryTGNN:
    spec, message, read = _spec(config, info, mails)
    updater = GRUUpdater(read, _time_encoder(config, info))
    embedding = TemporalAttention(
        config.memory_dim,
        info.edge_feature_dim,
        config.embedding_dim,
        _time_encoder(config, info),
        num_heads=config.num_heads,
        dropout=config.dropout,
    )
    sizes = {"embedding_dim": config.embedding_dim, "static_dim": config.static_dim}
    return MemoryTGNN(spec, info, updater, embedding, message=message, **sizes)


def _jodie(config: ModelConfig, info: StreamInfo, mails: Mails) -> MemoryTGNN:
    spec, message, read = _spec(config, info, mails)
    updater = RNNUpdater(read, _time_encoder(config, info))
    embedding = TimeProjection(config.memory_dim, config.embedding_dim, info.gap_mean)
    sizes = {"embedding_dim": config.embedding_dim, "static_dim": config.static_dim}
    return MemoryTGNN(spec, info, updater, embedding, message=message, **sizes)


def _apan(config: ModelConfig, info: StreamInfo, mails: Mails) -> MemoryTGNN:
    spec, message, read = _spec(config, info, mails, mailbox_size=config.mailbox_size, own_half=False)
    time_encoder = _time_encoder(config, info)
    updater = MailboxAttentionUpdater(read, time_encoder, config.num_heads, config.dropout)
    embedding = TimeProjection(config.memory_dim, config.embedding_dim, info.gap_mean, sampled_roots="events")
    sizes = {"embedding_dim": config.embedding_dim, "static_dim": config.static_dim}
    return MemoryTGNN(spec, info, updater, embedding, message=message, **sizes)


def build_with_layer(layer: nn.Module, config: ModelConfig, info: StreamInfo, mails: Mails | None = None) -> MemoryTGNN:
    """Return TGN with a graph layer of another library in place of its attention; see `LayerEmbedding`."""
    spec, message, read = _spec(config, info, mails or Mails())
    updater = GRUUpdater(read, _time_encoder(config, info))
    embedding = LayerEmbedding(layer, config.embedding_dim, _time_encoder(config, info))
    sizes = {"embedding_dim": config.embedding_dim, "static_dim": config.static_dim}
    return MemoryTGNN(spec, info, updater, embedding, message=message, **sizes)


_BUILDERS: dict[str, Callable[[ModelConfig, StreamInfo, Mails], MemoryTGNN]] = {
    "tgn": _tgn,
    "jodie": _jodie,
    "apan": _apan,
}
MODEL_NAMES = tuple(_BUILDERS)


def build_model(name: str, config: ModelConfig, info: StreamInfo, mails: Mails | None = None) -> MemoryTGNN:
    """Return the model called ``name`` for a stream.

    Raises:
        InvalidArgumentError: No model has that name, or no message can be made.
    """
    return _BUILDERS[check_choice("model", name, MODEL_NAMES)](config, info, mails or Mails())


def _time_encoder(config: ModelConfig, info: StreamInfo) -> TimeEncoder:
    return TimeEncoder(config.time_dim, info.gap_mean, info.gap_mean + _LONGEST * info.gap_std)


def _spec(
    config: ModelConfig, info: StreamInfo, mails: Mails, *, mailbox_size: int = 1, own_half: bool = True
) -> tuple[StateSpec, Message | None, StateSpec]:
    """Return the widths of rows, what makes messages, and the widths of rows as the updater then reads them."""
    width, features = config.memory_dim, info.edge_feature_dim
    own_half = own_half and mails.raw
    spec = StateSpec(info.num_nodes, width, 2 * width + features, mailbox_size, own_half, event_features=mails.raw)
    if mails.message is None:
        return spec, None, spec
    message = Message(mails.message, width, features)
    return spec, message, replace(spec, mail_dim=message.width, own_half=False)
