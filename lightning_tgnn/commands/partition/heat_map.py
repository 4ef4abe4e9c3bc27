"""A picture of a matrix between ranks."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from lightning_tgnn.files.whole import new_file


def save_heat_map(path: Path, matrix: Tensor, title: str, highest: int) -> None:
    """Write a matrix between ranks as a PNG, dark where it is high.

    Args:
        path: The file.
        matrix: int64 [M, M], owners by requesters.
        title: Above the picture.
        highest: The end of the scale, so that pictures can be compared.
    """
    from matplotlib.figure import Figure  # takes a moment and is needed nowhere else
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.add_subplot(title=title, xlabel="requesting rank", ylabel="owning rank")
    image = axes.imshow(matrix.numpy(), cmap="Blues", vmin=0, vmax=max(highest, 1))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(image, label="rows")
    with new_file(path) as partial:
        figure.savefig(partial, dpi=150, format="png")
