"""Converts the cluster image to a stream of chunks and back.

Theory of operation.  A chunk is msgpack, tagged with its kind.  The quorum writes the chunks to a file, with a checksum
for each, and with the log end of the image (`quorum/snapshots.py`).  So the chunks that this module reads are
undamaged, but a newer version may have written them.  Everything is in one fixed order, so equal images give equal
bytes in every process.  Partitions are written as columns, with tables of the replica lists, member lists and
directories that occur in the chunk.  This takes about 20 bytes per partition, and decoding is mostly one C call per
chunk.

An image never changes, so it can be written slowly while newer images are made.  `chunks` is a generator that works for
a few milliseconds between two values, and yields an empty chunk if no chunk is ready.  Sorting a million topics in one
step would take a second, so they are first distributed to buckets, and then sorted bucket by bucket.

Reading is strict.  An unknown kind, version or field, a chunk out of order, a repeated name or a wrong count is
refused; nothing is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from immutables import Map

from metadata.image import BrokerImage, ClusterImage, PartitionImage, TopicImage
from metadata.image.bits import flip_mask
from metadata.image.editor import Masks
from metadata.image.model import REASSIGNING
from metadata.records import METADATA_VERSION, METADATA_VERSION_MAX, METADATA_VERSION_MIN, ConfigScope, Replica
from quorumlog.errors import CorruptStoreError

VERSION = 1
"""Version of the chunks' content.  A reader refuses every other version."""

CHUNK_PARTITIONS = 1024
"""Partitions in one chunk: a few milliseconds of work."""
CHUNK_ENTRIES = 1024
COLLECT_SLICE = 2048
"""Keys distributed to buckets between two (empty) values of the generator."""

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class Begin(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """The first chunk: the version, the end of the image, its small fields, and the counts of the other entries."""

    version: int
    end_offset: int
    epoch: int
    next_producer_id: int
    preferred_controllers: tuple[int, ...]
    features: tuple[tuple[str, int], ...]
    brokers: int
    topics: int
    past_epochs: int
    configs: int


class Brokers(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    brokers: tuple[BrokerImage, ...]


class Topics(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """Partitions of some topics, as columns.

    topics: (id, name, total partitions, index of the first partition in this chunk, number of partitions in this
    chunk); the parts of a topic are consecutive.  directories: directory ids that occur.  replica_lists: for each list,
    (broker id, index of its directory) of every replica, flattened.  members: lists of broker ids.  The columns hold
    one value per partition: an index into one of these tables, or a plain number.  renewed: (id, origin) of the topics
    in this chunk that were created with another id.
    """

    topics: tuple[tuple[bytes, str, int, int, int], ...]
    directories: tuple[bytes, ...]
    replica_lists: tuple[tuple[int, ...], ...]
    members: tuple[tuple[int, ...], ...]
    replicas: list[int]
    isr: list[int]
    elr: list[int]
    adding: list[int]
    removing: list[int]
    leader: list[int]
    leader_epoch: list[int]
    partition_epoch: list[int]
    created: list[int]
    last_offset: list[int]
    renewed: tuple[tuple[bytes, bytes], ...] = ()


class PastEpochs(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=4):
    entries: tuple[tuple[str, tuple[int, ...]], ...]


class Configs(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=5):
    """Configs, as (scope, resource, (key, value)…) for each resource."""

    entries: tuple[tuple[int, str, tuple[tuple[str, str], ...]], ...]


class End(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=6):
    """The last chunk.  partitions: the total number of partitions."""

    partitions: int


Chunk = Begin | Brokers | Topics | PastEpochs | Configs | End

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Chunk)


# Writing


def chunks(image: ClusterImage) -> Iterator[bytes]:
    """Yield the image in chunks; each takes a few milliseconds.

    An empty chunk is not part of the image: it only lets the caller run other tasks.
    """
    yield _encoder.encode(
        Begin(
            version=VERSION,
            end_offset=image.end_offset,
            epoch=image.epoch,
            next_producer_id=image.next_producer_id,
            preferred_controllers=image.preferred_controllers,
            features=tuple(sorted(image.features.items())),
            brokers=len(image.brokers),
            topics=len(image.topics),
            past_epochs=len(image.past_epochs),
            configs=len(image.configs) + len(image.group_configs),
        )
    )
    for ids in _pieces(sorted(image.brokers), CHUNK_ENTRIES):
        yield _encoder.encode(Brokers(tuple(image.brokers[broker_id] for broker_id in ids)))
    partitions = yield from _topic_chunks(image)
    for names in _ordered(image.past_epochs, lambda name: name[:2], lambda name: name):
        yield _encoder.encode(PastEpochs(tuple((name, image.past_epochs[name]) for name in names))) if names else b""
    resources_with_configs = (resource for resource, _ in image.all_configs())
    for resources in _ordered(resources_with_configs, _config_bucket, lambda key: (key[0].value, key[1])):
        yield _encoder.encode(Configs(tuple(_config_entry(image, key) for key in resources))) if resources else b""
    yield _encoder.encode(End(partitions))


def _config_bucket(key: tuple[ConfigScope, str]) -> tuple[int, str]:
    return key[0].value, key[1][:3]


def _config_entry(image: ClusterImage, key: tuple[ConfigScope, str]) -> tuple[int, str, tuple[tuple[str, str], ...]]:
    return key[0].value, key[1], tuple(sorted(image.config(*key).items()))


def _ordered(keys: Iterable[K], bucket_of: Callable[[K], Any], order: Callable[[K], Any]) -> Iterator[Sequence[K]]:
    """Yield all keys in ascending order, enough for one chunk at a time.

    An empty sequence only lets the caller run other tasks.  `bucket_of` must not decrease where `order` increases.
    """
    buckets: dict[Any, list[K]] = {}
    for number, key in enumerate(keys, 1):
        buckets.setdefault(bucket_of(key), []).append(key)
        if number % COLLECT_SLICE == 0:
            yield ()
    gathered: list[K] = []
    for bucket in sorted(buckets):
        gathered += sorted(buckets[bucket], key=order)
        while len(gathered) >= CHUNK_ENTRIES:
            yield gathered[:CHUNK_ENTRIES]
            gathered = gathered[CHUNK_ENTRIES:]
    if gathered:
        yield gathered


def _pieces(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _topic_chunks(image: ClusterImage) -> Generator[bytes, None, int]:
    """Yield the chunks of all topics, and return the number of partitions."""
    columns = _Columns()
    total = 0
    for ids in _ordered(image.topics, lambda topic_id: topic_id.int >> 116, lambda topic_id: topic_id.int):
        for topic_id in ids:
            topic = image.topics[topic_id]
            total += len(topic.partitions)
            first = 0
            while True:
                part = topic.partitions[first : first + CHUNK_PARTITIONS - columns.size]
                columns.add(topic, first, part)
                first += len(part)
                if columns.is_full:
                    yield columns.encoded()
                    columns = _Columns()
                if first >= len(topic.partitions):
                    break
        yield b""
    if columns.topics:
        yield columns.encoded()
    return total


class _Columns:
    """Builds a `Topics` chunk."""

    def __init__(self) -> None:
        self.topics: list[tuple[bytes, str, int, int, int]] = []
        self.renewed: list[tuple[bytes, bytes]] = []
        self.size = 0
        self._directories: dict[UUID, int] = {}
        self._replica_lists: dict[tuple[int, ...], int] = {}
        self._members: dict[tuple[int, ...], int] = {}
        self._rows: list[tuple[int, ...]] = []

    @property
    def is_full(self) -> bool:
        return self.size >= CHUNK_PARTITIONS or len(self.topics) >= CHUNK_PARTITIONS

    def add(self, topic: TopicImage, first: int, part: Sequence[PartitionImage | None]) -> None:
        self.topics.append((topic.topic_id.bytes, topic.name, len(topic.partitions), first, len(part)))
        if topic.origin != topic.topic_id:
            self.renewed.append((topic.topic_id.bytes, topic.origin.bytes))
        self.size += len(part)
        members, lists = self._members, self._replica_lists
        for partition in part:
            assert partition is not None, f"topic {topic.name} has a hole between batches"
            flat = self._flat(partition.replicas)
            self._rows.append(
                (
                    lists.setdefault(flat, len(lists)),
                    members.setdefault(partition.isr, len(members)),
                    members.setdefault(partition.elr, len(members)),
                    members.setdefault(partition.adding, len(members)),
                    members.setdefault(partition.removing, len(members)),
                    partition.leader,
                    partition.leader_epoch,
                    partition.partition_epoch,
                    partition.created,
                    partition.last_offset,
                )
            )

    def _flat(self, replicas: Sequence[Replica]) -> tuple[int, ...]:
        directories = self._directories
        flat: list[int] = []
        for replica in replicas:
            flat.append(replica.broker_id)
            flat.append(directories.setdefault(replica.directory_id, len(directories)))
        return tuple(flat)

    def encoded(self) -> bytes:
        columns = [list(column) for column in zip(*self._rows, strict=True)] or [[] for _ in range(10)]
        fields: list[Any] = [
            tuple(self.topics),
            tuple([directory.bytes for directory in self._directories]),
            tuple(self._replica_lists),
            tuple(self._members),
            *columns,
            tuple(self.renewed),
        ]
        return _encoder.encode(Topics(*fields))


# Reading


class ImageLoader:
    """Builds an image from its chunks, in order.  source: the origin of the chunks, for error messages."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._begin: Begin | None = None
        self._end: End | None = None
        self._stage = 0
        self._brokers: dict[int, BrokerImage] = {}
        self._topics = Map[UUID, TopicImage]().mutate()
        self._topic_ids = Map[str, UUID]().mutate()
        self._leads: dict[int, _MaskMap] = {}
        self._hosts: dict[int, _MaskMap] = {}
        self._past_epochs = Map[str, tuple[int, ...]]().mutate()
        self._configs = Map[tuple[ConfigScope, str], Map[str, str]]().mutate()
        self._group_configs = Map[str, Map[str, str]]().mutate()
        self._open: tuple[bytes, str, int] | None = None  # a topic whose further partitions are in later chunks
        self._part: list[PartitionImage] = []
        self._last_topic = b""
        self._partitions = 0

    def feed(self, chunk: bytes) -> None:
        """Add the next chunk.

        Raises:
            CorruptStoreError: the chunk does not have the format of this version, or is out of order.
        """
        try:
            decoded: Chunk = _decoder.decode(chunk)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._refuse(f"not a chunk of an image, or one of a newer version: {error}") from error
        stage = type(decoded).__struct_config__.tag
        assert isinstance(stage, int)
        self._require((self._begin is None) == isinstance(decoded, Begin), "it does not begin with its header")
        self._require(stage >= self._stage and self._end is None, f"chunk of kind {stage} after kind {self._stage}")
        self._stage = stage
        match decoded:
            case Begin():
                self._require(decoded.version == VERSION, f"version {decoded.version}; this program knows {VERSION}")
                level = dict(decoded.features).get(METADATA_VERSION, METADATA_VERSION_MIN)
                what = f"level {level} of {METADATA_VERSION}; this release understands at most {METADATA_VERSION_MAX}"
                self._require(level <= METADATA_VERSION_MAX, what)
                self._begin = decoded
            case Brokers(brokers):
                for broker in brokers:
                    self._require(broker.broker_id not in self._brokers, f"broker {broker.broker_id} twice")
                    self._brokers[broker.broker_id] = broker
            case Topics():
                self._add_topics(decoded)
            case PastEpochs(entries):
                for name, epochs in entries:
                    self._require(name not in self._past_epochs, f"past epochs of {name} twice")
                    self._past_epochs[name] = epochs
            case Configs():
                self._add_configs(decoded)
            case End():
                self._end = decoded

    def finish(self) -> ClusterImage:
        """Return the image, after all chunks.

        Raises:
            CorruptStoreError: chunks are missing, or the numbers of entries differ from the announced ones.
        """
        begin, end = self._begin, self._end
        if begin is None or end is None:
            raise self._refuse("its last chunk is missing")
        self._require(self._open is None, "a topic is not complete")
        for what, wanted, found in (
            ("brokers", begin.brokers, len(self._brokers)),
            ("topics", begin.topics, len(self._topics)),
            ("topic names", begin.topics, len(self._topic_ids)),
            ("partitions", end.partitions, self._partitions),
            ("past epochs", begin.past_epochs, len(self._past_epochs)),
            ("configs", begin.configs, len(self._configs) + len(self._group_configs)),
        ):
            self._require(wanted == found, f"{found} {what}, {wanted} announced")
        return ClusterImage(
            topics=self._topics.finish(),
            topic_ids=self._topic_ids.finish(),
            brokers=Map(self._brokers),
            leader_masks=Map({broker: masks.finish() for broker, masks in self._leads.items()}),
            hosting_masks=Map({broker: masks.finish() for broker, masks in self._hosts.items()}),
            past_epochs=self._past_epochs.finish(),
            configs=self._configs.finish(),
            group_configs=self._group_configs.finish(),
            features=Map(begin.features),
            preferred_controllers=begin.preferred_controllers,
            next_producer_id=begin.next_producer_id,
            end_offset=begin.end_offset,
            epoch=begin.epoch,
        )

    def _add_configs(self, chunk: Configs) -> None:
        for scope, resource, values in chunk.entries:
            try:
                kind = ConfigScope(scope)
            except ValueError as error:
                raise self._refuse(f"config scope {scope} is unknown") from error
            twice = f"configs of {kind.name} {resource!r} twice"
            if kind is ConfigScope.GROUP:
                self._require(resource not in self._group_configs, twice)
                self._group_configs[resource] = Map(values)
            else:
                self._require((kind, resource) not in self._configs, twice)
                self._configs[kind, resource] = Map(values)

    def _add_topics(self, chunk: Topics) -> None:
        partitions = self._partitions_of(chunk)
        origins = dict(chunk.renewed)
        self._require(all(len(origin) == 16 for origin in origins.values()), "an origin that does not have 16 bytes")
        at = 0
        for topic_id, name, total, first, count in chunk.topics:
            self._require(len(topic_id) == 16, f"topic id of {len(topic_id)} bytes")
            self._require(count >= 0 and first + count <= total, f"topic {name}: {first}+{count} of {total}")
            if self._open is None:
                self._require(first == 0 and topic_id > self._last_topic, f"topic {name} is out of order")
            else:
                self._require(self._open == (topic_id, name, total), f"topic {self._open[1]} is not complete")
                self._require(first == len(self._part), f"topic {name}: partition {first} after {len(self._part)}")
            part = partitions[at : at + count]
            self._require(len(part) == count, f"topic {name}: {len(part)} partitions, {count} announced")
            at += count
            if first:
                part = [msgspec.structs.replace(each, index=first + index) for index, each in enumerate(part)]
            self._part += part
            self._open = (topic_id, name, total)
            if first + count == total:
                self._close_topic(UUID(bytes=topic_id), name, UUID(bytes=origins.get(topic_id, topic_id)))
                self._last_topic = topic_id
        self._require(at == len(partitions), f"{len(partitions)} partitions, {at} announced")

    def _partitions_of(self, chunk: Topics) -> list[PartitionImage]:
        """Return the chunk's partitions; indexes count from 0 in each topic's part."""
        indexes = [index for entry in chunk.topics for index in range(max(0, min(entry[4], CHUNK_PARTITIONS)))]
        directories = [UUID(bytes=each) for each in chunk.directories if len(each) == 16]
        self._require(len(directories) == len(chunk.directories), "a directory id that does not have 16 bytes")
        columns = (
            chunk.created,
            chunk.replicas,
            chunk.isr,
            chunk.elr,
            chunk.adding,
            chunk.removing,
            chunk.leader,
            chunk.leader_epoch,
            chunk.partition_epoch,
            chunk.last_offset,
        )
        self._require(all(len(column) == len(indexes) for column in columns), "columns of different lengths")
        self._require(all(not column or min(column) >= 0 for column in (*columns[:6], *columns[7:])), "negative number")
        try:
            replica_lists = [
                tuple([Replica(flat[at], directories[flat[at + 1]]) for at in range(0, len(flat), 2)])
                for flat in chunk.replica_lists
            ]
            replicas = [replica_lists[index] for index in chunk.replicas]
            members = chunk.members
            isr, elr, adding, removing = (
                [members[index] for index in column] for column in (chunk.isr, chunk.elr, chunk.adding, chunk.removing)
            )
        except IndexError as error:
            raise self._refuse("an index beyond the end of its table") from error
        return list(
            map(
                PartitionImage,
                indexes,
                chunk.created,
                replicas,
                isr,
                elr,
                adding,
                removing,
                chunk.leader,
                chunk.leader_epoch,
                chunk.partition_epoch,
                chunk.last_offset,
            )
        )

    def _close_topic(self, topic_id: UUID, name: str, origin: UUID) -> None:
        self._require(name not in self._topic_ids, f"topic name {name} twice")
        partitions = tuple(self._part)
        self._part = []
        self._open = None
        self._partitions += len(partitions)
        self._topics[topic_id] = TopicImage(topic_id, name, origin, partitions)
        self._topic_ids[name] = topic_id
        leads: dict[int, list[int]] = {}
        placed: dict[int, list[int]] = {}
        lists: dict[int, tuple[Replica, ...]] = {}
        for index, partition in enumerate(partitions):
            leads.setdefault(partition.leader, []).append(index)
            if partition.adding or partition.removing:
                leads.setdefault(REASSIGNING, []).append(index)
            replicas = partition.replicas  # one object for all partitions of a chunk with the same list
            placed.setdefault(id(replicas), []).append(index)
            lists[id(replicas)] = replicas
        for broker_id, members in leads.items():
            self._leads.setdefault(broker_id, _MaskMap()).add(topic_id, flip_mask(members), len(members))
        hosts: dict[int, int] = {}
        for number, members in placed.items():
            mask = flip_mask(members)
            for replica in lists[number]:
                hosts[replica.broker_id] = hosts.get(replica.broker_id, 0) | mask
        for broker_id, mask in hosts.items():
            self._hosts.setdefault(broker_id, _MaskMap()).add(topic_id, mask, mask.bit_count())

    def _require(self, condition: bool, problem: str) -> None:
        if not condition:
            raise self._refuse(problem)

    def _refuse(self, problem: str) -> CorruptStoreError:
        return CorruptStoreError(f"{self._source}: {problem}", next_step="run the release that wrote this snapshot")


class _MaskMap:
    """Builds the `Masks` of one broker."""

    def __init__(self) -> None:
        self._by_topic = Map[UUID, int]().mutate()
        self._count = 0

    def add(self, topic_id: UUID, mask: int, count: int) -> None:
        self._by_topic[topic_id] = mask
        self._count += count

    def finish(self) -> Masks:
        return Masks(self._by_topic.finish(), self._count)
