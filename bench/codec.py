"""The Arrow codec: records per second that are decoded and encoded on one core, for each compression."""

from __future__ import annotations

import statistics
import time
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

SEED = 7
SIZES = (100, 1000)


def run(tiny: bool) -> dict[str, Any]:
    import numpy as np
    import pyarrow as pa

    from pyspark_quorumlog import arrow
    from pyspark_quorumlog.reference import COLUMNS
    from quorumlog.wire.record_batch import Codec

    bytes_of_values, rounds = (200_000, 3) if tiny else (10_000_000, 9)
    random = Random(SEED)
    cases = []
    for size in SIZES:
        records = bytes_of_values // size
        words = [random.randbytes(6).hex().encode() for _ in range(50)]
        values = [b" ".join(random.choices(words, k=size // 13 + 1))[:size] for _ in range(records)]
        keys = [b"key-%d" % random.randrange(1000) for _ in range(records)]
        table = pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
        columns = arrow.Columns.of(table, np.zeros(records, np.int64), "bench")
        for codec in Codec:

            def encode(columns: Any = columns, codec: Codec = codec) -> list[Any]:
                return list(arrow.encode(columns, [1], [0], 1_000_000, codec))

            data = b"".join(batch.data for batch in encode())

            def decode(data: bytes = data) -> Any:
                return pa.Table.from_batches(arrow.decode(data, 0, 1 << 60, "bench", 0, COLUMNS[:-1]))

            decoded = decode()
            assert decoded.num_rows == records
            assert decoded.column("value").combine_chunks().equals(table.column("value").combine_chunks())
            cases.append(
                {
                    "value_size": size,
                    "records": records,
                    "codec": codec.name.lower(),
                    "batch_bytes": len(data),
                    "encode_records_per_s": _rate(encode, records, rounds),
                    "decode_records_per_s": _rate(decode, records, rounds),
                    "checksum": zlib.crc32(b"".join(values)),
                }
            )
    return {"seed": SEED, "rounds": rounds, "cases": cases}


def _rate(work: Callable[[], Any], records: int, rounds: int) -> dict[str, int]:
    seconds = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    return {"median": round(records / statistics.median(seconds)), "best": round(records / min(seconds))}
