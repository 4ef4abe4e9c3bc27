"""Bytes of node state, against sets of what each rank has."""

import pytest
import torch
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from lightning_tgnn.algorithms.traffic.state_traffic import state_traffic
from lightning_tgnn.types import SharedWrites, StateSpec

NODES = 7


@st.composite
def streams(draw):
    """Return what ranks read and write in some steps, and an owner for each node."""
    ranks = draw(st.integers(2, 4))
    rank, node = st.integers(0, ranks - 1), st.integers(0, NODES - 1)
    some = st.lists(node, unique=True)
    steps = []
    for _ in range(draw(st.integers(1, 5))):
        read = [draw(some) for _ in range(ranks)]
        written = {one: draw(rank) for one in draw(some)}
        mailed = {one: (draw(rank), draw(node), draw(node)) for one in draw(some)}
        steps.append((read, written, mailed))
    return ranks, steps, draw(st.lists(rank, min_size=NODES, max_size=NODES))


def shared(written, mailed):
    columns = torch.tensor([values for values in mailed.values()]).view(-1, 3).long()
    return SharedWrites(
        nodes=torch.tensor(list(written), dtype=torch.int64),
        node_rank=torch.tensor(list(written.values()), dtype=torch.int64),
        mail_nodes=torch.tensor(list(mailed), dtype=torch.int64),
        mail_rank=columns[:, 0],
        mail_ends=columns[:, 1:],
        mail_event=torch.arange(len(mailed)),
        mail_time=torch.zeros(len(mailed), dtype=torch.float64),
    )


@pytest.mark.parametrize("raw", [True, False])
@seed(12)
@settings(max_examples=60, deadline=None)
@given(stream=streams())
def test_bytes_are_those_of_sets(raw, stream):
    ranks, steps, owner = stream
    spec = StateSpec(NODES, 3, 11, 1, raw, event_features=raw)
    mail = 16 + 4 * (3 if raw else 11)
    row, memory, sent_mail = 16 + 12 + mail, 8 + 12, 0 if raw else 8 + mail
    has = [set() for _ in range(ranks)]
    cut, whole = [0] * ranks, [0] * ranks
    for number, (read, written, mailed) in enumerate(steps):
        counts = number >= len(steps) // 2
        for rank, nodes in enumerate(read):
            for node in nodes:
                if owner[node] != rank and node not in has[rank]:
                    has[rank].add(node)
                    for end in (rank, owner[node]):
                        cut[end] += counts * (row + 8)
        needed = {(rank, node, node) for node, rank in written.items()}
        needed |= {(rank, end, node) for node, (rank, *ends) in mailed.items() for end in ends}
        for rank, to, _ in {(rank, owner[to], row_of) for rank, row_of, to in needed}:
            for end in {rank, to} if rank != to else ():
                cut[end] += counts * memory
        for rank, _ in {(rank, row_of) for rank, row_of, _ in needed}:
            for other in set(range(ranks)) - {rank}:
                whole[rank] += counts * memory
                whole[other] += counts * memory
        for node, (rank, *_) in mailed.items():
            for end in {rank, owner[node]} if rank != owner[node] else ():
                cut[end] += counts * sent_mail
            for other in set(range(ranks)) - {rank}:
                whole[rank] += counts * sent_mail
                whole[other] += counts * sent_mail
            for rows in has:
                rows.discard(node)
    counted = len(steps) - len(steps) // 2
    given_steps = [([torch.tensor(one, dtype=torch.int64) for one in read], shared(w, m)) for read, w, m in steps]
    found = state_traffic(given_steps, torch.tensor(owner), ranks, spec)
    assert found.sharded == pytest.approx(max(cut) / 2 / counted)
    assert found.replicated == pytest.approx(max(whole) / 2 / counted)
