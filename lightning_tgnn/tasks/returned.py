"""Checks of the values that a user's own parts return, from the call of a model to the loss."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError, refusal


def check_returned(returned: object, shape: tuple[int, int], cure: str) -> Tensor:
    """Return what a model has returned if it is a tensor of a shape.

    Raises:
        InvalidArgumentError: ``returned`` is no tensor, or has another shape.
    """
    if not isinstance(returned, Tensor) or returned.shape != shape:
        raise InvalidArgumentError(refusal("what the model returns", f"a tensor {list(shape)}", _told(returned), cure))
    return returned


def check_step(returned: object) -> tuple[Any, Any]:
    """Return what the ``step`` of a model of snapshots has returned if it is a pair.

    Raises:
        InvalidArgumentError: ``returned`` is no tuple or list of two.
    """
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        cure = "return both; the embeddings are read after the last snapshot of a group, and may be None before"
        raise InvalidArgumentError(refusal("the result of step", "(carried, embeddings)", _told(returned), cure))
    carried, embeddings = returned
    return carried, embeddings


def check_link_scores(returned: object, events: int, negatives: int | None) -> tuple[Tensor, Tensor]:
    """Return what ``score`` has returned if it is logits of true destinations [B] and of negatives [B, Q].

    Args:
        returned: By a task.
        events: B.
        negatives: Q, of the batch; None where they are not looked at.

    Raises:
        InvalidArgumentError: ``returned`` is no pair of tensors [B] and [B, Q].
    """
    parts = returned if isinstance(returned, tuple | list) else (returned,)
    shapes = [_told(part) for part in parts]
    if len(parts) == 2 and shapes[0] == [events] and len(shapes[1]) == 2 and shapes[1][0] == events:
        true_scores, negative_scores = parts
        if negatives is None or negative_scores.shape[1] == negatives:
            return true_scores, negative_scores
    requirement = f"logits of the true destinations [{events}] and of the negatives [{events}, {negatives or 'Q'}]"
    cure = "return two tensors of these shapes; of one negative an event, too, a column [B, 1]"
    raise InvalidArgumentError(refusal("the result of score", requirement, " and ".join(map(str, shapes)), cure))


def check_logits(returned: object, rows: int) -> Tensor:
    """Return what ``score`` has returned if it is a row of logits for each of the events or vertices that are scored.

    Raises:
        InvalidArgumentError: ``returned`` is no tensor [rows, outputs].
    """
    if isinstance(returned, Tensor) and returned.ndim == 2 and len(returned) == rows:
        return returned
    cure = "return a row for each, of as many columns as there are outputs"
    raise InvalidArgumentError(refusal("the result of score", f"logits [{rows}, outputs]", _told(returned), cure))


def check_loss(returned: object) -> Tensor:
    """Return what ``loss`` has returned if it is one number.

    Raises:
        InvalidArgumentError: ``returned`` is no tensor of one number.
    """
    if not isinstance(returned, Tensor) or returned.numel() != 1:
        cure = "return a mean over what is scored"
        raise InvalidArgumentError(refusal("the result of loss", "a tensor of one number", _told(returned), cure))
    return returned


def _told(returned: object) -> list[int] | str:
    """Return the shape of a tensor, of all else the type."""
    return list(returned.shape) if isinstance(returned, Tensor) else type(returned).__name__
