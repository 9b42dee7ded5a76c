"""`KafkaConnection` and `Cluster` against the real listener, and against brokers that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from metadata.records import BrokerChange, Endpoint, PartitionChange, Reason
from quorumlog.client.cluster import Cluster
from quorumlog.client.kafka import CHECK_ADDRESSES, KafkaConnection
from quorumlog.errors import ClusterError
from quorumlog.wire.kafka import codec
from quorumlog.wire.kafka.codec import Api
from tests.unit.broker.kafka.conftest import Serve, Served


@asynccontextmanager
async def broken_broker(answer: Callable[[bytes, asyncio.StreamWriter], None]) -> AsyncIterator[int]:
    """Call `answer(frame, writer)` for each request; yield the port."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                answer(await reader.readexactly(size), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.close()


@asynccontextmanager
async def connected(port: int, in_flight_max: int = 5) -> AsyncIterator[KafkaConnection]:
    connection = KafkaConnection("127.0.0.1", port, in_flight_max=in_flight_max)
    await connection.connect(5)
    async with connection:
        yield connection


METADATA = {"topics": None}
SETTINGS = bytes.fromhex("00001804 0000000000 000400400000 000500400000 000600004000 fe0300000001 00000408")
"""The first bytes from a server of gRPC, which sends its settings without waiting for the client."""


# --- KafkaConnection ---


async def test_requests_are_pipelined_and_each_gets_its_own_answer(served: Served) -> None:
    served.replicas.create("a", 1)
    served.replicas.create("b", 2)
    async with connected(served.port) as connection:
        asked = [
            connection.ask(Api.METADATA, 12, {"topics": [{"name": name}]}, 5) for name in ("a", "b", "a", "nope", "b")
        ]
        replies = await asyncio.gather(*asked)
    assert [(reply.topics[0].name, len(reply.topics[0].partitions)) for reply in replies] == [
        ("a", 1),
        ("b", 2),
        ("a", 1),
        ("nope", 0),
        ("b", 2),
    ]


async def test_requests_above_the_in_flight_limit_are_all_answered(served: Served) -> None:
    async with connected(served.port, in_flight_max=2) as connection:
        replies = await asyncio.gather(*(connection.ask(Api.METADATA, 12, METADATA, 5) for _ in range(20)))
    assert {reply.cluster_id for reply in replies} == {"test-cluster"}


async def test_a_refused_connection_is_a_retriable_error(unused_tcp_port: int) -> None:
    connection = KafkaConnection("127.0.0.1", unused_tcp_port)
    with pytest.raises(ClusterError, match="cannot connect") as caught:
        await connection.connect(5)
    assert caught.value.retriable


async def test_a_request_fails_at_its_deadline_and_its_late_reply_is_dropped() -> None:
    held: list[tuple[bytes, asyncio.StreamWriter]] = []
    arrived = asyncio.Event()

    def answer(frame: bytes, writer: asyncio.StreamWriter) -> None:
        held.append((frame, writer))
        arrived.set()
        if len(held) == 2:
            for late, _ in held:
                body = codec.encode_response_body(Api.METADATA, 12, {"cluster_id": f"reply {len(late)}"})
                header = codec.parse_request_header(memoryview(late))
                writer.write(codec.response_prefix(header.correlation_id, len(body), True) + body)

    async with broken_broker(answer) as port, connected(port) as connection:
        with pytest.raises(ClusterError, match="no answer to METADATA") as caught:
            await connection.ask(Api.METADATA, 12, METADATA, 0.05)
        assert (caught.value.code, caught.value.retriable) == ("REQUEST_TIMED_OUT", True)
        assert connection.has_timed_out
        await asyncio.wait_for(arrived.wait(), 5)
        second = {"topics": [{"name": "longer"}]}
        reply = await connection.ask(Api.METADATA, 12, second, 5)
        assert reply.cluster_id == f"reply {len(held[1][0])}" != f"reply {len(held[0][0])}"


@pytest.mark.parametrize(
    ("reply", "what"),
    [
        (codec.response_prefix(999, 0, True), "reply to request 999"),
        ((0).to_bytes(4, "big"), "frame of 0 bytes"),
        ((2**31 - 1).to_bytes(4, "big"), "frame of 2147483647 bytes"),
        (b"\xff\xff\xff\xff", "frame of -1 bytes"),
        ((3).to_bytes(4, "big") + b"abc", "ends early"),
        (codec.response_prefix(1, 2, True) + b"xx", "malformed MetadataResponse"),
        (b"", "closed by the broker"),
    ],
)
async def test_a_protocol_error_fails_all_waiting_requests(reply: bytes, what: str) -> None:
    requests = 0

    def answer(_: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        requests += 1
        if requests == 2:
            writer.write(reply)
            if not reply:
                writer.close()

    async with broken_broker(answer) as port, connected(port) as connection:
        outcomes = await asyncio.gather(
            *(connection.ask(Api.METADATA, 12, METADATA, 5) for _ in range(2)), return_exceptions=True
        )
        assert any(what in str(outcome) for outcome in outcomes), outcomes
        assert not connection.is_open
        for outcome in outcomes:
            assert isinstance(outcome, ClusterError)
            assert (outcome.code, outcome.retriable) == ("BROKER_UNAVAILABLE", True)
        with pytest.raises(ClusterError, match=connection.peer):
            await connection.ask(Api.METADATA, 12, METADATA, 5)


@pytest.mark.parametrize(
    ("reply", "what"),
    [
        (b"", ": connection closed by the broker$"),
        (SETTINGS, "connection closed by the broker; the peer seems to speak HTTP/2, as gRPC does: this is a control"),
        (SETTINGS[:9], "the peer seems to speak HTTP/2"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "the peer seems to speak TLS, which is not supported"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the peer seems to speak HTTP: "),
        (codec.response_prefix(1, 0x17FF, True), ": connection closed by the broker$"),
    ],
)
async def test_an_address_that_is_not_for_kafka_clients_is_named(reply: bytes, what: str) -> None:
    def answer(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(reply)
        writer.close()

    async with broken_broker(answer) as port, connected(port) as connection:
        with pytest.raises(ClusterError, match=what) as failure:
            await connection.ask(Api.METADATA, 12, METADATA, 5)
        assert failure.value.next_step == CHECK_ADDRESSES
        assert failure.value.retriable
    async with broken_broker(answer) as port, Cluster(f"127.0.0.1:{port}") as cluster:
        with pytest.raises(ClusterError, match="no broker answers: ") as failure:
            await cluster.brokers(5)
        assert failure.value.next_step == CHECK_ADDRESSES


@pytest.mark.parametrize("end", [b"", SETTINGS])
async def test_a_broker_that_stops_after_an_answer_is_an_address_for_kafka_clients(end: bytes) -> None:
    """A part of an answer may look like another protocol."""
    requests = 0

    def answer(frame: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        requests += 1
        if requests > 1:
            writer.write(end)
            writer.close()
            return
        correlation_id = codec.parse_request_header(memoryview(frame)).correlation_id
        body = codec.encode_response_body(Api.METADATA, 12, {"cluster_id": "c"})
        writer.write(codec.response_prefix(correlation_id, len(body), True) + body)

    async with broken_broker(answer) as port, connected(port) as connection:
        await connection.ask(Api.METADATA, 12, METADATA, 5)
        with pytest.raises(ClusterError, match=r": connection closed by the broker$") as failure:
            await connection.ask(Api.METADATA, 12, METADATA, 5)
        assert failure.value.next_step == ""


async def test_closing_a_connection_fails_waiting_requests_and_may_be_repeated() -> None:
    async with broken_broker(lambda frame, writer: None) as port, connected(port) as connection:
        waiting = asyncio.ensure_future(connection.ask(Api.METADATA, 12, METADATA, 30))
        await asyncio.sleep(0)
        await connection.close()
        await connection.close()
        with pytest.raises(ClusterError, match="closed"):
            await waiting


# --- Cluster ---


async def test_concurrent_lookups_of_leaders_share_one_metadata_request_and_one_connection(served: Served) -> None:
    served.replicas.create("t", 3)
    async with Cluster(served.bootstrap) as cluster:
        first, *others = await asyncio.gather(*(cluster.leader("t", index, 5) for index in (0, 1, 2, 0)))
        assert all(other is first for other in others)
        assert cluster.cluster_id == "test-cluster"
    assert served.server.handlers.requests["metadata"] == 1
    assert not first.is_open


async def test_a_lost_leader_is_looked_up_again(serve: Serve) -> None:
    async with serve() as one, serve() as two:
        topic_id = one.replicas.create("t", 2)
        one.replicas.register(Endpoint("default", two.host, two.port), node_id=2)
        async with Cluster(one.bootstrap) as cluster:
            before = await cluster.leader("t", 0, 5)
            assert before.port == one.port
            offset = one.replicas.image.end_offset
            one.replicas.apply(PartitionChange(topic_id, 0, Reason.PREFERRED_ELECTION, offset, 0, leader=2))
            assert (await cluster.leader("t", 0, 5)) is before
            await cluster.leader_lost("t", 0, before)
            after = await cluster.leader("t", 0, 5)
            assert after.port == two.port
            assert before.is_open, "it still leads partition 1"
            assert (await cluster.leader("t", 1, 5)) is before


async def test_many_lost_leaders_cost_one_metadata_request(served: Served) -> None:
    served.replicas.create("t", 50)
    async with Cluster(served.bootstrap) as cluster:
        connection = await cluster.leader("t", 0, 5)
        for index in range(50):
            await cluster.leader_lost("t", index, connection)
        await asyncio.gather(*(cluster.leader("t", index, 5) for index in range(50)))
    assert served.server.handlers.requests["metadata"] == 2


async def test_a_leader_with_an_older_leader_epoch_is_ignored(serve: Serve) -> None:
    async with serve() as ahead, serve() as behind:
        for each, other in ((ahead, behind), (behind, ahead)):
            each.replicas.register(Endpoint("default", other.host, other.port), node_id=2)
        topic_id = ahead.replicas.create("t")
        assert behind.replicas.create("t") == topic_id
        offset = ahead.replicas.image.end_offset
        ahead.replicas.apply(PartitionChange(topic_id, 0, Reason.PREFERRED_ELECTION, offset, 0, leader=2))
        async with Cluster([ahead.bootstrap, behind.bootstrap]) as cluster:
            connection = await cluster.leader("t", 0, 5)
            assert connection.port == behind.port, "the broker that is ahead reports broker 2 as leader"
            await ahead.server.close()
            await cluster.leader_lost("t", 0, connection)
            with pytest.raises(ClusterError, match="cannot connect"):
                await cluster.leader("t", 0, 5)


async def test_the_error_for_a_missing_topic_or_partition_names_the_topic(served: Served) -> None:
    served.replicas.create("t", 1)
    async with Cluster(served.bootstrap) as cluster:
        for topic, index, code in (("nope", 0, "UNKNOWN_TOPIC_OR_PARTITION"), ("t", 1, "UNKNOWN_TOPIC_OR_PARTITION")):
            with pytest.raises(ClusterError, match=topic) as caught:
                await cluster.leader(topic, index, 5)
            assert (caught.value.code, caught.value.retriable) == (code, True)
        with pytest.raises(ClusterError) as caught:
            await cluster.leader("a/b", 0, 5)
        assert (caught.value.code, caught.value.retriable) == ("INVALID_TOPIC_EXCEPTION", False)


async def test_a_topic_created_later_and_a_leader_elected_later_are_found(served: Served) -> None:
    async with Cluster(served.bootstrap) as cluster:
        with pytest.raises(ClusterError):
            await cluster.leader("t", 0, 5)
        topic_id = served.replicas.create("t", 1, leader=-1)
        with pytest.raises(ClusterError) as caught:
            await cluster.leader("t", 0, 5)
        assert (caught.value.code, caught.value.retriable) == ("LEADER_NOT_AVAILABLE", True)
        offset = served.replicas.image.end_offset
        served.replicas.apply(PartitionChange(topic_id, 0, Reason.BROKER_UNFENCED, offset, 0, leader=1))
        assert (await cluster.leader("t", 0, 5)).port == served.port


async def test_partition_counts_are_not_cached(served: Served) -> None:
    served.replicas.create("t", 3)
    async with Cluster(served.bootstrap) as cluster:
        assert await cluster.partition_counts(["t", "nope"], 5) == {"t": 3}
        served.replicas.create("nope", 2)
        assert await cluster.partition_counts(["t", "nope"], 5) == {"t": 3, "nope": 2}
        served.replicas.delete("t")
        assert await cluster.partition_counts(None, 5) == {"nope": 2}
        assert await cluster.partition_counts([], 5) == {}


async def test_each_request_for_a_producer_id_returns_another_id(served: Served) -> None:
    async with Cluster(served.bootstrap) as cluster:
        first = await cluster.new_producer_id(5)
        second = await cluster.new_producer_id(5)
    assert first[0] != second[0]
    assert first[1] == second[1] == 0


async def test_bootstrap_skips_a_broker_that_cannot_be_reached(served: Served, unused_tcp_port: int) -> None:
    served.replicas.create("t", 1)
    async with Cluster(f"127.0.0.1:{unused_tcp_port},{served.bootstrap}") as cluster:
        assert (await cluster.leader("t", 0, 5)).port == served.port


async def test_unreachable_bootstrap_servers_are_reported_by_name_and_within_the_deadline(
    unused_tcp_port_factory: Callable[[], int],
) -> None:
    ports = [unused_tcp_port_factory(), unused_tcp_port_factory()]
    async with Cluster([f"127.0.0.1:{port}" for port in ports]) as cluster:
        with pytest.raises(ClusterError) as caught:
            await cluster.leader("t", 0, 5)
        assert all(str(port) in caught.value.message for port in ports)
        assert caught.value.retriable
        with pytest.raises(ClusterError) as caught:
            await cluster.partition_counts(["t"], 0.3)
        assert caught.value.code == "TIMED_OUT"


async def test_a_lookup_times_out_if_the_broker_does_not_answer() -> None:
    async with broken_broker(lambda frame, writer: None) as port, Cluster(f"127.0.0.1:{port}") as cluster:
        with pytest.raises(ClusterError) as caught:
            await cluster.leader("t", 0, 0.1)
        assert caught.value.code == "REQUEST_TIMED_OUT"


async def test_bootstrap_servers_of_two_clusters_are_refused(serve: Serve) -> None:
    async with serve() as one, serve() as two:
        one.replicas.create("t", 1)
        two.server.handlers._metadata._cluster_id = "another"
        async with Cluster([one.bootstrap, two.bootstrap]) as cluster:
            await cluster.leader("t", 0, 5)
            await one.server.close()
            with pytest.raises(ClusterError) as caught:
                await cluster.partition_counts(["t"], 5)
            assert (caught.value.code, caught.value.retriable) == ("INCONSISTENT_CLUSTER_ID", False)


async def test_a_fenced_broker_is_not_returned_as_leader(served: Served) -> None:
    served.replicas.create("t", 1)
    epoch = served.replicas.image.brokers[1].epoch
    served.replicas.apply(BrokerChange(1, epoch, fenced=True))
    async with Cluster(served.bootstrap) as cluster:
        with pytest.raises(ClusterError) as caught:
            await cluster.leader("t", 0, 5)
        assert caught.value.code == "LEADER_NOT_AVAILABLE"
        assert (await cluster.any_broker(5)).port == served.port


@pytest.mark.parametrize("text", ["", "host", "host:0", "host:70000", "0.0.0.0:9092", "a:1,,b:2"])
def test_invalid_bootstrap_servers_are_refused_immediately(text: str) -> None:
    with pytest.raises(ClusterError, match="bootstrap servers") as caught:
        Cluster(text)
    assert not caught.value.retriable
