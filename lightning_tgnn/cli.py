"""The command ``lightning-tgnn``: LightningCLI's subcommands, a test of the best checkpoint after ``fit``, and ours."""

from __future__ import annotations

import sys
from argparse import RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from jsonargparse import ActionConfigFile, DefaultHelpFormatter, Namespace
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.strategies import StrategyRegistry
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from lightning_tgnn.best_checkpoint import deciding_callback
from lightning_tgnn.broken_off import leave
from lightning_tgnn.callbacks import EdgeBankBaseline, EventProgressBar, SystemMonitor
from lightning_tgnn.checks import InvalidArgumentError, LightningTGNNError, refusal
from lightning_tgnn.commands import COMMANDS
from lightning_tgnn.files import refusal_to_write
from lightning_tgnn.report import Best, print_report
from lightning_tgnn.resuming_cli import ResumingCLI

_DESCRIPTION = """Train, validate and test temporal graph neural networks on event streams.

  lightning-tgnn fit --config recipes/quickstart.yaml              a recipe as it stands
  lightning-tgnn fit --config RECIPE --data.source events.csv      the same on your own events
  lightning-tgnn fit --config RECIPE --ckpt_path last              go on where its newest run stopped
  lightning-tgnn test --config RECIPE --ckpt_path best             the figures of its best checkpoint, or of a path
  lightning-tgnn fit --model.help LinkPrediction                   what --model.* takes
  lightning-tgnn fit --data.help TemporalDataModule                what --data.* takes
  lightning-tgnn fit --config RECIPE --print_config                every setting with its value

Beside the subcommands below there are these, with a --help of their own:

  lightning-tgnn predict --ckpt_path CKPT --score pairs.csv --output scores.csv   scores of pairs; top K, embeddings
  lightning-tgnn partition --source FILE --ranks 8                 compare partitions of nodes or edges, keep them
  lightning-tgnn bench --source FILE --devices 2                   compare strategies: speed, traffic, AP or accuracy
  lightning-tgnn data inspect|convert|download|generate            look at streams, convert, fetch and draw them
  lightning-tgnn report runs/NAME/version_0                        one HTML page of a run
"""

_DEFAULTS = {
    "model": {"class_path": "lightning_tgnn.LinkPrediction"},
    "data": {"class_path": "lightning_tgnn.TemporalDataModule"},
    "trainer.logger": {
        "class_path": "TensorBoardLogger",
        "init_args": {"save_dir": "runs", "name": "tgnn", "default_hp_metric": False},
    },
    "trainer.callbacks": [{"class_path": "lightning_tgnn.SystemMonitor"}],
}


class TGNNCommand(ResumingCLI):
    """LightningCLI with our defaults. A task or DataModule of your own is given by its ``class_path``."""

    def __init__(self, args: ArgsType = None) -> None:
        super().__init__(
            model_class=pl.LightningModule,
            datamodule_class=pl.LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            seed_everything_default=0,
            save_config_kwargs={"overwrite": True},
            parser_kwargs=_parser_options(),
            args=args,
        )

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """Return the parser of the command, or of a subcommand."""
        parser = _Parser(**kwargs)
        parser.add_argument("-c", "--config", action=ActionConfigFile, help="A recipe in YAML.")
        return parser

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return Lightning's, but ``predict``: ours answers questions and writes the answers down."""
        return {name: skipped for name, skipped in LightningCLI.subcommands().items() if name != "predict"}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Set our defaults."""
        parser.set_defaults(_DEFAULTS)

    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        if subcommand == "fit":
            parser.add_argument(
                "--test_after_fit", type=bool, default=True, help="Measure the best checkpoint at the end."
            )
        if subcommand in ("fit", "validate", "test"):
            help_ = "Measure EdgeBank beside the model, on the same events and negatives."
            parser.add_argument("--edgebank", type=bool, default=False, help=help_)
            help_ = "Import and call whatever the checkpoint names; only for one of which you know where it is from."
            parser.add_argument("--trust", type=bool, default=False, help=help_)
        return parser

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """Return the trainer, with the baseline if asked for, and our progress bar unless one is given or unwanted."""
        given = self._get(self.config_init, "trainer", default={})
        callbacks = given.get("callbacks") or []
        callbacks = callbacks if isinstance(callbacks, list) else [callbacks]
        has_bar = any(isinstance(callback, ProgressBar) for callback in callbacks)
        if not has_bar and given.get("enable_progress_bar") is not False and not given.get("barebones"):
            kwargs["callbacks"] = [*callbacks, EventProgressBar()]
        trainer = super().instantiate_trainer(**kwargs)
        if self._get(self.config, "edgebank", default=False):
            trainer.callbacks.append(EdgeBankBaseline())  # type: ignore[attr-defined]
        return trainer

    def after_fit(self) -> None:
        """Measure the best checkpoint on validation and test part, and print what came out and where it is."""
        if not self._get(self.config, "test_after_fit") or getattr(self.trainer, "fast_dev_run", False):
            return
        checkpoints = deciding_callback(self.trainer)
        best, seconds = _best(checkpoints), _seconds(self.trainer)
        path = getattr(checkpoints, "best_model_path", None) or None
        figures: dict[str, float] = {}
        for measure in (self.trainer.validate, self.trainer.test):
            results = measure(self.model, datamodule=self.datamodule, ckpt_path=path, verbose=False)
            figures.update(*results)
        folder = self.trainer.log_dir  # all ranks ask for it: the first one tells the others
        _report(figures, folder, best, seconds)


@rank_zero_only
def _report(figures: dict[str, float], log_dir: str | None, best: Best | None, seconds: dict[str, float]) -> None:
    print_report(figures, log_dir, best=best, seconds=seconds)


def _best(callback: Any) -> Best | None:
    """Return the best of the checkpoints that a callback has saved; None where it compares none."""
    score = getattr(callback, "best_model_score", None)
    return None if score is None else Best(callback.monitor, float(score), callback.best_model_path)


def _seconds(trainer: pl.Trainer) -> dict[str, float]:
    """Return what took the time, where somebody has counted."""
    monitors = [callback for callback in getattr(trainer, "callbacks", []) if isinstance(callback, SystemMonitor)]
    return dict(monitors[0].seconds) if monitors else {}


def _parser_options() -> dict[str, Any]:
    # LightningCLI hands these to the parser of the command and of each subcommand.
    options = {"description": _DESCRIPTION, "formatter_class": _Formatter}
    return {**options, **{name: options for name in TGNNCommand.subcommands()}}


class _Parser(LightningArgumentParser):
    """Knows of a default task and DataModule the class only.

    With their settings, a recipe with another class would be given those whose names it shares: the learning rate, say.
    """

    def get_defaults(self, *args: Any, **kwargs: Any) -> Namespace:
        """Return the defaults."""
        defaults = super().get_defaults(*args, **kwargs)
        for name in ("model", "data"):
            if isinstance(defaults.get(name), Namespace):
                defaults[name].pop("init_args", None)
        return defaults

    def add_lightning_class_args(self, *args: Any, **kwargs: Any) -> list[str]:
        """Add the arguments of a class; none has to be given, for there are defaults."""
        return super().add_lightning_class_args(*args, **{**kwargs, "required": False})


class _Formatter(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """Keeps the lines of the description."""


def main(args: ArgsType = None) -> None:
    """Run the command; what the user can put right is one line on standard error, not a traceback."""
    words = sys.argv[1:] if args is None else args
    try:
        if isinstance(words, list) and words and words[0] in COMMANDS:
            COMMANDS[words[0]](words[1:])
        else:
            TGNNCommand(args)
    except KeyboardInterrupt:
        leave()
    except (FileNotFoundError, MisconfigurationException) as error:
        sys.exit(f"lightning-tgnn: {error}")
    except (LightningTGNNError, ValueError, OSError) as error:
        refused = _refusal(error)
        if refused is None and "invalid strategy name" in str(error):
            sys.exit(f"lightning-tgnn: {str(error).partition('. ')[0]}; those of this package are {_own_strategies()}")
        if refused is None:
            raise
        sys.exit(f"lightning-tgnn: {refused}")


def _own_strategies() -> str:
    kinds = {name: held["strategy"].__module__ for name, held in StrategyRegistry.items()}
    return ", ".join(sorted(name for name, module in kinds.items() if module.startswith("lightning_tgnn.")))


def _refusal(error: BaseException | None) -> LightningTGNNError | None:
    """Return the refusal behind an error: jsonargparse wraps what a constructor raises in an error of its own."""
    if isinstance(error, IsADirectoryError):
        cure = "give the file in it"
        return InvalidArgumentError(refusal("path", "a file", f"the folder {error.filename}", cure))
    if isinstance(error, OSError):  # of a logger, say
        return refusal_to_write(Path(error.filename or "the folder of the run"), error)
    while error is not None and not isinstance(error, LightningTGNNError):
        error = error.__cause__ or error.__context__
    return error
