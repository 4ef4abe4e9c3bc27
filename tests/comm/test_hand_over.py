"""Tensors that go along a pipeline and gradients that come back, through shared memory and as messages."""

import pytest
import torch
import torch.distributed as dist

from lightning_tgnn.checks import DataError
from lightning_tgnn.comm import HandOver, Messages
from tests.multiprocess.ranks import run_ranks

SLOTS = 2
NUMBERS = (0, 2, 4, 5, 7, 9, 10)  # of groups; the others skip the pipeline
GROUPS = len(NUMBERS)


def tensors(number):
    """Of other shapes in every group; some have nothing in them."""
    values = torch.arange(float(12 * number)).view(number, 4, 3)
    return [values, torch.tensor([number]), torch.zeros(0, 5), values.double() / 3]


def along(hand_over):
    """Have every rank add 1 to what it is given, and every gradient 10 on its way back; return what comes back."""
    last, waiting, seen = hand_over.ranks - 1, [], []

    def take_back():
        number = waiting.pop(0)
        gradients = hand_over.receive_back(tensors(number), number)
        seen.append([float(gradient.sum()) for gradient in gradients])
        if hand_over.place:
            hand_over.send_back([gradient + 10 for gradient in gradients], number)

    hand_over.make_room(tensors(number) for number in NUMBERS)
    for number in NUMBERS:
        if len(waiting) == SLOTS:
            take_back()
        held = tensors(number)
        if hand_over.place:
            held = hand_over.receive(held, number)
        held = [tensor + 1 for tensor in held]
        if hand_over.place == last:
            hand_over.send_back(held, number)
        else:
            hand_over.send(held, number)
            waiting.append(number)
    while waiting:
        take_back()
    hand_over.flush()
    return seen, hand_over.moved


def on_rank(rank, ranks, through_memory):
    messages = Messages(range(ranks), rank, dist.group.WORLD)
    hand_over = HandOver(messages, range(ranks), dist.group.WORLD, slots=SLOTS, through_memory=through_memory)
    if through_memory:
        huge = torch.empty(10**16, device="meta")
        with pytest.raises(
            DataError, match=r"the hidden state of snapshots, .* shared memory, got .* or set fewer open_g"
        ):
            hand_over.make_room([[huge]])
    outcome = along(hand_over)
    sent = {name: flow.sent for name, flow in messages.traffic.take().items()}
    return *outcome, sum(sent.values())


@pytest.mark.parametrize("through_memory", [True, False])
@pytest.mark.parametrize("ranks", [2, 3])
def test_tensors_go_forth_and_gradients_come_back(ranks, through_memory):
    outcomes = run_ranks(on_rank, ranks, through_memory)
    for rank, (seen, moved, sent) in enumerate(outcomes):
        passed = ranks - rank - 2  # ranks between this one and the last, which add to the gradient
        added = [[ranks + 10 * passed] * len(tensors(0))] * GROUPS
        wanted = [
            [float((tensor + more).sum()) for tensor, more in zip(tensors(number), added[0], strict=True)]
            for number in NUMBERS
        ]
        assert seen == (wanted if rank < ranks - 1 else [])
        assert bool(moved) == through_memory
        # Of what is in memory only the numbers of groups travel.
        assert sent <= GROUPS * 2 * 8 if through_memory else sent > 1000
