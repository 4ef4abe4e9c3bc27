"""The checks of tasks: refuse models that cannot be built, unsuitable Trainers, and models of another graph."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from inspect import signature
from typing import TypeVar

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.utilities.compile import to_uncompiled
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import nn

from lightning_tgnn.checks import CheckpointError, InvalidArgumentError, check_import, did_you_mean
from lightning_tgnn.compat.modules import is_compiled
from lightning_tgnn.metrics.link_metrics import CANDIDATES_OF_HITS
from lightning_tgnn.types import (
    GraphInfo,
    StateStore,
    StreamInfo,
    datamodule_of,
    deals_batches,
    draws_negatives,
    known_data,
    protocol_of,
    ranks_per_copy,
    shares_node_state,
)

_Given = TypeVar("_Given")
_Info = TypeVar("_Info")
_LOG_THEMSELVES = ("CacheThreshold", "Baselines")
_PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")


def check_model(model: object, names: Collection[str], builds: str) -> None:
    """Refuse what is neither the name of a model nor builds one.

    Args:
        model: What a user gave.
        names: Of the built-in models.
        builds: What a model of a user's own has to be.

    Raises:
        InvalidArgumentError: ``model`` is neither one of ``names``, nor builds a model when called.
    """
    if isinstance(model, str) and model in names:
        return
    if callable(model) and _builds(model):
        _check_called_with_info(model)
        return
    listed = ", ".join(repr(name) for name in sorted(names))
    cure = "give a name or the class of your module; one that is built already by model=lambda info: module"
    if isinstance(model, str):
        cure = did_you_mean(model, names) or cure
    raise InvalidArgumentError("model", f"what builds {builds}, or one of {listed}", _shown(model), cure)


def check_graph_model(model: object) -> None:
    """Refuse what is no module that is called with a part of a graph and with sums over replicas.

    Raises:
        InvalidArgumentError: ``model`` is no `torch.nn.Module`, or its ``forward`` does not take these two arguments.
    """
    if not isinstance(model, nn.Module):
        cure = "return the module from what you gave as `model`"
        raise InvalidArgumentError("model", "built as a torch.nn.Module", type(model).__name__, cure)
    if type(model).__call__ is not nn.Module.__call__ or model._forward_pre_hooks:
        return  # who knows what `forward` is called with
    try:
        signature(model.forward).bind(None, None)
    except ValueError:  # of a traced one nobody knows
        return
    except TypeError as error:
        received = f"{type(model).__name__}: {error}"
        cure = "write its forward(self, part, replicas), which returns a row per vertex of the part"
        requirement = "a module that is called with a Subgraph and a ReplicaSum"
        raise InvalidArgumentError("model", requirement, received, cure) from error


def check_snapshot_model(model: object) -> None:
    """Refuse what is no module that steps from snapshot to snapshot.

    Raises:
        InvalidArgumentError: ``model`` is no `torch.nn.Module` with ``start``, ``step`` and ``embedding_dim``.
    """
    lacks = [name for name in ("start", "step", "embedding_dim") if not hasattr(model, name)]
    if not isinstance(model, nn.Module) or lacks:
        received = f"{type(model).__name__} without {', '.join(lacks)}" if lacks else type(model).__name__
        cure = "give what builds a module with start, step and embedding_dim"
        raise InvalidArgumentError("model", "a torch.nn.Module that is a SnapshotModel", received, cure)


def message_builder(
    message: str | Callable[[int, int], nn.Module] | None,
) -> Callable[[int, int], nn.Module] | None:
    """Return what builds a message function, given as such or by its import path; None as it is.

    Raises:
        InvalidArgumentError: The import path cannot be imported, or ``message`` builds no module.
    """
    found = at_path("message", message)
    if found is None or (not isinstance(found, str) and _builds(found)):
        return found
    cure = "give the class of your module; one that is built already by message=lambda memory_dim, edge_dim: module"
    raise InvalidArgumentError("message", "what builds a module for two widths", _shown(found), cure)


def at_path(argument: str, given: str | _Given) -> str | _Given:
    """Return what stands at an import path, and anything else as it is.

    Raises:
        InvalidArgumentError: The import path cannot be imported.
    """
    return check_import(argument, given) if isinstance(given, str) and "." in given else given


def _builds(given: object) -> bool:
    return callable(given) and not isinstance(given, nn.Module)


def _check_called_with_info(model: Callable[..., object]) -> None:
    try:
        signature(model).bind(None)
    except TypeError as error:
        received = f"{getattr(model, '__name__', type(model).__name__)}: {error}"
        requirement, cure = "called with the info of the data alone", "write model=lambda info: module"
        raise InvalidArgumentError("model", requirement, received, cure) from error
    except ValueError:
        pass  # not every function says what it is called with


def _shown(given: object) -> object:
    return given if isinstance(given, (str, dict)) else type(given).__name__


def check_left_out(task: type, **given: object) -> tuple[str, ...]:
    """Refuse settings that a model of a user's own would not get to see, and return their names.

    Args:
        task: Whose arguments they are.
        **given: Values of those arguments.

    Raises:
        InvalidArgumentError: A value is not the argument's default.
    """
    for name, value in given.items():
        if value != signature(task).parameters[name].default:
            cure = f"give it to your module, model=lambda info: Net(info, {name}={value!r}), in a recipe by init_args"
            raise InvalidArgumentError(name, "left out beside a model of your own", value, cure)
    return tuple(given)


def info_of(trainer: pl.Trainer, kind: type[_Info], wanted: str, *, is_built: bool) -> _Info | None:
    """Return what the DataModule of a Trainer knows; None where nobody knows, and a model is there already.

    Args:
        trainer: About to train or to evaluate.
        kind: Of what is to be known.
        wanted: Name of the DataModule that knows it.
        is_built: Whether there is a model.

    Raises:
        InvalidArgumentError: The Trainer has no such DataModule, and its information is needed.
    """
    data, info = datamodule_of(trainer), known_data(trainer).info
    if isinstance(info, kind):
        return info
    if is_built and info is None:
        return None
    takes = "streams take LinkPrediction, static graphs NodeClassification, snapshots SnapshotLinkPrediction"
    cure = f"pass trainer.fit(model, datamodule={wanted}(...)); a command takes --data {wanted}; {takes}"
    raise InvalidArgumentError("datamodule", f"a {wanted}", data and type(data).__name__, cure)


def check_trainer(trainer: pl.Trainer, store: StateStore | None) -> None:
    """Refuse a compiled task, and a precision, a device or a number of ranks that would give wrong results.

    Args:
        trainer: About to train or to evaluate.
        store: Node state from an earlier run, if there is any.

    Raises:
        InvalidArgumentError: The task is compiled, or the Trainer's precision, device or number of ranks would give
            wrong results, or the DataModule follows a protocol for links and the task predicts none.
    """
    _check_not_compiled(trainer)
    task, protocol = trainer.lightning_module, protocol_of(trainer)
    measured = draws_negatives(task) or (protocol == "tgb" and getattr(task, "asks_about_nodes", False))
    if protocol is not None and not measured:
        cure = "leave it out: its negatives and metrics are of links"
        received = f"{protocol!r} with {type(task).__name__}"
        raise InvalidArgumentError("protocol", "left out beside a task that predicts no links", received, cure)
    check_precision(trainer, "node times need float64 and node memory float32, so only the products can be in less")
    if trainer.strategy.root_device.type == "mps":
        cure = "set accelerator='cpu': Apple's GPU has no float64, which times need"
        raise InvalidArgumentError("Trainer(accelerator=...)", "'cpu' or 'cuda'", "mps", cure)
    ranks = trainer.world_size
    if ranks > 1 and not shares_node_state(trainer.strategy):
        cure = "set strategy='sven', or devices=1: each rank would keep a node state of its own"
        received = f"{type(trainer.strategy).__name__} with {ranks} ranks"
        requirement = "a strategy that shares node state over ranks"
        raise InvalidArgumentError("Trainer(strategy=...)", requirement, received, cure)
    sharing = ranks_per_copy(trainer.strategy)
    held = sharing if store is None or store.ranks is None else store.ranks
    if held != sharing:
        cure = "use as many ranks, or load a checkpoint into a new task"
        raise InvalidArgumentError("Trainer(devices=...)", f"the {held} of the node state", f"{sharing} rank(s)", cure)


def check_snapshot_trainer(trainer: pl.Trainer, model: object) -> None:
    """Refuse what would give wrong results on snapshots.

    Args:
        trainer: About to train or to evaluate.
        model: What the task was given as its model.

    Raises:
        InvalidArgumentError: The task is compiled, the precision is too low, the model needs all vertices but gets
            batches of them, or several ranks would all train the same groups.
    """
    _check_not_compiled(trainer)
    if model == "evolvegcn_h" and getattr(datamodule_of(trainer), "vertices_per_batch", None) is not None:
        cure = "leave it out, or take model='evolvegcn_o'"
        requirement = "left out with 'evolvegcn_h', whose weights evolve by the rows of all vertices"
        raise InvalidArgumentError("vertices_per_batch", requirement, "batches of vertices", cure)
    check_precision(trainer, "edges, features and the state of vertices are in float32")
    if trainer.world_size > 1 and not deals_batches(trainer.strategy):
        cure = "set strategy='blad', or devices=1: each rank would train all groups"
        received = f"{type(trainer.strategy).__name__} with {trainer.world_size} ranks"
        requirement = "a strategy that deals out groups of snapshots"
        raise InvalidArgumentError("Trainer(strategy=...)", requirement, received, cure)


def _check_not_compiled(trainer: pl.Trainer) -> None:
    if is_compiled(trainer.lightning_module):
        to_uncompiled(trainer.lightning_module)  # the Trainer has put the compiled steps into the task itself
        cure = "give the Trainer the task itself: its loops are compiled already, by numba on the CPU"
        requirement = "not compiled by torch.compile, whose tracing ends where a step reads and writes node state"
        raise InvalidArgumentError("task", requirement, f"a compiled {type(trainer.lightning_module).__name__}", cure)


def check_monitors(trainer: pl.Trainer, logged: Collection[str]) -> None:
    """Refuse a callback or schedule that follows a metric which is never logged, before it is missed.

    Nothing is refused where callbacks of a user's own, or such as log themselves, may log it.

    Args:
        trainer: About to fit, with its optimizers.
        logged: The names that the task logs.

    Raises:
        InvalidArgumentError: A ``monitor`` is none of them.
    """
    kinds = {type(callback) for callback in trainer.callbacks}  # type: ignore[attr-defined]
    own = __name__.partition(".")[0]
    known = all(kind.__module__.partition(".")[0] in (own, "lightning", "pytorch_lightning") for kind in kinds)
    if not known or any(kind.__name__ in _LOG_THEMSELVES for kind in kinds):
        return
    followed = [(type(one).__name__, getattr(one, "monitor", None)) for one in trainer.callbacks]  # type: ignore[attr-defined]
    followed += [("lr_scheduler", c.monitor) for c in trainer.lr_scheduler_configs if c.reduce_on_plateau]
    negatives = getattr(datamodule_of(trainer), "num_eval_negatives", None)
    has_few = isinstance(negatives, int) and 1 + negatives < CANDIDATES_OF_HITS
    names = [name for name in logged if not (has_few and name.endswith("/hits@10"))]
    for who, monitor in followed:
        if who == "ModelCheckpoint" and monitor in ("step", "epoch"):  # which Lightning has at any time
            continue
        if isinstance(monitor, str) and monitor.removesuffix("_epoch").removesuffix("_step") not in names:
            listed = ", ".join(sorted(names))
            cure = did_you_mean(monitor, names) or "choose one of these"
            requirement = f"a metric that {type(trainer.lightning_module).__name__} logs in this fit, one of {listed}"
            raise InvalidArgumentError(f"{who}(monitor=...)", requirement, monitor, cure)


def notice_accumulation(trainer: pl.Trainer) -> None:
    """Warn of gradients that are to be accumulated where an epoch is one batch."""
    schedules = [one for one in trainer.callbacks if isinstance(one, GradientAccumulationScheduler)]  # type: ignore[attr-defined]
    if trainer.accumulate_grad_batches > 1 or any(one.going_to_accumulate_grad_batches() for one in schedules):
        rank_zero_warn(
            "an epoch of a static graph is one batch: accumulate_grad_batches accumulates nothing, and only divides the"
            " gradient; leave it out"
        )


def check_precision(trainer: pl.Trainer, cure: str) -> None:
    """Refuse a precision that turns all of a batch into another one.

    Args:
        trainer: About to train or to evaluate.
        cure: Why that would not do.

    Raises:
        InvalidArgumentError: The Trainer's precision is none of those that keep a batch as it is.
    """
    if str(trainer.precision) not in _PRECISIONS:
        requirement = f"one of {', '.join(_PRECISIONS)}"
        raise InvalidArgumentError("Trainer(precision=...)", requirement, trainer.precision, cure)
    weights = [weight for _, weight in trainer.lightning_module.named_parameters()]
    kinds = {weight.dtype for weight in weights if weight.is_floating_point()}
    if kinds and torch.float32 not in kinds:  # task.double() or task.half(): some of them may well be a user's own
        received = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        cure = f"leave them as they are built, without .double(): {cure}"
        raise InvalidArgumentError("the task's weights", "float32", received, cure)


def check_default_dtype() -> None:
    """Refuse to build a model whose weights torch would make in another precision than float32.

    Raises:
        InvalidArgumentError: `torch.set_default_dtype` has set another one.
    """
    if torch.get_default_dtype() != torch.float32:
        cure = "call torch.set_default_dtype(torch.float32) first: features and node memory are float32"
        raise InvalidArgumentError("the default dtype of torch", "torch.float32", str(torch.get_default_dtype()), cure)


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
            raise CheckpointError(_WHAT, requirement, ", ".join(names), cure)
        _check_features(saved.features, current.features, cure, resumes=resumes)
        return
    if current.num_events > saved.num_events:
        cure = f"{cure}; a Predictor takes in what has come since with `observe`, `predict` with --events"
    raise CheckpointError(_WHAT, f"of this graph ({_describe(current)})", _describe(saved), cure)


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
        raise CheckpointError(_WHAT, f"of this graph ({ours})", theirs, cure)
    _check_features(saved.features, current.features, cure, resumes=resumes)


def _check_features(saved: str | None, current: str | None, cure: str, *, resumes: bool) -> None:
    if saved is None or current is None or saved == current:
        return
    if resumes:
        raise CheckpointError(_WHAT, "trained on these values of the features", "one that was trained on others", cure)
    rank_zero_warn(
        "the model was trained on other values of the features than the DataModule has: if that is not meant, give the"
        " data that it was trained on"
    )


def _identity(info: StreamInfo) -> tuple[str, int, int]:
    return info.fingerprint, info.node_feature_dim, info.edge_feature_dim


def _describe(info: StreamInfo) -> str:
    widths = f"{info.edge_feature_dim} edge and {info.node_feature_dim} node features"
    return f"{info.num_events} events, {info.num_nodes} nodes, {widths}, {info.fingerprint[:8]}"
