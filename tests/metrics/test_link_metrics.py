"""Which metrics of a split are there."""

import pytest
import torch

from lightning_tgnn.metrics.link_metrics import LinkMetrics


@pytest.mark.parametrize(("negatives", "is_there"), [([18], False), ([19], True), ([3, 40], True), ([], False)])
def test_hits_at_10_are_left_out_where_chance_gets_half_of_them(negatives, is_there):
    metrics = LinkMetrics()
    metrics.rank(torch.rand(4), torch.rand(4, 99))
    metrics.reset()
    for number in negatives:
        metrics.update(torch.rand(5), torch.rand(5, number), torch.zeros(5, dtype=torch.bool))
    found = metrics.compute()
    assert ("hits@10" in found) == is_there
    assert {"ap", "auc", "mrr", "expected_mrr"} <= set(found) <= set(metrics.names)
