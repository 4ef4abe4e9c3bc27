import doctest
from collections.abc import Callable
from functools import partial
from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor
from torchmetrics import Metric

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.metrics import (
    ExpectedMeanReciprocalRank,
    HitsAtK,
    LinkAUROC,
    LinkAveragePrecision,
    MeanReciprocalRank,
    binary_auroc,
    binary_average_precision,
    expected_reciprocal_rank,
    functional,
    hits_at_k,
    link_metrics,
    reciprocal_rank,
)

METRICS = [
    LinkAveragePrecision,
    LinkAUROC,
    MeanReciprocalRank,
    ExpectedMeanReciprocalRank,
    HitsAtK,
    partial(HitsAtK, k=1),
]
# Few distinct values, so that ties are common; infinities, because a logit may be one.
SCORES = st.sampled_from([-np.inf, -40.0, -1.5, 0.0, 0.25, 1.0, 30.0, 40.0, 50.0, np.inf])


@st.composite
def events(draw: st.DrawFn, num_negatives: int | None = None) -> tuple[Tensor, Tensor]:
    rows = draw(st.integers(1, 12))
    columns = num_negatives or draw(st.integers(1, 12))
    scores = draw(arrays(np.float32, (rows, 1 + columns), elements=SCORES))
    return torch.from_numpy(scores[:, 0].copy()), torch.from_numpy(scores[:, 1:].copy())


@st.composite
def classified(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    length = draw(st.integers(2, 30))
    scores = draw(arrays(np.float32, length, elements=SCORES))
    target = draw(arrays(np.int64, length, elements=st.integers(0, 1)))
    target[:2] = [0, 1]
    return torch.from_numpy(scores), torch.from_numpy(target)


def slow_rank(positive: float, negatives: list[float]) -> float:
    rank = 1.0
    for negative in negatives:
        if negative > positive:
            rank += 1
        elif negative == positive:
            rank += 0.5
    return rank


def slow_average_precision(scores: list[float], target: list[int]) -> float:
    area, recall_before = 0.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        taken = [label for score, label in zip(scores, target, strict=True) if score >= threshold]
        recall = sum(taken) / sum(target)
        area += (recall - recall_before) * sum(taken) / len(taken)
        recall_before = recall
    return area


def slow_auroc(scores: list[float], target: list[int]) -> float:
    positives = [score for score, label in zip(scores, target, strict=True) if label]
    negatives = [score for score, label in zip(scores, target, strict=True) if not label]
    wins = sum((p > n) + 0.5 * (p == n) for p in positives for n in negatives)
    return wins / (len(positives) * len(negatives))


def fed(metric: Metric, positive: Tensor, negatives: Tensor, cuts: list[int]) -> Metric:
    for start, stop in pairwise([0, *sorted(cuts), len(positive)]):
        metric.update(positive[start:stop], negatives[start:stop])
    return metric


def gathered(state: Tensor | list[Tensor]) -> Tensor:
    return torch.cat([torch.empty(0), *state]) if isinstance(state, list) else state


def ranks_over_orders(positive: float, negatives: list[float]) -> list[int]:
    """Return the rank of the positive in every order of the candidates that goes from high to low."""
    candidates = [positive, *negatives]
    orders = permutations(range(len(candidates)))
    descending = (order for order in orders if all(candidates[a] >= candidates[b] for a, b in pairwise(order)))
    return [order.index(0) + 1 for order in descending]


@settings(deadline=None)
@given(events())
def test_ranks_are_those_of_a_plain_loop(scores: tuple[Tensor, Tensor]) -> None:
    positive, negatives = scores
    ranks = [slow_rank(p, row) for p, row in zip(positive.tolist(), negatives.tolist(), strict=True)]
    torch.testing.assert_close(reciprocal_rank(positive, negatives), torch.tensor([1 / rank for rank in ranks]))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 5).flatmap(lambda count: events(num_negatives=count)))
def test_ties_count_as_over_all_their_orders(scores: tuple[Tensor, Tensor]) -> None:
    positive, negatives = scores
    ranks = [ranks_over_orders(p, row) for p, row in zip(positive.tolist(), negatives.tolist(), strict=True)]
    wanted = torch.tensor([np.mean([1 / rank for rank in row]) for row in ranks]).float()
    torch.testing.assert_close(expected_reciprocal_rank(positive, negatives), wanted)
    assert (reciprocal_rank(positive, negatives) <= wanted + 1e-6).all()  # one over a mean, and a mean of one over
    for k in (1, 2, 4, 10):
        wanted = torch.tensor([np.mean([rank <= k for rank in row]) for row in ranks]).float()
        torch.testing.assert_close(hits_at_k(positive, negatives, k), wanted)


def test_a_constant_score_is_chance_where_ties_are_taken_at_random() -> None:
    positive, negatives = torch.zeros(1), torch.zeros(1, 49)
    assert reciprocal_rank(positive, negatives).item() == pytest.approx(1 / 25.5)
    assert expected_reciprocal_rank(positive, negatives).item() == pytest.approx(sum(1 / n for n in range(1, 51)) / 50)
    for count in (5, 18, 19, 49):
        assert hits_at_k(positive, negatives[:, :count], 10).item() == pytest.approx(min(1, 10 / (count + 1)))


def test_without_ties_both_means_of_the_reciprocal_rank_are_one() -> None:
    positive, negatives = torch.tensor([0.5]), torch.linspace(0, 100_000, 100_001)[None]
    assert torch.equal(expected_reciprocal_rank(positive, negatives), reciprocal_rank(positive, negatives))
    tied = torch.tensor([3.0]).expand(1, 100_000)  # ranks 1 to 100,001: the sum of many small numbers
    wanted = sum(1 / rank for rank in range(1, 100_002)) / 100_001
    assert expected_reciprocal_rank(torch.tensor([3.0]), tied).item() == pytest.approx(wanted, rel=1e-6)


@settings(deadline=None)
@given(classified())
def test_average_precision_and_auroc_are_those_of_a_plain_loop(case: tuple[Tensor, Tensor]) -> None:
    scores, target = (column.tolist() for column in case)
    assert binary_average_precision(*case).item() == pytest.approx(slow_average_precision(scores, target), abs=1e-5)
    assert binary_auroc(*case).item() == pytest.approx(slow_auroc(scores, target), abs=1e-5)


@pytest.mark.parametrize("decimals", [0, 1, 6])
def test_ties_count_as_in_sklearn(decimals: int) -> None:
    generator = np.random.default_rng(decimals)
    target = generator.integers(0, 2, 5000)
    scores = (generator.normal(size=5000) + target).round(decimals).astype(np.float32)
    case = torch.from_numpy(scores), torch.from_numpy(target)
    assert binary_average_precision(*case).item() == pytest.approx(average_precision_score(target, scores), abs=1e-6)
    assert binary_auroc(*case).item() == pytest.approx(roc_auc_score(target, scores), abs=1e-6)


def test_large_logits_keep_their_order() -> None:
    positive, negatives = torch.tensor([50.0, 40.0]), torch.tensor([30.0, 20.0])
    for metric in (LinkAveragePrecision(), LinkAUROC()):
        assert metric(positive, negatives).item() == 1
    assert binary_auroc(torch.tensor([30.0, 40.0, 50.0]), torch.tensor([0, 1, 0])).item() == 0.5


@pytest.mark.parametrize("metric", [binary_average_precision, binary_auroc])
@pytest.mark.parametrize(
    "transform",
    [torch.logit, torch.exp, lambda p: 60 * p - 30, lambda p: p**3, lambda p: p - 1, lambda p: p / 1e6],
    ids=["logit", "exp", "affine", "cube", "shift", "scale"],
)
def test_a_monotone_transformation_changes_nothing(
    metric: Callable[[Tensor, Tensor], Tensor], transform: Callable[[Tensor], Tensor]
) -> None:
    target = torch.randint(0, 2, (400,), generator=torch.Generator().manual_seed(0))
    noise = torch.rand(400, generator=torch.Generator().manual_seed(1))
    # A grid of 1/64 gives ties, and float32 holds every transformed value apart from its neighbours.
    scores = ((noise + 0.3 * target) / 1.3 * 62 + 1).round() / 64
    assert scores.unique().numel() == transform(scores).unique().numel() < 400
    assert 0.5 < metric(scores, target) < 1
    assert metric(transform(scores), target) == metric(scores, target)


@pytest.mark.parametrize("make", METRICS)
@settings(deadline=None)
@given(data=st.data())
def test_the_value_does_not_depend_on_the_batches(make: Callable[..., Metric], data: st.DataObject) -> None:
    positive, negatives = data.draw(events(num_negatives=1))
    cuts = data.draw(st.lists(st.integers(0, len(positive)), max_size=6))
    whole = fed(make(), positive, negatives, []).compute()
    assert fed(make(), positive, negatives, cuts).compute().item() == pytest.approx(whole.item(), abs=1e-6)


@pytest.mark.parametrize("make", METRICS)
@pytest.mark.parametrize("cut", [0, 17, 60])
def test_ranks_together_give_the_value_of_one_process(make: Callable[..., Metric], cut: int) -> None:
    generator = torch.Generator().manual_seed(3)
    positive, negatives = torch.randn(60, generator=generator), torch.randn(60, 1, generator=generator)
    theirs = make() if cut == 60 else fed(make(), positive[cut:], negatives[cut:], [])
    sent = iter([gathered(state) for state in theirs.metric_state.values()])
    mine = make(dist_sync_fn=lambda state, group: [state, next(sent)], distributed_available_fn=lambda: True)
    mine.update(positive[:cut], negatives[:cut])
    whole = fed(make(), positive, negatives, []).compute()
    assert mine.compute().item() == pytest.approx(whole.item(), abs=1e-6)
    assert next(sent, None) is None


def test_values_over_a_split_are_those_of_a_plain_loop() -> None:
    generator = torch.Generator().manual_seed(5)
    positive, negatives = torch.randn(30, generator=generator), torch.randn(30, 20, generator=generator).round()
    ranks = [slow_rank(p, row) for p, row in zip(positive.tolist(), negatives.tolist(), strict=True)]
    for k in (1, 10):
        hits = fed(HitsAtK(k=k), positive, negatives, [7, 8]).compute()
        assert hits.item() == pytest.approx(sum(rank <= k for rank in ranks) / 30)
    mean = fed(MeanReciprocalRank(), positive, negatives, [7, 8]).compute()
    assert mean.item() == pytest.approx(sum(1 / rank for rank in ranks) / 30)
    scores, target = [*positive.tolist(), *negatives[:, 0].tolist()], [1] * 30 + [0] * 30
    precision = fed(LinkAveragePrecision(), positive, negatives[:, 0], [7, 8]).compute()
    assert precision.item() == pytest.approx(slow_average_precision(scores, target), abs=1e-6)
    area = fed(LinkAUROC(), positive, negatives[:, 0], [7, 8]).compute()
    assert area.item() == pytest.approx(slow_auroc(scores, target), abs=1e-6)


@pytest.mark.parametrize("make", METRICS)
def test_without_an_event_there_is_no_value(make: Callable[..., Metric]) -> None:
    with pytest.warns(UserWarning, match="before the ``update`` method"):
        assert make().compute().isnan()
    metric = fed(make(), torch.ones(2), torch.zeros(2, 1), [])
    assert metric.compute() == 1
    metric.reset()
    with pytest.warns(UserWarning, match="before the ``update`` method"):
        assert metric.compute().isnan()


def test_without_a_class_there_is_no_value() -> None:
    scores = torch.tensor([0.1, 0.9])
    assert binary_average_precision(scores, torch.zeros(2, dtype=torch.int64)).isnan()
    assert binary_average_precision(scores, torch.ones(2, dtype=torch.int64)) == 1
    assert binary_auroc(scores, torch.zeros(2, dtype=torch.int64)).isnan()
    assert binary_auroc(scores, torch.ones(2, dtype=torch.int64)).isnan()


@pytest.mark.parametrize("make", METRICS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_metrics_hold_no_graph_and_take_low_precision(make: Callable[..., Metric], dtype: torch.dtype) -> None:
    positive = torch.tensor([2.0, 0.5], dtype=dtype, requires_grad=True)
    metric = fed(make(), positive, torch.tensor([[1.0], [0.0]], dtype=dtype), [])
    assert not any(gathered(state).requires_grad for state in metric.metric_state.values())
    assert 0.7 < metric.compute() <= 1


def test_the_mean_counts_every_event_of_a_long_split() -> None:
    metric = HitsAtK()
    metric.total.fill_(2**24)
    metric.update(torch.ones(1), torch.zeros(1, 1))
    assert metric.total.item() == 2**24 + 1


NAN = torch.tensor([0.0, torch.nan])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: reciprocal_rank(NAN, torch.zeros(2, 3)), r"positive must be free of NaN, got '1 NaN of 2'; look for"),
        (lambda: hits_at_k(torch.zeros(2), NAN[:, None], 1), r"negatives must be free of NaN, got '1 NaN of 2'"),
        (
            lambda: reciprocal_rank(torch.zeros(2), torch.zeros(3, 1)),
            r"shape \[B\] and \[B, Q\], got '\[2\] and \[3, 1\]'",
        ),
        (lambda: reciprocal_rank(torch.zeros(2), torch.zeros(2)), r"got '\[2\] and \[2\]'; give a row"),
        (lambda: reciprocal_rank(torch.zeros(2, 1), torch.zeros(2, 1)), r"got '\[2, 1\] and \[2, 1\]'"),
        (lambda: reciprocal_rank(torch.zeros(2), torch.zeros(2, 0)), r"at least one negative per event"),
        (lambda: reciprocal_rank(torch.zeros(2).long(), torch.zeros(2, 1)), r"positive must be floating point"),
        (lambda: hits_at_k(torch.zeros(2), torch.zeros(2, 1), 0), r"k must be an integer of at least 1, got 0"),
        (lambda: HitsAtK(k=1.5), r"k must be an integer of at least 1, got 1.5; give the ranks"),
        (lambda: binary_auroc(NAN, torch.tensor([0, 1])), r"scores must be free of NaN"),
        (lambda: binary_average_precision(NAN, torch.tensor([0, 1])), r"scores must be free of NaN"),
        (lambda: binary_auroc(torch.zeros(2, 1), torch.zeros(2, 1).long()), r"both of shape \[E\], got '\[2, 1\] and"),
        (lambda: binary_auroc(torch.zeros(2), torch.zeros(3).long()), r"got '\[2\] and \[3\]'; flatten both"),
        (
            lambda: binary_auroc(torch.zeros(2), torch.tensor([0, 2])),
            r"integers 0 and 1, got 'torch.int64 with \[0, 2\]'",
        ),
        (lambda: binary_average_precision(torch.zeros(2), torch.ones(2)), r"target must be integers 0 and 1"),
        (lambda: LinkAUROC().update(torch.zeros(2), torch.zeros(2, 2)), r"got '\[2\] and \[2, 2\]'; give one negative"),
        (
            lambda: LinkAUROC().update(torch.zeros(2), torch.zeros(3)),
            r"\[B\] and \[B\] or \[B, 1\], got '\[2\] and \[3\]'",
        ),
        (lambda: LinkAveragePrecision().update(torch.zeros(2), NAN), r"negatives must be free of NaN"),
        (lambda: MeanReciprocalRank().update(NAN, torch.zeros(2, 1)), r"positive must be free of NaN"),
    ],
)
def test_refusals_name_what_came_and_the_cure(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        call()


@pytest.mark.parametrize("module", [functional, link_metrics])
def test_the_examples_of_the_docstrings_hold(module: object) -> None:
    failed, attempted = doctest.testmod(module)  # type: ignore[arg-type]
    assert attempted > 0
    assert failed == 0
