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
    found = bank.remembers(source, destination, before, time=bank.event_time[before], window=window)
    assert found.tolist() == [reference(src, dst, time, query, window) for query in queries.tolist()]


def test_bad_arguments_are_refused():
    nodes = torch.tensor([0, 1])
    bank = EdgeBank.build(nodes, nodes, nodes.double(), 2)
    with pytest.raises(InvalidArgumentError, match="window must be a finite number above 0, got -1"):
        bank.remembers(nodes, nodes, nodes, time=nodes.double(), window=-1)
    with pytest.raises(InvalidArgumentError, match=r"nodes and events must be below 3,037,000,500, got 4000000000"):
        EdgeBank.build(nodes, nodes, nodes.double(), 4_000_000_000)
