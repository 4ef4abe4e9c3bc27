"""Scores of links."""

import pytest
import torch

from lightning_tgnn.models.memory.heads import LinkPredictor


@pytest.mark.parametrize(("rows", "links", "negatives"), [(5, 40, 2), (40, 5, 1), (7, 7, 3), (3, 0, 1)])
def test_links_between_rows_are_those_of_their_embeddings(rows, links, negatives):
    torch.manual_seed(0)
    predictor = LinkPredictor(8).double()
    embeddings = torch.randn(rows, 8, dtype=torch.float64, requires_grad=True)
    places = torch.randint(rows, (links, 2 + negatives))
    gathered = embeddings[torch.cat([places[:, 0], places[:, 1], places[:, 2:].flatten()])]
    wanted = [embeddings, *predictor.parameters()]
    found, expected = (
        (both, torch.autograd.grad(both[0].exp().sum() + both[1].sin().sum(), wanted))
        for both in (predictor.of_rows(embeddings, places), predictor(gathered, links, negatives))
    )
    assert [one.shape for one in found[0]] == [(links,), (links, negatives)]
    torch.testing.assert_close(found, expected)
