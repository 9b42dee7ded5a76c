"""Growth with the size of records: bytes and records a second, and the processor time of servers and client.

Three controllers and three brokers, topics with 12 partitions and three replicas, acks=all, fsynced.  The client is
confluent-kafka; this process produces for some seconds, then reads and counts all acknowledged records.

    produced_mb_s, consumed_mb_s, produced_records_s, consumed_records_s   medians of the rounds, with the ranges of
                    MB/s; only values count, not keys and headers
    servers_s_gb    processor time of all six servers while producing, in seconds for 10^9 bytes of values
    producer_percent, consumer_percent   processor time of this process meanwhile, in percent of one core; with a value
                    near 100, the client is the limit
    others_percent  the share of the machine that other programs took: the greatest of the rounds
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any, Final, NamedTuple

from bench.clusters import SYNCED, Cluster, quorumlog_cluster
from bench.confluent import Load, consume, produce, values_of
from bench.growth.curve import Bound, panels, show_curve, spread
from bench.plots import Panel
from bench.processes import Others

PORT_BASE: Final = 28_400
PARTITIONS: Final = 12
BOUND: Final = Bound(
    "small records: the client, which makes a Python call for each record, while the servers handle batches of up to "
    "1 MB",
    "large records: the leader receives, checks (CRC) and writes each byte, and sends it to two followers, which also "
    "check and write it, all on the cores and the disk of one machine; a batch has at most max.message.bytes "
    "(1,048,588 B)",
)


class Size(NamedTuple):
    """How much is measured.  sizes: bytes of a value."""

    sizes: Sequence[int]
    rounds: int
    seconds: float


FULL: Final = Size((10, 100, 1_000, 10_000, 100_000, 1_000_000), 3, 4.0)
TINY: Final = Size((10, 1_000_000), 1, 0.3)


class Passed(NamedTuple):
    """Records that were produced and read once.  The seconds are wall time, `…_processor_s` processor time."""

    record_bytes: int
    records: int
    produce_s: float
    consume_s: float
    servers_processor_s: float
    producer_processor_s: float
    consumer_processor_s: float
    others_share: float

    @property
    def megabytes(self) -> float:
        return self.records * self.record_bytes / 1e6


def run(tiny: bool) -> dict[str, Any]:
    size = TINY if tiny else FULL
    taken: dict[int, list[Passed]] = {record_bytes: [] for record_bytes in size.sizes}
    with quorumlog_cluster(PORT_BASE) as cluster:
        for number in range(size.rounds):
            for record_bytes, rounds in taken.items():
                topic = f"records-{record_bytes}-{number}"
                rounds.append(pass_through(cluster, topic, record_bytes, size.seconds))
    results = [row(rounds) for rounds in taken.values()]
    return {"partitions": PARTITIONS, "rounds": size.rounds, "results": results, "bound": BOUND._asdict()}


def present(result: dict[str, Any]) -> list[Panel]:
    show_curve("growth with the size of records", result)
    figures: dict[str, tuple[str, Sequence[str]]] = {
        "Bytes": ("MB/s", ("produced_mb_s", "consumed_mb_s")),
        "Records": ("records/s", ("produced_records_s", "consumed_records_s")),
        "Processor time of the servers": ("s/GB", ("servers_s_gb",)),
        "Processor time of the client": ("% of one core", ("producer_percent", "consumer_percent")),
    }
    return panels(result["results"], "record_bytes", figures)


def pass_through(cluster: Cluster, topic: str, record_bytes: int, seconds: float) -> Passed:
    """Produce to a new topic for some seconds, and read all acknowledged records."""
    values_of(record_bytes)  # made before the measurement
    cluster.create(topic, PARTITIONS, SYNCED)
    others, began_s, servers_s = Others(cluster.processor_s), time.process_time(), cluster.processor_s()
    count, produce_s = produce(cluster, topic, Load(record_bytes, PARTITIONS), seconds)
    produced_s, servers_s = time.process_time(), cluster.processor_s() - servers_s
    consume_s = consume(cluster, topic, PARTITIONS, count)
    consumed_s, others_share = time.process_time(), others.share()
    cluster.delete(topic)
    client_s = (produced_s - began_s, consumed_s - produced_s)
    return Passed(record_bytes, count, produce_s, consume_s, servers_s, *client_s, others_share)


def row(rounds: Sequence[Passed]) -> dict[str, Any]:
    """Return the medians of the rounds, and their ranges."""
    record_bytes = rounds[0].record_bytes
    produced = [each.megabytes / each.produce_s for each in rounds]
    consumed = [each.megabytes / each.consume_s for each in rounds]
    return {
        "record_bytes": record_bytes,
        **spread("produced_mb_s", produced),
        **spread("consumed_mb_s", consumed),
        "produced_records_s": round(median(produced) * 1e6 / record_bytes),
        "consumed_records_s": round(median(consumed) * 1e6 / record_bytes),
        "servers_s_gb": round(median(1e3 * each.servers_processor_s / each.megabytes for each in rounds), 2),
        "producer_percent": round(median(100 * each.producer_processor_s / each.produce_s for each in rounds), 1),
        "consumer_percent": round(median(100 * each.consumer_processor_s / each.consume_s for each in rounds), 1),
        "others_percent": round(max(100 * each.others_share for each in rounds), 1),
    }
