"""Produces wait for the check of their records in order of arrival, for each producer of a partition."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec.structs import replace

from broker.kafka.api import ProduceResult
from broker.log import LogConfig, Refused
from broker.log.produced import Produced, check_produced
from broker.replica.limits import ReplicaLimits
from broker.replica.record_checks import Produce, RecordChecks
from quorumlog.wire.compression import Recompression
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import Codec
from tests.unit.broker.log.batches import make_batch, varint
from tests.unit.quorumlog.wire.framing import body_of, record, sealed

CONFIG = LogConfig()


class Threads:
    """The loop's executor: each check ends when the test allows it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.calls: list[tuple[asyncio.Future[Any], Callable[[], Any]]] = []

    def run(self, _executor: object, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        future = self.loop.create_future()
        self.calls.append((future, lambda: function(*arguments)))
        return future

    async def finish(self, index: int) -> None:
        future, call = self.calls[index]
        future.set_result(call())
        await asyncio.sleep(0)  # its callbacks


class Bench:
    def __init__(self, limits: ReplicaLimits, threads: Threads) -> None:
        self.appended: list[Produce] = []
        self.threads = threads
        self.timed_out: list[str] = []
        self.checks = RecordChecks(limits, self.appended.append, lambda produce: self.timed_out.append(produce.topic))

    def produce(self, topic: str, data: bytes | memoryview, config: LogConfig = CONFIG) -> Produce:
        future = asyncio.get_running_loop().create_future()
        produce = Produce(topic, 0, -1, 1_000, future, check_produced(data, config))
        if self.checks.admit(produce, config):
            self.appended.append(produce)
        return produce


LIMITS = ReplicaLimits(inline_check_bytes=500, inline_check_inflated_bytes=2_000, record_check_threads=2)


def batch(size: int = 10, codec: Codec = Codec.GZIP, delta: int = 0) -> bytes:
    value = bytes(size)
    return sealed(body_of(record(delta, value=varint(size) + value)), 1, codec)


GOOD, PLAIN, LARGE = batch(), batch(codec=Codec.NONE), batch(5_000)
TO_ZSTD = LogConfig(recompression=Recompression(Codec.ZSTD, 3))


def stored(produce: Produce) -> Produced:
    assert isinstance(produce.batches, Produced), produce.batches
    return produce.batches


@pytest.fixture
async def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    loop = asyncio.get_running_loop()
    threads = Threads(loop)
    monkeypatch.setattr(loop, "run_in_executor", threads.run)
    return threads


@pytest.fixture
def bench(threads: Threads) -> Bench:
    return Bench(LIMITS, threads)


async def test_small_and_uncompressed_batches_are_admitted_at_once(bench: Bench) -> None:
    one = "t"
    produces = [bench.produce(one, GOOD), bench.produce(one, PLAIN)]
    assert bench.appended == produces
    assert bench.threads.calls == []
    assert bench.checks.produces == 0


async def test_small_batch_with_bad_records_is_refused_at_once(bench: Bench) -> None:
    produce = bench.produce("t", batch(delta=3))
    assert bench.appended == [produce]
    assert isinstance(produce.batches, Refused)
    assert produce.batches.code == KafkaCode.INVALID_RECORD


async def test_large_batch_is_checked_in_a_thread_and_later_batches_wait_behind_it(bench: Bench) -> None:
    one, other = "t", "other"
    large, plain, small = bench.produce(one, LARGE), bench.produce(one, PLAIN), bench.produce(one, GOOD)
    elsewhere = bench.produce(other, PLAIN)
    assert bench.appended == [elsewhere]
    assert bench.checks.produces == 3
    await bench.threads.finish(0)
    assert bench.appended == [elsewhere, large, plain, small]
    assert all(isinstance(produce.batches, Produced) for produce in bench.appended)
    assert bench.checks.produces == 0


async def test_checks_that_end_out_of_order_are_appended_in_order(bench: Bench) -> None:
    one = "t"
    produces = [bench.produce(one, LARGE) for _ in range(3)]
    assert len(bench.threads.calls) == 2, "only two checks run at a time"
    await bench.threads.finish(1)
    assert bench.appended == []
    assert len(bench.threads.calls) == 3
    await bench.threads.finish(2)
    await bench.threads.finish(0)
    assert bench.appended == produces


async def test_large_batch_with_bad_records_is_refused_in_its_turn(bench: Bench) -> None:
    one = "t"
    bad, good = bench.produce(one, batch(5_000, delta=1)), bench.produce(one, GOOD)
    await bench.threads.finish(0)
    assert bench.appended == [bad, good]
    assert isinstance(bad.batches, Refused)
    assert isinstance(good.batches, Produced)


async def test_topic_without_validation_checks_no_compressed_records(bench: Bench) -> None:
    config = LogConfig(compressed_records_checked=False)
    produces = [bench.produce("t", data, config) for data in (batch(delta=3), LARGE)]
    assert bench.appended == produces
    assert all(isinstance(produce.batches, Produced) for produce in produces)


async def test_compression_type_producer_keeps_the_codecs_without_recompression(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.replica.record_checks.needs_recompression", None)  # not even called
    sent = [PLAIN, GOOD, batch(codec=Codec.ZSTD)]
    produces = [bench.produce("t", data) for data in sent]
    assert bench.appended == produces
    assert bench.threads.calls == []
    assert [bytes(stored(produce).data) for produce in produces] == sent


@pytest.mark.parametrize("data", [PLAIN, GOOD, LARGE], ids=["uncompressed", "small", "large"])
async def test_a_batch_of_another_codec_is_recompressed_in_a_thread(bench: Bench, data: bytes) -> None:
    produce, same = bench.produce("t", data, TO_ZSTD), bench.produce("other", batch(codec=Codec.ZSTD), TO_ZSTD)
    assert bench.appended == [same], "a batch that has the codec is not recompressed"
    assert len(bench.threads.calls) == 1
    await bench.threads.finish(0)
    assert bench.appended == [same, produce]
    assert stored(produce).headers[0].codec is Codec.ZSTD
    assert bench.checks.recompressed_bytes == 0


async def test_recompressed_and_other_batches_are_appended_in_order(bench: Bench) -> None:
    sent = [PLAIN, batch(codec=Codec.ZSTD), LARGE, GOOD, batch(5_000, codec=Codec.ZSTD)]
    produces = [bench.produce("t", data, TO_ZSTD) for data in sent]
    await bench.threads.finish(1)
    assert bench.appended == []
    assert bench.checks.recompressed_bytes == len(stored(produces[2]).data)
    for index in (2, 3, 0):
        await bench.threads.finish(index)
    assert bench.appended == produces
    assert [stored(produce).headers[0].codec for produce in produces] == [Codec.ZSTD] * 5
    assert bench.checks.recompressed_bytes == 0


async def test_a_batch_too_large_after_recompression_is_refused_in_its_turn(bench: Bench) -> None:
    config = replace(CONFIG, recompression=Recompression(Codec.NONE), message_size_max=len(LARGE))
    large, small = bench.produce("t", LARGE, config), bench.produce("t", PLAIN, config)
    await bench.threads.finish(0)
    assert bench.appended == [large, small]
    assert isinstance(large.batches, Refused)
    assert large.batches.code == KafkaCode.MESSAGE_TOO_LARGE


async def test_the_bytes_of_recompressed_batches_that_wait_are_limited(threads: Threads) -> None:
    limits = ReplicaLimits(record_check_threads=9, recompressed_waiting_bytes=12_000)
    bench = Bench(limits, threads)
    config = replace(CONFIG, recompression=Recompression(Codec.NONE))
    produces = [bench.produce("t", LARGE, config) for _ in range(5)]
    for index in (1, 2, 3):  # each grows to about 5,000 bytes, and waits for the first
        await threads.finish(index)
    assert 10_000 < bench.checks.recompressed_bytes < 12_000
    elsewhere = bench.produce("other", LARGE, config)
    await threads.finish(5)
    assert bench.appended == [elsewhere], "a batch that need not wait is not refused"
    await threads.finish(0)
    await threads.finish(4)
    assert bench.appended == [elsewhere, *produces]
    refused = [produce.batches.code for produce in produces if isinstance(produce.batches, Refused)]
    assert refused == [KafkaCode.REQUEST_TIMED_OUT]
    assert isinstance(produces[3].batches, Refused)
    assert bench.checks.recompressed_bytes == 0


async def test_recompressed_bytes_of_an_answered_produce_are_not_counted(bench: Bench) -> None:
    produces = [bench.produce("t", LARGE, TO_ZSTD) for _ in range(2)]
    await bench.threads.finish(1)
    assert bench.checks.recompressed_bytes > 0
    bench.checks.refuse_all(KafkaCode.NOT_LEADER_OR_FOLLOWER)
    await bench.threads.finish(0)
    assert bench.checks.recompressed_bytes == 0
    assert bench.appended == []
    assert produces[0].future.done()


async def test_compacted_topic_without_validation_checks_compressed_records_for_keys(bench: Bench) -> None:
    config = LogConfig(compressed_records_checked=False, compacts=True)
    produce = bench.produce("t", make_batch(attributes=Codec.GZIP), config)
    assert isinstance(produce.batches, Refused)
    assert produce.batches.code == KafkaCode.INVALID_RECORD


async def test_produce_after_its_timeout_is_refused_and_not_appended(threads: Threads) -> None:
    bench = Bench(ReplicaLimits(inline_check_bytes=0, record_check_threads=1, record_check_wait_ms=1), threads)
    one = "t"
    first, second = bench.produce(one, LARGE), bench.produce(one, LARGE)
    results = await asyncio.gather(first.future, second.future)
    assert {result.error_code for result in results} == {KafkaCode.REQUEST_TIMED_OUT}
    assert bench.timed_out == [one, one]
    assert bench.checks.produces == 0
    await threads.finish(0)
    assert bench.appended == []
    assert len(threads.calls) == 1, "the check of an answered produce is not started"


async def test_check_that_fails_is_answered_and_reported(bench: Bench) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    produce = bench.produce("t", LARGE)
    bench.threads.calls[0][0].set_exception(ValueError("a bug"))
    await asyncio.sleep(0)
    assert bench.appended == [produce]
    assert isinstance(produce.batches, Refused)
    assert produce.batches.code == KafkaCode.UNKNOWN_SERVER_ERROR
    assert isinstance(reported[0]["exception"], ValueError)


async def test_check_of_an_answered_produce_does_not_keep_its_batches_in_memory(threads: Threads) -> None:
    """While no thread is free, timeouts must free the batches that they answer, not only lower the count."""
    bench = Bench(ReplicaLimits(inline_check_bytes=0, record_check_threads=1, record_check_wait_ms=1), threads)
    running = bench.produce("running", LARGE)
    for end in ("timeout", "refusal"):
        frames = [memoryview(LARGE) for _ in range(5)]
        kept = [weakref.ref(frame) for frame in frames]
        futures = [bench.produce(f"t{number}", frame).future for number, frame in enumerate(frames)]
        frames.clear()
        assert all(frame() is not None for frame in kept)
        if end == "refusal":
            bench.checks.refuse_all(KafkaCode.NOT_LEADER_OR_FOLLOWER)
        await asyncio.wait(futures)
        await asyncio.sleep(0)  # the timers' handles
        assert [frame() for frame in kept] == [None] * 5, end
    await threads.finish(0)
    assert running.future.result().error_code == KafkaCode.REQUEST_TIMED_OUT
    assert len(threads.calls) == 1


async def test_disk_that_blocks_all_threads_of_the_loop_does_not_delay_a_check() -> None:
    loop = asyncio.get_running_loop()
    released = threading.Event()
    loop.set_default_executor(busy := ThreadPoolExecutor(1))
    busy.submit(released.wait, 60)
    appended: asyncio.Future[Produce] = loop.create_future()
    checks = RecordChecks(replace(LIMITS, record_check_wait_ms=10_000), appended.set_result, lambda _: None)
    produce = Produce("t", 0, -1, 1_000, loop.create_future(), check_produced(LARGE, CONFIG))
    try:
        assert not checks.admit(produce, CONFIG)
        await asyncio.wait((appended, produce.future), return_when=asyncio.FIRST_COMPLETED)
        assert appended.done(), produce.future.result().error_message
    finally:
        released.set()


@pytest.mark.parametrize("answered", [False, True])
async def test_append_that_fails_after_a_check_is_answered_and_reported(threads: Threads, answered: bool) -> None:
    reported: list[dict[str, Any]] = []
    threads.loop.set_exception_handler(lambda _, context: reported.append(context))

    def append(produce: Produce) -> None:
        if answered:
            produce.future.set_result(ProduceResult(int(KafkaCode.NONE)))
        raise AssertionError("offsets go back")

    checks = RecordChecks(LIMITS, append, lambda _: None)
    produces = [
        Produce("t", 0, -1, 1_000, threads.loop.create_future(), check_produced(data, CONFIG)) for data in (LARGE, GOOD)
    ]
    assert not any(checks.admit(produce, CONFIG) for produce in produces)
    await threads.finish(0)
    code = KafkaCode.NONE if answered else KafkaCode.UNKNOWN_SERVER_ERROR
    assert [produce.future.result().error_code for produce in produces] == [code, code]
    assert [str(context["exception"]) for context in reported] == ["offsets go back"] * 2
    assert checks.produces == 0
    assert not checks._queues


async def test_closing_answers_all_produces_that_wait(bench: Bench) -> None:
    one = "t"
    produces = [bench.produce(one, LARGE), bench.produce(one, PLAIN)]
    bench.checks.refuse_all(KafkaCode.NOT_LEADER_OR_FOLLOWER)
    assert {produce.future.result().error_code for produce in produces} == {KafkaCode.NOT_LEADER_OR_FOLLOWER}
    await bench.threads.finish(0)
    assert bench.appended == []
    assert bench.checks.produces == 0


async def test_a_refusal_during_the_check_is_not_replaced_by_its_result(bench: Bench) -> None:
    produce = bench.produce("t", LARGE)
    refusal = produce.batches = Refused(int(KafkaCode.NOT_ENOUGH_REPLICAS), "the transaction was not confirmed")
    await bench.threads.finish(0)
    assert [each.batches for each in bench.appended] == [refusal]
