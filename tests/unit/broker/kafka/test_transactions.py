"""Transaction requests: the calls that reach the coordinators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from broker.core.coordinator.group_requests import OffsetCommitResponse, PartitionResult, TxnOffsetCommit
from broker.core.coordinator.placement import partition_of
from broker.core.coordinator.transaction_requests import (
    AddPartitions,
    AddPartitionsResponse,
    TransactionRequest,
    TransactionSupport,
)
from broker.core.transactions import Marker
from broker.kafka.handlers import HANDLERS
from broker.kafka.transactions import NoTransactions
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka import codec
from quorumlog.wire.kafka.codec import Api
from tests.unit.broker.kafka.conftest import Served
from tests.unit.broker.kafka.fake import FakeReplicas, listening
from tests.unit.broker.kafka.raw import RawClient
from tests.unit.broker.kafka.test_groups import OFFSETS, PARTITIONS, FakeGroups

ADD = {"transactional_id": "billing", "producer_id": 7, "producer_epoch": 0, "group_id": "g"}


class Transactions(NoTransactions):
    """A coordinator that knows only the partitions of topics that exist."""

    def __init__(self, replicas: FakeReplicas) -> None:
        self.replicas = replicas
        self.asked: list[TransactionRequest] = []
        self.held: list[asyncio.Future[Any]] | None = (
            None  # if it is a list, it collects the calls, which then get no answer
        )
        self.stuck = asyncio.Event()  # a marker for the topic "stuck" waits for it
        self.marked: list[tuple[str, int]] = []
        self.committed: Any = KafkaCode.NOT_COORDINATOR  # the answer to a commit of offsets

    def call(self, partition: int, request: TransactionRequest, size: int) -> asyncio.Future[Any]:
        assert isinstance(request, AddPartitions)
        self.asked.append(request)
        known = (self.replicas.image.topic(topic) for topic, _ in request.partitions)
        errors = [KafkaCode.UNKNOWN_TOPIC_OR_PARTITION if each is None else KafkaCode.NONE for each in known]
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.held is None:
            future.set_result(AddPartitionsResponse(tuple(errors)))
        else:
            self.held.append(future)
        return future

    async def write_marker(self, topic: str, index: int, marker: Marker) -> int:
        self.marked.append((topic, index))
        if topic == "stuck":
            await self.stuck.wait()
            return int(KafkaCode.REQUEST_TIMED_OUT)
        return int(KafkaCode.NONE if marker.producer.producer_id == 7 else KafkaCode.INVALID_PRODUCER_EPOCH)

    async def commit_offsets(
        self, transactional_id: str, request: TxnOffsetCommit, support: TransactionSupport, size: int
    ) -> Any:
        return self.committed


class Bench:
    def __init__(self, client: RawClient, groups: FakeGroups, coordinator: Transactions) -> None:
        self.client = client
        self.groups = groups
        self.coordinator = coordinator

    async def add_offsets(self) -> KafkaCode:
        return KafkaCode((await self.client.ask(Api.ADD_OFFSETS_TO_TXN, 3, ADD)).error_code)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    replicas = FakeReplicas()
    groups, coordinator = FakeGroups(replicas), Transactions(replicas)
    async with (
        listening(replicas, groups=groups, transactions=coordinator) as server,
        RawClient(server.endpoints[0].port) as client,
    ):
        yield Bench(client, groups, coordinator)


async def test_add_offsets_to_txn_creates_the_offsets_topic(bench: Bench) -> None:
    """A producer may commit offsets for a group without consumers, whose coordinator nobody has looked up yet."""
    assert await bench.add_offsets() is KafkaCode.NONE
    assert bench.groups.prepared == 1
    (added,) = bench.coordinator.asked
    assert isinstance(added, AddPartitions)
    assert added.partitions == ((OFFSETS, partition_of("g", PARTITIONS)),)
    assert await bench.add_offsets() is KafkaCode.NONE
    assert bench.groups.prepared == 1


async def test_add_offsets_to_txn_fails_while_the_offsets_topic_cannot_be_created(bench: Bench) -> None:
    bench.groups.problem = "too few brokers"
    assert await bench.add_offsets() is KafkaCode.COORDINATOR_NOT_AVAILABLE


async def test_a_lost_connection_cancels_the_addition_of_its_offsets(bench: Bench) -> None:
    held = bench.coordinator.held = []
    bench.client.send(Api.ADD_OFFSETS_TO_TXN, 3, ADD)
    async with asyncio.timeout(10):
        while not held:  # noqa: ASYNC110 -- nothing reports it
            await asyncio.sleep(0.001)
        bench.client.writer.close()
        await asyncio.wait(held)
    assert [each.cancelled() for each in held] == [True]


@pytest.mark.parametrize("version", range(HANDLERS[Api.TXN_OFFSET_COMMIT].offered + 1))
async def test_old_txn_offset_commits_report_a_loading_coordinator_as_not_available(bench: Bench, version: int) -> None:
    """COORDINATOR_LOAD_IN_PROGRESS is fatal for producers before 2.1, which use the versions 0 and 1 (KAFKA-7296)."""
    expected = KafkaCode.COORDINATOR_LOAD_IN_PROGRESS if version >= 2 else KafkaCode.COORDINATOR_NOT_AVAILABLE
    loading = KafkaCode.COORDINATOR_LOAD_IN_PROGRESS
    partitions = [{"partition_index": 0, "committed_offset": 5}, {"partition_index": 1, "committed_offset": 5}]
    values = {**ADD, "topics": [{"name": "t", "partitions": partitions}]}
    results = (PartitionResult("t", 0, loading), PartitionResult("t", 1, KafkaCode.NONE))
    answers: tuple[Any, ...] = (loading, OffsetCommitResponse(results))
    for bench.coordinator.committed in answers:
        response = await bench.client.ask(Api.TXN_OFFSET_COMMIT, version, values)
        found = [KafkaCode(each.error_code) for each in response.topics[0].partitions]
        whole = bench.coordinator.committed is loading
        assert found == [expected, expected if whole else KafkaCode.NONE]


async def test_an_uncommitted_transaction_marker_does_not_delay_other_markers(bench: Bench) -> None:
    topics = [{"name": name, "partition_indexes": [0, 1]} for name in ("stuck", "t")]
    marker = {"producer_epoch": 1, "transaction_result": True, "coordinator_epoch": 3}
    markers = [{**marker, "producer_id": 7, "topics": topics}, {**marker, "producer_id": 8, "topics": topics[1:]}]
    bench.client.send(Api.WRITE_TXN_MARKERS, 1, {"markers": markers})
    wanted = [("stuck", 0), ("stuck", 1), ("t", 0), ("t", 1), ("t", 0), ("t", 1)]
    async with asyncio.timeout(10):
        while bench.coordinator.marked != wanted:  # noqa: ASYNC110 -- nothing reports it
            await asyncio.sleep(0.001)
    bench.coordinator.stuck.set()
    _, response = await bench.client.receive(Api.WRITE_TXN_MARKERS, 1)
    found = [
        (each.producer_id, topic.name, [(one.partition_index, int(one.error_code)) for one in topic.partitions])
        for each in response.markers
        for topic in each.topics
    ]
    assert found == [(7, "stuck", [(0, 7), (1, 7)]), (7, "t", [(0, 0), (1, 0)]), (8, "t", [(0, 47), (1, 47)])]


async def test_many_uncommitted_transaction_markers_do_not_delay_other_markers(bench: Bench) -> None:
    topics = [{"name": "stuck", "partition_indexes": list(range(250))}, {"name": "t", "partition_indexes": [0]}]
    marker = {"producer_id": 7, "producer_epoch": 1, "transaction_result": True, "coordinator_epoch": 3}
    bench.client.send(Api.WRITE_TXN_MARKERS, 1, {"markers": [{**marker, "topics": topics}]})
    async with asyncio.timeout(10):
        while ("t", 0) not in bench.coordinator.marked:  # noqa: ASYNC110 -- nothing reports it
            await asyncio.sleep(0.001)
    bench.coordinator.stuck.set()
    _, response = await bench.client.receive(Api.WRITE_TXN_MARKERS, 1)
    found = [len(topic.partitions) for each in response.markers for topic in each.topics]
    assert found == [250, 1]


class Sizes(NoTransactions):
    """Coordinators on three partitions, which refuse every call and add up the sizes of the calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.total = 0

    def led(self) -> Sequence[int]:
        return (0, 1, 2)

    def call(self, partition: int, request: Any, size: int) -> asyncio.Future[Any]:
        self.calls += 1
        self.total += size
        return super().call(partition, request, size)


def addition(number: int) -> dict[str, Any]:
    topics = [{"name": "t", "partitions": [0]}]
    return {"transactional_id": f"id-{number}", "producer_id": 7, "producer_epoch": 0, "topics": topics}


@pytest.mark.parametrize(
    ("api", "version", "values", "calls"),
    [
        (Api.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [f"id-{number}" for number in range(2_000)]}, 2_000),
        (Api.ADD_PARTITIONS_TO_TXN, 4, {"transactions": [addition(number) for number in range(2_000)]}, 2_000),
        (Api.LIST_TRANSACTIONS, 1, {"state_filters": ["x" * 1_000]}, 3),
        (Api.FIND_OUTCOME, 0, {"producer_id": 7, "producer_epoch": 0, "topic": "t" * 200, "partition": 0}, 3),
        (Api.LIST_GROUPS, 5, {"states_filter": ["x" * 1_000]}, 3),
    ],
    ids=lambda each: each.name if isinstance(each, Api) else "",
)
async def test_the_sizes_of_the_calls_of_a_request_add_up_to_the_size_of_the_request(
    api: Api, version: int, values: dict[str, Any], calls: int
) -> None:
    """A broker refuses calls if too many bytes wait, so each of 2,000 calls must not count as much as the request."""
    sizes = Sizes()
    async with (
        listening(FakeReplicas(), groups=sizes, transactions=sizes) as server,
        RawClient(server.endpoints[0].port) as client,
    ):
        await client.ask(api, version, values)
    size = len(codec.encode(codec.request(api, version, values)))
    assert sizes.calls == calls
    assert size // 2 < sizes.total <= size + 100


@pytest.mark.parametrize(
    ("api", "version", "values"),
    [
        (Api.ADD_PARTITIONS_TO_TXN, 4, {"transactions": []}),
        (Api.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": []}),
        (Api.LIST_TRANSACTIONS, 1, {}),
        (Api.FIND_OUTCOME, 0, {"producer_id": 7, "producer_epoch": 0, "topic": "t", "partition": 0}),
        (Api.LIST_GROUPS, 5, {}),
    ],
    ids=lambda each: each.name if isinstance(each, Api) else "",
)
async def test_a_request_that_causes_no_coordinator_calls_is_answered(
    served: Served, api: Api, version: int, values: dict[str, Any]
) -> None:
    """This broker coordinates nothing, or the request names nothing."""
    async with RawClient(served.port) as client:
        assert int(getattr(await client.ask(api, version, values), "error_code", 0)) == 0
