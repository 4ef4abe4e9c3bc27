"""EdgeBank against a list of the edges seen so far."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_tgnn.algorithms.streams.edge_bank import EdgeBank
from lightning_tgnn.checks import InvalidArgumentError


def reference(src, dst, time, query, window):
    """Return whether an event before ``query``'s third entry had its pair, looked up one by one."""
    u, v, before = query
    seen = [i for i in range(before) if (src[i], dst[i]) == (u, v)]
    return float(any(window is None or time[before] - time[i] <= window for i in seen))


@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 6), st.sampled_from([None, 0.5, 2.0, 5.0]))
def test_it_remembers_what_a_list_remembers(seed, num_events, num_nodes, window):
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, num_nodes, (2, num_events))
    time = np.sort(rng.integers(0, 12, num_events)).astype(float)
    queries = np.stack([*rng.integers(0, num_nodes, (2, 80)), rng.integers(0, num_events, 80)], axis=1)
    bank = EdgeBank.build(*map(torch.from_numpy, (src, dst, time)), num_nodes)
    source, destination, before = torch.from_numpy(queries).unbind(1)
    since = None if window is None else torch.from_numpy(time)[before] - window
    found = bank.remembers(source, destination, before, since=since)
    assert found.tolist() == [reference(src, dst, time, query, window) for query in queries.tolist()]


@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 4))
def test_counts_gaps_and_quantiles_are_those_of_a_list(seed, num_events, num_nodes):
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, num_nodes, (2, num_events))
    time = np.sort(rng.integers(0, 12, num_events)).astype(float)
    events = np.flatnonzero(rng.random(num_events) < 0.7)
    bank = EdgeBank.build(*map(torch.from_numpy, (src, dst, time)), num_nodes, torch.from_numpy(events))
    for before in range(num_events + 1):
        past, place = [event for event in events if event < before], torch.tensor([before])
        times = {}
        for event in past:
            times.setdefault((src[event], dst[event]), []).append(time[event])
        gaps = [np.mean(np.diff(own)) if len(own) > 1 else 0.0 for own in times.values()]
        assert float(bank.mean_count(place)) == pytest.approx(np.mean([len(own) for own in times.values()] or [0]))
        assert float(bank.mean_gap(place)) == pytest.approx(np.mean(gaps or [0]))
        quantile = np.quantile(time[past], 0.85) if past else -np.inf
        assert float(bank.time_of_share(place, 0.85)) == pytest.approx(quantile)
        for pair in {*times, (0, 0)}:
            asked = (torch.tensor([node]) for node in pair)
            least = torch.tensor([1.5])
            assert float(bank.remembers(*asked, place, at_least=least)) == (len(times.get(pair, [])) >= 1.5)


def test_bad_arguments_are_refused():
    nodes = torch.tensor([0, 1])
    with pytest.raises(InvalidArgumentError, match=r"nodes and events must be below 3,037,000,500, got 4000000000"):
        EdgeBank.build(nodes, nodes, nodes.double(), 4_000_000_000)
