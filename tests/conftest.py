"""What tests of several folders share."""

import os
import tempfile
from pathlib import Path
from unittest import mock

import pytest
import torch.distributed as dist


@pytest.fixture(autouse=True)
def keep_no_seed():
    """Lightning hands the seed of a run on to whatever processes are started later."""
    yield
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        os.environ.pop(name, None)


@pytest.fixture
def in_own_group():
    """What Lightning's launcher leaves in this process would mislead the next test."""
    with mock.patch.dict(os.environ):
        yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def read_only():
    """A folder that cannot be written, also where tests run as root."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()
