"""LightningCLI with public names for what our commands change of it."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher as MultiProcessingLauncher
from typing_extensions import override

__all__ = ["CommandLine", "MultiProcessingLauncher"]


class CommandLine(LightningCLI):
    """LightningCLI whose steps can be changed: each calls a method of a public name, which does what Lightning does."""

    def chosen(self, name: str, *, made: bool = False, default: object = None) -> Any:
        """Return what the subcommand has been given by a name.

        Args:
            name: Of the option.
            made: Whether to return the object that has been made of it.
            default: Where nothing has been given.
        """
        return self._get(self.config_init if made else self.config, name, default=default)

    def take_checkpoint(self) -> None:
        """Take the model's settings from the checkpoint that is given."""
        super()._parse_ckpt_path()

    @override
    def _parse_ckpt_path(self) -> None:
        self.take_checkpoint()

    def run_subcommand(self, subcommand: str) -> None:
        """Run a subcommand."""
        super()._run_subcommand(subcommand)

    @override
    def _run_subcommand(self, subcommand: str) -> None:
        self.run_subcommand(subcommand)

    def subcommand_parser(self, klass: type, subcommand: str, **kwargs: object) -> LightningArgumentParser:
        """Return the parser of a subcommand."""
        return super()._prepare_subcommand_parser(klass, subcommand, **kwargs)

    @override
    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: object) -> LightningArgumentParser:
        return self.subcommand_parser(klass, subcommand, **kwargs)

    def parser_of(self, subcommand: str) -> LightningArgumentParser:
        """Return the parser that a subcommand has been given."""
        return self._subcommand_parsers[subcommand]

    def subcommand_arguments(self, subcommand: str) -> dict[str, Any]:
        """Return the arguments of the Trainer's method."""
        return super()._prepare_subcommand_kwargs(subcommand)

    @override
    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        return self.subcommand_arguments(subcommand)

    def give_optimizer(self, subcommand: str | None) -> None:
        """Give the model the optimizer of the command line."""
        super()._add_configure_optimizers_method_to_model(subcommand)

    @override
    def _add_configure_optimizers_method_to_model(self, subcommand: str | None) -> None:
        self.give_optimizer(subcommand)
