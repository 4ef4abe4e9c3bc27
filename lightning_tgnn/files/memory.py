"""How much memory this process can still have, and errors for objects that would not fit into it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from lightning_tgnn.checks import DataError

_UNITS = (10**9, "GB"), (10**6, "MB"), (10**3, "kB")


def check_fits(argument: str, what: str, needed: int, *, cure: str) -> None:
    """Refuse what takes more memory than there is, before anything is allocated.

    Args:
        argument: What is refused.
        what: Its size, in words.
        needed: Bytes that it takes.
        cure: What to do about it.

    Raises:
        DataError: ``needed`` is more than the free memory.
    """
    available = available_memory()
    if available is not None and needed > available:
        received = f"{what}: {readable_size(needed)}, {readable_size(available)} free"
        raise DataError(argument, "small enough for memory", received, cure)


def available_memory() -> int | None:
    """Return the bytes that this process can still have, swap included; None where the system does not tell."""
    return _memory("MemAvailable", "SwapFree")


def total_memory() -> int | None:
    """Return the bytes that a process of this machine could have at most; None where the system does not tell."""
    return _memory("MemTotal", "SwapTotal")


def _memory(memory_name: str, swap_name: str) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith("kB")}
        size, swap = (kilobytes.get(name, 0) * 1024 for name in (memory_name, swap_name))
        return min([size, *_limits()]) + swap if size else None
    return None


def _limits() -> Iterator[int]:
    """Yield what control groups allow this process, as a container has them (version 2)."""
    with suppress(OSError):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        for own in [line.removeprefix("0::/") for line in lines if line.startswith("0::/")]:
            for group in (Path(own), *Path(own).parents):
                yield from _limit(Path("/sys/fs/cgroup") / group / "memory.max")


def _limit(file: Path) -> Iterator[int]:
    with suppress(OSError, ValueError):  # not there, or "max"
        yield int(file.read_text())


def readable_size(count: int) -> str:
    """Return bytes in the largest unit of which there is one.

    >>> readable_size(340), readable_size(340_000_000), readable_size(1_240_000_000)
    ('340 bytes', '340.0 MB', '1.2 GB')
    """
    return next((f"{count / size:,.1f} {unit}" for size, unit in _UNITS if count >= size), f"{count:,} bytes")
