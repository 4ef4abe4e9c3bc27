"""Other values in what JSON, NumPy and torch hold, so that the file stays whole and its content does not."""

import io
import json

import numpy as np
import torch

from tests.fuzz.mutate_bytes import mutate_bytes
from tests.fuzz.mutate_text import mutate_text

_PLAIN = [None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, -(2**63), 10**15, 10**30, 0.5, -0.0, 1e308, float("nan")]
_PLAIN += [float("inf"), "", "x", "int64", "<i8", "../x", "/etc/passwd", [], {}, [[]], [0], [-1], [10**15, 3], {"a": 1}]
_NUMPY_TYPES = [
    "<i8",
    ">i8",
    "<i4",
    "<u8",
    "<f4",
    "<f8",
    "<f2",
    "|b1",
    "|u1",
    "|S3",
    "<U3",
    "<c8",
    "<M8[s]",
    "|V4",
    "|O",
]
_TORCH_TYPES = [torch.int64, torch.int32, torch.uint8, torch.bool, torch.float32, torch.float64, torch.bfloat16]
_TORCH_TYPES += [torch.complex64, torch.float16]


def mutate_plain(value, rng, depth=0):
    """Return a tree of plain values and tensors of which one place is another."""
    if isinstance(value, torch.Tensor) and rng.random() < 0.9:
        return mutate_tensor(value, rng)
    if isinstance(value, dict) and value and rng.random() < 0.95 - 0.05 * depth:
        return _mutate_dict(dict(value), rng, depth)
    if isinstance(value, (list, tuple)) and value and rng.random() < 0.8:
        changed = list(value)
        place = rng.randrange(len(changed))
        choice = rng.randrange(4)
        if choice == 0:
            del changed[place]
        elif choice == 1:
            changed.insert(place, changed[place])
        else:
            changed[place] = mutate_plain(changed[place], rng, depth + 1)
        return changed
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.4:
        return value + rng.choice([1, -1])
    if isinstance(value, str) and value and rng.random() < 0.3:
        return mutate_text(value.encode(), rng).decode("utf-8", "replace")
    return rng.choice(_PLAIN)


def _mutate_dict(value, rng, depth):
    key = rng.choice(list(value))
    choice = rng.randrange(10)
    if choice == 0:
        del value[key]
    elif choice == 1:
        value[rng.choice(["", "x", 5, None]) if depth else "x"] = value[key]
    elif choice == 2:
        other = rng.choice(list(value))
        value[key], value[other] = value[other], value[key]
    else:
        value[key] = mutate_plain(value[key], rng, depth + 1)
    return value


def mutate_tensor(tensor, rng):
    if tensor.layout != torch.strided or tensor.numel() > 10**6:  # mutated already
        return torch.zeros(3, dtype=tensor.dtype)
    choice = rng.randrange(11)
    if choice <= 3 and tensor.numel():
        changed = tensor.clone()
        numbers = (
            [0, 1, -1, 2**40, 10**18, 17] if not tensor.is_floating_point() else [float("nan"), float("inf"), -1.0]
        )
        place = tuple(rng.randrange(length) for length in tensor.shape)
        changed[place] = torch.tensor(rng.choice(numbers)).to(tensor.dtype)
        return changed
    if choice == 4:
        return tensor.to(rng.choice(_TORCH_TYPES))
    if choice == 5 and tensor.dim():
        return tensor[: rng.randint(0, len(tensor))].clone()
    if choice == 6 and tensor.dim():
        return torch.cat([tensor, tensor[:1]])
    if choice == 7:
        return tensor[None] if rng.random() < 0.5 else tensor.flatten()
    if choice == 8 and tensor.dim() == 2:
        return rng.choice([tensor.t(), tensor.to_sparse(), tensor[:, :0], tensor[:, :-1]])
    if choice == 9:  # claims more than memory holds
        return torch.zeros(1, dtype=tensor.dtype).expand(*([rng.choice([10**12, 10**15])] + [1] * (tensor.dim() - 1)))
    return torch.zeros(rng.choice([(), (0,), (0, 3), (3, 0), (1, 1, 1)]), dtype=tensor.dtype)


def mutate_torch(data, rng):
    """Return a file of `torch.save` with other content, or with content that has to be refused: pickled code."""
    try:
        held = torch.load(io.BytesIO(data), weights_only=True)
    except Exception:  # damaged already
        return mutate_bytes(data, rng)
    held = mutate_plain(held, rng)
    if rng.random() < 0.05:
        held = {"x": Path_}  # a class: only pickle could bring it back
    file = io.BytesIO()
    torch.save(held, file, _use_new_zipfile_serialization=rng.random() < 0.8)
    return file.getvalue()


class Path_:  # noqa: N801 -- a name that no list of safe classes has
    """Stands for whatever code a pickle could run."""


def mutate_json(data, rng):
    try:
        held = json.loads(data)
    except ValueError:
        return mutate_text(data, rng)
    return json.dumps(mutate_plain(held, rng), default=str).encode()


def mutate_npy(data, rng):
    """Return an ``.npy`` file with another header over the same values, or with other values."""
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except Exception:  # damaged already
        return mutate_bytes(data, rng)
    if rng.random() < 0.5:
        return _with_header(data, array, rng)
    file = io.BytesIO()
    np.save(file, _other_array(array, rng), allow_pickle=True)
    return file.getvalue()


def _with_header(data, array, rng):
    shape = list(array.shape)
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": tuple(shape)}
    choice = rng.randrange(8)
    if choice <= 2 and shape:
        place = rng.randrange(len(shape))
        shape[place] = rng.choice([shape[place] + 1, shape[place] - 1, 0, -1, 10**15, 2**63, 10**30, 1.5, True, None])
        header["shape"] = tuple(shape)
    elif choice == 3:
        header["shape"] = rng.choice([(), (array.size,), (1, *shape), (*shape, 1), (-1,), (0, 10**15), "x", [1], None])
    elif choice <= 5:
        header["descr"] = rng.choice([*_NUMPY_TYPES, [("a", "<i8")], "x", None, 5, "<i0", ("<i8", (3,)), "<f8,<i8"])
    elif choice == 6:
        header["fortran_order"] = rng.choice([True, 1, "x", None])
    else:
        header[rng.choice(["x", "descr"])] = header.pop(rng.choice(["shape", "fortran_order"]))
    text = repr(header)
    if rng.random() < 0.15:
        text = rng.choice(
            [text[:-1], "{" * 500, "(" * 2000, text + "+1", "[1", "'''", "\\", "1L", text.replace(":", "")]
        )
    body = data[-array.nbytes :] if array.nbytes else b""
    version = rng.choice([(1, 0), (1, 0), (1, 0), (2, 0), (3, 0), (4, 0), (0, 9)])
    encoded = text.encode() + b"\n"
    length = len(encoded).to_bytes(2 if version[0] == 1 else 4, "little")
    return b"\x93NUMPY" + bytes(version) + length + encoded + body


def _other_array(array, rng):
    choice = rng.randrange(7)
    if choice <= 1 and array.size and array.dtype.kind in "iufb":
        changed = array.copy()
        numbers = [np.nan, np.inf, -1.0, 1e300] if array.dtype.kind == "f" else [0, 1, -1, 10**18, 2**31, 99]
        with np.errstate(all="ignore"):
            changed.flat[rng.randrange(array.size)] = np.array(rng.choice(numbers)).astype(array.dtype)
        return changed
    if choice == 2:
        kind = rng.choice(_NUMPY_TYPES)
        return array.astype(kind) if array.dtype.kind not in "USV" and kind != "|V4" else array.astype(object)
    if choice == 3 and array.ndim:
        return array[: rng.randint(0, len(array))]
    if choice == 4 and array.ndim:
        return np.concatenate([array, array[:1]])
    if choice == 5:
        return rng.choice(
            [array[None], array.ravel(), np.asfortranarray(array), array.T, array[..., :0] if array.ndim else array]
        )
    return np.roll(array, 1) if array.ndim else array
