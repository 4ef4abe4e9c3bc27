"""How many ranks share a batch, how many epochs go at once, how many copies there are (DistTGL, section 3.2.4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from lightning_tgnn.checks import InvalidArgumentError, check_int


class Parallelism(NamedTuple):
    """The factors of a number of ranks.

    Attributes:
        minibatch: i, the ranks that share each global batch.
        epoch: j, the epochs of a batch that are trained at once.
        memory: k, the copies of node memory.
    """

    minibatch: int
    epoch: int
    memory: int

    def __str__(self) -> str:
        return f"{self.minibatch} x {self.epoch} x {self.memory}"


def sharing_ranks(largest_batch: int, saturation: int) -> int:
    """Return i before it has to divide anything: how many saturating batches the largest global batch holds.

    Args:
        largest_batch: Events of the largest global batch whose loss of information is small enough.
        saturation: Events per batch beyond which a device gains nothing from a larger batch.
    """
    check_int("largest_batch", largest_batch, minimum=1, cure="give the events of the largest global batch")
    check_int("saturation", saturation, minimum=1, cure="give the events that saturate a device")
    return max(largest_batch // saturation, 1)


def parallelisms(
    machines: int,
    devices: int,
    *,
    sharing: int,
    copies: float,
    across: bool = False,
    minibatch: int | None = None,
    epoch: int | None = None,
    memory: int | None = None,
) -> list[Parallelism]:
    """Return all factors that a cluster can have, beginning with the choice of section 3.2.4.

    The ranks of a copy of node memory are on one machine, so i j divides its devices and k is a multiple of the
    machines. With ``across``, i j may also be the devices of several whole machines. The first choice takes the largest
    i that loses no more information than is allowed. Then it takes the largest k that memory allows, because memory
    parallelism trains best. The remaining factor is j.

    Args:
        machines: p, the number of machines.
        devices: q, the devices of each machine.
        sharing: The largest i that loses no more information than is allowed.
        copies: Copies of node memory that fit a machine; a fraction if machines share a copy.
        across: Whether a copy may be cut over several machines.
        minibatch: i, if it is given, however much information it loses.
        epoch: j, if it is given.
        memory: k, if it is given.

    Raises:
        InvalidArgumentError: No factors fit: the given ones do not match the ranks, or memory does not hold the copies.

    >>> [str(found) for found in parallelisms(4, 8, sharing=2, copies=2)[:2]]
    ['2 x 2 x 8', '2 x 4 x 4']
    """
    for name, value in (("machines", machines), ("devices", devices), ("sharing", sharing)):
        check_int(name, value, minimum=1, cure="give how many there are")
    given = {"minibatch": minibatch, "epoch": epoch, "memory": memory}
    fitting = [
        found
        for found in _factors(machines, devices, across=across)
        if all(value in (None, own) for value, own in zip(given.values(), found, strict=True))
    ]
    if not fitting:
        shown = ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)
        of = "a machine or of several whole ones" if across else "a machine"
        requirement = (
            f"factors of {machines} machines times {devices} devices, minibatch times epoch of the devices of {of}"
        )
        whole = "memory a multiple or a divisor of machines" if across else "memory a multiple of machines"
        cure = f"leave one of them out, or let minibatch x epoch x memory be the ranks, {whole}"
        raise InvalidArgumentError("minibatch, epoch, memory", requirement, shown, cure)
    most = round(copies * machines, 6)  # parts of copies are rounded
    held = [found for found in fitting if found.memory <= most]
    if not held:
        fewest = min(found.memory for found in fitting) / machines
        requirement = f"so many that a machine holds them: {copies:g} copies of node memory fit"
        cut = "" if across else "take strategy='sven' or store='sharded', which cut node memory over the machines, "
        cure = f"{cut}a smaller memory_dim, or more memory"
        raise InvalidArgumentError("memory", requirement, f"{fewest:g} copies on each machine", cure)
    small = [found for found in held if found.minibatch <= sharing]
    least = min(found.minibatch for found in held)
    allowed = small or [found for found in held if found.minibatch == least]
    return sorted(allowed, key=lambda found: (-found.minibatch, -found.memory))


def _factors(machines: int, devices: int, *, across: bool) -> Iterator[Parallelism]:
    ranks = machines * devices
    whole = [devices * count for count in _divisors(machines)] if across else []
    for sharing in dict.fromkeys([*_divisors(devices), *whole]):
        for minibatch in _divisors(sharing):
            yield Parallelism(minibatch, sharing // minibatch, ranks // sharing)


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
