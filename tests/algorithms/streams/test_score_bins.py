import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_tgnn.algorithms.streams.score_bins import bin_counts, precision_recall

SCORES = st.lists(st.integers(0, 8).map(lambda eighths: eighths / 8), max_size=20)


@given(SCORES)
def test_counts_are_those_of_a_histogram(scores):
    counts = bin_counts(torch.tensor(scores), 0, 1, 8)
    assert counts.tolist() == np.histogram(scores, bins=8, range=(0, 1))[0].tolist()
    assert counts.dtype == torch.float64


def test_what_lies_beyond_the_ends_is_counted_at_the_ends():
    assert bin_counts(torch.tensor([-5.0, 3.0, 9.0, 40.0]), 0, 10, 5).tolist() == [1, 1, 0, 0, 2]


@given(SCORES, SCORES)
def test_the_curve_is_that_of_each_threshold(positives, negatives):
    curve = precision_recall(*(bin_counts(torch.tensor(scores), 0, 1, 4) for scores in (positives, negatives)))
    for place, threshold in enumerate((0, 0.25, 0.5, 0.75)):
        true, false = (sum(score >= threshold for score in scores) for scores in (positives, negatives))
        assert curve["true_positives"][place] == true
        assert curve["false_positives"][place] == false
        assert curve["false_negatives"][place] == len(positives) - true
        assert curve["true_negatives"][place] == len(negatives) - false
        assert curve["precision"][place] == (true / (true + false) if true + false else 1)
        assert curve["recall"][place] == (true / len(positives) if positives else 0)
