"""LightningCLI's subcommands of ``lightning-tgnn``, and a test of the best checkpoint after ``fit``."""

from __future__ import annotations

import os
import sys
from argparse import SUPPRESS, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from importlib import import_module
from traceback import walk_tb
from typing import Any

import lightning.pytorch as pl
from jsonargparse import DefaultHelpFormatter, Namespace
from lightning.pytorch.callbacks import ModelCheckpoint, ModelSummary, ProgressBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_only

import lightning_tgnn
from lightning_tgnn.callbacks import Baselines, EventProgressBar, SystemMonitor
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.commands import DESCRIPTION
from lightning_tgnn.commands.fit.resuming_cli import ResumingCLI, RunSettings
from lightning_tgnn.commands.fit.shown import ParameterSummary
from lightning_tgnn.commands.shared.parse_errors import OneLineErrors
from lightning_tgnn.commands.shared.printed import Best, print_report
from lightning_tgnn.commands.shared.recipe_file import RecipeFile
from lightning_tgnn.data.streams.fixed_protocol import PROTOCOLS
from lightning_tgnn.files.runs import deciding_callback
from lightning_tgnn.metrics.of_protocol import MAIN_METRIC
from lightning_tgnn.tasks.task import Task

_LARGEST_SEED = 2**32 - 1

for _name in lightning_tgnn.__all__:  # a class is known by its short name when it has been imported
    getattr(lightning_tgnn, _name)

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
        # A parser takes long to build. A file of settings before the subcommand may have some for each.
        words = sys.argv[1:] if args is None else args
        self._asked = self.subcommands().keys() & (words[:1] if isinstance(words, list) else [])
        super().__init__(
            model_class=pl.LightningModule,
            datamodule_class=pl.LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            seed_everything_default=0,
            save_config_callback=RunSettings,
            save_config_kwargs={"overwrite": True},
            parser_kwargs=_parser_options(self.subcommands()),
            args=args,
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse the arguments, and check what the parser lets pass and would end in an error of Python later."""
        super().parse_arguments(parser, args)
        subcommand = self.config["subcommand"]
        _take_protocol(self.config[subcommand])
        _check_settings(self.config[subcommand], subcommand)

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """Return the parser of the command, or of a subcommand."""
        parser = _Parser(**kwargs)
        parser.add_argument("-c", "--config", action=RecipeFile, help="A recipe in YAML.")
        return parser

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return Lightning's, but ``predict``: ours answers questions and writes the answers down."""
        return {name: skipped for name, skipped in LightningCLI.subcommands().items() if name != "predict"}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Set our defaults."""
        parser.set_defaults(_DEFAULTS)

    def subcommand_parser(self, klass: type, subcommand: str, **kwargs: object) -> LightningArgumentParser:
        """Return the parser of a subcommand, with what it takes of ours."""
        if self._asked and subcommand not in self._asked:
            return self.init_parser(**kwargs)
        parser = super().subcommand_parser(klass, subcommand, **kwargs)
        self.add_own_arguments(parser, subcommand)
        return parser

    def add_own_arguments(self, parser: LightningArgumentParser, subcommand: str) -> None:
        """Add what a subcommand takes beside Lightning's arguments."""
        if subcommand == "fit":
            parser.add_argument(
                "--test_after_fit", type=bool, default=True, help="Measure the best checkpoint at the end."
            )
        else:  # it stands in what a fit has saved of its settings
            parser.add_argument("--test_after_fit", type=bool | None, default=None, help=SUPPRESS)
        if subcommand in ("fit", "validate", "test"):
            help_ = "Measure baselines that learn nothing beside the model, on the same events and negatives."
            parser.add_argument("--baselines", type=bool, default=False, help=help_)
            help_ = f"A published protocol, {' or '.join(PROTOCOLS)}, in place of this package's; as --data.protocol."
            parser.add_argument("--protocol", type=str | None, default=None, help=help_)
            help_ = "Import and call whatever the checkpoint names; only for one of which you know where it is from."
            parser.add_argument("--trust", type=bool, default=False, help=help_)

    def give_optimizer(self, subcommand: str | None) -> None:
        """Give the model what makes the optimizer: our tasks have parameters when they know the stream."""
        chosen = {name: self.chosen(name, made=True) for name in ("optimizer", "lr_scheduler")}
        given: dict[str, Any] = {name: _maker(choice) for name, choice in chosen.items() if choice}
        if not given:
            return
        if not isinstance(self.model, Task):
            _check_left_out("lr_scheduler", given.keys() == {"lr_scheduler"}, self.model, "without --optimizer")
            super().give_optimizer(subcommand)
            return
        for name in given:
            own = not type(self.model).configure_optimizers.__module__.startswith("lightning_tgnn.")
            _check_left_out(name, own, self.model, "which has a configure_optimizers of its own")
            twice = getattr(self.model.optimization, name) is not None
            _check_left_out(name, twice, self.model, f"beside --model.{name}")
        self.model.optimization = replace(self.model.optimization, **given)

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """Return the trainer, with the baseline if asked for, and our progress bar unless one is given or unwanted."""
        given = self.chosen("trainer", made=True, default={})
        callbacks = given.get("callbacks") or []
        callbacks = callbacks if isinstance(callbacks, list) else [callbacks]
        has_bar = any(isinstance(callback, ProgressBar) for callback in callbacks)
        callbacks = [*callbacks]
        if not has_bar and given.get("enable_progress_bar") is not False and not given.get("barebones"):
            callbacks.append(EventProgressBar())
        has_none = given.get("enable_checkpointing") is False or given.get("barebones")
        if not has_none and not any(isinstance(callback, ModelCheckpoint) for callback in callbacks):
            # Lightning's own for each epoch, and one for a run that is broken off before.
            callbacks += [
                ModelCheckpoint(),
                ModelCheckpoint(
                    filename="last", every_n_train_steps=1000, save_on_exception=True, enable_version_counter=False
                ),
            ]
        has_summary = any(isinstance(callback, ModelSummary) for callback in callbacks)
        if not has_summary and given.get("enable_model_summary") is not False and not given.get("barebones"):
            callbacks.append(ParameterSummary())
        if callbacks:
            kwargs["callbacks"] = callbacks
        try:
            trainer = super().instantiate_trainer(**kwargs)
        except ValueError as error:
            if not _is_of_lightning(error):
                raise
            raise MisconfigurationException(str(error)) from error  # an accelerator that it does not know, say
        if self.chosen("baselines", default=False):
            trainer.callbacks.append(Baselines())  # type: ignore[attr-defined]
        return trainer

    def subcommand_arguments(self, subcommand: str) -> dict[str, Any]:
        """Return the arguments of the Trainer's method, whose tables `fit` prints itself."""
        kwargs = super().subcommand_arguments(subcommand)
        if "verbose" in kwargs:  # the table that `fit` prints, in place of Lightning's
            self._shows_metrics = kwargs["verbose"]
            kwargs["verbose"] = False
        return kwargs

    def after_validate(self) -> None:
        """Print what came out."""
        if self._shows_metrics:
            _report({name: float(value) for name, value in self.trainer.callback_metrics.items()}, None, None, None, {})

    after_test = after_validate

    def after_fit(self) -> None:
        """Measure the best checkpoint on the validation and test splits, and print what came out and where it is."""
        if not self.chosen("test_after_fit") or getattr(self.trainer, "fast_dev_run", False):
            return
        checkpoints = deciding_callback(self.trainer)
        path = None if checkpoints is None else checkpoints.best_model_path or None
        best = None if checkpoints is None else _best(checkpoints)
        seconds = _seconds(self.trainer)
        metrics: dict[str, float] = {}
        for measure in (self.trainer.validate, self.trainer.test):
            results = measure(self.model, datamodule=self.datamodule, ckpt_path=path, verbose=False)
            metrics.update(*results)
        # All ranks ask for it: the first one tells the others.
        folder = self.trainer.log_dir if self.trainer.loggers else None
        checkpoint_dir = None if checkpoints is None else checkpoints.dirpath
        _report(metrics, folder, checkpoint_dir, best, seconds)


@rank_zero_only
def _report(
    metrics: dict[str, float],
    log_dir: str | None,
    checkpoint_dir: str | os.PathLike[str] | None,
    best: Best | None,
    seconds: dict[str, float],
) -> None:
    print_report(metrics, log_dir, checkpoint_dir=checkpoint_dir, best=best, seconds=seconds)


def _best(callback: ModelCheckpoint) -> Best | None:
    """Return the best of the checkpoints that a callback has saved; None where it compares none."""
    score = callback.best_model_score
    return None if score is None else Best(str(callback.monitor), float(score), callback.best_model_path)


def _seconds(trainer: pl.Trainer) -> dict[str, float]:
    """Return what took the time, where it has been counted."""
    monitors = [callback for callback in getattr(trainer, "callbacks", []) if isinstance(callback, SystemMonitor)]
    return dict(monitors[0].seconds) if monitors else {}


def _maker(chosen: Namespace) -> Callable[..., Any]:
    """Return what makes an optimizer or a schedule, from its class path and arguments."""
    module, _, name = chosen["class_path"].rpartition(".")
    return partial(getattr(import_module(module), name), **chosen.get("init_args", {}))


def _take_protocol(settings: Namespace) -> None:
    """Hand the protocol to the DataModule, and have what monitors this package's AP or MRR monitor the protocol's."""
    data, given = settings.get("data"), settings.pop("protocol", None)
    if given is not None and data is not None:
        data["init_args.protocol"] = given
    protocol = None if data is None else data.get("init_args.protocol")
    if protocol not in PROTOCOLS:
        return
    callbacks = settings.get("trainer.callbacks") or []
    for holder in (*(callbacks if isinstance(callbacks, list) else [callbacks]), settings.get("lr_scheduler")):
        arguments = None if holder is None else holder.get("init_args")
        if arguments is None:
            continue
        monitor = arguments.get("monitor")
        if monitor in ("val/ap", "val/mrr"):
            arguments["monitor"] = f"val/{MAIN_METRIC[protocol]}"
            if arguments.get("filename"):
                arguments["filename"] = arguments["filename"].replace(monitor, arguments["monitor"])


def _check_settings(settings: Namespace, subcommand: str) -> None:
    """Check what a subcommand has been given.

    Raises:
        InvalidArgumentError: A section is empty that is needed, or a number is one that it cannot be.
    """
    # A section is null where a recipe has all lines below it commented out.
    if settings.get("model") is None and not settings.get("ckpt_path"):  # which knows its task
        cure = "name one by its class_path, or leave the section out for LinkPrediction"
        raise InvalidArgumentError("--model", "a task", "null", cure)
    if settings.get("trainer") is None:
        raise InvalidArgumentError("--trainer", "a mapping of settings", "null", "give one, or leave the section out")
    seed = settings.get("seed_everything")
    if isinstance(seed, int) and not 0 <= seed <= _LARGEST_SEED:
        cure = "choose one of these, or true for a random seed"
        raise InvalidArgumentError("--seed_everything", f"from 0 to {_LARGEST_SEED}", seed, cure)
    batches = settings.trainer.get("accumulate_grad_batches")
    if subcommand == "fit" and (batches is None or batches < 1):  # Lightning divides by it
        cure = "give 1 for an update after each batch"
        raise InvalidArgumentError("--trainer.accumulate_grad_batches", "at least 1", batches, cure)


def _is_of_lightning(error: ValueError) -> bool:
    """Whether Lightning itself has raised an error, not a part of the user's, or of ours, that it has called."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).startswith("lightning.")


def _check_left_out(name: str, refused: bool, task: pl.LightningModule, why: str) -> None:
    if refused:
        cure = f"leave out --{name}, or set the optimizer in one place"
        raise InvalidArgumentError(f"--{name}", f"left out, {why}", type(task).__name__, cure)


def _parser_options(subcommands: Iterable[str]) -> dict[str, Any]:
    # LightningCLI hands these to the parser of the command and of each subcommand.
    options = {"description": DESCRIPTION, "formatter_class": _Formatter, "allow_abbrev": False}
    return {**options, "prog": "lightning-tgnn", **{name: options for name in subcommands}}


class _Parser(OneLineErrors, LightningArgumentParser):
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
