"""Layers of DGL and PyG over a batch's neighbourhood, against a loop over roots and neighbours."""

import sys

import lightning.pytorch as pl
import pytest
import torch

from lightning_tgnn import TemporalDataModule
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.models import neighbor_edges
from lightning_tgnn.models.memory.layer_embedding import LayerEmbedding
from lightning_tgnn.models.memory.time_encoding import TimeEncoder
from lightning_tgnn.tasks import LayerLinkPrediction
from tests.data.example_streams import random_store

dgl_nn = pytest.importorskip("dgl.nn")
pyg_nn = pytest.importorskip("torch_geometric.nn")
WIDTH = 6

QUIET = {
    "max_epochs": 1,
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_checkpointing": False,
    "logger": False,
}


@pytest.fixture(params=[0, 3], ids=["plain", "edge features"])
def batch(request):
    data = TemporalDataModule(
        random_store(120, edge_dim=request.param), batch_size=20, num_neighbors=4, num_train_negatives=2
    )
    batches = list(data.train_dataloader())
    assert not batches[0].neighbor_mask.all(), "early roots have fewer neighbours"
    return batches[2]


def neighbors(batch):
    """Yield root, its row, and (row, event's time, row of features) of each of its neighbours."""
    for root, row in enumerate(batch.root_index.tolist()):
        found = []
        for place in range(batch.neighbor_mask.shape[1]):
            if batch.neighbor_mask[root, place]:
                edge = int(batch.neighbor_edge[root, place]) if batch.neighbor_edge.numel() else None
                found.append((int(batch.neighbor_index[root, place]), float(batch.neighbor_time[root, place]), edge))
        yield root, row, found


def states_of(batch):
    return torch.randn(len(batch.nodes), WIDTH, generator=torch.Generator().manual_seed(1))


def test_edges_and_block_are_the_neighbours(batch):
    edges = neighbor_edges(batch)
    block = edges.block()
    times = batch.root_times
    expected = [
        (edge_row, root, float(times[root]) - time, batch.edge_features[edge].tolist() if edge is not None else [])
        for root, _, found in neighbors(batch)
        for edge_row, time, edge in found
    ]
    senders, receivers = (ends.tolist() for ends in edges.edge_index)
    nodes = edges.rows[edges.edge_index[0]].tolist()
    found = list(zip(nodes, receivers, edges.age.tolist(), edges.features.tolist(), strict=True))
    assert found == expected
    assert [ends.tolist() for ends in block.edges()] == [senders, receivers]
    assert (block.num_dst_nodes(), block.num_src_nodes()) == (len(batch.root_index), len(edges.rows))
    assert edges.rows[: edges.num_roots].tolist() == batch.root_index.tolist()
    assert torch.equal(block.edata["age"], edges.age)


@pytest.mark.parametrize("library", ["dgl", "pyg"])
def test_a_mean_layer_equals_a_loop(batch, library):
    torch.manual_seed(2)
    layer = dgl_nn.SAGEConv(WIDTH, 5, "mean") if library == "dgl" else pyg_nn.SAGEConv(WIDTH, 5)
    own, of_neighbors = (layer.fc_self, layer.fc_neigh) if library == "dgl" else (layer.lin_r, layer.lin_l)
    states = states_of(batch)
    embedded = LayerEmbedding(layer, 5, TimeEncoder(4, 1.0))(states, torch.zeros(len(states)), batch)
    for root, row, found in neighbors(batch):
        mean = torch.stack([states[at] for at, _, _ in found]).mean(0) if found else torch.zeros(WIDTH)
        torch.testing.assert_close(embedded[root], own(states[row]) + of_neighbors(mean), rtol=1e-4, atol=1e-5)


def test_ages_and_features_reach_a_layer_with_edge_attributes(batch):
    layer = pyg_nn.NNConv(
        WIDTH, 2, torch.nn.Linear(4 + batch.edge_features.shape[1], 2 * WIDTH), aggr="add", bias=False
    )
    layer.edge_dim = 4 + batch.edge_features.shape[1]
    encoder, states = TimeEncoder(4, 1.0), states_of(batch)
    embedded = LayerEmbedding(layer, 2, encoder)(states, torch.zeros(len(states)), batch)
    times = batch.root_times
    for root, row, found in neighbors(batch):
        total = layer.lin(states[row])
        for at, time, edge in found:
            age = encoder((times[root] - time).float().view(1))[0]
            attributes = age if edge is None else torch.cat([age, batch.edge_features[edge]])
            total = total + states[at] @ layer.nn(attributes).view(WIDTH, 2)
        torch.testing.assert_close(embedded[root], total, rtol=1e-3, atol=1e-4)


LAYERS = {
    "dgl.nn.GATConv": {"in_feats": 8, "out_feats": 4, "num_heads": 2, "allow_zero_in_degree": True},
    "dgl.nn.GraphConv": {"in_feats": 8, "out_feats": 8, "allow_zero_in_degree": True},
    "torch_geometric.nn.GATv2Conv": {"in_channels": 8, "out_channels": 4, "heads": 2, "add_self_loops": False},
    "torch_geometric.nn.TransformerConv": {"in_channels": 8, "out_channels": 4, "heads": 2, "edge_dim": 4},
}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_trains_and_comes_back_from_its_checkpoint(tmp_path, layer):
    data = TemporalDataModule(random_store(120), batch_size=30, num_neighbors=3, num_eval_negatives=5)
    torch.manual_seed(1)
    task = LayerLinkPrediction(layer, LAYERS[layer], memory_dim=8, embedding_dim=8, time_dim=4)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", **quiet)
    trainer.fit(task, datamodule=data)
    moments = trainer.optimizers[0].state
    assert all(
        moments[weight]["exp_avg"].any() for weight in task.model.embedding.layer.parameters() if weight.dim() > 1
    )
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    torch.load(tmp_path / "a.ckpt", weights_only=True)
    again = LayerLinkPrediction.load_from_checkpoint(tmp_path / "a.ckpt")
    for name, value in task.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


class OwnLayer(torch.nn.Module):
    """In DGL's form: the mean of the neighbours, by their age."""

    def __init__(self, in_dim, out_dim):
        super().__init__()
        self.linear = torch.nn.Linear(in_dim + 1, out_dim)

    def forward(self, block, ends):
        senders, receivers = block.edges()
        known = torch.cat([ends[0][senders.long()], block.edata["age"].unsqueeze(1).log1p()], dim=1)
        return ends[1] + torch.zeros(len(ends[1]), 8).index_add(0, receivers.long(), self.linear(known))


@pytest.mark.parametrize(
    ("layer", "arguments", "path"),
    [
        (pyg_nn.SAGEConv, {"in_channels": 8, "out_channels": 8}, "torch_geometric.nn.SAGEConv"),
        (dgl_nn.SAGEConv, {"in_feats": 8, "out_feats": 8, "aggregator_type": "mean"}, "dgl.nn.SAGEConv"),
        (OwnLayer, {"in_dim": 8, "out_dim": 8}, f"{__name__}.OwnLayer"),
    ],
)
def test_a_layer_is_given_by_its_class_or_its_path(tmp_path, layer, arguments, path):
    data = TemporalDataModule(random_store(120), batch_size=30, num_neighbors=3, num_eval_negatives=5)
    ends = []
    for given in (layer, path):
        torch.manual_seed(1)
        task = LayerLinkPrediction(given, arguments, memory_dim=8, embedding_dim=8, time_dim=4)
        trainer = pl.Trainer(**QUIET)
        trainer.fit(task, datamodule=data)
        trainer.save_checkpoint(tmp_path / "a.ckpt")
        assert torch.load(tmp_path / "a.ckpt", weights_only=True)["hyper_parameters"]["layer"] == path
        again = LayerLinkPrediction.load_from_checkpoint(tmp_path / "a.ckpt", layer=layer)
        ends += [task.state_dict(), again.state_dict()]
    for end in ends[1:]:
        for name, value in ends[0].items():
            assert torch.equal(end[name], value), name


@pytest.mark.parametrize(
    ("layer", "arguments", "message"),
    [
        ("dgl.nn.Nothing", {}, "layer must be the import path of a class, got 'dgl.nn.Nothing'; check the name"),
        (
            "nowhere.Conv",
            {},
            "layer must be the import path of a class, got 'nowhere.Conv'; .*No module named 'nowhere'",
        ),
        (
            "SAGEConv",
            {},
            "layer must be the import path of a class, got 'SAGEConv'; give the whole path, such as package.",
        ),
        (
            "os.system",
            {"command": "true"},
            "layer must be the class of a torch.nn.Module, got 'os.system'; give a layer's class or the path of it",
        ),
        (
            "torch.nn.Linear",
            {"width": 3},
            r"layer_args must be its arguments, got .*'width'.*; give what torch.nn.Linear",
        ),
        ("torch.nn.Linear", [3, 3], r"layer_args must be settings by name, got \[3, 3\]"),
        (
            "torch.nn.TransformerDecoder",
            {"decoder_layer": torch.nn.Linear(3, 3), "num_layers": 1},
            r"layer_args\['decoder_layer'\] must be a number or a word, got 'Linear'; subclass the layer and m",
        ),
        (
            "torch.nn.Conv1d",
            {"in_channels": 3, "out_channels": 2, "kernel_size": 1, "groups": 2},
            "its arguments, got .*d",
        ),
    ],
)
def test_what_is_no_layer_is_refused(layer, arguments, message):
    with pytest.raises(InvalidArgumentError, match=message):
        LayerLinkPrediction(layer, arguments)


class OneInput(torch.nn.Module):
    def forward(self, states):
        return states


class AllVertices(torch.nn.Module):
    def forward(self, block, ends):
        return ends[0]


class Narrow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.product = torch.nn.Linear(3, 8)

    def forward(self, block, ends):
        return self.product(ends[1])


FORM = "a layer is called as layer.*senders, receivers.*, edge_index.* and otherwise as layer.block"


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (OneInput, f"layer must be called with two arguments, got 'OneInput: too many .*'; {FORM}"),
        (
            Narrow,
            f"senders and receivers, rows of 8 values, got 'Narrow, which raised RuntimeError: .*'; {FORM}",
        ),
        (AllVertices, rf"layer must be of \d+ rows, one per root, got \[\d+, 8\]; {FORM}"),
        (OneInput(), f"layer must be the class of a torch.nn.Module, got 'OneInput'; give a layer's class .*{FORM}"),
        (7, "layer must be the class of a torch.nn.Module, got 'int'; give a layer's class or the path of it"),
        (dict, "layer must be the class of a torch.nn.Module, got 'type'"),
    ],
)
def test_a_layer_of_another_form_is_refused_with_the_form(layer, message):
    data = TemporalDataModule(random_store(120), batch_size=20, num_neighbors=3, num_eval_negatives=5)
    trainer = pl.Trainer(**QUIET)
    with pytest.raises(InvalidArgumentError, match=message):
        trainer.fit(LayerLinkPrediction(layer, {}, memory_dim=8, embedding_dim=8, time_dim=4), datamodule=data)


def test_a_layer_of_another_width_is_refused(batch):
    embedding = LayerEmbedding(pyg_nn.SAGEConv(WIDTH, 5), 7, TimeEncoder(4, 1.0))
    states = states_of(batch)
    with pytest.raises(
        InvalidArgumentError, match=r"layer must be of 7 values per root, got .*5\]; set embedding_dim=5"
    ):
        embedding(states, torch.zeros(len(states)), batch)


def test_a_block_without_dgl_is_refused(batch, monkeypatch):
    monkeypatch.setitem(sys.modules, "dgl", None)
    with pytest.raises(
        InvalidArgumentError, match="block must be called where dgl is installed, got 'no dgl'; install"
    ):
        neighbor_edges(batch).block()
