"""What a task on a memory-based temporal GNN refuses: Trainers that it cannot train under, models of another graph."""

from __future__ import annotations

import lightning.pytorch as pl

from lightning_tgnn.checks import CheckpointError, InvalidArgumentError, refusal
from lightning_tgnn.types import StateStore, StreamInfo

_PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")


def check_trainer(trainer: pl.Trainer, store: StateStore | None) -> None:
    """Refuse a precision, a device or a number of ranks that would give wrong results.

    Args:
        trainer: About to train or to evaluate.
        store: Node state from an earlier run, if there is any.

    Raises:
        InvalidArgumentError: The Trainer is such a one.
    """
    check_precision(trainer, "node times need float64 and node memory float32, so only the products can be in less")
    if trainer.strategy.root_device.type == "mps":
        cure = "set accelerator='cpu': Apple's GPU has no float64, which times need"
        raise InvalidArgumentError(refusal("Trainer(accelerator=...)", "'cpu' or 'cuda'", "mps", cure))
    ranks = trainer.world_size
    if ranks > 1 and not getattr(trainer.strategy, "shares_node_state", False):
        cure = "set strategy='sven', or devices=1: each rank would keep a node state of its own"
        received = f"{type(trainer.strategy).__name__} with {ranks} ranks"
        requirement = "a strategy that shares node state over ranks"
        raise InvalidArgumentError(refusal("Trainer(strategy=...)", requirement, received, cure))
    held = getattr(getattr(store, "exchange", None), "ranks", ranks)
    if held != ranks:
        cure = "use as many ranks, or load a checkpoint into a new task"
        requirement = f"the {held} of the node state"
        raise InvalidArgumentError(refusal("Trainer(devices=...)", requirement, f"{ranks} rank(s)", cure))


def check_precision(trainer: pl.Trainer, cure: str) -> None:
    """Refuse a precision that turns all of a batch into another one.

    Args:
        trainer: About to train or to evaluate.
        cure: Why that would not do.

    Raises:
        InvalidArgumentError: The Trainer has such a one.
    """
    if str(trainer.precision) not in _PRECISIONS:
        requirement = f"one of {', '.join(_PRECISIONS)}"
        raise InvalidArgumentError(refusal("Trainer(precision=...)", requirement, trainer.precision, cure))


def check_same_graph(saved: StreamInfo | None, current: StreamInfo | None) -> None:
    """Refuse a model or checkpoint of another stream; None stands for one that is not known yet.

    Raises:
        CheckpointError: The streams differ.
    """
    if saved is None or current is None:
        return
    cure = "give the stream that the model was trained on, or train a new model"
    if _identity(saved) == _identity(current):
        names, found = saved.edge_feature_names, current.edge_feature_names
        if names is not None and found is not None and names != found:
            requirement = f"of a stream with the edge features {', '.join(found)}, in this order"
            raise CheckpointError(refusal("model or checkpoint", requirement, ", ".join(names), cure))
        return
    raise CheckpointError(
        refusal("model or checkpoint", f"of this graph ({_describe(current)})", _describe(saved), cure)
    )


def _identity(info: StreamInfo) -> tuple[str, int, int]:
    return info.fingerprint, info.node_feature_dim, info.edge_feature_dim


def _describe(info: StreamInfo) -> str:
    widths = f"{info.edge_feature_dim} edge and {info.node_feature_dim} node features"
    return f"{info.num_events} events, {info.num_nodes} nodes, {widths}, {info.fingerprint[:8]}"
