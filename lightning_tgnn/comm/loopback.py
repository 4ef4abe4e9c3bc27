"""Ranks that are all on one machine meet where no other machine can reach them."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

import torch.distributed as dist

_ADDRESSES = ("127.0.0.1", "localhost")
_INTERFACES = ("lo", "lo0")  # of Linux, of macOS
_NAME = "GLOO_SOCKET_IFNAME"
_named: list[str] = []
"""The interface that `meet_on_loopback` has chosen for the groups of this process."""
_WAITING = 1024  # connections that may wait to be taken


def leave_loopback() -> None:
    """Let later groups of this process listen where they would."""
    if _named and os.environ.get(_NAME) == _named.pop():
        del os.environ[_NAME]


def meet_on_loopback(address: str, port: int, *, is_first: bool) -> dist.TCPStore | None:
    """Have the store through which ranks meet, and the pairs of gloo, listen on the loopback interface only.

    torch would bind the store to all interfaces: whoever reaches the machine could read and write its keys. The store
    is multi-tenant, so that `torch.distributed.init_process_group` finds and takes it, on the first rank; it has to be
    held until then.

    Args:
        address: Where the ranks meet.
        port: There.
        is_first: Whether this is the first rank, which keeps the store.

    Returns:
        The store; None on other ranks, where ranks do not meet on loopback, and where somebody listens there already.
    """
    if address not in _ADDRESSES:
        return None
    there = {name for _, name in socket.if_nameindex()}.intersection(_INTERFACES)
    if there and _NAME not in os.environ:
        os.environ[_NAME] = there.pop()
        _named.append(os.environ[_NAME])
    if not is_first:
        return None
    with suppress(OSError), socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((_ADDRESSES[0], port))
        listening.listen(_WAITING)
        return dist.TCPStore(
            _ADDRESSES[0],
            port,
            is_master=True,
            wait_for_workers=False,
            multi_tenant=True,
            master_listen_fd=listening.detach(),
        )
    return None
