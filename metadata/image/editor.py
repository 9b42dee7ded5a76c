"""Applies a batch to mutable copies of the topics and fields that it changes, which are frozen at the end.

`apply_records` is private to the image; other modules call `ClusterImage.apply`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
from immutables import Map

from metadata.image.bits import flip_mask
from metadata.image.model import REASSIGNING, BrokerImage, PartitionImage, TopicImage
from metadata.records import (
    NO_OFFSET,
    BrokerChange,
    Config,
    ConfigScope,
    Feature,
    ForgetTopics,
    NoOp,
    Partition,
    PartitionChange,
    PreferredControllers,
    ProducerIds,
    Record,
    RegisterBroker,
    RemovePartition,
    RemoveTopic,
    RenewTopic,
    Replica,
    Topic,
    UnregisterBroker,
)

if TYPE_CHECKING:
    from metadata.image.cluster import ClusterImage


class Masks(msgspec.Struct, frozen=True, gc=False):
    """For one broker: topic id → bitmask of partitions (never 0), and the total number of bits."""

    by_topic: Map[UUID, int]
    count: int


class _OpenTopic:
    """A topic being edited.  leads, hosts: by broker, the indexes whose bits toggle, once per toggle."""

    __slots__ = ("hosts", "leads", "name", "origin", "partitions", "removed", "topic_id")

    def __init__(
        self, topic_id: UUID, name: str, origin: UUID, partitions: Sequence[PartitionImage | None] = ()
    ) -> None:
        self.topic_id = topic_id
        self.name = name
        self.origin = origin
        self.partitions = list(partitions)
        self.removed = False
        self.leads: dict[int, list[int]] = {}
        self.hosts: dict[int, list[int]] = {}

    def existing(self, index: int) -> PartitionImage:
        partition = self.partitions[index] if 0 <= index < len(self.partitions) else None
        assert partition is not None, f"partition {self.name}-{index} is not in the image"
        return partition

    def move_lead(self, index: int, old: int, new: int) -> None:
        self.leads.setdefault(old, []).append(index)
        self.leads.setdefault(new, []).append(index)

    def flip_hosts(self, index: int, replicas: Sequence[Replica]) -> None:
        for replica in replicas:
            self.hosts.setdefault(replica.broker_id, []).append(index)

    def flip_reassigning(self, index: int) -> None:
        self.leads.setdefault(REASSIGNING, []).append(index)

    def take_out(self, index: int) -> PartitionImage:
        """Remove one partition and return it."""
        partition = self.existing(index)
        self.leads.setdefault(partition.leader, []).append(index)
        if partition.reassigning:
            self.flip_reassigning(index)
        self.flip_hosts(index, partition.replicas)
        self.partitions[index] = None
        return partition

    def moved_to(self, topic_id: UUID) -> _OpenTopic:
        """Return the same topic under another id, and mark this one as removed."""
        moved = _OpenTopic(topic_id, self.name, self.origin, self.partitions)
        for partition in self.partitions:
            if partition is not None:
                for topic in (self, moved):
                    topic.leads.setdefault(partition.leader, []).append(partition.index)
                    if partition.reassigning:
                        topic.flip_reassigning(partition.index)
                    topic.flip_hosts(partition.index, partition.replicas)
        self.partitions = []
        self.removed = True
        return moved


class _Editor:
    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self._open: dict[UUID, _OpenTopic] = {}
        self._past: dict[str, list[int]] = {}  # by topic name: leader epochs of deleted partitions
        self._changes: dict[str, Any] = {}
        self._handlers: dict[type, Callable[[Any, int], None]] = {
            RegisterBroker: self._register_broker,
            BrokerChange: self._change_broker,
            UnregisterBroker: self._unregister_broker,
            Topic: self._add_topic,
            Partition: self._add_partition,
            PartitionChange: self._change_partition,
            RemovePartition: self._remove_partition,
            RemoveTopic: self._remove_topic,
            RenewTopic: self._renew_topic,
            Config: self._set_config,
            ProducerIds: self._give_producer_ids,
            PreferredControllers: self._prefer_controllers,
            Feature: self._set_feature,
            ForgetTopics: self._forget_topics,
            NoOp: self._nothing,
        }

    def apply(self, base_offset: int, records: Sequence[Record]) -> dict[str, Any]:
        handlers = self._handlers
        for offset, record in enumerate(records, base_offset):
            handlers[type(record)](record, offset)
        for name, past in self._past.items():
            self._put("past_epochs", name, tuple(past))
        self._close_topics()
        return self._changes

    # Brokers

    def _register_broker(self, record: RegisterBroker, offset: int) -> None:
        """Register a broker; the same incarnation updates its registration and keeps its epoch."""
        old = self._value("brokers").get(record.broker_id)
        same = old is not None and old.incarnation_id == record.incarnation_id
        self._put(
            "brokers",
            record.broker_id,
            BrokerImage(
                broker_id=record.broker_id,
                epoch=old.epoch if same else offset,
                incarnation_id=record.incarnation_id,
                endpoints=record.endpoints,
                rack=record.rack,
                directory_ids=record.directory_ids,
                directories_offline=old.directories_offline if same else (),
                fenced=record.fenced,
                in_controlled_shutdown=same and old.in_controlled_shutdown,
                feature_min=record.feature_min,
                feature_max=record.feature_max,
                last_offset=offset,
                clean_epoch=old.clean_epoch if same else record.previous_broker_epoch,
            ),
        )

    def _change_broker(self, record: BrokerChange, offset: int) -> None:
        old: BrokerImage | None = self._value("brokers").get(record.broker_id)
        assert old is not None, f"change of broker {record.broker_id}, which is not registered, at offset {offset}"
        assert old.epoch == record.broker_epoch, f"broker {record.broker_id}: {record.broker_epoch} is not {old.epoch}"
        leaving = record.in_controlled_shutdown
        failed = set(old.directories_offline).union(record.directories_offline)
        changed = msgspec.structs.replace(
            old,
            fenced=old.fenced if record.fenced is None else record.fenced,
            in_controlled_shutdown=old.in_controlled_shutdown if leaving is None else leaving,
            directories_offline=tuple(sorted(failed)),
            last_offset=offset,
            clean_epoch=NO_OFFSET if record.fenced is False else old.clean_epoch,
        )
        self._put("brokers", record.broker_id, changed)

    def _unregister_broker(self, record: UnregisterBroker, offset: int) -> None:
        brokers: Map[int, BrokerImage] = self._value("brokers")
        assert record.broker_id in brokers, f"broker {record.broker_id} is not registered, at offset {offset}"
        self._changes["brokers"] = brokers.delete(record.broker_id)

    # Topics and partitions

    def _topic(self, topic_id: UUID) -> _OpenTopic:
        topic = self._open.get(topic_id)
        if topic is None:
            image = self._image.topics.get(topic_id)
            assert image is not None, f"topic {topic_id} is not in the image"
            topic = self._open[topic_id] = _OpenTopic(topic_id, image.name, image.origin, image.partitions)
        assert not topic.removed, f"topic {topic_id} was removed"
        return topic

    def _add_topic(self, record: Topic, offset: int) -> None:
        assert record.topic_id not in self._image.topics, f"topic id {record.topic_id} again, at offset {offset}"
        assert record.topic_id not in self._open, f"topic id {record.topic_id} again, at offset {offset}"
        assert record.name not in self._value("topic_ids"), f"topic {record.name} again, at offset {offset}"
        self._put("topic_ids", record.name, record.topic_id)
        self._open[record.topic_id] = _OpenTopic(record.topic_id, record.name, record.topic_id)

    def _add_partition(self, record: Partition, offset: int) -> None:
        topic = self._topic(record.topic_id)
        index = record.index
        if index >= len(topic.partitions):
            topic.partitions.extend([None] * (index + 1 - len(topic.partitions)))
        assert topic.partitions[index] is None, f"partition {topic.name}-{index} again, at offset {offset}"
        topic.partitions[index] = PartitionImage(
            index=index,
            created=offset,
            replicas=record.replicas,
            isr=record.isr,
            elr=record.elr,
            adding=record.adding,
            removing=record.removing,
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            last_offset=offset,
        )
        topic.leads.setdefault(record.leader, []).append(index)
        topic.flip_hosts(index, record.replicas)
        if record.adding or record.removing:
            topic.flip_reassigning(index)

    def _change_partition(self, record: PartitionChange, offset: int) -> None:
        topic = self._topic(record.topic_id)
        index = record.index
        old = topic.existing(index)
        leader = record.leader
        if leader is not None and leader != old.leader:
            topic.move_lead(index, old.leader, leader)
        if record.replicas is not None:
            topic.flip_hosts(index, old.replicas)
            topic.flip_hosts(index, record.replicas)
        new = PartitionImage(
            index,
            old.created,
            old.replicas if record.replicas is None else record.replicas,
            old.isr if record.isr is None else record.isr,
            old.elr if record.elr is None else record.elr,
            old.adding if record.adding is None else record.adding,
            old.removing if record.removing is None else record.removing,
            old.leader if leader is None else leader,
            _next_leader_epoch(old, record),
            old.partition_epoch + 1,
            offset,
        )
        topic.partitions[index] = new
        if (record.adding is not None or record.removing is not None) and new.reassigning != old.reassigning:
            topic.flip_reassigning(index)

    def _remove_partition(self, record: RemovePartition, offset: int) -> None:
        topic = self._topic(record.topic_id)
        gone = topic.take_out(record.index)
        while topic.partitions and topic.partitions[-1] is None:
            topic.partitions.pop()
        self._remember_epochs(topic.name, [gone])

    def _remove_topic(self, record: RemoveTopic, offset: int) -> None:
        topic = self._topic(record.topic_id)
        gone = [topic.take_out(index) for index, partition in enumerate(topic.partitions) if partition is not None]
        topic.removed = True
        self._remember_epochs(topic.name, gone)
        self._changes["topic_ids"] = self._value("topic_ids").delete(topic.name)
        resource = (ConfigScope.TOPIC, record.topic_id.hex)
        if resource in self._value("configs"):
            self._changes["configs"] = self._value("configs").delete(resource)

    def _renew_topic(self, record: RenewTopic, offset: int) -> None:
        new_id = record.new_topic_id
        assert new_id not in self._image.topics, f"topic id {new_id} again, at offset {offset}"
        assert new_id not in self._open, f"topic id {new_id} again, at offset {offset}"
        topic = self._topic(record.topic_id)
        self._open[new_id] = topic.moved_to(new_id)
        self._put("topic_ids", topic.name, new_id)
        configs = self._value("configs")
        values = configs.get((ConfigScope.TOPIC, record.topic_id.hex))
        if values is not None:
            configs = configs.delete((ConfigScope.TOPIC, record.topic_id.hex))
            self._changes["configs"] = configs.set((ConfigScope.TOPIC, new_id.hex), values)

    def _remember_epochs(self, name: str, gone: Sequence[PartitionImage]) -> None:
        if not gone:
            return
        past = self._past.get(name)
        if past is None:
            past = self._past[name] = list(self._value("past_epochs").get(name, ()))
        for partition in gone:
            past.extend([-1] * (partition.index + 1 - len(past)))
            past[partition.index] = max(past[partition.index], partition.leader_epoch)

    # Other records

    def _set_config(self, record: Config, offset: int) -> None:
        is_group = record.scope is ConfigScope.GROUP
        field = "group_configs" if is_group else "configs"
        resource = record.resource if is_group else (record.scope, record.resource)
        configs: Map[Any, Map[str, str]] = self._value(field)
        values = configs.get(resource, Map())
        if record.value is not None:
            values = values.set(record.key, record.value)
        elif record.key in values:
            values = values.delete(record.key)
        if values:
            self._changes[field] = configs.set(resource, values)
        elif resource in configs:
            self._changes[field] = configs.delete(resource)

    def _give_producer_ids(self, record: ProducerIds, offset: int) -> None:
        assert record.next_producer_id > self._value("next_producer_id"), f"producer ids go back at offset {offset}"
        self._changes["next_producer_id"] = record.next_producer_id

    def _prefer_controllers(self, record: PreferredControllers, offset: int) -> None:
        self._changes["preferred_controllers"] = record.node_ids

    def _set_feature(self, record: Feature, offset: int) -> None:
        self._put("features", record.name, record.level)

    def _forget_topics(self, record: ForgetTopics, offset: int) -> None:
        for name in record.names:
            assert name not in self._value("topic_ids"), (
                f"topic {name} exists, but its epochs are deleted at offset {offset}"
            )
            open_here, known = self._past.pop(name, None), self._value("past_epochs")
            assert open_here is not None or name in known, f"no epochs of {name} to delete at offset {offset}"
            if name in known:
                self._changes["past_epochs"] = known.delete(name)

    def _nothing(self, record: NoOp, offset: int) -> None:
        """Do nothing: a NoOp only takes an offset."""

    # Bookkeeping

    def _value(self, field: str) -> Any:
        """Return the current value of a field."""
        return self._changes[field] if field in self._changes else getattr(self._image, field)

    def _put(self, field: str, key: Any, value: Any) -> None:
        self._changes[field] = self._value(field).set(key, value)

    def _close_topics(self) -> None:
        if not self._open:
            return
        topics = self._image.topics.mutate()
        leads: dict[int, list[tuple[UUID, int]]] = {}
        hosts: dict[int, list[tuple[UUID, int]]] = {}
        for topic_id, topic in self._open.items():
            if not topic.removed:
                topics[topic_id] = TopicImage(topic_id, topic.name, topic.origin, tuple(topic.partitions))
            elif topic_id in topics:
                del topics[topic_id]
            for broker_id, flips in topic.leads.items():
                leads.setdefault(broker_id, []).append((topic_id, flip_mask(flips)))
            for broker_id, flips in topic.hosts.items():
                hosts.setdefault(broker_id, []).append((topic_id, flip_mask(flips)))
        self._changes["topics"] = topics.finish()
        self._changes["leader_masks"] = _turn_over(self._image.leader_masks, leads)
        self._changes["hosting_masks"] = _turn_over(self._image.hosting_masks, hosts)


def _next_leader_epoch(old: PartitionImage, record: PartitionChange) -> int:
    if record.leader_epoch is not None:
        assert record.leader_epoch > old.leader_epoch, f"leader epoch {record.leader_epoch} after {old}"
        return record.leader_epoch
    return old.leader_epoch if record.leader is None else old.leader_epoch + 1


def _turn_over(masks: Map[int, Masks], flips: dict[int, list[tuple[UUID, int]]]) -> Map[int, Masks]:
    """Return `masks` with the given bits toggled; empty masks, and brokers without any, are removed."""
    result = masks.mutate()
    for broker_id, by_topic in flips.items():
        old = masks.get(broker_id)
        edited = (Map() if old is None else old.by_topic).mutate()
        count = 0 if old is None else old.count
        for topic_id, flip in by_topic:
            before: int = edited.get(topic_id, 0)
            after = before ^ flip
            count += after.bit_count() - before.bit_count()
            if after:
                edited[topic_id] = after
            elif before:
                del edited[topic_id]
        if count:
            result[broker_id] = Masks(edited.finish(), count)
        elif old is not None:
            del result[broker_id]
    return result.finish()


def apply_records(image: ClusterImage, base_offset: int, records: Sequence[Record]) -> dict[str, Any]:
    """Return the fields of `image` that the records change, with their new values (all but end_offset and epoch)."""
    return _Editor(image).apply(base_offset, records)
