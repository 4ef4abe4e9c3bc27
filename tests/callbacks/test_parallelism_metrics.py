"""What `ParallelismMonitor` makes of what ranks tell it, against plain sums."""

from itertools import product

import pytest
import torch

from lightning_tgnn.callbacks.parallelism_monitor import Factors, parallelism_metrics, spread_of_gradients


def square(vector):
    return sum(value * value for value in vector.tolist())


@pytest.mark.parametrize(("i", "j", "k"), [*product((1, 2), (1, 3), (1, 2))])
def test_the_spread_of_gradients_is_that_of_its_parts(i, j, k):
    ranks = i * j * k
    given = torch.randn(ranks, 5, generator=torch.Generator().manual_seed(ranks), dtype=torch.float64)
    copies = tuple(tuple(range(copy * i * j, (copy + 1) * i * j)) for copy in range(k))
    found = spread_of_gradients(given, Factors(copies, i, 0))

    mean = sum(given) / ranks
    parts = {"minibatch": 0.0, "epoch": 0.0, "memory": 0.0}
    for copy in copies:
        within_copy = sum(given[rank] for rank in copy) / len(copy)
        parts["memory"] += square(within_copy - mean) / k
        for lane in range(j):
            sharing = copy[lane * i : (lane + 1) * i]
            of_batch = sum(given[rank] for rank in sharing) / i
            parts["epoch"] += square(of_batch - within_copy) / (j * k)
            parts["minibatch"] += sum(square(given[rank] - of_batch) for rank in sharing) / ranks
    whole = sum(square(gradient - mean) for gradient in given) / ranks
    assert found["parallelism/gradient_variance"] == pytest.approx(whole / square(mean), abs=1e-12)
    for name, value in parts.items():
        assert found[f"parallelism/gradient_variance_{name}"] == pytest.approx(value / square(mean), abs=1e-12)


def test_of_the_memory_process_the_first_ranks_of_copies_tell():
    factors = Factors(((0, 1), (2, 3)), 1, 0)
    counted = torch.tensor([[80, 30, 10, 15, 0.4, 0.1], [0] * 5 + [0.3], [20, 10, 10, 5, 0.2, 0.0], [0] * 5 + [0.2]])
    found = parallelism_metrics([0.5, 0.75, 1.0, 0.25], counted, 2.0, 10, factors)
    assert found == pytest.approx(
        {
            "parallelism/effective": 2.5,
            "memory_process/rows_read_per_second": 50.0,
            "memory_process/rows_written_per_second": 20.0,
            "memory_process/queue_depth": 1.0,
            "memory_process/busy_share": 0.15,
            "memory_process/wait_milliseconds": 15.0,
        }
    )
    assert parallelism_metrics([0.5], None, 2.0, 10, factors) == {"parallelism/effective": 0.5}
