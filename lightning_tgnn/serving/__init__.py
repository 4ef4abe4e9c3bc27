"""Answers of trained models while events keep coming."""

from lightning_tgnn.serving.predictor import Predictor, TopK

__all__ = ["Predictor", "TopK"]
