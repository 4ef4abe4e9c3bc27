"""Outlines of every plan, with every option."""

from itertools import product

from lightning_tgnn.algorithms.schedules import EpochsAndCopies
from lightning_tgnn.algorithms.schedules.outlines import (
    data_parallel,
    in_order,
    mean_gradients,
    pipelined,
    updated_by_owners,
)
from lightning_tgnn.algorithms.schedules.pipetgl import PipeTGLOutline
from lightning_tgnn.strategies.parts import MeanGradients, Pipelined, ReadOnce, Served, Sharded
from lightning_tgnn.types import Plan, RankLayout
from lightning_tgnn.types.layout import families_of
from lightning_tgnn.types.outline import RowShares


def sharing(name, order, delay=0):
    return data_parallel(name, order, mean_gradients(order, delay), delay=delay)


def copies(minibatch=1, epoch=1, memory=1, *, fetch_ahead=True, sharded=False):
    """Return the plan of copies of node state that are served, or cut over their ranks."""
    ranks = minibatch * epoch * memory
    layout = RankLayout.of(ranks, families=families_of(ranks, memory))
    schedule, rows = EpochsAndCopies(minibatch, epoch, memory), Sharded() if sharded else Served()
    order = Pipelined(1, fetch_ahead) if sharded and epoch == 1 else ReadOnce(fetch_ahead)
    return Plan(layout, schedule, rows, order, MeanGradients())


DATA_PARALLEL = [
    sharing("depcache", in_order()),
    sharing("depcomm", updated_by_owners()),
    *(
        sharing("sven", pipelined(n, RowShares(ahead=ahead)), delay)
        for n in (1, 3)
        for ahead in (0.0, 0.4)
        for delay in (0, 1)
    ),
    *(sharing("sharded, in order", in_order(rows="all_to_all", updates="all_to_all"), delay) for delay in (0, 1)),
]
SERVED = [copies(*ijk, fetch_ahead=ahead) for ijk in product((1, 2), (1, 3), (1, 2)) for ahead in (True, False)]
CUT = [
    (copies(i, j, k, sharded=True), RowShares(ahead=ahead))
    for i, j, k in product((1, 2), (1, 3), (1, 2))
    for ahead in ((0.0, 0.4) if j == 1 else (0.0,))
]
FLAGS = ("targets_first", "pass_on")
PIPELINES = [
    PipeTGLOutline(sends=sends, groups=groups, sampling=sampling, **dict(zip(FLAGS, values, strict=True)))
    for sends in ("gradients", "weights_and_moments")
    for groups in (1, 2)
    for sampling in ("background", "ahead")
    for values in product((False, True), repeat=len(FLAGS))
]
