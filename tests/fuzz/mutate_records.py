"""TensorBoard's event files: records with checksums, of protocol buffers."""

import struct

from tests.fuzz.mutate_bytes import mutate_bytes


def records_of(data):
    """Yield the records that are whole, by the plain rule: length, checksum, bytes, checksum."""
    place = 0
    while place + 12 <= len(data):
        (length,) = struct.unpack("<Q", data[place : place + 8])
        record = data[place + 12 : place + 12 + length]
        end = place + 16 + length
        if end > len(data) or data[place + 8 : place + 12] != _checksum(data[place : place + 8]):
            return
        if data[end - 4 : end] != _checksum(record):
            return
        yield record
        place = end


def mutate_records(data, rng):
    """Mutate a record and give it its checksum."""
    from tensorboard.compat.proto import event_pb2

    records = list(records_of(data))
    if not records:
        return mutate_bytes(data, rng)
    place = rng.randrange(len(records))
    choice = rng.random()
    if choice < 0.1:
        del records[place]
    elif choice < 0.2:
        records.insert(rng.randint(0, len(records)), records[place])
    elif choice < 0.5:
        records[place] = mutate_bytes(records[place], rng, records)
    else:
        try:
            event = event_pb2.Event.FromString(records[place])
        except Exception:  # damaged already
            return mutate_bytes(data, rng)
        _mutate_event(event, rng)
        records[place] = event.SerializeToString()
    return b"".join(_framed(record) for record in records)


def _mutate_event(event, rng):
    choice = rng.randrange(8)
    if choice == 0:
        event.wall_time = rng.choice([float("nan"), float("inf"), -1e300, 1e18, -1.0, 0.0])
    elif choice == 1:
        event.step = rng.choice([-1, 2**63 - 1, -(2**63), 0])
    for value in event.summary.value:
        if choice == 2:
            value.tag = rng.choice(
                ["", "val/ap", "test/", "/", "é<b>", "train/loss", "memory/norm", "scores/val_curve"]
            )
        elif choice == 3 and value.tensor.tensor_shape.dim:
            dim = rng.choice(value.tensor.tensor_shape.dim)
            dim.size = rng.choice([-1, 0, 1, dim.size + 1, 10**9, 10**15])
        elif choice == 4:
            value.tensor.dtype = rng.randrange(24)
        elif choice == 5:
            value.metadata.plugin_data.plugin_name = rng.choice(
                ["scalars", "histograms", "images", "pr_curves", "text", ""]
            )
        elif choice == 6:
            value.simple_value = rng.choice([float("nan"), float("inf"), -1e38, 0.0])
        elif choice == 7:
            value.tensor.ClearField("tensor_content")


def _framed(record):
    length = struct.pack("<Q", len(record))
    return length + _checksum(length) + record + _checksum(record)


def _checksum(data):
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    return struct.pack("<I", masked_crc32c(data))
