"""Classes of the vertices of a static graph, by a checkpoint of `NodeClassification`."""

from __future__ import annotations

from typing import Any

import torch
from rich.console import Console

from lightning_tgnn.checks import CheckpointError, InvalidArgumentError, check_import
from lightning_tgnn.commands.predict.options import PredictOptions
from lightning_tgnn.data.datamodules import FullGraphDataModule
from lightning_tgnn.files.checkpoints import RunCheckpointIO
from lightning_tgnn.serving.tables import answer_table
from lightning_tgnn.tasks import NodeClassification

_SETTINGS = ("undirected", "self_loops", "normalization")


def classify_vertices(options: PredictOptions) -> None:
    """Write the class of every vertex and the probability of every class, in the order of the vertices.

    Where a vertex may be of several classes, only the probabilities.

    Raises:
        CheckpointError: The checkpoint is of no static graph.
        InvalidArgumentError: The graph has another number of features than the graph of training, or only one of them
            has weights of edges.
    """
    saved = RunCheckpointIO().load_checkpoint(options.ckpt_path, map_location="cpu").get("lightning_tgnn") or {}
    if not {"graph", "settings"} <= set(saved):
        cure = "ask a model of a stream by --score, --top_k, --embed or --classify"
        raise CheckpointError("ckpt_path", "of NodeClassification, with --vertices", options.ckpt_path, cure)
    own: dict[str, Any] = {} if options.model is None else {"model": check_import("model", options.model)}
    task = NodeClassification.load_from_checkpoint(options.ckpt_path, "cpu", trust=options.trust, **own)
    trained: dict[str, Any] = dict(saved["settings"])
    settings = {name: value for name, value in trained.items() if name in _SETTINGS}
    if trained.get("standardize_features") is False:
        settings["standardize_features"] = False
    if options.root is not None:
        settings["root"] = options.root
    data = FullGraphDataModule(options.vertices, **settings)
    data.prepare_data()
    assert task.info is not None
    if data.info.feature_dim != task.info.feature_dim:
        requirement = f"a graph with the {task.info.feature_dim} features of training"
        cure = "give such a graph: it may have other vertices and edges"
        raise InvalidArgumentError("vertices", requirement, data.info.feature_dim, cure)
    if data.info.weighted != task.info.weighted:
        has = ("a graph without weights of edges", "a graph with weights of edges")
        cure = "give a graph of the kind that the model was trained on"
        raise InvalidArgumentError("vertices", has[task.info.weighted], has[data.info.weighted], cure)
    device = torch.device(options.device)
    subgraph = data.predict_dataloader().subgraph.to(device)
    with torch.inference_mode():
        probabilities = task.probabilities(task.to(device).eval()(subgraph)).cpu()
    import pandas as pd

    answers = pd.DataFrame({"node": subgraph.nodes.cpu().numpy()})
    if not task.info.multi_label:
        answers["class"] = probabilities.argmax(-1).numpy()
    for number, column in enumerate(probabilities.T.numpy()):
        answers[f"p{number}"] = column
    with answer_table(options.output) as add:
        add(answers)
    Console().out(f"{len(answers):,} answers: {options.output}", highlight=False)
