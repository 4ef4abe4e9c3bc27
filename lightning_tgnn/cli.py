"""The command ``lightning-tgnn``: LightningCLI's subcommands, and a test of the best checkpoint after ``fit``."""

from __future__ import annotations

import sys
from typing import Any

from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from lightning_tgnn.checks import LightningTGNNError
from lightning_tgnn.data import TemporalDataModule
from lightning_tgnn.report import print_report
from lightning_tgnn.tasks import MemoryTask

_DEFAULTS = {
    "model": {"class_path": "lightning_tgnn.LinkPrediction"},
    "data": {"class_path": "lightning_tgnn.TemporalDataModule"},
    "trainer.logger": {"class_path": "TensorBoardLogger", "init_args": {"save_dir": "runs", "name": "tgnn"}},
}


class TGNNCommand(LightningCLI):
    """LightningCLI with our defaults. A task or DataModule of your own is given by its ``class_path``."""

    def __init__(self, args: ArgsType = None) -> None:
        super().__init__(
            model_class=MemoryTask,
            datamodule_class=TemporalDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            seed_everything_default=0,
            save_config_kwargs={"overwrite": True},
            args=args,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Set our defaults."""
        parser.set_defaults(_DEFAULTS)

    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        if subcommand == "fit":
            parser.add_argument(
                "--test_after_fit", type=bool, default=True, help="Measure the best checkpoint at the end."
            )
        return parser

    def after_fit(self) -> None:
        """Measure the best checkpoint on validation and test part, and print what came out and where it is."""
        if not self._get(self.config, "test_after_fit") or getattr(self.trainer, "fast_dev_run", False):
            return
        best = getattr(self.trainer.checkpoint_callback, "best_model_path", None) or None
        figures: dict[str, float] = {}
        for measure in (self.trainer.validate, self.trainer.test):
            results = measure(self.model, datamodule=self.datamodule, ckpt_path=best, verbose=False)
            figures.update(*results)
        self._report(figures)

    @rank_zero_only
    def _report(self, figures: dict[str, float]) -> None:
        print_report(figures, self.trainer.log_dir)


def main(args: ArgsType = None) -> None:
    """Run the command; what the user can put right is one line on standard error, not a traceback."""
    try:
        TGNNCommand(args)
    except LightningTGNNError as error:
        sys.exit(f"lightning-tgnn: {error}")
