"""Updates that travel as rows of memory: what comes out is what whole mails say, and no row travels twice."""

import pytest
import torch

from lightning_tgnn.state.nodes.update_exchange import UpdateRouter
from lightning_tgnn.state.nodes.wire import MailCodec
from tests.contracts.node_state import EDGE_FEATURES, MEMORY, NODES, OF_EVENTS, SETTINGS, Draw
from tests.state.nodes.test_step_fetch import LocalExchange, say

COLUMNS = ("memory", "memory_time", "mails", "mail_time", "mail_event")


def merged(updates, owner, codec, *, makes_mails, ahead):
    """Return what each rank takes in, and what all have sent, as rows for each rank, message by message."""
    wires, routers = [[] for _ in updates], []
    for rank in range(len(updates)):
        exchange = LocalExchange(wires, rank)
        routers.append(UpdateRouter(owner, exchange, codec, makes_mails=makes_mails))
    if ahead:
        updates = [
            update.__class__(**vars(update) | {"together": router.routed(update.together, update.nodes)})
            for router, update in zip(routers, updates, strict=True)
        ]
    sent = [router.start(update) for router, update in zip(routers, updates, strict=True)]
    say([update.conversation() for update in sent])
    return [update.merged() for update in sent], wires


def by_node(nodes, *columns):
    return {node: [column[place].tolist() for column in columns] for place, node in enumerate(nodes.tolist())}


@pytest.mark.parametrize("setting", sorted(OF_EVENTS))
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("ranks", [2, 3])
def test_rows_are_enough(ranks, ahead, whole, setting):
    spec, draw = SETTINGS[setting], Draw(17 + ranks, setting, ranks)
    made, mailed = MailCodec(spec, edge_features=EDGE_FEATURES), MailCodec(spec)
    owner = torch.arange(NODES) * 5 % ranks
    for _ in range(15):
        updates = draw.updates()
        given = None if whole else owner
        found, wires = merged(updates, given, made, makes_mails=True, ahead=ahead)
        wanted, _ = merged(updates, given, mailed, makes_mails=False, ahead=False)
        for ours, theirs in zip(found, wanted, strict=True):
            for names in (("nodes", *COLUMNS[:2]), ("mail_nodes", *COLUMNS[2:])):
                assert by_node(*(getattr(ours, n) for n in names)) == by_node(*(getattr(theirs, n) for n in names))
            assert ours.position == theirs.position
            assert torch.equal(ours.changed, theirs.changed)
        together = updates[0].together
        written, writers = together.nodes.tolist(), together.node_rank.tolist()
        needed = [(rank, node, node) for node, rank in zip(written, writers, strict=True)]
        mails = (together.mail_nodes, together.mail_rank, together.mail_ends)
        for node, rank, ends in zip(*(column.tolist() for column in mails), strict=True):
            needed += [(rank, end, node) for end in ends]
        for rank, messages in enumerate(wires):
            (rows,) = messages  # one, and of memories and their times alone
            assert {piece.shape[1] for piece in rows} == {8 + (4 * MEMORY + 7) // 8 * 8}
            for place, piece in enumerate(rows):
                goes = {row for sender, row, to in needed if sender == rank and (whole or int(owner[to]) == place)}
                assert len(piece) == len(goes)


def test_mails_of_a_models_own_travel():
    setting = "one mail"  # which is told of no rows that mails are made of
    codec = MailCodec(SETTINGS[setting], edge_features=EDGE_FEATURES)
    updates = Draw(3, setting, 2).updates()
    assert all(update.together is None for update in updates)
    _, wires = merged(updates, None, codec, makes_mails=True, ahead=False)
    assert [len(messages) for messages in wires] == [3, 3]
