"""Plans in the order in which they are recommended, and what speaks against the others."""

from dataclasses import replace

import pytest

from lightning_tgnn.algorithms.schedules.links import Link, Links
from lightning_tgnn.algorithms.schedules.outlines import data_parallel, in_order, mean_gradients, pipelined
from lightning_tgnn.algorithms.schedules.parallelism import parallelisms, sharing_ranks
from lightning_tgnn.algorithms.schedules.pipetgl import PipeTGLOutline
from lightning_tgnn.algorithms.schedules.planner import Candidate, Cluster, Stream, assess, calibrated, rank
from lightning_tgnn.algorithms.schedules.simulator import Costs, simulate
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.types import RankLayout
from tests.algorithms.schedules.example_outlines import copies

LINKS = Links(Link(0, 1e10), Link(0, 1e7))
COSTS = Costs({"update": 0.002, "backward": 0.02, "step": 0.001}, {"gradients": 1e6}, LINKS)
COPY = 10**9


def stream(largest, max_loss=0.5):
    return Stream(lambda events: max_loss * events / largest, max_loss, COPY)


def copies_of(found, batch, machines):
    outline = copies(*found).outline()
    at_once = found.minibatch * found.epoch * found.memory
    sharing = batch * found.minibatch
    return Candidate("disttgl", found._asdict(), outline, COSTS, batch, sharing, at_once, found.memory / machines)


def test_the_example_of_the_paper_is_what_is_recommended():
    """4 machines of 8, a largest batch of 3,200, devices saturated at 1,600, two copies fit: 2 x 2 x 8."""
    cluster = Cluster(4, 8, LINKS, memory=2.5 * COPY)
    allowed = parallelisms(4, 8, sharing=sharing_ranks(3200, 1600), copies=2)
    first, *others = rank([copies_of(found, 1600, 4) for found in allowed], cluster, stream(3200))
    assert first.candidate.options == {"minibatch": 2, "epoch": 2, "memory": 8}
    assert first.state_bytes == 2 * COPY
    assert first.loss == pytest.approx(0.5)
    assert first.candidate.written == "disttgl:minibatch=2:epoch=2:memory=8"
    assert all(other.staleness > first.staleness for other in others)


def sharing(name, order, copies, costs, delay=0):
    outline = data_parallel(name, order, mean_gradients(order, delay), delay=delay)
    return Candidate(name, {}, outline, costs, 100, 400, 4, copies)


def test_the_fastest_is_recommended_and_what_does_not_fit_comes_last():
    cluster = Cluster(2, 2, LINKS, memory=1.5 * COPY)
    busy = replace(COSTS, sent={"gradients": 1e6, "rows": 4e5, "updates": 2e5})
    sven = sharing("sven", pipelined(), 0.5, busy, delay=1)
    depcache = sharing("depcache", in_order(), 2, replace(COSTS, sent={"updates": 2e5}))
    pipe = PipeTGLOutline(groups=2).of(4)
    pipetgl = Candidate("pipetgl", {"groups": 2}, pipe, COSTS, 100, 100, 4, 1)
    found = rank([depcache, sven, pipetgl], cluster, stream(400))
    assert [one.candidate.strategy for one in found] == ["pipetgl", "sven", "depcache"]
    assert found[-1].objection == "node state does not fit: 2.00 GB on a machine with 1.50 GB"
    assert found[0].events_per_second > found[1].events_per_second
    found = rank([depcache, sven, pipetgl], cluster, stream(200))
    assert [one.candidate.strategy for one in found if not one.objection] == ["pipetgl"]
    lost = {one.candidate.strategy: one.objection for one in found}
    assert lost["sven"] == "global batches of 400 events lose 100% of the updates of node memory, more than 50%"
    with pytest.raises(InvalidArgumentError, match="candidates must be plans of which one can be recommended, got 'sv"):
        rank([sven], cluster, stream(200))
    with pytest.raises(InvalidArgumentError, match="got 'none'; give more --memory"):
        rank([], cluster, stream(200))


def test_among_plans_as_fast_the_least_stale_is_recommended():
    cluster = Cluster(1, 4, LINKS, memory=8 * COPY)
    plans = [sharing("late", in_order(), 1, COSTS, delay=1), sharing("at once", in_order(), 1, COSTS)]
    late, at_once = (assess(plan, cluster, stream(400)) for plan in plans)
    assert late.events_per_second > at_once.events_per_second * 1.001
    assert rank(plans, cluster, stream(400))[0].candidate.strategy == "at once"
    assert rank(plans, cluster, stream(400), tolerance=0.0)[0].candidate.strategy == "late"
    assert rank(plans[:1], cluster, stream(400))[0].staleness == 1


@pytest.mark.parametrize(
    ("outline", "sent", "bytes_sent"),
    [
        (sharing("", in_order(), 1, COSTS).outline, {"updates": 10.0, "gradients": 100.0}, 3 * 10 + 2 * 3 / 4 * 100),
        (sharing("", pipelined(), 1, COSTS).outline, {"rows": 10.0, "updates": 7.0}, 17),
        (PipeTGLOutline(pass_on=True).of(4), {"hand": 10.0, "gradients": 100.0}, 10 + 3 * 100),
        (PipeTGLOutline(pass_on=True, groups=2).of(4), {"hand": 10.0, "gradients": 100.0}, 10 + 100 + 100),
        (PipeTGLOutline(pass_on=True, groups=4).of(4), {"hand": 10.0, "gradients": 100.0}, 2 * 3 / 4 * 100),
        (copies(memory=4).outline(), {"gradients": 100.0}, 150),
    ],
)
def test_bytes_are_those_that_reach_others(outline, sent, bytes_sent):
    plan = Candidate("", {}, outline, Costs({"backward": 1.0}, sent, LINKS), 10, 10, 1, 1)
    found = assess(plan, Cluster(1, 4, LINKS, COPY), stream(100))
    assert 10 * found.sent_per_event == pytest.approx(bytes_sent)


def test_the_simulator_says_what_was_measured_once_it_is_calibrated():
    outline, layout = copies(memory=2).outline(), RankLayout.of(2)
    found = calibrated(outline, layout, COSTS, 0.05)
    assert simulate(outline, layout, found, 24).period == pytest.approx(0.05, rel=1e-4)
    shares = {name: float(found.seconds[name]) / seconds for name, seconds in COSTS.seconds.items()}
    assert len({round(share, 6) for share in shares.values()}) == 1
    assert calibrated(outline, layout, COSTS, 0.001) is COSTS
