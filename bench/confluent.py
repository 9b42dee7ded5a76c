"""Producers and consumers of confluent-kafka, with the settings that all comparisons use, and loads of records."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from bench.clusters import Cluster

DEADLINE_S = 120.0
VALUES = 64
RECORDS_A_POLL = 200
BYTES_A_POLL = 4 << 20
"""The time of `produce`, and the memory of its values, would be too long and too large with 64 or 200 large records."""
MESSAGE_MAX_BYTES = 1_040_000
"""The default of the client does not admit a value of 1,000,000 B; the default of brokers, 1,048,588, does."""


class Load(NamedTuple):
    """Records of one size for one topic.

    record_bytes: the size of each value.  codec: the compression type.
    has_keys: whether records have keys, which spread them over all partitions.  Without keys, the client fills a batch
    of one partition after another.
    """

    record_bytes: int
    partitions: int
    codec: str = "none"
    has_keys: bool = False

    def __str__(self) -> str:
        codec = "" if self.codec == "none" else f", {self.codec}"
        return f"{self.record_bytes:,} B, {count_of(self.partitions, 'partition')}{codec}"


def count_of(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def producer(cluster: Cluster, linger_ms: int, codec: str = "none", **more: Any) -> Producer:
    """Return an idempotent producer with acks=all.  more: further settings, with underscores for dots.

    If a record is refused or given up, the next `poll` or `flush` raises: it must not count as acknowledged.
    """
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": linger_ms,
        "compression.type": codec,
        "message.max.bytes": MESSAGE_MAX_BYTES,
        "queue.buffering.max.messages": 500_000,
        "queue.buffering.max.kbytes": 65_536,
        "log_level": 0,
        "delivery.report.only.error": True,
        "on_delivery": _fail,
    }
    return Producer(settings | {name.replace("_", "."): value for name, value in more.items()})


def _fail(error: KafkaError | None, message: Message) -> None:
    if error is not None:
        raise RuntimeError(f"a record of {message.topic()} was not acknowledged: {error}")


def consumer(cluster: Cluster, **more: Any) -> Consumer:
    """Return a consumer without commits.  more: further settings, with underscores for dots."""
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": "bench",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "fetch.queue.backoff.ms": 1,  # by default the client sleeps for 1 s whenever its own queue is full
        "log_level": 0,
    }
    return Consumer(settings | {name.replace("_", "."): value for name, value in more.items()})


@functools.cache
def values_of(record_bytes: int) -> list[bytes]:
    """Return different values of this size, which compress to about half.  The same list for each call."""
    count = at_most(VALUES, record_bytes)
    return [bytes(random.Random(seed).choices(b"abcdefghijklmnop", k=record_bytes)) for seed in range(count)]


def at_most(count: int, record_bytes: int) -> int:
    """Return `count`, or as many records of this size as have BYTES_A_POLL together, at least one."""
    return max(1, min(count, BYTES_A_POLL // record_bytes))


def produce(cluster: Cluster, topic: str, load: Load, seconds: float) -> tuple[int, float]:
    """Produce for some seconds; return as `produce_while` does."""
    return produce_while(cluster, topic, load, lambda elapsed_s: elapsed_s < seconds)


def produce_while(cluster: Cluster, topic: str, load: Load, goes_on: Callable[[float], bool]) -> tuple[int, float]:
    """Produce at full rate; return the number of records, and the seconds until the last acknowledgement.

    goes_on: gets the seconds since the first record, and returns whether to produce further ones.
    """
    sender, values = producer(cluster, 5, load.codec), values_of(load.record_bytes)
    key = _number_as_key if load.has_keys else None
    step = at_most(RECORDS_A_POLL, load.record_bytes)
    count, began = 0, time.monotonic()
    while count == 0 or goes_on(time.monotonic() - began):
        send(sender, topic, values, range(count, count + step), key)
        count += step
    flush(sender, topic)
    return count, time.monotonic() - began


def _number_as_key(number: int) -> bytes:
    return b"%d" % number


def send(
    sender: Producer,
    topic: str,
    values: Sequence[bytes],
    numbers: range,
    key: Callable[[int], bytes] | None = None,
) -> None:
    """Hand a record for each number to the producer; wait while its queue is full."""
    for number in numbers:
        while True:
            try:
                sender.produce(topic, values[number % len(values)], key and key(number))
                break
            except BufferError:
                sender.poll(0.002)
    sender.poll(0)


def flush(sender: Producer, topic: str) -> None:
    """Return once every record is acknowledged; raise if one is not."""
    left = sender.flush(DEADLINE_S)
    assert left == 0, f"{left} records of {topic} were not acknowledged within {DEADLINE_S:g} s"


def wait_for_reports(sender: Producer, topic: str) -> None:
    """Return as soon as every record is acknowledged; `flush` looks only every 10 ms.

    sender: made with `delivery_report_only_error=False`.
    """
    deadline = time.monotonic() + DEADLINE_S
    while len(sender):
        assert time.monotonic() < deadline, f"no acknowledgement of {topic} within {DEADLINE_S:g} s"
        sender.poll(1.0)


def consume(cluster: Cluster, topic: str, partitions: int, count: int, **settings: Any) -> float:
    """Return the seconds from the assignment to the last of `count` records.  settings: passed on to `consumer`."""
    reader = consumer(cluster, **settings)
    seen, began = 0, time.monotonic()
    reader.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    while seen < count:
        assert time.monotonic() < began + DEADLINE_S, f"{seen} of {count} records of {topic} in {DEADLINE_S:g} s"
        # `consume` returns only once it has as many records as it is asked for, or after its timeout.
        for message in reader.consume(min(10_000, count - seen), timeout=1.0):
            assert message.error() is None, message.error()
            seen += 1
    took = time.monotonic() - began
    assert not reader.consume(1, timeout=0.05), f"{topic} has more than the {count} acknowledged records"
    reader.close()
    return took


class Rates(NamedTuple):
    """produced, consumed: MB/s.  produce_s_per_gb, consume_s_per_gb: the servers' processor seconds meanwhile."""

    produced: float
    consumed: float
    produce_s_per_gb: float
    consume_s_per_gb: float


def rates(cluster: Cluster, topic: str, mode: str, load: Load, seconds: float) -> Rates:
    """Produce to a new topic for some seconds, consume all records, and delete the topic."""
    cluster.create(topic, load.partitions, mode)
    before = cluster.processor_s()
    count, took = produce(cluster, topic, load, seconds)
    between = cluster.processor_s()
    read_s = consume(cluster, topic, load.partitions, count)
    after = cluster.processor_s()
    cluster.delete(topic)
    megabytes = count * load.record_bytes / 1e6
    gigabytes = megabytes / 1e3
    return Rates(megabytes / took, megabytes / read_s, (between - before) / gigabytes, (after - between) / gigabytes)


class Warming(Protocol):
    """How long a cluster is warmed up.  warm_s: seconds of load in all modes together; 0: none."""

    @property
    def modes(self) -> Sequence[str]: ...
    @property
    def warm_s(self) -> float: ...


def warm_up(cluster: Cluster, size: Warming) -> None:
    """Produce and consume, so that Java has compiled."""
    for mode in size.modes if size.warm_s else ():
        topic = f"warm-{mode.replace(' ', '-')}"
        cluster.create(topic, 12, mode)
        count = produce(cluster, topic, Load(1000, 12), size.warm_s / len(size.modes))[0]
        consume(cluster, topic, 12, count)
        cluster.delete(topic)


def at(sorted_values: Sequence[float], share: float) -> float:
    """Return the percentile of sorted values.  share: 0 to 1, for example 0.99."""
    return sorted_values[min(int(len(sorted_values) * share), len(sorted_values) - 1)]
