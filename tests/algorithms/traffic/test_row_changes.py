"""Changed rows, quantised differences and sums into tables, against numpy and against their form in tensors."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_tgnn.algorithms.traffic import row_changes
from lightning_tgnn.algorithms.traffic.quantize import QUANTIZE_BITS, dequantize, quantize

NUMBERS = st.lists(st.lists(st.floats(-4, 4, width=32), min_size=3, max_size=3), min_size=1, max_size=6)


def tables(lists, seed):
    """Values, some of their places in another order, and a table of other values with an entry for each place."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.tensor(lists)
    places = torch.randperm(len(values), generator=generator)[: max(len(values) - 1, 1)]
    table = torch.zeros(len(places) + 2, 3)
    entries = torch.randperm(len(table), generator=generator)[: len(places)]
    table[entries] = values[places] * torch.rand(len(places), 3, generator=generator)
    return values, places, table, entries


@settings(deadline=None)  # loops are compiled in the first one
@given(NUMBERS, st.integers(0, 9), st.floats(0, 0.9), st.sampled_from([(), (1, 2)]))
def test_rows_go_where_a_block_differs_by_more_than_the_threshold(lists, seed, threshold, blocks):
    values, places, table, entries = tables(lists, seed)
    sent, wanted, held = table[entries], [], 0.0
    for number, (row, old) in enumerate(zip(values[places], sent, strict=True)):
        for new, known in zip(row.split(blocks or 3), old.split(blocks or 3), strict=True):
            if bool((new - known).abs().max() > np.float32(threshold) * known.abs().max()):
                wanted.append(number)
        held += 0.0 if number in wanted else float((row - old).double().square().sum())
    for form in (row_changes.changed_rows, row_changes.changed_rows_by_tensors):
        changed = form(values, places, sent, threshold, blocks)
        assert changed.rows.tolist() == sorted(set(wanted))
        assert changed.held == pytest.approx(held, rel=1e-5, abs=1e-9)
        assert changed.size == pytest.approx(float(sent.double().square().sum()), rel=1e-5)


def test_what_has_not_changed_stays_with_a_threshold_of_zero():
    values, places = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.arange(2)
    assert not len(row_changes.changed_rows(values, places, values.clone(), 0.0).rows)
    assert row_changes.changed_rows(values, places, torch.zeros(2, 2), 0.0).rows.tolist() == [0]


def test_a_row_that_becomes_nan_goes():
    values, places = torch.tensor([[torch.nan, 1.0], [1.0, torch.nan], [1.0, 1.0]]), torch.arange(3)
    assert row_changes.changed_rows(values, places, torch.ones(3, 2), 0.5).rows.tolist() == [0, 1]
    assert row_changes.changed_rows_by_tensors(values, places, torch.ones(3, 2), 0.5).rows.tolist() == [0, 1]


@settings(deadline=None)
@given(NUMBERS, st.integers(0, 9), st.sampled_from(QUANTIZE_BITS), st.sampled_from([(), (1, 2)]))
def test_sender_and_receiver_go_on_from_the_same_table(lists, seed, bits, blocks):
    values, places, table, entries = tables(lists, seed)
    differences = values[places] - table[entries]
    decoded = dequantize(quantize(differences, bits, blocks), 3, bits, blocks)
    before, received, by_tensors = table.clone(), table.clone(), table.clone()
    data, error = row_changes.quantize_changes(values, places, table, entries, bits, blocks)
    assert torch.equal(data, quantize(differences, bits, blocks))
    assert error == float((differences - decoded).abs().max())
    torch.testing.assert_close(table, before.index_add(0, entries, decoded), rtol=1e-6, atol=1e-7)
    row_changes.add_quantized(received, entries, data, bits, blocks)
    assert torch.equal(received, table)

    _, other = row_changes.quantize_changes_by_tensors(values, places, by_tensors, entries, bits, blocks)
    torch.testing.assert_close(by_tensors, table, rtol=1e-6, atol=1e-6)
    assert other == pytest.approx(error, rel=1e-4, abs=1e-6)
    rows, _ = row_changes.quantize_rows(values, places, bits, blocks)
    assert torch.equal(rows, quantize(values[places], bits, blocks))


def test_rows_are_added_where_entries_repeat_and_left_out_where_they_are_negative():
    table, rows = torch.ones(3, 2), torch.arange(8.0).view(4, 2)
    row_changes.add_rows(table, torch.tensor([2, -1, 2, 0]), rows)
    assert table.tolist() == [[7.0, 8.0], [1.0, 1.0], [5.0, 7.0]]


@pytest.mark.parametrize("bits", QUANTIZE_BITS)
def test_rows_without_columns_and_no_rows_at_all_pass(bits):
    for values in (torch.zeros(2, 0), torch.zeros(0, 3)):
        places, table = torch.arange(len(values)), torch.zeros_like(values)
        data, error = row_changes.quantize_changes(values, places, table, places, bits)
        assert (len(data), error) == (len(values), 0.0)
        row_changes.add_quantized(table, places, data, bits)
        assert not len(row_changes.changed_rows(values, places, table, 0.0).rows)


@settings(deadline=None)
@given(st.integers(0, 6), st.integers(0, 4), st.sampled_from([0.0, 0.1, 0.5]), st.integers(0, 50), st.booleans())
def test_a_block_goes_whole_or_not_at_all(count, width, threshold, seed, broken):
    generator = torch.Generator().manual_seed(seed)
    sent = torch.randn(count, width, generator=generator)
    places = torch.randperm(count, generator=generator)
    values = torch.empty_like(sent)
    values[places] = sent + 0.3 * torch.randn(count, width, generator=generator) * (seed % 3)
    if broken and values.numel():
        values[0, 0] = torch.nan
    now = values[places].flatten().tolist()
    change = max((abs(new - old) for new, old in zip(now, sent.flatten().tolist(), strict=True)), default=0.0)
    greatest = max((abs(old) for old in sent.flatten().tolist()), default=0.0)
    goes = any(new != new for new in now) or change > threshold * greatest
    changed = row_changes.changed_block(values, places, sent, threshold)
    assert changed.rows.tolist() == (list(range(count)) if goes else [])
    assert goes or changed.held == pytest.approx(float((values[places] - sent).square().sum()))
