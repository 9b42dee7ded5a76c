"""Converts records to protobuf and back, for data batches of the metadata log and for messages in requests.

Decoding skips nothing.  A record is unknown if it has an unset oneof, an unknown field at any depth, an enum number
without a name, or a higher version.  If a node skipped it, the node's image would permanently differ from those of
other nodes.  So an unknown record is an error that names the offset, and the process ends.  Stored records are checked
like input from outside: lengths of ids, ranges of numbers, sizes of lists.

To find unknown fields without visiting every field, the codec discards them and compares the sizes of the message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import UUID

from google.protobuf.message import DecodeError, Message

from metadata.records import (
    METADATA_VERSION,
    METADATA_VERSION_MAX,
    NO_LEADER,
    NO_OFFSET,
    RECORDS_PER_BATCH_MAX,
    UNASSIGNED,
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
from quorumlog.errors import CorruptStoreError, RemoteProtocolError
from quorumlog.wire.v1 import metadata_pb2 as pb

VERSION = 1
PARTITION_INDEX_MAX = 999_999
LIST_MAX = 32_767
NAME_MAX = 249
GROUP_ID_MAX = 1_024
TEXT_MAX = 65_535

_ADVICE = "this release may be too old for this log, or the log is damaged"

_REASONS = {reason.value: reason for reason in Reason}
_SCOPES = {scope.value: scope for scope in ConfigScope}


class _MalformedError(ValueError):
    """The problem of one message, without the place of the message, which the public functions add."""


# Public


def encode(records: Sequence[Record]) -> bytes:
    """Return the payload of one batch.  `records` holds 1 to `RECORDS_PER_BATCH_MAX` records."""
    assert 0 < len(records) <= RECORDS_PER_BATCH_MAX, f"a batch of {len(records)} records"
    return pb.Records(
        version=VERSION, records=[_ENCODERS[type(record)](record) for record in records]
    ).SerializeToString(deterministic=True)


def decode(payload: bytes, base_offset: int = 0) -> list[Record]:
    """Return the records of one batch, whose first has offset `base_offset`.

    Raises:
        CorruptStoreError: the payload is not in the format of this version; the error names offset and problem.
    """
    message = pb.Records()
    try:
        message.ParseFromString(payload)
    except DecodeError as error:
        raise CorruptStoreError(f"metadata batch at offset {base_offset}: not a batch of records: {error}") from error
    if message.version != VERSION:
        raise CorruptStoreError(
            f"metadata batch at offset {base_offset}: version {message.version}, this release knows {VERSION}",
            "upgrade this node" if message.version > VERSION else "",
        )
    if not 0 < len(message.records) <= RECORDS_PER_BATCH_MAX:
        count = f"{len(message.records)} records; 1 to {RECORDS_PER_BATCH_MAX} are permitted"
        raise CorruptStoreError(f"metadata batch at offset {base_offset}: {count}")
    if _has_unknown_fields(message):
        records = pb.Records.FromString(payload).records
        known = next((at for at, record in enumerate(records) if _has_unknown_fields(record)), 0)
        raise CorruptStoreError(
            f"metadata record at offset {base_offset + known}: it has a field that this release does not know", _ADVICE
        )
    reader = _Reader()
    found: list[Record] = []
    try:
        for record in message.records:
            found.append(reader.record(record))
    except _MalformedError as error:
        raise CorruptStoreError(f"metadata record at offset {base_offset + len(found)}: {error}", _ADVICE) from error
    return found


def registration(message: pb.RegisterBroker) -> RegisterBroker:
    """Return the registration that a peer sent.

    Raises:
        RemoteProtocolError: no correct peer sends such a registration.
    """
    copy = pb.RegisterBroker()
    copy.CopyFrom(message)
    try:
        if _has_unknown_fields(copy):
            raise _MalformedError("it has a field that this release does not know")
        return _Reader().register_broker(message)
    except _MalformedError as error:
        raise RemoteProtocolError(f"registration: {error}") from error


def uuid_from(value: bytes, what: str) -> UUID:
    """Return the UUID that a peer sent.

    Raises:
        RemoteProtocolError: `value` does not have 16 bytes.
    """
    if len(value) != 16:
        raise RemoteProtocolError(f"{what}: {len(value)} bytes, not 16")
    return UUID(bytes=value)


def registration_to_wire(record: RegisterBroker) -> pb.RegisterBroker:
    return pb.RegisterBroker(
        broker_id=record.broker_id,
        incarnation_id=record.incarnation_id.bytes,
        endpoints=[endpoint_to_wire(endpoint) for endpoint in record.endpoints],
        rack=record.rack,
        directory_ids=[directory.bytes for directory in record.directory_ids],
        previous_broker_epoch=record.previous_broker_epoch,
        feature_min=record.feature_min,
        feature_max=record.feature_max,
        fenced=record.fenced,
    )


def endpoint_to_wire(endpoint: Endpoint) -> pb.Endpoint:
    return pb.Endpoint(name=endpoint.name, host=endpoint.host, port=endpoint.port, security=endpoint.security)


def replicas_to_wire(replicas: Iterable[Replica]) -> list[pb.Replica]:
    return [pb.Replica(broker_id=each.broker_id, directory_id=each.directory_id.bytes) for each in replicas]


# Encoding, by type


def _encode_partition(record: Partition) -> pb.Record:
    return pb.Record(
        partition=pb.Partition(
            topic_id=record.topic_id.bytes,
            index=record.index,
            replicas=replicas_to_wire(record.replicas),
            isr=record.isr,
            elr=record.elr,
            adding=record.adding,
            removing=record.removing,
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
        )
    )


def _encode_change(record: PartitionChange) -> pb.Record:
    wrapper = pb.Record()
    message = wrapper.partition_change
    message.topic_id = record.topic_id.bytes
    message.index = record.index
    message.reason = record.reason.value  # type: ignore[assignment]
    message.cause_offset = record.cause_offset
    message.previous_offset = record.previous_offset
    for target, values in (("isr", record.isr), ("elr", record.elr)):
        if values is not None:
            _set_list(getattr(message, target), values)
    for target, values in (("adding", record.adding), ("removing", record.removing)):
        if values is not None:
            _set_list(getattr(message, target), values)
    if record.replicas is not None:
        message.replicas.SetInParent()
        message.replicas.values.extend(replicas_to_wire(record.replicas))
    if record.leader is not None:
        message.leader = record.leader
    if record.leader_epoch is not None:
        message.leader_epoch = record.leader_epoch
    return wrapper


def _set_list(message: Any, values: tuple[int, ...]) -> None:
    """Set a list field of a message, so that an empty list differs from an absent one."""
    message.SetInParent()
    message.values.extend(values)


def _encode_broker_change(record: BrokerChange) -> pb.Record:
    message = pb.BrokerChange(
        broker_id=record.broker_id,
        broker_epoch=record.broker_epoch,
        directories_offline=[directory.bytes for directory in record.directories_offline],
    )
    if record.fenced is not None:
        message.fenced = record.fenced
    if record.in_controlled_shutdown is not None:
        message.in_controlled_shutdown = record.in_controlled_shutdown
    return pb.Record(broker_change=message)


def _encode_unregister(record: UnregisterBroker) -> pb.Record:
    message = pb.UnregisterBroker(broker_id=record.broker_id, broker_epoch=record.broker_epoch)
    return pb.Record(unregister_broker=message)


def _encode_remove_partition(record: RemovePartition) -> pb.Record:
    return pb.Record(remove_partition=pb.RemovePartition(topic_id=record.topic_id.bytes, index=record.index))


def _encode_config(record: Config) -> pb.Record:
    return pb.Record(
        config=pb.Config(
            scope=record.scope.value,  # type: ignore[arg-type]
            resource=record.resource,
            key=record.key,
            value=record.value,
        )
    )


def _encode_producer_ids(record: ProducerIds) -> pb.Record:
    message = pb.ProducerIds(
        broker_id=record.broker_id, broker_epoch=record.broker_epoch, next_producer_id=record.next_producer_id
    )
    return pb.Record(producer_ids=message)


_ENCODERS: dict[type, Callable[[Any], pb.Record]] = {
    RegisterBroker: lambda record: pb.Record(register_broker=registration_to_wire(record)),
    BrokerChange: _encode_broker_change,
    UnregisterBroker: _encode_unregister,
    Topic: lambda record: pb.Record(topic=pb.Topic(topic_id=record.topic_id.bytes, name=record.name)),
    Partition: _encode_partition,
    PartitionChange: _encode_change,
    RemovePartition: _encode_remove_partition,
    RemoveTopic: lambda record: pb.Record(remove_topic=pb.RemoveTopic(topic_id=record.topic_id.bytes)),
    RenewTopic: lambda record: pb.Record(
        renew_topic=pb.RenewTopic(topic_id=record.topic_id.bytes, new_topic_id=record.new_topic_id.bytes)
    ),
    Config: _encode_config,
    ProducerIds: _encode_producer_ids,
    PreferredControllers: lambda record: pb.Record(
        preferred_controllers=pb.PreferredControllers(node_ids=record.node_ids)
    ),
    Feature: lambda record: pb.Record(feature=pb.Feature(name=record.name, level=record.level)),
    ForgetTopics: lambda record: pb.Record(forget_topics=pb.ForgetTopics(names=record.names)),
    NoOp: lambda record: pb.Record(no_op=pb.NoOp()),
}


# Decoding


def _has_unknown_fields(message: Message) -> bool:
    """Return whether the message has unknown fields at any depth, and discard them."""
    before = message.ByteSize()
    message.DiscardUnknownFields()
    return message.ByteSize() != before


def _check(good: bool, what: str, value: object) -> None:
    if not good:
        raise _MalformedError(f"{what} {value!r}")


def _broker_id(value: int) -> int:
    if value < 0:
        raise _MalformedError(f"broker id {value}")
    return value


def _offset(value: int, what: str) -> int:
    if value < NO_OFFSET:
        raise _MalformedError(f"{what} {value}")
    return value


def _index(value: int) -> int:
    if not 0 <= value <= PARTITION_INDEX_MAX:
        raise _MalformedError(f"partition index {value}")
    return value


def _broker_ids(values: Sequence[int], what: str) -> tuple[int, ...]:
    ids = tuple(values)
    if ids and (min(ids) < 0 or len(ids) > LIST_MAX or len(set(ids)) < len(ids)):
        raise _MalformedError(f"{what} {ids[:20]}: negative, repeated or too many")
    return ids


def _text(value: str, what: str, longest: int) -> str:
    if not 0 < len(value) <= longest:
        raise _MalformedError(f"{what} of {len(value)} characters")
    return value


class _Reader:
    """Decodes one batch.  Equal ids become one object, which saves time and memory."""

    def __init__(self) -> None:
        self._uuids: dict[bytes, UUID] = {}
        self._replicas: dict[tuple[int, bytes], Replica] = {}

    def record(self, message: pb.Record) -> Record:
        kind = message.WhichOneof("record")
        if kind is None:
            raise _MalformedError("its kind is unknown")
        read: Callable[[Any], Record] = getattr(self, kind)
        return read(getattr(message, kind))

    def uuid(self, value: bytes, what: str) -> UUID:
        found = self._uuids.get(value)
        if found is None:
            if len(value) != 16:
                raise _MalformedError(f"{what} of {len(value)} bytes, not 16")
            found = self._uuids[value] = UUID(bytes=value)
        return found

    def known_uuid(self, value: bytes, what: str) -> UUID:
        found = self.uuid(value, what)
        if found == UNASSIGNED:
            raise _MalformedError(f"{what} of zeros")
        return found

    def replicas(self, messages: Sequence[pb.Replica]) -> tuple[Replica, ...]:
        found = []
        for message in messages:
            key = (message.broker_id, message.directory_id)
            replica = self._replicas.get(key)
            if replica is None:
                directory_id = self.uuid(message.directory_id, "directory id")
                replica = self._replicas[key] = Replica(_broker_id(message.broker_id), directory_id)
            found.append(replica)
        _check(0 < len(found) <= LIST_MAX, "number of replicas", len(found))
        _check(len({replica.broker_id for replica in found}) == len(found), "repeated broker in replicas", found[:20])
        return tuple(found)

    def leader(self, value: int) -> int:
        _check(value >= NO_LEADER, "leader", value)
        return value

    # One method per kind of record, named like the oneof's field

    def register_broker(self, message: pb.RegisterBroker) -> RegisterBroker:
        _check(len(message.endpoints) <= LIST_MAX, "number of endpoints", len(message.endpoints))
        directories = tuple([self.known_uuid(each, "directory id") for each in message.directory_ids])
        _check(
            len(set(directories)) == len(directories) <= LIST_MAX, "repeated or too many directories", len(directories)
        )
        _check(1 <= message.feature_min <= message.feature_max, "feature range from", message.feature_min)
        return RegisterBroker(
            broker_id=_broker_id(message.broker_id),
            incarnation_id=self.known_uuid(message.incarnation_id, "incarnation id"),
            endpoints=tuple([_endpoint(each) for each in message.endpoints]),
            directory_ids=directories,
            rack=_text(message.rack, "rack", NAME_MAX) if message.HasField("rack") else None,
            previous_broker_epoch=_offset(message.previous_broker_epoch, "previous broker epoch"),
            feature_min=message.feature_min,
            feature_max=message.feature_max,
            fenced=message.fenced,
        )

    def broker_change(self, message: pb.BrokerChange) -> BrokerChange:
        directories = tuple([self.known_uuid(each, "directory id") for each in message.directories_offline])
        _check(len(directories) <= LIST_MAX, "number of directories", len(directories))
        leaving = message.in_controlled_shutdown if message.HasField("in_controlled_shutdown") else None
        return BrokerChange(
            broker_id=_broker_id(message.broker_id),
            broker_epoch=_offset(message.broker_epoch, "broker epoch"),
            fenced=message.fenced if message.HasField("fenced") else None,
            in_controlled_shutdown=leaving,
            directories_offline=directories,
        )

    def unregister_broker(self, message: pb.UnregisterBroker) -> UnregisterBroker:
        return UnregisterBroker(_broker_id(message.broker_id), _offset(message.broker_epoch, "broker epoch"))

    def topic(self, message: pb.Topic) -> Topic:
        return Topic(self.known_uuid(message.topic_id, "topic id"), _text(message.name, "topic name", NAME_MAX))

    def partition(self, message: pb.Partition) -> Partition:
        _check(message.leader_epoch >= 0, "leader epoch", message.leader_epoch)
        _check(message.partition_epoch >= 0, "partition epoch", message.partition_epoch)
        return Partition(
            topic_id=self.known_uuid(message.topic_id, "topic id"),
            index=_index(message.index),
            replicas=self.replicas(message.replicas),
            isr=_broker_ids(message.isr, "isr"),
            leader=self.leader(message.leader),
            leader_epoch=message.leader_epoch,
            partition_epoch=message.partition_epoch,
            elr=_broker_ids(message.elr, "elr"),
            adding=_broker_ids(message.adding, "adding"),
            removing=_broker_ids(message.removing, "removing"),
        )

    def partition_change(self, message: pb.PartitionChange) -> PartitionChange:
        reason = _REASONS.get(message.reason)
        if reason is None:
            raise _MalformedError(f"reason {message.reason}")
        has = message.HasField
        return PartitionChange(
            topic_id=self.known_uuid(message.topic_id, "topic id"),
            index=_index(message.index),
            reason=reason,
            cause_offset=_offset(message.cause_offset, "cause offset"),
            previous_offset=_offset(message.previous_offset, "previous offset"),
            isr=_broker_ids(message.isr.values, "isr") if has("isr") else None,
            elr=_broker_ids(message.elr.values, "elr") if has("elr") else None,
            replicas=self.replicas(message.replicas.values) if has("replicas") else None,
            adding=_broker_ids(message.adding.values, "adding") if has("adding") else None,
            removing=_broker_ids(message.removing.values, "removing") if has("removing") else None,
            leader=self.leader(message.leader) if has("leader") else None,
            leader_epoch=self.raised_epoch(message) if has("leader_epoch") else None,
        )

    def raised_epoch(self, message: pb.PartitionChange) -> int:
        _check(message.leader_epoch >= 0 and message.HasField("leader"), "leader epoch", message.leader_epoch)
        return message.leader_epoch

    def remove_partition(self, message: pb.RemovePartition) -> RemovePartition:
        return RemovePartition(self.known_uuid(message.topic_id, "topic id"), _index(message.index))

    def remove_topic(self, message: pb.RemoveTopic) -> RemoveTopic:
        return RemoveTopic(self.known_uuid(message.topic_id, "topic id"))

    def renew_topic(self, message: pb.RenewTopic) -> RenewTopic:
        _check(message.topic_id != message.new_topic_id, "topic renewed with its own id", message.topic_id.hex())
        return RenewTopic(
            self.known_uuid(message.topic_id, "topic id"), self.known_uuid(message.new_topic_id, "new topic id")
        )

    def config(self, message: pb.Config) -> Config:
        scope = _SCOPES.get(message.scope)
        if scope is None:
            raise _MalformedError(f"config scope {message.scope}")
        longest = GROUP_ID_MAX if scope is ConfigScope.GROUP else NAME_MAX
        _check(len(message.resource) <= longest, "length of config resource", len(message.resource))
        value = message.value if message.HasField("value") else None
        _check(value is None or len(value) <= TEXT_MAX, "length of config value of", message.key)
        return Config(scope, message.resource, _text(message.key, "config key", NAME_MAX), value)

    def producer_ids(self, message: pb.ProducerIds) -> ProducerIds:
        _check(message.next_producer_id > 0, "next producer id", message.next_producer_id)
        broker_epoch = _offset(message.broker_epoch, "broker epoch")
        return ProducerIds(_broker_id(message.broker_id), broker_epoch, message.next_producer_id)

    def preferred_controllers(self, message: pb.PreferredControllers) -> PreferredControllers:
        return PreferredControllers(_broker_ids(message.node_ids, "preferred controllers"))

    def feature(self, message: pb.Feature) -> Feature:
        _check(message.level >= 0, "feature level", message.level)
        if message.name == METADATA_VERSION:
            what = f"this release supports {METADATA_VERSION} up to level {METADATA_VERSION_MAX}, not level"
            _check(message.level <= METADATA_VERSION_MAX, what, message.level)
        return Feature(_text(message.name, "feature name", NAME_MAX), message.level)

    def forget_topics(self, message: pb.ForgetTopics) -> ForgetTopics:
        _check(0 < len(message.names) <= LIST_MAX, "number of topic names", len(message.names))
        return ForgetTopics(tuple([_text(name, "topic name", NAME_MAX) for name in message.names]))

    def no_op(self, message: pb.NoOp) -> NoOp:
        return NoOp()


def _endpoint(message: pb.Endpoint) -> Endpoint:
    _check(1 <= message.port <= 65_535, "port", message.port)
    return Endpoint(
        name=_text(message.name, "listener name", NAME_MAX),
        host=_text(message.host, "host", NAME_MAX),
        port=message.port,
        security=_text(message.security, "security of the listener", NAME_MAX),
    )
