"""Compiled loops and tensor operations against attention written out neighbour by neighbour."""

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_tgnn.models.memory import attention_cpu, attention_loops, attention_tensors
from lightning_tgnn.models.memory import folded_attention as of_attention
from lightning_tgnn.models.memory.folded_attention import AttentionWeights, Neighborhood, folded_attention
from lightning_tgnn.models.memory.time_encoding import TimeEncoder, phase


def make(roots, k, *, heads=2, state=5, edge=3, time=4, distinct=6, nodes=9, events=7, seed=0, longest=50.0):
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, k + 1, (roots, 1), generator=g)
    places = Neighborhood(
        root=torch.randint(0, distinct, (roots,), generator=g),
        index=torch.randint(0, nodes, (roots, k), generator=g),
        edge=torch.randint(0, events, (roots, k), generator=g) if edge else torch.empty(0, 0, dtype=torch.int64),
        elapsed=torch.rand(roots, k, generator=g) * longest,
        mask=torch.arange(k) < lengths,
        edge_features=torch.randn(events, edge, generator=g) if edge else torch.empty(0, 0),
    )
    inputs = (
        torch.randn(heads, distinct, state + edge + time, generator=g) * 0.3,
        torch.randn(nodes, state, generator=g),
        10 ** torch.linspace(1, -2, time),
        torch.randn(time, generator=g),
    )
    keep = (torch.rand(roots, heads, k, generator=g) > 0.3) / 0.7
    return inputs, places, keep


def written_out(query, states, weight, bias, places, keep):
    """Neighbour by neighbour, in float64."""
    results = []
    for s in range(len(places.root)):
        count = int(places.mask[s].sum())
        xs = []
        for k in range(count):
            parts = [states[places.index[s, k]], torch.cos(places.elapsed[s, k].double() * weight + bias)]
            if places.edge_features.shape[1]:
                parts.insert(1, places.edge_features[places.edge[s, k]].double())
            xs.append(torch.cat(parts))
        for h in range(len(query)):
            q = query[h, places.root[s]]
            weights = torch.softmax(torch.stack([q @ x for x in xs]), 0) if xs else []
            terms = [a * keep[s, h, k].double() * xs[k] for k, a in enumerate(weights)]
            results.append(sum(terms, torch.zeros_like(q)))
    nothing = 0 * (query.sum() + states.sum() + weight.sum() + bias.sum())  # so that each has a gradient
    return torch.stack(results).view(len(places.root), len(query), -1).transpose(0, 1) + nothing


def make_weights(heads=2, head_dim=3, state=5, edge=3, time=4, embedding=7, seed=0):
    g = torch.Generator().manual_seed(seed)
    width = state + edge + time
    shapes = {
        "query": (heads * head_dim, state),
        "query_bias": (heads * head_dim,),
        "query_time": (heads * head_dim, time),
        "key": (heads, head_dim, width),
        "value": (heads, width, head_dim),
        "from_neighbors": (embedding, heads * head_dim),
        "from_own": (embedding, state),
        "own_bias": (embedding,),
        "frequency": (time,),
        "phase": (time,),
    }
    return AttentionWeights(**{name: torch.randn(shape, generator=g) * 0.5 for name, shape in shapes.items()})


def not_folded(states, places, weights, keep):
    """Keys and values of every neighbour, in float64."""
    own = states[places.root]
    asked = own @ weights.query.T + weights.query_bias + weights.query_time @ weights.phase.cos()
    heads, head_dim, _ = weights.key.shape
    answers = []
    for s in range(len(own)):
        count = int(places.mask[s].sum())
        age = torch.cos(places.elapsed[s, :count, None].double() * weights.frequency + weights.phase)
        parts = [states[places.index[s, :count]], places.edge_features[places.edge[s, :count]].double(), age]
        neighbors, said = torch.cat(parts, dim=1), []
        for h in range(heads):
            scores = (neighbors @ weights.key[h].T) @ asked[s].view(heads, head_dim)[h] / head_dim**0.5
            said.append((scores.softmax(0) * keep[s, h, :count].double()) @ (neighbors @ weights.value[h]))
        answers.append(weights.from_neighbors @ torch.cat(said) + weights.from_own @ own[s] + weights.own_bias)
    return torch.stack(answers)


def gradients(inputs, result, grad):
    return torch.autograd.grad(result, inputs, grad)


@settings(deadline=None, max_examples=25)
@given(
    roots=st.integers(1, 12),
    k=st.integers(1, 5),
    heads=st.integers(1, 3),
    edge=st.sampled_from([0, 3]),
    seed=st.integers(0, 100),
)
def test_both_ways_equal_the_written_out_one(roots, k, heads, edge, seed):
    inputs, places, keep = make(roots, k, heads=heads, edge=edge, seed=seed)
    exact = [tensor.double().requires_grad_() for tensor in inputs]
    expected = written_out(*exact, places, keep)
    grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(seed))
    wanted = gradients(exact, expected, grad.double())
    for way in (attention_cpu, attention_tensors):
        mixed, attention = way.forward(*inputs, places, keep)
        # Angles reach 500: rounding one to float32 moves its cosine by up to 3e-5.
        torch.testing.assert_close(mixed.double(), expected.detach(), rtol=1e-4, atol=1e-4)
        got = way.backward(grad, *inputs, places, keep, attention)
        for ours, theirs in zip(got, wanted, strict=True):
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-3, atol=1e-3)


@settings(deadline=None, max_examples=15)
@given(roots=st.integers(1, 9), k=st.integers(1, 4), heads=st.integers(1, 3), seed=st.integers(0, 100))
def test_folding_changes_neither_the_result_nor_the_gradients(roots, k, heads, seed):
    (_, states, _, _), places, keep = make(roots, k, heads=heads, seed=seed, longest=5.0)
    weights = make_weights(heads, seed=seed)
    exact = [states.double().requires_grad_(), *(weight.double().requires_grad_() for weight in weights)]
    wanted = not_folded(exact[0], places, AttentionWeights(*exact[1:]), keep)
    leaves = [states.requires_grad_(), *(weight.requires_grad_() for weight in weights)]
    got = folded_attention(leaves[0], 6, [places], AttentionWeights(*leaves[1:]), [keep])
    torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-4)
    grad = torch.randn(got.shape, generator=torch.Generator().manual_seed(seed))
    names = ("states", *AttentionWeights._fields)
    # Of attention to a single neighbour queries and keys learn nothing.
    theirs = torch.autograd.grad(wanted, exact, grad.double(), allow_unused=True)
    for name, ours, other in zip(names, gradients(leaves, got, grad), theirs, strict=True):
        other = torch.zeros_like(ours).double() if other is None else other
        torch.testing.assert_close(ours.double(), other, rtol=1e-3, atol=1e-3, msg=lambda m, n=name: f"{n}: {m}")


def test_pieces_are_put_together():
    (_, states, _, _), places, _ = make(7, 3)
    weights = make_weights()
    whole = folded_attention(states, 6, [places], weights, [None])
    pieces = [
        Neighborhood(*(table[rows] for table in list(vars(places).values())[:-1]), places.edge_features)
        for rows in (slice(0, 4), slice(4, 7))
    ]
    torch.testing.assert_close(folded_attention(states, 6, pieces, weights, [None, None]), whole)


def test_bfloat16_adds_roots_that_nobody_sees():
    (_, states, _, _), places, keep = make(131, 3, distinct=130, nodes=140, longest=5.0)
    found = []
    for casts in (False, True):
        leaves = [states.clone().requires_grad_(), *(weight.clone().requires_grad_() for weight in make_weights())]
        with torch.autocast("cpu", torch.bfloat16, enabled=casts):
            result = folded_attention(leaves[0], 130, [places], AttentionWeights(*leaves[1:]), [keep])
        grad = torch.randn(result.shape, generator=torch.Generator().manual_seed(1))
        found.append([result.float(), *gradients(leaves, result, grad.to(result.dtype))])
    for one, other in zip(*found, strict=True):
        scale = float(one.detach().abs().max())
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.03 * scale)
    assert not torch.equal(found[0][0], found[1][0])


@settings(deadline=None, max_examples=50)
@given(root=st.lists(st.integers(0, 9), max_size=30), threads=st.integers(1, 4), seed=st.integers(0, 100))
def test_queries_are_cut_into_parts_of_about_as_many_neighbours(root, threads, seed):
    root = np.array(root, dtype=np.int64)
    lengths = np.random.default_rng(seed).integers(0, 200, len(root))
    order, starts = attention_loops.by_query(root, 10)
    assert order.tolist() == np.argsort(root, kind="stable").tolist()
    assert starts.tolist() == np.searchsorted(np.sort(root), np.arange(11)).tolist()
    bounds = attention_loops.cut(lengths, order, starts, threads).tolist()
    work = [int((lengths + 1)[root == q].sum()) for q in range(10)]
    assert bounds == sorted(bounds)
    assert (bounds[0], bounds[-1], len(bounds) - 1) == (0, 10, max(1, min(threads, sum(work) // 500)))
    parts = [sum(work[begin:end]) for begin, end in pairwise(bounds)]
    assert max(parts) <= sum(work) / len(parts) + max(work)


def test_the_core_stays_in_float32_where_products_do_not(monkeypatch):
    seen = []

    class Watched:
        add_rows = staticmethod(attention_tensors.add_rows)

        def forward(self, *arguments):
            seen.extend(attention_tensors.forward(*arguments))
            return seen[-2:]

        def backward(self, *arguments):
            gradients = attention_tensors.backward(*arguments)
            seen.extend(gradients)
            return gradients

    monkeypatch.setattr(of_attention, "_implementation", lambda states: Watched())
    (_, states, _, _), places, keep = make(7, 3, longest=5.0)
    with torch.autocast("cpu", torch.bfloat16):
        result = folded_attention(states.requires_grad_(), 6, [places], make_weights(), [keep])
        result.sum().backward()
    assert len(seen) == 6
    assert {tensor.dtype for tensor in seen} == {torch.float32}
    assert result.dtype == torch.bfloat16


def test_threads_do_not_change_the_result():
    inputs, places, keep = make(3000, 4, distinct=50, seed=3)
    results = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            mixed, attention = attention_cpu.forward(*inputs, places, keep)
            results.append((mixed, *attention_cpu.backward(mixed, *inputs, places, keep, attention)))
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(results[0], results[1], rtol=1e-3, atol=1e-3)
    assert torch.equal(results[0][0], results[1][0])


def test_torch_keeps_its_number_of_threads():
    script = """
import torch
torch.set_num_threads(1)
from lightning_tgnn.models.memory.loop_threads import use_torch_threads
assert use_torch_threads() == 1
print(torch.get_num_threads())
"""
    # In a process of its own: the compiler starts its threads once.
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True).stdout == "1\n"


def test_two_runs_are_equal_bit_for_bit():
    (_, states, _, _), places, keep = make(2000, 4, distinct=50, nodes=50, seed=3)
    runs = []
    for _ in range(2):
        leaves = [states.clone().requires_grad_(), *(weight.clone().requires_grad_() for weight in make_weights())]
        result = folded_attention(leaves[0], 50, [places], AttentionWeights(*leaves[1:]), [keep])
        runs.append((result, *gradients(leaves, result, torch.ones_like(result))))
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


@pytest.mark.parametrize("way", [attention_cpu, attention_tensors])
def test_without_neighbours_there_is_nothing(way):
    inputs, places, _ = make(4, 3)
    empty = Neighborhood(
        places.root, places.index, places.edge, places.elapsed, places.mask & False, places.edge_features
    )
    mixed, attention = way.forward(*inputs, empty, None)
    assert not mixed.any()
    assert not any(g.any() for g in way.backward(torch.ones_like(mixed), *inputs, empty, None, attention))


def test_large_angles_are_encoded_as_well_as_float32_can():
    elapsed = torch.tensor([0.0, 1e-3, 3.0, 700.0, 1e5])
    weight, bias = torch.tensor([1000.0, 1.0, 1e-3]), torch.tensor([0.1, 0.0, -0.5])
    angle = torch.addcmul(bias, elapsed.unsqueeze(-1), weight)  # its own rounding cannot be undone
    torch.testing.assert_close(phase(elapsed, weight, bias).cos(), angle.double().cos().float(), rtol=0, atol=2e-4)
    small = angle.abs() < 1e4
    torch.testing.assert_close(
        phase(elapsed, weight, bias).cos()[small], angle.double().cos().float()[small], rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("longest", [1e8, 1e12, 1e30])
def test_compiled_loops_stay_finite_where_float32_has_lost_the_angle(longest):
    inputs, places, _ = make(20, 4, longest=longest)
    mixed, attention = attention_cpu.forward(*inputs, places, None)
    assert mixed[..., -4:].abs().max() <= 1
    assert all(part.isfinite().all() for part in attention_cpu.backward(mixed, *inputs, places, None, attention))
    encoder = TimeEncoder(4, unit=1.0)
    encoding = encoder(torch.linspace(0, longest, 100))
    assert encoding.abs().max() <= 1
    encoding.sum().backward()
    assert encoder.bias.grad.isfinite().all()


def test_nothing_is_encoded_to_nothing():
    encoder = TimeEncoder(4, unit=1.0)
    encoding = encoder(torch.zeros(0, 1))
    assert encoding.shape == (0, 1, 4)
    encoding.sum().backward()
    assert not encoder.weight.grad.any()


def test_roots_keep_their_infinities_to_themselves():
    inputs, places, _ = make(2, 3, distinct=2, nodes=6)
    inputs[1][:3] = torch.inf
    index = torch.tensor([[0, 1, 2], [3, 3, 3]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    places = Neighborhood(places.root, index, places.edge, places.elapsed, mask, places.edge_features)
    mixed, _ = attention_cpu.forward(*inputs, places, None)
    assert mixed[:, 1].isfinite().all()


def test_the_encoding_has_the_gradient_of_autograd():
    encoder = TimeEncoder(6, unit=2.0)
    elapsed = torch.rand(7, 3) * 20
    grad = torch.randn(7, 3, 6)
    ours = torch.autograd.grad(encoder(elapsed), [encoder.weight, encoder.bias], grad)
    plain = torch.cos(elapsed.unsqueeze(-1) * encoder.weight + encoder.bias)
    theirs = torch.autograd.grad(plain, [encoder.weight, encoder.bias], grad)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_elapsed_time_is_taken_in_float64():
    encoder = TimeEncoder(4, unit=1.0)
    later = torch.tensor([1.7e9 + 0.25], dtype=torch.float64)
    assert encoder.elapsed(later, later - 0.25).tolist() == [0.25]


def test_longer_times_than_the_longest_count_as_that():
    encoder = TimeEncoder(4, unit=2.0, longest=30.0)
    later = torch.tensor([10.0, 30.0, 31.0, 1e9], dtype=torch.float64)
    assert encoder.elapsed(later, torch.zeros(4)).tolist() == [5.0, 15.0, 15.0, 15.0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_equals_the_cpu():
    (_, states, _, _), places, keep = make(300, 6, distinct=40, nodes=60)
    cpu, cuda = [], []
    for device, out in (("cpu", cpu), ("cuda", cuda)):
        leaves = [tensor.to(device).requires_grad_() for tensor in (states, *make_weights())]
        moved = Neighborhood(**{name: value.to(device) for name, value in vars(places).items()})
        result = folded_attention(leaves[0], 40, [moved], AttentionWeights(*leaves[1:]), [keep.to(device)])
        out += [result, *gradients(leaves, result, torch.ones_like(result))]
    for one, other in zip(cpu, cuda, strict=True):
        torch.testing.assert_close(one, other.cpu(), rtol=1e-3, atol=1e-3)
