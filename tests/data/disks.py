"""Disks that are full and folders that may not be written."""

import os
import resource
from contextlib import contextmanager


@contextmanager
def nobody():
    """Without the rights of root."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def files_below(size):
    """As on a disk that is full: files cannot grow beyond ``size`` bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
