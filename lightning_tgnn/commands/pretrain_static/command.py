"""``lightning-tgnn pretrain-static``: the rows of a static node memory, by the task, model and split of a recipe."""

from __future__ import annotations

import warnings
from argparse import SUPPRESS
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from jsonargparse import Namespace
from lightning.pytorch.cli import ArgsType, LightningArgumentParser
from rich.console import Console

from lightning_tgnn.callbacks import StaticPretraining
from lightning_tgnn.checks import InvalidArgumentError, check_int, with_home
from lightning_tgnn.cli import TGNNCommand
from lightning_tgnn.commands.fit.broken_off import leave, was_interrupted
from lightning_tgnn.files.whole import check_place

_DESCRIPTION = """Pretrain the static node memory of a recipe: a row per node, learned without node memory.

  lightning-tgnn pretrain-static --config recipes/disttgl_mooc_static.yaml
  lightning-tgnn fit --config recipes/disttgl_mooc_static.yaml
  lightning-tgnn pretrain-static --config RECIPE --model.static_dim 100 --output static.pt --epochs 10

Task, model and split are as in the recipe; node memory is left out, and an embedding table stands in its place. One
process trains on the training split alone. A node without an event in it gets zeros. The file appears when it is whole.
The callback StaticMemory of a recipe gives its rows to a run; without --output the file goes where that callback looks.
"""
_NAME = "lightning-tgnn pretrain-static"
# What a run has saved of its settings beside the settings of a recipe; nothing here reads them.
_OF_RUNS = {"ckpt_path": str, "weights_only": bool, "test_after_fit": bool, "baselines": bool, "trust": bool}
# What a recipe says of the run that comes later.
_OF_PRETRAINING: dict[str, Any] = {
    "devices": 1,
    "num_nodes": 1,
    "strategy": "auto",
    "logger": False,
    "callbacks": None,
    "enable_checkpointing": False,
    "limit_val_batches": 0,
    "num_sanity_val_steps": 0,
    "min_epochs": None,
    "max_steps": -1,
}


def pretrain_static(arguments: Sequence[str]) -> None:
    """Run the command.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
        DataError: The stream does not hold what it has to.
    """
    if not arguments:
        cure = f"write {_NAME} --config RECIPE, such as recipes/disttgl_mooc_static.yaml, or see --help"
        raise InvalidArgumentError("pretrain-static", "given a recipe or a setting", "nothing", cure)
    PretrainingCommand(["fit", *arguments])


class PretrainingCommand(TGNNCommand):
    """Reads a recipe as ``fit`` does, and pretrains in its place."""

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return ``fit``, without a checkpoint to resume from."""
        return {"fit": TGNNCommand.subcommands()["fit"] | {"ckpt_path", "weights_only"}}

    def setup_parser(
        self, add_subcommands: bool, main_kwargs: dict[str, Any], subparser_kwargs: dict[str, Any]
    ) -> None:
        """Make the parser, which says what the command does."""
        subparser_kwargs["fit"] = {**subparser_kwargs["fit"], "description": _DESCRIPTION}
        super().setup_parser(add_subcommands, main_kwargs, subparser_kwargs)
        parser = self.parser_of("fit")
        parser.prog, parser.usage = _NAME, f"{_NAME} [options]"

    def add_own_arguments(self, parser: LightningArgumentParser, subcommand: str) -> None:
        """Add what the command takes beside the settings of a recipe."""
        help_ = "Where the file is put; None takes the path of the recipe's StaticMemory."
        parser.add_argument("--output", type=str | None, default=None, help=help_)
        parser.add_argument("--epochs", type=int, default=10, help="Over the training split.")
        help_ = "Batches in random order, in the order of time (false), or as the model allows (None)."
        parser.add_argument("--shuffle", type=bool | None, default=None, help=help_)
        for name, kind in _OF_RUNS.items():
            parser.add_argument(f"--{name}", type=kind | None, default=None, help=SUPPRESS)

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse the arguments."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "LightningCLI's args parameter")
            super().parse_arguments(parser, args)

    def take_checkpoint(self) -> None:
        """Refuse a checkpoint."""
        path = self.config["fit"]["ckpt_path"]
        if path is not None:
            cure = "leave it out, or write --ckpt_path null: pretraining begins anew"
            raise InvalidArgumentError("ckpt_path", "left out in pretraining", path, cure)

    def before_instantiate_classes(self) -> None:
        """Put the settings of pretraining in place of the settings of the later run."""
        chosen = self.config["fit"]
        check_int("--epochs", chosen["epochs"], minimum=1, cure="10 is usual, 1 on a long stream")
        self._path, self._shuffle = _output(chosen), chosen["shuffle"]
        self._epochs = chosen["epochs"]
        for name, value in {**_OF_PRETRAINING, "max_epochs": self._epochs}.items():
            chosen["trainer"][name] = value
        self.save_config_callback = None

    def instantiate_trainer(self, **kwargs: object) -> pl.Trainer:
        """Return the Trainer that pretrains."""
        trainer = super().instantiate_trainer(**kwargs)
        trainer.callbacks.append(StaticPretraining(self._path, shuffle=self._shuffle))  # type: ignore[attr-defined]
        return trainer

    def run_subcommand(self, subcommand: str) -> None:
        """Pretrain."""
        try:
            self.trainer.fit(self.model, datamodule=self.datamodule)
        except BaseException as error:
            if not was_interrupted(error):
                raise
            leave(f"{_NAME}: interrupted, and no file is written")
        said = f"static node memory: {self._path}; give it to a run by the callback lightning_tgnn.StaticMemory"
        Console().out(said, highlight=False)


def _output(chosen: Namespace) -> Path:
    """Return where the file goes.

    Raises:
        InvalidArgumentError: Neither ``--output`` nor a `StaticMemory` callback gives a path.
    """
    callbacks = chosen["trainer"].get("callbacks") or []
    callbacks = callbacks if isinstance(callbacks, list) else [callbacks]
    paths = [one["init_args"]["path"] for one in callbacks if one["class_path"].endswith(".StaticMemory")]
    path = chosen["output"] or (paths[0] if paths else None)
    if path is None:
        cure = "write --output static.pt, or add the callback lightning_tgnn.StaticMemory to the recipe"
        raise InvalidArgumentError("--output", "the path of a file", path, cure)
    place = Path(with_home(path))
    if chosen["output"] is not None:
        check_place("--output", place)
    return place
