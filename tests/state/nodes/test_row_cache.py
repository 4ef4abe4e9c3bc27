"""The cache of rows against a dictionary."""

import pytest
import torch
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_tgnn.state.nodes.row_cache import RowCache

NODES, BYTES = 8, 4


class Reference:
    """Nodes with their rows and when they were last asked for; the least recently used make room."""

    def __init__(self, capacity):
        self.capacity, self.rows, self.used, self.clock = capacity, {}, {}, 0

    def find(self, nodes):
        self.clock += 1
        here = [node in self.rows for node in nodes]
        self.used.update({node: self.clock for node in nodes if node in self.rows})
        return here

    def keep(self, nodes, rows):
        """Return how many are kept, and of whom the rest of the places were taken."""
        free = self.capacity - len(self.rows)
        idle = sorted((self.used[node], node) for node in self.rows if self.used[node] < self.clock)
        count = min(len(nodes), free + len(idle))
        leaving = max(count - free, 0)
        return count, idle, leaving

    def drop(self, nodes):
        for node in nodes:
            self.rows.pop(node, None)

    def clear(self):
        self.rows = {}


def row(node, number):
    return torch.tensor([node, number % 256, number // 256, 7], dtype=torch.uint8)


def holds(cache, reference):
    """Whether both hold the same; looked at without marking anything as used."""
    slots = cache._slot.tolist() if cache.capacity else [-1] * NODES
    here = {node: slot for node, slot in enumerate(slots) if slot >= 0}
    assert len(set(here.values())) == len(here) <= cache.capacity
    rows = cache.read(torch.tensor(list(here.values()), dtype=torch.int64))
    return {node: data.tolist() for node, data in zip(here, rows, strict=True)} == reference.rows


distinct = st.lists(st.integers(0, NODES - 1), unique=True)
steps = st.lists(st.tuples(st.sampled_from(["turn", "turn", "turn", "drop", "clear"]), distinct), max_size=25)


@pytest.mark.parametrize("capacity", [0, 1, 3, NODES])
@seed(5)
@settings(max_examples=80, deadline=None)
@given(steps=steps)
def test_rows_are_those_of_a_dictionary(capacity, steps):
    cache, reference = RowCache(NODES, BYTES, capacity * BYTES), Reference(capacity)
    assert cache.capacity == capacity
    for number, (kind, nodes) in enumerate(steps):
        given_nodes = torch.tensor(nodes, dtype=torch.int64)
        if kind == "drop":
            cache.drop(given_nodes)
            reference.drop(nodes)
        elif kind == "clear":
            cache.clear()
            reference.clear()
        else:
            slots = cache.find(given_nodes)
            here = reference.find(nodes)
            assert (slots >= 0).tolist() == here
            found = cache.read(slots[slots >= 0]).tolist()
            assert found == [reference.rows[node] for node, is_here in zip(nodes, here, strict=True) if is_here]
            missing = [node for node, is_here in zip(nodes, here, strict=True) if not is_here]
            fetched = {node: row(node, number) for node in missing}
            rows = torch.stack(list(fetched.values())) if fetched else torch.empty(0, BYTES, dtype=torch.uint8)
            count, idle, leaving = reference.keep(missing, rows)
            cache.keep(torch.tensor(missing, dtype=torch.int64), rows)
            left = [node for node in reference.rows if int(cache._slot[node]) < 0]
            # Among rows used at the same time any may go: the others went or stayed by their age.
            ages = sorted(age for age, _ in idle)[:leaving]
            assert sorted(reference.used[node] for node in left) == ages
            reference.drop(left)
            for node in missing[:count]:
                reference.rows[node], reference.used[node] = fetched[node].tolist(), reference.clock
        assert holds(cache, reference)


def keep(cache, *nodes):
    cache.find(torch.tensor(nodes))
    cache.keep(torch.tensor(nodes), torch.stack([row(node, 1) for node in nodes]))


def here(cache):
    return [node for node in range(NODES) if int(cache._slot[node]) >= 0]


def test_the_least_recently_used_make_room():
    cache = RowCache(NODES, BYTES, 3 * BYTES)
    for node in (0, 1, 2):
        keep(cache, node)
    cache.find(torch.tensor([0]))
    keep(cache, 3)
    assert here(cache) == [0, 2, 3]
    keep(cache, 4)
    assert here(cache) == [0, 3, 4]


def test_a_dropped_row_makes_room_before_any_other():
    cache = RowCache(NODES, BYTES, 3 * BYTES)
    for node in (0, 1, 2):
        keep(cache, node)
    cache.drop(torch.tensor([2]))
    keep(cache, 3)
    assert here(cache) == [0, 1, 3]
    cache.drop(torch.tensor([0, 3]))
    keep(cache, 3, 0)  # whichever places they take, none of them is still another's
    assert here(cache) == [0, 1, 3]


def test_what_this_step_uses_stays():
    cache = RowCache(NODES, BYTES, 2 * BYTES)
    keep(cache, 0, 1)
    cache.find(torch.tensor([0, 1, 5]))
    cache.keep(torch.tensor([5]), row(5, 1).unsqueeze(0))
    assert here(cache) == [0, 1]


def test_what_does_not_fit_is_not_kept():
    cache = RowCache(NODES, BYTES, 2 * BYTES)
    keep(cache, 4, 6, 1)
    assert here(cache) == [4, 6]


@pytest.mark.parametrize(("capacity_bytes", "capacity"), [(0, 0), (BYTES - 1, 0), (BYTES, 1), (10**6, NODES)])
def test_capacity_is_whole_rows_and_no_more_than_there_are_nodes(capacity_bytes, capacity):
    assert RowCache(NODES, BYTES, capacity_bytes).capacity == capacity


class Largest(TorchDispatchMode):
    """Keeps the size of the largest tensor that an operation makes or fills."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        # Such as index_put_ return the table that they write some rows of.
        if isinstance(made, torch.Tensor) and not any(made is given for given in args):
            self.numel = max(self.numel, made.numel())
        return made


@pytest.mark.parametrize("places", [2_000, 20_000])
def test_a_call_touches_as_many_places_as_it_is_given_rows(places):
    nodes = 20_000
    cache, data = RowCache(nodes, BYTES, places * BYTES), torch.zeros(nodes, BYTES, dtype=torch.uint8)
    cache.find(torch.arange(places))
    cache.keep(torch.arange(places), data[:places])
    largest = Largest()
    for number in range(3):
        asked = torch.arange(places - 4, places) if number else torch.arange(3, 7)
        new = (torch.arange(4) + places + 4 * number) % nodes
        cache.drop(new)
        with largest:
            cache.find(asked)
            cache.keep(new, data[:4])
            cache.drop(asked)
    assert largest.numel <= 64
