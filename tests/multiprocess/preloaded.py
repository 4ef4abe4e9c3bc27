"""What each forked process would do first of all, done once in the one that they are forked from.

A compiled loop is loaded when numba has learnt all types and functions there are: half a second of each rank. What is
imported is no garbage, and of what a few steps leave little is: looking for it takes a tenth of the time.
"""

import gc

from lightning.fabric.utilities import registry
from numba.core.registry import cpu_target

from lightning_tgnn.models.memory import attention_loops, encoding_loops, gate_loops  # noqa: F401
from tests.multiprocess import training  # noqa: F401

cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
registry._load_external_callbacks("lightning.pytorch.callbacks_factory")
gc.set_threshold(20_000, 20, 20)
gc.freeze()
