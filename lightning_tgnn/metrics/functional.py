"""Ranking metrics as pure functions of scores; a score may be a probability or a logit, only the order counts."""

from __future__ import annotations

import torch
import torchmetrics.functional.classification as exact
from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError, check_int
from lightning_tgnn.types import is_asynchronous


def reciprocal_rank(positive: Tensor, negatives: Tensor) -> Tensor:
    """Return one over the rank of every positive among its own negatives, float32 [B].

    The rank is 1, plus 1 for every negative with a higher score, plus half for every negative with an equal one: the
    mean rank over all orders of the ties. This is the rule of TGB's evaluator. One over a mean is less than the mean of
    one over: a scorer that gives 49 negatives and the positive one score gets 1 / 25.5 = 0.039, where a random order
    gets 0.090. Use `expected_reciprocal_rank` to compare with chance or with a scorer that makes many ties.

    Args:
        positive: Floating [B], scores of the true destinations.
        negatives: Floating [B, Q], scores of the negatives of each event.

    Raises:
        InvalidArgumentError: A shape does not fit, there is no negative, or a score is NaN.

    >>> reciprocal_rank(torch.tensor([2.0, 1.0]), torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    tensor([1.0000, 0.6667])
    """
    higher, tied = _higher_and_tied(positive, negatives)
    return 1 / (1 + higher + 0.5 * tied)


def expected_reciprocal_rank(positive: Tensor, negatives: Tensor) -> Tensor:
    """Return the mean of one over the rank of every positive over all orders of the ties, float32 [B].

    With g negatives of a higher score and t of an equal one, the ranks g + 1 to g + t + 1 are equally likely, and the
    mean of their reciprocals is a difference of harmonic numbers, (H(g + t + 1) - H(g)) / (t + 1). Without ties this is
    `reciprocal_rank`; a constant score gets what a random order gets. It is not the ERR of graded relevance, which has
    the same name.

    Args:
        positive: Floating [B], scores of the true destinations.
        negatives: Floating [B, Q], scores of the negatives of each event.

    Raises:
        InvalidArgumentError: A shape does not fit, there is no negative, or a score is NaN.

    >>> expected_reciprocal_rank(torch.tensor([2.0, 1.0]), torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    tensor([1.0000, 0.7500])
    """
    higher, tied = (count.double() for count in _higher_and_tied(positive, negatives))
    # digamma(n + 1) is H(n) but for a constant.
    return ((torch.digamma(higher + tied + 2) - torch.digamma(higher + 1)) / (tied + 1)).float()


def hits_at_k(positive: Tensor, negatives: Tensor, k: int) -> Tensor:
    """Return the probability of every positive to rank among the first ``k``, its ties in random order, float32 [B].

    With g negatives of a higher score and t of an equal one, k - g of the t + 1 ranks that the positive may get are
    hits. Without ties the result is 1 or 0. With fewer than ``k`` negatives it is 1 whatever the scores are.

    Args:
        positive: Floating [B], scores of the true destinations.
        negatives: Floating [B, Q], scores of the negatives of each event.
        k: At least 1.

    Raises:
        InvalidArgumentError: ``k`` or a shape does not fit, there is no negative, or a score is NaN.

    >>> hits_at_k(torch.tensor([2.0, 1.0]), torch.tensor([[1.0, 0.0], [1.0, 0.0]]), k=1)
    tensor([1.0000, 0.5000])
    """
    check_int("k", k, minimum=1, cure="give the ranks that count as a hit, for example 10")
    higher, tied = _higher_and_tied(positive, negatives)
    return ((k - higher) / (tied + 1)).clamp(0, 1)


def ndcg_at_k(scores: Tensor, gains: Tensor, k: int = 10) -> Tensor:
    """Return the normalised discounted cumulative gain of each row, float32 [n]; 0 where a row has no gain.

    Equal scores share the mean of their gains, as in scikit-learn's ``ndcg_score``, TGB's evaluator.

    Args:
        scores: Floating [n, C].
        gains: Floating [n, C], not negative.
        k: Places that count.

    >>> ndcg_at_k(torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([[0.0, 1.0, 1.0]]), k=2)
    tensor([0.3869])
    """
    check_scores("scores", scores)
    places = torch.arange(scores.shape[1], device=scores.device)
    discounts = torch.where(places < k, 1 / torch.log2(places + 2.0), 0.0).double().expand(scores.shape)
    ordered, order = scores.sort(dim=1, descending=True, stable=True)
    gained = gains.double().gather(1, order)
    tie = torch.zeros_like(order)
    tie[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).cumsum(1)
    total, weight, size = (
        torch.zeros_like(gained).scatter_add_(1, tie, part) for part in (gained, discounts, torch.ones_like(gained))
    )
    found = (total / size.clamp(min=1) * weight).sum(1)
    best = (gains.double().sort(dim=1, descending=True).values * discounts).sum(1)
    return torch.where(best > 0, found / best.clamp(min=torch.finfo(torch.float64).tiny), 0.0).float()


def binary_average_precision(scores: Tensor, target: Tensor) -> Tensor:
    """Return the average precision over all entries, float32 []; NaN without a positive.

    Args:
        scores: Floating [E], probabilities or logits.
        target: Integer or bool [E], 0 or 1.

    Raises:
        InvalidArgumentError: The shapes differ, or a score is NaN.

    >>> binary_average_precision(torch.tensor([30.0, 50.0, 40.0]), torch.tensor([0, 1, 0]))
    tensor(1.)
    """
    check_scores("scores", scores)
    _check_target(scores, target)
    if not target.any():
        return scores.new_tensor(torch.nan, dtype=torch.float32)
    return exact.binary_average_precision(_order(scores), target.long(), thresholds=None)


def binary_auroc(scores: Tensor, target: Tensor) -> Tensor:
    """Return the area under the ROC curve over all entries, float32 []; NaN without a positive or a negative.

    Args:
        scores: Floating [E], probabilities or logits.
        target: Integer or bool [E], 0 or 1.

    Raises:
        InvalidArgumentError: The shapes differ, or a score is NaN.

    >>> binary_auroc(torch.tensor([30.0, 50.0, 40.0]), torch.tensor([0, 1, 1]))
    tensor(1.)
    """
    check_scores("scores", scores)
    _check_target(scores, target)
    if target.bool().all() or not target.any():
        return scores.new_tensor(torch.nan, dtype=torch.float32)
    return exact.binary_auroc(_order(scores), target.long(), thresholds=None)


def _higher_and_tied(positive: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many negatives of every event score higher than its positive, and how many the same, [B] each.

    On an asynchronous device both are NaN for an event with a NaN score.
    """
    check_floating("positive", positive)
    check_floating("negatives", negatives)
    if positive.ndim != 1 or negatives.ndim != 2 or len(positive) != len(negatives) or negatives.shape[1] == 0:
        received = f"{list(positive.shape)} and {list(negatives.shape)}"
        cure = "give a row of at least one negative per event"
        raise InvalidArgumentError("positive and negatives", "of shape [B] and [B, Q]", received, cure)
    higher, tied = (negatives > positive[:, None]).sum(dim=1), (negatives == positive[:, None]).sum(dim=1)
    if is_asynchronous(positive):
        broken = positive.isnan() | negatives.isnan().any(1)
        return higher.float().masked_fill(broken, torch.nan), tied.float().masked_fill(broken, torch.nan)
    check_scores("positive", positive)
    check_scores("negatives", negatives)
    return higher, tied


def _order(scores: Tensor) -> Tensor:
    """Replace every score by its dense rank, scaled to [0, 1].

    torchmetrics applies a sigmoid as soon as one score lies outside [0, 1]; in float32 that maps every logit above 17
    to 1.0 and so makes ties of an order, and whether it happens depends on the other scores. Ranks within [0, 1] never
    meet it; they keep the order, the ties and hence the value. float64 tells 2**52 of them apart, float32 only 2**24.
    """
    rank = torch.unique(scores, return_inverse=True)[1].double()
    return rank / rank.max().clamp(min=1)


def check_scores(argument: str, scores: Tensor) -> None:
    """Refuse scores that are not floating point, or NaN.

    Raises:
        InvalidArgumentError: The scores are not floating point, or one is NaN.
    """
    check_floating(argument, scores)
    if scores.isnan().any():
        raise has_nan(argument, f"{int(scores.isnan().sum())} NaN of {scores.numel()}")


def check_floating(argument: str, scores: Tensor) -> None:
    """Refuse scores that are not floating point.

    Raises:
        InvalidArgumentError: The scores are not floating point.
    """
    if not scores.is_floating_point():
        raise InvalidArgumentError(argument, "floating point", scores.dtype, "give scores, not decisions")


def has_nan(argument: str, received: str) -> InvalidArgumentError:
    """Return the refusal of scores that are NaN."""
    cure = "look for the first NaN loss, and lower the learning rate or clip gradients"
    return InvalidArgumentError(argument, "free of NaN", received, cure)


def _check_target(scores: Tensor, target: Tensor) -> None:
    if scores.ndim != 1 or target.shape != scores.shape:
        received = f"{list(scores.shape)} and {list(target.shape)}"
        raise InvalidArgumentError("scores and target", "both of shape [E]", received, "flatten both")
    if target.is_floating_point() or not ((target == 0) | (target == 1)).all():
        received = f"{target.dtype} with {target.unique()[:5].tolist()}"
        raise InvalidArgumentError("target", "integers 0 and 1", received, "give classes, not scores")
