"""The latency of producers while logs are compacted: quorumlog beside Apache Kafka.

A producer sends records of 1 KB at a fixed rate to a topic with one partition; the figure is the time from `produce` to
the acknowledgement.  Another topic holds records of 1 KB with few keys.  First this topic is not compacted.  Then its
`cleanup.policy` becomes `compact`, and the cleaners of all brokers read and replace its segments.

A record counts as sent beside the cleaner if the cleaner used processor time in the same tenth of a second.  The
cleaner is a process of its own in quorumlog, and a thread of the broker in Kafka.  `worse` is the percentile beside the
cleaner divided by the percentile without it.  The speed of the cleaner is the size of the three replicas, divided by
the processor time of their cleaners.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.clusters import KAFKA, OURS, SYNCED, Cluster
from bench.confluent import DEADLINE_S, RECORDS_A_POLL, at, flush, producer, send, values_of
from bench.plots import Panel, show
from bench.processes import processor_s, thread_processor_s
from bench.rounds import Figures, alternate

PORT_BASE: Final = 27_400
RECORD_BYTES: Final = 1000
PARTITIONS: Final = 2
REPLICAS: Final = 3
KEYS: Final = 20_000
LOOK_S: Final = 0.1
IDLE_LOOKS: Final = 30
"""The number of consecutive looks without processor time of the cleaner after which it counts as ended."""
CLEANER_THREAD: Final = "kafka-log-clean"
CLEANER_MODULE: Final = "broker.log.cleaning"
Sample = tuple[float, float]
"""When a record was sent, in seconds, and the milliseconds until its acknowledgement."""


class Size(NamedTuple):
    """How much is measured.

    records: records in the compacted topic.  rate: records a second.  alone_s: the time without the cleaner.
    wait_s: the time within which the cleaner must start.
    records_min: the number of records beside the cleaner that a valid round needs.
    """

    rounds: int
    records: int
    segment_bytes: int
    rate: int
    alone_s: float
    wait_s: float
    records_min: int


FULL: Final = Size(3, 500_000, 32 << 20, 500, 8.0, 60.0, 500)
TINY: Final = Size(1, 5_000, 1 << 20, 200, 0.5, 60.0, 1)


def run(tiny: bool) -> dict[str, Any]:
    size = TINY if tiny else FULL
    result = alternate(PORT_BASE, size, _round, tiny=tiny, warm=_warm).result()
    return {"records": size.records, "records_a_second": size.rate, **result}


def _warm(cluster: Cluster, size: Size) -> None:
    if size is not TINY:
        _round(cluster, "warm", size._replace(records=size.records // 4, records_min=1))


def _round(cluster: Cluster, number: int | str, size: Size) -> Figures:
    cleaned, written = f"cleaned-{number}", f"written-{number}"
    cluster.create(cleaned, PARTITIONS, SYNCED, {"segment.bytes": str(size.segment_bytes)})
    cluster.create(written, 1, SYNCED)
    sender, values = producer(cluster, 5), values_of(RECORD_BYTES)
    for start in range(0, size.records, RECORDS_A_POLL):
        send(sender, cleaned, values, range(start, start + RECORDS_A_POLL), lambda each: b"%d" % (each * 7919 % KEYS))
    flush(sender, cleaned)
    alone = _produce(cluster, written, size, size.alone_s, lambda: False)
    with _CleanerWatch(cluster) as watch:
        cluster.configure(cleaned, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
        sent = _produce(cluster, written, size, DEADLINE_S, lambda: watch.has_ended(size.wait_s))
    beside = [took for when, took in sent if watch.was_busy(when)]
    assert len(beside) >= size.records_min, (
        f"only {len(beside)} records were sent beside the cleaner of {cluster.name}, which used {watch.spent_s:.2f} s"
    )
    cluster.delete(cleaned)
    cluster.delete(written)
    return _figures(sorted(took for _, took in alone), sorted(beside), size, watch.spent_s)


def _figures(alone: Sequence[float], beside: Sequence[float], size: Size, spent_s: float) -> Figures:
    found = {}
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        found[f"produce without the cleaner, {name}, ms"] = at(alone, share)
        found[f"produce beside the cleaner, {name}, ms"] = at(beside, share)
        found[f"worse, {name}, ratio"] = at(beside, share) / at(alone, share)
    found["cleaner, MB per second of its processor time"] = size.records * RECORD_BYTES * REPLICAS / 1e6 / spent_s
    return found


def _produce(cluster: Cluster, topic: str, size: Size, seconds: float, has_ended: Callable[[], bool]) -> list[Sample]:
    """Send records at the rate of `size` until the time is over or `has_ended()`; return a sample of each record."""
    sender, value = producer(cluster, 0, delivery_report_only_error=False), values_of(RECORD_BYTES)[0]
    samples: list[Sample] = []

    def acknowledged(sent: float) -> Callable[[Any, Any], None]:
        def note(error: Any, _message: Any) -> None:
            assert error is None, error
            samples.append((sent, 1e3 * (time.monotonic() - sent)))

        return note

    sender.produce(topic, value)
    flush(sender, topic)
    began, index = time.monotonic(), 0
    while (now := time.monotonic()) < began + seconds and not (index % size.rate == 0 and has_ended()):
        due = began + index / size.rate
        if due > now:
            sender.poll(due - now)  # returns early after an acknowledgement
            continue
        sender.produce(topic, value, on_delivery=acknowledged(now))
        index += 1
    flush(sender, topic)
    return samples


class _CleanerWatch:
    """Notes, every tenth of a second, whether the cleaners of a cluster used processor time.

    spent_s: the processor time that they used.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.spent_s = 0.0
        self._cluster = cluster
        self._seen: dict[str, float] = {}
        self._times: list[float] = []
        self._busy: list[bool] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._began = time.monotonic()

    def __enter__(self) -> _CleanerWatch:
        self._seen = dict(_cleaners(self._cluster))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def was_busy(self, when: float) -> bool:
        """Return whether a cleaner used processor time between the looks around `when`."""
        index = bisect_right(self._times, when)
        return index < len(self._busy) and self._busy[index]

    def has_ended(self, wait_s: float) -> bool:
        """Return whether the cleaner was busy and no longer is, or did not start within `wait_s`."""
        busy = list(self._busy)
        if not any(busy):
            return time.monotonic() > self._began + wait_s
        return len(busy) > IDLE_LOOKS and not any(busy[-IDLE_LOOKS:])

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            used = 0.0
            for name, spent in _cleaners(self._cluster):
                used += spent - self._seen.get(name, 0.0)
                self._seen[name] = spent
            self.spent_s += used
            self._busy.append(used > 0)  # `was_busy` reads both lists only after this thread has ended
            self._times.append(time.monotonic())


def _cleaners(cluster: Cluster) -> Iterator[tuple[str, float]]:
    """Yield the name and the processor seconds of each cleaner that exists now."""
    for pid in cluster.pids.values():
        with suppress(FileNotFoundError, ProcessLookupError):
            if cluster.name == KAFKA:
                for task in Path(f"/proc/{pid}/task").iterdir():
                    if (task / "comm").read_text().startswith(CLEANER_THREAD):
                        yield str(task), thread_processor_s(task)
                continue
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                if CLEANER_MODULE in Path(f"/proc/{child}/cmdline").read_text():
                    yield child, processor_s(int(child))


def present(result: dict[str, Any]) -> list[Panel]:
    """Print all figures as a table; return a chart of the percentiles."""
    rows = result["results"]
    show(f"producers beside the cleaner, {result['records_a_second']} records/s (medians)", rows)
    panels = []
    for share in ("p50", "p99"):
        names = [f"produce without the cleaner, {share}, ms", f"produce beside the cleaner, {share}, ms"]
        chosen = [row for row in rows if row["figure"] in names]
        lines = {name: [row[name] for row in chosen] for name in (OURS, KAFKA) if name in chosen[0]}
        panels.append(Panel(f"acknowledged, {share}", "", "ms", range(2), lines, x_names=["cleaner idle", "at work"]))
    return panels
