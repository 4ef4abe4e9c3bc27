"""Mutated files of every form: what is in a file says how it can be mutated and still be looked into."""

import gzip
import io
import zipfile
import zlib

from tests.fuzz.mutate_bytes import mutate_bytes
from tests.fuzz.mutate_records import mutate_records
from tests.fuzz.mutate_tables import mutate_parquet
from tests.fuzz.mutate_text import mutate_text
from tests.fuzz.mutate_values import mutate_json, mutate_npy, mutate_torch

_NAMES = (
    "../outside",
    "/outside",
    "a/../../outside",
    "a",
    "a/b",
    "x" * 300,
    "a\0b",
    "é",
    "C:\\x",
    "",
    ".",
    "..",
    "a//b",
)


def mutate_files(files, rng, seeds):
    """Return files, by name, of which some are damaged, gone or another one."""
    files = dict(files)
    if len(files) > 1 and rng.random() < 0.12:
        return _mutate_folder(files, rng)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        name = rng.choice(list(files))
        others = [seed[name] for seed in seeds if name in seed]
        files[name] = mutate_file(name, files[name], rng, others)
    return files


def mutate_file(name, data, rng, others=()):
    if not data or rng.random() < 0.25:
        return mutate_bytes(data, rng, others)
    if "tfevents" in name:
        return mutate_records(data, rng)
    if data[:2] == b"\x1f\x8b":
        return _mutate_gzip(name, data, rng)
    if data[:4] == b"PK\x03\x04":
        is_torch = name.endswith((".pt", ".ckpt")) and rng.random() < 0.85
        return mutate_torch(data, rng) if is_torch else _mutate_zip(data, rng)
    if data[:6] == b"\x93NUMPY":
        return mutate_npy(data, rng)
    if data[:4] == b"PAR1":
        return mutate_parquet(data, rng)
    if name.endswith(".json"):
        return mutate_json(data, rng)
    return mutate_text(data, rng, others)


def _mutate_folder(files, rng):
    name, other = rng.sample(list(files), 2)
    choice = rng.randrange(4)
    if choice == 0:
        del files[name]
    elif choice == 1:
        files[name], files[other] = files[other], files[name]
    elif choice == 2:
        files[name] = files[other]
    else:
        files[name] = b""
    return files


def _mutate_gzip(name, data, rng):
    try:
        inner = gzip.decompress(data)
    except (OSError, EOFError, zlib.error):
        return mutate_bytes(data, rng)
    packed = gzip.compress(mutate_file(name.removesuffix(".gz"), inner, rng), mtime=0)
    if rng.random() < 0.1:  # two members, or what is none behind the first
        packed += rng.choice([packed, gzip.compress(b"", mtime=0), b"\0" * 9, b"x"])
    return packed


def _mutate_zip(data, rng):
    """Mutate a member, its name or its place, with checksums that fit."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    except Exception:  # damaged already
        return mutate_bytes(data, rng)
    place = rng.randrange(len(members)) if members else None
    if place is None:
        return mutate_bytes(data, rng)
    name, content = members[place]
    choice = rng.random()
    if choice < 0.08:
        del members[place]
    elif choice < 0.14:
        members.append((name, mutate_file(name, content, rng)))
    elif choice < 0.25:
        members[place] = rng.choice(_NAMES), content
    elif choice < 0.3:
        members.append((rng.choice(_NAMES), b"outside"))
    else:
        members[place] = name, mutate_file(name, content, rng)
    kind = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    return write_zip(members, kind if rng.random() < 0.3 else zipfile.ZIP_STORED)


def write_zip(members, kind=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, content in members:
            info = zipfile.ZipInfo("x")
            info.filename, info.compress_type = name, kind  # a name as it is: the constructor cuts it at a NUL
            archive.writestr(info, content)
    return file.getvalue()
