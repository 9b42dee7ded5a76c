"""Batches that the codec refuses, and the offsets that its errors name."""

from __future__ import annotations

from typing import cast
from uuid import UUID

import pytest
from google.protobuf.message import Message

from metadata.codec import decode, encode, registration, registration_to_wire, uuid_from
from metadata.records import NoOp, PartitionChange, Reason, RegisterBroker, Topic
from quorumlog.errors import CorruptStoreError, RemoteProtocolError
from quorumlog.wire.v1 import metadata_pb2 as pb

TOPIC = UUID(int=7)


def payload_of(*records: pb.Record, version: int = 1) -> bytes:
    return pb.Records(version=version, records=records).SerializeToString()


def good() -> pb.Record:
    return pb.Record(topic=pb.Topic(topic_id=TOPIC.bytes, name="flights"))


def reason(number: int) -> pb.Reason:
    """Return any number as a reason, even a number that no reason has."""
    return cast(pb.Reason, number)


def scope(number: int) -> pb.Config.Scope:
    """Return any number as a scope, even a number that no scope has."""
    return cast(pb.Config.Scope, number)


def with_unknown_field(message: Message) -> bytes:
    """Return the message with field number 999, a varint, which no message of this project has."""
    return message.SerializeToString() + bytes([0xB8, 0x3E, 0x01])


def refused(payload: bytes, *words: str) -> None:
    with pytest.raises(CorruptStoreError) as caught:
        decode(payload, 100)
    for word in words:
        assert word in caught.value.message


def test_a_record_without_a_kind_is_refused_with_its_offset() -> None:
    refused(payload_of(good(), pb.Record()), "offset 101", "kind is unknown")


def test_a_batch_with_a_higher_or_a_missing_version_is_refused() -> None:
    refused(payload_of(good(), version=2), "offset 100", "version 2")
    refused(payload_of(good(), version=0), "version 0")


def test_a_batch_without_records_is_refused() -> None:
    refused(payload_of(), "0 records")
    refused(b"", "version 0")


def test_a_batch_with_too_many_records_is_refused() -> None:
    refused(payload_of(*[pb.Record(no_op=pb.NoOp())] * 10_001), "10001 records")


def test_unknown_fields_are_refused_at_every_depth() -> None:
    topic = pb.Topic.FromString(with_unknown_field(pb.Topic(topic_id=TOPIC.bytes, name="flights")))
    refused(payload_of(good(), pb.Record(topic=topic)), "offset 101", "does not know")
    replica = pb.Replica.FromString(with_unknown_field(pb.Replica(broker_id=1, directory_id=bytes(16))))
    partition = pb.Partition(topic_id=TOPIC.bytes, replicas=[replica])
    refused(payload_of(good(), good(), pb.Record(partition=partition)), "offset 102", "does not know")
    refused(with_unknown_field(pb.Records(version=1, records=[good()])), "offset 100", "does not know")
    refused(payload_of(pb.Record.FromString(with_unknown_field(pb.Record()))), "does not know")


@pytest.mark.parametrize(
    ("record", "word"),
    [
        (pb.Record(topic=pb.Topic(topic_id=b"short", name="t")), "5 bytes"),
        (pb.Record(topic=pb.Topic(topic_id=bytes(16), name="t")), "zeros"),
        (pb.Record(topic=pb.Topic(topic_id=TOPIC.bytes, name="")), "topic name"),
        (pb.Record(topic=pb.Topic(topic_id=TOPIC.bytes, name="x" * 250)), "topic name"),
        (pb.Record(partition_change=pb.PartitionChange(topic_id=TOPIC.bytes, reason=reason(0))), "reason 0"),
        (pb.Record(partition_change=pb.PartitionChange(topic_id=TOPIC.bytes, reason=reason(99))), "reason 99"),
        (pb.Record(partition_change=pb.PartitionChange(topic_id=TOPIC.bytes, reason=reason(1), index=-1)), "index -1"),
        (
            pb.Record(partition_change=pb.PartitionChange(topic_id=TOPIC.bytes, reason=reason(1), leader=-2)),
            "leader -2",
        ),
        (
            pb.Record(partition_change=pb.PartitionChange(topic_id=TOPIC.bytes, reason=reason(1), cause_offset=-2)),
            "cause",
        ),
        (
            pb.Record(
                partition_change=pb.PartitionChange(
                    topic_id=TOPIC.bytes, reason=reason(1), isr=pb.IntList(values=[1, 1])
                )
            ),
            "isr",
        ),
        (pb.Record(partition=pb.Partition(topic_id=TOPIC.bytes, index=2**31 - 1)), "index 2147483647"),
        (pb.Record(partition=pb.Partition(topic_id=TOPIC.bytes)), "replicas 0"),
        (
            pb.Record(
                partition=pb.Partition(
                    topic_id=TOPIC.bytes, replicas=[pb.Replica(broker_id=1, directory_id=bytes(16))] * 2
                )
            ),
            "repeated broker",
        ),
        (pb.Record(config=pb.Config(scope=scope(0), key="k", value="v")), "scope 0"),
        (pb.Record(config=pb.Config(scope=scope(9), key="k", value="v")), "scope 9"),
        (pb.Record(config=pb.Config(scope=scope(1), key="", value="v")), "config key"),
        (pb.Record(producer_ids=pb.ProducerIds(broker_id=1, next_producer_id=0)), "producer id"),
        (pb.Record(broker_change=pb.BrokerChange(broker_id=-4)), "broker id -4"),
        (pb.Record(feature=pb.Feature(name="f", level=-1)), "feature level"),
        (pb.Record(register_broker=pb.RegisterBroker(incarnation_id=b"")), "feature range"),
    ],
)
def test_invalid_values_are_refused_with_their_field_and_offset(record: pb.Record, word: str) -> None:
    refused(payload_of(good(), record), "offset 101", word)


def test_text_that_is_not_utf_8_is_refused() -> None:
    payload = bytearray(payload_of(good()))
    payload[payload.index(b"flights")] = 0xFF
    refused(bytes(payload), "offset 100")


def test_an_empty_isr_is_distinguished_from_an_absent_isr() -> None:
    empty = PartitionChange(TOPIC, 0, Reason.NEW_INCARNATION, 5, 6, isr=(), elr=())
    absent = PartitionChange(TOPIC, 0, Reason.NEW_INCARNATION, 5, 6)
    assert decode(encode([empty, absent])) == [empty, absent]


def test_equal_topic_ids_in_a_batch_become_one_object() -> None:
    first, second = decode(encode([Topic(TOPIC, "a"), PartitionChange(TOPIC, 0, Reason.ISR_SHRINK, -1, 1, isr=(1,))]))
    assert isinstance(first, Topic)
    assert isinstance(second, PartitionChange)
    assert first.topic_id is second.topic_id


def test_a_registration_from_a_peer_is_checked() -> None:
    record = RegisterBroker(3, UUID(int=9), (), (UUID(int=4),), rack="a")
    wire = registration_to_wire(record)
    assert registration(wire) == record
    with pytest.raises(RemoteProtocolError, match="does not know"):
        registration(pb.RegisterBroker.FromString(with_unknown_field(wire)))
    wire.incarnation_id = b"x"
    with pytest.raises(RemoteProtocolError, match="incarnation id of 1 bytes"):
        registration(wire)


def test_a_uuid_from_a_peer_is_checked() -> None:
    assert uuid_from(TOPIC.bytes, "topic id") == TOPIC
    with pytest.raises(RemoteProtocolError, match="topic id: 3 bytes"):
        uuid_from(b"abc", "topic id")


def test_no_op_records_are_decoded_as_they_were_encoded() -> None:
    assert decode(encode([NoOp(), NoOp()])) == [NoOp(), NoOp()]
