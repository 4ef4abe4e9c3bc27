"""The DataModule of static graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from lightning_tgnn.checks import check_choice, check_int
from lightning_tgnn.data.described_data import DescribedData
from lightning_tgnn.data.graph import NORMALIZATIONS, Graph
from lightning_tgnn.data.graph_loader import GraphLoader, WholeGraph
from lightning_tgnn.data.graph_source import SYNTHETIC, open_source, prepare_graph
from lightning_tgnn.types import GraphInfo, GraphPart, SparseRows


class FullGraphDataModule(DescribedData):
    """A static graph with features, labels and splits; each epoch is one step on all of it.

    Args:
        source: An ``.npz`` file, a folder that `save_graph` wrote, a node-property folder of OGB, a `dgl.DGLGraph`, a
            PyG ``Data``, a `Graph`, ``"synthetic"``, or a name: ``"cora"``, ``"citeseer"``, ``"pubmed"``,
            ``"reddit"`` (from DGL), ``"ogbn-products"``, ``"ogbn-papers100m"`` (from OGB). A name goes before a file
            of the same name; write ``./cora`` for that.
        undirected: Take every edge in both directions, each once.
        self_loops: Give every vertex one loop.
        normalization: Weights of the edges in a GCN: ``"symmetric"``, ``"row"`` or ``"none"``; see `Graph.weights`.
        seed: Of dropout.
        synthetic: Settings of the synthetic graph, used where that is the source; see
            `lightning_tgnn.data.synthetic_graph.generate_graph`. With ``folder`` it is written there once.
        root: Folder of the named graphs, which are downloaded into it and converted once.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work; also in `prepare_data` and `setup`.
        DataError: In `prepare_data` and `setup`: something cannot be downloaded, or the source holds something that
            must not be trained on.
    """

    def __init__(
        self,
        source: Any = SYNTHETIC,
        undirected: bool = True,
        self_loops: bool = True,
        normalization: str = "symmetric",
        seed: int = 0,
        synthetic: Mapping[str, Any] | None = None,
        root: str = "data",
    ) -> None:
        super().__init__()
        self.log_settings(locals())
        check_choice("normalization", normalization, NORMALIZATIONS)
        check_int("seed", seed, minimum=0, cure="give a seed, for example 0")
        self.source = source
        self.undirected, self.self_loops, self.normalization = undirected, self_loops, normalization
        self.seed = seed
        self.synthetic = dict(synthetic or {})
        self.root = Path(root).expanduser()
        self._moved: tuple[SparseRows, GraphPart] | None = None

    def fixed_settings(self, *, training: bool) -> dict[str, Any]:
        """Return the settings, by argument, that a checkpoint fixes.

        Args:
            training: Of a run that goes on with it; otherwise of its evaluation, where the seed of dropout is free.
        """
        names = ("undirected", "self_loops", "normalization", *(("seed",) if training else ()))
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        source = self.source if isinstance(self.source, (str, Path)) else type(self.source).__name__
        read = vars(self).get("graph", "not read yet")
        return f"FullGraphDataModule(source={str(source)!r}, normalization={self.normalization!r}: {read})"

    def prepare_data(self) -> None:
        """Download, convert or generate what is kept in files; Lightning calls it on one process of a machine."""
        prepare_graph(self.source, self.root, self.synthetic)

    @cached_property
    def graph(self) -> Graph:
        """The graph, with what the options add."""
        if self.trainer is None:  # nobody else calls it
            self.prepare_data()
        graph = open_source(self.source, self.root, self.synthetic)
        return graph.with_options(undirected=self.undirected, self_loops=self.self_loops)

    @cached_property
    def info(self) -> GraphInfo:
        """What a model has to know of the graph."""
        return self.graph.info()

    @cached_property
    def whole(self) -> WholeGraph:
        """The graph with the weights of its edges."""
        return WholeGraph(self.graph, self.graph.weights(self.normalization))

    def setup(self, stage: str | None = None) -> None:
        """Read the graph and say what it is."""
        graph, info = self.graph, self.info
        splits = " / ".join(f"{int(getattr(graph, name).sum()):,}" for name in ("train", "val", "test"))
        rank_zero_info(
            f"{info.num_nodes:,} vertices ({splits} for training, validation, test), {info.num_edges:,} edges, "
            f"{info.feature_dim} features, {info.num_classes} classes"
        )

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Move a `GraphPart`; what its epochs and splits share, once, so that a model can keep what it makes of it."""
        if not isinstance(batch, GraphPart):
            return super().transfer_batch_to_device(batch, device, dataloader_idx)
        if batch.nodes.device == device:
            return batch
        if self._moved is None or self._moved[0] is not batch.edges or self._moved[1].nodes.device != device:
            self._moved = batch.edges, batch.to(device)
        return replace(self._moved[1], scored=batch.scored.to(device), share=batch.share, seed=batch.seed)

    def train_dataloader(self) -> GraphLoader:
        """Return the training part."""
        return GraphLoader(self.whole, "train", self.seed)

    def val_dataloader(self) -> GraphLoader:
        """Return the validation part."""
        return GraphLoader(self.whole, "val", self.seed)

    def test_dataloader(self) -> GraphLoader:
        """Return the test part."""
        return GraphLoader(self.whole, "test", self.seed)

    def predict_dataloader(self) -> GraphLoader:
        """Return the test part."""
        return self.test_dataloader()
