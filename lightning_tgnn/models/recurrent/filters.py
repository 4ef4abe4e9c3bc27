"""Graph convolutions that are linear: products of a snapshot's edges, its rows and weights, in either order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError, check_int
from lightning_tgnn.types import Operators, Snapshot

FILTERS = ("gcn", "chebyshev", "rgcn")

Product = Callable[[Tensor, int], Tensor]
"""Multiplies the edges of a relation with rows [n_(k-1), d]: [n_k, d]."""


class GraphFilter(ABC):
    """``sum_s H_s X W_s`` over some terms, where every ``H_s`` is a polynomial of the matrices of edges.

    Args:
        terms: S, how many matrices of weights there are.
    """

    def __init__(self, terms: int) -> None:
        self.terms = terms

    @abstractmethod
    def filtered(self, rows: Tensor, product: Product) -> Sequence[Tensor]:
        """Return ``H_s X`` of every term, [n_k, d_in] each."""

    @abstractmethod
    def combined(self, rows: Sequence[Tensor], product: Product) -> Tensor:
        """Return the sum of ``H_s Y_s`` [n_k, d_out] of ``Y_s = X W_s`` [n_(k-1), d_out]."""

    def __call__(
        self, rows: Tensor, weight: Tensor, bias: Tensor | None, snapshot: Snapshot, layer: int, operators: Operators
    ) -> Tensor:
        """Return the convolution of rows, [n_k, d_out].

        Args:
            rows: X, float32 [n_(k-1), d_in].
            weight: W, [S, d_in, d_out].
            bias: [d_out].
            snapshot: Whose edges are multiplied with.
            layer: From 0.
            operators: Which order they take, and who runs the products with the graph.
        """

        def product(values: Tensor, relation: int) -> Tensor:
            with operators.timed("graph", layer):
                return operators.aggregate(snapshot, layer, values, relation)

        if operators.weights_first(layer, weight.shape[1], weight.shape[2]):
            with operators.timed("nn", layer):
                weighted = [rows @ term_weight for term_weight in weight]
            result = self.combined(weighted, product)
            return result if bias is None else result + bias
        filtered = self.filtered(rows, product)
        with operators.timed("nn", layer):
            first = filtered[0] @ weight[0] if bias is None else torch.addmm(bias, filtered[0], weight[0])
            for values, term_weight in zip(filtered[1:], weight[1:], strict=True):
                first = torch.addmm(first, values, term_weight)
        return first


class GCNFilter(GraphFilter):
    """``H X W`` (Kipf and Welling, ICLR 2017), with the normalised edges as they are."""

    def __init__(self) -> None:
        super().__init__(1)

    def filtered(self, rows: Tensor, product: Product) -> Sequence[Tensor]:
        """Return ``H X``."""
        return (product(rows, 0),)

    def combined(self, rows: Sequence[Tensor], product: Product) -> Tensor:
        """Return ``H Y``."""
        return product(rows[0], 0)


class ChebyshevFilter(GraphFilter):
    """``sum_k T_k(H) X W_k`` (Defferrard et al., NeurIPS 2016), T_k the Chebyshev polynomials.

    With the greatest eigenvalue taken for 2, as usual, the scaled Laplacian is ``-H`` of edges with symmetric weights
    and without self-loops; the weights of odd terms take up the sign.

    Args:
        order: The degree of the last polynomial, at least 1. From 2 on a layer has to make rows of all vertices that
            it reads.
    """

    def __init__(self, order: int) -> None:
        check_int("chebyshev_order", order, minimum=1, cure="2 is usual")
        super().__init__(order + 1)

    def filtered(self, rows: Tensor, product: Product) -> Sequence[Tensor]:
        """Return ``T_k(H) X``, by the recursion of the polynomials."""
        terms = [rows, self._square(product(rows, 0), rows)]
        while len(terms) < self.terms:
            terms.append(torch.sub(2 * product(terms[-1], 0), terms[-2]))
        return [rows[: len(terms[1])], *terms[1:]]

    def combined(self, rows: Sequence[Tensor], product: Product) -> Tensor:
        """Return the sum, by Clenshaw's recursion."""
        ahead, above = None, rows[-1]
        for values in reversed(rows[1:-1]):
            below = torch.add(values, self._square(product(above, 0), above), alpha=2)
            ahead, above = above, below if ahead is None else below - ahead
        result = self._square(product(above, 0), above)
        result = result + rows[0][: len(result)]
        return result if ahead is None else result - ahead

    def _square(self, result: Tensor, rows: Tensor) -> Tensor:
        if self.terms > 2 and len(result) != len(rows):
            requirement = "1 where a layer makes rows of fewer vertices than it reads"
            cure = f"set chebyshev_order=1, or SnapshotDataModule(num_hops={self.terms - 1})"
            raise InvalidArgumentError("chebyshev_order", requirement, self.terms - 1, cure)
        return result


class RGCNFilter(GraphFilter):
    """``X W_0 + sum_r H_r X W_r`` over the kinds of edges (Schlichtkrull et al., ESWC 2018).

    Args:
        num_relations: R, kinds of edges.
    """

    def __init__(self, num_relations: int) -> None:
        super().__init__(num_relations + 1)

    def filtered(self, rows: Tensor, product: Product) -> Sequence[Tensor]:
        """Return ``X`` and every ``H_r X``."""
        products = [product(rows, relation) for relation in range(self.terms - 1)]
        return [rows[: len(products[0])], *products]

    def combined(self, rows: Sequence[Tensor], product: Product) -> Tensor:
        """Return the sum over the relations."""
        result = product(rows[1], 0)
        for relation in range(1, self.terms - 1):
            result = result + product(rows[relation + 1], relation)
        return result + rows[0][: len(result)]


def make_filter(name: str, chebyshev_order: int, num_relations: int) -> GraphFilter:
    """Return a filter by its name, one of `FILTERS`.

    Raises:
        InvalidArgumentError: Edges are of several kinds, and the filter is not ``"rgcn"``.
    """
    if name == "rgcn":
        return RGCNFilter(num_relations)
    if num_relations > 1:
        cure = "set convolution='rgcn', or give snapshots whose edges are of one kind"
        raise InvalidArgumentError("convolution", f"'rgcn' with {num_relations} kinds of edges", name, cure)
    return GCNFilter() if name == "gcn" else ChebyshevFilter(chebyshev_order)
