"""A plan of one's own: a schedule that gives a fast rank more events, and updates that send the signs of gradients.

Run it: `python examples/own_plan.py`

Lightning starts the second process, which runs this file, too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar, TypeVar

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lightning_tgnn import LinkPrediction, PlannedStrategy, TemporalDataModule
from lightning_tgnn.strategies.parts import InOrder, Sharded
from lightning_tgnn.types import Pass, RankLayout, Run, Schedule, Turn, UpdatesPart, WeightUpdates

Result = TypeVar("Result")


@dataclass(frozen=True)
class BySpeed(Schedule):
    """Cuts each global batch in proportion to the speeds of the ranks."""

    speeds: tuple[int, ...]

    needs: ClassVar[frozenset[str]] = frozenset({"rows"})  # every rank reads rows of any node
    offers: ClassVar[frozenset[str]] = frozenset({"events", "shared batches"})

    def check(self, layout: RankLayout, num_events: int) -> None:
        """Refuse ranks that do not fit."""
        if len(self.speeds) != layout.ranks:
            raise ValueError(f"{len(self.speeds)} speeds for {layout.ranks} ranks")

    def global_batch_size(self, layout: RankLayout, batch_size: int) -> int:
        """Return the events of all ranks."""
        return batch_size * layout.ranks

    def turns(self, layout: RankLayout, rank: int, over: Pass) -> Sequence[Turn]:
        """Return a turn for each global batch."""
        size, turns = self.global_batch_size(layout, over.batch_size), []
        for start in range(over.first, over.num_events, size):
            of = range(start, min(start + size, over.num_events))
            ends = [len(of) * done // sum(self.speeds) for done in accumulate(self.speeds, initial=0)]
            resets = over.epoch is not None and start == 0  # training begins with empty node state
            turns.append(Turn(of[ends[rank] : ends[rank + 1]], of, draw=over.epoch, ranks=layout.ranks, resets=resets))
        return turns


@dataclass(frozen=True)
class MajorityVote(UpdatesPart):
    """Updates by the sign of the ranks' summed signs (signSGD with majority vote)."""

    def open(self, run: Run, *, may_be_unused: bool = False) -> WeightUpdates:
        """Return the updates of one rank."""
        return Votes(run)


class Votes(WeightUpdates):
    """The updates of one rank. The methods of `WeightUpdates` that are not written here do nothing."""

    delay = 0  # turns by which gradients come late
    waited = 0.0  # seconds

    def __init__(self, run: Run) -> None:
        self._group = run.group_of("gradients")  # None where this rank is alone

    def attach(self, task: pl.LightningModule, model: DistributedDataParallel, pending: Mapping[str, Any]) -> None:
        """Have the gradients of a backward pass replaced by the vote on them."""

        def vote(state: object, bucket):  # DistributedDataParallel calls it in the backward pass
            votes = bucket.buffer().sign()
            if self._group is None:
                done = torch.futures.Future()
                done.set_result(votes)
                return done
            work = dist.all_reduce(votes, group=self._group, async_op=True)
            return work.get_future().then(lambda future: future.value()[0].sign())

        model.register_comm_hook(None, vote)

    def step(self, closure: Callable[[], Result], update: Callable[[Callable[[], Result]], Result]) -> Result:
        """Step the optimizer once for a backward pass."""
        return update(closure)

    def check(self, trainer: pl.Trainer) -> None:
        """Refuse a loss scale, which does not go with signs."""
        if trainer.precision == "16-mixed":
            raise ValueError("a loss scale does not go with signs")

    def state_dict(self) -> dict[str, Any]:
        """Return what a later step needs: nothing."""
        return {}

    def pending_gradients(self) -> Mapping[str, torch.Tensor]:
        """Return gradients that are still to be applied: none."""
        return {}


def main() -> None:
    """Train on two processes, of which the first has two thirds of the events."""
    pl.seed_everything(0)
    data = TemporalDataModule("synthetic", synthetic={"num_events": 4000}, batch_size=100)
    strategy = PlannedStrategy(schedule=BySpeed((2, 1)), store=Sharded(), order=InOrder(), updates=MajorityVote())
    trainer = pl.Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=2,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(LinkPrediction("tgn", optimizer=partial(torch.optim.SGD, lr=1e-3)), datamodule=data)
    if trainer.is_global_zero:
        print(f"AP by majority {float(trainer.callback_metrics['val/ap']):.4f}")


if __name__ == "__main__":
    main()
