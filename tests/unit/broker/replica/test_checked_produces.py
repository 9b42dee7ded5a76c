"""A leader appends a large compressed batch once its records are checked, if it still leads then."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from broker.kafka.api import ProduceResult
from metadata.records import Config, ConfigScope
from quorumlog.wire.compression import Recompression
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import Codec, parse_header
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.replica.rig import TOPIC, Rig
from tests.unit.quorumlog.wire.framing import body_of, record, sealed

LARGE = make_batch([random.Random(1).randbytes(50_000)], attributes=1)


class HeldThread:
    """The loop's executor, which begins its work when the test allows it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._held: list[tuple[asyncio.Future[Any], Callable[[], Any]]] = []

    def run(self, _executor: object, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        self._held.append((future, lambda: function(*arguments)))
        return future

    async def release(self) -> None:
        while self._held:
            future, work = self._held.pop(0)
            future.set_result(work())
        await asyncio.sleep(0)  # the callbacks


def produce(rig: Rig, data: bytes, acks: int = 1) -> asyncio.Future[ProduceResult]:
    return rig.replicas.start_produce(TOPIC, 0, memoryview(data), acks, 60_000)


@pytest.fixture
async def thread(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HeldThread]:
    await rig.create((1, 2))
    loop = asyncio.get_running_loop()
    thread = HeldThread(loop)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "run_in_executor", thread.run)
        yield thread
    await thread.release()  # also the flush of an appended batch: closing the log waits for it


async def test_batch_is_appended_after_its_check_and_before_later_batches(rig: Rig, thread: HeldThread) -> None:
    large, small = produce(rig, LARGE), produce(rig, make_batch([b"small"]))
    assert rig.log.end_offset == 0
    await thread.release()
    assert rig.log.end_offset == 2
    assert rig.log.read(0, 1, 1)[61:] == LARGE[61:]
    assert not large.done()
    assert not small.done()
    assert rig.context.parked_produces == 2


async def test_batch_is_not_appended_by_a_leader_that_was_replaced_meanwhile(rig: Rig, thread: HeldThread) -> None:
    large = produce(rig, LARGE)
    await rig.change(leader=2)
    await thread.release()
    result = large.result()
    assert (result.error_code, result.leader_id) == (KafkaCode.NOT_LEADER_OR_FOLLOWER, 2)
    assert rig.log.end_offset == 0


async def test_an_invalid_batch_is_refused_with_the_index_of_its_invalid_record(rig: Rig, thread: HeldThread) -> None:
    rig.replicas.produces._checks._limits = replace(rig.context.limits, inline_check_bytes=0)
    bad = produce(rig, sealed(body_of(record(0), record(0)), 2, Codec.GZIP))
    await thread.release()
    result = bad.result()
    assert (result.error_code, result.record_errors[0].record) == (KafkaCode.INVALID_RECORD, 1)
    assert rig.log.end_offset == 0


async def test_produces_that_wait_for_a_check_count_against_the_limit_of_parked_produces(
    rig: Rig, thread: HeldThread
) -> None:
    rig.context.limits = replace(rig.context.limits, parked_produces=2)
    waiting = [produce(rig, LARGE), produce(rig, LARGE, acks=0)]
    for acks in (-1, 0):
        assert produce(rig, LARGE, acks).result().error_code == KafkaCode.REQUEST_TIMED_OUT
    await thread.release()
    assert rig.log.end_offset == 2
    assert waiting[1].result().error_code == KafkaCode.NONE


async def test_closing_answers_produces_that_wait_for_a_check(rig: Rig, thread: HeldThread) -> None:
    large = produce(rig, LARGE)
    log = rig.log
    rig.replicas.close()
    assert large.result().error_code == KafkaCode.NOT_LEADER_OR_FOLLOWER
    await thread.release()
    assert log.end_offset == 0


async def test_records_of_a_topic_with_log_append_time_get_the_time_of_their_append(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = (("min.insync.replicas", "1"), ("message.timestamp.type", "LogAppendTime"))
    rig.cluster.create(TOPIC, (1,), configs=configs)
    await rig.learn()
    monkeypatch.setattr(rig.context, "wall_ms", lambda: 1_700_000_000_000)
    result = await rig.produce(b"v")
    assert (result.error_code, result.log_append_time_ms) == (0, 1_700_000_000_000)
    repeated = make_batch([b"w"], producer=(5, 0, 0))
    first, again = [await rig.replicas.start_produce(TOPIC, 0, memoryview(repeated), -1, 60_000) for _ in range(2)]
    assert (first.log_append_time_ms, again.log_append_time_ms) == (1_700_000_000_000, -1)
    assert again.base_offset == first.base_offset


async def test_the_configs_of_a_topic_limit_timestamps_relative_to_the_wall_clock(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = (("min.insync.replicas", "1"), ("message.timestamp.before.max.ms", "1000"))
    rig.cluster.create(TOPIC, (1,), configs=configs)
    await rig.learn()
    batch = memoryview(make_batch([b"v"], timestamps=[500]))
    monkeypatch.setattr(rig.context, "wall_ms", lambda: 1_500)
    result = await rig.replicas.start_produce(TOPIC, 0, batch, -1, 60_000)
    assert (result.error_code, result.log_append_time_ms) == (0, -1)
    monkeypatch.setattr(rig.context, "wall_ms", lambda: 1_501)
    result = await rig.replicas.start_produce(TOPIC, 0, batch, -1, 60_000)
    assert result.error_code == KafkaCode.INVALID_TIMESTAMP
    assert [error.record for error in result.record_errors] == [0]
    assert rig.log.end_offset == 1


@pytest.mark.parametrize(
    ("configs", "wanted"),
    [
        ({}, None),
        ({"compression.type": "producer", "compression.zstd.level": "7"}, None),
        ({"compression.type": "uncompressed"}, Recompression(Codec.NONE)),
        ({"compression.type": "snappy"}, Recompression(Codec.SNAPPY)),
        ({"compression.type": "gzip"}, Recompression(Codec.GZIP, -1)),
        ({"compression.type": "lz4"}, Recompression(Codec.LZ4, 9)),
        ({"compression.type": "zstd"}, Recompression(Codec.ZSTD, 3)),
        ({"compression.type": "zstd", "compression.zstd.level": "-7"}, Recompression(Codec.ZSTD, -7)),
    ],
)
async def test_the_configs_of_a_topic_determine_the_codec_and_its_level(
    rig: Rig, configs: dict[str, str], wanted: Recompression | None
) -> None:
    rig.cluster.create(TOPIC, (1,), configs=(("min.insync.replicas", "1"), *configs.items()))
    await rig.learn()
    assert rig.log.config.recompression == wanted


async def test_a_change_of_codec_applies_to_the_next_batch_and_a_retry_stays_a_duplicate(rig: Rig) -> None:
    await rig.create((1,))
    first, second = (make_batch([b"v"], producer=(5, 0, sequence)) for sequence in (0, 1))

    async def send(data: bytes) -> ProduceResult:
        return await rig.replicas.start_produce(TOPIC, 0, memoryview(data), -1, 60_000)

    assert (await send(first)).base_offset == 0
    rig.cluster.apply([Config(ConfigScope.TOPIC, rig.cluster.image.topic_ids[TOPIC].hex, "compression.type", "lz4")])
    await rig.learn()
    assert (await send(second)).base_offset == 1
    assert [(await send(each)).base_offset for each in (second, first)] == [1, 0]
    assert rig.log.end_offset == 2
    assert rig.replicas.produces.waiting == 0
    assert rig.replicas.produces.recompressed_bytes == 2 * len(second) + len(first)
    assert [parse_header(rig.log.read(offset, 1 << 20, offset + 1)).codec for offset in (0, 1)] == [
        Codec.NONE,
        Codec.LZ4,
    ]
