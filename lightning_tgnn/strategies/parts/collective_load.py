"""Checkpoints that all ranks open together: the same one on each, with every part checked by one of them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lightning_tgnn.checks import CheckpointError, refusal
from lightning_tgnn.comm import Messages
from lightning_tgnn.files.checkpoint_folder import WRITING
from lightning_tgnn.types import Broadcast

_TRIES = 3


def open_on_all(
    path: str | Path, read: Callable[[slice], dict[str, Any]], messages: Messages, broadcast: Broadcast
) -> dict[str, Any]:
    """Return a checkpoint of which all ranks have opened the same writing, while a run may save under its name.

    Args:
        path: Names it in messages.
        read: Opens it, and checks the parts of a folder that are given, in the order of their names. Ranks share them.
        messages: Between all ranks, which have to call this together.
        broadcast: Sends a value of the first rank to all.

    Raises:
        CheckpointError: Another rank could not open it, or ranks opened different writings in each of several tries.
        Exception: That of ``read`` on this rank.
        PeerFailureError: A rank has failed.
    """
    for _ in range(_TRIES):
        failed: Exception | None = None
        held: dict[str, Any] = {}
        try:
            held = read(slice(messages.place, None, messages.ranks))
        except Exception as error:
            failed = error
        lacks = socket.gethostname() if isinstance(failed, FileNotFoundError) else None
        reported = messages.gather((held.pop(WRITING, None), failed and str(failed), lacks))
        refusals = [f"rank {rank}: {refused}" for rank, (_, refused, _) in enumerate(reported) if refused is not None]
        same = len({writing for writing, *_ in reported}) == 1
        apart, refused, alike = broadcast((_apart(path, reported), refusals[:1], same))
        if apart is not None:
            raise CheckpointError(apart) from failed
        if failed is not None:
            raise failed
        if refused:
            raise CheckpointError(refused[0])
        if alike:
            return held
    received = f"another one in its place {_TRIES} times while ranks opened it"
    cure = "wait until nobody saves under that name, or give another checkpoint"
    raise CheckpointError(refusal(str(path), "the same checkpoint on all ranks", received, cure))


def _apart(path: str | Path, reported: Sequence[tuple[object, str | None, str | None]]) -> str | None:
    """Return on the first rank what to say of a checkpoint that some ranks have opened and others do not find."""
    lack = [f"rank {rank} on {host}" for rank, (_, _, host) in enumerate(reported) if host is not None]
    if not lack or all(refused is not None for _, refused, _ in reported):
        return None
    cure = "keep checkpoints and runs in a folder that all machines see, or copy it to the same path on each"
    return refusal(str(path), "a checkpoint that all ranks find", f"none on {', '.join(lack)}", cure)
