"""Records round-trip through the codec; arbitrary bytes give records or one named error."""

from __future__ import annotations

from typing import TypeVar
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.codec import PARTITION_INDEX_MAX, decode, encode
from metadata.records import (
    BrokerChange,
    Config,
    ConfigScope,
    Endpoint,
    Feature,
    ForgetTopics,
    NoOp,
    Partition,
    PartitionChange,
    PreferredControllers,
    ProducerIds,
    Reason,
    Record,
    RegisterBroker,
    RemovePartition,
    RemoveTopic,
    RenewTopic,
    Replica,
    Topic,
    UnregisterBroker,
)
from quorumlog.errors import CorruptStoreError

T = TypeVar("T")

directories = st.uuids()
ids = st.uuids().filter(lambda value: value != UUID(int=0))
broker_ids = st.integers(0, 2**31 - 1)
leaders = st.integers(-1, 2**31 - 1)
offsets = st.integers(-1, 2**63 - 1)
counts = st.integers(0, 2**31 - 1)
indexes = st.integers(0, PARTITION_INDEX_MAX)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
id_lists = st.lists(broker_ids, max_size=4, unique=True).map(tuple)
replica_lists = st.lists(
    st.builds(Replica, broker_ids, directories), min_size=1, max_size=4, unique_by=lambda replica: replica.broker_id
).map(tuple)
endpoints = st.lists(st.builds(Endpoint, names, names, st.integers(1, 65535), names), max_size=3).map(tuple)


def maybe(strategy: st.SearchStrategy[T]) -> st.SearchStrategy[T | None]:
    return st.none() | strategy


records = st.one_of(
    st.builds(
        RegisterBroker,
        broker_id=broker_ids,
        incarnation_id=ids,
        endpoints=endpoints,
        directory_ids=st.lists(ids, max_size=3, unique=True).map(tuple),
        rack=maybe(names),
        previous_broker_epoch=offsets,
        feature_min=st.integers(1, 5),
        feature_max=st.integers(5, 9),
        fenced=st.booleans(),
    ),
    st.builds(
        BrokerChange,
        broker_id=broker_ids,
        broker_epoch=offsets,
        fenced=maybe(st.booleans()),
        in_controlled_shutdown=maybe(st.booleans()),
        directories_offline=st.lists(ids, max_size=3).map(tuple),
    ),
    st.builds(UnregisterBroker, broker_ids, offsets),
    st.builds(Topic, ids, names),
    st.builds(Partition, ids, indexes, replica_lists, id_lists, leaders, counts, counts, id_lists, id_lists, id_lists),
    st.builds(
        PartitionChange,
        topic_id=ids,
        index=indexes,
        reason=st.sampled_from(Reason),
        cause_offset=offsets,
        previous_offset=offsets,
        isr=maybe(id_lists),
        elr=maybe(id_lists),
        replicas=maybe(replica_lists),
        adding=maybe(id_lists),
        removing=maybe(id_lists),
        leader=maybe(leaders),
    ),
    st.builds(RemovePartition, ids, indexes),
    st.builds(RemoveTopic, ids),
    st.builds(RenewTopic, ids, ids).filter(lambda record: record.topic_id != record.new_topic_id),
    st.builds(Config, st.sampled_from(ConfigScope), st.text(max_size=10), names, maybe(st.text(max_size=10))),
    st.builds(ProducerIds, broker_ids, offsets, st.integers(1, 2**63 - 1)),
    st.builds(PreferredControllers, id_lists),
    st.builds(Feature, names, counts),
    st.builds(ForgetTopics, st.lists(names, min_size=1, max_size=3).map(tuple)),
    st.just(NoOp()),
)


@given(st.lists(records, min_size=1, max_size=8))
def test_every_record_round_trips(batch: list[Record]) -> None:
    payload = encode(batch)
    assert decode(payload, 5) == batch
    assert encode(decode(payload)) == payload


def decode_or_error(payload: bytes) -> list[Record] | str:
    """The records, or the text of the one error that is allowed."""
    try:
        return decode(payload, 1234)
    except CorruptStoreError as error:
        return error.message


def check_outcome(payload: bytes) -> None:
    outcome = decode_or_error(payload)
    if isinstance(outcome, str):
        assert outcome.startswith(("metadata batch at offset 12", "metadata record at offset 12"))
    else:
        assert decode(encode(outcome)) == outcome


@given(st.binary(max_size=300))
def test_arbitrary_bytes_decode_to_records_or_are_refused(payload: bytes) -> None:
    check_outcome(payload)


@given(st.lists(records, min_size=1, max_size=3), st.data())
def test_a_payload_with_a_changed_byte_decodes_to_records_or_is_refused(
    batch: list[Record], data: st.DataObject
) -> None:
    payload = bytearray(encode(batch))
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] ^= data.draw(st.integers(1, 255))
    check_outcome(bytes(payload))


@given(st.lists(records, min_size=1, max_size=4), st.integers(1, 3))
def test_a_truncated_payload_is_refused_or_read_as_fewer_records(batch: list[Record], cut: int) -> None:
    payload = encode(batch)[:-cut]
    outcome = decode_or_error(payload)
    assert isinstance(outcome, str) or len(outcome) < len(batch)


def test_a_batch_has_at_least_one_record_and_at_most_ten_thousand() -> None:
    with pytest.raises(AssertionError):
        encode([])
    with pytest.raises(AssertionError):
        encode([NoOp()] * 10_001)
    assert len(decode(encode([NoOp()] * 10_000))) == 10_000
