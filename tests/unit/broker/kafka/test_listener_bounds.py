"""The listener and broken or hostile clients: garbage, incomplete frames, and more bytes than it may hold."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.kafka import data as data_requests
from broker.kafka.api import FetchReply
from broker.kafka.connection import Connection
from broker.kafka.handlers import HANDLERS
from broker.kafka.limits import KafkaLimits
from quorumlog.wire.kafka import codec
from quorumlog.wire.kafka.codec import Api
from tests.unit.broker.kafka.conftest import Serve, Served
from tests.unit.broker.kafka.raw import RawClient, batch, opaque_batch
from tests.unit.broker.kafka.wellness import ALL, is_well, until
from tests.unit.broker.kafka.wellness import event_loop_policy as event_loop_policy

pytestmark = pytest.mark.filterwarnings('ignore:Overriding the "event_loop_policy"')

# --- protocol violations ---


def frame(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x00\x00\x00\x00", id="size 0"),
        pytest.param(b"\xff\xff\xff\xff", id="size -1"),
        pytest.param(b"\x7f\xff\xff\xff", id="size 2^31-1"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="http"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), id="tls"),
        pytest.param(frame(b"\x00"), id="one byte"),
        pytest.param(frame(b"\x00\x03\x00\x0c\x00\x00\x00\x01\x00\x7f"), id="client id longer than the frame"),
        pytest.param(frame(b"\x00\x03\x00\x0c\x00\x00\x00\x01\xff\xfe"), id="client id of length -2"),
        pytest.param(frame(b"\x00\x03\x00\x0c\x00\x00\x00\x01\x00\x01\xff\x00\x00\x00\x00"), id="client id not utf-8"),
        pytest.param(frame(b"\x7f\x00\x00\x00\x00\x00\x00\x01\xff\xff"), id="unknown api key"),
        pytest.param(frame(b"\xff\xff\x00\x00\x00\x00\x00\x01\xff\xff"), id="api key -1"),
        pytest.param(frame(b"\x00\x34\x00\x00\x00\x00\x00\x01\xff\xff\x00"), id="api key of a controller"),
        pytest.param(frame(b"\x00\x03\x00\x63\x00\x00\x00\x01\xff\xff"), id="unknown version"),
        pytest.param(frame(b"\x00\x03\xff\xff\x00\x00\x00\x01\xff\xff"), id="version -1"),
        pytest.param(frame(b"\x00\x00\x00\x0d\x00\x00\x00\x01\xff\xff\x00"), id="produce by topic id, not offered"),
        pytest.param(
            frame(b"\x00\x03\x00\x0c\x00\x00\x00\x01\xff\xff\x00\xff\xff\xff\xff\x7f"), id="array longer than the frame"
        ),
        pytest.param(frame(b"\x00\x00\x00\x09\x00\x00\x00\x01\xff\xff\x00\x00\x00\x01"), id="truncated produce"),
    ],
)
async def test_garbage_closes_only_its_own_connection(served: Served, data: bytes) -> None:
    async with RawClient(served.port) as client:
        client.writer.write(data)
        assert await client.closed()
    await is_well(served)
    assert served.server.budget.held == 0


async def test_the_log_names_a_request_that_is_not_served(served: Served) -> None:
    with capture_logs() as lines:
        async with RawClient(served.port) as client:
            client.writer.write(frame(b"\x00\x34\x00\x02\x00\x00\x00\x01\xff\xff\x00"))
            assert await client.closed()
    (line,) = [line for line in lines if line["event"] == "connection closed"]
    assert line["reason"] == "api key 52 (vote), version 2, is not served"


async def test_bytes_after_the_end_of_a_request_are_ignored(served: Served) -> None:
    async with RawClient(served.port) as client:  # sent by librdkafka to list all topics
        sent = client.send_body(Api.METADATA, 12, b"\x00\x00\x00\x00\x01\x00\x00")
        correlation_id, response = await client.receive(Api.METADATA, 12)
        assert (correlation_id, response.cluster_id) == (sent, "test-cluster")


async def test_requests_before_the_garbage_are_answered(served: Served) -> None:
    served.replicas.create("t", 1)
    served.replicas.acknowledge.clear()
    async with RawClient(served.port) as client:
        sent = client.send_produce("t", 0, batch())
        client.writer.write(b"\xff\xff\xff\xff")
        await until(lambda: len(served.replicas.produced) == 1)
        served.replicas.acknowledge_all()
        assert (await client.receive(Api.PRODUCE, 9))[0] == sent
        assert await client.closed()


async def test_random_bytes_never_stop_the_broker(served: Served) -> None:
    source = random.Random(5)
    for _ in range(60):
        async with RawClient(served.port) as client:
            garbage = source.randbytes(source.randrange(1, 400))
            if source.random() < 0.7:
                api, version = source.choice([(api, versions.offered) for api, versions in HANDLERS.items()])
                garbage = frame(api.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\1\xff\xff\0" + garbage)
            client.writer.write(garbage)
            client.writer.write_eof()
            await client.reader.read()
    await is_well(served)


async def test_a_large_request_other_than_produce_is_refused(serve: Serve) -> None:
    async with serve(KafkaLimits(small_request_max_bytes=10_000)) as served:
        served.replicas.create("t", 1)
        async with RawClient(served.port) as client:
            await client.produce("t", 0, bytes(20_000))
            client.send(Api.METADATA, 12, {"topics": [{"name": "x" * 20_000}]})
            assert await client.closed()
        await is_well(served)


async def test_a_bug_in_a_handler_closes_only_the_connection_of_its_request(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(served.replicas, "start_produce", broken)
    monkeypatch.setattr(served.replicas, "list_offset", broken)
    async with RawClient(served.port) as client:
        client.send_produce("t", 0, batch())
        assert await client.closed()
    topic = {"name": "t", "partitions": [{"partition_index": 0}]}
    async with RawClient(served.port) as client:
        client.send(Api.LIST_OFFSETS, 7, {"replica_id": -1, "topics": [topic]})
        assert await client.closed()
    await is_well(served)


async def test_no_reply_is_sent_after_a_request_that_failed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client expects replies in the order of its requests, so it would treat the next reply as the missing reply."""
    replies = 0
    produce_reply = data_requests._produce_reply

    def second_fails(*args: Any) -> Any:
        nonlocal replies
        replies += 1
        if replies == 2:
            raise ZeroDivisionError
        return produce_reply(*args)

    monkeypatch.setattr(data_requests, "_produce_reply", second_fails)
    served.replicas.create("t", 1)
    served.replicas.acknowledge.clear()
    async with RawClient(served.port) as client:
        first, *_ = [client.send_produce("t", 0, batch()) for _ in range(3)]
        await until(lambda: len(served.replicas.produced) == 3)
        served.replicas.acknowledge_all()
        assert (await client.receive(Api.PRODUCE, 9))[0] == first
        assert await client.closed()
    await is_well(served)
    assert served.server.budget.held == 0


async def test_a_failed_assertion_in_a_handler_is_reported_to_the_event_loop(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise AssertionError("offsets go back")

    seen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: seen.append(context["exception"]))
    monkeypatch.setattr(served.replicas, "start_produce", broken)
    async with RawClient(served.port) as client:
        client.send_produce("t", 0, batch())
        assert await client.closed()
    assert [str(error) for error in seen] == ["offsets go back"]


async def test_a_failed_assertion_after_the_connection_closed_is_reported_to_the_event_loop(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = asyncio.Event()

    async def broken(*_: object, **__: object) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise AssertionError("offsets go back")

    seen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: seen.append(context["exception"]))
    monkeypatch.setattr(served.replicas, "list_offset", broken)
    topic = {"name": "t", "partitions": [{"partition_index": 0}]}
    async with RawClient(served.port) as client:
        client.send(Api.LIST_OFFSETS, 7, {"replica_id": -1, "topics": [topic]})
        await began.wait()
    await until(lambda: bool(seen))
    assert [str(error) for error in seen] == ["offsets go back"]


# --- bounds ---


async def test_a_connection_above_the_limit_replaces_the_connection_that_was_idle_for_longest(serve: Serve) -> None:
    async with serve(KafkaLimits(connections_max=3)) as served:
        async with RawClient(served.port) as one, RawClient(served.port) as silent, RawClient(served.port) as three:
            for client in (one, three, one):
                await client.ask(Api.METADATA, 12, ALL)
            async with RawClient(served.port) as four:
                await four.ask(Api.METADATA, 12, ALL)
                assert await silent.closed(), "this client never sent a request"
                async with RawClient(served.port) as five:
                    await five.ask(Api.METADATA, 12, ALL)
                    assert await three.closed(), "this client has been idle for longest"
                    assert (await one.ask(Api.METADATA, 12, ALL)).cluster_id == "test-cluster"
        await until(lambda: served.server.counters.connections == 0)
        await is_well(served)
        assert served.server.counters.connections_evicted == 2
        assert served.server.counters.connections_refused == 0


async def test_a_connection_above_the_limit_is_refused_while_all_others_are_busy(serve: Serve) -> None:
    async with serve(KafkaLimits(connections_max=2)) as served:
        served.replicas.create("t", 1)
        served.replicas.acknowledge.clear()
        async with RawClient(served.port) as waiting, RawClient(served.port) as sending:
            sent = waiting.send_produce("t", 0, batch())
            await until(lambda: len(served.replicas.produced) == 1)
            large = codec.request_prefix(Api.PRODUCE, 9, 1, "raw", 2 << 20)
            sending.writer.write(large + bytes(1 << 20))
            await until(lambda: served.server.budget.held > 1 << 20)
            async with RawClient(served.port) as refused:
                assert await refused.closed()
            served.replicas.acknowledge_all()
            assert (await waiting.receive(Api.PRODUCE, 9))[0] == sent
        await until(lambda: served.server.counters.connections == 0)
        assert served.server.counters.connections_refused == 1
        await is_well(served)


LISTENERS = ("clients=127.0.0.1:0", "brokers=127.0.0.1:0")


@pytest.mark.parametrize("listeners", [LISTENERS, LISTENERS[1:]])
async def test_brokers_are_admitted_beyond_the_limit_of_clients_only_on_a_separate_listener(
    serve: Serve, listeners: tuple[str, ...]
) -> None:
    limits = KafkaLimits(connections_max=4)
    async with serve(limits, listeners, "brokers") as served, contextlib.AsyncExitStack() as connected:
        served.replicas.create("t", 1)
        served.replicas.acknowledge.clear()

        async def enters(port: int) -> bool:
            """Connect, and stay busy; return whether the connection was admitted."""
            client = await connected.enter_async_context(RawClient(port))
            client.send_produce("t", 0, batch())
            before = len(served.replicas.produced)
            await until(lambda: len(served.replicas.produced) > before or client.reader.at_eof())
            return len(served.replicas.produced) > before

        clients, brokers = served.server.endpoints[0].port, served.server.endpoints[-1].port
        has_own = len(listeners) > 1
        assert [await enters(clients) for _ in range(5)] == [True] * 4 + [False]
        assert [await enters(brokers) for _ in range(2)] == [has_own, False], (
            "brokers may use a quarter more connections"
        )
        assert not await enters(clients)
        served.replicas.acknowledge_all()


@pytest.mark.parametrize(
    ("listeners", "descriptors", "expected"),
    [(LISTENERS, 1_000, (400, 100)), (LISTENERS[1:], 1_000, (500, 0)), (LISTENERS, 2, (1, 0))],
)
async def test_all_connections_use_at_most_half_of_the_descriptors(
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    listeners: tuple[str, ...],
    descriptors: int,
    expected: tuple[int, int],
) -> None:
    monkeypatch.setattr("broker.kafka.listener.descriptor_limit", lambda: descriptors)
    async with serve(KafkaLimits(), listeners, "brokers") as served:
        limits = served.server.limits
        assert (limits.connections_max, limits.inter_broker_connections_max) == expected


async def test_the_broker_stops_reading_from_a_client_with_too_many_unanswered_requests(serve: Serve) -> None:
    async with serve(KafkaLimits(requests_per_connection_max=4)) as served:
        served.replicas.create("t", 1)
        served.replicas.acknowledge.clear()
        async with RawClient(served.port) as client:
            sent = [client.send_produce("t", 0, batch((b"x" * 50,) * 50)) for _ in range(200)]
            await until(lambda: len(served.replicas.produced) >= 4)
            await is_well(served)
            assert len(served.replicas.produced) < 100, "the other requests wait in the socket"
            served.replicas.acknowledge_all()
            for expected in sent:
                assert (await client.receive(Api.PRODUCE, 9))[0] == expected
        assert len(served.replicas.produced) == 200


async def test_held_bytes_are_limited_and_every_client_makes_progress(serve: Serve) -> None:
    mebibyte, clients, each = 1 << 20, 8, 4
    async with serve(KafkaLimits(held_max_bytes=3 * mebibyte)) as served:
        served.replicas.create("t", 1)
        served.replicas.acknowledge.clear()
        records = opaque_batch(1_000_000)

        async def send() -> None:
            async with RawClient(served.port) as client:
                for _ in range(each):
                    client.send_produce("t", 0, records)
                for _ in range(each):
                    answer = (await client.receive(Api.PRODUCE, 9))[1]
                    assert int(answer.responses[0].partition_responses[0].error_code) == 0

        senders = asyncio.gather(*(send() for _ in range(clients)))
        await until(lambda: served.server.budget.held > 3 * mebibyte)
        await is_well(served)
        assert served.server.budget.held <= (3 + clients + 1) * mebibyte < clients * each * 1_000_000
        served.replicas.acknowledge_all()
        await senders
        assert len(served.replicas.produced) == clients * each
        await until(lambda: served.server.budget.held == 0)


@pytest.mark.parametrize(
    "held_max_mebibytes", [1, 3]
)  # the limit is reached at the start of a frame, and while frames grow
async def test_frames_that_exceed_the_memory_limit_together_are_all_received(
    serve: Serve, held_max_mebibytes: int
) -> None:
    async with serve(KafkaLimits(held_max_bytes=held_max_mebibytes << 20)) as served:

        async def send() -> None:
            async with RawClient(served.port) as client:
                assert int((await client.produce("t", 0, bytes(5_000_000))).error_code) != 0

        await asyncio.gather(*(send() for _ in range(6)))
        assert len(served.replicas.produced) == 6
        assert served.server.budget.held == 0


def produce_of(records: bytes) -> Any:
    partition = {"index": 0, "records": records}
    topics = [{"name": "t", "partition_data": [partition]}]
    return codec.request(Api.PRODUCE, 9, {"acks": -1, "timeout": 5000, "topic_data": topics})


def begin_large_frame(client: RawClient, size: int, sent: int) -> None:
    """Announce a produce request of `size` bytes, and send the first `sent` bytes of it."""
    client.writer.write(size.to_bytes(4, "big") + b"\0\0\0\x09" + bytes(sent - 4))


async def test_incomplete_large_frames_do_not_delay_small_requests(serve: Serve) -> None:
    async with serve(KafkaLimits(held_max_bytes=8 << 20, connections_max=50, crowded_stall_ms=600_000)) as served:
        served.replicas.create("t", 1)
        async with contextlib.AsyncExitStack() as stalled:
            for _ in range(12):
                begin_large_frame(await stalled.enter_async_context(RawClient(served.port)), 50 << 20, 200_000)
            await until(lambda: served.server.budget.is_crowded and len(served.server._connections) == 12)
            async with RawClient(served.port) as client:
                for _ in range(50):
                    assert int((await client.produce("t", 0, opaque_batch(30_000))).error_code) == 0
        await until(lambda: served.server.budget.held == 0)


async def test_connections_with_stalled_frames_are_closed_when_other_clients_need_the_memory(serve: Serve) -> None:
    async with serve(KafkaLimits(held_max_bytes=8 << 20, crowded_stall_ms=100)) as served:
        served.replicas.create("t", 1)
        async with contextlib.AsyncExitStack() as stalled:
            clients = [await stalled.enter_async_context(RawClient(served.port)) for _ in range(12)]
            for client in clients:
                begin_large_frame(client, 50 << 20, 200_000)
            await until(lambda: served.server.budget.is_crowded)
            async with RawClient(served.port) as client:
                assert int((await client.produce("t", 0, opaque_batch(900_000))).error_code) == 0
            assert any([await client.closed() for client in clients[:3]])
        await until(lambda: served.server.budget.held == 0)


async def test_a_connection_is_closed_only_after_its_frame_has_stopped_growing(serve: Serve) -> None:
    limits = KafkaLimits(held_max_bytes=2 << 20, crowded_stall_ms=600_000, crowded_progress_bytes=1000)
    async with serve(limits) as served, RawClient(served.port) as elder, RawClient(served.port) as other:
        begin_large_frame(elder, 3 << 20, 100_000)
        await until(lambda: served.server.budget.held > 0)
        begin_large_frame(other, 3 << 20, 100_000)
        await until(lambda: served.server.budget.is_crowded)
        (growing,) = served.server.budget.growing()
        assert isinstance(growing, Connection)
        filled = growing.frame_filled
        growing.make_way(0)
        elder.writer.write(bytes(2000))
        await until(lambda: growing.frame_filled > filled)
        growing.make_way(700)
        growing.make_way(1200)
        assert len(served.server._connections) == 2, "500 s without progress are less than the limit of 600 s"
        growing.make_way(1300)
        assert await elder.closed()
        await until(lambda: not served.server.budget.is_crowded)


async def test_only_the_client_with_many_unanswered_bytes_is_held_back(serve: Serve) -> None:
    async with serve(KafkaLimits(held_max_bytes=4 << 20)) as served:
        served.replicas.create("t", 1)
        served.replicas.acknowledge.clear()
        async with RawClient(served.port) as greedy, RawClient(served.port) as modest:
            for _ in range(12):
                greedy.send_produce("t", 0, opaque_batch(1_000_000))
            await until(lambda: any(one._held_by_budget for one in served.server._connections))
            (held,) = [one for one in served.server._connections if one._held_by_budget]
            sent = [modest.send_produce("t", 0, opaque_batch(20_000)) for _ in range(20)]
            await until(lambda: len(served.replicas.produced) >= 20 + 3)
            assert [one for one in served.server._connections if one._held_by_budget] == [held]
            served.replicas.acknowledge_all()
            for expected in sent:
                assert (await modest.receive(Api.PRODUCE, 9))[0] == expected
            for _ in range(12):
                await greedy.receive(Api.PRODUCE, 9)
        await until(lambda: served.server.budget.held == 0)


async def test_replies_to_consumers_shrink_as_more_bytes_are_held(serve: Serve) -> None:
    async with serve(KafkaLimits(held_max_bytes=64 << 20)) as served:
        served.replicas.create("t", 1)
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 60 << 20}
        topics = [{"topic": "t", "partitions": [partition]}]
        values = {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 60 << 20, "topics": topics}

        async def given() -> int:
            async with RawClient(served.port) as consumer:
                response = await consumer.ask(Api.FETCH, 12, values)
            return len(response.responses[0].partitions[0].records)

        async with RawClient(served.port) as client:
            for _ in range(12):
                assert int((await client.produce("t", 0, opaque_batch(500_000))).error_code) == 0
            assert 3_500_000 < await given() <= 4 << 20
            served.replicas.acknowledge.clear()
            for _ in range(30):
                client.send_produce("t", 0, opaque_batch(900_000))
            await until(lambda: len(served.replicas.produced) == 12 + 30)
            assert 500_000 <= await given() <= 1 << 20
            served.replicas.acknowledge_all()
            for _ in range(30):
                await client.receive(Api.PRODUCE, 9)


async def test_replies_that_are_built_at_the_same_time_share_the_memory_limit(serve: Serve) -> None:
    """No reply is sent between the reads of fetches that arrive together, so unsent replies do not count yet."""
    async with serve(KafkaLimits(held_max_bytes=64 << 20)) as served, contextlib.AsyncExitStack() as connected:
        served.replicas.create("t", 1)
        clients = [await connected.enter_async_context(RawClient(served.port)) for _ in range(40)]
        for _ in range(12):
            assert int((await clients[0].produce("t", 0, opaque_batch(500_000))).error_code) == 0
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 60 << 20}
        topics = [{"topic": "t", "partitions": [partition]}]
        values = {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 60 << 20, "topics": topics}
        for client in clients:
            await client.ask(Api.METADATA, 12, ALL)
        for client in clients:
            client.send(Api.FETCH, 12, values)
        sizes = []
        for client in clients:
            _, response = await client.receive(Api.FETCH, 12)
            sizes.append(len(response.responses[0].partitions[0].records))
        assert sum(sizes) < 64 << 20 < 40 * max(sizes), "the replies do not all get as much memory as the first reply"
        assert min(sizes) >= 500_000, "each reply has at least one batch"


async def test_a_sent_reply_releases_its_memory(serve: Serve) -> None:
    async with serve() as served, RawClient(served.port) as client:
        served.replicas.create("t", 1)
        assert int((await client.produce("t", 0, opaque_batch(500_000))).error_code) == 0
        topics = [{"topic": "t", "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]}]
        values = {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "topics": topics}
        assert (await client.ask(Api.FETCH, 12, values)).responses[0].partitions[0].records
        await until(lambda: served.server.budget.held == 0)


async def test_a_reply_that_is_ready_after_its_connection_was_closed_takes_no_memory(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def late(*_: object) -> FetchReply:
        began.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        ended.set()
        return FetchReply(0)

    monkeypatch.setattr(served.replicas, "fetch", late)
    async with RawClient(served.port) as client:
        client.send(Api.FETCH, 12, {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20})
        await began.wait()
    await ended.wait()
    await asyncio.sleep(0)
    assert served.server.budget.held == 0


async def sweep_until_closed(served: Served, client: RawClient, seconds: float) -> None:
    """Make the sweep see that `seconds` have passed."""
    now = asyncio.get_running_loop().time()
    for connection in list(served.server._connections):
        connection.sweep(now)
        connection.sweep(now + seconds)
    assert await client.closed()


async def test_an_idle_connection_is_closed(serve: Serve) -> None:
    async with serve(KafkaLimits(idle_ms=60_000)) as served, RawClient(served.port) as client:
        await client.ask(Api.METADATA, 12, ALL)
        now = asyncio.get_running_loop().time()
        (connection,) = served.server._connections
        connection.sweep(now)
        connection.sweep(now + 59)
        assert (await client.ask(Api.METADATA, 12, ALL)).cluster_id == "test-cluster"
        await sweep_until_closed(served, client, 61)


@pytest.mark.parametrize("start", [b"\x00\x00", (50_000).to_bytes(4, "big") + b"\x00\x00", b"\x00\x10\x00\x00" + b"x"])
async def test_a_frame_that_stays_incomplete_closes_its_connection(serve: Serve, start: bytes) -> None:
    async with serve(KafkaLimits(frame_stall_ms=10_000)) as served, RawClient(served.port) as client:
        client.writer.write(start)
        await until(lambda: any(connection.mid_frame for connection in served.server._connections))
        await sweep_until_closed(served, client, 12)


async def test_a_frame_after_a_long_idle_time_gets_the_full_time_to_arrive(serve: Serve) -> None:
    async with serve(KafkaLimits(frame_stall_ms=10_000)) as served, RawClient(served.port) as client:
        now = asyncio.get_running_loop().time()
        (connection,) = served.server._connections
        connection.sweep(now)
        body = codec.encode(codec.request(Api.METADATA, 12, ALL))
        frame = codec.request_prefix(Api.METADATA, 12, 1, "raw", len(body)) + body
        client.writer.write(frame[:6])
        await until(lambda: connection.mid_frame)
        for seconds in (300, 309):
            connection.sweep(now + seconds)
            await asyncio.sleep(0)
        client.writer.write(frame[6:])
        _, response = await client.receive(Api.METADATA, 12)
        assert response.cluster_id == "test-cluster"
        client.writer.write(frame[:6])
        await until(lambda: connection.mid_frame)
        await sweep_until_closed(served, client, 12)


async def test_a_frame_gets_the_full_time_again_once_the_broker_resumes_reading(serve: Serve) -> None:
    limits = KafkaLimits(frame_stall_ms=10_000, requests_per_connection_max=2)
    async with serve(limits) as served, RawClient(served.port) as client:
        served.replicas.create("t", 1)
        served.replicas.acknowledge.clear()
        sent = [client.send_produce("t", 0, batch()) for _ in range(2)]
        body = codec.encode(produce_of(opaque_batch(100_000)))
        large = codec.request_prefix(Api.PRODUCE, 9, 3, "raw", len(body)) + body
        client.writer.write(large[:1000])
        await until(lambda: served.server.budget.held > 100_000)
        (connection,) = served.server._connections
        assert not connection._reading, "two requests wait for their acknowledgement"
        began = asyncio.get_running_loop().time()
        connection.sweep(began + 100)
        connection._frame_began = began - 100
        connection._progress_mark = (began - 100, connection.frame_filled)
        served.replicas.acknowledge_all()
        for expected in sent:
            assert (await client.receive(Api.PRODUCE, 9))[0] == expected
        assert connection._reading
        connection.sweep(began + 9)
        connection.make_way(began)
        client.writer.write(large[1000:])
        await until(lambda: len(served.replicas.produced) == 3)
        served.replicas.acknowledge_all()
        assert (await client.receive(Api.PRODUCE, 9))[0] == 3


async def test_a_slowly_reading_client_gets_time_to_send_the_rest_of_its_request(serve: Serve) -> None:
    # Much longer than the test takes on a busy machine, on which the listener's own sweeps happen meanwhile.
    limits = KafkaLimits(frame_stall_ms=600_000, write_stall_ms=3_600_000, write_buffer_bytes=64 << 10)
    async with serve(limits) as served, RawClient(served.port) as client:
        served.replicas.create("t" * 200, 5_000)
        body = codec.encode(codec.request(Api.METADATA, 12, ALL))
        request = codec.request_prefix(Api.METADATA, 12, 1, "raw", len(body)) + body
        client.writer.write(request * 60 + request[:6])
        (connection,) = served.server._connections
        await until(lambda: connection._full and connection.mid_frame)
        now = asyncio.get_running_loop().time()
        for seconds in (0, 1_800):
            connection.sweep(now + seconds)
        for _ in range(60):
            await client.receive(Api.METADATA, 12)
        client.writer.write(request[6:])
        assert (await client.receive(Api.METADATA, 12))[1].cluster_id == "test-cluster"


async def test_an_announced_frame_does_not_take_its_full_size_of_memory(served: Served) -> None:
    async with RawClient(served.port) as client:
        client.writer.write((90 << 20).to_bytes(4, "big") + b"\x00\x00\x00\x09")
        await until(lambda: served.server.budget.held > 0)
        assert served.server.budget.held <= 1 << 20


async def test_a_client_that_does_not_read_is_disconnected(serve: Serve) -> None:
    limits = KafkaLimits(write_stall_ms=5_000, write_buffer_bytes=64 << 10)
    async with serve(limits) as served, RawClient(served.port) as client:
        served.replicas.create("t" * 200, 5_000)
        body = codec.encode(codec.request(Api.METADATA, 12, ALL))
        client.writer.write((codec.request_prefix(Api.METADATA, 12, 1, "raw", len(body)) + body) * 60)
        await client.writer.drain()
        (connection,) = served.server._connections
        await until(lambda: connection._full)
        assert served.server.handlers.requests["metadata"] < 60, "the broker processes no further requests"
        now = asyncio.get_running_loop().time()
        connection.sweep(now)
        connection.sweep(now + 6)
        await until(lambda: served.server.counters.connections == 0)
        assert served.server.budget.held == 0


class SlowTransport(asyncio.Transport):
    """A transport that sends only what `drain` lets it send."""

    def __init__(self) -> None:
        super().__init__()
        self.unsent = 0
        self.is_closed = False

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.unsent += sum(len(each) for each in list_of_data)

    def drain(self, left: int) -> int:
        """Send all but `left` bytes; return how many were sent."""
        sent = self.unsent - left
        assert sent >= 0
        self.unsent = left
        return sent

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abort(self) -> None:
        self.is_closed = True


async def test_a_steadily_reading_client_stays_connected_although_some_replies_are_always_unsent(
    served: Served,
) -> None:
    """A sweep may find about as many unsent bytes each time, because further replies follow those that were read."""
    served.replicas.create("t" * 200, 5_000)
    limits = served.server.limits
    body = codec.encode(codec.request(Api.METADATA, 12, ALL))
    transport, connection = SlowTransport(), Connection(served.server, "default")
    connection.connection_made(transport)
    left, now = limits.write_stall_bytes // 2, asyncio.get_running_loop().time()
    for _ in range(2 * limits.write_stall_ms // limits.sweep_ms):
        connection.data_received(codec.request_prefix(Api.METADATA, 12, 1, "raw", len(body)) + body)
        assert transport.drain(left) >= limits.write_stall_bytes
        connection.sweep(now)
        now += limits.sweep_ms / 1000
    assert not transport.is_closed
    connection.sweep(now + limits.write_stall_ms / 1000)
    assert transport.is_closed, "the client no longer reads"
    connection.connection_lost(None)
