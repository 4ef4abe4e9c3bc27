"""Mutated files thrown at a reader for some seconds, each from a seed of its own, so that every one can be had again.

``LIGHTNING_TGNN_FUZZ_SECONDS`` is the processor time per reader, ``LIGHTNING_TGNN_FUZZ_SEED`` which files are drawn,
and ``LIGHTNING_TGNN_FUZZ_CASE`` the only one to try.
"""

import contextlib
import os
import random
import resource
import shutil
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from lightning_tgnn.checks import LightningTGNNError
from tests.fuzz.mutate import mutate_files

SECONDS = float(os.environ.get("LIGHTNING_TGNN_FUZZ_SECONDS", "0.5"))
SEED = os.environ.get("LIGHTNING_TGNN_FUZZ_SEED", "0")
ONLY = os.environ.get("LIGHTNING_TGNN_FUZZ_CASE")
LEAST = 20
_SPARE_BYTES = 3 << 30
_UNREAD = "nothing reads the column(s)"
_LONGEST_MESSAGE = 20_000
# Of these nothing is lost: rows in another order are said to be, and a header of Python 2 is read. So are the columns
# that nothing reads, whose notice begins with the name of the file.
_HARMLESS = (
    "events were not sorted by time",
    "float64 does not tell times",
    "Reading `.npy` or `.npz` file required additional header parsing",
    "Detected pickle protocol",
)


class Target:
    """A reader, and what it has to do.

    Attributes:
        name: Of the reader.
        seeds: Lists of files by name, all of which it reads.
        made: Names of what it may leave beside the files it reads.
        may_warn: Whether a library may warn of odd values that are shown as they are.
        mutate: Gives other files.
    """

    name = ""
    made: tuple[str, ...] = ()
    may_warn = False
    mutate = staticmethod(mutate_files)

    def seeds(self):
        raise NotImplementedError

    def read(self, folder):
        """Return what the reader makes of the files in a folder."""
        raise NotImplementedError

    def check(self, files, result, warned):
        """Assert that it is right; ``warned`` are the messages of the warnings that came."""
        raise NotImplementedError


@dataclass
class Outcome:
    """What came of a target: inputs tried, accepted and refused, the slowest (seconds, case), faults by kind."""

    tried: int = 0
    accepted: int = 0
    refused: int = 0
    slowest: tuple = (0.0, 0)
    faults: dict = field(default_factory=dict)
    counts: Counter = field(default_factory=Counter)


def fuzz(target, folder):
    """Try the seeds as they are, then mutated ones until the time is over."""
    seeds, outcome = target.seeds(), Outcome()
    begin = time.process_time()
    with _address_space_limited(target, folder, seeds):
        number = 0
        while number < LEAST or time.process_time() - begin < SECONDS:
            if ONLY is None or number == int(ONLY):
                _try(target, folder, seeds, number, outcome)
            elif number > int(ONLY):
                break
            number += 1
    return outcome


def _try(target, folder, seeds, number, outcome):
    rng = random.Random(f"{target.name} {SEED} {number}")
    is_whole = number < len(seeds)
    files = seeds[number] if is_whole else target.mutate(rng.choice(seeds), rng, seeds)
    place = folder / "case"
    shutil.rmtree(place, ignore_errors=True)
    write(place, files)
    began = time.perf_counter()
    fault = error = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = target.read(place)
        except LightningTGNNError as refused:
            error = refused
            fault = _bad_refusal(refused, is_whole)
        except (Exception, MemoryError) as wrong:
            fault = _describe(wrong)
    outcome.tried += 1
    outcome.slowest = max(outcome.slowest, (time.perf_counter() - began, number))
    if error is not None:
        outcome.refused += 1
    elif fault is None:
        outcome.accepted += 1
        fault = _wrong(target, files, result, [str(warning.message) for warning in caught])
        del result
    if fault is None and (left := _left_behind(target, folder, place, files)):
        fault = f"left behind: {left}", f"left behind: {left}"
    if fault is not None:
        key, text = fault
        outcome.counts[key] += 1
        if key not in outcome.faults:
            kept = folder / f"fault-{len(outcome.faults)}"
            shutil.rmtree(kept, ignore_errors=True)
            write(kept, files)
            outcome.faults[key] = f"seed {SEED}, case {number}, files in {kept}\n{text}"


def write(place, files):
    for name, data in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _bad_refusal(error, is_whole):
    if is_whole:
        return "a whole file was refused", f"a whole file was refused: {error}"
    message = str(error)
    if not message or "\n" in message or len(message) > _LONGEST_MESSAGE:
        _, where = _describe(error)
        return (
            f"message of {type(error).__name__} {_frame(error)}",
            f"no message of one line: {message[:500]!r}\n{where}",
        )
    return None


def _wrong(target, files, result, warned):
    other = [message for message in warned if not message.startswith(_HARMLESS) and _UNREAD not in message]
    if other and not target.may_warn:
        return f"warning: {other[0][:60]}", f"accepted with a warning: {other}"
    try:
        with np.errstate(all="ignore"):
            target.check(files, result, warned)
    except Exception as error:
        key, text = _describe(error)
        return f"accepted: {key}", f"accepted, but wrong:\n{text}"
    return None


def _describe(error):
    text = "".join(traceback.format_exception(error))
    return f"{type(error).__name__} {_frame(error)}", text if len(text) < 6000 else text[:2000] + " ... " + text[-3000:]


def _frame(error):
    """Return where in this project an exception came from: one fault, however many files show it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/tests/fuzz/" in frame.filename]
    frames += [frame for frame in traceback.extract_tb(error.__traceback__) if "/lightning_tgnn/" in frame.filename]
    return f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""


def _left_behind(target, folder, place, files):
    """Return names of files that were not there and should not be, in the folder and around it."""
    around = [path.name for path in folder.iterdir() if path != place and not path.name.startswith("fault-")]
    known = {place / name for name in files} | {parent for name in files for parent in (place / name).parents}
    made = [place / name for name in target.made]
    within = [path for path in place.rglob("*") if path not in known and not any(path.is_relative_to(m) for m in made)]
    return around + [str(path.relative_to(place)) for path in within]


@contextlib.contextmanager
def _address_space_limited(target, folder, seeds):
    """Let what allocates as much as a damaged header says fail, once everything needed is imported and compiled."""
    for number in range(len(seeds)):
        _try(target, folder, seeds, number, Outcome())
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _SPARE_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
