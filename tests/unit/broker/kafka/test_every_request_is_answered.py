"""Every served version of every API answers a well-formed request, whatever values its fields have.

Each field of each request is empty, null, duplicated or huge in turn; then many fields together, drawn from a seed.
The controller behind the listener is the production one, on a quorum of one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields
from random import Random
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from broker.core.coordinator.consumer.requests import Topic
from broker.core.coordinator.group_machine import GroupMachine
from broker.core.coordinator.group_requests import GroupLimits, GroupRequest
from broker.core.coordinator.scope_requests import InitScopeProducer, InitScopeProducerResponse
from broker.core.coordinator.transaction_machine import TransactionMachine
from broker.core.coordinator.transaction_requests import (
    InitProducer,
    InitProducerResponse,
    TransactionLimits,
    TransactionRequest,
)
from broker.kafka import api
from broker.kafka.handlers import HANDLERS
from broker.kafka.listener import KafkaServer
from broker.kafka.transactions import NoTransactions
from metadata.image import ClusterImage
from quorumlog.wire import rpcs
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka import codec
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.kafka.decoding import FieldShape
from tests.unit.broker.kafka.fake import FakeNode, FakeReplicas
from tests.unit.broker.kafka.raw import RawClient, batch
from tests.unit.metadata.controller.test_controller import new_topic, started
from tests.unit.metadata.fake_node import Plane

EVERY = [(which, version) for which, span in HANDLERS.items() for version in range(span.low, span.offered + 1)]
RANDOM_REQUESTS = 25
TOPIC = "t"
HUGE_TEXT = "h" * 30_000
HUGE_COUNT = 100
LARGEST = {
    "int8": 2**7 - 1,
    "int16": 2**15 - 1,
    "int32": 2**31 - 1,
    "int64": 2**63 - 1,
    "timedelta_i32": 2**31 - 1,
    "timedelta_i64": 2**45,
}
"""A longer `timedelta_i64` than this does not fit into a timedelta."""
Path = tuple[str, ...]


class PlaneReplicas(FakeReplicas):
    """A data plane in memory that follows the metadata of a real controller, and never parks a fetch."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        super().__init__()

    @property
    def image(self) -> ClusterImage:
        return self.plane.replay.image

    @image.setter
    def image(self, _: ClusterImage) -> None:
        """The base class begins with an empty image; ours is the controller's."""

    async def fetch(self, request: api.FetchPlan) -> api.FetchReply:
        results = tuple(self._read(item, request.max_bytes) for item in request.partitions)
        return api.FetchReply(0, 0, results)


class MachineGroups:
    """The coordinator of all groups: the production machine, whose records are committed at once.

    A call that waits for other clients gets the next tick, and then is refused.
    """

    def __init__(self, plane: Plane) -> None:
        limits = GroupLimits(session_timeout_min_ms=1, initial_rebalance_delay_ms=0)
        self._machine = GroupMachine(limits, self, Random(1), lambda: 1_700_000_000_000)
        self._plane = plane
        self._calls = 0
        self._now_ms = 0
        self._machine.loaded(0)

    def may_commit(self, topic: str, partition: int) -> bool:
        return self.has_partition(topic, partition)

    def has_partition(self, topic: str, partition: int) -> bool:
        found = self._plane.replay.image.topic(topic)
        return found is not None and found.partition(partition) is not None

    def origin(self, topic: str) -> UUID | None:
        found = self._plane.replay.image.topic(topic)
        return None if found is None else found.origin

    @property
    def version(self) -> int:
        return self._plane.replay.image.end_offset

    def topic(self, name: str) -> Topic | None:
        found = self._plane.replay.image.topic(name)
        return None if found is None else Topic(found.topic_id, len(found.partitions))

    def topic_name(self, topic_id: UUID) -> str | None:
        found = self._plane.replay.image.topics.get(topic_id)
        return None if found is None else found.name

    def matching(self, regex: str) -> Sequence[str]:
        return sorted(name for name in self._plane.replay.image.topic_ids if name == regex)

    async def prepare(self) -> str:
        return "there is no such topic"

    def partition(self, group: str) -> int:
        return 0

    def led(self) -> Sequence[int]:
        return (0,)

    def call(self, partition: int, request: GroupRequest, size: int) -> asyncio.Future[Any]:
        self._calls += 1
        steps = [self._machine.request(self._calls, request, self._now_ms)]
        deadline_ms = self._machine.deadline_ms
        assert deadline_ms is not None
        self._now_ms = max(self._now_ms, deadline_ms)
        steps.append(self._machine.tick(self._now_ms))
        self._machine.check()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answers = [each.response for step in steps for each in step.answers if each.call == self._calls]
        future.set_result(answers[0] if answers else KafkaCode.COORDINATOR_NOT_AVAILABLE)
        return future


class MachineTransactions(NoTransactions):
    """The coordinator of transactions on this broker, without a log."""

    def __init__(self, topics: MachineGroups) -> None:
        self._machine = TransactionMachine(TransactionLimits(), topics, lambda: 0)
        self._machine.loaded(0)

    def partition(self, transactional_id: str) -> int:
        return 0

    def led(self) -> Sequence[int]:
        return (0,)

    def call(self, partition: int, request: TransactionRequest, size: int) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        (answer,) = self._machine.request(1, request, 0).answers
        future.set_result(answer.response)
        return future

    async def init_producer(self, request: InitProducer, size: int) -> InitProducerResponse:
        return InitProducerResponse((await self.call(0, request, size)).error)

    async def init_scope_producer(self, request: InitScopeProducer, size: int) -> InitScopeProducerResponse | KafkaCode:
        found: InitScopeProducerResponse = await self.call(0, replace(request, fresh_id=7), size)
        return found


@asynccontextmanager
async def listening() -> AsyncIterator[int]:
    """Run a listener whose cluster has one broker and the topic `t`; yield its port."""
    plane = await started(1)
    plane.node.auto_commit = True
    assert (await plane.call(rpcs.CREATE_TOPICS, new_topic(TOPIC, 2, 1))).topics[0].result.error == "NONE"
    replicas = PlaneReplicas(plane)
    groups, node = MachineGroups(plane), FakeNode()
    server = KafkaServer(
        replicas,
        plane.call,
        ("127.0.0.1:0",),
        node=node,
        node_id=1,
        cluster_id="test-cluster",
        groups=groups,
        transactions=MachineTransactions(groups),
    )
    await server.start()
    try:
        yield server.endpoints[0].port
    finally:
        await server.close()


def plain(schema: Any, at: Path = ()) -> dict[str, Any]:
    """Return an ordinary request: one element in each array, the name of the existing topic in each text."""
    return {field.name: plain_field(FieldShape(field), (*at, field.name)) for field in fields(schema)}


def plain_field(shape: FieldShape, at: Path) -> Any:
    if shape.entity is not None:
        value: Any = plain(shape.entity, at)
    elif shape.kafka_type == "string":
        value = None if at[-1] == "transactional_id" and shape.nullable else TOPIC
    elif shape.kafka_type in ("bytes", "records"):
        value = batch()
    elif shape.kafka_type == "uuid":
        value = None
    else:
        value = -1 if at[-1] == "acks" else 0  # Produce with acks=0 is the one request without an answer
    return (value,) if shape.is_array else value


def odd_values(shape: FieldShape, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield values for the field other than `value`, each with a name."""
    if shape.nullable and shape.kafka_type != "uuid":
        yield "null", None
    if not shape.is_array:
        yield from odd_elements(shape)
        return
    yield "empty", ()
    yield "duplicated", (*value, *value)
    yield "huge", value * HUGE_COUNT
    for name, odd in odd_elements(shape):
        yield f"with {name} element", (*value, odd)


def odd_elements(shape: FieldShape) -> Iterator[tuple[str, Any]]:
    """Yield odd values of the field, or of one of its elements, each with a name."""
    match shape.kafka_type:
        case "string":
            yield from (("empty", ""), ("huge", HUGE_TEXT), ("odd", "\x00\u00e9\U0001f600"))
        case "bytes" | "records":
            yield from (("empty", b""), ("huge", bytes(20_000)))
        case "uuid":
            yield "huge", UUID(int=2**128 - 1)
        case "bool":
            yield "true", True
        case kind if kind in LARGEST:
            yield from (("negative", -1), ("huge", LARGEST[kind]), ("lowest", -LARGEST[kind] - 1))


def shapes(schema: Any, at: Path = ()) -> Iterator[tuple[Path, FieldShape]]:
    for field in fields(schema):
        shape = FieldShape(field)
        path = (*at, field.name)
        yield path, shape
        if shape.entity is not None:
            yield from shapes(shape.entity, path)


def replaced(values: Mapping[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """Return `values` with another value in the field at `path`, in each element of the arrays on the path."""
    name, *rest = path
    if not rest:
        return {**values, name: value}
    inner = values[name]
    if isinstance(inner, tuple):
        return {**values, name: tuple(replaced(each, tuple(rest), value) for each in inner)}
    return {**values, name: inner if inner is None else replaced(inner, tuple(rest), value)}


def value_at(values: Any, path: Path) -> Any:
    """Return the value at `path`, in the first element of each array on the path; a plain request has just one."""
    for name in path[:-1]:
        values = values[name][0] if isinstance(values[name], tuple) else values[name]
    return values[path[-1]]


def one_odd_field(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    values = plain(schema)
    yield "plain", values
    for path, shape in shapes(schema):
        for name, odd in odd_values(shape, value_at(values, path)):
            yield f"{'.'.join(path)} {name}", replaced(values, path, odd)


def many_odd_fields(schema: Any, random: Random) -> Iterator[tuple[str, dict[str, Any]]]:
    for number in range(RANDOM_REQUESTS):
        values, names, has_huge = plain(schema), [], False
        for path, shape in reversed(list(shapes(schema))):  # inner fields before the arrays that repeat them
            choices = [("plain", value := value_at(values, path)), *odd_values(shape, value)]
            if has_huge:  # one huge value is enough: 100 times 100 texts of 30 kB exceed the limit of a frame
                choices = [(name, odd) for name, odd in choices if "huge" not in name]
            name, odd = random.choice(choices)
            has_huge = has_huge or "huge" in name
            values = replaced(values, path, odd)
            names.append(f"{'.'.join(path)} {name}")
        yield f"random {number}: {', '.join(names)}", values


@pytest.mark.parametrize(("which", "version"), EVERY, ids=lambda value: str(getattr(value, "name", value)))
async def test_a_request_with_an_odd_field_is_answered(which: Api, version: int) -> None:
    schema = codec.request_schema(which, version)
    requests = [*one_odd_field(schema), *many_odd_fields(schema, Random(f"{which} {version}"))]
    async with listening() as port, RawClient(port) as client:
        for name, values in requests:
            sent = client.send(which, version, values)
            try:
                received, _ = await client.receive(which, version)
            except (ConnectionError, EOFError) as error:
                pytest.fail(f"{name}: the connection closed without an answer ({error!r})")
            assert received == sent, name


@pytest.mark.parametrize("version", range(HANDLERS[Api.DELETE_TOPICS].low, HANDLERS[Api.DELETE_TOPICS].offered + 1))
async def test_an_empty_topic_name_does_not_prevent_the_deletion_of_other_topics(version: int) -> None:
    names = ["", TOPIC, "unknown"]
    values = {"timeout": 5000, "topic_names": names, "topics": [{"name": name, "topic_id": None} for name in names]}
    async with listening() as port, RawClient(port) as client:
        answer = await client.ask(Api.DELETE_TOPICS, version, values)
        found = {topic.name: topic.error_code.name for topic in answer.responses}
        assert found == {"": "unknown_topic_or_partition", TOPIC: "none", "unknown": "unknown_topic_or_partition"}


async def test_delete_topics_refuses_a_topic_with_both_a_name_and_an_id_or_with_neither() -> None:
    topics = [{"name": "unknown", "topic_id": UUID(int=9)}, {"name": None, "topic_id": None}]
    async with listening() as port, RawClient(port) as client:
        image = (await client.ask(Api.METADATA, 12, {"topics": None})).topics
        (topic_id,) = [topic.topic_id for topic in image if topic.name == TOPIC]
        both = {"name": "another", "topic_id": topic_id}
        answer = await client.ask(Api.DELETE_TOPICS, 6, {"timeout": 5000, "topics": [*topics, both]})
        found = {(topic.name, topic.topic_id): topic.error_code.name for topic in answer.responses}
        assert found == {
            ("unknown", UUID(int=9)): "invalid_request",
            (None, None): "invalid_request",
            ("another", topic_id): "invalid_request",
        }
        answer = await client.ask(Api.DELETE_TOPICS, 6, {"timeout": 5000, "topics": [both, {"topic_id": topic_id}]})
        assert [topic.error_code.name for topic in answer.responses] == ["invalid_request", "none"]
