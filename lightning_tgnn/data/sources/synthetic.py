"""A synthetic event stream with communities, repeats, fashions, drift and bursts, to try things without a download.

Sources are interested in one community of destinations at a time. A source acts in short sessions; at each event it
returns to one of its own recent partners, or picks a destination that is in fashion in its community, or, rarely, any
destination. Interests and fashions move on, so that what was learnt once ages, and a list of the edges seen so far
(EdgeBank, Poursafaei et al. 2022, "Towards Better Evaluation for Dynamic Link Prediction") tells a true destination
from a random one only now and then.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from lightning_tgnn.checks import (
    InvalidArgumentError,
    check_bool,
    check_choice,
    check_fraction,
    check_int,
    check_positive,
)
from lightning_tgnn.data.streams.event_store import EventStore
from lightning_tgnn.files.memory import check_fits

_SOURCES, _DESTINATIONS = 500, 1000
_SECONDS_PER_EVENT = 100.0
_SECONDS_WITHIN_SESSION = 30.0
_EVENTS_PER_SESSION = 3.0
_RECENT_PARTNERS = 5.0
_FASHION_EXPONENT = 2.0
_FEATURE_NOISE = 1.0
# While a stream is drawn, at least.
_BYTES_PER_EVENT = 90
_BYTES_PER_NODE = 50
_BYTES_PER_FEATURE = 10


@dataclass(frozen=True)
class _Settings:
    num_events: int
    num_sources: int
    num_destinations: int
    bipartite: bool
    num_communities: int
    repeat: float
    drift: float
    activity_exponent: float
    noise: float

    def __post_init__(self) -> None:
        check_int("num_events", self.num_events, minimum=1, cure="give the events to draw, for example 20000")
        check_int("num_communities", self.num_communities, minimum=2, cure="without a choice there is nothing to learn")
        name = "num_destinations" if self.bipartite else "num_nodes"
        cure = "each of the num_communities needs two: give more nodes or fewer communities"
        check_int(name, self.num_destinations, minimum=2 * self.num_communities, cure=cure)
        check_int("num_sources", self.num_sources, minimum=1, cure="give the nodes that act, for example 500")
        check_fraction("repeat", self.repeat, cure="give a probability, for example 0.3")
        check_fraction("drift", self.drift, cure="give a probability per event, for example 0.05")
        check_fraction("noise", self.noise, cure="give a probability, for example 0.05")
        check_positive("activity_exponent", self.activity_exponent, cure="for equal activity give 0.01")

    @property
    def first_destination(self) -> int:
        return self.num_sources if self.bipartite else 0

    @property
    def num_nodes(self) -> int:
        return self.first_destination + self.num_destinations


@dataclass(frozen=True)
class _Draft:
    """The stream, and the truth behind it.

    Attributes:
        src: int64 [E].
        dst: int64 [E].
        time: float64 [E].
        interest: int64 [E], community that the source is interested in at the event.
        arrival: bool [E], the source's first event in a community that it has changed to.
        home: int64 [N], community of every node: where a destination belongs, what a source starts with.
    """

    src: np.ndarray
    dst: np.ndarray
    time: np.ndarray
    interest: np.ndarray
    arrival: np.ndarray
    home: np.ndarray


def generate_stream(
    *,
    num_events: int = 20_000,
    num_sources: int = _SOURCES,
    num_destinations: int = _DESTINATIONS,
    bipartite: bool = True,
    num_nodes: int | None = None,
    num_communities: int = 10,
    repeat: float = 0.3,
    drift: float = 0.03,
    activity_exponent: float = 0.8,
    noise: float = 0.05,
    edge_feature_dim: int = 0,
    node_feature_dim: int = 0,
    with_labels: bool = False,
    label: str = "change",
    seed: int = 0,
) -> EventStore:
    """Draw a stream of timed edges; the same arguments give the same stream, bit for bit.

    Times are in seconds, a hundred per event on average, in bursts: sources act in sessions. Labels describe the source
    at the event: ``change`` is 1 at the source's first event after it has changed to another community, else 0, about
    ``drift`` of the events; ``community`` is the community that the source is interested in.

    Args:
        num_events: Events E.
        num_sources: Sources ``0 .. num_sources - 1`` of a bipartite stream.
        num_destinations: Its destinations, numbered after the sources.
        bipartite: Whether sources and destinations are two sets; otherwise every node is both.
        num_nodes: Nodes of a stream that is not bipartite; by default as many as sources and destinations together.
        num_communities: Communities, at least 2, of two or more destinations each.
        repeat: Probability in [0, 1) that an event goes to one of the source's own recent partners.
        drift: Probability in [0, 1), per event, that its source has changed to another community, and that the
            fashion of the community has moved on to its next destination.
        activity_exponent: The ``i``-th most active source acts in proportion to ``i ** -activity_exponent``.
        noise: Probability in [0, 1) that a destination that is no repeat is drawn uniformly from all.
        edge_feature_dim: Width of the edge features, a noisy vector of the destination's community; 0 for none.
        node_feature_dim: Width of the node features, a noisy vector of the community at the start; 0 for none.
        with_labels: Whether to add the labels, int64 [E].
        label: Which ones, ``"change"`` or ``"community"``.
        seed: At least 0.

    Raises:
        InvalidArgumentError: An argument is out of its range, or the communities do not fit the destinations.
        DataError: The stream does not fit into memory.

    >>> generate_stream(num_events=1000, edge_feature_dim=4)
    EventStore(num_events=1000, num_nodes=1500, edge_feature_dim=4, node_feature_dim=0)
    """
    check_bool("bipartite", bipartite, usual=True)
    if not bipartite:
        if num_nodes is not None and (num_sources, num_destinations) != (_SOURCES, _DESTINATIONS):
            cure = "leave them out, or num_nodes"
            received = (num_sources, num_destinations)
            raise InvalidArgumentError("num_sources, num_destinations", "left out beside num_nodes", received, cure)
        num_sources = num_destinations = num_sources + num_destinations if num_nodes is None else num_nodes
    elif num_nodes is not None:
        cure = "give num_sources and num_destinations, or bipartite=False"
        raise InvalidArgumentError("num_nodes", "None in a bipartite stream", num_nodes, cure)
    settings = _Settings(
        num_events, num_sources, num_destinations, bipartite, num_communities, repeat, drift, activity_exponent, noise
    )
    check_int("edge_feature_dim", edge_feature_dim, minimum=0, cure="give a width, or 0 for none")
    check_int("node_feature_dim", node_feature_dim, minimum=0, cure="give a width, or 0 for none")
    check_choice("label", label, ("change", "community"))
    check_bool("with_labels", with_labels, usual=False)
    if label != "change" and not with_labels:
        raise InvalidArgumentError("with_labels", f"True with label={label!r}", with_labels, "set it, too")
    check_int("seed", seed, minimum=0, cure="give another seed for another stream, for example 1")
    numbers = num_events * edge_feature_dim + settings.num_nodes * node_feature_dim
    check_fits(
        "the synthetic stream",
        f"{num_events:,} events of {settings.num_nodes:,} nodes with {numbers:,} features",
        _BYTES_PER_EVENT * num_events + _BYTES_PER_NODE * settings.num_nodes + _BYTES_PER_FEATURE * numbers,
        cure="ask for fewer",
    )
    # The events come first: asking for features leaves them as they are.
    rng = np.random.default_rng(seed)
    draft = _draw(settings, rng)
    labels = {"change": draft.arrival.astype(np.int64), "community": draft.interest}
    return EventStore.from_arrays(
        draft.src,
        draft.dst,
        draft.time,
        edge_features=_features(draft.home[draft.dst], num_communities, edge_feature_dim, rng),
        node_features=_features(draft.home, num_communities, node_feature_dim, rng),
        labels=labels[label] if with_labels else None,
        # Given so that nodes without an event count, too.
        node_ids=np.arange(settings.num_nodes),
    )


def _draw(settings: _Settings, rng: Generator) -> _Draft:
    """Draw source by source, each one's events in time order; put all in time order at the end."""
    home = _settle(settings, rng)
    src, time = _act(settings, rng)
    begin = np.searchsorted(src, src)
    later = begin < np.arange(len(src))
    arrival = later & (rng.random(len(src)) < settings.drift)
    steps = np.cumsum(np.where(arrival, rng.integers(1, settings.num_communities, size=len(src)), 0))
    interest = (home[src] + steps - steps[begin]) % settings.num_communities
    choice = _choose(settings, home, interest, _fronts(settings, interest, time, rng), arrival, rng)
    choice = _avoid_self(home, choice, src)
    repeats = later & ~arrival & (rng.random(len(src)) < settings.repeat)
    dst = choice[_repeat_recent(begin, repeats, rng)]
    order = np.argsort(time, kind="stable")
    return _Draft(src[order], dst[order], time[order], interest[order], arrival[order], home)


def _settle(settings: _Settings, rng: Generator) -> np.ndarray:
    """Return the home community [N] of every node; every community gets its share of the destinations."""
    sources = rng.integers(settings.num_communities, size=settings.first_destination)
    destinations = rng.permutation(np.arange(settings.num_destinations) % settings.num_communities)
    return np.concatenate([sources, destinations])


def _act(settings: _Settings, rng: Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return source and time [E] of every event, in the order of both: sessions of one source each."""
    count = settings.num_events
    opens = rng.random(count) < 1 / _EVENTS_PER_SESSION
    opens[0] = True
    session = np.cumsum(opens) - 1
    activity = rng.permutation(np.arange(1, settings.num_sources + 1) ** -settings.activity_exponent)
    src = rng.choice(settings.num_sources, session[-1] + 1, p=activity / activity.sum())[session]
    opened = np.cumsum(rng.exponential(_SECONDS_PER_EVENT * _EVENTS_PER_SESSION, session[-1] + 1))
    elapsed = np.cumsum(rng.exponential(_SECONDS_WITHIN_SESSION, count))
    time = opened[session] + elapsed - elapsed[opens][session]
    order = np.lexsort((time, src))
    return src[order], time[order]


def _fronts(settings: _Settings, interest: np.ndarray, time: np.ndarray, rng: Generator) -> np.ndarray:
    """Return how often [E] the fashion of the community of interest has moved on until each event."""
    front = np.empty_like(interest)
    front[np.lexsort((time, interest))] = np.cumsum(rng.random(len(time)) < settings.drift)
    return front


def _choose(
    settings: _Settings,
    home: np.ndarray,
    interest: np.ndarray,
    front: np.ndarray,
    arrival: np.ndarray,
    rng: Generator,
) -> np.ndarray:
    """Return the destination [E] that every event would have without repeats.

    The destinations of a community stand in a ring. The one at the front is in fashion and the most popular, and
    popularity falls with the distance behind it as a power law.
    """
    count, size = len(interest), np.bincount(home[settings.first_destination :])
    ring = settings.first_destination + rng.permutation(settings.num_destinations)
    ring = ring[np.argsort(home[ring], kind="stable")]
    popularity = np.cumsum(np.arange(1, size.max() + 1) ** -_FASHION_EXPONENT)
    behind = np.searchsorted(popularity, rng.random(count) * popularity[size[interest] - 1], side="right")
    slot = (np.cumsum(size) - size)[interest] + (front - behind) % size[interest]
    anywhere = ~arrival & (rng.random(count) < settings.noise)
    return ring[np.where(anywhere, rng.integers(len(ring), size=count), slot)]


def _avoid_self(home: np.ndarray, choice: np.ndarray, src: np.ndarray) -> np.ndarray:
    """Return ``choice`` with another node of the same community wherever a node has chosen itself."""
    members = np.argsort(home, kind="stable")
    place = np.empty_like(members)
    place[members] = np.arange(len(members))
    size = np.bincount(home)
    begin = (np.cumsum(size) - size)[home]
    following = members[begin + (place + 1 - begin) % size[home]]
    return np.where(choice == src, following[choice], choice)


def _repeat_recent(begin: np.ndarray, repeats: np.ndarray, rng: Generator) -> np.ndarray:
    """Return the event [E] whose choice every event takes: its own, or an earlier one of the same source."""
    own = np.arange(len(begin))
    earlier = own - rng.geometric(1 / _RECENT_PARTNERS, size=len(begin))
    taken = np.where(repeats & (earlier >= begin), earlier, own)
    # A repeat may repeat a repeat: jump until every chain has reached the event that chose.
    while not np.array_equal(taken, jumped := taken[taken]):
        taken = jumped
    return taken


def _features(community: np.ndarray, num_communities: int, width: int, rng: Generator) -> np.ndarray | None:
    """Return a vector per community with noise upon it, float32 [len(community), width]."""
    if width == 0:
        return None
    vectors = rng.standard_normal((num_communities, width), dtype=np.float32)
    noise = rng.standard_normal((len(community), width), dtype=np.float32)
    return vectors[community] + np.float32(_FEATURE_NOISE) * noise
