"""The cost of the check of a batch's records, compared with the cost of a whole produce.

A produce is one acknowledged and fsynced batch to a standalone broker; produces do not overlap.  Its cost is the time
until the answer, and the processor time of the broker.  The check is timed in this process, over the same batches.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from random import Random
from statistics import median
from typing import Any

from bench.broker_rates import create_topic
from bench.processes import processor_s
from broker.log import LogConfig
from broker.log.produced import Produced, check_inflated, check_produced, inflated_size_max
from quorumlog.client.cluster import Cluster
from quorumlog.client.producer import ACKS_ALL, Producer
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.testing import standalone
from quorumlog.wire.record_batch import HEADER_SIZE, Codec, parse_header
from quorumlog.wire.record_framing import check_framing

SEED = 7
SIZES = (100, 1024)
BATCH_BYTES = (16_000, 900_000)
CODECS = (Codec.NONE, Codec.LZ4)


def run(tiny: bool) -> dict[str, Any]:
    produces, repeats = (3, 3) if tiny else (300, 50)
    random = Random(SEED)
    cases = []
    with standalone() as broker:
        for size in SIZES:
            for batch_bytes in BATCH_BYTES:
                for codec in CODECS:
                    batch = _batch(random, size, batch_bytes // size, codec)
                    check_us = _best_us(_check(batch), repeats)
                    topic = f"check-{size}-{batch_bytes}-{codec.name.lower()}"
                    create_topic(broker.bootstrap, topic)
                    used = processor_s(broker.pid)
                    produce_us = asyncio.run(_produce(broker.bootstrap, topic, batch, produces))
                    broker_us = (processor_s(broker.pid) - used) * 1e6 / produces
                    cases.append(
                        {
                            "record_bytes": size,
                            "records": batch_bytes // size,
                            "codec": codec.name.lower(),
                            "check_us": round(check_us, 1),
                            "check_ns_a_record": round(check_us * 1000 / (batch_bytes // size), 1),
                            "produce_us_median": round(produce_us),
                            "produce_broker_processor_us": round(broker_us),
                            "check_percent_of_produce": round(100 * check_us / produce_us, 2),
                        }
                    )
    return {"seed": SEED, "produces": produces, "repeats": repeats, "cases": cases}


def _batch(random: Random, size: int, count: int, codec: Codec) -> bytes:
    words = [random.randbytes(6).hex().encode() for _ in range(50)]
    values = [b" ".join(random.choices(words, k=size // 13 + 1))[:size] for _ in range(count)]
    return bytes(build_batch([NewRecord(None, value, 1_700_000_000_000) for value in values], codec))


def _check(batch: bytes) -> Callable[[], object]:
    """Return the check that a produce of `batch` needs in addition to the check of its header."""
    header = parse_header(batch)
    if header.codec is Codec.NONE:
        return partial(check_framing, memoryview(batch)[HEADER_SIZE:], header)
    produced = check_produced(batch, LogConfig())
    assert isinstance(produced, Produced), produced
    return partial(check_inflated, produced, inflated_size_max(produced, LogConfig()))


def _best_us(work: Callable[[], object], repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        begun = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begun)
    return best * 1e6


async def _produce(bootstrap: str, topic: str, batch: bytes, produces: int) -> float:
    """Return the median time of a produce, in microseconds."""
    times = []
    async with Cluster([bootstrap], client_id="bench") as cluster, Producer(cluster, acks=ACKS_ALL) as producer:
        for _ in range(produces):
            begun = time.perf_counter()
            await (await producer.send(topic, 0, bytearray(batch)))
            times.append(time.perf_counter() - begun)
    return median(times) * 1e6
