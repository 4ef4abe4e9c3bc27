"""Vertex-cuts against a slow greedy, their report against counting by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_tgnn.algorithms.partitions.replicas import Replicas, cut_report
from lightning_tgnn.algorithms.partitions.vertex_cut import CUT_METHODS, best_cut, vertex_cut
from lightning_tgnn.checks import InvalidArgumentError
from tests.replay.slow_replicas import SlowReplicas

HOSTS = torch.tensor([0, 0, 1, 1])
EDGES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=4, max_size=40)


def slow_greedy(edges, num_nodes, hosts, gamma, alpha, beta):
    """Eq. 24, edge by edge, over sets."""
    degree = [sum((u == v) + (w == v) for u, w in edges) for v in range(num_nodes)]
    order = sorted(range(len(edges)), key=lambda e: degree[edges[e][0]] + degree[edges[e][1]])
    parts = [set() for _ in hosts]
    counts, chosen = [0] * len(hosts), [0] * len(edges)
    for e in order:
        ends = edges[e]

        def cost(i, ends=ends):
            new = sum(v not in parts[i] for v in ends)
            here = set().union(*(parts[j] for j in range(len(hosts)) if hosts[j] == hosts[i]))
            new_to_host = sum(v not in here for v in ends)
            balance = alpha * counts[i] * len(hosts) / len(edges) + beta * len(parts[i]) * len(hosts) / num_nodes
            return (1 - gamma) * new + gamma * new_to_host + balance

        costs = [cost(i) for i in range(len(hosts))]
        best = min(range(len(hosts)), key=lambda i: (round(costs[i], 9), i))
        chosen[e] = best
        counts[best] += 1
        parts[best] |= set(ends)
    return chosen


@settings(deadline=None)
@given(EDGES, st.sampled_from([0.0, 0.1, 0.5]))
def test_the_loop_equals_the_slow_greedy(edges, gamma):
    src, dst = torch.tensor(edges).T.contiguous()
    # alpha and beta of odd values, so that ties are those of the formula and not of rounding
    found = vertex_cut(src, dst, 10, HOSTS, "hierarchical", gamma=gamma, alpha=0.9173, beta=1.1371)
    others = [edge for edge in edges if edge[0] != edge[1]]
    cut = others if len(others) >= 4 else edges  # too few to go to all ranks: loops as well
    by_greedy = slow_greedy(cut, 10, HOSTS.tolist(), gamma, 0.9173, 1.1371)
    assert found[torch.tensor([edge in cut for edge in edges])].tolist() == by_greedy


@settings(deadline=None)
@given(EDGES, st.sampled_from(CUT_METHODS), st.booleans())
def test_loops_are_at_the_masters_and_make_no_replica(edges, method, last):
    ends = [edge for edge in edges if edge[0] != edge[1]] if last else edges
    if last:
        ends += [(node, node) for node in range(10)]
    src, dst = torch.tensor(ends).T.contiguous()
    loops = src == dst
    if int((~loops).sum()) < 4:
        return
    part = vertex_cut(src, dst, 10, HOSTS, method)
    without = SlowReplicas(src[~loops], dst[~loops], part[~loops], 10, HOSTS)
    assert torch.equal(SlowReplicas(src, dst, part, 10, HOSTS).present, without.present)
    assert part[loops].tolist() == [without.master[node] for node in src[loops].tolist()]


@settings(deadline=None)
@given(EDGES, st.sampled_from([[0, 0, 1, 1], [0, 0, 0, 0], [0, 1, 2, 3]]), st.booleans())
def test_the_best_cut_moves_the_fewest_rows(edges, hosts, relay):
    src, dst = torch.tensor(edges).T.contiguous()
    part, rows = best_cut(src, dst, 10, torch.tensor(hosts), relay=relay)
    slow = SlowReplicas(src, dst, part, 10, torch.tensor(hosts))
    counted = 0
    for have, master in zip(slow.where, slow.master, strict=True):
        away = [
            hosts[mirror] for mirror in set(have) - {master} if len(set(hosts)) == 1 or hosts[mirror] != hosts[master]
        ]
        counted += len(set(away)) if relay and len(set(hosts)) > 1 else len(away)
    assert counted == min(rows.values())
    assert list(rows) == ["hierarchical", "hdrf", "metis"]


WHERE = st.sampled_from([[0, 0, 1, 1], [0, 1, 1, 1], [0, 0, 0, 0], [0, 1, 2, 3], [0, 0, 1, 1, 2, 2, 0, 1, 2, 2]])


@settings(deadline=None)
@given(EDGES, WHERE, st.randoms(use_true_random=False), st.booleans(), st.sampled_from([1, 8, 1 << 21]))
def test_replicas_and_their_ways_equal_the_slow_ones(edges, hosts, random, relay, cells):
    src, dst = torch.tensor(edges).T.contiguous()
    owner, where = torch.tensor([random.randrange(len(hosts)) for _ in edges]), torch.tensor(hosts)
    slow = SlowReplicas(src, dst, owner, 12, where)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lightning_tgnn.algorithms.partitions.replicas._CELLS", cells)
        everywhere = Replicas.of(src, dst, owner, 12, where)
        assert everywhere.nodes.tolist() == list(range(12))
        for rank in (None, *range(len(hosts))):
            replicas = everywhere if rank is None else Replicas.of(src, dst, owner, 12, where, rank)
            pieces = list(replicas.pieces())
            nodes = torch.cat([piece.nodes for piece in pieces])
            assert rank is None or nodes.tolist() == slow.present[rank].nonzero().flatten().tolist()
            assert torch.equal(torch.cat([piece.present for piece in pieces], 1), slow.present[:, nodes])
            assert torch.cat([piece.master for piece in pieces]).tolist() == [slow.master[v] for v in nodes]
            assert torch.equal(torch.cat([piece.leader for piece in pieces], 1), torch.tensor(slow.leader)[:, nodes])
            ways = [torch.cat(hop, 1) for hop in zip(*(piece.hops(relay=relay) for piece in pieces), strict=True)]
            for number, way in enumerate(ways):
                wanted = [[slow.above(v, i, relay)[number] for v in nodes.tolist()] for i in range(len(hosts))]
                assert way.tolist() == wanted


@settings(deadline=None)
@given(EDGES, st.sampled_from(["hierarchical", "ebv", "hdrf", "random"]), st.sampled_from([1, 1 << 21]))
def test_the_report_counts_what_is_there(edges, method, cells):
    src, dst = torch.tensor(edges).T.contiguous()
    part = vertex_cut(src, dst, 12, HOSTS, method)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lightning_tgnn.algorithms.partitions.replicas._CELLS", cells)
        report = cut_report(part, Replicas.of(src, dst, part, 12, HOSTS))
    slow = SlowReplicas(src, dst, part, 12, HOSTS)
    inner, outer = [0] * 4, [0] * 4  # messages that each rank sends
    crossing = 0
    for have, master in zip(slow.where, slow.master, strict=True):
        for mirror in set(have) - {master}:
            sent = inner if HOSTS[mirror] == HOSTS[master] else outer
            sent[mirror] += 1  # in the gather
            sent[master] += 1  # in the scatter
        crossing += len({int(HOSTS[i]) for i in have}) - 1
        on_hosts = [sum(int(HOSTS[i]) == h for i in have) for h in (0, 1)]
        assert on_hosts[int(HOSTS[master])] == max(on_hosts)
    assert (2 * report.inner, 2 * report.outer, report.crossing) == (sum(inner), sum(outer), crossing)
    assert (report.max_inner, report.max_outer) == (max(inner), max(outer))
    assert report.replication_factor == pytest.approx(float(slow.present.sum()) / 12)
    counts = [part.tolist().count(i) for i in range(4)]
    assert report.edge_imbalance == pytest.approx(max(counts) * 4 / len(edges))
    sizes = slow.present.sum(1).tolist()
    assert report.vertex_imbalance == pytest.approx(max(sizes) * 4 / sum(sizes))


@settings(deadline=None)
@given(EDGES, st.sampled_from([[0, 0, 1, 1], [0, 1, 1, 1], [0, 0, 0, 0], [0, 1, 2, 3]]), st.booleans())
def test_every_replica_finds_its_master_and_crosses_to_another_host_once(edges, hosts, relay):
    src, dst = torch.tensor(edges).T.contiguous()
    owner, where = torch.arange(len(src)) % 4, torch.tensor(hosts)
    replicas = Replicas.of(src, dst, owner, 12, where)
    (placed,) = replicas.pieces()
    above = [hop.tolist() for hop in placed.hops(relay=relay)]
    crossed = 0
    for v in range(12):
        for part in range(4):
            at = part if placed.present[part, v] else None
            for hop in above:
                assert at is not None or hop[part][v] == -1
            if at is None:
                continue
            assert sum(hop[part][v] >= 0 for hop in above) == (part != int(placed.master[v]))
            for hop in above:
                following = hop[at][v]
                crossed += at == part and following >= 0 and hosts[following] != hosts[at]
                at = following if following >= 0 else at
            assert at == int(placed.master[v])
    if relay:
        assert crossed == cut_report(owner, replicas).crossing


@settings(deadline=None)
@given(EDGES, st.sampled_from([[0, 0, 1, 1], [0, 1, 1, 1], [0, 0, 1, 1, 2, 2]]), st.floats(0.05, 0.95))
def test_without_terms_of_balance_gamma_breaks_ties_only(edges, hosts, gamma):
    src, dst = torch.tensor(edges + [(node, node + 1) for node in range(6)]).T.contiguous()
    where = torch.tensor(hosts)
    usual = vertex_cut(src, dst, 10, where, gamma=0.3, alpha=0.0, beta=0.0)
    assert torch.equal(vertex_cut(src, dst, 10, where, gamma=gamma, alpha=0.0, beta=0.0), usual)


def communities(num_nodes=2000, num_edges=16000):
    generator = torch.Generator().manual_seed(0)
    heavy = lambda: (torch.rand(num_edges, generator=generator) ** 3 * num_nodes).long()  # noqa: E731
    return heavy(), heavy()


def test_gamma_lowers_connections_between_hosts_and_keeps_edges_even():
    src, dst = communities()
    reports = {}
    for method in CUT_METHODS:
        part = vertex_cut(src, dst, 2000, HOSTS, method)
        reports[method] = cut_report(part, Replicas.of(src, dst, part, 2000, HOSTS))
    assert reports["hierarchical"].outer < reports["ebv"].outer < reports["random"].outer
    assert reports["hdrf"].replication_factor < reports["random"].replication_factor
    assert max(reports[name].edge_imbalance for name in ("hierarchical", "ebv")) < 1.03


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "louvain"}, "partition must be one of"),
        ({"src": torch.tensor([0, 1, 2, 9])}, "src"),
        ({"dst": torch.tensor([0])}, "dst must be as long as src, 4"),
        ({"hosts": torch.zeros(5, dtype=torch.int64)}, "ranks must be at most one for each of 4 edges, got 5"),
        ({"gamma": 1.5}, r"gamma must be a number in \[0, 1\], got 1.5"),
        ({"alpha": -1}, "alpha must be"),
    ],
)
def test_what_cannot_be_cut_is_refused(arguments, message):
    ends = torch.arange(4)
    known = {"src": ends, "dst": ends.flip(0), "num_nodes": 4, "hosts": torch.zeros(2, dtype=torch.int64)}
    with pytest.raises(InvalidArgumentError, match=message):
        vertex_cut(**(known | arguments))
