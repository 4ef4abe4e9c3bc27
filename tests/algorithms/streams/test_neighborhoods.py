import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_tgnn.algorithms.streams.neighborhoods import place_events, place_nodes

NODES = [0, 1, 2, 3, 17, 10**9, 2**40, 2**62]
# Differences that the hash multiplies to the same upper bits, so that values meet in the table.
NEAR = [2**33 * step for step in range(6)]


@st.composite
def neighborhoods(draw):
    """A stream, roots and, for each, events that it has part in; -1 in empty places, wherever they are."""
    nodes = st.sampled_from(draw(st.sampled_from([NODES, NEAR])))
    ends = draw(st.lists(st.tuples(nodes, nodes), min_size=1, max_size=25))
    times = sorted(draw(st.lists(st.floats(-1e6, 1e9), min_size=len(ends), max_size=len(ends))))
    roots = draw(st.lists(nodes, max_size=20))
    width = draw(st.integers(1, 4))
    reads = draw(st.booleans())
    found = [
        [draw(st.sampled_from([-1, *(e for e, pair in enumerate(ends) if root in pair)])) for _ in range(width)]
        for root in (roots if reads else [])
    ]
    src, dst = torch.tensor(ends).T.contiguous()
    return (
        src,
        dst,
        torch.tensor(times).double(),
        torch.tensor(roots).long(),
        torch.tensor(found).long().view(-1, width),
    )


def numbered(values):
    """Return distinct values in the order in which they are first seen."""
    distinct = []
    for value in values:
        if value not in distinct:
            distinct.append(value)
    return distinct


@given(neighborhoods())
def test_nodes_stand_where_they_are_first_seen(neighborhood):
    src, dst, time, roots, found = neighborhood
    before = [column.clone() for column in neighborhood]
    placed = place_nodes(roots, found, src, dst, time)
    neighbors = [
        [int(src[e] if dst[e] == root else dst[e]) if e >= 0 else int(root) for e in row.tolist()]
        for root, row in zip(roots, found, strict=False)
    ]
    nodes = numbered([*roots.tolist(), *(node for row in neighbors for node in row)])
    assert placed.nodes.tolist() == nodes
    assert placed.num_roots == len(numbered(roots.tolist()))
    assert placed.root_index.tolist() == [nodes.index(root) for root in roots.tolist()]
    assert placed.neighbor_index.tolist() == [[nodes.index(node) for node in row] for row in neighbors]
    assert placed.neighbor_mask.tolist() == [[e >= 0 for e in row] for row in found.tolist()]
    elapsed = [[float(time[e] - time[0]) if e >= 0 else 0.0 for e in row] for row in found.tolist()]
    assert placed.neighbor_time.tolist() == elapsed
    assert all(torch.equal(now, then) for now, then in zip(neighborhood, before, strict=True))


@given(st.lists(st.integers(0, 40), unique=True, max_size=12), st.integers(1, 4), st.data())
def test_events_of_neighbours_stand_behind_those_of_the_batch(events, width, data):
    row = st.lists(st.integers(-1, 40), min_size=width, max_size=width)
    found = data.draw(st.lists(row, max_size=10 if events else 0))
    distinct, index = place_events(torch.tensor(events).long(), torch.tensor(found).long().view(-1, width))
    expected = numbered([*events, *(e for row in found for e in row if e >= 0)])
    assert distinct.tolist() == expected
    assert index.tolist() == [[expected.index(e) if e >= 0 else 0 for e in row] for row in found]
