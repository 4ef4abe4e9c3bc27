"""Negative destinations drawn by a function of the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.data.streams.event_store import EventStore

_TRIAL = 64
_DRAW = "draw by lightning_tgnn.data.random_below(len(candidates), seed, epoch, events.unsqueeze(1), torch.arange(num))"


class NegativeFunction(Protocol):
    """Draws negative destinations; called by keyword, so that it may leave to ``**others`` what it does not need."""

    def __call__(
        self,
        *,
        src: Tensor,
        dst: Tensor,
        time: Tensor,
        events: Tensor,
        seed: int,
        epoch: int,
        num: int,
        candidates: Tensor,
    ) -> Tensor:
        """Return ``num`` negative destinations for each of B events.

        What is drawn for an event must depend on the seed, the epoch and the event alone, not on the other events of
        the call nor on a generator's state: batches are made by any rank in any order, and again when a run resumes.
        B may be 0, and background threads may call it at the same time.

        Args:
            src: int64 [B].
            dst: int64 [B].
            time: float64 [B], in the unit of the stream.
            events: int64 [B], positions in the stream.
            seed: Of the DataModule.
            epoch: Training epoch, from 0; -1 in evaluation, whose negatives never change.
            num: Q.
            candidates: int64 [C], ascending, the nodes that may be drawn: all, but in training those that are held
                out.

        Returns:
            int64 [B, Q], each one of ``candidates``.
        """
        ...


@dataclass(frozen=True)
class FunctionNegatives:
    """Takes the place of a `NegativeSampler`. Build one with `build`, which tries the function.

    Attributes:
        function: Draws.
        store: The stream.
        seed: Of all draws.
        candidates: int64 [C], ascending, nodes that may be drawn.
        allowed: bool [N], the same.
    """

    function: NegativeFunction
    store: EventStore
    seed: int
    candidates: Tensor
    allowed: Tensor

    @classmethod
    def build(
        cls, function: NegativeFunction, store: EventStore, events: Tensor, *, seed: int, barred: Tensor | None = None
    ) -> FunctionNegatives:
        """Return the sampler after a trial.

        Args:
            function: Draws.
            store: The stream.
            events: int64, ascending, the events that it will be asked about.
            seed: Of all draws.
            barred: bool [N], nodes that must not be drawn.

        Raises:
            InvalidArgumentError: The function cannot be called so, returns something else than negatives, or draws
                otherwise where an event is asked about beside other ones.
        """
        allowed = torch.ones(store.num_nodes, dtype=torch.bool) if barred is None else ~barred
        sampler = cls(function, store, seed, allowed.nonzero().squeeze(1), allowed)
        some = events[:_TRIAL]
        for epoch in (0, None):
            together = sampler.sample(some, 3, epoch=epoch)
            others = sampler.sample(some[1:].flip(0), 3, epoch=epoch).flip(0)
            if not torch.equal(together[1:], others):
                requirement = "a function of seed, epoch and event alone"
                received = "other draws where the first event is left out and the others come backwards"
                raise InvalidArgumentError(refusal("negatives", requirement, received, _DRAW))
        return sampler

    def sample(self, events: Tensor, num: int, *, epoch: int | None) -> Tensor:
        """Return ``num`` negatives for each of ``events`` (int64 [B]), int64 [B, num].

        Raises:
            InvalidArgumentError: The function returns something else.
        """
        store = self.store
        question: dict[str, Any] = {
            "src": store.src[events],
            "dst": store.dst[events],
            "time": store.time[events],
            "events": events,
            "seed": self.seed,
            "epoch": -1 if epoch is None else epoch,
            "num": num,
            "candidates": self.candidates,
        }
        try:
            drawn = self.function(**question)
        except TypeError as error:
            names = ", ".join(question)
            cure = "take those, or **others for what you do not need"
            raise InvalidArgumentError(
                refusal("negatives", f"called with {names}, by keyword", str(error), cure)
            ) from error
        self._check(drawn, (len(events), num))
        return drawn.clone(memory_format=torch.contiguous_format)  # it may be a view of what the function keeps

    def _check(self, drawn: object, shape: tuple[int, int]) -> None:
        requirement = f"int64 of shape {list(shape)}, a row of nodes per event"
        if not isinstance(drawn, Tensor) or drawn.dtype != torch.int64 or drawn.shape != shape:
            received = f"{drawn.dtype} {list(drawn.shape)}" if isinstance(drawn, Tensor) else type(drawn).__name__
            raise InvalidArgumentError(refusal("what negatives returns", requirement, received, _DRAW))
        inside = (drawn >= 0) & (drawn < len(self.allowed))
        inside &= self.allowed[drawn.clamp(0, len(self.allowed) - 1)]
        if not inside.all():
            where = int((~inside).nonzero()[0, 0])
            what, requirement = (
                f"what negatives returns in row {where}",
                f"one of the {len(self.candidates)} candidates",
            )
            cure = "held-out nodes are none in training; " + _DRAW
            raise InvalidArgumentError(refusal(what, requirement, drawn[where].tolist(), cure))
