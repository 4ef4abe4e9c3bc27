"""Event streams known by name: where they are published, and what they have to hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class PublishedFile:
    """A file at a public address.

    Attributes:
        url: Of the file.
        checksum: As `lightning_tgnn.files.download.download` takes it; None where none is known.
        saved_as: What it is called here; None keeps its name.
    """

    url: str
    checksum: str | None = None
    saved_as: str | None = None

    @property
    def name(self) -> str:
        """Name of the file."""
        return self.saved_as or self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class PublishedStream:
    """A stream in one file, or in several that make a TGL folder.

    Attributes:
        files: Where it is from.
        num_events: Events that it has; another number means that something is missing.
        num_nodes: Nodes that it has.
        read_options: Of `lightning_tgnn.data.readers.read_events`.
        room: Bytes on disk, about, that the files and the store take together; 0 where that is little.
    """

    files: tuple[PublishedFile, ...]
    num_events: int
    num_nodes: int
    read_options: Mapping[str, Any] = field(default_factory=dict)
    room: int = 0


def _jodie(name: str, num_events: int, num_nodes: int) -> PublishedStream:
    """Kumar et al., "Predicting dynamic embedding trajectory in temporal interaction networks" (KDD 2019), Table 2."""
    file = PublishedFile(f"http://snap.stanford.edu/jodie/{name}.csv")
    return PublishedStream((file,), num_events, num_nodes, {"format": "jodie"})


_TGL_GDELT = "https://s3.us-west-2.amazonaws.com/dgl-data/dataset/tgl/GDELT"


def _gdelt(features: int, classes: int, *files: PublishedFile) -> PublishedStream:
    """Zhou et al., "TGL: a general framework for temporal GNN training on billion-scale graphs" (VLDB 2022), Table 3.

    Args:
        features: Width of the edge features, about.
        classes: Of events, about.
        *files: Of the edges.
    """
    events = 191_290_882
    row = 50 + features + classes  # of the files: a line of text, and a byte per value
    kept = 100 + 4 * features + classes  # of the store: columns, adjacency, float32 features
    files = (PublishedFile(f"{_TGL_GDELT}/edges.csv"), *files, PublishedFile(f"{_TGL_GDELT}/node_features.pt"))
    return PublishedStream(files, events, 16_682, room=events * (row + kept))


STREAMS = {
    "wikipedia": _jodie("wikipedia", 157_474, 9_227),
    "reddit": _jodie("reddit", 672_447, 10_984),
    "mooc": _jodie("mooc", 411_749, 7_144),
    "lastfm": _jodie("lastfm", 1_293_103, 1_980),
    "collegemsg": PublishedStream(
        (PublishedFile("https://snap.stanford.edu/data/CollegeMsg.txt.gz"),), 59_835, 1_899, {"format": "snap"}
    ),
    "bitcoinotc": PublishedStream(
        (
            PublishedFile(
                "https://snap.stanford.edu/data/soc-sign-bitcoinotc.csv.gz",
                checksum="sha1:c14281f9e252de0bd0b5f1c6e2bae03123938641",  # as DGL's BitcoinOTCDataset has it
            ),
        ),
        35_592,
        5_881,
        {"format": "csv", "columns": {"src": 0, "dst": 1, "time": 3, "edge_features": [2]}},
    ),
    "gdelt": _gdelt(182, 0, PublishedFile(f"{_TGL_GDELT}/edge_features.pt")),
    # DistTGL's edge classification (SC 2023, section 4), with the files of its authors' script.
    "gdelt-classes": _gdelt(
        130,
        56,
        PublishedFile(f"{_TGL_GDELT}/ec_edge_features_e0.pt", saved_as="edge_features.pt"),
        PublishedFile(f"{_TGL_GDELT}/ec_edge_class.pt.pt", saved_as="edge_classes.pt"),
    ),
}
