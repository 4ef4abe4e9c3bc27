"""Ctrl-C while a loop that every batch takes runs: it is KeyboardInterrupt, which Lightning ends a run by."""

import os
import signal
import threading

import pytest
import torch

from lightning_tgnn.algorithms.streams.dedup import last_mails, organize
from lightning_tgnn.algorithms.streams.neighborhoods import place_events, place_nodes

COUNT = 400_000
RANDOM = torch.randint(1_000_000, (COUNT, 2), generator=torch.Generator().manual_seed(0))
SRC, DST = RANDOM.T.contiguous()
TIME = torch.arange(COUNT, dtype=torch.float64)
LOOPS = {
    "organize": lambda: organize(SRC),
    "last mails": lambda: last_mails(RANDOM),
    "place nodes": lambda: place_nodes(SRC, torch.arange(COUNT).unsqueeze(1), SRC, DST, TIME),
    "place events": lambda: place_events(torch.arange(COUNT), torch.randint(COUNT, (COUNT, 1))),
}


def run_pressed(loop):
    """Run a loop again and again, and press Ctrl-C meanwhile."""
    threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()
    while True:
        loop()


@pytest.mark.parametrize("name", LOOPS)
def test_it_is_heard(hears_interrupts, name):
    LOOPS[name]()  # compiled before
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            run_pressed(LOOPS[name])
