"""The files of data sets of TGB, small, as ``py-tgb`` reads and makes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

EVENTS, ITEMS, NEGATIVES = 200, 8, 7
AFFINITY_EVENTS, NATIONS = 300, 6


def _all_others(event: int) -> list[int]:
    return [item for item in range(10, 18) if item != 10 + event % ITEMS]


def tgbl_wiki(folder: Path, negatives: Callable[[int], Sequence[int]] = _all_others) -> Any:
    """Write the files of tgbl-wiki and let ``py-tgb`` read them."""
    from tgb.linkproppred.dataset import PROJ_DIR, LinkPropPredDataset
    from tgb.utils.utils import save_pkl

    place = folder / "tgbl_wiki"
    place.mkdir(exist_ok=True)
    rows = "".join(f"{i % 10},{i % ITEMS},{i // 2 * 10},0,{i}.5,1.0\n" for i in range(EVENTS))
    (place / "tgbl-wiki_edgelist_v2.csv").write_text(f"user_id,item_id,timestamp,state_label,f\n{rows}")
    dataset = LinkPropPredDataset("tgbl-wiki", root=os.path.relpath(folder, PROJ_DIR))
    for part, mask in (("val", dataset.val_mask), ("test", dataset.test_mask)):
        names = "sources", "destinations", "timestamps"
        keys = zip(*(dataset.full_data[name][mask] for name in names), strict=True)
        held = {key: np.array(negatives(event)) for event, key in zip(np.flatnonzero(mask), keys, strict=True)}
        save_pkl(held, dataset.meta_dict[f"{part}_ns"])
    return dataset


def typed_set(folder: Path, name: str) -> Any:
    """Write the files of a set with types, with ``py-tgb``'s own generators of negatives, and let it read them."""
    from tgb.linkproppred import thg_negative_generator as thg
    from tgb.linkproppred import tkg_negative_generator as tkg
    from tgb.linkproppred.dataset import PROJ_DIR, LinkPropPredDataset
    from torch_geometric.data import TemporalData

    place = folder / name.replace("-", "_")
    place.mkdir()
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 10, EVENTS), rng.integers(10, 18, EVENTS)
    relations = np.where(items < 14, rng.integers(0, 2, EVENTS), 2)  # each leads to nodes of one type
    rows = zip(np.arange(EVENTS) // 2 * 10, users, items, relations, strict=True)
    lines = [",".join(map(str, row)) for row in rows]
    (place / f"{name}_edgelist.csv").write_text("\n".join(["timestamp,head,tail,relation_type", *lines]))
    kinds = [f"{node},{int(node >= 10) + int(node >= 14)}" for node in range(18)]
    (place / f"{name}_nodetype.csv").write_text("\n".join(["node_id,type", *kinds]))
    dataset = LinkPropPredDataset(name, root=os.path.relpath(folder, PROJ_DIR))
    data, ends = dataset.full_data, (0, 17)
    for split, mask in (("val", dataset.val_mask), ("test", dataset.test_mask)):
        columns = {"src": "sources", "dst": "destinations", "t": "timestamps", "edge_type": "edge_type"}
        edges = TemporalData(**{key: torch.from_numpy(data[column][mask]) for key, column in columns.items()})
        if name.startswith("thgl"):
            generator = thg.THGNegativeEdgeGenerator(name, *ends, dataset.node_type, edge_data=edges)
        else:
            lowest, highest = int(data["destinations"].min()), int(data["destinations"].max())
            generator = tkg.TKGNegativeEdgeGenerator(name, lowest, highest, "time-filtered", edge_data=edges)
        generator.generate_negative_samples(edges, split, str(place))
    return dataset


def tgbn_trade(folder: Path) -> Any:
    """Write the files of tgbn-trade and let ``py-tgb`` read them."""
    from tgb.nodeproppred.dataset import PROJ_DIR, NodePropPredDataset

    name, header = "tgbn-trade", "year,nation,trading nation,weight"
    place = folder / "tgbn_trade"
    place.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    nations = [f"n{number}" for number in range(NATIONS)]
    drawn = [rng.permutation(nations)[:2] for _ in range(AFFINITY_EVENTS)]
    rows = [f"{1990 + event // 10},{one},{other},{rng.random():.3f}" for event, (one, other) in enumerate(drawn)]
    (place / f"{name}_edgelist.csv").write_text("\n".join([header, *rows]))
    pairs = [(one, other) for one in nations for other in nations if one != other]
    labels = [
        f"{year},{one},{other},{rng.random():.3f}"
        for year in range(1991, 2020)
        for one, other in pairs
        if rng.random() < 0.6
    ]
    (place / f"{name}_node_labels.csv").write_text("\n".join([header, *labels]))
    return NodePropPredDataset(name, root=os.path.relpath(folder, PROJ_DIR))
