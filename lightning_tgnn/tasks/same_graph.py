"""Checks that a model or a checkpoint is of the graph at hand."""

from __future__ import annotations

from dataclasses import replace

from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from lightning_tgnn.checks import CheckpointError, refusal
from lightning_tgnn.types import GraphInfo, StreamInfo

_CURE = "give the {} that the model was trained on, or train a new model"
_WHAT = "model or checkpoint"


def check_same_stream(saved: StreamInfo | None, current: StreamInfo | None, *, resumes: bool = False) -> None:
    """Refuse a model or checkpoint of another stream; warn of other values of its features.

    Args:
        saved: The stream of the model or checkpoint; None if it is not known yet.
        current: The stream at hand; None if it is not known.
        resumes: Whether a fit resumes from the checkpoint: then other values are refused, too.

    Raises:
        CheckpointError: The streams, or the order of their edge features, differ.
    """
    if saved is None or current is None:
        return
    cure = _CURE.format("stream")
    if _identity(saved) == _identity(current):
        names, found = saved.edge_feature_names, current.edge_feature_names
        if names is not None and found is not None and names != found:
            requirement = f"of a stream with the edge features {', '.join(found)}, in this order"
            raise CheckpointError(refusal(_WHAT, requirement, ", ".join(names), cure))
        _check_features(saved.features, current.features, cure, resumes=resumes)
        return
    if current.num_events > saved.num_events:
        cure = f"{cure}; a Predictor takes in what has come since with `observe`, `predict` with --events"
    raise CheckpointError(refusal(_WHAT, f"of this graph ({_describe(current)})", _describe(saved), cure))


def check_same_graph(
    saved: GraphInfo | None, current: GraphInfo, *, resumes: bool = False, may_have_grown: bool = False
) -> None:
    """Refuse a model or checkpoint of another static graph; warn of other values of its features.

    Args:
        saved: The graph of the model or checkpoint; None if it is not known yet.
        current: The graph at hand.
        resumes: Whether a fit resumes from the checkpoint: then other values are refused, too.
        may_have_grown: Whether other vertices and edges will do, as long as features and classes are as many, and edges
            have weights in both or in neither.

    Raises:
        CheckpointError: The graphs differ.
    """
    if saved is None:
        return
    cure = _CURE.format("graph")
    kinds = [(info.feature_dim, info.num_classes, info.multi_label, info.weighted) for info in (saved, current)]
    if may_have_grown and kinds[0] == kinds[1]:
        return
    ours, theirs = replace(current, features=None), replace(saved, features=None)
    if ours != theirs:
        raise CheckpointError(refusal(_WHAT, f"of this graph ({ours})", theirs, cure))
    _check_features(saved.features, current.features, cure, resumes=resumes)


def _check_features(saved: str | None, current: str | None, cure: str, *, resumes: bool) -> None:
    if saved is None or current is None or saved == current:
        return
    if resumes:
        requirement, received = "trained on these values of the features", "one that was trained on others"
        raise CheckpointError(refusal(_WHAT, requirement, received, cure))
    rank_zero_warn(
        "the model was trained on other values of the features than the DataModule has: if that is not meant, give the"
        " data that it was trained on"
    )


def _identity(info: StreamInfo) -> tuple[str, int, int]:
    return info.fingerprint, info.node_feature_dim, info.edge_feature_dim


def _describe(info: StreamInfo) -> str:
    widths = f"{info.edge_feature_dim} edge and {info.node_feature_dim} node features"
    return f"{info.num_events} events, {info.num_nodes} nodes, {widths}, {info.fingerprint[:8]}"
