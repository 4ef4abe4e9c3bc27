"""The command ``lightning-tgnn``, also as ``python -m lightning_tgnn``.

What trains nothing starts without Lightning, which takes seconds to import: the first word says who is asked.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import lightning_tgnn
from lightning_tgnn.checks import InvalidArgumentError, LightningTGNNError, check_choice
from lightning_tgnn.commands import COMMANDS, DESCRIPTION, INTERRUPTED, TERMINATED
from lightning_tgnn.commands.shared.one_line_warnings import warnings_in_one_line
from lightning_tgnn.commands.shared.parse_errors import exit_if_reported

if TYPE_CHECKING:
    from lightning.pytorch.cli import ArgsType

    _Handler = Callable[[int, FrameType | None], object] | int

_ON_INTERRUPT, _ON_TERMINATION = ("interrupted", INTERRUPTED), ("ended by SIGTERM", TERMINATED)
_SECONDS_TO_RETURN = 0.05
"""Seconds after which an ignored signal comes again."""
_SUBCOMMANDS = {
    "fit": "train",
    "validate": "measure a checkpoint on the validation split",
    "test": "measure a checkpoint on the test split",
}


def main(args: ArgsType = None) -> None:
    """Run the command; what the user can put right is one line on standard error, not a traceback, of one rank.

    Args:
        args: The words after the command's name, by default the arguments of the process; or what LightningCLI takes.
    """
    words = sys.argv[1:] if args is None else args
    # A run is its Trainer's, on all its ranks.
    is_command = isinstance(words, list) and words[:1] != [] and words[0] in COMMANDS
    with warnings_in_one_line(), _signals_heard(sigterm=is_command) as heard:
        try:
            _run(args)
        except Exception as error:
            if heard and _is_of_an_import(error):  # libraries that are broken off may end in an error of their own
                _leave(*heard[0])
            raise


def _run(args: ArgsType) -> None:
    words = sys.argv[1:] if args is None else args
    try:
        if not isinstance(words, list):
            _train(args)
        elif not words or words[0] in ("-h", "--help"):
            print(_help())
        elif words[0] == "--version":
            print(f"lightning-tgnn {lightning_tgnn.__version__}")
        elif words[0] in COMMANDS:
            COMMANDS[words[0]](words[1:])
        else:
            _check_words(words)
            _train(args)
    except KeyboardInterrupt:
        _leave(*_ON_INTERRUPT)
    except SystemExit as error:
        is_run = not isinstance(words, list) or next((word for word in words if word in _SUBCOMMANDS), "") == "fit"
        if isinstance(error, _Terminated) or (_is_termination(error) and not is_run):
            _leave(*_ON_TERMINATION)  # but for a run, which ends at a step, with Lightning's code
        if error.code == INTERRUPTED or not _is_interrupt(error.__context__):  # who ends so has reported it
            raise
        _leave(*_ON_INTERRUPT)
    except FileNotFoundError as error:
        _end(error)
    except (LightningTGNNError, ValueError, OSError, RuntimeError) as error:
        has_run_folder = not isinstance(words, list) or any(word in _SUBCOMMANDS for word in words)
        refused = _refusal(error, has_run_folder=has_run_folder)
        if refused is None:
            raise
        _end(refused)
    except Exception as error:
        if not _is_of_the_trainer(error):
            raise
        _end(error)


def _is_interrupt(reason: BaseException | None) -> bool:
    """Whether Ctrl-C is why a Trainer has ended the process."""
    comm = sys.modules.get("lightning_tgnn.comm")
    return comm is not None and reason is not None and bool(comm.is_interrupt(reason))


class _Terminated(SystemExit):
    """SIGTERM has come where no Trainer listens."""


@contextmanager
def _signals_heard(*, sigterm: bool) -> Iterator[list[tuple[str, int]]]:
    """Let SIGTERM end a command by an exception, as Ctrl-C does, so that nothing is left half made.

    Args:
        sigterm: Whether to hear it.

    Yields:
        For each signal that comes, the message, and the exit code.
    """
    heard: list[tuple[str, int]] = []
    own = os.getpid()

    def interrupt(signum: int, frame: FrameType | None) -> None:
        heard.append(_ON_INTERRUPT)
        signal.default_int_handler(signum, frame)

    def terminate(signum: int, frame: FrameType | None) -> None:
        if signal.getsignal(signum) is not terminate:  # a Trainer's handler calls this one, too, and ends at a step
            return
        if os.getpid() != own:  # a process that this one has forked
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
        heard.append(_ON_TERMINATION)
        raise _Terminated(TERMINATED)

    with (
        _handled(signal.SIGINT, signal.default_int_handler, interrupt),
        _handled(signal.SIGTERM, signal.SIG_DFL, terminate) if sigterm else nullcontext(),
        _repeated_where_ignored(),
    ):
        yield heard


@contextmanager
def _repeated_where_ignored() -> Iterator[None]:
    """Send a signal again whose exception Python has ignored, as it does where an object is taken down."""
    before = sys.unraisablehook

    def hook(ignored: sys.UnraisableHookArgs) -> None:
        if not issubclass(ignored.exc_type, KeyboardInterrupt | _Terminated):
            before(ignored)
            return
        number = signal.SIGINT if issubclass(ignored.exc_type, KeyboardInterrupt) else signal.SIGTERM
        returns = threading.Event()

        def again() -> None:
            returns.wait()  # to start a thread can take longer than a moment
            time.sleep(_SECONDS_TO_RETURN)  # at once it would be ignored, too
            os.kill(os.getpid(), number)

        threading.Thread(target=again, daemon=True).start()
        returns.set()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextmanager
def _handled(number: int, usual: _Handler, handler: _Handler) -> Iterator[None]:
    """Handle a signal for a while, unless it is done elsewhere, or this is no thread that may."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(number) != usual:
        yield
        return
    signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, usual)


def _is_of_an_import(error: Exception) -> bool:
    """Whether an error comes out of an import."""
    return any(frame.f_code.co_filename.startswith("<frozen importlib") for frame, _ in walk_tb(error.__traceback__))


def _is_termination(error: SystemExit) -> bool:
    """Whether SIGTERM is why a Trainer has ended."""
    exceptions = sys.modules.get("lightning.pytorch.utilities.exceptions")
    return exceptions is not None and isinstance(error, exceptions.SIGTERMException)


def _leave(why: str, code: int) -> NoReturn:
    """End after a signal. It may have come in the middle of an import: nothing is imported here."""
    if not int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or 0):
        print(f"lightning-tgnn: {why}", file=sys.stderr)
    distributed = sys.modules.get("torch.distributed")
    has_ranks = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if has_ranks or ("torch" not in sys.modules and "torch._C" in sys.modules):
        # Python cannot take down what is left of an exchange, nor a torch that is half there.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _end(error: Exception) -> NoReturn:
    exit_if_reported(error)
    sys.exit(f"lightning-tgnn: {error}")


def _help() -> str:
    subcommands = "".join(f"  {name:<10}{does}\n" for name, does in _SUBCOMMANDS.items())
    usage = f"usage: lightning-tgnn [--help] [--version] {{{','.join((*_SUBCOMMANDS, *COMMANDS))}}} ...\n\n"
    about = "Subcommands of LightningCLI; `lightning-tgnn fit --help` has all options:"
    return f"{usage}{DESCRIPTION}\n{about}\n\n{subcommands}"


def _check_words(words: list[str]) -> None:
    """Refuse, before anything takes long to import, an unknown subcommand, and one without arguments."""
    if not words[0].startswith("-"):
        check_choice("the subcommand", words[0], (*_SUBCOMMANDS, *COMMANDS))
        if len(words) == 1:
            cure = f"write lightning-tgnn {words[0]} --config RECIPE, such as recipes/quickstart.yaml, or see --help"
            raise InvalidArgumentError(f"{words[0]}", "given a recipe or a setting", "nothing", cure)


def _train(args: ArgsType) -> None:
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # else frames of C++ code, where a rank has gone
    # What is imported stays: to look through it for garbage, again and again, takes a quarter of the time.
    collects = gc.isenabled()
    gc.disable()
    try:
        from lightning_tgnn.cli import TGNNCommand
        from lightning_tgnn.commands.fit.shown import less_from_lightning
    finally:
        if collects:
            gc.enable()
    with less_from_lightning(), warnings_in_one_line():  # Lightning, when it is imported, has its own form
        TGNNCommand(args)


def _is_of_the_trainer(error: Exception) -> bool:
    """Whether an error is Lightning's word for settings that do not go together."""
    exceptions = sys.modules.get("lightning.pytorch.utilities.exceptions")
    return exceptions is not None and isinstance(error, exceptions.MisconfigurationException)


def _refusal(error: BaseException | None, *, has_run_folder: bool) -> LightningTGNNError | None:
    """Return the refusal behind an error: jsonargparse wraps what a constructor raises in an error of its own."""
    said = str(error)
    if os.strerror(errno.EMFILE) in said and os.strerror(errno.ENFILE) not in said:  # gloo's error as well
        cure = "raise it, for example by ulimit -n 65536"
        return InvalidArgumentError("ulimit -n", "enough files and sockets for the run", said, cure)
    if isinstance(error, IsADirectoryError):
        cure = "give the file in it"
        return InvalidArgumentError("path", "a file", f"the folder {error.filename}", cure)
    if isinstance(error, OSError):  # of a logger, say
        from lightning_tgnn.files.whole import refusal_to_write

        refused = refusal_to_write(Path(error.filename or "the folder of the run"), error, removed=False)
        if refused is not None and error.filename is None and not has_run_folder:  # files are written under their names
            cure = "free space there, or send it elsewhere"
            return InvalidArgumentError("standard output", "where it fits", str(error), cure)
        return refused
    while error is not None and not isinstance(error, LightningTGNNError):
        gathered = _gathered(error)
        if gathered is not None:
            return gathered
        error = error.__cause__ or error.__context__
    return error


def _gathered(error: BaseException) -> LightningTGNNError | None:
    """Return the refusal among the errors that jsonargparse gathers where a value may be of several types."""
    trace = error.__traceback__
    while trace is not None:
        for held in trace.tb_frame.f_locals.values():
            for one in held if isinstance(held, list) else ():
                if isinstance(one, LightningTGNNError):
                    return one
        trace = trace.tb_next
    return None


if __name__ == "__main__":
    main()
