"""Records when the stages of some training steps ran on every rank, as a picture and as a trace."""

from __future__ import annotations

import json
import re
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import torch
from typing_extensions import override

from lightning_tgnn.algorithms.schedules.painter import chrome_trace, timeline_figure
from lightning_tgnn.callbacks.measures.tensorboard_writers import FigureWriter, over_ranks, writers_of
from lightning_tgnn.callbacks.monitor import Monitor
from lightning_tgnn.checks import InvalidArgumentError, check_int
from lightning_tgnn.files.whole import write_text
from lightning_tgnn.strategies.stage_recorder import StageRecorder, clock_of
from lightning_tgnn.types import only_one
from lightning_tgnn.types.outline import Timeline

_PICTURED = 16  # ranks
_Bars = list[tuple[str, int, float, float]]


class TimelineMonitor(Monitor):
    """Records the stages of some consecutive training steps of every rank, once in a fit.

    TensorBoard gets a picture, ``name``, of the first 16 ranks, which `lightning-tgnn report` shows as well; the
    folder of the logs gets ``NAME.json``, a trace of all ranks for ``chrome://tracing`` and Perfetto. Stages are
    the steps of `SystemMonitor`. The clocks of the ranks are set where they all meet before the first of these steps.
    Within a stage, the time in which a rank waited for others is drawn first: nobody has noted when it was.

    Several of them, each of another ``name``, record several moments of a fit: for example before and after
    `BLADStrategy` has put operators in another order, at the end of the first epoch.

    Args:
        turns: Steps to record.
        first: Steps before them: in the first ones loops are compiled.
        name: Of the picture, and of the file without ``.json``.

    Attributes:
        timeline: What was recorded in the latest fit, of all ranks; None where that had too few steps.

    Raises:
        InvalidArgumentError: A number is too small, or no file can have this name.
    """

    def __init__(self, turns: int = 8, first: int = 20, name: str = "timeline") -> None:
        check_int("turns", turns, minimum=1, cure="8 fit in a picture")
        check_int("first", first, minimum=0, cure="20 leave out the steps in which loops are compiled")
        if not re.fullmatch(r"\w[\w.-]*", name):
            requirement, cure = "letters, digits, _, - and .", "a file has this name: 'timeline' is the default"
            raise InvalidArgumentError("name", requirement, name, cure)
        super().__init__()
        self.turns, self.first, self.name = turns, first, name
        self.timeline: Timeline | None = None
        self._begun = 0  # steps of this fit
        self._waited = 0.0

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.timeline, self._recorder, self._begun = None, None, 0
        self._stages = getattr(pl_module, "stages", None)

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: object, *_: object
    ) -> None:
        before, self._waited = self._waited, getattr(only_one(trainer.train_dataloader), "waited", 0.0)
        if self._begun == self.first:
            strategy = trainer.strategy
            self._recorder = StageRecorder(clock_of(strategy.root_device), lambda: getattr(strategy, "waited", 0.0))
            if self._stages is not None:
                self._stages.add(self._recorder)
            strategy.barrier("timeline")
        self._begun += 1
        if self._recorder is not None:
            self._recorder.begin(max(self._waited - before, 0.0))  # less where the loader is a new one

    @override
    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: object) -> None:
        if self._recorder is not None:
            self._recorder.end()
            if self._recorder.steps == self.turns:
                self._finish(trainer)

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._recorder is not None and self._recorder.steps:
            self._finish(trainer)
        self._stop()

    def _finish(self, trainer: pl.Trainer) -> None:
        """Bring the ranks' bars together and write them; on all ranks at the same step."""
        assert self._recorder is not None
        bars = self._recorder.take_bars()
        self._stop()
        self.timeline = _joined(_from_all_ranks(bars, trainer), self.first)
        folder = trainer.log_dir  # the same on all ranks, which tell each other
        for writer in writers_of(trainer):
            if isinstance(writer, FigureWriter):
                figure = timeline_figure(self.timeline.of(ranks=range(_PICTURED)), "training steps")
                writer.add_figure(self.name, figure, global_step=trainer.global_step)
        if trainer.is_global_zero and trainer.loggers and folder is not None:
            write_text(Path(folder) / f"{self.name}.json", json.dumps(chrome_trace(self.timeline)))


def _from_all_ranks(own: _Bars, trainer: pl.Trainer) -> list[_Bars]:
    """Return the bars of every rank; all ranks have to call it."""
    if trainer.world_size == 1:
        return [own]
    text = json.dumps(own).encode()
    longest = int(over_ranks(trainer, torch.tensor(len(text)), "max"))
    packed = torch.frombuffer(bytearray(text.ljust(longest)), dtype=torch.uint8)
    gathered = trainer.strategy.all_gather(packed.to(trainer.strategy.root_device))
    return [json.loads(bytes(row.tolist())) for row in gathered.cpu()]


def _joined(bars: list[_Bars], first: int) -> Timeline:
    """Return one timeline, without bars of no length.

    Args:
        bars: Of every rank.
        first: The number of the first step.
    """
    held = [(rank, *bar) for rank, own in enumerate(bars) for bar in own if bar[3] > bar[2]]
    names = tuple(dict.fromkeys(stage for _, stage, *_ in held))
    place = {name: number for number, name in enumerate(names)}
    return Timeline(
        names,
        stage=np.array([place[stage] for _, stage, *_ in held], dtype=np.int64),
        rank=np.array([rank for rank, *_ in held], dtype=np.int64),
        turn=np.array([first + step for _, _, step, *_ in held], dtype=np.int64),
        begin=np.array([begin for *_, begin, _ in held], dtype=np.float64),
        end=np.array([end for *_, end in held], dtype=np.float64),
    )
