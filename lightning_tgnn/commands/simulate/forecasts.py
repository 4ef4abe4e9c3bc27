"""The results of `simulate`, and how they are printed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from lightning_tgnn.algorithms.schedules.simulation import Simulation
from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.commands.shared.printed import print_table


@dataclass(frozen=True)
class Forecast:
    """A strategy on some ranks.

    Attributes:
        strategy: As it was written.
        ranks: How many.
        hosts: They are on.
        staleness: Updates that the weights of a batch lack.
        events_per_second: Of all ranks.
        seconds_per_turn: In steady state.
        bubble: Share of the time in which a rank computes nothing, the mean of the ranks.
        bubble_of_worst: That of the rank that has most of it.
        waiting: Seconds per turn for which a rank waits in steady state, by stage, the mean of the ranks.
        critical_path: Seconds per turn by stage, the mean of all turns, of what held up each other until the end.
    """

    strategy: str
    ranks: int
    hosts: int
    staleness: int
    events_per_second: float
    seconds_per_turn: float
    bubble: float
    bubble_of_worst: float
    waiting: dict[str, float]
    critical_path: dict[str, float]

    @classmethod
    def of(cls, strategy: str, found: Simulation, hosts: int, batch_size: int) -> Forecast:
        """Return the figures of a simulated run.

        Raises:
            InvalidArgumentError: No stage of the simulated strategy takes time.
        """
        if not found.period:
            cure = "measured ones are in the folder of a run with SystemMonitor"
            raise InvalidArgumentError(refusal("seconds", f"above 0 for some stage of {strategy}", 0, cure))
        bubble, turns = found.bubble, found.turns - found.steady
        return cls(
            strategy=strategy,
            ranks=found.ranks,
            hosts=hosts,
            staleness=found.outline.staleness,
            events_per_second=found.events_per_second(batch_size),
            seconds_per_turn=found.period,
            bubble=float(bubble.mean()),
            bubble_of_worst=float(bubble.max()),
            waiting={name: float(seconds.mean()) / turns for name, seconds in found.waiting(found.steady).items()},
            critical_path={name: seconds / found.turns for name, seconds in found.critical_path().items()},
        )

    def figures(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return asdict(self)


def print_forecasts(forecasts: list[Forecast], console: Console) -> None:
    """Print a row for each.

    Args:
        forecasts: In order.
        console: Where to.
    """
    table = Table("strategy", "ranks", "staleness", "events/s", "ms/turn", "bubble", "waits for", "hangs on")
    for column in table.columns[1:6]:
        column.justify = "right"
    for forecast in forecasts:
        table.add_row(
            forecast.strategy,
            str(forecast.ranks),
            str(forecast.staleness),
            f"{forecast.events_per_second:,.0f}",
            f"{1e3 * forecast.seconds_per_turn:,.2f}",
            f"{forecast.bubble:.1%}",
            ", ".join(list(forecast.waiting)[:2]),
            _longest(forecast.critical_path),
        )
    print_table(table, console)


def _longest(path: dict[str, float]) -> str:
    total = sum(path.values())
    return ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in list(path.items())[:3] if total)
