"""Vertex-cut partitions: every edge belongs to one rank, and a vertex is on each rank that has one of its edges."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.algorithms.partitions.replicas import CutReport, Replicas, cut_report
from lightning_tgnn.algorithms.partitions.simple import check_ids, metis_partition
from lightning_tgnn.algorithms.streams.counter_random import counter_hash
from lightning_tgnn.checks import (
    InvalidArgumentError,
    check_choice,
    check_int,
    check_not_negative,
    check_share,
)

CUT_METHODS = ("hierarchical", "ebv", "hdrf", "random", "metis")
AUTO = "auto"
_TRIED = ("hierarchical", "hdrf", "metis")
_MOST_EDGES_OF_METIS = 4_000_000  # which it cuts in seconds
_CHUNK = 1 << 22


def vertex_cut(
    src: Tensor,
    dst: Tensor,
    num_nodes: int,
    hosts: Tensor,
    method: str = "hierarchical",
    *,
    gamma: float = 0.1,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> Tensor:
    """Assign every edge to a rank.

    The ends of the edges may be mapped from files. Besides these and the result, memory holds an order of the edges and
    a byte for each vertex and rank.

    ``"hierarchical"`` takes edges in the order of the sum of their ends' degrees. Each edge goes to the rank with the
    least ``(1 - gamma) * new replicas + gamma * hosts new to a vertex + alpha * edges + beta * vertices`` (CDFGNN, Eq.
    24); ``"ebv"`` is the same with gamma = 0. ``"hdrf"`` (Petroni et al., CIKM 2015) prefers to cut vertices of high
    degree, ``"random"`` hashes the edge, ``"metis"`` gives an edge to the rank that METIS gives its destination.

    Loops are left out of this and go to their vertex's master afterwards, where they make no replica. Where they do not
    come last, the other edges are copied.

    Args:
        src: Integers [E].
        dst: Integers [E].
        num_nodes: N.
        hosts: int64 [P], the host of every rank, from 0 on.
        method: One of `CUT_METHODS`.
        gamma: Weight of hosts against ranks, in [0, 1]; only ``"hierarchical"`` has it.
        alpha: Weight of the balance of edges.
        beta: Weight of the balance of vertices.

    Returns:
        int32 [E], the rank of every edge.

    Raises:
        InvalidArgumentError: ``method`` is unknown, there are fewer edges than ranks, or an argument is out of range.
    """
    check_choice("partition", method, CUT_METHODS)
    check_int("num_nodes", num_nodes, minimum=1, cure="give the number of nodes, N")
    for name, value in (("alpha", alpha), ("beta", beta)):
        check_not_negative(name, value, cure="the paper's are gamma = 0.1, alpha = beta = 1")
    check_share("gamma", gamma, cure="0.1 is usual")
    check_ids("src", src, num_nodes)
    check_ids("dst", dst, num_nodes)
    if src.shape != dst.shape:
        raise InvalidArgumentError("dst", f"as long as src, {len(src)}", len(dst), "give both ends of every edge")
    check_enough_edges(len(src), len(hosts))
    loops = src == dst
    others = len(src) - int(loops.sum())
    if not len(hosts) <= others < len(src):
        return _cut(src, dst, num_nodes, hosts, method, gamma, alpha, beta)
    kept = ~loops if bool(loops[:others].any()) else slice(others)
    part = torch.empty(len(src), dtype=torch.int32)
    part[kept] = _cut(src[kept], dst[kept], num_nodes, hosts, method, gamma, alpha, beta)
    replicas = Replicas.of(src[kept], dst[kept], part[kept], num_nodes, hosts)
    master = torch.cat([placed.master.to(torch.int32) for placed in replicas.pieces()])
    part[loops] = master[src[loops].long()]
    return part


def best_cut(
    src: Tensor, dst: Tensor, num_nodes: int, hosts: Tensor, *, relay: bool = True
) -> tuple[Tensor, dict[str, int]]:
    """Return the cut that moves the fewest rows, and the rows of each cut that was tried.

    ``"hierarchical"``, ``"hdrf"`` and, up to 4 million edges, ``"metis"`` are tried. Rows between hosts count where
    there are several, all rows of mirrors where there is one.

    Args:
        src: Integers [E].
        dst: Integers [E].
        num_nodes: N.
        hosts: int64 [P], the host of every rank.
        relay: Whether a row crosses to another host once, see `Placed.hops`.

    Returns:
        int32 [E], the rank of every edge; and by method the rows of a gather, which are as many in a scatter.

    Raises:
        InvalidArgumentError: There are fewer edges than ranks, or an end of an edge is no vertex.
    """
    methods = _TRIED if len(src) <= _MOST_EDGES_OF_METIS else _TRIED[:-1]
    best: Tensor | None = None
    rows: dict[str, int] = {}
    for method in methods:
        part = vertex_cut(src, dst, num_nodes, hosts, method)
        report = cut_report(part, Replicas.of(src, dst, part, num_nodes, hosts))
        count = _rows(report, hosts, relay=relay)
        if best is None or count < min(rows.values()):
            best = part
        rows[method] = count
    assert best is not None
    return best, rows


def _rows(report: CutReport, hosts: Tensor, *, relay: bool) -> int:
    """Return the rows of a gather that count."""
    if len(hosts.unique()) == 1:
        return report.inner
    return report.crossing if relay else report.outer


def _cut(
    src: Tensor,
    dst: Tensor,
    num_nodes: int,
    hosts: Tensor,
    method: str,
    gamma: float,
    alpha: float,
    beta: float,
) -> Tensor:
    """Return the rank of every edge, int32 [E], loops as other edges; arguments as in `vertex_cut`."""
    assign: dict[str, Callable[[], Tensor]] = {
        "hierarchical": lambda: _by_evaluation(src, dst, num_nodes, hosts, gamma, alpha, beta),
        "ebv": lambda: _by_evaluation(src, dst, num_nodes, hosts, 0.0, alpha, beta),
        "hdrf": lambda: _by_hdrf(src, dst, num_nodes, len(hosts)),
        "random": lambda: _by_hash(src, dst, len(hosts)),
        "metis": lambda: metis_partition(src, dst, num_nodes, len(hosts))[dst.long()].to(torch.int32),
    }
    return assign[method]()


def check_enough_edges(edges: int, ranks: int) -> None:
    """Refuse more ranks than edges.

    Raises:
        InvalidArgumentError: There are more ranks than edges.
    """
    if edges < ranks:
        cure = "use fewer ranks, or a graph with more edges"
        raise InvalidArgumentError("ranks", f"at most one for each of {edges} edges", ranks, cure)


def _by_evaluation(
    src: Tensor, dst: Tensor, num_nodes: int, hosts: Tensor, gamma: float, alpha: float, beta: float
) -> Tensor:
    from lightning_tgnn.algorithms.partitions import vertex_cut_loops  # late: the compiler is slow to import

    ends, starts = dst.numpy(), src.numpy()
    order = np.empty(len(starts), np.int32 if len(starts) < 1 << 31 else np.int64)
    vertex_cut_loops.order_by_degrees(starts, ends, num_nodes, order)
    seen = np.zeros((num_nodes, len(hosts)), np.uint8)
    by_host = np.zeros((num_nodes, int(hosts.max()) + 1), np.uint8)
    return torch.from_numpy(
        vertex_cut_loops.assign_by_evaluation(starts, ends, order, hosts.numpy(), seen, by_host, gamma, alpha, beta)
    )


def _by_hash(src: Tensor, dst: Tensor, ranks: int) -> Tensor:
    pieces = zip(src.split(_CHUNK), dst.split(_CHUNK), strict=True)
    return torch.cat([(counter_hash(one.long(), other.long()) % ranks).to(torch.int32) for one, other in pieces])


def _by_hdrf(src: Tensor, dst: Tensor, num_nodes: int, ranks: int) -> Tensor:
    from lightning_tgnn.algorithms.partitions.vertex_cut_loops import assign_by_hdrf

    seen = np.zeros((num_nodes, ranks), np.uint8)
    return torch.from_numpy(assign_by_hdrf(src.numpy(), dst.numpy(), seen, 1.1))
