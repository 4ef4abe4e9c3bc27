"""The models on event streams by their names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from lightning_tgnn.checks import InvalidArgumentError, check_choice, check_fraction, check_int
from lightning_tgnn.models.memory.embeddings import TemporalAttention, TimeProjection
from lightning_tgnn.models.memory.layer_embedding import LayerEmbedding
from lightning_tgnn.models.memory.memory_tgnn import MemoryTGNN
from lightning_tgnn.models.memory.memory_updaters import GRUUpdater, MailboxAttentionUpdater, RNNUpdater
from lightning_tgnn.models.memory.message import Message, MessageFunction
from lightning_tgnn.models.memory.time_encoding import TimeEncoder
from lightning_tgnn.models.neighbors.graphmixer import GraphMixer
from lightning_tgnn.models.neighbors.tgat import TGAT
from lightning_tgnn.models.pairs.dygformer import DyGFormer
from lightning_tgnn.models.pairs.tncn import TNCN
from lightning_tgnn.models.pairs.tpnet import TPNet
from lightning_tgnn.models.stream_model import StreamModel
from lightning_tgnn.types import StateSpec, StreamInfo

# Deviations above the mean beyond which less than one gap in a hundred lies, whatever their distribution (Chebyshev).
_LONGEST = 10


@dataclass(frozen=True)
class ModelConfig:
    """Widths and rates of a model that is built by its name; each takes what it has.

    Attributes:
        memory_dim: Width of the node memory.
        embedding_dim: Width of the embeddings.
        time_dim: Width of the time encoding.
        num_heads: Attention heads of TGN, APAN, TNCN, TGAT and DyGFormer.
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


def _tgn(config: ModelConfig, info: StreamInfo, mails: Mails, kind: type[MemoryTGNN] = MemoryTGNN) -> MemoryTGNN:
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
    return kind(spec, info, updater, embedding, message=message, **sizes)


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


def _tncn(config: ModelConfig, info: StreamInfo, mails: Mails) -> MemoryTGNN:
    return _tgn(config, info, mails, TNCN)


def _tgat(config: ModelConfig, info: StreamInfo, mails: Mails) -> TGAT:
    return TGAT(info, num_heads=config.num_heads, **_widths(config))


def _graphmixer(config: ModelConfig, info: StreamInfo, mails: Mails) -> GraphMixer:
    return GraphMixer(info, **_widths(config))


def _dygformer(config: ModelConfig, info: StreamInfo, mails: Mails) -> DyGFormer:
    return DyGFormer(info, num_heads=config.num_heads, **_widths(config))


def _tpnet(config: ModelConfig, info: StreamInfo, mails: Mails) -> TPNet:
    return TPNet(info, **_widths(config))


def _widths(config: ModelConfig) -> dict[str, Any]:
    return {"embedding_dim": config.embedding_dim, "time_dim": config.time_dim, "dropout": config.dropout}


_BUILDERS: dict[str, Callable[[ModelConfig, StreamInfo, Mails], StreamModel]] = {
    "tgn": _tgn,
    "jodie": _jodie,
    "apan": _apan,
    "tgat": _tgat,
    "graphmixer": _graphmixer,
    "dygformer": _dygformer,
    "tncn": _tncn,
    "tpnet": _tpnet,
}
MODEL_NAMES = tuple(_BUILDERS)
NODE_MODEL_NAMES = ("tgn", "jodie", "apan", "tgat", "graphmixer")
"""The models that embed a node, whatever it is paired with."""
_WITHOUT_MEMORY = ("tgat", "graphmixer", "dygformer", "tpnet")
_DYGLIB_WIDTH, _WIDTH = 172, 100


def default_width(model: object) -> int:
    """Return the width of the embeddings of a model, given by its name, where nobody says it."""
    return _DYGLIB_WIDTH if model in _WITHOUT_MEMORY else _WIDTH


def build_model(name: str, config: ModelConfig, info: StreamInfo, mails: Mails | None = None) -> StreamModel:
    """Return the model called ``name`` for a stream.

    Raises:
        InvalidArgumentError: No model has that name, or no message can be made.
    """
    if check_choice("model", name, MODEL_NAMES) in _WITHOUT_MEMORY:
        _check_no_memory(name, config, mails)
    return _BUILDERS[name](config, info, mails or Mails())


def _check_no_memory(name: str, config: ModelConfig, mails: Mails | None) -> None:
    """Refuse settings of a memory beside a model that has none."""
    if config.static_dim or (mails is not None and mails.message is not None):
        argument = "static_dim" if config.static_dim else "message"
        cure = "leave it out, or take model='tgn'"
        raise InvalidArgumentError(argument, "left out beside a model without node memory", name, cure)


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
