"""The latency of records that are sent at a fixed rate, from `produce` to their arrival in another process.

The sender calls `produce` when a record is due, whether or not earlier records have arrived: a pause of the cluster
delays all records that are due in this time.  Both processes read the same clock of the machine.  The records of a
stream form windows.  Each window is reduced to percentiles when it ends, so that a long stream needs little memory.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from multiprocessing.synchronize import Event
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, TopicPartition

from bench.clusters import Cluster
from bench.confluent import DEADLINE_S, at, consumer, flush, producer
from bench.helpers import Link, helper
from bench.rounds import Figures

SHARES: Final = {"p50, ms": 0.5, "p99, ms": 0.99, "p99.9, ms": 0.999, "max, ms": 1.0}
STAMP_BYTES: Final = 20


class Stream(NamedTuple):
    """Records for a topic with one partition.

    rate: records a second.  windows: the number of records in each window.  keys: the number of different keys of the
    records; 0 if they have none.
    """

    topic: str
    rate: int
    windows: Sequence[int]
    record_bytes: int = 1000
    keys: int = 0

    def key(self, number: int) -> bytes | None:
        return b"%d" % (number % self.keys) if self.keys else None


class Measured(NamedTuple):
    """windows: the percentiles of each window.  processor_share: of the servers, 1 for a whole core."""

    windows: Sequence[Figures]
    processor_share: float


def measure(
    cluster: Cluster, stream: Stream, at_edge: Callable[[int], None] = lambda windows: None, **settings: Any
) -> Measured:
    """Send the records of a stream, and read all of them.

    at_edge: called with the number of windows whose records were sent, first with 0.  It delays the next records, but
    not their stamps, so it must be short.  settings: passed on to `consumer`.
    """
    with helper(_receive, cluster, stream.topic, stream.windows, settings) as reader:
        sender = producer(cluster, 0)
        sender.produce(stream.topic, b"%0*d" % (STAMP_BYTES, 0), stream.key(0))
        flush(sender, stream.topic)
        reader.wait_ready(DEADLINE_S)
        padding, sent = bytes(stream.record_bytes - STAMP_BYTES), 0
        before, began = cluster.processor_s(), time.monotonic()
        at_edge(0)
        for number, size in enumerate(stream.windows, 1):
            reader.check()
            for index in range(sent, sent + size):
                wait_s = began + index / stream.rate - time.monotonic()
                if wait_s > 0:
                    time.sleep(wait_s)  # until the next record is due at this rate
                stamp = b"%0*d" % (STAMP_BYTES, time.monotonic_ns())
                sender.produce(stream.topic, stamp + padding, stream.key(index))
                sender.poll(0)
            sent += size
            at_edge(number)
        flush(sender, stream.topic)
        spent, took = cluster.processor_s() - before, time.monotonic() - began
        return Measured([reader.answer(DEADLINE_S) for _ in stream.windows], spent / took)


def after_first_third(
    cluster: Cluster, topic: str, rate: int, seconds: float, names: Sequence[str] = ("p50, ms", "p99, ms", "p99.9, ms")
) -> Figures:
    """Send records for some seconds; return their percentiles without the first third, and the servers' share.

    names: the percentiles, of `SHARES`.
    """
    count = int(rate * seconds)
    found = measure(cluster, Stream(topic, rate, (count // 3, count - count // 3)))
    chosen = {name: found.windows[1][name] for name in names}
    return {**chosen, "servers' processor share, %": 100 * found.processor_share}


def _receive(link: Link, cluster: Cluster, topic: str, windows: Sequence[int], settings: Mapping[str, Any]) -> None:
    """Answer the percentiles of each window.  The first record of the topic only shows that this reader reads."""
    reader = consumer(cluster, **settings)
    reader.assign([TopicPartition(topic, 0, 0)])
    for figures in reduced(_arrivals(reader, topic, link.ready), windows):
        link.answers.put(figures)
    further = reader.poll(0.05)
    assert further is None or further.error() is not None, f"{topic} has more records than were sent"
    reader.close()


def _arrivals(reader: Consumer, topic: str, ready: Event) -> Iterator[float]:
    """Yield the milliseconds that each record took."""
    deadline = time.monotonic() + DEADLINE_S
    while (now := time.monotonic()) < deadline:
        message = reader.poll(0.5)
        if message is None or message.error() is not None:
            continue
        arrived, value = time.monotonic_ns(), message.value()
        assert value is not None
        deadline = now + DEADLINE_S
        if sent := int(value[:STAMP_BYTES]):
            yield (arrived - sent) / 1e6
        else:
            ready.set()
    raise AssertionError(f"no record of {topic} arrived within {DEADLINE_S:g} s")


def reduced(times_ms: Iterator[float], windows: Sequence[int]) -> Iterator[Figures]:
    """Yield the percentiles of each window of these times.

    Only the times of one window are in memory, in order: sorting them when the window ends would delay the records that
    arrive meanwhile.
    """
    for size in windows:
        window: list[float] = []
        for taken in islice(times_ms, size):
            insort(window, taken)
        assert len(window) == size, f"{len(window)} of {size} records of a window arrived"
        yield percentiles(window)


def percentiles(sorted_ms: Sequence[float]) -> Figures:
    return {name: at(sorted_ms, share) for name, share in SHARES.items()}
