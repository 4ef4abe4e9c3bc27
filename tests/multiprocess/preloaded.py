"""What each forked process would do first of all, done once in the one that they are forked from.

A compiled loop is loaded when numba has learnt all types and functions there are: half a second of each rank. What is
imported is no garbage, and of what a few steps leave little is: looking for it takes a tenth of the time.
"""

import gc
import os
from contextlib import contextmanager, redirect_stdout, suppress
from importlib import import_module
from unittest import mock

import pandas  # noqa: F401
import torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook
import torch.utils.serialization.config
import torch.utils.tensorboard  # noqa: F401
from fsspec.implementations import chained  # noqa: F401
from lightning.fabric.utilities import registry
from lightning.pytorch.demos import boring_classes  # noqa: F401
from lightning_utilities.core.imports import RequirementCache
from numba.core.dispatcher import Dispatcher
from numba.core.registry import cpu_target
from numba.np.ufunc import parallel

from lightning_tgnn import cli
from lightning_tgnn.algorithms.partitions import vertex_cut_loops
from lightning_tgnn.algorithms.streams import (
    adjacency_loops,
    dedup_loops,
    neighbor_loops,
    random_loops,
)
from lightning_tgnn.algorithms.traffic import quantize_loops, row_change_loops, row_loops
from lightning_tgnn.models.memory import (
    attention_cpu,  # noqa: F401
    attention_loops,
    encoding_loops,
    gate_loops,
    link_loops,
)
from tests.multiprocess import faulty_run, started, training  # noqa: F401

with suppress(ImportError):  # torch 2.10 has none
    import_module("torch.profiler._cupti_monitor")

LOOPS = (
    adjacency_loops,
    attention_loops,
    dedup_loops,
    encoding_loops,
    gate_loops,
    link_loops,
    neighbor_loops,
    quantize_loops,
    random_loops,
    row_change_loops,
    row_loops,
    vertex_cut_loops,
)


def load_compiled(module):
    """Load what numba keeps on disk of a module's loops."""
    for loop in vars(module).values():
        if isinstance(loop, Dispatcher):
            for types, *_ in loop._cache._cache_file._load_index():
                loop.compile(types)


@contextmanager
def without_threads():
    """Let numba find what its threads are started by, but start none: they would not be there after a fork."""
    with mock.patch.object(parallel, "CFUNCTYPE"):
        parallel._launch_threads()
    yield
    parallel._is_initialized, parallel._threading_layer = False, None  # whoever uses them starts them


cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
with without_threads():
    for module in LOOPS:
        load_compiled(module)
registry._load_external_callbacks("lightning.pytorch.callbacks_factory")
for found in gc.get_objects():
    if type(found) is RequirementCache:
        bool(found)  # reads what there is to know of the installed packages
with open(os.devnull, "w") as unread, redirect_stdout(unread), suppress(SystemExit):
    cli.TGNNCommand(["fit", "--print_config"])
gc.set_threshold(20_000, 20, 20)
gc.freeze()
gc.enable()
