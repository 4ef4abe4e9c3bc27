"""The errors that a rank raises when another rank has failed."""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import TracebackType

import torch.distributed as dist

from lightning_tgnn.checks import LightningTGNNError

_KEY = "lightning_tgnn/failure"
_ROLL_CALL_SECONDS = 3.0
_ANSWER_SECONDS = 0.5
_ALIKE_SECONDS = 10.0  # ranks that end by the same error may have had other work before it
_FAILED = "has failed with"
_REPORTED = "_is_reported"
_IN_VAIN = ("Timed out waiting", "Application timeout")  # of gloo, for a message
_SIGNS = ("gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe", *_IN_VAIN)


_verdicts: dict[int, str] = {}
"""What a roll call of another rank has found. It may end, and take the store along, before this rank has noticed."""


_runs = 0
"""Of several ranks, that have begun in this process; all ranks count the same ones."""
_under_way: list[int] = []
"""The runs that have not ended, by that count; one may begin within another."""
_ended = 0


def _key(word: str, run: int | None = None) -> str:
    """Return the key of a word of a run, by default of the innermost one: an earlier run may speak up late."""
    return f"{_KEY}/{run or _run()}/{word}"


def _run() -> int:
    """Return the number of the innermost run; of the one that ended last where none is under way."""
    return _under_way[-1] if _under_way else _ended


class PeerFailureError(LightningTGNNError):
    """Another rank has failed, so this one cannot continue."""


class PeerInterruptError(PeerFailureError):
    """Another rank has been interrupted by Ctrl-C, which therefore ends this one as well."""


@contextmanager
def peer_failure(operation: str) -> Iterator[None]:
    """Turn an error of torch.distributed into an error that names the failed rank and the operation under way.

    Raises:
        PeerFailureError: In place of the error that the exchange has raised.
    """
    try:
        yield
    except (RuntimeError, dist.DistBackendError) as error:
        failure = _who_failed(error)
        raise type(failure)(f"{operation}: {failure}") from error


_lines: dict[tuple[str, int], socket.socket] = {}
"""Connections to the processes that keep stores, by address; nothing is ever sent."""


def _asked(store: dist.Store) -> dist.Store:
    """Return the store to ask it something, unless the process that keeps it has gone.

    To ask it then would print frames of torch's C++ code.

    Raises:
        OSError: That process has gone.
    """
    tcp = store
    while isinstance(tcp, dist.PrefixStore):
        tcp = tcp.underlying_store
    if isinstance(tcp, dist.TCPStore):
        place = tcp.host, tcp.port
        if place not in _lines:
            _lines[place] = socket.create_connection(place, _ROLL_CALL_SECONDS)
            _lines[place].setblocking(False)
        with suppress(BlockingIOError):  # it is there, and says nothing
            _lines[place].recv(1, socket.MSG_PEEK)
            raise ConnectionError(f"nobody keeps the store at {place[0]}:{place[1]} any more")
    return store


def _hang_up() -> None:
    while _lines:
        _lines.popitem()[1].close()


def is_interrupt(error: BaseException) -> bool:
    """Return whether Ctrl-C is what has raised an error, here or on another rank.

    A compiled loop of several results raises SystemError with KeyboardInterrupt as its cause: numba asks Python for the
    type of every result, which is where Python hears of the signal, and continues past the error.
    """
    reason: BaseException | None = error
    while reason is not None and not isinstance(reason, KeyboardInterrupt | PeerInterruptError):
        reason = reason.__cause__
    return reason is not None


class Attendance:
    """Answers a roll call in place of a rank that waits for another, in its own thread.

    Args:
        rank: The rank to answer for. Its report of an earlier failure in the same processes is taken back.
    """

    def __init__(self, rank: int) -> None:
        global _runs
        _runs += 1
        self._rank, self._run, self._over = rank, _runs, threading.Event()
        _under_way.append(_runs)
        store = _store()
        assert store is not None
        _hang_up()  # to stores of earlier runs
        for word in ("call", "verdict", f"own/{rank}", f"here/{rank}"):
            store.delete_key(_key(word))  # torchrun keeps its store where it starts the ranks anew
        self._thread = threading.Thread(target=self._answer, args=(store,), name="roll call", daemon=True)
        self._thread.start()
        atexit.register(self.end)

    def _answer(self, store: dist.Store) -> None:
        with suppress(Exception):  # without the store nobody can call
            while not self._over.wait(_ANSWER_SECONDS):
                if _asked(store).check([_key("call", self._run)]):
                    _asked(store).set(_key(f"here/{self._rank}", self._run), "1")
                if _asked(store).check([_key("verdict", self._run)]):
                    _verdicts[self._run] = store.get(_key("verdict", self._run)).decode()
                    return

    def end(self) -> None:
        """Answer no more."""
        global _ended
        if self._run in _under_way:
            _under_way.remove(self._run)
            _ended = self._run
        self._over.set()
        self._thread.join(_ROLL_CALL_SECONDS)
        _hang_up()
        atexit.unregister(self.end)


def handle_failure(rank: int, error: BaseException) -> None:
    """Tell what has failed: the others, if it is this rank; this rank's user, if it is another.

    An error that torch.distributed has raised outside of `peer_failure`, in a barrier of Lightning's say, gets the
    failed rank's name; word of this rank's own error is left for the others, who will notice that it has gone.
    """
    store = _store()
    if store is None or isinstance(error, PeerFailureError):
        return
    if any(sign in str(error) for sign in _SIGNS):
        failure = _who_failed(error)
        error.args = (str(failure), *error.args[1:])
        error.__cause__ = failure  # by which the command knows what to say
        return
    with suppress(Exception):
        own = f"{type(error).__name__}: {error}"
        _asked(store).set(_key(f"own/{rank}"), own)
        if rank == 0:  # which may take the store along before the others hold a roll call
            _verdict(store, f"rank 0 {_FAILED} {own}")


def all_end_alike(error: BaseException, step: int) -> bool:
    """Return whether all ranks end by the same kind of error after the same step, so that they can still act together.

    A rank that fails alone waits some seconds for the others, which wait for it. All ranks that ask get the same
    answer, once in a run. Ctrl-C and the failure of another rank never count as an end of all ranks.
    """
    store, run = _store(), _key("alike")
    if store is None or isinstance(error, PeerFailureError) or is_interrupt(error):
        return False
    with suppress(Exception):  # rank 0 has gone, which keeps the store
        own = f"{type(error).__name__} after {step}"
        words = [f"{run}/{rank}" for rank in range(dist.get_world_size())]
        _asked(store).set(words[dist.get_rank()], own)
        answer = "no"
        with suppress(dist.DistStoreError):  # not all have come
            store.wait(words, timedelta(seconds=_ALIKE_SECONDS))
            answer = "yes" if all(store.get(word).decode() == own for word in words) else "no"
        return bool(store.compare_set(f"{run}/answer", "", answer).decode() == "yes")  # the first answer counts
    return False


def is_reported(error: BaseException) -> bool:
    """Return whether another rank of the run tells the user of an error: all are refused the same, and one says so.

    The first rank that asks is the one that tells. A rank always tells what has become of another one.

    Args:
        error: Of this rank. It is asked of once, and gets the same answer from then on.
    """
    if isinstance(error, PeerFailureError):
        return False
    held = vars(error)
    if _REPORTED not in held:
        held[_REPORTED] = not _is_first_to_tell()
    return bool(held[_REPORTED])


def _is_first_to_tell() -> bool:
    try:
        if (store := _store()) is not None:
            return bool(_asked(store).add(_key("told"), 1) == 1)
    except Exception:  # rank 0 has gone, which keeps the store, and has reported
        return False
    with suppress(Exception):  # the store by which the ranks would have found each other
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            agent = dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=_ROLL_CALL_SECONDS))
            return bool(agent.add(f"{_KEY}/told/{os.environ['TORCHELASTIC_RESTART_COUNT']}", 1) == 1)
    return True


def wait_for_report() -> None:
    """Wait until the rank that tells has done so: once this one has ended, whoever started them ends that one too."""
    time.sleep(_ANSWER_SECONDS)


def keep_from_printing(error: BaseException) -> None:
    """Have Python end by an error without its traceback if another rank reports it; others are printed as before."""
    if is_reported(error) and not isinstance(sys.excepthook, _TracebackOnce):
        sys.excepthook = _TracebackOnce(sys.excepthook)


class _TracebackOnce:
    """Prints what no other rank tells as ``before`` does."""

    def __init__(self, before: Callable[..., object]) -> None:
        self._before = before

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if vars(error).get(_REPORTED):
            wait_for_report()
        else:
            self._before(kind, error, trace)


def _store() -> dist.Store | None:
    if not dist.is_available() or not dist.is_initialized():
        return None
    return dist.distributed_c10d._get_default_store()


def _who_failed(error: BaseException) -> PeerFailureError:
    """Hold a roll call, and return what to raise: whoever neither answers nor has left word is gone."""
    if _run() in _verdicts:  # another rank has held one
        return _failure(_verdicts[_run()])
    if _store() is None:  # there are no others
        return PeerFailureError(f"{error}; resume from the last checkpoint")
    found: list[PeerFailureError] = []
    # In a thread: where this rank's link is cut, nothing that is asked of the store ever returns.
    calling = threading.Thread(target=lambda: found.append(_call_roll(error)), name="calling the roll", daemon=True)
    calling.start()
    calling.join(3 * _ROLL_CALL_SECONDS)
    said = f"the store of rank 0, through which ranks find each other, does not answer ({error})"
    return found[0] if found else PeerFailureError(f"{said}; resume from the last checkpoint")


def _call_roll(error: BaseException) -> PeerFailureError:
    store, rank, ranks = _store(), dist.get_rank(), dist.get_world_size()
    assert store is not None
    cure = "resume from the last checkpoint"
    patience = store.timeout  # type: ignore[attr-defined]  # which torch's stub leaves out
    try:
        store.set_timeout(timedelta(seconds=_ROLL_CALL_SECONDS))
        _asked(store).set(_key("call"), "1")
        store.set(_key(f"here/{rank}"), "1")
        deadline = time.monotonic() + _ROLL_CALL_SECONDS
        missing = set(range(ranks))  # this one too: where another thread has failed here, receipts of all threads break
        words: dict[int, str] = {}
        while missing and time.monotonic() < deadline:
            for other in sorted(missing):
                if _asked(store).check([_key(f"own/{other}")]):
                    words[other] = store.get(_key(f"own/{other}")).decode()
                    missing.discard(other)
                elif _asked(store).check([_key(f"here/{other}")]):
                    missing.discard(other)
            time.sleep(0.05)
    except Exception:
        if _run() in _verdicts:
            return _failure(_verdicts[_run()])
        said = f"rank 0 has gone, and with it the store through which ranks find each other ({error}); {cure}"
        return PeerFailureError(said)
    finally:
        store.set_timeout(patience)
    if words:
        return _verdict(store, "; ".join(f"rank {other} {_FAILED} {word}" for other, word in words.items()))
    if missing:
        names = ", ".join(f"rank {other}" for other in sorted(missing))
        have = "has" if len(missing) == 1 else "have"
        return _verdict(store, f"{names} {have} gone without a word ({error}); {cure}")
    return _verdict(store, _words_of(error))


def _words_of(error: BaseException) -> str:
    """Return what an exchange has ended by where all ranks are there, and what may be the reason.

    >>> _words_of(RuntimeError("Timed out waiting 12000ms for recv operation to complete")).partition(",")[0]
    'ranks have waited for each other in vain'
    """
    broke = "a connection between ranks broke" if any(sign in str(error) for sign in _SIGNS) else str(error)
    broke = "ranks have waited for each other in vain" if any(sign in str(error) for sign in _IN_VAIN) else broke
    alone = "has one gone another way, by trainer.should_stop or trainer.save_checkpoint on that rank alone?"
    return f"{broke}, though all ranks are there ({error}); resume from the last checkpoint; {alone}"


def _verdict(store: dist.Store, said: str) -> PeerFailureError:
    """Tell the other ranks what a roll call has found, and return it as an error."""
    with suppress(Exception):
        _asked(store).set(_key("verdict"), said)
        time.sleep(2 * _ANSWER_SECONDS)  # this rank may take the store along, and others stand waiting still
    return _failure(said)


def _failure(said: str) -> PeerFailureError:
    interrupted = f"{_FAILED} {KeyboardInterrupt.__name__}" in said
    return (PeerInterruptError if interrupted else PeerFailureError)(said)
