"""Strategies by name, as outlines: what the simulator needs of a plan, without the classes that run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from lightning_tgnn.algorithms.schedules.disttgl import DistTGLOutline
from lightning_tgnn.algorithms.schedules.outlines import (
    CUT,
    SERVED,
    data_parallel,
    in_order,
    mean_gradients,
    pipelined,
    updated_by_owners,
)
from lightning_tgnn.algorithms.schedules.pipetgl import PipeTGLOutline
from lightning_tgnn.algorithms.traffic.gradient_compression import COMPRESSIONS
from lightning_tgnn.checks import InvalidArgumentError, check_choice, check_int, refusal
from lightning_tgnn.commands.shared.options import name_and_options
from lightning_tgnn.types.outline import Outline, Stage

_COMPRESSION = "gradient_compression"
_PIPELINES: dict[str, type[PipeTGLOutline] | type[DistTGLOutline]] = {
    "disttgl": DistTGLOutline,
    "pipetgl": PipeTGLOutline,
}
OPTIONS: dict[str, tuple[str, ...]] = {
    "depcache": ("staleness", _COMPRESSION),
    "depcomm": ("staleness", _COMPRESSION),
    "sven": ("staleness", "micro_batches", "ahead", "remote", _COMPRESSION),
    **{name: tuple(field.name for field in fields(kind)) for name, kind in _PIPELINES.items()},
}
CUT_COPIES = f"disttgl:store={CUT}"
"""The strategy whose stages take something else where rows are cut over ranks."""
SHARES = ("targets", "repeated", "ahead")
"""Options that are shares of rows, which go by the stream."""
_STALENESS = {"depcache": 0, "depcomm": 0, "sven": 1}


@dataclass(frozen=True)
class SimulatedPlan:
    """A strategy with its options.

    Attributes:
        written: As the user wrote it.
        name: Of the strategy.
        options: What differs from its defaults.
    """

    written: str
    name: str
    options: dict[str, Any]

    @classmethod
    def of(cls, written: str) -> SimulatedPlan:
        """Return the plan that is written ``NAME:OPTION=VALUE:...``.

        Raises:
            InvalidArgumentError: The strategy or an option is unknown, or an option has a value that cannot work.

        >>> SimulatedPlan.of("sven:micro_batches=2").outline(4).stages[4].share
        0.5
        """
        name, options = name_and_options("strategy", written)
        check_choice("strategy", name, OPTIONS)
        for option in options:
            check_choice(f"option of {name}", option, OPTIONS[name])
        if options.get(_COMPRESSION) is not None:
            check_choice(f"{_COMPRESSION} of {name}", options[_COMPRESSION], COMPRESSIONS)
        plan = cls(written, name, options)
        if name == "pipetgl":
            plan._pipeline()
        elif name == "disttgl":
            plan.copies(0)
        else:
            plan.outline(1)
        return plan

    @property
    def compression(self) -> str | None:
        """The name of the gradient compression; None sends gradients as they are."""
        return self.options.get(_COMPRESSION)

    @property
    def measured_as(self) -> str:
        """Under what name its costs are given where strategies have costs of their own; see `CUT_COPIES`."""
        return CUT_COPIES if self.options.get("store") == CUT else self.name

    def with_shares(self, shares: Mapping[str, float]) -> SimulatedPlan:
        """Return the plan with the shares of rows that it takes and its options leave open."""
        taken = {name: share for name, share in shares.items() if name in OPTIONS[self.name]}
        if self.name == "disttgl" and not self.copies(0).asks_ahead:
            taken.pop("ahead", None)
        return replace(self, options={**taken, **self.options})

    def outline(self, ranks: int) -> Outline:
        """Return what turns of so many ranks consist of.

        Args:
            ranks: Of all hosts.

        Raises:
            InvalidArgumentError: The ranks do not fit the strategy, or the staleness is out of range.
        """
        if self.name == "disttgl":
            return self.copies(ranks).of(ranks)
        if self.name == "pipetgl":
            return self._pipeline().of(ranks)
        options = dict(self.options)
        delay = options.pop("staleness", _STALENESS[self.name])
        check_int("staleness", delay, minimum=0, cure="0 waits for gradients, 1 applies them a turn late")
        if delay > 1:
            raise InvalidArgumentError(refusal("staleness", "0 or 1", delay, "1 applies gradients a turn late"))
        compression = options.pop(_COMPRESSION, None)
        order = _ORDERS[self.name](**options)
        return data_parallel(self.name, order, mean_gradients(order, delay, compression), delay=delay)

    def check_hosts(self, ranks: int, hosts: int) -> None:
        """Refuse served copies of node memory over several hosts, whose ranks one process could not serve.

        Raises:
            InvalidArgumentError: Copies are served, and their number is no multiple of the hosts.
        """
        if self.name != "disttgl" or (plan := self.copies(ranks)).store != SERVED:
            return
        if plan.memory % hosts:
            requirement = f"a multiple of the {hosts} hosts: a copy of node memory lies on one"
            cure = "take as many, or store=sharded"
            raise InvalidArgumentError(refusal("memory", requirement, plan.memory, cure))

    def copies(self, ranks: int) -> DistTGLOutline:
        """Return i, j and k of so many ranks: where no k is given, as many copies as there are ranks for."""
        options = {"memory": None, **self.options}
        _check_flags("disttgl", options, ("fetch_ahead",))
        if options["memory"] is None:
            own = DistTGLOutline(**{**options, "memory": 1})
            options["memory"] = max(ranks // (own.minibatch * own.epoch), 1)
        return DistTGLOutline(**options)

    def _pipeline(self) -> PipeTGLOutline:
        _check_flags("pipetgl", self.options, ("targets_first", "pass_on", "gather_ahead"))
        return PipeTGLOutline(**self.options)


def _check_flags(strategy: str, options: Mapping[str, object], names: Sequence[str]) -> None:
    for name in names:
        value = options.get(name, True)
        if not isinstance(value, bool):
            raise InvalidArgumentError(refusal(f"{name} of {strategy}", "true or false", value, "give one of them"))


_ORDERS: dict[str, Callable[..., tuple[Stage, ...]]] = {
    "depcache": in_order,
    "depcomm": updated_by_owners,
    "sven": pipelined,
}
