"""`quorumlog.client` against a real broker: groups with other clients, and commits."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Callable
from inspect import CO_COROUTINE
from itertools import count
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka.admin import AdminClient, NewTopic

from quorumlog.client import ClusterError, Consumer, Producer, Record, ShareConsumer
from tests.integration.kafka.conftest import Standalone

PARTITIONS = 4
_numbers = count()


@pytest.fixture
def topic(standalone: Standalone) -> str:
    name = f"own-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": standalone.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)
    return name


def member(standalone: Standalone, topic: str, **options: Any) -> Consumer:
    chosen = {"group": f"group-{topic}", "auto_offset_reset": "earliest", "heartbeat_interval_s": 0.3, **options}
    return Consumer(standalone.bootstrap, topics=[topic], **chosen)


async def fill(standalone: Standalone, topic: str, numbers: range) -> None:
    async with Producer(standalone.bootstrap) as producer:
        for number in numbers:
            await producer.send(topic, b"%d" % number, partition=number % PARTITIONS)


async def read(consumer: Consumer, number: int) -> list[Record]:
    found: list[Record] = []
    async with asyncio.timeout(60):
        while len(found) < number:
            record = await consumer.get(timeout_s=60)
            assert record is not None
            found.append(record)
    return found


def numbers(records: list[Record]) -> list[int]:
    return sorted(int(record.value or b"") for record in records)


async def until(condition: Callable[[], bool], *consumers: Consumer) -> None:
    """Wait, while the consumers look for records as their users would."""
    async with asyncio.timeout(60):
        while not condition():
            for consumer in consumers:
                assert await consumer.get(timeout_s=0.05) is None


async def test_a_group_continues_after_the_committed_offsets(standalone: Standalone, topic: str) -> None:
    await fill(standalone, topic, range(40))
    before = asyncio.all_tasks()
    async with member(standalone, topic, auto_commit=False) as first:
        done = await read(first, 17)
        committed = await first.commit()
        assert sum(committed.values()) == 17
        assert await first.committed() == committed
        await read(first, 5)  # not committed
    async with member(standalone, topic) as second:
        rest = await read(second, 23)
        assert numbers(done + rest) == list(range(40))
    async with member(standalone, topic) as third:  # the second one committed as it closed
        await fill(standalone, topic, range(40, 44))
        assert numbers(await read(third, 4)) == [40, 41, 42, 43]
    assert asyncio.all_tasks() == before


async def test_a_consumer_that_ends_with_an_error_commits_only_processed_records(
    standalone: Standalone, topic: str
) -> None:
    await fill(standalone, topic, range(0, 40, PARTITIONS))

    async def fail_at_the_fifth() -> None:
        async with member(standalone, topic) as consumer:
            handled = 0
            async for _ in consumer:
                handled += 1
                if handled == 5:
                    raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        await fail_at_the_fifth()
    async with member(standalone, topic) as consumer:
        assert (await read(consumer, 1))[0].offset == 4


@pytest.mark.parametrize("assignors", [["range"], ["roundrobin"], ["cooperative-sticky"]], ids=lambda each: each[0])
async def test_a_group_may_have_members_of_our_client_and_of_librdkafka(
    standalone: Standalone, topic: str, assignors: list[str]
) -> None:
    settings = {
        "bootstrap.servers": standalone.bootstrap, "group.id": f"group-{topic}", "auto.offset.reset": "earliest",
        "partition.assignment.strategy": assignors[0], "heartbeat.interval.ms": 300,
    }  # fmt: skip
    changes: list[tuple[str, list[tuple[str, int]]]] = []
    async with member(
        standalone,
        topic,
        assignors=assignors,
        on_assigned=lambda given: changes.append(("assigned", list(given))),
        on_revoked=lambda given: changes.append(("revoked", list(given))),
    ) as ours:
        await until(lambda: len(ours.assignment()) == PARTITIONS, ours)
        theirs = ConfluentConsumer(settings)
        theirs.subscribe([topic])
        got: list[int] = []
        polls = asyncio.ensure_future(poll(theirs, stop := asyncio.Event(), got))
        await until(lambda: len(ours.assignment()) == len(theirs.assignment()) == PARTITIONS // 2, ours)
        await fill(standalone, topic, range(40))
        mine = await read(ours, 20)
        async with asyncio.timeout(60):
            while len(got) < 20:  # noqa: ASYNC110  # another thread fills it
                await asyncio.sleep(0.05)
        assert sorted(numbers(mine) + got) == list(range(40))
        stop.set()
        await polls
        await until(lambda: len(ours.assignment()) == PARTITIONS, ours)
    revoked = next(given for kind, given in changes if kind == "revoked")
    assert len(revoked) == (PARTITIONS // 2 if assignors == ["cooperative-sticky"] else PARTITIONS)


async def poll(consumer: ConfluentConsumer, stop: asyncio.Event, got: list[int]) -> None:
    while not stop.is_set():
        message = await asyncio.to_thread(consumer.poll, 0.1)
        if message is not None and message.error() is None:
            got.append(int(message.value() or b""))
    await asyncio.to_thread(consumer.close)


async def test_a_member_keeps_its_partitions_for_max_poll_interval_and_then_loses_them(
    standalone: Standalone, topic: str
) -> None:
    await fill(standalone, topic, range(4))
    lost: list[Any] = []
    async with member(
        standalone, topic, session_timeout_s=6, max_poll_interval_s=8, on_lost=lost.append, auto_commit=False
    ) as consumer:
        await read(consumer, 1)
        await asyncio.sleep(7)  # longer than the session, shorter than the poll interval
        assert len(consumer.assignment()) == PARTITIONS
        await consumer.commit()
        async with asyncio.timeout(30):
            while not lost:  # noqa: ASYNC110  # the listener fills it
                await asyncio.sleep(0.1)
        assert consumer.assignment() == frozenset()
        with pytest.raises(ClusterError, match="not in the group"):
            await consumer.commit({(topic, 0): 1})
        assert len(await read(consumer, 3)) == 3, "it joins again at the next look for records"


async def test_manually_assigned_partitions_use_the_offsets_of_the_group(standalone: Standalone, topic: str) -> None:
    await fill(standalone, topic, range(8))
    for expected in (0, 1):
        async with Consumer(standalone.bootstrap, group=f"manual-{topic}", auto_offset_reset="earliest") as consumer:
            consumer.assign([(topic, 3)])
            assert (await read(consumer, 1))[0].offset == expected
            await consumer.commit()


async def test_a_member_with_an_invalid_session_gets_the_brokers_error(standalone: Standalone, topic: str) -> None:
    async with member(standalone, topic, session_timeout_s=0.5) as consumer:
        with pytest.raises(ClusterError) as failure:
            await consumer.get(timeout_s=30)
        assert failure.value.code == "INVALID_SESSION_TIMEOUT"


@pytest.mark.parametrize(("page", "blocks"), [("docs/client.md", 12), ("docs/shares.md", 2), ("docs/scopes.md", 1)])
async def test_the_code_blocks_of_a_documentation_page_run(standalone: Standalone, page: str, blocks: int) -> None:
    """Each block of a page, in order."""
    found = re.findall(
        r"^```python\n(.*?)^```", (Path(__file__).parents[3] / page).read_text(), re.MULTILINE | re.DOTALL
    )
    assert len(found) == blocks
    admin = AdminClient({"bootstrap.servers": standalone.bootstrap})
    admin.create_topics([NewTopic("mails", PARTITIONS, 1)])["mails"].exception(30)  # it may exist already
    names: dict[str, Any] = {"servers": standalone.bootstrap}
    async with asyncio.timeout(100):
        for block in found:
            code = compile(block, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            called = FunctionType(code, names)()
            if code.co_flags & CO_COROUTINE:
                await called


async def test_each_record_of_a_queue_is_accepted_once(standalone: Standalone, topic: str) -> None:
    """Two members work; records are released, rejected and renewed; then nothing is left."""
    first = ShareConsumer(standalone.bootstrap, f"queue-{topic}", topics=[topic], max_records=5)
    second = ShareConsumer(standalone.bootstrap, f"queue-{topic}", topics=[topic], max_records=5)
    accepted: list[bytes] = []
    async with asyncio.timeout(100), first, second:
        await begin(standalone, topic, first, second)

        async def work(consumer: ShareConsumer) -> None:
            while len(set(accepted)) < 40:
                record = await consumer.get(timeout_s=0.5)
                if record is None or record.value == b"begin":
                    if record is not None:
                        await consumer.reject(record)
                    continue
                assert record.value not in accepted, "an accepted record is not delivered again"
                if int(record.value or b"") % 5 == 0 and record.deliveries == 1:
                    await consumer.renew(record)
                    await consumer.release(record)
                else:
                    await consumer.accept(record)
                    accepted.append(record.value or b"")

        await asyncio.gather(work(first), work(second), fill(standalone, topic, range(40)))
        assert sorted(map(int, accepted)) == list(range(40))
    async with asyncio.timeout(60), ShareConsumer(standalone.bootstrap, f"queue-{topic}", topics=[topic]) as last:
        await fill(standalone, topic, range(99, 100))
        record = await last.get()
        while record is not None and record.value == b"begin":
            record = await last.get()
        assert record is not None
        assert (record.value, record.deliveries) == (b"99", 1)


async def begin(standalone: Standalone, topic: str, *consumers: ShareConsumer) -> None:
    """Produce until the group has begun in every partition, and complete these records."""
    begun: set[int] = set()
    async with Producer(standalone.bootstrap) as producer:
        while len(begun) < PARTITIONS:
            for index in set(range(PARTITIONS)) - begun:
                await producer.send(topic, b"begin", partition=index)
            for consumer in consumers:
                while (record := await consumer.get(timeout_s=0.3)) is not None:
                    await consumer.accept(record)
                    begun.add(record.partition)
