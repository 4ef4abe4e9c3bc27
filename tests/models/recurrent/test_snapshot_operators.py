"""Products that are kept; the order of operators; who hears of them."""

import copy
import gc
import pickle

import pytest
import torch

from lightning_tgnn.models import SnapshotOperators
from lightning_tgnn.types import Snapshot, Stages
from tests.models.recurrent.snapshots import dense, random_sequence, rectangular, run
from tests.models.recurrent.test_recurrent_models import RECURRENT_MODELS, ROWS, WIDTH, gradients, model_of


def product(snapshot, layer=0):
    return dense(snapshot.layers[layer][0], len(snapshot.features)) @ snapshot.features


def test_the_first_product_with_the_features_is_formed_once():
    (snapshot,) = random_sequence((5,), ROWS, WIDTH)
    operators = SnapshotOperators()
    made = operators.aggregate(snapshot, 0, snapshot.features)
    torch.testing.assert_close(made, product(snapshot))
    assert operators.aggregate(snapshot, 0, snapshot.features) is made
    # Other rows, other layers and rows that are trained are multiplied anew.
    others = [
        operators.aggregate(snapshot, 0, snapshot.features.clone()),
        operators.aggregate(snapshot, 1, snapshot.features),
        operators.aggregate(snapshot, 0, snapshot.features.requires_grad_()),
    ]
    for other in others:
        assert other is not made
        torch.testing.assert_close(other, made)
    assert operators.kept_bytes == made.nbytes


def test_the_second_product_of_chebyshev_is_kept_too():
    snapshots = random_sequence((ROWS, ROWS), ROWS, WIDTH)
    model, operators = model_of("wd_gcn", "chebyshev"), SnapshotOperators()
    first = run(model, snapshots, ROWS, operators)
    assert operators.kept_bytes == 2 * 2 * ROWS * WIDTH * 4
    assert torch.equal(run(model, snapshots, ROWS, operators), first)
    assert operators.kept_bytes == 2 * 2 * ROWS * WIDTH * 4


def test_products_are_kept_within_bounds_and_end_with_their_snapshot():
    snapshots = random_sequence((5, 5, 5), ROWS, WIDTH)
    operators = SnapshotOperators(max_bytes=2 * 5 * WIDTH * 4)
    for snapshot in snapshots:
        torch.testing.assert_close(operators.aggregate(snapshot, 0, snapshot.features), product(snapshot))
    assert operators.kept_bytes == 2 * 5 * WIDTH * 4
    assert operators.aggregate(snapshots[2], 0, snapshots[2].features) is not operators.aggregate(
        snapshots[2], 0, snapshots[2].features
    )
    del snapshots, snapshot
    gc.collect()
    assert operators.kept_bytes == 0


def test_without_reuse_nothing_is_kept():
    (snapshot,) = random_sequence((5,), ROWS, WIDTH)
    operators = SnapshotOperators(reuse=False)
    assert operators.aggregate(snapshot, 0, snapshot.features) is not operators.aggregate(
        snapshot, 0, snapshot.features
    )
    assert operators.kept_bytes == 0


def static_sequence(count, *, changed=2, seed=0):
    """Return snapshots of all vertices with the same features, of which some entries change each time."""
    generator = torch.Generator().manual_seed(seed)
    matrix, features = torch.rand(ROWS, ROWS, generator=generator), torch.randn(ROWS, WIDTH, generator=generator)
    snapshots = []
    for number in range(count):
        edges = (rectangular(torch.where(matrix > 0.4, matrix, 0.0)),)
        snapshots.append(Snapshot(number, torch.arange(ROWS), features, (edges, edges)))
        places = torch.randint(ROWS, (2, changed), generator=generator)
        matrix = matrix.clone()
        matrix[places[0], places[1]] = torch.rand(changed, generator=generator)
    return snapshots


@pytest.mark.parametrize("name", RECURRENT_MODELS)
def test_models_are_the_same_whatever_is_kept(name):
    snapshots = static_sequence(5)
    model = model_of(name)
    expected = run(model, snapshots, ROWS, SnapshotOperators(reuse=False, weights_first=(False, False)))
    operators = SnapshotOperators()
    for _ in range(2):
        found = run(model, snapshots, ROWS, operators)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
        for one, other in zip(gradients(model, found), gradients(model, expected), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_the_order_of_operators():
    kept = SnapshotOperators()
    assert [kept.weights_first(*case) for case in [(0, 9, 3), (1, 9, 3), (1, 3, 9), (1, 3, 3)]] == [
        False,
        True,
        False,
        False,
    ]
    assert SnapshotOperators(reuse=False).weights_first(0, 9, 3)
    given_order = SnapshotOperators(weights_first=(True, False))
    assert [given_order.weights_first(layer, 3, 3) for layer in (0, 1)] == [True, False]


class Listener:
    def __init__(self):
        self.heard = []

    def enter(self, stage, turn):
        self.heard.append(stage)

    def leave(self, stage, turn):
        assert self.heard[-1] == stage  # no two at once


@pytest.mark.parametrize("name", RECURRENT_MODELS)
def test_who_listens_hears_of_every_operator(name):
    stages, listener = Stages(), Listener()
    stages.add(listener)
    run(model_of(name), random_sequence((4,), ROWS, WIDTH), ROWS, SnapshotOperators(stages, reuse=False))
    assert set(listener.heard) == {f"{kind} {layer}" for kind in ("graph", "nn", "rnn") for layer in (1, 2)}


def test_copies_are_empty():
    (snapshot,) = random_sequence((5,), ROWS, WIDTH)
    operators = SnapshotOperators(max_bytes=1000)
    operators.aggregate(snapshot, 0, snapshot.features)
    for other in (pickle.loads(pickle.dumps(operators)), copy.deepcopy(operators)):
        assert other.kept_bytes == 0
        torch.testing.assert_close(other.aggregate(snapshot, 0, snapshot.features), product(snapshot))
        assert other.kept_bytes == operators.kept_bytes
