"""Batches at fixed sizes: what they hold, how many sizes there are, and that they move in one copy."""

from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_tgnn import TemporalDataModule
from lightning_tgnn.data.batches.padding import MOST_SIZES, Paddings, Sizes, padded
from lightning_tgnn.types import EventBatch
from lightning_tgnn.types.padded_batch import SCALARS
from tests.data.example_streams import random_store

READS = {"batch_size": 16, "num_workers": 0, "num_neighbors": 3, "num_eval_negatives": 4}


class Padding(TemporalDataModule):
    """Pads on the CPU."""

    _feeds_captured_stages = True


def batches(sampled="all", split="train", data=Padding, **options):
    made = data(random_store(300, num_nodes=25, edge_dim=2), **READS | options)
    made.sampled_roots = sampled
    return list(getattr(made, f"{split}_dataloader")())


def tensors(batch):
    return {
        field.name: value for field in fields(batch) if isinstance(value := getattr(batch, field.name), torch.Tensor)
    }


@pytest.mark.parametrize("sampled", ["all", "events", "none"])
@pytest.mark.parametrize("split", ["train", "val", "test", "predict"])
@pytest.mark.parametrize("embed_at", ["event", "batch"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_padded_batch_begins_with_the_batch(sampled, split, embed_at, workers):
    options = {"past": "batch", "embed_at": embed_at, "num_workers": workers}
    plain = batches(sampled, split, TemporalDataModule, **options)
    ours = batches(sampled, split, **options)
    assert len(plain) == len(ours)
    for one, other in zip(plain, ours, strict=True):
        for name, value in tensors(one).items():
            assert torch.equal(value, getattr(other, name)), name
        assert (other.padded is None) == (len(other) < READS["batch_size"])
        if other.padded is None:
            continue
        assert other.padded.holds(other)
        whole = EventBatch.of_padded(other.padded)
        for name, value in tensors(one).items():
            rows = getattr(whole, name)
            if name == "missing" and not value.numel():
                assert not rows.any()
            else:
                assert torch.equal(rows[: len(value)], value), name
                assert not rows[len(value) :].any(), name
        began, written, sent = other.padded.scalars()
        assert (began, written, sent) == (one.shared.began, one.num_written, len(one.mail_nodes))
        assert one.num_roots <= whole.num_roots <= len(whole.nodes)
        assert torch.equal(whole.root_times[: len(one.root_index)], one.root_times)


@given(st.lists(st.tuples(*[st.integers(1, 200)] * 6), min_size=1, max_size=40))
@settings(max_examples=200)
def test_there_are_few_sizes_and_each_has_room(needs):
    notices = []
    paddings = Paddings(notices.append)
    for needed in (Sizes(*need) for need in needs):
        room = paddings._room(needed)
        if room is None:
            assert len(paddings._sizes) == MOST_SIZES
            assert not any(needed.fits(size) for size in paddings._sizes)
        else:
            assert needed.fits(room)
    assert len(paddings._sizes) <= MOST_SIZES
    assert all(smaller.fits(larger) for smaller, larger in zip(paddings._sizes, paddings._sizes[1:], strict=False))
    assert len(notices) <= MOST_SIZES  # the first size is none, batches beyond the last are one


def test_batches_of_an_epoch_share_a_form():
    forms = {batch.padded.form for batch in batches(batch_size=10) if batch.padded}
    assert len(forms) == 1


def test_it_can_be_turned_off():
    assert all(batch.padded is None for batch in batches(pad="off"))


def test_it_moves_as_one_piece(monkeypatch):
    batch = batches()[3]
    pieces = []

    def to(tensor, *arguments, **options):
        pieces.append(tensor)
        return tensor.clone()

    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "to", to)
        moved = batch.to("cpu")
    assert [piece is batch.padded.data for piece in pieces].count(True) == 1
    assert (
        sum(piece.numel() for piece in pieces if piece is not batch.padded.data) == 1
    )  # its time, which is there already
    assert moved.padded.holds(moved)
    for name, value in tensors(batch).items():
        assert torch.equal(value, getattr(moved, name)), name
        assert not value.numel() or value.data_ptr() != getattr(moved, name).data_ptr(), name


def test_a_batch_that_was_changed_is_not_the_padded_one():
    batch = batches()[3]
    assert not batch.padded.holds(replace(batch, time=batch.time + 1))


def test_a_whole_size_may_be_exact():
    batch = batches(data=TemporalDataModule)[3]
    exact = padded(batch, Sizes.of(batch))
    assert {name: tuple(value.shape) for name, value in tensors(EventBatch.of_padded(exact)).items()} == {
        name: tuple(value.shape) if name != "missing" else (len(batch), 1) for name, value in tensors(batch).items()
    }
    assert exact.tensors().keys() == {*tensors(batch), *SCALARS}
