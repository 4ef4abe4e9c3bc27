"""The hook on gradients, with buckets made by hand: what is summed, and what every bucket is answered."""

from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.comm import Exchange
from lightning_tgnn.strategies.parts import PowerSGD, gradient_mean
from lightning_tgnn.strategies.parts.gradient_mean import EmbeddingTable, GradientMean, GradientSync
from lightning_tgnn.strategies.parts.gradient_pieces import SumOfProducts
from tests.multiprocess.ranks import run_ranks

SHAPES = {"a": (2,), "b": (3, 2), "c": (), "d": (4,)}
RANKS = 4


class Bucket:
    """Stands for DistributedDataParallel's."""

    def __init__(self, parameters, gradients, is_last):
        self.parameters, self.gradients = (lambda: parameters), (lambda: gradients)
        self.is_last = lambda: is_last


class Others:
    """The all-reduce with ranks that all have the same to add, and what was given to it."""

    def __init__(self, added=0.0):
        self.added, self.given = added, []

    def __call__(self, values, group, async_op):
        assert async_op
        self.given.append(values.clone())
        return SimpleNamespace(wait=lambda: values.add_(self.added / RANKS))


@pytest.fixture
def others():
    with mock.patch.object(gradient_mean.dist, "all_reduce", Others()) as reduce:
        yield reduce


def parameters():
    return {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in SHAPES.items()}


def gradients(number):
    return {name: torch.full(shape, float(number)) + place for place, (name, shape) in enumerate(SHAPES.items())}


def flat(given_gradients):
    return torch.cat([given_gradients[name].flatten() for name in SHAPES])


def opened(trained, *, delay=0, **options):
    return GradientSync(trained.items(), "group", Exchange(RANKS), delay=delay, **options)


def backward(sync, trained, given_gradients, buckets):
    """Go backward through buckets of names and return the gradients that come back."""
    futures = []
    for number, names in enumerate(buckets):
        own = [given_gradients[name].clone() for name in names]
        last = number + 1 == len(buckets)
        futures.append((names, sync.hook(None, Bucket([trained[name] for name in names], own, last))))
        assert futures[-1][1].done() == last
    back = {}
    for names, future in futures:
        pieces = future.value().split([max(trained[name].numel(), 1) for name in names])
        back.update({name: piece.view(SHAPES[name]) for name, piece in zip(names, pieces, strict=True)})
    return back


def cut(names, ends):
    """Return names in buckets that end after those places."""
    places = sorted({*ends, len(names)})
    return [names[start:end] for start, end in zip([0, *places], places, strict=False) if start < end]


@seed(12)
@settings(max_examples=40, deadline=None)
@given(
    orders=st.lists(st.permutations(list(SHAPES)), min_size=1, max_size=4),
    ends=st.sets(st.integers(1, len(SHAPES))),
    delay=st.integers(0, 1),
)
def test_the_order_of_buckets_does_not_matter(orders, ends, delay):
    with mock.patch.object(gradient_mean.dist, "all_reduce", Others(2.0)) as reduce:
        trained = parameters()
        sync, before = opened(trained, delay=delay), None
        for number, order in enumerate(orders):
            own = gradients(number)
            back = backward(sync, trained, own, cut(order, ends))
            mean = {name: value / RANKS + 2.0 / RANKS for name, value in own.items()}
            expected = mean if delay == 0 else before or {name: 0 * value for name, value in own.items()}
            torch.testing.assert_close(back, expected)
            before = mean
        sync.settle()
        # As the model has them, whatever the buckets were; a mean that comes late is formed by the end.
        assert len(reduce.given) == len(orders)
        for number, summed in enumerate(reduce.given):
            assert torch.equal(summed, flat(gradients(number)) / RANKS)


def test_a_late_mean_is_formed_when_it_is_started_or_needed(others):
    trained = parameters()
    sync = opened(trained, delay=1)
    assert not sync.has_gradients
    sync.start()
    backward(sync, trained, gradients(1), [list(SHAPES)])
    assert (sync.has_gradients, sync.has_answered) == (True, False)
    assert others.given == []
    sync.start()
    sync.start()
    assert len(others.given) == 1
    backward(sync, trained, gradients(2), [list(SHAPES)])
    assert sync.has_answered
    assert len(others.given) == 1
    backward(sync, trained, gradients(3), [list(SHAPES)])
    assert len(others.given) == 2


def test_a_parameter_that_is_not_trained_has_no_part(others):
    trained = parameters()
    trained["b"].requires_grad_(False)
    sync = opened(trained)
    backward(sync, trained, gradients(1), [["a", "c", "d"]])
    assert len(others.given[0]) == 2 + 1 + 4
    assert sync.is_of(trained.items())
    assert not sync.is_of(parameters().items())


def used_step(sync, trained, number, unused):
    """Go backward as DistributedDataParallel does: a parameter left out comes as zeros and keeps no gradient."""
    given_gradients = gradients(number)
    for name, parameter in trained.items():
        parameter.grad = None if name in unused else given_gradients[name].clone()
        if name in unused:
            given_gradients[name] = torch.zeros(SHAPES[name])
    back = backward(sync, trained, given_gradients, [list(SHAPES)])
    for name, parameter in trained.items():
        if name not in unused:
            parameter.grad = back[name].clone()
    sync.place()


def test_a_late_gradient_goes_where_its_own_step_used_the_parameter(others):
    trained = parameters()
    sync = opened(trained, delay=1, may_be_unused=True)
    used_step(sync, trained, 1, unused={"b"})
    used_step(sync, trained, 2, unused={"a"})
    assert trained["b"].grad is None
    for name in ("a", "c", "d"):
        assert torch.equal(trained[name].grad, gradients(1)[name] / RANKS), name
    assert set(sync.state_dict()) == set(SHAPES) - {"a"}
    used_step(sync, trained, 3, unused=set())
    assert trained["a"].grad is None
    assert torch.equal(trained["b"].grad, gradients(2)["b"] / RANKS)


def test_a_parameter_that_another_rank_uses_gets_its_share():
    with mock.patch.object(gradient_mean.dist, "all_reduce", Others(2.0)):  # all have 2, the mark of being used as well
        trained = parameters()
        sync = opened(trained, delay=1, may_be_unused=True)
        used_step(sync, trained, 1, unused={"b"})
        used_step(sync, trained, 2, unused=set())
        assert torch.equal(trained["b"].grad, torch.full(SHAPES["b"], 2.0 / RANKS))


@pytest.mark.parametrize("may_be_unused", [False, True])
def test_saved_gradients_are_applied_next(may_be_unused, others):
    trained, again = parameters(), parameters()
    first = opened(trained, delay=1, may_be_unused=may_be_unused)
    unused = {"c"} if may_be_unused else set()
    used_step(first, trained, 1, unused)
    state = first.state_dict()
    assert set(state) == set(SHAPES) - unused
    second = opened(again, delay=1, may_be_unused=may_be_unused)
    second.load_state_dict(state)
    assert second.has_gradients
    for sync, of in ((first, trained), (second, again)):
        used_step(sync, of, 2, set())
    for name in SHAPES:
        ours, theirs = again[name].grad, trained[name].grad
        assert (ours is None) == (theirs is None) == (name in unused)
        assert ours is None or torch.equal(ours, theirs)


def test_gradients_that_are_not_late_leave_nothing(others):
    trained = parameters()
    sync = opened(trained, may_be_unused=True)
    used_step(sync, trained, 1, unused={"a"})
    assert trained["a"].grad is None
    assert sync.state_dict() == {}
    sync.load_state_dict({"a": torch.ones(2)})
    assert not sync.has_gradients
    backward(sync, trained, gradients(1), [list(SHAPES)])
    assert len(others.given[0]) == sum(torch.Size(shape).numel() for shape in SHAPES.values())


def means_of_tables(rank, ranks):
    """Return what a mean of tables of some sizes sends, whether it is that of whole tables, and what was summed up."""
    exchange, outcomes = Exchange(ranks, rank), []
    for rows in (1_000, 50_000):
        begin, end = 2, 2 + 3 * rows
        values = torch.zeros(end + 4)
        values[:begin], values[end:] = rank + 0.1, rank + 0.2
        table = EmbeddingTable(begin, rows, 3)
        touched = torch.tensor([5, 40 + rank, 900])
        table.of(values)[touched] = torch.tensor([0.1, 0.7, 1e-9]) * (rank + 1) / 3
        whole = values.clone()
        dist.all_reduce(whole)
        before = exchange.traffic.snapshot()
        with mock.patch.object(gradient_mean.dist, "all_reduce", wraps=dist.all_reduce) as reduce:
            mean = GradientMean(values, exchange, None, [table]).wait()
        flows = exchange.traffic.since(before)
        sent = {name: flow.sent for name, flow in flows.items()}
        outcomes.append((sent, torch.equal(mean, whole), len(reduce.call_args.args[0])))
    return outcomes


@pytest.mark.timeout(150)
def test_what_travels_of_a_table_does_not_grow_with_it():
    for (few, few_equal, few_summed), (many, many_equal, many_summed) in run_ranks(means_of_tables, 2):
        assert few == many
        assert few["gradient_rows"] == 3 * (8 + 3 * 4)
        assert few_equal
        assert many_equal
        assert few_summed == many_summed == 6  # what is not of the table


def test_powersgd_is_refused_on_the_cpu_of_a_machine_with_a_gpu():
    message = (
        r"gradient_compression must be another one on the CPU .*, got 'powersgd'; take 'int8', .* or hide it: CUDA_"
    )
    with (
        mock.patch.object(torch.cuda, "is_available", return_value=True),
        pytest.raises(InvalidArgumentError, match=message),
    ):
        SumOfProducts(PowerSGD(), [torch.Size((4, 4))], Exchange(), None)
