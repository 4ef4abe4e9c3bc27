"""What each forked process would do first of all, done once in the one that they are forked from.

A compiled loop is loaded when numba has learnt all types and functions there are: half a second of each rank. What is
imported is no garbage, and of what a few steps leave little is: looking for it takes a tenth of the time.
"""

import gc

import pandas  # noqa: F401
import torch.distributed.algorithms.ddp_comm_hooks.default_hooks
import torch.utils.serialization.config
import torch.utils.tensorboard  # noqa: F401
from fsspec.implementations import chained  # noqa: F401
from lightning.fabric.utilities import registry
from lightning.pytorch.demos import boring_classes  # noqa: F401
from numba.core.dispatcher import Dispatcher
from numba.core.registry import cpu_target

from lightning_tgnn import cli  # noqa: F401
from lightning_tgnn.algorithms.partitions import edge_loops, replica_loops, vertex_cut_loops
from lightning_tgnn.algorithms.streams import adjacency_loops, dedup_loops, distinct_loops, gap_loops, neighbor_loops
from lightning_tgnn.algorithms.traffic import quantize_loops, row_change_loops, row_loops
from lightning_tgnn.models.memory import attention_cpu, attention_loops, encoding_loops, gate_loops  # noqa: F401
from tests.multiprocess import faulty_run, started, training  # noqa: F401

LOOPS = (
    adjacency_loops,
    attention_loops,
    dedup_loops,
    distinct_loops,
    edge_loops,
    encoding_loops,
    gap_loops,
    gate_loops,
    neighbor_loops,
    quantize_loops,
    replica_loops,
    row_change_loops,
    row_loops,
    vertex_cut_loops,
)


def load_compiled(module):
    """Load what numba keeps on disk of a module's loops, save of those that start threads: no fork survives them."""
    for loop in vars(module).values():
        if isinstance(loop, Dispatcher) and not loop.targetoptions.get("parallel"):
            for types, *_ in loop._cache._cache_file._load_index():
                loop.compile(types)


cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
for module in LOOPS:
    load_compiled(module)
registry._load_external_callbacks("lightning.pytorch.callbacks_factory")
gc.set_threshold(20_000, 20, 20)
gc.freeze()
gc.enable()
