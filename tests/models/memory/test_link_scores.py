"""The scores of links and their gradients, by loops and by tensor operations, against pairs one by one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_tgnn.models.memory.heads import by_tensors, link_scores


def make(events, negatives, width, seed=0):
    g = torch.Generator().manual_seed(seed)
    shapes = (events, width), (events * (1 + negatives), width), (1, width), (1,)
    return [torch.randn(shape, generator=g).requires_grad_() for shape in shapes]


def last_layer(weight, bias):
    """Return an `nn.Linear` of tensors that are made elsewhere."""
    layer = torch.nn.Linear(weight.shape[1], 1)
    del layer.weight, layer.bias
    layer.weight, layer.bias = weight, bias
    return layer


def pair_by_pair(source, others, weight, bias, negatives, beside):
    """Return the logits [B, 1 + Q]."""
    events, rows = len(source), []
    for event in range(events):
        places = [event, *range(events + event * negatives, events + (event + 1) * negatives)]
        if beside:
            places = range(event * (1 + negatives), (event + 1) * (1 + negatives))
        rows.append(torch.stack([weight[0] @ (source[event] + others[place]).relu() + bias[0] for place in places]))
    return torch.stack(rows) if rows else source.new_empty(0, 1 + negatives)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 5), st.integers(0, 3), st.integers(1, 9), st.booleans(), st.integers(0, 99), st.sampled_from([1, 3])
)
def test_both_ways_are_what_single_pairs_say(events, negatives, width, beside, seed, threads):
    given = make(events, negatives, width, seed)
    exact = [tensor.detach().double().requires_grad_() for tensor in given]
    expected = pair_by_pair(*exact, negatives, beside)
    pull = torch.randn(events, 1 + negatives, generator=torch.Generator().manual_seed(seed)).double()
    gradients = torch.autograd.grad((expected * pull).sum() + sum(tensor.sum() * 0 for tensor in exact), exact)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for way in (lambda *a: link_scores(*a[:-1], beside=a[-1]), by_tensors):
            source, others, *of_last = given
            true, negative_scores = way(source, others, last_layer(*of_last), negatives, beside)
            assert (true.shape, negative_scores.shape) == ((events,), (events, negatives))
            assert true.dtype == negative_scores.dtype == torch.float32
            found = torch.cat([true.unsqueeze(1), negative_scores], dim=1)
            torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
            for one, other in zip(torch.autograd.grad((found * pull.float()).sum(), given), gradients, strict=True):
                torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)
    finally:
        torch.set_num_threads(before)


def test_what_is_not_float32_is_left_to_tensor_operations():
    given = [tensor.detach().double() for tensor in make(4, 2, 5)]
    exact = pair_by_pair(*given, 2, False)
    true, negatives = link_scores(*given[:2], last_layer(*given[2:]), 2, beside=False)
    torch.testing.assert_close(torch.cat([true.unsqueeze(1), negatives], dim=1), exact.float())
    with torch.autocast("cpu", torch.bfloat16):
        source, others, *of_last = (tensor.detach() for tensor in make(4, 2, 5))
        true, negatives = link_scores(source, others, last_layer(*of_last), 2, beside=False)
    assert true.dtype == negatives.dtype == torch.float32
    assert not torch.equal(torch.cat([true.unsqueeze(1), negatives], dim=1), exact.float())


@pytest.mark.parametrize("place", ["source", "others"])
def test_what_is_not_a_number_stays_so(place):
    given = dict(zip(("source", "others", "weight", "bias"), make(3, 1, 4), strict=True))
    with torch.no_grad():
        given[place][1, 2] = torch.nan
    last = last_layer(given["weight"], given["bias"])
    true, negatives = link_scores(given["source"], given["others"], last, 1, beside=False)
    assert true.isnan().tolist() == [False, True, False]
    assert negatives.isnan().flatten().tolist() == [False, place == "source", False]
    (true.sum() + negatives.sum()).backward()
    assert given["weight"].grad.isnan().any()
