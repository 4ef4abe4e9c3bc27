"""Stages tell whoever listens when they begin and end."""

import pytest
import torch

from lightning_tgnn.types import StageListener, Stages


class Heard:
    def __init__(self):
        self.events = []

    def enter(self, stage, turn):
        self.events.append(("enter", stage, turn))

    def leave(self, stage, turn):
        self.events.append(("leave", stage, turn))


def test_listeners_hear_of_stages_within_stages():
    stages, first, second = Stages(), Heard(), Heard()
    listener: StageListener = first
    stages.add(listener)
    stages.add(second)
    with stages("fetch"):
        with stages("update"):
            pass
        stages.turn = 4  # the stage that is under way is one of the turn in which it has begun
    with stages("embed"):
        pass
    assert first.events == second.events == [
        ("enter", "fetch", 0),
        ("enter", "update", 0),
        ("leave", "update", 0),
        ("leave", "fetch", 0),
        ("enter", "embed", 4),
        ("leave", "embed", 4),
    ]  # fmt: skip


def test_whoever_is_removed_hears_nothing_more():
    stages, first, second = Stages(), Heard(), Heard()
    stages.add(first)
    stages.add(second)
    stages.remove(first)
    stages.remove(first)
    with stages("embed"):
        pass
    assert first.events == []
    assert len(second.events) == 2
    stages.remove(second)
    with stages("embed"):
        pass
    assert len(second.events) == 2


def test_a_stage_that_raises_has_ended_and_hides_nothing():
    stages, heard = Stages(), Heard()
    stages.add(heard)
    with pytest.raises(ZeroDivisionError), stages("score"):
        raise ZeroDivisionError
    assert heard.events == [("enter", "score", 0), ("leave", "score", 0)]
    with pytest.raises(ZeroDivisionError), Stages()("score"):  # nobody listens
        raise ZeroDivisionError


def test_a_listener_that_comes_or_goes_within_a_stage_leaves_it_whole():
    stages, first, second = Stages(), Heard(), Heard()
    stages.add(first)
    with stages("fetch"):
        stages.add(second)
        with stages("update"):
            pass
        stages.remove(second)
    assert [kind for kind, _, _ in first.events] == ["enter", "enter", "leave", "leave"]
    assert second.events == [("enter", "update", 0), ("leave", "update", 0)]


def test_embeddings_are_heard_of_and_come_back_as_they_were():
    stages, heard = Stages(), []
    made = torch.zeros(2, 3)
    assert stages.embedded("batch", made) is made  # nobody listens
    stages.on_embedded = lambda batch, embeddings: heard.append((batch, embeddings))
    assert stages.embedded("batch", made) is made
    assert heard == [("batch", made)]
