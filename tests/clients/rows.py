"""The rows of the clients: what a program must do, and how it is checked."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from confluent_kafka import KafkaException

from quorumlog.errors import QuorumlogError
from tests.clients.outcomes import NotOffered, Outcome, RowFailed, Skipped, Word, expect, shortened
from tests.clients.records import BASE_MS, COUNT, Harness, record
from tests.clients.running import Program

CODECS = ("gzip", "snappy", "lz4", "zstd")
ADMIN: dict[str, object] = {
    "brokers": 3,
    "duplicate": "TOPIC_ALREADY_EXISTS",
    "partitions": 3,
    "config": "60000000",
    "altered config": "70000000",
    "more partitions": 5,
    "offsets": [0, 10],
    "deleted records": 4,
    "group listed": True,
    "group state": "Empty",
    "group offset": 7,
    "altered group offset": 5,
    "group deleted": True,
    "topic deleted": True,
}
"""The view of an administrator who creates `topic` with 3 partitions and retention.ms=60000000, creates it once more,
alters retention.ms to 70000000, adds partitions up to 5, looks up the first offset and the end of `data`, deletes its
records before offset 4, looks at `group`, moves its offset to 5, and deletes group and topic."""
GROUP_OFFSET = 7

_numbers = count()


@dataclass
class Run:
    """One program in one row, against one cluster.

    brokers: their number.  served: the API keys that they advertise, with their versions.
    """

    name: str
    command: list[str]
    harness: Harness
    brokers: int
    served: dict[int, tuple[int, int]]
    versions: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def new_name(self, kind: str) -> str:
        """Return a name for a topic or a group that no other row has."""
        return f"{self.name.replace(' ', '-')}-{kind}-{next(_numbers)}"

    def start(self, action: str, **fields: Any) -> Program:
        options = {"action": action, "bootstrap": self.harness.bootstrap, "base_ms": BASE_MS, **fields}
        return Program(self.command, options)

    def complete(self, action: str, **fields: Any) -> Program:
        """Run the program to its end."""
        with self.start(action, **fields) as program:
            program.finish()
            self.versions.add(program.version)
        return program


@dataclass(frozen=True)
class Row:
    """needs: the API keys without which the row is not served."""

    name: str
    check: Callable[[Run], None]
    needs: tuple[int, ...] = ()

    def not_run(self, program: str, reason: str) -> Outcome:
        return Outcome(program, self.name, Word.SKIPPED, reason)


def perform(run: Run, row: Row) -> Outcome:
    """Run one row; a failure of any kind is an outcome."""
    began = time.monotonic()
    word, detail = Word.PASSED, ""
    try:
        if missing := [key for key in row.needs if key not in run.served]:
            word, detail = Word.NOT_SERVED, f"the brokers do not advertise API key {', '.join(map(str, missing))}"
        else:
            row.check(run)
    except NotOffered as reason:
        word, detail = Word.NOT_OFFERED, str(reason)
    except Skipped as reason:
        word, detail = Word.SKIPPED, str(reason)
    except (RowFailed, KafkaException, QuorumlogError, OSError, subprocess.SubprocessError) as error:
        word, detail = Word.FAILED, f"{type(error).__name__}: {error}" if type(error) is not RowFailed else str(error)
    version = max(run.versions, default="")
    return Outcome(run.name, row.name, word, shortened(detail, 600), version, time.monotonic() - began)


def _produce(run: Run, *, compression: str = "none", idempotent: bool = False) -> None:
    topic = run.new_name("produce")
    run.harness.create(topic)
    options: dict[str, Any] = {"compression": compression, "idempotent": idempotent, "count": COUNT}
    (produced,) = run.complete("produce", topic=topic, **options).of("produced")
    expect("offsets", produced["offsets"], list(range(COUNT)))
    fields = ["offset", *produced["fields"]]
    found = run.harness.read(topic, COUNT)
    expect("number of records", len(found), COUNT)
    for number, one in enumerate(found):
        wanted = record(number)
        expect(f"record {number}", {name: one[name] for name in fields}, {name: wanted[name] for name in fields})
    headers = asyncio.run(run.harness.headers(topic))
    expect("codecs", {header.codec.name.lower() for header in headers}, {compression})
    expect("has a producer id", {header.producer_id >= 0 for header in headers}, {idempotent})


def _consume(run: Run) -> None:
    topic = run.new_name("consume")
    run.harness.create(topic)
    run.harness.produce(topic, range(COUNT))
    program = run.complete("consume", topic=topic, count=COUNT, **{"from": "beginning"})
    _expect_records(program, range(COUNT))
    program = run.complete("consume", topic=topic, count=COUNT - 20, **{"from": "timestamp"}, timestamp=BASE_MS + 20)
    _expect_records(program, range(20, COUNT))
    with run.start("consume", topic=topic, count=5, **{"from": "end"}) as program:
        program.until(lambda: bool(program.of("positioned")), "the consumer knows the end")
        run.harness.produce(topic, range(COUNT, COUNT + 5))
        program.finish()
    _expect_records(program, range(COUNT, COUNT + 5))


def _expect_records(program: Program, numbers: range) -> None:
    found = program.of("record")
    expect("number of records", len(found), len(numbers))
    for number, event in zip(numbers, found, strict=True):
        expect(f"record {number}", {**event, "event": None}, {**record(number), "event": None})


def _admin(run: Run) -> None:
    data, group = run.new_name("data"), run.new_name("group")
    run.harness.create(data)
    run.harness.produce(data, range(10))
    run.harness.commit(group, data, GROUP_OFFSET)
    program = run.complete("admin", topic=run.new_name("admin"), data=data, group=group)
    saw = {event["aspect"]: event["value"] for event in program.of("saw")}
    wanted = {**ADMIN, "brokers": run.brokers}
    for aspect, value in saw.items():
        expect(aspect, value, wanted[aspect])
    if missing := [aspect for aspect in wanted if aspect not in saw]:
        run.notes.append(f"the client does not offer: {', '.join(missing)}")


def _transactions(run: Run) -> None:
    """Two transactions commit, the second with offsets; one between them aborts."""
    topic, group, wanted = run.new_name("transactions"), run.new_name("group"), 10
    run.harness.create(topic)
    run.complete("transact", topic=topic, group=group, id=run.new_name("id"), count=wanted)
    committed = [one["value"] for one in run.harness.read(topic, 10 * wanted)]
    expect("committed", committed, [f"{word}-{n}" for word in ("committed", "last") for n in range(wanted)])
    everything = [one["value"] for one in run.harness.read(topic, 10 * wanted, isolation="read_uncommitted")]
    expect("records of all transactions", len(everything), 3 * wanted)
    expect("committed offset", run.harness.committed(group, topic, 1), [wanted])


def rows() -> Iterator[Row]:
    """Return the rows of every client."""
    from tests.clients.groups import GROUP_ROWS
    from tests.clients.shares import SHARE_ROWS

    yield Row("produce", _produce)
    yield Row("produce, idempotent", lambda run: _produce(run, idempotent=True), (22,))
    for codec in CODECS:
        yield Row(f"produce, {codec}", lambda run, codec=codec: _produce(run, compression=codec))  # type: ignore[misc]
    yield Row("consume", _consume)
    yield from GROUP_ROWS
    yield Row("admin", _admin)
    yield Row("transactions", _transactions, (22, 24, 25, 26, 28))
    yield from SHARE_ROWS
