"""The GRU that is written by hand, against the one that is written out gate by gate, in float64 and by autograd."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_tgnn.models.memory import gru as of_gru
from lightning_tgnn.models.memory.gru import GRUWeights, gru
from lightning_tgnn.models.memory.operands import ROW_MULTIPLE


def make(rows, width, features, times, *, shared, seed=0):
    g = torch.Generator().manual_seed(seed)
    memory = torch.randn(rows, width, generator=g)
    mails = torch.cat([memory, torch.randn(rows, width + features, generator=g)], dim=1)
    weights = GRUWeights(
        mail=torch.randn(3 * width, 2 * width + features, generator=g) * 0.4,
        mail_bias=torch.randn(3 * width, generator=g),
        time=torch.randn(3 * width, times, generator=g) * 0.4,
        memory=torch.randn(3 * width, width, generator=g) * 0.4,
        memory_bias=torch.randn(3 * width, generator=g),
        frequency=10 ** torch.linspace(1, -1, times),
        phase=torch.randn(times, generator=g),
    )
    elapsed, arrived = torch.rand(rows, generator=g) * 9, torch.rand(rows, generator=g) < 0.7
    if shared:
        mails[:, :width] = torch.nan  # nobody looks there
    return mails, elapsed, memory, arrived, weights


def written_out(mails, elapsed, memory, arrived, weights):
    """Row by row, gate by gate."""
    results = []
    for mail, time, own, has_mail in zip(mails, elapsed, memory, arrived.tolist(), strict=True):
        given = weights.mail @ mail + weights.mail_bias
        given = given + weights.time @ torch.cos(time * weights.frequency + weights.phase)
        reset, update, proposal = given.chunk(3)
        of_reset, of_update, proposal_grad = (weights.memory @ own + weights.memory_bias).chunk(3)
        reset, update = torch.sigmoid(reset + of_reset), torch.sigmoid(update + of_update)
        proposal = torch.tanh(proposal + reset * proposal_grad)
        results.append((1 - update) * proposal + update * own if has_mail else own)
    return torch.stack(results)


@settings(deadline=None, max_examples=25)
@given(
    rows=st.integers(1, 9),
    width=st.integers(1, 4),
    features=st.integers(0, 3),
    shared=st.booleans(),
    seed=st.integers(0, 100),
)
def test_memory_and_gradients_are_those_of_the_written_out_one(rows, width, features, shared, seed):
    mails, elapsed, memory, arrived, weights = make(rows, width, features, 5, shared=shared, seed=seed)
    exact = GRUWeights(*(weight.double().requires_grad_() for weight in weights))
    whole = torch.cat([memory, mails[:, width:]], dim=1).double().requires_grad_()
    wanted = written_out(whole, elapsed.double(), memory.double(), arrived, exact)
    leaves, mails = GRUWeights(*(weight.requires_grad_() for weight in weights)), mails.requires_grad_()
    got = gru(mails, elapsed, memory, arrived, leaves, shared=width if shared else 0)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-5)
    if not arrived.any():
        return
    grad = torch.randn(got.shape, generator=torch.Generator().manual_seed(seed))
    ours = torch.autograd.grad(got, [*leaves, mails], grad)
    theirs = torch.autograd.grad(wanted, [*exact, whole], grad.double())
    for name, one, other in zip(GRUWeights._fields, ours, theirs, strict=False):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
    first = width if shared else 0
    torch.testing.assert_close(ours[-1][:, first:].double(), theirs[-1][:, first:], rtol=1e-3, atol=1e-4)
    assert not ours[-1][:, :first].any()


@pytest.mark.parametrize("to_spare", [0, 3])
def test_tensor_operations_do_what_the_loops_do(to_spare):
    g = torch.Generator().manual_seed(0)
    rows, width = 11, 6
    incoming, recurrent = (torch.randn(rows + to_spare, parts * width, generator=g) for parts in (3, 4))
    bias, memory = torch.randn(4 * width, generator=g), torch.randn(rows, width, generator=g)
    arrived, grad = torch.arange(rows) % 3 > 0, torch.randn(rows, width, generator=g)
    found = []
    for way in ("loops", "tensors"):
        forward, backward = getattr(of_gru, f"gates_by_{way}"), getattr(of_gru, f"gates_by_{way}_backward")
        result, gates = forward(incoming, recurrent, bias, memory, arrived)
        used = [gate[arrived] for gate in gates]
        found.append([result, *used, backward(grad, recurrent, bias, memory, arrived, gates)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert torch.equal(found[0][0][~arrived], memory[~arrived])


def test_bfloat16_adds_rows_that_nobody_sees():
    mails, elapsed, memory, arrived, weights = make(ROW_MULTIPLE + 3, 8, 4, 5, shared=False)
    grad = torch.randn(memory.shape, generator=torch.Generator().manual_seed(1))
    found = []
    for casts in (False, True):
        leaves = GRUWeights(*(weight.clone().requires_grad_() for weight in weights))
        with torch.autocast("cpu", torch.bfloat16, enabled=casts):
            result = gru(mails, elapsed, memory, arrived, leaves)
        assert result.dtype == torch.float32
        found.append([result, *torch.autograd.grad(result, leaves, grad)])
    for one, other in zip(*found, strict=True):
        scale = float(one.detach().abs().max())
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.02 * scale)
    assert not torch.equal(found[0][0], found[1][0])
