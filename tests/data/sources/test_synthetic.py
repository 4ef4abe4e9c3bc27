import doctest
import inspect
from collections import Counter, defaultdict, deque
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.data.sources import synthetic
from lightning_tgnn.data.sources.synthetic import generate_stream
from lightning_tgnn.data.streams.event_store import EventStore

COLUMNS = ("src", "dst", "time", "edge_features", "node_features", "labels")


def truth(seed: int = 0, **changed: Any) -> synthetic._Draft:
    """Return what is behind the stream of ``generate_stream(seed=seed, **changed)``."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(generate_stream).parameters.items()}
    names = inspect.signature(synthetic._Settings).parameters
    return synthetic._draw(
        synthetic._Settings(**{name: (defaults | changed)[name] for name in names}), np.random.default_rng(seed)
    )


def by_source(draft: synthetic._Draft) -> dict[int, list[int]]:
    events = defaultdict(list)
    for event, source in enumerate(draft.src.tolist()):
        events[source].append(event)
    return events


def evaluate(draft: synthetic._Draft, num_sources: int, seed: int) -> dict[str, float]:
    """Score the last 15 % of the events against a random destination each; return average precisions."""
    src, dst, interest = draft.src.tolist(), draft.dst.tolist(), draft.interest.tolist()
    negatives = np.random.default_rng(seed + 1000).integers(num_sources, len(draft.home), len(src)).tolist()
    start = int(0.85 * len(src))
    popular = Counter(dst[:start])
    seen: set[tuple[int, int]] = set()
    partners: dict[int, deque[int]] = defaultdict(lambda: deque(maxlen=10))
    fashion: dict[int, deque[int]] = defaultdict(lambda: deque(maxlen=50))
    scores: dict[str, list[float]] = defaultdict(list)
    for event, (source, target, community) in enumerate(zip(src, dst, interest, strict=True)):
        for candidate in (target, negatives[event]) if event >= start else ():
            recent, current = partners[source], fashion[community]
            in_fashion = current.count(candidate) / 50 if draft.home[candidate] == community else 0
            at_home = 0.01 * (draft.home[candidate] == community)
            scores["edgebank"].append((source, candidate) in seen)
            scores["popularity"].append(popular[candidate])
            scores["oracle"].append(recent.count(candidate) / 10 + in_fashion + at_home)
        seen.add((source, target))
        partners[source].append(target)
        fashion[community].append(target)
    truth_of_pairs = [1, 0] * (len(src) - start)
    return {name: float(average_precision_score(truth_of_pairs, values)) for name, values in scores.items()}


def assert_equal(first: EventStore, second: EventStore) -> None:
    assert first.fingerprint == second.fingerprint
    for name in COLUMNS:
        torch.testing.assert_close(getattr(first, name), getattr(second, name), rtol=0, atol=0)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_memorised_edges_beat_chance_and_knowing_the_present_beats_them(seed: int) -> None:
    precision = evaluate(truth(seed), num_sources=500, seed=seed)
    assert 0.70 < precision["edgebank"] < 0.80
    assert precision["oracle"] > 0.92


def test_static_knowledge_ages_with_drift_only() -> None:
    assert evaluate(truth(), num_sources=500, seed=0)["popularity"] < 0.65
    assert evaluate(truth(drift=0.0), num_sources=500, seed=0)["popularity"] > 0.80


def test_a_seed_gives_one_stream() -> None:
    arguments = dict(num_events=3000, edge_feature_dim=3, node_feature_dim=2, with_labels=True)
    assert_equal(generate_stream(**arguments, seed=5), generate_stream(**arguments, seed=5))
    assert generate_stream(seed=5).fingerprint != generate_stream(seed=6).fingerprint


def test_features_leave_the_events_as_they_are() -> None:
    plain, rich = generate_stream(), generate_stream(edge_feature_dim=4, node_feature_dim=4, with_labels=True)
    assert plain.fingerprint == rich.fingerprint
    assert plain.edge_features is None
    assert plain.node_features is None
    assert plain.labels is None
    draft = truth()
    assert plain.dst.tolist() == draft.dst.tolist()
    assert rich.labels is not None
    assert rich.labels.tolist() == draft.arrival.astype(int).tolist()


@settings(deadline=None)
@given(
    num_events=st.integers(1, 400),
    num_sources=st.integers(1, 40),
    num_communities=st.integers(2, 8),
    spare=st.integers(0, 9),
    bipartite=st.booleans(),
    shares=st.tuples(*[st.floats(0, 0.99)] * 3),
    exponent=st.floats(0.01, 5),
    seed=st.integers(0, 2**32),
)
def test_every_stream_is_well_formed(
    num_events: int,
    num_sources: int,
    num_communities: int,
    spare: int,
    bipartite: bool,
    shares: tuple[float, float, float],
    exponent: float,
    seed: int,
) -> None:
    nodes = 2 * num_communities + spare
    counts = dict(num_sources=num_sources, num_destinations=nodes) if bipartite else dict(num_nodes=nodes)
    stream = generate_stream(
        num_events=num_events,
        bipartite=bipartite,
        num_communities=num_communities,
        repeat=shares[0],
        drift=shares[1],
        noise=shares[2],
        activity_exponent=exponent,
        seed=seed,
        **counts,
    )
    first_destination = num_sources if bipartite else 0
    assert stream.num_events == num_events
    assert stream.num_nodes == first_destination + nodes
    assert first_destination <= stream.dst.min() <= stream.dst.max() < stream.num_nodes
    assert 0 <= stream.src.min() <= stream.src.max() < (num_sources if bipartite else nodes)
    assert (stream.src != stream.dst).all()
    assert (stream.time.diff() >= 0).all()
    assert stream.time[0] >= 0


def test_interest_starts_at_home_and_changes_at_arrivals_only() -> None:
    draft = truth(drift=0.1)
    for source, events in by_source(draft).items():
        interest, arrival = draft.interest[events], draft.arrival[events]
        assert interest[0] == draft.home[source]
        assert not arrival[0]
        assert ((interest[1:] != interest[:-1]) == arrival[1:]).all()
    assert draft.arrival.mean() == pytest.approx(0.1, abs=0.01)
    assert set(draft.interest.tolist()) == set(range(10))


def test_without_drift_nobody_arrives() -> None:
    draft = truth(drift=0.0)
    assert not draft.arrival.any()
    assert (draft.interest == draft.home[draft.src]).all()


@pytest.mark.parametrize(("noise", "share"), [(0.0, 1.0), (0.4, 0.64)])
def test_without_repeats_destinations_are_of_the_community_but_for_the_noise(noise: float, share: float) -> None:
    draft = truth(repeat=0.0, noise=noise)
    at_home = draft.home[draft.dst] == draft.interest
    # Of the noise, one in ten communities fits by chance; an arrival is never noise.
    assert at_home.mean() == pytest.approx(share, abs=0.02)
    assert at_home[draft.arrival].all()


def test_an_arrival_goes_to_its_new_community_whatever_the_repeats() -> None:
    draft = truth(repeat=0.8, noise=0.5)
    assert draft.arrival.any()
    assert (draft.home[draft.dst] == draft.interest)[draft.arrival].all()


def test_repeats_follow_their_chain_to_the_event_that_chose() -> None:
    begin = np.repeat([0, 40, 45], [40, 5, 55])
    repeats = np.random.default_rng(1).random(100) < 0.8
    taken = synthetic._repeat_recent(begin, repeats, np.random.default_rng(2))
    lags = np.random.default_rng(2).geometric(1 / synthetic._RECENT_PARTNERS, size=100)
    for event in range(100):
        origin = event
        while repeats[origin] and origin - lags[origin] >= begin[origin]:
            origin -= lags[origin]
        assert taken[event] == origin
    assert (np.arange(100) - taken).max() > lags.max()


def test_sources_return_to_recent_partners() -> None:
    returns = []
    for repeat in (0.0, 0.3, 0.8):
        draft = truth(repeat=repeat)
        recent = [
            draft.dst[event] in draft.dst[events[max(0, place - 10) : place]]
            for events in by_source(draft).values()
            for place, event in enumerate(events)
        ]
        returns.append(np.mean(recent))
    # Fashion alone brings a source back to the same few destinations.
    never, sometimes, often = returns
    assert 0.4 < never < sometimes - 0.05
    assert sometimes + 0.1 < often < 0.85


def test_activity_is_a_power_law() -> None:
    shares = []
    for exponent in (0.01, 0.8, 1.5):
        events = np.sort(np.bincount(truth(activity_exponent=exponent).src, minlength=500))[::-1]
        shares.append(events[:50].sum() / events.sum())
    assert shares[0] < 0.2 < 0.45 < shares[1] < 0.65 < shares[2]


def test_most_nodes_take_part() -> None:
    stream = generate_stream()
    assert torch.cat([stream.src, stream.dst]).unique().numel() > 0.9 * stream.num_nodes
    assert generate_stream(num_events=10).num_nodes == stream.num_nodes == 1500


def test_events_come_in_bursts_at_a_hundred_seconds_each() -> None:
    draft = truth()
    assert draft.time[-1] / len(draft.time) == pytest.approx(100, rel=0.1)
    busiest = max(by_source(draft).values(), key=len)
    gaps = np.diff(draft.time[busiest])
    # A Poisson process has a deviation as large as its mean.
    assert gaps.std() > 1.5 * gaps.mean()


def test_features_tell_the_community() -> None:
    stream, home = generate_stream(edge_feature_dim=8, node_feature_dim=8), truth().home
    for features, community in (
        (stream.edge_features, home[stream.dst.numpy()]),
        (stream.node_features, home),
    ):
        assert features is not None
        assert features.dtype == torch.float32
        values, half = features.numpy(), len(features) // 2
        means = np.stack([values[:half][community[:half] == c].mean(axis=0) for c in range(10)])
        nearest = ((values[half:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
        assert 0.5 < (nearest == community[half:]).mean() < 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_events": 0}, "num_events must be an integer of at least 1, got 0; give the events"),
        ({"num_sources": 0}, "num_sources must be an integer of at least 1, got 0"),
        ({"num_destinations": 19}, "num_destinations must be an integer of at least 20, got 19; each of the"),
        ({"num_nodes": 30}, "num_nodes must be None in a bipartite stream, got 30; give num_sources"),
        ({"num_nodes": 19, "bipartite": False}, "num_nodes must be an integer of at least 20, got 19; each of the"),
        ({"num_nodes": 0, "bipartite": False}, "num_nodes must be an integer of at least 20, got 0"),
        ({"num_communities": 1}, "num_communities must be an integer of at least 2, got 1"),
        ({"repeat": 1.0}, r"repeat must be a number in \[0, 1\), got 1.0"),
        ({"drift": -0.1}, r"drift must be a number in \[0, 1\), got -0.1"),
        ({"noise": float("nan")}, r"noise must be a number in \[0, 1\), got nan"),
        ({"activity_exponent": 0}, "activity_exponent must be a finite number above 0, got 0"),
        ({"edge_feature_dim": -1}, "edge_feature_dim must be an integer of at least 0, got -1; give a width"),
        ({"node_feature_dim": 1.5}, "node_feature_dim must be an integer of at least 0, got 1.5"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
    ],
)
def test_refusals_name_what_came_and_the_cure(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        generate_stream(**arguments)


def test_the_example_of_the_docstring_holds() -> None:
    failed, attempted = doctest.testmod(synthetic)
    assert attempted > 0
    assert failed == 0
