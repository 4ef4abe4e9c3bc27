"""Edges turned round and sorted by counting are those that lists of pairs give."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lightning_tgnn.algorithms.partitions import vertex_cut_loops

NODES = 6
TYPES = st.tuples(*[st.sampled_from([np.int32, np.int64])] * 2)
EDGES = st.lists(st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1)), min_size=1, max_size=30)


def ends_of(edges, types):
    return [np.array(ends, dtype) for ends, dtype in zip(zip(*edges, strict=True), types, strict=True)]


@given(EDGES, TYPES, st.integers(0, NODES), st.integers(0, NODES))
def test_neighbors_of_a_range_in_both_directions_are_left_once(edges, types, first, end):
    src, dst = ends_of(edges, types)
    both = [(u, v) for u, v in edges] + [(v, u) for u, v in edges if u != v]
    found = [[v for u, v in both if u == node] for node in range(first, end)]
    cursor = np.cumsum([0, *map(len, found)])[:-1]
    neighbors = np.empty(sum(map(len, found)), types[1])
    vertex_cut_loops.place_neighbors(src, dst, first, cursor, neighbors)
    ends = np.cumsum([len(of) for of in found])
    assert cursor.tolist() == ends.tolist()
    for of, stop in zip(found, ends, strict=True):
        assert sorted(neighbors[stop - len(of) : stop]) == sorted(of)

    vertices = np.empty(len(neighbors), types[0])
    left = vertex_cut_loops.keep_distinct(cursor, first, vertices, neighbors)
    kept = list(zip(vertices[:left].tolist(), neighbors[:left].tolist(), strict=True))
    assert kept == sorted({(u, v) for u, v in both if first <= u < end})


@given(EDGES, TYPES)
def test_edges_are_sorted_in_both_ways_and_equal_ones_stay_in_order(edges, types):
    src, dst = ends_of(edges, types)
    count, weights = len(edges), np.arange(len(edges), dtype=np.float32)
    starts, starts_back = np.zeros(NODES + 1, np.int64), np.zeros(NODES + 1, np.int32)
    columns, by_row, order = np.empty(count, np.int64), np.empty(count, np.float32), np.empty(count, np.int32)
    vertex_cut_loops.sort_edges(src, dst, weights, order, starts, starts_back, columns, by_row)
    forth = sorted((v, u, edge) for edge, (u, v) in enumerate(edges))
    assert columns.tolist() == [u for _, u, _ in forth]
    assert by_row.tolist() == [edge for _, _, edge in forth]
    for begin, ends in ((starts, dst), (starts_back, src)):
        assert begin.tolist() == [int((ends < node).sum()) for node in range(NODES + 1)]

    columns_back, edges_back = np.empty((2, count), np.int32)
    vertex_cut_loops.transpose_rows(starts, columns, starts_back, columns_back, edges_back)
    back = sorted((u, v, place) for place, (v, u, _) in enumerate(forth))
    assert columns_back.tolist() == [v for _, v, _ in back]
    assert edges_back.tolist() == [place for *_, place in back]
