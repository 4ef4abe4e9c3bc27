"""A rank whose link is cut cannot ask who has failed: it ends all the same, and says so."""

import threading
from datetime import timedelta
from unittest import mock

import pytest

from lightning_tgnn.comm import PeerFailureError, failure, peer_failure


class Unreachable:
    """A store that never answers."""

    timeout = timedelta(seconds=9)

    def __init__(self):
        self.over = threading.Event()

    def set_timeout(self, timeout):
        pass

    def set(self, key, value):
        self.over.wait(60)


@pytest.mark.timeout(30)
def test_a_store_that_does_not_answer_is_not_waited_for():
    store = Unreachable()
    replaced = {"_store": lambda: store, "_ROLL_CALL_SECONDS": 0.1, "_verdicts": {}}
    ranks = {"get_rank": lambda: 1, "get_world_size": lambda: 2}
    with (
        mock.patch.multiple(failure, **replaced),
        mock.patch.multiple(failure.dist, **ranks),
        pytest.raises(PeerFailureError, match=r"rows: the store of rank 0, .* does not answer \(Timed out\); resume"),
        peer_failure("rows"),
    ):
        raise RuntimeError("Timed out")
    store.over.set()
