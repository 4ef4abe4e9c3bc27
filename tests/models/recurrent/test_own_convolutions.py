"""Convolutions and cells of other libraries in the models on snapshots."""

import copy
from functools import partial

import pytest
import torch

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.models import SnapshotOperators
from tests.models.recurrent.snapshots import random_sequence, run
from tests.models.recurrent.test_recurrent_models import (
    HIDDEN,
    ROWS,
    WIDTH,
    assert_same,
    model_of,
    sampled,
    whole_in_order,
)


def pyg_gcn():
    from torch_geometric.nn import GCNConv

    return partial(GCNConv, normalize=False, add_self_loops=False)


def dgl_gcn():
    return partial(pytest.importorskip("dgl.nn").GraphConv, norm="none", allow_zero_in_degree=True)


class Dense(torch.nn.Module):
    """Takes a block, and knows nothing of edge weights."""

    def __init__(self, in_dim, out_dim):
        super().__init__()
        self.weight = torch.nn.Linear(in_dim, out_dim)

    def forward(self, block, rows):
        import dgl.function as fn

        with block.local_scope():
            block.srcdata["x"] = self.weight(rows)
            block.update_all(fn.copy_u("x", "m"), fn.sum("m", "y"))
            return block.dstdata["y"]


def copied(model, own):
    """Give a model with convolutions of another library the weights of ours."""
    ours = model.convolutions if hasattr(model, "convolutions") else [layer.convolution for layer in model.layers]
    theirs = own.convolutions if hasattr(own, "convolutions") else [layer.convolution for layer in own.layers]
    for one, other in zip(ours, theirs, strict=True):
        kernel = getattr(other.module, "lin", other.module).weight
        with torch.no_grad():
            kernel.copy_(one.weight[0].t() if hasattr(other.module, "lin") else one.weight[0])
            other.module.bias.copy_(one.bias)
    rest = {name: value for name, value in model.state_dict().items() if "convolution" not in name.split("from_")[0]}
    own.load_state_dict({**own.state_dict(), **rest})


@pytest.mark.parametrize("library", [pyg_gcn, dgl_gcn])
@pytest.mark.parametrize("name", ["wd_gcn", "tgcn"])
def test_their_gcn_equals_ours(name, library):
    snapshots = random_sequence((4, 7, 0, 6), ROWS, WIDTH)
    model, own = model_of(name), model_of(name, library())
    copied(model, own)
    expected = run(model, snapshots, ROWS, SnapshotOperators())
    found = run(own, snapshots, ROWS, SnapshotOperators())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    found.sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in own.parameters())


@pytest.mark.parametrize("library", [pyg_gcn, dgl_gcn])
def test_sampled_layers(library):
    snapshots = whole_in_order((ROWS, ROWS))
    cut, nodes = sampled(snapshots, [2, 5])
    model = model_of("wd_gcn", library())
    whole = run(model, snapshots, ROWS, SnapshotOperators())
    found = run(model, cut, len(nodes), SnapshotOperators())
    torch.testing.assert_close(found[:2], whole[[2, 5]], rtol=1e-4, atol=1e-6)


def test_the_graph_is_made_once_for_a_snapshot_and_not_copied():
    pytest.importorskip("dgl")
    snapshots = random_sequence((7, 5), ROWS, WIDTH)
    model = model_of("wd_gcn", Dense)
    first = run(model, snapshots, ROWS, SnapshotOperators())
    made = [model.convolutions[0]._made.get(snapshot.layers[0][0])[0] for snapshot in snapshots]
    torch.testing.assert_close(run(model, snapshots, ROWS, SnapshotOperators()), first)
    assert made == [model.convolutions[0]._made.get(snapshot.layers[0][0])[0] for snapshot in snapshots]
    other = copy.deepcopy(model)
    torch.testing.assert_close(run(other, snapshots, ROWS, SnapshotOperators()), first)


def test_layers_that_tell_kinds_of_edges_apart():
    from torch_geometric.nn import RGCNConv

    seen = []

    class Kinds(RGCNConv):
        def forward(self, x, edge_index, edge_type=None):
            seen.append((edge_index.shape[1], edge_type.bincount().tolist()))
            return super().forward(x, edge_index, edge_type)

    snapshots = random_sequence((7,), ROWS, WIDTH, num_relations=2)
    model = model_of("wd_gcn", partial(Kinds, num_relations=2), relations=2)
    assert run(model, snapshots, ROWS, SnapshotOperators()).shape == (ROWS, HIDDEN)
    counts = [len(edges.columns) for edges in snapshots[0].layers[0]]
    assert seen == [(sum(counts), counts)] * 2


def test_layers_with_heads_are_flattened():
    from torch_geometric.nn import GATConv

    model = model_of("wd_gcn", lambda width, out: GATConv(width, out // 2, heads=2))
    assert run(model, random_sequence((5,), ROWS, WIDTH), ROWS, SnapshotOperators()).shape == (ROWS, HIDDEN)


class Wrong(torch.nn.Module):
    def __init__(self, in_dim, out_dim, result):
        super().__init__()
        self.result = result

    def forward(self, block, rows):
        return self.result


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (3, "convolution must be of 5 rows, one per vertex, got 'int'"),
        (torch.zeros(4, HIDDEN), r"convolution must be of 5 rows, one per vertex, got \[4, 4\]"),
        (torch.zeros(5, 9), r"convolution must be of 4 values per row, got \[5, 9\]"),
    ],
)
def test_what_they_return_is_checked(result, message):
    pytest.importorskip("dgl")
    model = model_of("wd_gcn", partial(Wrong, result=result))
    with pytest.raises(InvalidArgumentError, match=message):
        run(model, random_sequence((5,), ROWS, WIDTH), ROWS, SnapshotOperators())


class Mean(torch.nn.Module):
    """Half of what was, half of what comes, and how often."""

    def __init__(self, in_dim, hidden_dim):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, rows, state=None):
        mean, times = state or (torch.zeros_like(rows), torch.zeros(len(rows), 1))
        return self.scale * (mean + rows) / 2, times + 1


def test_own_cells():
    snapshots = random_sequence((4, 7, 5), ROWS, WIDTH)
    model = model_of("wd_gcn", cell=torch.nn.GRUCell)
    assert [len(state) for state in (model.start(ROWS), model.cells)] == [2, 2]
    assert run(model, snapshots, ROWS, SnapshotOperators()).abs().sum() > 0

    model = model_of("wd_gcn", cell=Mean, num_layers=1)
    for parameter in model.cells.parameters():
        torch.nn.init.ones_(parameter)
    carried = model.start(ROWS)
    assert [part.shape[1] for part in carried] == [HIDDEN, 1]
    for snapshot in snapshots:
        carried, embeddings = model.step(snapshot, carried, SnapshotOperators(), last=snapshot.number == 2)
    times = torch.zeros(ROWS)
    for snapshot in snapshots:
        times[snapshot.vertices] += 1
    assert torch.equal(carried[1].flatten(), times)
    assert embeddings is carried[0]


def test_a_gru_cell_equals_torchs_gru():
    snapshots = whole_in_order((ROWS, ROWS, ROWS))
    model = model_of("wd_gcn", cell=torch.nn.GRUCell, num_layers=1)
    gru = torch.nn.GRU(HIDDEN, HIDDEN)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    gru.load_state_dict({f"{name}_l0": getattr(model.cells[0].module, name) for name in names})
    convolved = torch.stack(
        [model.convolutions[0](s.features, s, 0, SnapshotOperators()).relu().detach() for s in snapshots]
    )
    torch.testing.assert_close(run(model, snapshots, ROWS, SnapshotOperators()), gru(convolved)[0][-1])


def test_one_models_gradients_do_not_depend_on_who_multiplies():
    snapshots = random_sequence((6, 7), ROWS, WIDTH)
    model = model_of("tgcn", pyg_gcn())
    assert_same(
        model,
        run(model, snapshots, ROWS, SnapshotOperators()),
        run(model, snapshots, ROWS, SnapshotOperators(reuse=False)),
    )
