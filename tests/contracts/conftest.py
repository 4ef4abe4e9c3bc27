"""What suites of this folder share."""

import pytest

from tests.contracts import stores
from tests.multiprocess.ranks import run_ranks


@pytest.fixture(scope="session")
def stores_on_ranks():
    """What every rank has seen of every store, from one start."""
    return run_ranks(stores.on_rank, stores.RANKS)
