"""Strategies by name, with their options, as the simulator takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from lightning_tgnn.algorithms.schedules.outlines import CUT
from lightning_tgnn.checks import InvalidArgumentError, check_choice
from lightning_tgnn.commands.shared.options import name_and_options
from lightning_tgnn.types import Plan
from lightning_tgnn.types.outline import Outline, RowShares

if TYPE_CHECKING:
    from lightning_tgnn.strategies.runner import PlanRunner

CUT_COPIES = f"disttgl:store={CUT}"
"""The strategy whose stages take something else where rows are cut over ranks."""
_MOST_RANKS = 2**16
SHARES = tuple(share.name for share in fields(RowShares))


def strategies() -> dict[str, type[PlanRunner]]:
    """Return the strategies that can be simulated by name: those on streams, and those on snapshots."""
    from lightning_tgnn.strategies.names import strategies_on  # and with it Lightning, which --help does without

    return {**strategies_on("events"), **strategies_on("snapshots")}


@dataclass(frozen=True)
class SimulatedPlan:
    """A strategy with its options.

    Attributes:
        written: As the user wrote it.
        name: Of the strategy.
        options: Arguments of the strategy.
        shares: What goes by the stream, as far as the user has given it.
    """

    written: str
    name: str
    options: dict[str, Any]
    shares: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, written: str) -> SimulatedPlan:
        """Return the plan that is written ``NAME:OPTION=VALUE:...``.

        Raises:
            InvalidArgumentError: The strategy or an option is unknown, or an option has a value that cannot work.

        >>> SimulatedPlan.of("sven:micro_batches=2").outline(4).stages[4].share
        0.5
        """
        name, given = name_and_options("strategy", written)
        kind = strategies()[check_choice("strategy", name, strategies())]
        known = [one.name for one in signature(kind).parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        plan = cls(written, name, {option: value for option, value in given.items() if option in known})
        fewest = plan.strategy(1).fewest_ranks
        if fewest > _MOST_RANKS:
            requirement = f"one for at most {_MOST_RANKS:,} ranks"
            raise InvalidArgumentError("strategy", requirement, f"{fewest:,}", "give lower factors")
        if isinstance(count := plan.options.get("micro_batches", 1), str):
            raise InvalidArgumentError("micro_batches", "a number, to be simulated", count, "give 1 or 2")
        read = plan.plan(fewest).order.shares
        for option in given:
            check_choice(f"option of {name}", option, [*known, *read])
        plan = replace(plan, shares={option: value for option, value in given.items() if option in read})
        plan.outline(fewest)
        return plan

    @property
    def compression(self) -> str | None:
        """The name of the gradient compression; None sends gradients as they are."""
        return self.options.get("gradient_compression")

    @property
    def measured_as(self) -> str:
        """Under what name its costs are given where strategies have costs of their own; see `CUT_COPIES`."""
        return CUT_COPIES if self.options.get("store") == CUT else self.name

    def with_shares(self, shares: Mapping[str, float]) -> SimulatedPlan:
        """Return the plan with the shares of rows that it depends on and that the user has not given."""
        read = self.plan(self.strategy(1).fewest_ranks).order.shares
        return replace(self, shares={**{name: shares[name] for name in shares if name in read}, **self.shares})

    def strategy(self, ranks: int) -> PlanRunner:
        """Return the strategy; where the copies of node memory are not given, with as many as there can be.

        Raises:
            InvalidArgumentError: An option has a value that cannot work.
        """
        kind = strategies()[self.name]
        made = kind(**self.options)
        if "memory" not in signature(kind).parameters or self.options.get("memory") is not None:
            return made
        return kind(**{**self.options, "memory": max(ranks // made.fewest_ranks, 1)})

    def plan(self, ranks: int, hosts: int = 1) -> Plan:
        """Return the plan of so many ranks.

        Raises:
            InvalidArgumentError: The ranks or the hosts do not fit the strategy.
        """
        return self.strategy(ranks).plan_for(ranks, hosts)

    def outline(self, ranks: int, hosts: int = 1) -> Outline:
        """Return what turns of so many ranks consist of.

        Raises:
            InvalidArgumentError: The ranks or the hosts do not fit the strategy, or a share has a value that cannot be.
        """
        return self.plan(ranks, hosts).outline(self.name, RowShares(**self.shares))
