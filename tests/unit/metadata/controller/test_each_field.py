"""Every field of every request to the controller: absent, empty, negative, huge, repeated, or an unknown name.

The reply contains only errors of the contract, the image stays consistent, and the controller continues.  A request
that is refused as a whole changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from metadata.controller.service import METHODS
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import metadata_pb2
from tests.unit.metadata.builders import check_invariants
from tests.unit.metadata.controller.service_requests import REQUESTS
from tests.unit.metadata.controller.test_controller import new_topic, register, started
from tests.unit.metadata.fake_node import Plane, run, settle

HUGE = 70_000
Change = Callable[[Message], None]
WORDS = {error.name for error in ApiError}


def requests(plane: Plane) -> dict[AnyRpc, Message]:
    """Return a valid request of each method, with every field set."""
    image = plane.replay.image
    topic = image.topic("t")
    assert topic is not None
    partition = topic.partitions[0]
    assert partition is not None
    epoch = {broker_id: broker.epoch for broker_id, broker in image.brokers.items()}
    members = [pb.IsrMember(broker_id=each, broker_epoch=epoch[each]) for each in partition.isr]
    item = pb.AlterPartitionItem(
        topic_id=topic.topic_id.bytes,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        isr=members,
    )
    directory_id = image.brokers[1].directory_ids[0].bytes
    home = pb.AssignDirectoriesRequest.Item(topic_id=topic.topic_id.bytes, index=0, directory_id=directory_id)
    row = metadata_pb2.IntList(values=[1, 2])
    own: dict[AnyRpc, Message] = {
        rpcs.REGISTER_BROKER: register(1),
        rpcs.BROKER_HEARTBEAT: pb.BrokerHeartbeatRequest(
            broker_id=1, broker_epoch=epoch[1], applied_offset=image.end_offset, received_offset=image.end_offset,
            pending_changes=1, directories_offline=[directory_id],
        ),
        rpcs.ALTER_PARTITION: pb.AlterPartitionRequest(
            broker_id=partition.leader, broker_epoch=epoch[partition.leader], items=[item]
        ),
        rpcs.ASSIGN_DIRECTORIES: pb.AssignDirectoriesRequest(broker_id=1, broker_epoch=epoch[1], items=[home]),
        rpcs.ALLOCATE_PRODUCER_IDS: pb.AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch[1]),
        rpcs.CREATE_TOPICS: pb.CreateTopicsRequest(
            topics=[pb.NewTopic(name="n", assignment=[row], configs=[pb.ConfigEntry(key="retention.ms", value="5")])]
        ),
        rpcs.DELETE_TOPICS: pb.DeleteTopicsRequest(names=["t"], topic_ids=[topic.topic_id.bytes]),
        rpcs.ADD_PARTITIONS: pb.AddPartitionsRequest(topics=[pb.NewPartitions(topic="t", count=3, assignment=[row])]),
        rpcs.ALTER_REASSIGNMENTS: pb.AlterReassignmentsRequest(
            partitions=[pb.Reassignment(topic="t", index=0, replicas=[2, 3])]
        ),
    }  # fmt: skip
    return {**REQUESTS, **own}


def bad_values(field: FieldDescriptor) -> tuple[Any, ...]:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_INT32:
            return (0, -1, -(2**31), 2**31 - 1)
        case FieldDescriptor.CPPTYPE_INT64:
            return (0, -1, -(2**63), 2**63 - 1)
        case FieldDescriptor.CPPTYPE_UINT32:
            return (0, 2**32 - 1)
        case FieldDescriptor.CPPTYPE_UINT64:
            return (0, 2**64 - 1)
        case FieldDescriptor.CPPTYPE_ENUM:
            return (0, 99)
        case FieldDescriptor.CPPTYPE_BOOL:
            return (True, False)
        case FieldDescriptor.CPPTYPE_STRING:
            if field.type == FieldDescriptor.TYPE_BYTES:
                return (b"", b"x", bytes(16), b"\1" * 16, b"y" * HUGE)
            return ("", "no-such-thing", "..", "a\nb\0", "é", "z" * HUGE)
    raise AssertionError(field.full_name)


def is_many(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def changes_of(message: Message, where: str = "") -> Iterator[tuple[str, Change]]:
    """Yield (name, change) for each invalid variant of the message; `change` takes a copy of it."""
    for field in cast(Sequence[FieldDescriptor], message.DESCRIPTOR.fields):
        yield from changes_of_field(message, field, where)


def changes_of_field(message: Message, field: FieldDescriptor, where: str) -> Iterator[tuple[str, Change]]:
    name = field.name
    what = f"{where}{name}"

    def add(value: object, it: Message) -> None:
        getattr(it, name).append(value)

    def put(value: object, it: Message) -> None:
        setattr(it, name, value)

    def repeat_first(it: Message) -> None:
        add(getattr(it, name)[0], it)

    def change_inside(how: Change, it: Message) -> None:
        how(getattr(it, name)[0] if is_many(field) else getattr(it, name))

    yield f"{what} absent", lambda it: it.ClearField(name)
    present = len(getattr(message, name)) > 0 if is_many(field) else True
    if is_many(field) and present:
        yield f"{what} twice", repeat_first
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        if is_many(field):
            yield f"{what} empty", lambda it: getattr(it, name).add()
            inside = getattr(message, name)[0] if present else None
        else:
            inside = getattr(message, name) if name != "header" and message.HasField(name) else None
        if inside is not None:
            for inner, how in changes_of(inside, f"{what}."):
                yield inner, partial(change_inside, how)
        return
    for value in bad_values(field):
        shown = repr(value)[:12]
        if is_many(field):
            yield f"{what} + {shown}", partial(add, value)
        else:
            yield f"{what} = {shown}", partial(put, value)


async def prepared() -> Plane:
    plane = await started(1, 2, 3)
    plane.node.auto_commit = True
    assert (await plane.call(rpcs.CREATE_TOPICS, new_topic("t", 2, 2))).topics[0].result.error == "NONE"
    return plane


def words_of(reply: Message) -> set[str]:
    """Return the errors of the reply and of its items."""
    found = {rpcs.result_of(reply).error}
    for field, value in reply.ListFields():
        if is_many(field) and field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            found.update(each.result.error for each in value if hasattr(each, "result"))
    return found


@pytest.mark.parametrize("rpc", METHODS, ids=str)
def test_each_field_of_a_request_is_checked(rpc: AnyRpc) -> None:
    async def test() -> None:
        plane = await prepared()
        good = requests(plane)[rpc]
        for what, change in changes_of(good):
            request = type(good)()
            request.CopyFrom(good)
            change(request)
            before = plane.node.log_end_offset
            reply = await plane.call(rpc, request, 1_000)
            await settle()
            assert isinstance(reply, rpc.reply), what
            words = words_of(reply)
            assert words <= WORDS, (what, words - WORDS)
            if reply.result.error != "NONE":
                assert plane.node.log_end_offset == before, what
                assert reply.result.message, what
            assert plane.controller.active, what
            assert plane.controller.pending is not None
            assert plane.controller.pending.digest() == plane.replay.image.digest(), what
            check_invariants(plane.replay.image)
            if plane.node.log_end_offset != before:
                plane = await prepared()

    run(test())


def test_the_requests_without_changed_fields_are_valid() -> None:
    """Otherwise their fields would not be tested one by one."""

    async def test() -> None:
        for rpc in METHODS:
            plane = await prepared()
            reply = await plane.call(rpc, requests(plane)[rpc], 1_000)
            if rpc not in (
                rpcs.UNREGISTER_BROKER,
                rpcs.DELETE_TOPICS,
            ):  # the broker is in use; the topic is named twice, by name and by id
                assert words_of(reply) <= {"NONE", "ELECTION_NOT_NEEDED"}, (rpc, reply)

    run(test())
