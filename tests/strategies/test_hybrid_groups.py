"""What is counted of a step on a made-up snapshot, compared with what a step on vertices that are cut exchanges."""

import pytest
import torch

from lightning_tgnn.algorithms.partitions.vertex_shares import RowLinks
from lightning_tgnn.models import SnapshotOperators
from lightning_tgnn.strategies.parts.hybrid_groups import _CountedOperators
from lightning_tgnn.strategies.parts.vertex_shares import SharedOperators
from tests.models.recurrent.snapshots import random_sequence
from tests.models.recurrent.test_recurrent_models import ROWS, WIDTH, model_of


class _Travels(torch.autograd.Function):
    """Writes down the widths of rows, forward and backward."""

    @staticmethod
    def forward(ctx, rows, widths):
        ctx.widths = widths
        widths.append(rows.shape[1])
        return rows.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.widths.append(grad.shape[1])
        return grad, None


class Exchange:
    """Of one rank; writes down what would travel."""

    ranks = 1

    def __init__(self):
        self.counted, self.widths = 0, {"features": [], "rows of all": []}

    def counts(self, counts, operation):
        self.counted += 1
        return counts

    def with_gradient(self, rows, sent, received, operation):
        return _Travels.apply(rows, self.widths[operation])


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tgcn", {}),
        ("wd_gcn", {}),
        ("wd_gcn", {"convolution": "chebyshev", "chebyshev_order": 3}),
        ("wd_gcn", {"convolution": "rgcn", "relations": 2}),
        ("evolvegcn_o", {}),
        ("evolvegcn_h", {}),
    ],
)
def test_exchanges_are_counted_as_they_are_made(name, options, last):
    (snapshot,) = random_sequence((ROWS,), ROWS, WIDTH, num_relations=options.get("relations", 1))
    model, exchange = model_of(name, **options), Exchange()
    shared = SharedOperators(SnapshotOperators(reuse=False), exchange)
    shared.links[snapshot.number] = RowLinks(torch.empty(0, dtype=torch.int64), (0,), (0,))
    counted = _CountedOperators(SnapshotOperators(reuse=False))
    for operators in (shared, counted):
        carried, embeddings = model.step(snapshot, model.start(ROWS), operators, last=last)
        made = [value for value in (*carried, embeddings) if value is not None and value.requires_grad]
        torch.autograd.backward([value.sum() for value in made])
    of_neighbors, of_all = exchange.widths.values()
    assert (counted.neighbors, counted.everyones) == (sum(of_neighbors), sum(of_all))
    assert counted.exchanges == len(of_neighbors) + len(of_all) + exchange.counted
    assert bool(of_all) == (name == "evolvegcn_h")
    assert bool(of_neighbors) == (name != "evolvegcn_o" or last)
