"""LitServe's server, whose processes do not outlive it."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.managers import SyncManager

import litserve
from fastapi import FastAPI

_TERMINATED = 143


class EndingServer(litserve.LitServer):
    """Lets its processes end with the one that started them, also where that was killed."""

    def stop(self, *_: object) -> None:
        """Shut down in good order; a handler of signals."""
        if (event := self._shutdown_event) is None:
            sys.exit(_TERMINATED)
        threading.Thread(target=event.set).start()  # this one waits for it, by a connection that it cannot share

    def _init_manager(self, num_api_servers: int) -> SyncManager:
        def started() -> SyncManager:
            manager = SyncManager(ctx=multiprocessing.get_context())
            manager.start(end_with_parent)
            return manager

        usual, multiprocessing.Manager = multiprocessing.Manager, started  # which LitServe gives no way to start
        try:
            return super()._init_manager(num_api_servers)
        finally:
            multiprocessing.Manager = usual

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Begin in the process that speaks HTTP."""
        end_with_parent()
        async with super().lifespan(app):
            yield


def end_with_parent() -> None:
    """End this process at once where the process that started it has been killed."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        assert parent is not None
        parent.join()
        os._exit(1)

    if parent is not None:
        threading.Thread(target=wait, daemon=True).start()
