"""Captured stages on ranks, whose exchanges lie between them, against the same ranks without; see `tests/tasks`."""

from functools import cache
from unittest import mock

import pytest
import torch

from lightning_tgnn.data.batches.padding import Paddings
from lightning_tgnn.strategies import (
    AutoStateStrategy,
    DepCacheStrategy,
    DepCommStrategy,
    DistTGLStrategy,
    PipeTGLStrategy,
    SvenStrategy,
)
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.training import as_torchrun, build, fit
from tests.tasks.replayed import capturing_on_the_cpu

# Of each strategy a model, and how it reads.
CASES = {
    "sven": ("tgn", {}, lambda: SvenStrategy(partition="range")),
    "sven, at once": (
        "jodie",
        {"past": "batch", "embed_at": "batch"},
        lambda: SvenStrategy(partition="range", staleness=0, micro_batches=2),
    ),
    "sven, by destination": ("apan", {}, lambda: SvenStrategy(partition="range", split_batch="destination")),
    "depcache": ("tgn", {"past": "batch", "embed_at": "batch"}, DepCacheStrategy),
    "auto-state": ("jodie", {}, AutoStateStrategy),
    "depcomm": ("tgn", {"past": "event"}, lambda: DepCommStrategy(partition="range")),
    "pipetgl": ("tgn", {}, PipeTGLStrategy),
    "disttgl": ("apan", {"past": "batch"}, lambda: DistTGLStrategy(minibatch="auto")),
}
PADDED_PIECES = (
    "depcomm",
    "pipetgl",
    "sven, at once",
)  # rows that come in pieces are padded to the size of all: rounding differs
OF_THREE = ("sven", "depcache", "pipetgl", "disttgl")
EXACT, PADDED = "exact", "padded"


def all_fits(rank, ranks, kinds):
    """Return losses, gradients and metrics of all fits, without capture, at the batches' own sizes, and padded."""
    as_torchrun(rank, ranks)
    found = {}
    for name, (model, options, strategy) in CASES.items():
        if ranks > 2 and name not in OF_THREE:
            continue
        kept = []
        for kind in ("plain", *kinds):
            room = (lambda self, needed: needed) if kind == EXACT else Paddings._room
            with capturing_on_the_cpu() as made, mock.patch.object(Paddings, "_room", room):
                data, task = build(model, 8, capture="off" if kind == "plain" else "auto", **options)
                ended = fit(data, task, strategy(), ranks, epochs=1)
            kept.append((ended["losses"], ended["gradients"], ended["val"]))
            assert (len(made) > 0) == (kind != "plain")
        found[name] = kept
    return found


@cache
def fits(ranks):
    """Return what is captured, and of each rank its fits."""
    kinds = (EXACT, PADDED) if ranks == 2 else (PADDED,)
    return kinds, run_ranks(all_fits, ranks, kinds, timeout=300)


@pytest.mark.parametrize(("ranks", "name"), [*((2, name) for name in CASES), *((3, name) for name in OF_THREE)])
def test_capture_changes_nothing_between_exchanges(ranks, name):
    kinds, of_ranks = fits(ranks)
    for rank in of_ranks:
        plain, *captured = rank[name]
        for kind, other in zip(kinds, captured, strict=True):
            if kind == EXACT and name not in PADDED_PIECES:
                assert torch.equal(plain[0], other[0])
                assert torch.equal(plain[1], other[1])
            torch.testing.assert_close(plain[0], other[0], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(plain[1], other[1], rtol=1e-3, atol=1e-4)
            assert plain[2] == pytest.approx(other[2], abs=1e-3, nan_ok=True)
