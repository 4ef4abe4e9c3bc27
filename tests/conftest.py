"""What tests of several folders share."""

import os
from unittest import mock

import pytest
import torch.distributed as dist


@pytest.fixture
def in_own_group():
    """What Lightning's launcher leaves in this process would mislead the next test."""
    with mock.patch.dict(os.environ):
        yield
    if dist.is_initialized():
        dist.destroy_process_group()
