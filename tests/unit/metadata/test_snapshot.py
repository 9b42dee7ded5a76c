"""The image in chunks: equal after loading, the same bytes in every process, no chunk skipped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random
from uuid import UUID

import msgspec
import pytest

from metadata import snapshot
from metadata.image import ClusterImage
from metadata.records import (
    Config,
    ConfigScope,
    Feature,
    Partition,
    PartitionChange,
    PreferredControllers,
    ProducerIds,
    Reason,
    Record,
    RemoveTopic,
    RenewTopic,
    Replica,
    Topic,
)
from metadata.snapshot import ImageLoader, chunks
from quorumlog.errors import CorruptStoreError
from tests.unit.metadata.builders import check_invariants, directory, registration

ROOT = Path(__file__).resolve().parents[3]


def topic_id(number: int) -> UUID:
    return UUID(int=Random(number).getrandbits(128))


def example(topics: int = 3, partitions: int = 4) -> ClusterImage:
    """Return an image with some of everything.  partitions: number of partitions of topic 0."""
    records: list[Record] = [registration(broker) for broker in range(5)]
    for number in range(topics):
        records.append(Topic(topic_id(number), f"topic{number}"))
        records.append(Config(ConfigScope.TOPIC, topic_id(number).hex, "min.insync.replicas", "2"))
        for index in range(partitions if number == 0 else number % 3):
            members = [(number + index + step) % 5 for step in range(3)]
            replicas = tuple(Replica(broker, directory(broker)) for broker in members)
            records.append(
                Partition(topic_id(number), index, replicas, tuple(members), members[0], adding=(members[0],))
            )
    records += [
        Config(ConfigScope.CLUSTER, "", "retention.ms", "1000"),
        Config(ConfigScope.BROKER, "3", "retention.ms", "1000"),
        Config(ConfigScope.GROUP, "workers", "share.isolation.level", "read_committed"),
        Config(ConfigScope.GROUP, "3", "share.session.timeout.ms", "50000"),
        ProducerIds(1, 0, 5000),
        PreferredControllers((2, 1)),
        Feature("metadata.version", 1),
        Topic(topic_id(10_000), "gone"),
        Partition(topic_id(10_000), 0, (Replica(1, directory(1)),), (1,), 1, leader_epoch=7),
        RemoveTopic(topic_id(10_000)),
    ]
    image = ClusterImage().apply(0, records, 3)
    change = PartitionChange(topic_id(0), 1, Reason.ISR_SHRINK, 1, 2, isr=(1,), elr=(2, 3), leader=-1)
    return image.apply(image.end_offset, [change], 4)


def load(pieces: list[bytes]) -> ClusterImage:
    loader = ImageLoader("test")
    for piece in pieces:
        loader.feed(piece)
    return loader.finish()


def written(image: ClusterImage) -> list[bytes]:
    return [chunk for chunk in chunks(image) if chunk]


@pytest.mark.parametrize(("topics", "partitions"), [(0, 0), (1, 2), (3, 4), (2, 5000), (3000, 3)])
def test_an_image_is_the_same_after_loading(topics: int, partitions: int) -> None:
    image = example(topics, partitions) if topics else ClusterImage()
    back = load(written(image))
    assert back.digest() == image.digest()
    assert back == image
    assert (back.leader_masks, back.hosting_masks, back.topic_ids) == (
        image.leader_masks,
        image.hosting_masks,
        image.topic_ids,
    )
    assert written(back) == written(image)
    if topics == 3:
        check = msgspec.structs.replace(back, preferred_controllers=())
        assert check.digest() != image.digest()


@pytest.mark.parametrize("partitions", [2, 5000])
def test_a_topic_that_got_another_id_keeps_its_first_id_as_origin_after_loading(partitions: int) -> None:
    image = example(3, partitions)
    renewals: list[Record] = [RenewTopic(topic_id(0), topic_id(20_000)), RenewTopic(topic_id(2), topic_id(20_002))]
    image = image.apply(image.end_offset, renewals, 4)
    back = load(written(image))
    assert back.topics[topic_id(20_000)].origin == topic_id(0)
    assert back.topics[topic_id(1)].origin == topic_id(1)
    assert back == image


def test_a_loaded_image_continues_with_the_log() -> None:
    image = example()
    change = PartitionChange(topic_id(0), 0, Reason.ISR_SHRINK, 1, 2, isr=(2,), leader=2)
    records: list[Record] = [change, RemoveTopic(topic_id(1))]
    back = load(written(image))
    assert back.apply(back.end_offset, records, 5).digest() == image.apply(image.end_offset, records, 5).digest()


def test_the_masks_of_a_loaded_image_match_its_partitions() -> None:
    image = load(written(example(4, 40)))
    healed = image.apply(
        image.end_offset, [PartitionChange(topic_id(0), 1, Reason.ISR_EXPAND, 1, 2, isr=(1, 2, 3), elr=(), leader=1)]
    )
    fenced = healed.brokers.mutate()
    for broker_id, broker in healed.brokers.items():
        fenced[broker_id] = msgspec.structs.replace(broker, fenced=False)
    check_invariants(msgspec.structs.replace(healed, brokers=fenced.finish()))


def test_the_bytes_of_a_snapshot_are_the_same_in_every_process() -> None:
    script = (
        "import hashlib, sys; from tests.unit.metadata.test_snapshot import *;"
        "print(hashlib.sha256(b'|'.join(written(example(50, 20)))).hexdigest())"
    )
    results = {
        subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(results) == 1


def test_a_missing_repeated_or_reordered_chunk_is_refused() -> None:
    pieces = written(example(3, 3000))
    assert len(pieces) >= 7
    for number in range(len(pieces)):
        with pytest.raises(CorruptStoreError, match="test: "):
            load(pieces[:number] + pieces[number + 1 :])
        with pytest.raises(CorruptStoreError, match="test: "):
            load(pieces[: number + 1] + pieces[number:])
    for number in range(len(pieces) - 1):
        swapped = [*pieces]
        swapped[number : number + 2] = reversed(swapped[number : number + 2])
        with pytest.raises(CorruptStoreError, match="test: "):
            load(swapped)


def test_unknown_versions_kinds_and_fields_are_refused() -> None:
    encode, decode = msgspec.msgpack.encode, msgspec.msgpack.decode
    pieces = written(example())
    begin = decode(pieces[0])
    for changed in ([begin[0], snapshot.VERSION + 1, *begin[2:]], [*begin, 1], [99, *begin[1:]], begin[:-1]):
        with pytest.raises(CorruptStoreError):
            load([encode(changed), *pieces[1:]])
    for number, piece in enumerate(pieces):
        with pytest.raises(CorruptStoreError):
            load([*pieces[:number], encode([*decode(piece), 0]), *pieces[number + 1 :]])


def test_indexes_past_their_table_are_refused() -> None:
    encode, decode = msgspec.msgpack.encode, msgspec.msgpack.decode
    pieces = written(example())
    number = next(at for at, piece in enumerate(pieces) if decode(piece)[0] == 3)
    for field, value in ((5, 99), (6, 99), (5, -1), (6, -1)):
        fields = decode(pieces[number])
        fields[field][0] = value
        with pytest.raises(CorruptStoreError):
            load([*pieces[:number], encode(fields), *pieces[number + 1 :]])


def test_later_changes_of_the_image_are_not_in_the_snapshot() -> None:
    image = example(3, 4)
    stream = chunks(image)
    pieces = [next(stream)]
    image.apply(image.end_offset, [RemoveTopic(topic_id(0))], 4)
    pieces += [piece for piece in stream if piece]
    assert load(pieces).digest() == image.digest()
