"""Records of the metadata log, for people and as JSON.

A record refers to a topic by its id.  `Names` knows the names as of an offset, and learns others from the records that
follow.  So the text of a deletion still contains the topic's name.

The JSON of a record is its protobuf message with snake_case names: uuids as 22 characters, enums as words, and null for
-1 where that means "none".  A field that a change does not set is absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from google.protobuf.message import Message

from quorumlog.kctl.output import uuid_text
from quorumlog.wire.v1 import metadata_pb2, node_pb2
from quorumlog.words import rfc3339

_NONE_IS_MINUS_1 = frozenset({"leader", "cause_offset", "previous_offset", "previous_broker_epoch"})
_UUID_BYTES = 16


class Names:
    """Topic names by topic id."""

    def __init__(self, topics: Iterable[tuple[bytes, str]] = ()) -> None:
        self._names = dict(topics)

    def learn(self, record: metadata_pb2.Record) -> None:
        """Learn the name of a topic if the record contains one."""
        match record.WhichOneof("record"):
            case "topic":
                self._names[record.topic.topic_id] = record.topic.name
            case "renew_topic":
                self._names[record.renew_topic.new_topic_id] = self.of(record.renew_topic.topic_id)

    def __contains__(self, name: str) -> bool:
        return name in self._names.values()

    def of(self, topic_id: bytes) -> str:
        """Return the name, or the id of an unknown topic."""
        return self._names.get(topic_id) or uuid_text(topic_id) or "?"


class Line(NamedTuple):
    """One record, as it is shown.

    topic, partition: the topic and partition that the record changes; None if it changes none.
    """

    offset: int
    timestamp_ms: int
    epoch: int
    kind: str
    topic: str | None
    partition: int | None
    text: str
    record: dict[str, Any] | None

    def document(self) -> dict[str, Any]:
        return {
            "offset": self.offset,
            "at": rfc3339(self.timestamp_ms),
            "epoch": self.epoch,
            "kind": self.kind,
            "topic": self.topic,
            "partition": self.partition,
            "text": self.text,
            "record": self.record,
        }

    def __str__(self) -> str:
        return f"{self.offset:>8}  {rfc3339(self.timestamp_ms)}  {self.text}"


def lines(batch: node_pb2.MetadataBatch, names: Names) -> Iterator[Line]:
    """Yield the records of a batch, ascending.  A control batch yields one line, which describes it."""
    if batch.control:
        word, _, rest = batch.control.partition(": ")
        kind = re.sub("(?<=[a-z])(?=[A-Z])", "_", word).lower()
        text = f"{kind.replace('_', ' ')}: {rest}"
        yield Line(batch.base_offset, batch.timestamp_ms, batch.epoch, kind, None, None, text, None)
        return
    for index, record in enumerate(batch.records.records):
        names.learn(record)
        kind = record.WhichOneof("record") or "unknown"
        message: Any = getattr(record, kind, record)
        fields = message.DESCRIPTOR.fields_by_name
        topic = names.of(message.topic_id) if "topic_id" in fields else _config_topic(message, names)
        yield Line(
            offset=batch.base_offset + index,
            timestamp_ms=batch.timestamp_ms,
            epoch=batch.epoch,
            kind=kind,
            topic=topic,
            partition=message.index if "index" in fields else None,
            text=_TEXTS[kind](message, names) if kind in _TEXTS else f"{kind}: upgrade kctl to read it",
            record=_document(message),
        )


def config_of(config: metadata_pb2.Config, names: Names) -> str:
    """Return the resource of a config, in words."""
    match config.scope:
        case metadata_pb2.Config.SCOPE_CLUSTER:
            return "the cluster"
        case metadata_pb2.Config.SCOPE_BROKER:
            return f"broker {config.resource}"
        case metadata_pb2.Config.SCOPE_GROUP:
            return f"group {config.resource}"
        case metadata_pb2.Config.SCOPE_TOPIC:
            return f"topic {_config_topic(config, names)}"
    return config.resource


def _config_topic(message: Any, names: Names) -> str | None:
    if not isinstance(message, metadata_pb2.Config) or message.scope != metadata_pb2.Config.SCOPE_TOPIC:
        return None
    return names.of(_topic_id_of(message.resource))


def _topic_id_of(resource: str) -> bytes:
    """Return the topic id of a topic config, whose `resource` is the id in hex; empty if it is not hex."""
    try:
        return bytes.fromhex(resource)
    except ValueError:
        return b""


# In words


def _register_broker(broker: Any, names: Names) -> str:
    endpoints = ", ".join(f"{each.name} at {each.host}:{each.port}" for each in broker.endpoints)
    rack = f", rack {broker.rack}" if broker.HasField("rack") else ""
    return f"broker {broker.broker_id} registers: {endpoints}{rack}; data directories: {len(broker.directory_ids)}"


def _broker_change(change: Any, names: Names) -> str:
    said = []
    if change.HasField("fenced"):
        said.append("is fenced" if change.fenced else "is unfenced")
    if change.HasField("in_controlled_shutdown"):
        said.append("is shutting down" if change.in_controlled_shutdown else "is no longer shutting down")
    if change.directories_offline:
        offline = ", ".join(str(uuid_text(each)) for each in change.directories_offline)
        said.append(f"has these data directories offline: {offline}")
    return f"broker {change.broker_id} {'; '.join(said) or 'changes'}"


def _partition(partition: Any, names: Names) -> str:
    return (
        f"{names.of(partition.topic_id)}-{partition.index} is created: {_leader(partition.leader)}, "
        f"replicas {_replicas(partition.replicas)}, in sync {_ids(partition.isr)}"
    )


def _partition_change(change: Any, names: Names) -> str:
    said = []
    if change.HasField("leader"):
        said.append(_leader(change.leader))
    if change.HasField("leader_epoch"):
        said.append(f"leader epoch {change.leader_epoch}")
    if change.HasField("replicas"):
        said.append(f"replicas {_replicas(change.replicas.values)}")
    for field, what in (("isr", "in sync"), ("elr", "eligible"), ("adding", "adding"), ("removing", "removing")):
        if change.HasField(field):
            said.append(f"{what} {_ids(getattr(change, field).values)}")
    why = reason_word(change.reason).replace("_", " ")
    cause = f", offset {change.cause_offset}" if change.cause_offset >= 0 else ""
    return f"{names.of(change.topic_id)}-{change.index}: {'; '.join(said) or 'a new partition epoch'} ({why}{cause})"


def _config(config: Any, names: Names) -> str:
    what = f"config {config.key} of {config_of(config, names)}"
    return f"{what} is set to {config.value}" if config.HasField("value") else f"{what} is unset"


def reason_word(reason: int) -> str:
    """Return the reason for a change of a partition, as `kctl explain` shows it."""
    return _enum_word(metadata_pb2.Reason.DESCRIPTOR, reason)


_TEXTS: dict[str, Any] = {
    "register_broker": _register_broker,
    "broker_change": _broker_change,
    "unregister_broker": lambda it, names: f"broker {it.broker_id} is unregistered",
    "topic": lambda it, names: f"topic {it.name} is created, id {uuid_text(it.topic_id)}",
    "partition": _partition,
    "partition_change": _partition_change,
    "remove_partition": lambda it, names: f"{names.of(it.topic_id)}-{it.index} is removed",
    "remove_topic": lambda it, names: f"topic {names.of(it.topic_id)} is deleted",
    "renew_topic": lambda it, names: (
        f"topic {names.of(it.new_topic_id)} continues with the id {uuid_text(it.new_topic_id)}; "
        f"its id was {uuid_text(it.topic_id)}"
    ),
    "config": _config,
    "producer_ids": lambda it, names: f"broker {it.broker_id} gets producer ids below {it.next_producer_id}",
    "preferred_controllers": lambda it, names: f"preferred controllers: {_ids(it.node_ids)}",
    "feature": lambda it, names: f"feature {it.name} has level {it.level}",
    "no_op": lambda it, names: "nothing",
    "forget_topics": lambda it, names: f"the leader epochs of {', '.join(it.names)} are deleted",
}


def _leader(broker_id: int) -> str:
    return "no leader" if broker_id < 0 else f"leader {broker_id}"


def _ids(values: Iterable[int]) -> str:
    return ",".join(map(str, values)) or "none"


def _replicas(replicas: Iterable[Any]) -> str:
    lost = bytes(_UUID_BYTES - 1) + b"\1"
    return ",".join(f"{each.broker_id}{' (lost)' if each.directory_id == lost else ''}" for each in replicas) or "none"


# As JSON


def _document(message: Message) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if not field.has_presence or message.HasField(field.name):
            value = getattr(message, field.name)
            if isinstance(value, metadata_pb2.IntList | metadata_pb2.ReplicaList):
                value = value.values
            shown[field.name] = _value(field, value)
    if isinstance(message, metadata_pb2.Config) and message.scope == metadata_pb2.Config.SCOPE_TOPIC:
        shown["resource"] = uuid_text(_topic_id_of(message.resource))
    return shown


def _value(field: Any, value: Any) -> Any:
    if isinstance(value, Message):
        return _document(value)
    if isinstance(value, bytes):
        return uuid_text(value)
    if isinstance(value, str):
        return value
    if not isinstance(value, int):
        return [_value(field, each) for each in value]
    if field.enum_type is not None:
        return _enum_word(field.enum_type, value)
    return None if value == -1 and field.name in _NONE_IS_MINUS_1 else value


def _enum_word(kind: Any, number: int) -> str:
    """Return the name of an enum value as a word, for example isr_shrink for REASON_ISR_SHRINK of the enum Reason."""
    known = kind.values_by_number.get(number)
    return str(number) if known is None else known.name.removeprefix(f"{kind.name.upper()}_").lower()
