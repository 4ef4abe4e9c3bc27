"""WD-GCN, T-GCN and EvolveGCN by hand on four vertices, and against slow formulas; what they may leave out."""

from math import exp, tanh

import pytest
import torch

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.models import RECURRENT_MODELS, RecurrentConfig, SnapshotOperators, build_recurrent
from lightning_tgnn.models.recurrent.cells import RecurrentCell
from lightning_tgnn.types import Snapshot, SparseRows
from tests.models.recurrent.slow_models import REFERENCES
from tests.models.recurrent.snapshots import dense, info, random_sequence, rectangular, run

ROWS, WIDTH, HIDDEN = 7, 3, 4


def model_of(name, convolution="gcn", *, width=WIDTH, relations=1, seed=0, **config):
    torch.manual_seed(seed)
    config = RecurrentConfig(**{"hidden_dim": HIDDEN, "convolution": convolution, **config})
    model = build_recurrent(name, config, info(ROWS, width, relations=relations))
    for parameter in model.parameters():  # biases, too, are other than 0
        torch.nn.init.uniform_(parameter, -0.7, 0.7)
    return model


def gradients(model, embeddings):
    """Return the gradients of a sum that tells rows and columns apart; zeros where there is none."""
    model.zero_grad()
    if embeddings.requires_grad:
        (embeddings * torch.linspace(-1, 1, embeddings.numel()).view_as(embeddings)).sum().backward(retain_graph=True)
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


def assert_same(model, found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for one, other in zip(gradients(model, found), gradients(model, expected), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


# New vertices, vertices that go, none at all, and at last some again: fewer than the columns of a summary, and more.
SEQUENCES = {"come and go": (3, 7, 5, 0, 6), "all there": (7, 7), "the last one is empty": (4, 0), "one": (2,)}


@pytest.mark.parametrize("counts", SEQUENCES.values(), ids=SEQUENCES)
@pytest.mark.parametrize("convolution", ["gcn", "chebyshev", "rgcn"])
@pytest.mark.parametrize("name", RECURRENT_MODELS)
def test_models_equal_their_formulas_in_either_order_of_operators(name, convolution, counts):
    relations = 2 if convolution == "rgcn" else 1
    snapshots = random_sequence(counts, ROWS, WIDTH, num_relations=relations)
    model = model_of(name, convolution, relations=relations)
    expected = REFERENCES[name](model, convolution, snapshots, ROWS)
    for order in [(False, False), (True, True), (True, False)]:
        found = run(model, snapshots, ROWS, SnapshotOperators(weights_first=order))
        assert_same(model, found, expected)


@pytest.mark.parametrize("name", RECURRENT_MODELS)
def test_vertices_without_edges(name):
    snapshots = random_sequence((5, 4), ROWS, WIDTH)
    empty = rectangular(torch.zeros(4, 4))
    snapshots[1] = Snapshot(1, snapshots[1].vertices, snapshots[1].features, ((empty,), (empty,)))
    model = model_of(name)
    assert_same(
        model, run(model, snapshots, ROWS, SnapshotOperators()), REFERENCES[name](model, "gcn", snapshots, ROWS)
    )


@pytest.mark.parametrize("order", [1, 3, 4])
def test_chebyshev_polynomials_of_other_degrees(order):
    snapshots = random_sequence((7, 6), ROWS, WIDTH)
    model = model_of("wd_gcn", "chebyshev", chebyshev_order=order)
    expected = REFERENCES["wd_gcn"](model, "chebyshev", snapshots, ROWS)
    for first in (False, True):
        assert_same(model, run(model, snapshots, ROWS, SnapshotOperators(weights_first=(first,) * 2)), expected)


def path_of_four():
    """Return two snapshots of 0 -> 1 -> 2 -> 3, the second without vertex 3, with a feature each and weights of 1."""
    path = SparseRows.of(torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3]), torch.ones(3), 4)
    shorter = SparseRows.of(torch.tensor([0, 1]), torch.tensor([1, 2]), torch.ones(2), 3)
    features = torch.tensor([[1.0], [2.0], [-3.0], [5.0]])
    return [
        Snapshot(0, torch.arange(4), features, ((path,),)),
        Snapshot(1, torch.arange(3), features[:3], ((shorter,),)),
    ]


def one_of_width_one(name, **values):
    """Return a model of one layer of width 1, whose parameters are 0 but for those that are given."""
    model = build_recurrent(name, RecurrentConfig(hidden_dim=1, num_layers=1), info(4, 1))
    for parameter, value in model.named_parameters():
        with torch.no_grad():
            value.copy_(torch.tensor(values.pop(parameter.replace(".", "_"), 0.0)).expand(value.shape))
    assert not values
    return model


def sigmoid(x):
    return 1 / (1 + exp(-x))


def test_wd_gcn_by_hand():
    """All gates are half open: c <- c / 2 + tanh(x) / 2 and h = tanh(c) / 2, where x = max(0, what comes in)."""
    model = one_of_width_one("wd_gcn", convolutions_0_weight=1.0)
    with torch.no_grad():
        model.cells[0].module.weight_ih[2] = 1.0  # the proposal g
    found = run(model, path_of_four(), 4, SnapshotOperators()).flatten().tolist()
    once, twice = tanh(1) / 2, tanh(2) / 2
    assert found == pytest.approx([0, tanh(1.5 * once) / 2, tanh(1.5 * twice) / 2, 0], abs=1e-6)
    alone = run(model, path_of_four()[:1], 4, SnapshotOperators()).flatten().tolist()
    assert alone == pytest.approx([0, tanh(once) / 2, tanh(twice) / 2, 0], abs=1e-6)


def test_tgcn_by_hand():
    """The update gate is open by z = sigmoid(1): h <- z h + (1 - z) tanh(x); vertex 3 keeps that of the first time."""
    model = one_of_width_one("tgcn", layers_0_convolution_weight=1.0)
    with torch.no_grad():
        model.layers[0].from_convolution[2], model.layers[0].bias[0] = 1.0, 1.0
    found = run(model, path_of_four(), 4, SnapshotOperators()).flatten().tolist()
    z = sigmoid(1)
    first = [(1 - z) * tanh(x) for x in (0, 1, 2, -3)]
    assert found == pytest.approx([z * h + h for h in first[:3]] + first[3:], abs=1e-6)


def test_evolvegcn_o_by_hand():
    """Half open gates and a proposal of 0 halve the weight each time: 4, 2, 1; negative sums count 11/48."""
    model = one_of_width_one("evolvegcn_o", weights_0=4.0)
    assert run(model, path_of_four()[:1], 4, SnapshotOperators()).flatten().tolist() == pytest.approx(
        [0, 2, 4, -6 * 11 / 48]
    )
    assert run(model, path_of_four(), 4, SnapshotOperators()).flatten().tolist() == pytest.approx([0, 1, 2, 0])


def test_evolvegcn_h_by_hand():
    """The row of the highest score is read: 5 at first, then 2, times tanh of the score; it is all that is proposed."""
    model = one_of_width_one("evolvegcn_h", weights_0=4.0, summaries_0_scorer=3.0)
    with torch.no_grad():
        model.cells[0].input[0, 2] = 1.0
    first = 4 / 2 + tanh(5 * tanh(5)) / 2
    second = first / 2 + tanh(2 * tanh(2)) / 2
    found = run(model, path_of_four(), 4, SnapshotOperators()).flatten().tolist()
    assert found == pytest.approx([0, second, 2 * second, 0], abs=1e-6)


@pytest.mark.parametrize("name", ["wd_gcn", "tgcn"])
def test_absent_vertices_keep_their_state(name):
    snapshots = random_sequence((7, 3), ROWS, WIDTH)
    model = model_of(name)
    before, _ = model.step(snapshots[0], model.start(ROWS), SnapshotOperators(), last=False)
    after, embeddings = model.step(snapshots[1], before, SnapshotOperators(), last=True)
    there = torch.zeros(ROWS, dtype=torch.bool)
    there[snapshots[1].vertices] = True
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old[~there], new[~there])
        assert (old[there] != new[there]).any(1).all()
    assert torch.equal(embeddings[~there], before[-len(before) // 2][~there])


def test_evolvegcn_embeds_the_vertices_of_the_last_snapshot():
    snapshots = random_sequence((7, 3), ROWS, WIDTH)
    embeddings = run(model_of("evolvegcn_o"), snapshots, ROWS, SnapshotOperators())
    assert sorted(embeddings.any(1).nonzero().flatten().tolist()) == snapshots[1].vertices.sort().values.tolist()


class Counted(SnapshotOperators):
    def __init__(self):
        super().__init__(reuse=False)
        self.layers = []

    def aggregate(self, snapshot, layer, rows, relation=0):
        self.layers.append((snapshot.number, layer))
        return super().aggregate(snapshot, layer, rows, relation)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("evolvegcn_o", [(2, 0), (2, 1)]),
        ("evolvegcn_h", [(0, 0), (1, 0), (2, 0), (2, 1)]),
    ],
)
def test_evolvegcn_leaves_out_what_nobody_reads(name, read):
    snapshots = random_sequence((7, 5, 6), ROWS, WIDTH)
    embeddings, called = [], []
    for skip in (True, False):
        model, counted = model_of(name, skip_unread=skip), Counted()
        embeddings.append(run(model, snapshots, ROWS, counted))
        called.append(counted.layers)
    assert torch.equal(*embeddings)
    assert called == [read, [(number, layer) for number in range(3) for layer in range(2)]]


def sampled(snapshots, wanted):
    """Return the snapshots as far as some rows need them, and what they stand for; layers get narrower."""
    matrices = [dense(snapshot.layers[0][0], ROWS) for snapshot in snapshots]  # all are there, in order

    def with_senders(rows):
        senders = {of for matrix in matrices for row in rows for of in matrix[row].nonzero().flatten().tolist()}
        return rows + sorted(senders - set(rows))

    second = with_senders(wanted)
    first = with_senders(second)
    cut = []
    for snapshot, matrix in zip(snapshots, matrices, strict=True):
        layers = (rectangular(matrix[second][:, first]),), (rectangular(matrix[wanted][:, second]),)
        cut.append(Snapshot(snapshot.number, torch.arange(len(first)), snapshot.features[first], layers))
    return cut, first


def whole_in_order(counts):
    snapshots = random_sequence(counts, ROWS, WIDTH, seed=3)
    return [Snapshot(s.number, torch.arange(ROWS), s.features, s.layers) for s in snapshots]


@pytest.mark.parametrize(("convolution", "order"), [("gcn", 1), ("rgcn", 1), ("chebyshev", 1)])
@pytest.mark.parametrize("name", ["wd_gcn", "tgcn", "evolvegcn_o"])
def test_sampled_layers_with_all_neighbours_equal_whole_snapshots(name, convolution, order):
    snapshots = whole_in_order((ROWS, ROWS, ROWS))
    model = model_of(name, convolution, chebyshev_order=order)
    for first in (False, True):
        cut, nodes = sampled(snapshots, [2, 5])
        assert len(nodes) >= cut[0].rows_after(0) > 2
        whole = run(model, snapshots, ROWS, SnapshotOperators(weights_first=(first, first)))
        found = run(model, cut, len(nodes), SnapshotOperators(weights_first=(first, first)))
        torch.testing.assert_close(found[:2], whole[[2, 5]], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("first", [False, True])
def test_polynomials_of_a_higher_degree_need_square_layers(first):
    cut, nodes = sampled(whole_in_order((ROWS,)), [2, 5])
    model = model_of("wd_gcn", "chebyshev")
    with pytest.raises(InvalidArgumentError, match=r"chebyshev_order must be 1 where .* got 2; set chebyshev_order=1"):
        run(model, cut, len(nodes), SnapshotOperators(weights_first=(first, first)))


class Normed(torch.nn.Module):
    """A cell that normalizes over the rows, and draws."""

    def __init__(self, in_dim, hidden_dim):
        super().__init__()
        self.cell, self.norm = torch.nn.GRUCell(in_dim, hidden_dim), torch.nn.BatchNorm1d(hidden_dim)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("latest", None)
        self.register_buffer("wide", torch.ones(1).expand(4))

    def forward(self, rows, state=None):
        self.calls, self.latest = self.calls + 1, rows
        return torch.nn.functional.dropout(self.norm(self.cell(rows, state)), 0.5)


def test_a_cell_that_normalizes_and_draws_is_tried_and_nothing_is_drawn_of_it():
    cell = Normed(4, 3)
    random, state = torch.get_rng_state(), {name: value.clone() for name, value in cell.state_dict().items()}
    assert RecurrentCell(cell, 4).widths == (3,)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, state[name]) for name, value in cell.state_dict().items())
    assert cell.latest is None


class Lazy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.read, self.norm = torch.nn.LazyLinear(3), torch.nn.LazyBatchNorm1d()

    def forward(self, rows, state=0.0):
        return self.norm(self.read(rows)) + state


def test_the_weights_of_a_lazy_cell_are_drawn_for_good():
    first, second = RecurrentCell(Lazy(), 4), RecurrentCell(Lazy(), 4)
    assert not torch.equal(first.module.read.weight, second.module.read.weight)


class Narrowing(torch.nn.Module):
    """A cell that is called as torch's are, whose state has fewer columns the second time."""

    def __init__(self, in_dim, hidden_dim):
        super().__init__()

    def forward(self, rows, state=None):
        return rows[:, 1:] if state is None else state[:, 1:]


@pytest.mark.parametrize(
    ("config", "name", "message"),
    [
        ({"hidden_dim": 0}, "tgcn", "hidden_dim must be an integer of at least 1"),
        ({"num_layers": 0}, "tgcn", "num_layers must be an integer of at least 1"),
        ({"chebyshev_order": 0}, "tgcn", "chebyshev_order must be an integer of at least 1"),
        ({"convolution": "gnc"}, "tgcn", "convolution must be one of .*did you mean 'gcn'"),
        ({"convolution": torch.nn.Linear(2, 2)}, "tgcn", "convolution must be what builds a module .*got 'Linear'"),
        ({"cell": torch.nn.GRUCell}, "tgcn", "cell must be left out with model='tgcn'"),
        ({"cell": lambda i, o: 3}, "wd_gcn", "cell must be what builds a torch.nn.Module, got 'int'"),
        ({"cell": lambda i, o: torch.nn.Bilinear(i, i, o)}, "wd_gcn", "cell must be called with rows alone"),
        ({"cell": torch.nn.Linear}, "wd_gcn", "cell must be called with rows and its state, got 'Linear: "),
        ({"cell": torch.nn.GRU}, "wd_gcn", "cell must be called with rows and its state, got .GRU: "),
        ({"cell": Narrowing}, "wd_gcn", r"cell must be one that continues with .* \[\[2, 3\]\], got \[\[2, 2\]\]"),
        ({"convolution": torch.nn.Linear}, "evolvegcn_o", "convolution must be a name with model='evolvegcn_o'"),
        ({"convolution": lambda i, o: 3}, "wd_gcn", "convolution must be what builds a torch.nn.Module, got 'int'"),
        ({"convolution": torch.nn.Linear}, "wd_gcn", "convolution must be called with two arguments, got 'Linear"),
        ({}, "gcn", "model must be one of"),
    ],
)
def test_what_cannot_be_built_is_refused(config, name, message):
    with pytest.raises(InvalidArgumentError, match=message):
        model_of(name, **config)


@pytest.mark.parametrize("convolution", ["gcn", "chebyshev"])
def test_several_kinds_of_edges_need_rgcn(convolution):
    with pytest.raises(InvalidArgumentError, match="convolution must be 'rgcn' with 2 kinds of edges"):
        model_of("wd_gcn", convolution, relations=2)
