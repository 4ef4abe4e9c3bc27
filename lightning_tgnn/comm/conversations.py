"""Exchanges of several messages, in which later messages depend on the content of earlier ones."""

from __future__ import annotations

from collections.abc import Iterator

Conversation = Iterator[None]
"""Starts a message at every step of its iteration, after the one before has arrived."""


class Conversations:
    """Conversations under way; `carry_on` sends the next message of each, so that no rank waits in between.

    All ranks have to begin and carry on in the same order, because a process group matches messages by their order.
    """

    def __init__(self) -> None:
        self._under_way: list[Conversation] = []

    def begin(self, conversation: Conversation) -> None:
        """Start the first message of a conversation."""
        self._under_way += _carried_on([conversation])

    def carry_on(self) -> None:
        """Start the next message of every conversation."""
        self._under_way = _carried_on(self._under_way)

    def finish(self) -> None:
        """Carry on until every conversation has ended."""
        while self._under_way:
            self.carry_on()


def _carried_on(conversations: list[Conversation]) -> list[Conversation]:
    over = object()
    return [conversation for conversation in conversations if next(conversation, over) is not over]
