"""Damage that any file may come to."""

_INTERESTING = [b"\0", b"\xff", b"\n", b"\r", b",", b'"', b"\x7f\xff\xff\xff", b"\xff" * 8, b"\0" * 8, b"\x80"]


def flip(data, rng):
    """Change one to eight bytes."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        place = rng.randrange(len(changed))
        changed[place] = rng.choice([changed[place] ^ 1 << rng.randrange(8), rng.randrange(256)])
    return bytes(changed)


def cut(data, rng):
    return data[: rng.randrange(len(data))]


def delete(data, rng):
    start, end = _span(data, rng)
    return data[:start] + data[end:]


def double(data, rng):
    start, end = _span(data, rng)
    return data[:end] + data[start:]


def move(data, rng):
    start, end = _span(data, rng)
    rest = data[:start] + data[end:]
    place = rng.randint(0, len(rest))
    return rest[:place] + data[start:end] + rest[place:]


def insert(data, rng):
    place = rng.randint(0, len(data))
    added = rng.choice([rng.choice(_INTERESTING), rng.randbytes(rng.randint(1, 16))])
    return data[:place] + added * rng.choice([1, 1, 1, 100]) + data[place:]


def blank(data, rng):
    """Zeros in place of a span, as of a disk that lost a block."""
    start, end = _span(data, rng)
    return data[:start] + bytes(end - start) + data[end:]


def append(data, rng):
    return data + rng.choice([data, rng.choice(_INTERESTING), rng.randbytes(rng.randint(1, 16))])


def splice(data, rng, other):
    """The beginning of one file and the end of another."""
    return data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]


MUTATORS = (flip, flip, flip, cut, delete, double, move, insert, blank, append)


def mutate_bytes(data, rng, others=()):
    if not data:
        return rng.randbytes(rng.randint(1, 8))
    if others and rng.random() < 0.1:
        return splice(data, rng, rng.choice(others))
    return rng.choice(MUTATORS)(data, rng)


def _span(data, rng):
    start = rng.randrange(len(data))
    return start, min(start + rng.choice([1, 1, 2, 4, 8, rng.randint(1, len(data))]), len(data))
