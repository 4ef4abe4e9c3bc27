"""Scores of links."""

import pytest
import torch

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.models.memory.heads import LinkPredictor


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "links", "negatives"), [(5, 40, 2), (40, 5, 1), (7, 7, 3), (3, 0, 1)])
def test_links_between_rows_are_those_of_their_embeddings(rows, links, negatives, dtype):
    torch.manual_seed(0)
    predictor = LinkPredictor(8).to(dtype)
    embeddings = torch.randn(rows, 8, dtype=dtype, requires_grad=True)
    places = torch.randint(rows, (links, 2 + negatives))
    gathered = embeddings[torch.cat([places[:, 0], places[:, 1], places[:, 2:].flatten()])]
    wanted = [embeddings, *predictor.parameters()]
    found, expected = (
        (both, torch.autograd.grad(both[0].exp().sum() + both[1].sin().sum(), wanted))
        for both in (predictor.for_rows(embeddings, places), predictor(gathered, links, negatives))
    )
    assert [one.shape for one in found[0]] == [(links,), (links, negatives)]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [30, 50])
def test_rows_that_are_not_one_for_each_end_are_refused(rows, dtype):
    with pytest.raises(
        InvalidArgumentError, match=rf"destinations must be of shape \[30, 8\], got \[{rows - 10}, 8\]; gi"
    ):
        LinkPredictor(8).to(dtype)(torch.zeros(rows, 8, dtype=dtype), 10, 2)


def test_a_last_layer_may_have_no_bias():
    predictor, embeddings = LinkPredictor(8), torch.randn(40, 8)
    expected = [logits - predictor.out.bias for logits in predictor(embeddings, 10, 2)]
    predictor.out.bias = None
    torch.testing.assert_close(list(predictor(embeddings, 10, 2)), expected)


def test_a_last_layer_of_another_kind_is_called():
    class Doubled(torch.nn.Linear):
        def forward(self, rows):
            return 2 * super().forward(rows)

    predictor, embeddings = LinkPredictor(8), torch.randn(40, 8)
    expected = [2 * logits for logits in predictor(embeddings, 10, 2)]
    doubled = Doubled(8, 1)
    doubled.load_state_dict(predictor.out.state_dict())
    predictor.out = doubled
    torch.testing.assert_close(list(predictor(embeddings, 10, 2)), expected)
