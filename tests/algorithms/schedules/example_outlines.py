"""Outlines of every plan, with every option."""

from itertools import product

from lightning_tgnn.algorithms.schedules.disttgl import DistTGLOutline
from lightning_tgnn.algorithms.schedules.outlines import (
    data_parallel,
    in_order,
    mean_gradients,
    pipelined,
    updated_by_owners,
)
from lightning_tgnn.algorithms.schedules.pipetgl import PipeTGLOutline


def sharing(name, order, delay=0):
    return data_parallel(name, order, mean_gradients(order, delay), delay=delay)


DATA_PARALLEL = [
    sharing("depcache", in_order()),
    sharing("depcomm", updated_by_owners()),
    *(sharing("sven", pipelined(n, ahead=ahead), delay) for n in (1, 3) for ahead in (0.0, 0.4) for delay in (0, 1)),
    *(sharing("sharded, in order", in_order(rows="all_to_all", updates="all_to_all"), delay) for delay in (0, 1)),
]
SERVED = [DistTGLOutline(i, j, k, ahead) for i, j, k in product((1, 2), (1, 3), (1, 2)) for ahead in (True, False)]
CUT = [
    DistTGLOutline(i, j, k, store="sharded", ahead=ahead)
    for i, j, k in product((1, 2), (1, 3), (1, 2))
    for ahead in ((0.0, 0.4) if j == 1 else (0.0,))
]
FLAGS = ("targets_first", "pass_on", "gather_ahead")
PIPELINES = [
    PipeTGLOutline(sends=sends, groups=groups, sampling=sampling, **dict(zip(FLAGS, values, strict=True)))
    for sends in ("gradients", "weights_and_moments")
    for groups in (1, 2)
    for sampling in ("background", "ahead", "at_once")
    for values in product((False, True), repeat=len(FLAGS))
]
