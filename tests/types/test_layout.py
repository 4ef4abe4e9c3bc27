"""Which rank is where, checked without a process."""

import pickle

import pytest

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.types import RankLayout
from lightning_tgnn.types.layout import everybody

PAIRS = {"pairs": ((0, 1), (2, 3)), "all": everybody(5), "some": ((4, 2),)}


@pytest.mark.parametrize(
    ("ranks", "per_host", "hosts"),
    [
        (1, None, (0,)),
        (4, None, (0, 0, 0, 0)),
        (4, 2, (0, 0, 1, 1)),
        (5, 2, (0, 0, 1, 1, 2)),
        (3, 1, (0, 1, 2)),
        (2, 9, (0, 0)),
    ],
)
def test_ranks_fill_one_host_after_the_other(ranks, per_host, hosts):
    layout = RankLayout.of(ranks, per_host=per_host)
    assert layout.hosts == hosts
    assert layout.ranks == ranks


def test_a_rank_is_in_one_group_of_a_family_or_alone():
    layout = RankLayout.of(5, families=PAIRS)
    assert [layout.group_of("pairs", rank) for rank in range(5)] == [(0, 1), (0, 1), (2, 3), (2, 3), (4,)]
    assert {layout.group_of("all", rank) for rank in range(5)} == {(0, 1, 2, 3, 4)}
    assert [layout.group_of("some", rank) for rank in (2, 3, 4)] == [(4, 2), (3,), (4, 2)]


def test_a_family_that_there_is_not_is_refused():
    with pytest.raises(InvalidArgumentError, match="family must be one of pairs, all, some, got 'state'; name one"):
        RankLayout.of(5, families=PAIRS).group_of("state", 0)


@pytest.mark.parametrize("groups", [((0, 1), (1, 2)), ((0, 0),), ((0, 3),), ((-1, 0),)])
def test_groups_are_disjoint_and_of_ranks_that_there_are(groups):
    with pytest.raises(
        InvalidArgumentError, match=r"group 'pairs' must be disjoint groups of the ranks 0 to 2, got .*"
    ):
        RankLayout.of(3, families={"all": everybody(3), "pairs": groups})


def test_a_layout_has_a_rank():
    with pytest.raises(InvalidArgumentError, match=r"hosts must be the host of at least one rank, got \(\); give one"):
        RankLayout(())
    with pytest.raises(InvalidArgumentError, match="at least one rank"):
        RankLayout.of(0)


def test_a_layout_is_a_value():
    given = dict(PAIRS)
    layout = RankLayout.of(5, per_host=2, families=given)
    given["pairs"] = ()
    with pytest.raises(TypeError):
        layout.families["pairs"] = ()
    assert layout == RankLayout.of(5, per_host=2, families=PAIRS)
    for ranks, per_host, families in ((5, None, PAIRS), (5, 2, None), (6, 2, PAIRS)):
        assert layout != RankLayout.of(ranks, per_host=per_host, families=families)
    assert pickle.loads(pickle.dumps(layout)) == layout
