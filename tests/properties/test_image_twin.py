"""The image against a slow, obvious twin: dictionaries that are changed in place, record after record."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.codec import decode, encode
from metadata.image import ClusterImage, delta, indexes
from metadata.image.bits import flip_mask
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

ROOT = Path(__file__).resolve().parents[2]


class Twin:
    """All state as plain dictionaries: a slow computation of the expected image."""

    def __init__(self) -> None:
        self.end = 0
        self.topics: dict[UUID, str] = {}
        self.origins: dict[UUID, UUID] = {}
        self.partitions: dict[tuple[UUID, int], dict[str, Any]] = {}
        self.brokers: dict[int, dict[str, Any]] = {}
        self.past: dict[tuple[str, int], int] = {}
        self.configs: dict[tuple[ConfigScope, str, str], str] = {}
        self.features: dict[str, int] = {}
        self.preferred: tuple[int, ...] = ()
        self.next_producer_id = 0

    def apply(self, record: Record) -> None:
        offset, self.end = self.end, self.end + 1
        match record:
            case RegisterBroker():
                old = self.brokers.get(record.broker_id)
                same = old is not None and old["incarnation_id"] == record.incarnation_id
                self.brokers[record.broker_id] = {
                    "incarnation_id": record.incarnation_id,
                    "epoch": old["epoch"] if same and old else offset,
                    "fenced": record.fenced,
                    "in_controlled_shutdown": old["in_controlled_shutdown"] if same and old else False,
                    "directories_offline": old["directories_offline"] if same and old else (),
                    "rack": record.rack,
                    "clean_epoch": old["clean_epoch"] if same and old else record.previous_broker_epoch,
                }
            case BrokerChange():
                broker = self.brokers[record.broker_id]
                if record.fenced is not None:
                    broker["fenced"] = record.fenced
                    if not record.fenced:
                        broker["clean_epoch"] = -1
                if record.in_controlled_shutdown is not None:
                    broker["in_controlled_shutdown"] = record.in_controlled_shutdown
                offline = {*broker["directories_offline"], *record.directories_offline}
                broker["directories_offline"] = tuple(sorted(offline))
            case UnregisterBroker():
                del self.brokers[record.broker_id]
            case Topic():
                self.topics[record.topic_id] = record.name
            case Partition():
                self.partitions[record.topic_id, record.index] = {
                    "created": offset,
                    "last_offset": offset,
                    **{
                        name: getattr(record, name)
                        for name in ("replicas", "isr", "elr", "adding", "removing", "leader", "leader_epoch",
                                     "partition_epoch")
                    },
                }  # fmt: skip
            case PartitionChange():
                partition = self.partitions[record.topic_id, record.index]
                for name in ("replicas", "isr", "elr", "adding", "removing"):
                    if getattr(record, name) is not None:
                        partition[name] = getattr(record, name)
                if record.leader is not None:
                    partition["leader"] = record.leader
                    partition["leader_epoch"] += 1
                partition["partition_epoch"] += 1
                partition["last_offset"] = offset
            case RemovePartition():
                self.forget(record.topic_id, record.index)
            case RemoveTopic():
                for topic_id, index in list(self.partitions):
                    if topic_id == record.topic_id:
                        self.forget(topic_id, index)
                for key in [key for key in self.configs if key[:2] == (ConfigScope.TOPIC, record.topic_id.hex)]:
                    del self.configs[key]
                del self.topics[record.topic_id]
            case RenewTopic():
                self.topics[record.new_topic_id] = self.topics.pop(record.topic_id)
                self.origins[record.new_topic_id] = self.origins.pop(record.topic_id, record.topic_id)
                for kept in [key for key in self.partitions if key[0] == record.topic_id]:
                    self.partitions[record.new_topic_id, kept[1]] = self.partitions.pop(kept)
                for named in [key for key in self.configs if key[:2] == (ConfigScope.TOPIC, record.topic_id.hex)]:
                    self.configs[ConfigScope.TOPIC, record.new_topic_id.hex, named[2]] = self.configs.pop(named)
            case Config():
                key = (record.scope, record.resource, record.key)
                self.configs.pop(key, None)
                if record.value is not None:
                    self.configs[key] = record.value
            case ProducerIds():
                self.next_producer_id = record.next_producer_id
            case PreferredControllers():
                self.preferred = record.node_ids
            case ForgetTopics():
                self.past = {key: epoch for key, epoch in self.past.items() if key[0] not in record.names}
            case Feature():
                self.features[record.name] = record.level

    def forget(self, topic_id: UUID, index: int) -> None:
        gone = self.partitions.pop((topic_id, index))
        key = (self.topics[topic_id], index)
        self.past[key] = max(self.past.get(key, -1), gone["leader_epoch"])

    def check(self, image: ClusterImage) -> None:
        assert image.end_offset == self.end
        assert {topic_id: topic.name for topic_id, topic in image.topics.items()} == self.topics
        assert dict(image.topic_ids) == {name: topic_id for topic_id, name in self.topics.items()}
        assert all(topic.origin == self.origins.get(each, each) for each, topic in image.topics.items())
        found = {
            (topic_id, index): partition
            for topic_id, topic in image.topics.items()
            for index, partition in enumerate(topic.partitions)
            if partition is not None
        }
        assert found.keys() == self.partitions.keys()
        for key, partition in found.items():
            assert partition.index == key[1]
            for name, value in self.partitions[key].items():
                assert getattr(partition, name) == value, name
        self.check_masks(image)
        assert set(image.brokers) == self.brokers.keys()
        for broker_id, broker in self.brokers.items():
            for name, value in broker.items():
                assert getattr(image.brokers[broker_id], name) == value, name
        configs = {(*resource, key): value for resource, values in image.all_configs() for key, value in values.items()}
        assert configs == self.configs
        assert dict(image.features) == self.features
        assert image.preferred_controllers == self.preferred
        assert image.next_producer_id == self.next_producer_id
        for name in NAMES:
            for index in range(4):
                assert image.first_leader_epoch(name, index) == self.past.get((name, index), -1) + 1

    def check_masks(self, image: ClusterImage) -> None:
        for broker_id in range(-1, 5):
            leads = {key for key, partition in self.partitions.items() if partition["leader"] == broker_id}
            hosts = {
                key
                for key, partition in self.partitions.items()
                if broker_id in [replica.broker_id for replica in partition["replicas"]]
            }
            assert {(each, i) for each, mask in image.leaderships(broker_id).items() for i in indexes(mask)} == leads
            assert {(each, i) for each, mask in image.hostings(broker_id).items() for i in indexes(mask)} == hosts
            assert image.leader_count(broker_id) == len(leads)
            assert image.replica_count(broker_id) == len(hosts)
            assert 0 not in image.leaderships(broker_id).values()
            assert 0 not in image.hostings(broker_id).values()
        moving = {key for key, partition in self.partitions.items() if partition["adding"] or partition["removing"]}
        assert {(each, i) for each, mask in image.reassigning.items() for i in indexes(mask)} == moving
        assert image.reassigning_count == len(moving)


NAMES = ("a", "b", "c")
broker_ids = st.integers(0, 4)
id_lists = st.lists(broker_ids, max_size=3, unique=True).map(tuple)
replica_lists = st.lists(broker_ids, min_size=1, max_size=3, unique=True).map(
    lambda ids: tuple([Replica(broker_id, UUID(int=broker_id)) for broker_id in ids])
)
leaders = st.integers(-1, 4)


def draw_record(draw: st.DrawFn, twin: Twin, number: int) -> Record:
    """A record that fits the state, as a correct controller's would."""
    choices = ["register", "topic", "config", "other"]
    if twin.brokers:
        choices += ["broker"] * 2
    if twin.topics:
        choices += ["partition"] * 3 + ["remove topic", "renew"]
    if twin.partitions:
        choices += ["change"] * 6 + ["remove partition"]
    kind = draw(st.sampled_from(choices))
    if kind == "register":
        return RegisterBroker(
            draw(broker_ids), UUID(int=draw(st.integers(1, 3))), (Endpoint("A", "h", 1),), (UUID(int=9),),
            rack=draw(st.none() | st.just("r")), fenced=draw(st.booleans()),
        )  # fmt: skip
    if kind == "broker":
        broker_id = draw(st.sampled_from(sorted(twin.brokers)))
        epoch = twin.brokers[broker_id]["epoch"]
        if draw(st.integers(0, 5)) == 0:
            return UnregisterBroker(broker_id, epoch)
        maybe = st.none() | st.booleans()
        offline = draw(st.sampled_from([(), (UUID(int=9),), (UUID(int=8), UUID(int=9))]))
        return BrokerChange(broker_id, epoch, draw(maybe), draw(maybe), offline)
    if kind == "topic":
        free = [name for name in NAMES if name not in twin.topics.values()]
        return Topic(UUID(int=number + 1), draw(st.sampled_from(free))) if free else NoOp()
    if kind in ("partition", "remove topic", "renew"):
        topic_id = draw(st.sampled_from(sorted(twin.topics)))
        if kind == "renew":
            return RenewTopic(topic_id, UUID(int=number + 1))
        if kind == "remove topic":
            return RemoveTopic(topic_id)
        index = sum(1 for key in twin.partitions if key[0] == topic_id)
        epoch = twin.past.get((twin.topics[topic_id], index), -1) + 1
        return Partition(topic_id, index, draw(replica_lists), draw(id_lists), draw(leaders), leader_epoch=epoch)
    if kind == "remove partition":
        topic_id, _ = draw(st.sampled_from(sorted(twin.partitions)))
        return RemovePartition(topic_id, max(index for each, index in twin.partitions if each == topic_id))
    if kind == "change":
        topic_id, index = draw(st.sampled_from(sorted(twin.partitions)))
        return PartitionChange(
            topic_id, index, Reason.ISR_SHRINK, -1, twin.partitions[topic_id, index]["last_offset"],
            isr=draw(st.none() | id_lists), elr=draw(st.none() | id_lists),
            replicas=draw(st.none() | replica_lists), adding=draw(st.none() | id_lists),
            removing=draw(st.none() | id_lists), leader=draw(st.none() | leaders),
        )  # fmt: skip
    if kind == "config":
        topic = draw(st.sampled_from([*[each.hex for each in sorted(twin.topics)], ""]))
        scope = (
            ConfigScope.TOPIC
            if topic
            else draw(st.sampled_from([ConfigScope.CLUSTER, ConfigScope.BROKER, ConfigScope.GROUP]))
        )
        return Config(scope, topic, draw(st.sampled_from("xy")), draw(st.none() | st.sampled_from("12")))
    deleted = sorted({name for name, _ in twin.past}.difference(twin.topics.values()))
    if len(deleted) > 0 and draw(st.booleans()):
        return ForgetTopics(tuple(deleted[:2]))
    others: list[Record] = [
        ProducerIds(1, 1, twin.next_producer_id + 1000), PreferredControllers((2, 1)), PreferredControllers(()),
        Feature("f", number + 1), NoOp(),
    ]  # fmt: skip
    return draw(st.sampled_from(others))


@st.composite
def histories(draw: st.DrawFn) -> list[list[Record]]:
    twin, batches, number = Twin(), [], 0
    for _ in range(draw(st.integers(1, 6))):
        batch = []
        for _ in range(draw(st.integers(1, 10))):
            record = draw_record(draw, twin, number)
            twin.apply(record)
            batch.append(record)
            number += 1
        batches.append(batch)
    return batches


@settings(max_examples=250, deadline=None)
@given(histories())
def test_the_image_equals_its_twin_after_every_batch(batches: list[list[Record]]) -> None:
    image, twin = ClusterImage(), Twin()
    for batch in batches:
        old = image
        before = old.digest()
        image = image.apply(image.end_offset, batch)
        for record in batch:
            twin.apply(record)
        twin.check(image)
        check_delta(old, image, batch)
        assert old.digest() == before  # an image that others hold never changes


def check_delta(old: ClusterImage, new: ClusterImage, batch: Sequence[Record]) -> None:
    """Every difference between the images is in the delta."""
    found = delta(old, new, batch)
    now = {topic_id: topic_id for topic_id in old.topics}  # id at first → id now
    for record in batch:
        if isinstance(record, RenewTopic):
            for first, last in now.items():
                if last == record.topic_id:
                    now[first] = record.new_topic_id
    kept = {first: last for first, last in now.items() if last in new.topics}
    assert dict(found.topics_renewed) == {first: last for first, last in kept.items() if first != last}
    assert set(found.topics_removed) == set(old.topics) - set(kept)
    for first, last in kept.items():
        for index in range(6):
            if old.partition(first, index) != new.partition(last, index):
                assert index in found.partitions[last]
    for topic_id in set(new.topics) - set(kept.values()):
        partitions = new.topics[topic_id].partitions
        assert set(range(len(partitions))) <= set(found.partitions.get(topic_id, ()))
    for broker_id in set(old.brokers) | set(new.brokers):
        if old.brokers.get(broker_id) != new.brokers.get(broker_id):
            assert broker_id in found.brokers


@settings(max_examples=100, deadline=None)
@given(histories())
def test_the_image_does_not_depend_on_how_records_are_divided_into_batches(batches: list[list[Record]]) -> None:
    by_batch, by_record = ClusterImage(), ClusterImage()
    for batch in batches:
        by_batch = by_batch.apply(by_batch.end_offset, batch)
        for record in batch:
            by_record = by_record.apply(by_record.end_offset, [record])
    once = ClusterImage().apply(0, [record for batch in batches for record in batch])
    assert by_batch.digest() == by_record.digest() == once.digest()
    assert by_batch == by_record == once


@settings(max_examples=100, deadline=None)
@given(histories())
def test_encoded_and_decoded_records_give_the_same_image(batches: list[list[Record]]) -> None:
    direct, coded = ClusterImage(), ClusterImage()
    for batch in batches:
        direct = direct.apply(direct.end_offset, batch)
        coded = coded.apply(coded.end_offset, decode(encode(batch)))
    assert direct.digest() == coded.digest()


@settings(max_examples=100, deadline=None)
@given(histories(), st.data())
def test_different_images_have_different_digests(batches: list[list[Record]], data: st.DataObject) -> None:
    image = ClusterImage()
    for batch in batches:
        image = image.apply(image.end_offset, batch)
    records: list[Record] = [Feature("f", 99), NoOp()]
    other = image.apply(image.end_offset, [data.draw(st.sampled_from(records))])
    assert other.digest() != image.digest()
    assert image.advance(image.end_offset, image.epoch + 1).digest() != image.digest()


@given(st.sets(st.integers(0, 3000)), st.lists(st.integers(0, 300), min_size=1))
def test_bitmasks_are_converted_to_indexes_and_back(members: set[int], flips: list[int]) -> None:
    assert indexes(sum(1 << member for member in members)) == sorted(members)
    mask = 0
    for index in flips:
        mask ^= 1 << index
    assert flip_mask(flips) == mask


_DIGEST = """
from uuid import UUID
from metadata.image import ClusterImage
from metadata.records import *
ids = [UUID(int=7919 * (n + 1)) for n in range(50)]
records = []
for n, each in enumerate(ids):
    records.append(Topic(each, "topic-%d" % n))
    records += [Partition(each, i, tuple(Replica((i + k) % 5) for k in range(3)), (i % 5,), i % 5) for i in range(4)]
    records.append(Config(ConfigScope.TOPIC, each.hex, "k%d" % (n % 3), "v"))
    records.append(Config(ConfigScope.CLUSTER, "", "c%d" % n, "v"))
records += [RegisterBroker(n, UUID(int=n + 1), (Endpoint("A", "h", 1),), (UUID(int=n + 1),)) for n in range(5)]
records += [Feature("feature-%d" % n, n) for n in range(9)]
image = ClusterImage().apply(0, records).apply(len(records), [RemoveTopic(each) for each in ids[::3]])
print(image.digest())
"""


def test_the_digest_is_the_same_under_every_hash_seed() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", _DIGEST], cwd=ROOT, env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("0", "1", "12345")
    }
    assert len(found) == 1
    assert len(found.pop().strip()) == 64
