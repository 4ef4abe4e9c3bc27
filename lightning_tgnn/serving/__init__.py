"""Answers of trained models while events keep coming.

The predictor needs Lightning, for its task is a LightningModule; tables of questions do not.
"""

from typing import TYPE_CHECKING

from lightning_tgnn.lazy import lazy_names

if TYPE_CHECKING:
    from lightning_tgnn.serving.predictor import Classes, Predictor, TopK

_HOMES = {"predictor": ("Classes", "Predictor", "TopK")}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = ["Classes", "Predictor", "TopK"]
