"""One run of ``lightning-tgnn compare``, in a process of its own: ``fit``, then a test for each kind of negatives."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from lightning_tgnn.cli import TGNNCommand
from lightning_tgnn.files.runs import deciding_callback
from lightning_tgnn.files.whole import write_text

_BYTES_PER_UNIT = 1 if sys.platform == "darwin" else 1024


class ComparedRun(TGNNCommand):
    """Trains as ``fit`` does, and keeps what was measured.

    Args:
        words: Of ``fit``.
        negatives: Kinds of evaluation negatives to test with; none for the DataModule's own.
    """

    def __init__(self, words: list[str], negatives: list[str]) -> None:
        self.negatives = negatives
        self.result: dict[str, Any] = {}
        super().__init__(["fit", *words])

    def after_fit(self) -> None:
        """Test the best checkpoint."""
        trainer, rate = self.trainer, self.trainer.callback_metrics.get("train/events_per_second")
        epochs = trainer.current_epoch
        callback = deciding_callback(trainer)
        path = None if callback is None else callback.best_model_path or None
        tests: dict[str, dict[str, float]] = {}
        for kind in self.negatives or [""]:
            if kind:
                self.datamodule.use_negatives(kind)
            (measured,) = trainer.test(self.model, datamodule=self.datamodule, ckpt_path=path, verbose=False)
            tests[kind] = {name: float(value) for name, value in measured.items()}
        self.result = {
            "tests": tests,
            "epochs": epochs,
            "events_per_second": None if rate is None else float(rate),
            "peak_bytes": _peak_bytes(),
        }


def _peak_bytes() -> int:
    """Return the most memory that this process has held: of a GPU where one was used."""
    if torch.cuda.is_available() and (used := torch.cuda.max_memory_allocated()):
        return used
    import resource  # which Windows has not

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _BYTES_PER_UNIT


def main() -> None:
    """Run what a line of JSON on standard input describes."""
    asked = json.loads(sys.stdin.readline())
    done = ComparedRun(asked["words"], asked["negatives"])
    if rank_zero_only.rank == 0:  # type: ignore[attr-defined]
        write_text(Path(asked["result"]), json.dumps({"asked": asked, **done.result}, indent=2))


if __name__ == "__main__":
    main()
