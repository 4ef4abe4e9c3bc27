"""The simple partitions of nodes over ranks with which Re-FlexBiCut is compared."""

from __future__ import annotations

from contextlib import redirect_stdout

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.algorithms.partitions.demand import check_ids
from lightning_tgnn.checks import InvalidArgumentError, check_int
from lightning_tgnn.native_output import without_native_output

PARTITION_METHODS = ("reflexbicut", "range", "interval", "metis")


def range_partition(num_nodes: int, ranks: int) -> Tensor:
    """Give every rank one range of consecutive nodes, as equal as can be (Sven, section 3.1.2).

    Args:
        num_nodes: N, at least 1.
        ranks: M, at least 1.

    Returns:
        int64 [N], the owner of every node.

    Raises:
        InvalidArgumentError: An argument is below 1.

    >>> range_partition(5, 2).tolist()
    [0, 0, 0, 1, 1]
    """
    _check(num_nodes, ranks)
    return torch.div(torch.arange(num_nodes) * ranks, num_nodes, rounding_mode="floor")


def interval_partition(num_nodes: int, ranks: int) -> Tensor:
    """Deal the nodes out in turn: node id modulo M (Sven, section 3.1.2).

    Args:
        num_nodes: N, at least 1.
        ranks: M, at least 1.

    Returns:
        int64 [N], the owner of every node.

    Raises:
        InvalidArgumentError: An argument is below 1.

    >>> interval_partition(5, 2).tolist()
    [0, 1, 0, 1, 0]
    """
    _check(num_nodes, ranks)
    return torch.arange(num_nodes) % ranks


def metis_partition(src: Tensor, dst: Tensor, num_nodes: int, ranks: int) -> Tensor:
    """Cut few edges between parts of about equal size: METIS on the undirected graph without repeats.

    The implementation is dgl's, or pymetis's where Python is too new for dgl. Their parts differ.

    Unlike the other partitions, it may give other parts at each call. One rank should compute them and send them to the
    others. Bisection is recursive, because dgl's k-way mode was erratic: measured on a graph of communities, its calls
    cut between 5 and 790 edges.

    Args:
        src: Integers [E], one end of every edge.
        dst: Integers [E], the other end.
        num_nodes: N, at least 1.
        ranks: M, at least 1.

    Returns:
        int64 [N], the owner of every node. It is `interval_partition` if no edge joins two nodes.

    Raises:
        InvalidArgumentError: dgl and pymetis are both missing, or an argument is out of range.
    """
    _check(num_nodes, ranks)
    check_ids("src", src, num_nodes)
    check_ids("dst", dst, num_nodes)
    if src.shape != dst.shape:
        raise InvalidArgumentError("dst", f"as long as src, {len(src)}", len(dst), "give both ends of every edge")
    ends = torch.cat([torch.stack([src, dst]), torch.stack([dst, src])], dim=1).to(torch.int64)
    edges = torch.unique((ends[0] * num_nodes + ends[1])[ends[0] != ends[1]])
    if ranks == 1 or len(edges) == 0:
        return interval_partition(num_nodes, ranks)
    return _metis(edges // num_nodes, edges % num_nodes, num_nodes, ranks).to(torch.int64)


def _metis(src: Tensor, dst: Tensor, num_nodes: int, ranks: int) -> Tensor:
    """Return the parts of METIS for sorted edges in both directions.

    Raises:
        InvalidArgumentError: dgl and pymetis are both missing.
    """
    try:
        import dgl
    except ImportError:
        return _metis_of_pymetis(src, dst, num_nodes, ranks)
    with redirect_stdout(None), without_native_output("metis"):  # dgl prints its times
        return dgl.metis_partition_assignment(dgl.graph((src, dst), num_nodes=num_nodes), ranks, mode="recursive")


def _metis_of_pymetis(src: Tensor, dst: Tensor, num_nodes: int, ranks: int) -> Tensor:
    try:
        import pymetis
    except ImportError as error:
        requirement, cure = "other than 'metis' without dgl or pymetis", "pip install pymetis, or take another method"
        raise InvalidArgumentError("partition", requirement, "metis", cure) from error
    starts = torch.searchsorted(src, torch.arange(num_nodes + 1))
    graph = pymetis.CSRAdjacency(starts.numpy(), dst.numpy())
    return torch.from_numpy(np.array(pymetis.part_graph(ranks, graph, recursive=True).vertex_part))


def _check(num_nodes: int, ranks: int) -> None:
    check_int("num_nodes", num_nodes, minimum=1, cure="give the number of nodes, N")
    check_int("ranks", ranks, minimum=1, cure="give the number of ranks, M")
