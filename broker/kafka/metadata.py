"""Metadata responses (brokers, topics and leaders), encoded by hand and cached.

Theory of operation.  After a failover all clients request all their topics at the same time.  The generated writer
takes 9 µs for each partition and allocates field objects.  So this module packs the response itself and caches it in
encoded form.  The cache key is the version, the listener and the topics that the request names.  The cache is valid for
one state of the image's `topics` and `brokers`.  Both are persistent maps: the same object means the same content, and
a different object empties the cache.

Versions 0 to 13; flexible from 9 on.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import Any, Final
from uuid import UUID

from metadata.image import BrokerImage, ClusterImage, PartitionImage, TopicImage, is_internal
from metadata.records import NO_LEADER
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.buffer import count, nullable_string, string
from quorumlog.wire.kafka.produce import NodeEndpoint

_FIRST_WITH_RACK: Final = 1
_FIRST_WITH_CLUSTER_ID: Final = 2
_FIRST_WITH_THROTTLE: Final = 3
_FIRST_WITH_OFFLINE: Final = 5
_FIRST_WITH_LISTENER_ERROR: Final = 6
_FIRST_WITH_LEADER_EPOCH: Final = 7
_FIRST_WITH_OPERATIONS: Final = 8
_LAST_WITH_CLUSTER_OPERATIONS: Final = 10
_FIRST_FLEXIBLE: Final = 9
_FIRST_WITH_TOPIC_ID: Final = 10
_FIRST_WITH_NULL_NAME: Final = 12
_FIRST_WITH_ERROR: Final = 13

_INT32: Final = struct.Struct(">i")
_PARTITION: Final = struct.Struct(">hii")
_NO_OPERATIONS: Final = struct.pack(">i", -(2**31))
_INVALID_TOPIC: Final = 17
_LISTENER_NOT_FOUND: Final = 72
_CACHE_ENTRIES_MAX: Final = 256
_CACHE_KEY_MAX_BYTES: Final = 64 << 10

_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")

Wanted = tuple[tuple[UUID | None, str | None], ...] | None
"""Topics by id or name, as the request names them; None means all topics."""


def is_topic_name(name: str) -> bool:
    return name not in (".", "..") and _TOPIC_NAME.fullmatch(name) is not None


def node_endpoint(broker: BrokerImage, listener: str) -> NodeEndpoint | None:
    """Return the broker's endpoint for clients of this listener; None if it is fenced or has no such listener."""
    endpoint = None if broker.fenced else broker.endpoint(listener)
    return None if endpoint is None else NodeEndpoint(broker.broker_id, endpoint.host, endpoint.port, broker.rack)


def node_endpoints(image: ClusterImage, broker_ids: Iterable[int], listener: str) -> list[NodeEndpoint]:
    """Return the endpoints of the brokers that have one, by ascending id."""
    found = []
    for broker_id in sorted(set(broker_ids)):
        broker = image.brokers.get(broker_id)
        if broker is not None and (node := node_endpoint(broker, listener)) is not None:
            found.append(node)
    return found


def leader_or_error(image: ClusterImage, partition: PartitionImage, reachable: frozenset[int]) -> tuple[int, int]:
    """Return the leader, if clients of this listener can reach it, and an error code.

    reachable: the brokers that have an endpoint for this listener.
    """
    if partition.leader in reachable:
        return partition.leader, 0
    known = partition.leader != NO_LEADER and partition.leader in image.brokers
    return NO_LEADER, _LISTENER_NOT_FOUND if known else KafkaCode.LEADER_NOT_AVAILABLE.value


def offline_replicas(image: ClusterImage, partition: PartitionImage) -> list[int]:
    """Return the brokers that do not serve their replica of the partition now."""
    offline = []
    for replica in partition.replicas:
        broker = image.brokers.get(replica.broker_id)
        if broker is None or broker.fenced or not broker.directory_online(replica.directory_id):
            offline.append(replica.broker_id)
    return offline


def wanted_topics(request: Any, version: int) -> Wanted:
    """Return the topics that a decoded request asks for, each once.

    Otherwise a small request could repeat a name many times and cause a very large response.
    """
    if request.topics is None or (version == 0 and not request.topics):
        return None
    if version < _FIRST_WITH_TOPIC_ID:
        return tuple(dict.fromkeys((None, topic.name) for topic in request.topics))
    names = ((each.topic_id, each.name if each.topic_id is None else None) for each in request.topics)
    return tuple(dict.fromkeys(names))


class MetadataResponses:
    """The encoded Metadata responses of one broker."""

    def __init__(self, node_id: int, cluster_id: str, cache_max_bytes: int) -> None:
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._cache_max_bytes = cache_max_bytes
        self._cache: dict[tuple[int, str, Wanted], bytes] = {}
        self._cached_bytes = 0
        self._topics: object = None
        self._brokers: object = None

    def response(self, image: ClusterImage, version: int, listener: str, wanted: Wanted, key_size: int = 0) -> bytes:
        """Return the encoded response.  key_size: bytes of `wanted`; above a limit the response is not cached."""
        if image.topics is not self._topics or image.brokers is not self._brokers:
            self._cache.clear()
            self._cached_bytes = 0
            self._topics, self._brokers = image.topics, image.brokers
        key = (version, listener, wanted)
        body = self._cache.get(key)
        if body is None:
            body = _encode(image, version, listener, wanted, self._node_id, self._cluster_id)
            size = len(body) + key_size
            if len(self._cache) >= _CACHE_ENTRIES_MAX or self._cached_bytes + size > self._cache_max_bytes:
                self._cache.clear()
                self._cached_bytes = 0
            if size <= self._cache_max_bytes and key_size <= _CACHE_KEY_MAX_BYTES:
                self._cache[key] = body
                self._cached_bytes += size
        return body


def _encode(image: ClusterImage, version: int, listener: str, wanted: Wanted, node_id: int, cluster_id: str) -> bytes:
    flexible = version >= _FIRST_FLEXIBLE
    end = b"\0" if flexible else b""
    nodes = node_endpoints(image, image.brokers, listener)
    out = bytearray()
    if version >= _FIRST_WITH_THROTTLE:
        out += b"\0\0\0\0"
    out += count(len(nodes), flexible)
    for node in nodes:
        out += _INT32.pack(node.node_id) + string(node.host, flexible) + _INT32.pack(node.port)
        if version >= _FIRST_WITH_RACK:
            out += nullable_string(node.rack, flexible)
        out += end
    if version >= _FIRST_WITH_CLUSTER_ID:
        out += nullable_string(cluster_id, flexible)
    reachable = frozenset(node.node_id for node in nodes)
    if version >= _FIRST_WITH_RACK:  # the controller id: any broker forwards requests to the controller
        out += _INT32.pack(node_id if node_id in reachable else -1)
    topics = _TopicWriter(image, version, reachable)
    if wanted is None:
        names = sorted(image.topic_ids)
        out += count(len(names), flexible)
        for each in names:
            topics.write(out, image.topics[image.topic_ids[each]])
    else:
        out += count(len(wanted), flexible)
        for topic_id, name in wanted:
            topics.write_wanted(out, topic_id, name)
    if _FIRST_WITH_OPERATIONS <= version <= _LAST_WITH_CLUSTER_OPERATIONS:
        out += _NO_OPERATIONS
    if version >= _FIRST_WITH_ERROR:
        out += b"\0\0"
    return bytes(out + end)


class _TopicWriter:
    def __init__(self, image: ClusterImage, version: int, reachable: frozenset[int]) -> None:
        self._image = image
        self._version = version
        self._reachable = reachable
        self._flexible = version >= _FIRST_FLEXIBLE
        self._end = b"\0" if self._flexible else b""

    def write_wanted(self, out: bytearray, topic_id: UUID | None, name: str | None) -> None:
        if topic_id is not None:
            topic = self._image.topics.get(topic_id)
            unknown = KafkaCode.UNKNOWN_TOPIC_ID.value
        else:
            topic = self._image.topic(name or "")
            unknown = KafkaCode.UNKNOWN_TOPIC_OR_PARTITION.value if is_topic_name(name or "") else _INVALID_TOPIC
        if topic is not None:
            self.write(out, topic)
        else:
            self._head(out, unknown, name, topic_id)
            out += count(0, self._flexible)
            self._tail(out)

    def write(self, out: bytearray, topic: TopicImage) -> None:
        self._head(out, 0, topic.name, topic.topic_id)
        partitions = [partition for partition in topic.partitions if partition is not None]
        out += count(len(partitions), self._flexible)
        for partition in partitions:
            self._partition(out, partition)
        self._tail(out)

    def _head(self, out: bytearray, error: int, name: str | None, topic_id: UUID | None) -> None:
        out += error.to_bytes(2, "big")
        if self._version >= _FIRST_WITH_NULL_NAME:
            out += nullable_string(name, True)
        else:
            out += string(name or "", self._flexible)
        if self._version >= _FIRST_WITH_TOPIC_ID:
            out += topic_id.bytes if topic_id is not None else bytes(16)
        if self._version >= 1:
            out += b"\1" if is_internal(name or "") else b"\0"

    def _tail(self, out: bytearray) -> None:
        if self._version >= _FIRST_WITH_OPERATIONS:
            out += _NO_OPERATIONS
        out += self._end

    def _partition(self, out: bytearray, partition: PartitionImage) -> None:
        leader, error = leader_or_error(self._image, partition, self._reachable)
        if error == _LISTENER_NOT_FOUND and self._version < _FIRST_WITH_LISTENER_ERROR:
            error = KafkaCode.LEADER_NOT_AVAILABLE.value
        out += _PARTITION.pack(error, partition.index, leader)
        if self._version >= _FIRST_WITH_LEADER_EPOCH:
            out += _INT32.pack(partition.leader_epoch)
        self._ids(out, partition.replica_ids)
        self._ids(out, partition.isr)
        if self._version >= _FIRST_WITH_OFFLINE:
            self._ids(out, offline_replicas(self._image, partition))
        out += self._end

    def _ids(self, out: bytearray, ids: tuple[int, ...] | list[int]) -> None:
        out += count(len(ids), self._flexible)
        out += struct.pack(f">{len(ids)}i", *ids)
