"""Reads the edges of a `dgl.DGLGraph`, in the order of their numbers."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor
from typing_extensions import Self

from lightning_tgnn.checks import DataError


class DGLEdges(Protocol):
    """The edges of a `dgl.DGLGraph`."""

    canonical_etypes: list[tuple[str, str, str]]
    ntypes: list[str]
    is_block: bool

    def formats(self, formats: list[str]) -> Self:
        """Return the graph in any of some sparse formats."""
        ...

    def edges(self, *, order: str = ...) -> tuple[Tensor, Tensor]:
        """Return sources and destinations, int64 [E] each."""
        ...


def edges_of_dgl(graph: DGLEdges, *, two_sides: bool = False, where: str = "") -> tuple[Tensor, Tensor]:
    """Return sources and destinations [E] of a graph with one type of edges.

    Args:
        graph: Not a block, whose sources and destinations have numbers of their own.
        two_sides: Whether edges may lead from one type of vertices to another.
        where: Tells in a refusal which graph it is.

    Raises:
        DataError: ``graph`` is a block, or has several types of edges or vertices.
    """
    if graph.is_block:
        cure = "give dgl.block_to_graph(block), or the graph that it was drawn from"
        raise DataError("source", "a DGLGraph that is no block", f"a block{where}", cure)
    if len(graph.canonical_etypes) != 1 or not (two_sides or len(graph.ntypes) == 1):
        wanted = "one type of edges" if two_sides else "one type of vertices and edges"
        cure = "give one of them, graph.edge_type_subgraph([type]), or dgl.to_homogeneous(graph)"
        raise DataError("source", f"a DGLGraph with {wanted}", f"{graph.canonical_etypes}{where}", cure)
    return graph.formats(["coo", "csr", "csc"]).edges(order="eid")
