"""Parquet files with other columns, types and gaps."""

import io

from tests.fuzz.mutate_bytes import mutate_bytes


def mutate_parquet(data, rng):
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(io.BytesIO(data))
        table = _other_table(table, rng, pa)
        file = io.BytesIO()
        pq.write_table(table, file, compression=rng.choice(["none", "snappy", "gzip"]), write_page_checksum=True)
    except Exception:  # damaged already, or no such table
        return mutate_bytes(data, rng)
    return file.getvalue()


def _other_table(table, rng, pa):
    place = rng.randrange(table.num_columns)
    name, column = table.column_names[place], table.column(place)
    choice = rng.randrange(8)
    if choice == 0:
        return table.remove_column(place)
    if choice == 1:
        return table.append_column(name, column)
    if choice == 2:
        return table.rename_columns([*table.column_names[1:], table.column_names[0]])
    if choice == 3:
        return table.slice(rng.randrange(len(table) + 1), rng.randrange(len(table) + 1))
    if choice == 4:
        values = column.to_pylist()
        odd = [None, float("nan"), float("inf"), -1, 0, 2**62, 1e300, "", " ", "x", True]
        values[rng.randrange(len(values))] = rng.choice(odd)
        return table.set_column(place, name, pa.array(values))
    types = [pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.bool_(), pa.date32()]
    types += [pa.timestamp("ns"), pa.timestamp("s", "UTC"), pa.decimal128(30, 2), pa.large_string(), pa.binary()]
    types += [pa.dictionary(pa.int8(), pa.string()), pa.duration("s"), pa.time64("us"), pa.null(), pa.list_(pa.int64())]
    if choice == 5:
        other = rng.randrange(table.num_columns)
        return table.set_column(place, name, table.column(other))
    return table.set_column(place, name, column.cast(rng.choice(types), safe=False))
