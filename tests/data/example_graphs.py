"""Small graphs, and the files that hold them."""

import gzip

import numpy as np
import torch

MASKS = {"train": "train_mask", "val": "val_mask", "test": "test_mask"}


def parts():
    """Four vertices: 0 -> 1, 1 -> 0, 0 -> 2, 2 -> 2; vertex 3 is alone."""
    split = torch.eye(4, dtype=torch.bool)
    return {
        "src": torch.tensor([0, 1, 0, 2]),
        "dst": torch.tensor([1, 0, 2, 2]),
        "features": torch.arange(8.0).view(4, 2),
        "labels": torch.tensor([0, 1, 1, -1]),
        "train": split[0],
        "val": split[1],
        "test": split[2],
    }


def edges(graph):
    return sorted(zip(graph.src.tolist(), graph.dst.tolist(), strict=True))


def same(ours, theirs):
    assert edges(ours) == edges(theirs)
    for name in ("features", "labels", "train", "val", "test"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name


def write_folder(folder, **columns):
    """A graph folder by hand; a column that is None is left out."""
    folder.mkdir()
    for name, column in (parts() | columns).items():
        if column is not None:
            np.save(folder / f"{MASKS.get(name, name)}.npy", np.asarray(column))
    return folder


def write_table(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.writelines(",".join(map(str, np.atleast_1d(row))) + "\n" for row in rows)


def write_ogb(folder, graph, *, archives=False, order="C", split="time"):
    """The files that OGB ships of a graph."""
    raw, numbers = folder / "raw", np.arange(graph.num_nodes)
    raw.mkdir(parents=True)
    index = np.stack([graph.src, graph.dst])
    if archives:
        labels = np.where(graph.labels < 0, np.nan, graph.labels).astype(np.float32)[:, None]
        counts = {"num_nodes_list": np.array([len(numbers)]), "num_edges_list": np.array([len(graph.src)])}
        edge_index = np.asarray(index, order=order)
        np.savez_compressed(raw / "data.npz", edge_index=edge_index, node_feat=graph.features, **counts)
        np.savez_compressed(raw / "node-label.npz", node_label=labels)
    else:
        write_table(raw / "edge.csv.gz", index.T)
        write_table(raw / "node-feat.csv.gz", graph.features.numpy())
        write_table(raw / "node-label.csv.gz", ["nan" if label < 0 else label for label in graph.labels.tolist()])
        write_table(raw / "num-node-list.csv.gz", [len(numbers)])
        write_table(raw / "num-edge-list.csv.gz", [len(graph.src)])
    for name, file in (("train", "train"), ("val", "valid"), ("test", "test")):
        write_table(folder / "split" / split / f"{file}.csv.gz", numbers[getattr(graph, name)])
    return folder
