"""Static graphs known by name, and where they come from."""

from __future__ import annotations

from pathlib import Path

DGL_CLASSES = {
    "cora": "CoraGraphDataset",
    "citeseer": "CiteseerGraphDataset",
    "pubmed": "PubmedGraphDataset",
    "reddit": "RedditDataset",
}
OGB_URLS = {
    "ogbn-arxiv": "http://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip",
    "ogbn-products": "http://snap.stanford.edu/ogb/data/nodeproppred/products.zip",
    "ogbn-papers100m": "http://snap.stanford.edu/ogb/data/nodeproppred/papers100M-bin.zip",
}
_OGB_FOLDERS = {  # as the package ogb has them
    "ogbn-arxiv": "ogbn_arxiv",
    "ogbn-products": "ogbn_products",
    "ogbn-papers100m": "ogbn_papers100M",
}
GRAPH_NAMES = (*DGL_CLASSES, *OGB_URLS)


def folder_of(name: str, root: Path) -> Path:
    """Return where the graph ``name`` lies under ``root``; its graph folder is inside."""
    return root / _OGB_FOLDERS.get(name, name)
