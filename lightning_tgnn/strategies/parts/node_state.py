"""Node state that the ranks of a run share: behind the task, in loaders, and in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torch.utils._pytree import tree_map_only

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.files.checkpoint_folder import read_tables
from lightning_tgnn.state import LocalStateStore
from lightning_tgnn.types import (
    NodeStateTask,
    OneOfEach,
    RowAnnouncer,
    Run,
    ScheduledLoader,
    SnapshotTask,
    StateStore,
    has_stages,
    missing_stages,
)
from lightning_tgnn.types.layout import COPIES

_TURNS, _KEPT = "turns", "kept rows"


class _Stores(Protocol):
    """Makes the store of a rank."""

    def store(self, run: Run, task: NodeStateTask) -> StateStore: ...


def _sharing(run: Run) -> str:
    """Return who shares which copy of node state, and by which schedule."""
    return f"{run.schedule} on {run.layout.copies}"


def check_has_events(task: object) -> None:
    """Refuse a task on snapshots, because it has no node state.

    Raises:
        InvalidArgumentError: ``task`` is a task on snapshots.
    """
    if isinstance(task, SnapshotTask):
        cure = "set strategy='blad' for groups of snapshots, or train LinkPrediction on TemporalDataModule"
        raise InvalidArgumentError("model", "a task on an event stream", type(task).__name__, cure)


class NodeState:
    """Node state that the ranks of a run share.

    Args:
        part: Makes the store.
    """

    def __init__(self, part: _Stores) -> None:
        self._part = part
        self._store: StateStore | None = None
        self._run: Run | None = None
        self._released: list[ScheduledLoader] = []  # at the end of the run
        self._continues = True  # whether copies and turns are where the latest fit has left them

    def give(self, run: Run, saved: Mapping[str, Any]) -> None:
        """Put our store behind the task, with the state that it has from an earlier run.

        Raises:
            InvalidArgumentError: The task has not the stages of a memory-based temporal GNN.
        """
        task: object = run.task
        check_has_events(task)
        if not has_stages(task):
            missing = ", ".join(missing_stages(task))
            requirement = f"a task with the stages of a memory-based temporal GNN; {missing} missing"
            cure = "subclass lightning_tgnn.tasks.MemoryTask, or take strategy='cdfgnn' for a static graph"
            raise InvalidArgumentError("model", requirement, type(task).__name__, cure)
        self._run = run
        held = task.state_store if task.has_state_store else None
        if self._store is None or held is not self._store:
            if self._store is not None:
                _ = self._store.position  # nothing of it may be on its way behind what the new one sends
            self._store = self._part.store(run, task)
            if held is not None:
                # By way of the host: a pickle of a GPU's tensor takes memory of that GPU on all ranks.
                self._store.load_state_dict(run.broadcast(tree_map_only(Tensor, Tensor.cpu, held.state_dict())))
                held.close()
            task.state_store = self._store
            self._continues = False
        if saved or not self._continues:
            self._resume(run, saved)

    def _resume(self, run: Run, saved: Mapping[str, Any]) -> None:
        """Have further copies and turns continue where they have ended; from the start if others have shared them."""
        if run.trainer.state.fn != "fit":
            return
        self._continues = True
        copy, _ = run.layout.copy_of(run.rank)
        continues = saved.get("shared by") == _sharing(run)
        if not continues:
            run.kept_rows.load_state_dict({})
        store = self._store
        assert store is not None
        if len(run.layout.copies) > 1 and run.trainer.ckpt_path is not None and not continues:
            rank_zero_info("copies of node state beside the first begin empty: other ranks have shared them before")
        if copy and continues:
            state = saved[COPIES][copy]
            store.load_state_dict(state if store.reads_tables else read_tables(state))
        elif copy:
            store.reset()
        if continues and _TURNS in saved:
            store.load_turn_state(read_tables(saved[_TURNS][run.rank]))
        if continues and _KEPT in saved:
            run.kept_rows.load_state_dict(read_tables(saved[_KEPT][run.rank]), run.device)

    def loader(self, loader: object) -> object:
        """Return a loader that follows the plan's schedule.

        Raises:
            InvalidArgumentError: There are several ranks, and the loader cannot follow a schedule.
        """
        assert self._run is not None
        if not isinstance(loader, ScheduledLoader):
            if self._run.ranks == 1:
                return loader  # a user's own, which has all events in its order
            cure = "take the loaders of TemporalDataModule"
            raise InvalidArgumentError("dataloader", "one that can be cut over ranks", type(loader).__name__, cure)
        run, announcer = self._run, self._announcer
        router = None if self._store is None else self._store.router
        if announcer is None:
            own = loader.follow(run.schedule, run.layout, run.rank, router)
        else:
            own = loader.follow(run.schedule, run.layout, run.rank, router, announcer)
        self._released.append(own)
        return own

    @property
    def _announcer(self) -> RowAnnouncer | None:
        return None if self._store is None else self._store.announcer

    def begin_turn(self) -> None:
        """Do nothing: batches say what they need themselves."""

    def forget(self) -> None:
        """Take note that a checkpoint's node state has been loaded, which is the state of the first copy."""
        self._continues = False

    def take_back(self) -> None:
        """Leave the store behind the task: it holds what was trained. Nothing of it is on its way any more."""
        while self._released:
            self._released.pop().release()
        if self._run is None or self._store is None:
            return
        if self._run.trainer.interrupted:  # not all ranks may be there
            task: object = self._run.task
            if self._run.ranks > 1 and has_stages(task):
                if self._announcer is not None:
                    self._announcer.leave()
                task.state_store = LocalStateStore(task.state_spec)  # in the middle of a turn nobody can continue
                self._store.close()
            return
        if self._announcer is not None:
            self._announcer.finish()  # all ranks have as many batches under way that nobody will train on
        self._store.finish()

    def state_dict(self) -> dict[str, Any]:
        """Return further copies of node state, and where ranks are in their turns; the task saves the first copy."""
        run, store = self._run, self._store
        assert run is not None
        assert store is not None
        saved: dict[str, Any] = {}
        if (turns := store.turn_state()) is not None:
            saved[_TURNS] = run.for_each_rank(turns)
        if "passes" in run.schedule.needs:
            saved[_KEPT] = run.for_each_rank(run.kept_rows.state_dict())
        copy, place = run.layout.copy_of(run.rank)
        if len(run.layout.copies) > 1 and run.writes_own_rows:
            saved[COPIES] = OneOfEach(store.sharded_state_dict() if copy else None, copy)
        elif len(run.layout.copies) > 1:
            state = store.state_dict() if copy else None  # the task has the state of the first copy
            states = run.messages(COPIES).gather(state) if place == 0 else []
            saved[COPIES] = states
        return {**saved, "shared by": _sharing(run)} if saved else {}
