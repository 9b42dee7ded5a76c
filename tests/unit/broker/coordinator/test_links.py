"""Connections between brokers: one per broker, even if several calls connect at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from broker.coordinator import links
from broker.coordinator.limits import CoordinatorLimits
from broker.coordinator.links import BrokerLinks
from broker.coordinator.log_ends import LogEnds
from broker.coordinator.share_reminders import ShareReminders
from broker.coordinator.share_states import ShareStates
from broker.coordinator.shares import ShareGroups
from broker.coordinator.transactions import TransactionCoordinators
from broker.core.coordinator.share.states import ReadState, ShareKey, StateResponse, WriteState
from broker.core.coordinator.transaction_requests import TransactionSupport
from broker.core.fetch_session import PartitionKey
from broker.core.transactions import ProducerKey
from broker.kafka.api import ProduceResult
from metadata.image.internal_topics import SHARE_GROUP_STATE, TRANSACTION_STATE
from quorumlog.errors import ClusterError, RemoteProtocolError
from quorumlog.runtime.clock import Sources
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka import produce
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.kafka.produce import Buffer, ProducedPartition, ProduceRequest
from tests.unit.broker.coordinator.counting import WAIT_S
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.replica.rig import TOPIC, Rig


class Connections:
    """All connections that were requested.  They are established once `go_on` is set."""

    def __init__(self) -> None:
        self.made: list[Connection] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.address = ("a", 1)
        self.failing = 0
        """The number of further connections that close as soon as they are established."""
        self.answer: Any = None
        """The answer to a request; None: the connection on which it arrives."""
        self.produced: list[ProduceRequest] = []
        self.reply: bytes | None = None
        """The answer to a Produce; None: none arrives in time."""
        self.hanging = 0
        """The number of further connections on which no answer arrives."""

    @property
    def open(self) -> list[Connection]:
        return [each for each in self.made if each.is_open]

    def make(self, *address: Any, client_id: str) -> Connection:
        self.made.append(Connection(self))
        return self.made[-1]


class Connection:
    def __init__(self, all_of_them: Connections) -> None:
        self._all = all_of_them
        self.is_open = False
        self._hangs = all_of_them.hanging > 0
        all_of_them.hanging -= 1

    async def connect(self, timeout_s: float) -> None:
        await self._all.go_on.wait()
        await asyncio.sleep(0)
        self.is_open = self._all.failing <= 0
        self._all.failing -= 1

    async def ask(self, api: Api, version: int, values: Any, timeout_s: float) -> Any:
        if self._hangs:
            await asyncio.sleep(timeout_s)
            raise ClusterError(ApiError.REQUEST_TIMED_OUT, "no answer", retriable=True)
        return self._all.answer or self

    async def call(self, api: int, version: int, body: Sequence[Buffer], timeout_s: float) -> memoryview:
        assert api == Api.PRODUCE
        self._all.produced.append(produce.decode_request(memoryview(b"".join(body)), 0, version))
        if self._all.reply is None:
            raise ClusterError(ApiError.REQUEST_TIMED_OUT, "no answer", retriable=True)
        return memoryview(self._all.reply)

    @contextmanager
    def judged(self) -> Iterator[None]:
        try:
            yield
        except RemoteProtocolError as error:
            raise ClusterError(ApiError.BROKER_UNAVAILABLE, error.message, retriable=True) from error

    async def close(self) -> None:
        self.is_open = False


@pytest.fixture
async def connections(monkeypatch: pytest.MonkeyPatch) -> Connections:
    connections = Connections()
    monkeypatch.setattr(links, "KafkaConnection", connections.make)
    return connections


@pytest.fixture
def broker(connections: Connections) -> BrokerLinks:
    return BrokerLinks(lambda _: connections.address)


async def ask(broker: BrokerLinks) -> Any:
    return await broker.ask(2, Api.END_TXN, 5, {}, 5)


async def test_calls_share_a_connection(broker: BrokerLinks, connections: Connections) -> None:
    first = await ask(broker)
    assert list(await asyncio.gather(ask(broker), ask(broker))) == [first, first]


async def test_calls_that_reconnect_at_the_same_time_share_a_connection(
    broker: BrokerLinks, connections: Connections
) -> None:
    connections.failing = 1
    _, *used = await asyncio.gather(ask(broker), ask(broker), ask(broker))
    assert len(set(used)) == 1
    assert len(connections.made) == 2
    await broker.close()
    assert connections.open == []


async def test_a_connection_to_a_former_address_is_closed(broker: BrokerLinks, connections: Connections) -> None:
    await ask(broker)
    connections.address = ("b", 2)
    last = await ask(broker)
    assert connections.open == [last]


async def test_closing_the_links_also_closes_a_connection_that_is_still_being_established(
    broker: BrokerLinks, connections: Connections
) -> None:
    connections.go_on.clear()
    asking = asyncio.create_task(ask(broker))
    await asyncio.sleep(0)
    await broker.close()
    connections.go_on.set()
    await asking
    assert connections.open == []
    with pytest.raises(ClusterError):
        await ask(broker)


# -- connections that hang: the other broker may have lost its end of them


async def test_a_call_that_waits_for_another_calls_connection_fails_at_its_own_timeout(
    broker: BrokerLinks, connections: Connections
) -> None:
    connections.go_on.clear()
    connecting = asyncio.create_task(ask(broker))
    await asyncio.sleep(0)
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(ClusterError):
            await broker.ask(2, Api.END_TXN, 5, {}, 0.001)
    connections.go_on.set()
    used = await connecting
    assert connections.open == [used]


async def test_an_unanswered_request_to_a_share_coordinator_is_repeated_on_another_connection(
    rig: Rig, connections: Connections
) -> None:
    rig.cluster.start(2)
    rig.cluster.create(SHARE_GROUP_STATE, (2,))
    await rig.learn()
    connections.hanging = 1
    written = SimpleNamespace(error_code=0, error_message=None)
    connections.answer = SimpleNamespace(results=[SimpleNamespace(partitions=[written])])
    nothing: Any = None
    limits = CoordinatorLimits(share_state_timeout_ms=50, share_state_retry_ms=1)
    states = ShareStates(rig.role.table, nothing, nothing, lambda _: ("a", 1), Sources.real(), limits)
    request = WriteState(ShareKey("g", UUID(int=1), 0), 1, 1, 5, ())
    assert await states.ask(request) == StateResponse(KafkaCode.NONE)
    assert len(connections.made) == 2
    assert len(connections.open) == 1
    await states.close()


@pytest.mark.parametrize(("code", "state"), [(9_999, 0), (0, 9), (0, 1)])
async def test_an_unexpected_code_or_state_from_a_share_coordinator_becomes_unknown_server_error(
    rig: Rig, connections: Connections, code: int, state: int
) -> None:
    """A later release may send such an answer, and an exception would end this broker."""
    rig.cluster.start(2)
    rig.cluster.create(SHARE_GROUP_STATE, (2,))
    await rig.learn()
    batch = SimpleNamespace(first_offset=0, last_offset=1, delivery_state=state, delivery_count=1)
    read = SimpleNamespace(error_code=code, error_message=None, state_epoch=1, start_offset=0, state_batches=[batch])
    connections.answer = SimpleNamespace(results=[SimpleNamespace(partitions=[read])])
    nothing: Any = None
    states = ShareStates(rig.role.table, nothing, nothing, lambda _: ("a", 1), Sources.real())
    found = await states.ask(ReadState(ShareKey("g", UUID(int=1), 0), 1))
    assert (found.error, found.state) == (KafkaCode.UNKNOWN_SERVER_ERROR, None)
    await states.close()


async def test_an_unknown_code_from_a_transaction_coordinator_becomes_unknown_server_error(
    rig: Rig, connections: Connections
) -> None:
    """A later release may send such a code, and an exception would close the connection of the producer."""
    rig.cluster.start(2)
    rig.cluster.create(TRANSACTION_STATE, (2,))
    await rig.learn()
    refused = SimpleNamespace(partition_index=0, partition_error_code=9_999)
    topics = [SimpleNamespace(name=TOPIC, results_by_partition=[refused])]
    connections.answer = SimpleNamespace(results_by_transaction=[SimpleNamespace(topic_results=topics)])
    nothing: Any = None
    transactions = TransactionCoordinators(
        rig.role.table, nothing, nothing, nothing, nothing, lambda _: ("a", 1), Sources.real()
    )
    code = await transactions.verify("id", ProducerKey(7, 0), (TOPIC, 0), TransactionSupport.ABORTABLE)
    assert code is KafkaCode.UNKNOWN_SERVER_ERROR
    await transactions.close()


async def test_log_ends_are_requested_on_another_connection_after_a_leader_did_not_answer(
    rig: Rig, connections: Connections
) -> None:
    rig.cluster.start(2)
    await rig.create((2,))
    connections.hanging = 1
    end = SimpleNamespace(partition_index=0, error_code=0, offset=7)
    connections.answer = SimpleNamespace(topics=[SimpleNamespace(name=TOPIC, partitions=[end])])
    links = BrokerLinks(lambda _: ("a", 1))
    ends = LogEnds(rig.role.table, links, CoordinatorLimits(share_log_end_timeout_ms=10))
    topic = rig.cluster.image.topic(TOPIC)
    assert topic is not None
    key = PartitionKey(topic.topic_id, 0)
    assert await ends.of([key]) == {}
    assert await ends.of([key]) == {key: 7}
    await links.close()


async def test_closing_the_share_groups_closes_their_connections_for_log_ends(
    rig: Rig, connections: Connections
) -> None:
    rig.cluster.start(2)
    await rig.create((2,))
    end = SimpleNamespace(partition_index=0, error_code=0, offset=7)
    connections.answer = SimpleNamespace(topics=[SimpleNamespace(name=TOPIC, partitions=[end])])
    nothing: Any = None
    groups: Any = SimpleNamespace()
    produce = rig.replicas.start_produce
    shares = ShareGroups(rig.role.table, groups, nothing, nothing, lambda _: ("a", 1), Sources.real(), produce)
    topic = rig.cluster.image.topic(TOPIC)
    assert topic is not None
    key = PartitionKey(topic.topic_id, 0)
    assert await shares.log_ends([key]) == {key: 7}
    await shares.close()
    assert connections.open == []


async def test_a_leader_that_did_not_answer_is_reminded_on_another_connection(
    rig: Rig, connections: Connections
) -> None:
    connections.hanging = 1
    nothing: Any = None
    limits = CoordinatorLimits(share_state_timeout_ms=10)
    reminders = ShareReminders(nothing, rig.context.cluster, lambda _: ("a", 1), nothing, limits)
    for _ in range(2):
        await reminders._send(2, [ShareKey("g", UUID(int=1), 0)])
    assert len(connections.made) == 2
    await reminders.close()


# -- batches


async def append(broker: BrokerLinks) -> ProducedPartition:
    return await broker.produce(2, ("dlq.t", 1, bytearray(make_batch((b"letter",)))), 3_000, 5)


async def test_a_batch_is_sent_with_acks_all_and_the_leaders_answer_is_returned(
    broker: BrokerLinks, connections: Connections
) -> None:
    result = ProduceResult(int(KafkaCode.NOT_ENOUGH_REPLICAS), error_message="one of two")
    connections.reply = produce.encode_response(9, [("dlq.t", 1, result)])
    answer = await append(broker)
    assert (answer.error_code, answer.error_message) == (KafkaCode.NOT_ENOUGH_REPLICAS, "one of two")
    [request] = connections.produced
    assert (request.acks, request.timeout_ms, request.transactional_id) == (-1, 3_000, None)
    [partition] = request.partitions
    assert (partition.topic, partition.index) == ("dlq.t", 1)
    assert bytes(partition.records or b"") == make_batch((b"letter",))


@pytest.mark.parametrize("reply", [None, b"", produce.encode_response(9, [])], ids=["none", "damaged", "empty"])
async def test_a_connection_without_a_valid_answer_to_a_batch_is_closed(
    broker: BrokerLinks, connections: Connections, reply: bytes | None
) -> None:
    connections.reply = reply
    with pytest.raises(ClusterError):
        await append(broker)
    assert connections.open == []
