"""The contract of `PiecewiseStore`: rows in pieces and asked for ahead are those of a whole fetch."""

import pytest
import torch

from lightning_tgnn.types import StateRows
from tests.contracts.node_state import FIELDS, NODES, SETTINGS, Reference, assert_same, plain, rows_of
from tests.contracts.stores import PIECES, turns


def joined(pieces):
    """Return the rows of all pieces, in the order of their places."""
    back = torch.cat([places for places, _ in pieces]).argsort()
    return StateRows(**{name: torch.cat([getattr(rows, name) for _, rows in pieces])[back] for name in FIELDS})


@pytest.mark.parametrize("case", PIECES, ids=str)
def test_pieces_are_the_whole(case, stores_on_ranks):
    _, ranks, setting = case
    for rank in range(ranks):
        reference = Reference(SETTINGS[setting])
        found = stores_on_ranks[rank]["pieces"][case][0]
        for number, (turn, seen) in enumerate(zip(turns(case), found, strict=True)):
            where, nodes, places = f"turn {number} on rank {rank}", turn["nodes"][rank], []
            for piece, rows in seen["pieces"]:
                places += piece.tolist()
                assert_same(plain(rows), reference.fetch(nodes[piece]), setting, where)
            assert sorted(places) == list(range(len(nodes))), where
            reference.commit(turn["updates"])
            kept = reference.snapshot()
            if turn["between"] == "evaluate":
                reference.commit(turn["meanwhile"])
            if "others" in seen:
                assert_same(plain(seen["others"]), reference.fetch(turn["others"][rank]), setting, where)
            reference.restore(kept)
            if "saved" in seen and rank == 0:
                assert_same(plain(rows_of(seen["saved"])), reference.fetch(torch.arange(NODES)), setting, where)
                assert seen["saved"]["position"] == reference.position, where
            if turn["between"] == "reset":
                reference.reset()


@pytest.mark.parametrize("case", PIECES, ids=str)
def test_a_resumed_run_cuts_alike(case, stores_on_ranks):
    for rank in range(case[1]):
        once, again = stores_on_ranks[rank]["pieces"][case][2]
        assert [places.tolist() for places, _ in once] == [places.tolist() for places, _ in again]
        assert plain(joined(once)) == plain(joined(again))


@pytest.mark.parametrize("case", PIECES, ids=str)
def test_other_nodes_than_announced_are_refused_or_read(case, stores_on_ranks):
    for rank in range(case[1]):
        answer = stores_on_ranks[rank]["pieces"][case][3]
        if case[1] == 1:  # nobody is asked ahead
            assert sum(len(rows.memory) for rows in answer) == NODES
        else:
            assert answer.startswith("batch must be the one that was announced, got 'another'; train on")


@pytest.mark.parametrize("case", [case for case in PIECES if case[1] > 1], ids=str)
def test_kept_rows_are_used_where_there_are_any(case, stores_on_ranks):
    asked, found = map(sum, zip(*(stores_on_ranks[rank]["pieces"][case][1] for rank in range(case[1])), strict=True))
    assert asked > 0
    assert (found == 0) == (case[0] == "sharded, rows not kept")
