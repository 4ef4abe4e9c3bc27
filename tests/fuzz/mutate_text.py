"""Damage to lines and cells of a text file, and other encodings of it."""

from tests.fuzz.mutate_bytes import mutate_bytes

NUMBERS = ["nan", "NaN", "inf", "-inf", "Infinity", "1e308", "1e309", "1e-320", "3.4e38", "3.5e38", "-1", "0", "-0"]
NUMBERS += ["+5", ".5", "5.", "1.0", "007", "1e5", "1d5", "0x10", "1_000", "--5", "5f", "1,5", "1;5", "1e", "0.1e-5"]
NUMBERS += [str(sign * 2**power + more) for power in (53, 63, 64) for more in (-1, 0, 1) for sign in (1, -1)]
WORDS = ["", " ", "NA", "NULL", "None", "True", "abc", "#", "%", '"', "'5'", "2020-01-01", "é", "😀", "a b", "5\u00a0"]
WORDS += ["\u0661", " 5", "5 ", "\t5", "5\x0b", "5\x0c", "\x85", "\u2028", "\x1c", '"5"', '"a""b"', '"a,b"', '"5', '5"']
LONG = ["9" * 400, "x" * 5000, "0." + "1" * 400]
_AROUND = ['"{}"', '"{}', '{}"', " {}", "{} ", "{}.0", "-{}", "{}e0", '"{}" ', '"{}"x']
_DELIMITERS = (",", "\t", " ", ";")


def mutate_text(data, rng, others=()):
    """Return a file of which a line, a column, a cell or the encoding is another, as often as not still of use."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return mutate_bytes(data, rng, others)
    kind = rng.random()
    if kind < 0.08:
        return _encode(text, rng)
    if kind < 0.2:
        return mutate_bytes(data, rng, others)
    lines = text.split("\n")
    rng.choice([_lines, _cell, _cell, _cell, _column, _column])(lines, rng)
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def odd_cell(rng):
    return rng.choice(rng.choice([NUMBERS, NUMBERS, WORDS, WORDS, LONG]))


def _encode(text, rng):
    choice = rng.randrange(8)
    if choice == 0:
        return text.replace("\n", "\r\n").encode()
    if choice == 1:
        return text.replace("\n", "\r").encode()
    if choice == 2:
        return b"\xef\xbb\xbf" + text.encode()
    if choice == 3:
        return text.encode(rng.choice(["utf-16", "utf-16-le", "utf-32", "utf-7"]))
    if choice == 4:
        return ("é" + text).encode("latin-1", "replace")
    if choice == 5:
        return text.encode().rstrip(b"\n")
    if choice == 6:
        return text.replace(rng.choice(_DELIMITERS), rng.choice(_DELIMITERS)).encode()
    return text.replace("\n", "\n\n", rng.choice([1, 2, -1])).encode()


def _lines(lines, rng):
    place = rng.randrange(len(lines))
    choice = rng.randrange(7)
    if choice == 0:
        del lines[place]
    elif choice == 1:
        lines.insert(rng.randint(0, len(lines)), lines[place])
    elif choice == 2:
        other = rng.randrange(len(lines))
        lines[place], lines[other] = lines[other], lines[place]
    elif choice == 3:
        lines.insert(place, rng.choice(["", " ", "\t", "\r", "# comment", "%", ",", ",,", '"', '""', odd_cell(rng)]))
    elif choice == 4:
        lines[place] += rng.choice([",", " ", "\t", ";", "\r", ",,", '"', ",5", " 5", "\t5", "#"])
    elif choice == 5:
        lines[place] = rng.choice([" ", "\t", ",", '"', "#", "%", "\ufeff", "\r"]) + lines[place]
    else:
        del lines[place:]


def _cell(lines, rng):
    place = rng.randrange(len(lines))
    delimiter, cells = _cells(lines[place], rng)
    number = rng.randrange(len(cells))
    choice = rng.randrange(7)
    if choice <= 2:
        cells[number] = odd_cell(rng)
    elif choice == 3:
        cells[number] = rng.choice(
            ['"{}"', '"{}', '{}"', " {}", "{} ", "{}.0", "-{}", "{}e0", '"{}" ', '"{}"x']
        ).format(cells[number])
    elif choice == 4:
        other = rng.randrange(len(cells))
        cells[number], cells[other] = cells[other], cells[number]
    elif choice == 5:
        del cells[number]
    else:
        cells.insert(number, cells[number])
    lines[place] = delimiter.join(cells)


def _column(lines, rng):
    """Do the same to the cell of a column in every line."""
    delimiter, first = _cells(lines[0], rng)
    number, choice, cell = rng.randrange(len(first)), rng.randrange(5), odd_cell(rng)
    other = rng.randrange(len(first))
    for place, line in enumerate(lines):
        cells = line.split(delimiter)
        if len(cells) <= max(number, other):
            continue
        if choice == 0:
            del cells[number]
        elif choice == 1:
            cells.insert(other, cells[number])
        elif choice == 2:
            cells[number], cells[other] = cells[other], cells[number]
        elif choice == 3:
            cells[number] = rng.choice(['"{}"', "{}.0", " {}", "n{}"]).format(cells[number])
        elif place:
            cells[number] = cell
        lines[place] = delimiter.join(cells)


def _cells(line, rng):
    there = [delimiter for delimiter in _DELIMITERS if delimiter in line]
    delimiter = rng.choice(there or [","])
    return delimiter, line.split(delimiter)
