"""Batches that say ahead which rows they read, by messages that nothing else waits behind."""

from __future__ import annotations

from lightning_tgnn.types import AnnouncingStore, Run
from lightning_tgnn.types.layout import STATE


def announce_batches(run: Run, store: object) -> None:
    """Have the thread that makes batches tell owners of rows which ones are read, where the store can be told so."""
    if not isinstance(store, AnnouncingStore) or store.announcer is not None or run.exchange.ranks == 1:
        return
    if "passes" not in run.schedule.needs:  # where the first one reads for the later ones
        store.announce_over(run.exchange.beside(run.group_of(STATE, "requests", on_hosts=True)))
