import pytest
import torch

from lightning_tgnn.algorithms.partitions.partition_cost import BatchShape, depcache_volume, depcomm_volume, sven_volume
from lightning_tgnn.callbacks.exchange_monitor import Counts, exchange_metrics, residual_figure
from lightning_tgnn.comm import Flow
from lightning_tgnn.types import StateSpec

SPEC = StateSpec(num_nodes=9, memory_dim=4, mail_dim=11, mailbox_size=1, own_half=True)


def two_ranks():
    first = {
        "dispatch": Flow(sent=100, received=60, calls=2, waited=0.5, in_flight=2.0, waits=2),
        "request": Flow(sent=8, received=8, calls=4, waited=3.0, in_flight=3.0, waits=2),
    }
    second = {
        "request": Flow(sent=8, received=8, calls=4, waited=3.0, in_flight=3.0, waits=2),
        "dispatch": Flow(sent=60, received=100, calls=2, waited=1.0, in_flight=2.0, waits=2),
    }
    ours = Counts(entries=50, distinct=20, written=12, distinct_written=9, asked=10, found=4, flows=first)
    theirs = Counts(entries=70, distinct=28, written=12, distinct_written=9, asked=6, found=4, flows=second)
    return torch.stack([ours.packed(), theirs.packed()])


def test_figures_by_hand():
    metrics = exchange_metrics(two_ranks(), ["request", "dispatch"], 2, SPEC)
    assert metrics["exchange/dispatch_bytes"] == 80
    assert metrics["exchange/request_bytes"] == 8
    assert metrics["exchange/total_bytes"] == 88
    assert metrics["exchange/max_over_mean"] == 1
    assert metrics["exchange/hidden_share"] == 1 - 1.5 / 4  # requests carry no rows
    assert metrics["exchange/cache_hit_rate"] == 0.5
    assert metrics["exchange/sampled_redundancy"] == pytest.approx(1 - 48 / 120)
    assert metrics["exchange/original_redundancy"] == pytest.approx(0.25)
    # (24 + 9) rows of 15 elements, half of them elsewhere, 4 bytes each.
    assert metrics["exchange/formula_sven_bytes"] == pytest.approx(33 * 15 * 0.5 * 4)


def test_formulas_are_those_of_the_volumes_at_the_sender():
    metrics = exchange_metrics(two_ranks(), ["dispatch", "request"], 2, SPEC)
    shape = BatchShape(2, 4, 11, 60, 1 - 48 / 120, 12, 0.25)
    for name, volume in {"sven": sven_volume, "depcomm": depcomm_volume, "depcache": depcache_volume}.items():
        assert metrics[f"exchange/formula_{name}_bytes"] == pytest.approx(volume(shape) * 4 / 2)


def test_the_busiest_rank_shows():
    flows = [{"dispatch": Flow(sent=30, received=0, calls=1)}, {"dispatch": Flow(sent=0, received=10, calls=1)}]
    packed = torch.stack([Counts(1, 1, 1, 1, 0, 0, flow).packed() for flow in flows])
    assert exchange_metrics(packed, ["dispatch"], 1, SPEC)["exchange/max_over_mean"] == 1.5


def test_nothing_exchanged_is_balanced_and_leaves_shares_out():
    metrics = exchange_metrics(Counts(5, 5, 2, 2, 0, 0, {}).packed().unsqueeze(0), [], 1, SPEC)
    assert metrics["exchange/total_bytes"] == 0
    assert metrics["exchange/max_over_mean"] == 1
    assert metrics["exchange/formula_sven_bytes"] == 0
    assert not {"exchange/hidden_share", "exchange/cache_hit_rate"} & set(metrics)


def test_the_heat_map_shows_the_residual():
    sent = 2**20 * torch.tensor([[0.0, 5.0, 1.0], [2.0, 0.0, 3.0], [4.0, 0.0, 0.0]], dtype=torch.float64)
    (image,) = residual_figure(sent).axes[0].images
    assert image.get_array().tolist() == [[0, 0, 4], [3, 0, 2], [1, 5, 0]]
