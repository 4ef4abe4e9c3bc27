"""From a source of a static graph to what training, validation and test take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

from lightning_tgnn.checks import check_bool, check_choice, check_int, check_mapping, check_path, check_seed
from lightning_tgnn.data.graphs.graph import ALL, NORMALIZATIONS, Graph
from lightning_tgnn.data.graphs.loader import CuttableGraph, GraphLoader
from lightning_tgnn.data.graphs.sources.open_graph import SYNTHETIC, GraphSource, open_source, prepare_graph
from lightning_tgnn.data.pipeline import Pipeline
from lightning_tgnn.data.standardize import (
    AUTO,
    Moments,
    check_standardize,
    notice_heavy_tails,
    standardization_of,
    standardized,
)
from lightning_tgnn.files.memory import check_fits
from lightning_tgnn.types import GraphInfo, Standardization


class GraphPipeline(Pipeline):
    """A static graph with features, labels and splits; each epoch is one step on all of it.

    Args:
        source: An ``.npz`` file, a folder that `save_graph` wrote, a folder of tables
            (`lightning_tgnn.data.graphs.sources.tables.read_tables`), a node-property folder of OGB, a `dgl.DGLGraph`,
            a PyG ``Data``, a `Graph`, ``"synthetic"``, or a name: ``"cora"``, ``"citeseer"``, ``"pubmed"``,
            ``"reddit"`` (from DGL), ``"ogbn-arxiv"``, ``"ogbn-products"``, ``"ogbn-papers100m"`` (from OGB). A name
            takes precedence over a file of the same name; write ``./cora`` for the file.
        undirected: Take every edge in both directions, each once. For a graph in a folder these edges are kept in the
            folder.
        self_loops: Give every vertex one loop; kept in the same way.
        normalization: Weights of the edges in a GCN: ``"symmetric"``, ``"row"`` or ``"none"``; see `Graph.weights`.
        seed: Of dropout.
        synthetic: Settings of the synthetic graph, for ``source="synthetic"``; see
            `lightning_tgnn.data.graphs.sources.synthetic.generate_graph`. With ``folder`` it is written there once.
        root: Folder of the named graphs, which are downloaded into it and converted once.
        standardize_features: ``"auto"`` brings features to mean 0 and deviation 1 over the training vertices, column by
            column, where their mean or deviation is above 3 or all of them are below 0.01; others stay as they are.
            True does so with all columns, False with none.
        split: Which column of masks [N, k], from 0; None for masks [N], of which there is one split. For an ``.npz``
            file, a `dgl.DGLGraph` and a PyG ``Data``.

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
        standardize_features: bool | str = AUTO,
        split: int | None = None,
    ) -> None:
        super().__init__()
        self._log_settings(locals())
        check_choice("normalization", normalization, NORMALIZATIONS)
        check_bool("undirected", undirected, usual=True)
        check_bool("self_loops", self_loops, usual=True)
        check_seed("seed", seed)
        self.source = source
        self.undirected, self.self_loops, self.normalization = undirected, self_loops, normalization
        self.seed = seed
        self.synthetic = check_mapping("synthetic", synthetic)
        self.root = check_path("root", root).absolute()
        self.standardize_features = check_standardize(standardize_features)
        if split is not None:
            check_int("split", split, minimum=0, cure="0 is the first")
        self.split = split

    def fixed_settings(self, *, training: bool) -> dict[str, Any]:
        """Return the settings, by argument, that a checkpoint fixes.

        Args:
            training: For a run that resumes from it; otherwise of its evaluation, where the seed of dropout is free.
        """
        done = self.standardization  # "auto" may well change nothing
        changed = {"standardize_features": False if done is None else done.columns}
        return self._settings(("undirected", "self_loops", "normalization", *(("seed",) if training else ()))) | changed

    def __repr__(self) -> str:
        source = self.source if isinstance(self.source, (str, Path)) else type(self.source).__name__
        read = vars(self).get("graph", "not read yet")
        return f"{type(self).__name__}(source={str(source)!r}, normalization={self.normalization!r}: {read})"

    def prepare_data(self) -> None:
        """Download, convert or generate what is kept in files; Lightning calls it on one process of a machine."""
        prepare_graph(cast(GraphSource, self._located), self.root, self.synthetic)

    @cached_property
    def graph(self) -> Graph:
        """The graph, with what the options add."""
        self._make_ready()
        graph = self._given
        graph = graph.with_options(undirected=self.undirected, self_loops=self.self_loops)
        if self.standardization is None:
            return graph
        size = 4 * graph.features.numel()
        check_fits("features", "standardized features", size, cure="give standardize_features=False, or such features")
        return replace(graph, features=standardized(graph.features, self.standardization, mapped=False))

    @cached_property
    def _given(self) -> Graph:
        """The graph as the source holds it."""
        with self._reading():
            return open_source(cast(GraphSource, self._located), self.root, self.synthetic, self.split)

    @cached_property
    def standardization(self) -> Standardization | None:
        """What is done to the features; None where they stay as they are."""
        if self.standardize_features is False:
            return None
        graph = self._given
        moments = Moments.from_rows(graph.features, graph.train.nonzero().squeeze(1))
        with self._reading():
            notice_heavy_tails(moments, None, "features of vertices")
        return standardization_of(moments, self.standardize_features)

    @cached_property
    def info(self) -> GraphInfo:
        """What a model has to know of the graph."""
        return self.graph.info()

    @cached_property
    def whole(self) -> CuttableGraph:
        """The graph with the weights of its edges."""
        return CuttableGraph(self.graph, partial(self.graph.weights, self.normalization))

    def setup(self, stage: str | None = None) -> None:
        """Read the graph and say what it is."""
        graph, info = self.graph, self.info
        splits = " / ".join(f"{int(getattr(graph, name).sum()):,}" for name in ("train", "val", "test"))
        weighted = "" if graph.edge_weights is None else " with weights, which a GCN reads"
        several = ", several for a vertex" if info.multi_label else ""
        if info.multi_label and bool((graph.labels[graph.train].sum(1) == 1).all()):
            several = ", of which each training vertex has one: give labels [N] to learn that"
        self._report(
            f"{info.num_nodes:,} vertices ({splits} for training, validation, test), {info.num_edges:,} edges"
            f"{weighted}, {info.feature_dim} features, {info.num_classes} classes{several}"
        )

    def train_dataloader(self) -> GraphLoader:
        """Return the training split."""
        return GraphLoader(self.whole, "train", self.seed)

    def val_dataloader(self) -> GraphLoader:
        """Return the validation split."""
        return GraphLoader(self.whole, "val", self.seed)

    def test_dataloader(self) -> GraphLoader:
        """Return the test split."""
        return GraphLoader(self.whole, "test", self.seed)

    def predict_dataloader(self) -> GraphLoader:
        """Return all vertices."""
        return GraphLoader(self.whole, ALL, self.seed)
