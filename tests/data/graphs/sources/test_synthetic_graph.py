"""The generator of static graphs, in memory and in a folder."""

import json

import pytest
import torch

from lightning_tgnn import FullGraphDataModule
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.data import generate_graph, save_graph

TWO_PIECES = {"num_nodes": 70_000, "num_edges": 1_100_000, "feature_dim": 2, "seed": 5}


def test_the_generator_makes_what_was_asked_for():
    graph = generate_graph(2000, 40_000, 4, 8, homophily=0.7, exponent=2.2, seed=3)
    assert (graph.num_nodes, len(graph.src), graph.features.shape[1], int(graph.labels.max())) == (2000, 40_000, 8, 3)
    alike = float((graph.labels[graph.src] == graph.labels[graph.dst]).float().mean())
    assert 0.72 < alike < 0.9  # of the others a quarter or so stays by chance
    degree = torch.bincount(graph.dst, minlength=2000).sort(descending=True).values
    assert int(degree[:20].sum()) > 0.05 * 40_000  # one in a hundred has far more than one in a hundred
    centres = torch.stack([graph.features[graph.labels == label].mean(0) for label in range(4)])
    assert float(torch.cdist(centres, centres).fill_diagonal_(9).min()) > 0.5
    again = generate_graph(2000, 40_000, 4, 8, homophily=0.7, exponent=2.2, seed=3)
    assert torch.equal(graph.src, again.src)
    assert [int(getattr(graph, name).sum()) for name in ("train", "val", "test")] == [1200, 400, 400]
    with pytest.raises(InvalidArgumentError, match=r"exponent must be above 2, got 1\.5"):
        generate_graph(exponent=1.5)


def test_a_folder_holds_the_same_values(tmp_path):
    here, there = generate_graph(**TWO_PIECES), generate_graph(**TWO_PIECES, folder=tmp_path / "graph")
    assert there.src.dtype == there.dst.dtype == torch.int32
    for name in ("src", "dst", "features", "labels", "train", "val", "test"):
        assert torch.equal(getattr(here, name).long(), getattr(there, name).long()), name
    assert torch.equal(here.features, there.features)
    assert here.info() == there.info()


def test_pieces_differ():
    graph = generate_graph(**TWO_PIECES)
    assert not torch.equal(graph.src[: 1 << 15], graph.src[1 << 20 : (1 << 20) + (1 << 15)])
    noise = graph.features - torch.stack([graph.features[graph.labels == k].mean(0) for k in range(5)])[graph.labels]
    assert not torch.allclose(noise[:4000], noise[1 << 16 : (1 << 16) + 4000], atol=0.1)


def test_more_edges_keep_the_whole_pieces():
    more = generate_graph(**(TWO_PIECES | {"num_edges": 1_200_000}))
    assert torch.equal(more.src[: 1 << 20], generate_graph(**TWO_PIECES).src[: 1 << 20])


def test_the_smallest_graph_can_be_trained_on():
    for seed in range(20):
        graph = generate_graph(10, 1, 2, 1, seed=seed)
        assert [int(getattr(graph, name).sum()) for name in ("train", "val", "test")] == [6, 2, 2]


def test_a_folder_is_written_once(tmp_path):
    settings = {"num_nodes": 50, "num_edges": 100, "folder": str(tmp_path / "graph")}
    data = FullGraphDataModule(synthetic=settings)
    data.prepare_data()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "graph").iterdir()}
    data.prepare_data()
    assert data.graph.num_nodes == 50
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert json.loads((tmp_path / "graph" / "synthetic.json").read_text())["num_edges"] == 100


def test_a_folder_of_another_graph_is_refused(tmp_path):
    generate_graph(50, 100, folder=tmp_path / "graph")
    with pytest.raises(InvalidArgumentError, match=r"folder must be new, .*graph with num_edges=100'; choose another"):
        generate_graph(50, 101, folder=tmp_path / "graph")
    save_graph(tmp_path / "saved", generate_graph(50, 100))
    with pytest.raises(InvalidArgumentError, match=r"folder must be new, .*saved with something else'; choose"):
        generate_graph(50, 100, folder=tmp_path / "saved")
    (tmp_path / "saved" / "synthetic.json").write_text("{")
    with pytest.raises(InvalidArgumentError, match=r"folder must be new, .*saved with something else'; choose"):
        generate_graph(50, 100, folder=tmp_path / "saved")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgumentError, match=r"folder must be new, .*file with something else'; choose"):
        generate_graph(50, 100, folder=tmp_path / "file")
    (settings,) = (tmp_path / "graph").glob("*.json")
    settings.write_text("5")
    with pytest.raises(InvalidArgumentError, match=r"folder must be new, .*graph with something else'; choose"):
        generate_graph(50, 100, folder=tmp_path / "graph")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_nodes": 9}, "num_nodes must be an integer of at least 10, got 9"),
        ({"num_edges": 0}, "num_edges must be an integer of at least 1, got 0"),
        ({"num_nodes": 10, "num_classes": 11}, "num_classes must be at most num_nodes=10, got 11"),
        ({"feature_dim": 0}, "feature_dim must be an integer of at least 1, got 0"),
        ({"homophily": 1}, r"homophily must be a number in \[0, 1\), got 1"),
        ({"noise": float("nan")}, "noise must be a finite number of at least 0, got nan"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(InvalidArgumentError, match=message):
        generate_graph(**settings)
