"""The models on snapshots by their names."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from lightning_tgnn.checks import InvalidArgumentError, check_bool, check_choice, check_int
from lightning_tgnn.models.recurrent.cells import BuildCell
from lightning_tgnn.models.recurrent.convolution import BuildConvolution, GraphConvolution, OwnConvolution
from lightning_tgnn.models.recurrent.evolvegcn import EvolveGCN
from lightning_tgnn.models.recurrent.filters import FILTERS, make_filter
from lightning_tgnn.models.recurrent.tgcn import TGCN
from lightning_tgnn.models.recurrent.wd_gcn import WDGCN
from lightning_tgnn.types import SnapshotInfo

RECURRENT_MODELS = ("evolvegcn_h", "evolvegcn_o", "tgcn", "wd_gcn")
"""Names of the models."""


@dataclass(frozen=True)
class RecurrentConfig:
    """Widths and parts of a model on snapshots.

    Args:
        hidden_dim: Width of every layer.
        num_layers: At least 1.
        convolution: ``"gcn"``, ``"chebyshev"``, ``"rgcn"``, or what builds a module of two widths, for example the
            class of a layer of `torch_geometric.nn` or `dgl.nn`, see `OwnConvolution`.
        chebyshev_order: The degree of the last Chebyshev polynomial.
        cell: For WD-GCN, in place of `torch.nn.LSTMCell`: builds a recurrent cell of two widths, see `RecurrentCell`.
        skip_unread: For EvolveGCN: leave out convolutions whose result nothing reads.

    Raises:
        InvalidArgumentError: A width or count is below 1, or a part is neither known nor a builder of modules.
    """

    hidden_dim: int = 64
    num_layers: int = 2
    convolution: str | BuildConvolution = "gcn"
    chebyshev_order: int = 2
    cell: BuildCell | None = None
    skip_unread: bool = True

    def __post_init__(self) -> None:
        check_int("hidden_dim", self.hidden_dim, minimum=1, cure="64 is usual")
        check_int("num_layers", self.num_layers, minimum=1, cure="2 is usual")
        check_int("chebyshev_order", self.chebyshev_order, minimum=1, cure="2 is usual")
        if isinstance(self.convolution, str):
            check_choice("convolution", self.convolution, FILTERS)
        check_bool("skip_unread", self.skip_unread, usual=True)
        if isinstance(self.cell, str):
            cure = "give the import path of a class, such as torch.nn.GRUCell"
            raise InvalidArgumentError("cell", "an import path", self.cell, cure)
        for name in ("convolution", "cell"):
            value = getattr(self, name)
            if not isinstance(value, str | None) and (isinstance(value, nn.Module) or not callable(value)):
                cure = f"give a class, or {name}=lambda in_dim, out_dim: module"
                raise InvalidArgumentError(name, "what builds a module of two widths", type(value).__name__, cure)

    def convolutions(self, info: SnapshotInfo) -> BuildConvolution:
        """Return what builds the convolutions."""
        made = self.convolution
        if not isinstance(made, str):
            return lambda in_dim, out_dim: OwnConvolution(made(in_dim, out_dim), out_dim)
        graph_filter = make_filter(made, self.chebyshev_order, info.num_relations)
        return lambda in_dim, out_dim: GraphConvolution(graph_filter, in_dim, out_dim)


def build_recurrent(name: str, config: RecurrentConfig, info: SnapshotInfo) -> WDGCN | TGCN | EvolveGCN:
    """Return a model for a sequence of snapshots.

    Args:
        name: One of `RECURRENT_MODELS`.
        config: Widths and parts.
        info: What the snapshots are.

    Raises:
        InvalidArgumentError: ``name`` is unknown, or the model does not take ``cell`` or ``convolution``.
    """
    check_choice("model", name, RECURRENT_MODELS)
    sizes = (info.feature_dim, config.hidden_dim, config.num_layers)
    if config.cell is not None and name != "wd_gcn":
        cure = "take model='wd_gcn', or a module of your own as model"
        raise InvalidArgumentError("cell", f"left out with model={name!r}", config.cell, cure)
    if name == "wd_gcn":
        return WDGCN(*sizes, config.convolutions(info), config.cell or nn.LSTMCell)
    if name == "tgcn":
        return TGCN(*sizes, config.convolutions(info))
    if not isinstance(config.convolution, str):
        cure = f"take one of {', '.join(FILTERS)}: EvolveGCN evolves their weights, of which a module has its own"
        raise InvalidArgumentError("convolution", f"a name with model={name!r}", config.convolution, cure)
    graph_filter = make_filter(config.convolution, config.chebyshev_order, info.num_relations)
    return EvolveGCN(*sizes, graph_filter, reads_rows=name == "evolvegcn_h", skip_unread=config.skip_unread)
