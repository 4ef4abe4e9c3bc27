"""Tests that need a GPU; on a machine without one they are skipped."""

import pytest
import torch


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        for item in items:
            if item.nodeid.startswith("tests/cuda/"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
