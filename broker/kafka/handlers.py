"""The requests that this broker answers, with their versions and functions: the table `HANDLERS`.

Handlers convert and decide nothing (see `broker/kafka/api.py`).  A handler that does not wait returns its reply without
a task; the others are coroutines.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from broker.kafka import admin, configs, data, partitions, reassignments
from broker.kafka.api import NO_EPOCH, Replicas
from broker.kafka.connection import Caller, HangUp, Pending, Reply
from broker.kafka.limits import KafkaLimits
from broker.kafka.metadata import MetadataResponses, node_endpoints, wanted_topics
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka import codec, fetch, produce
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.rpcs import ControllerCall

_UNSUPPORTED_VERSION: Final = 35
_TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Final = 53
_NO_TRANSACTIONS: Final = "transactions are not supported"
_NO_GROUPS: Final = "consumer groups are not supported; assign partitions"
_GROUP: Final = 0
_FIRST_LIST_OFFSETS_WITH_NOT_AVAILABLE: Final = 5


Outcome = Reply | Pending | Awaitable[Reply]


class Resource(Enum):
    """The kind of object that a request acts on, named as in Kafka's access control lists."""

    CLUSTER = auto()
    TOPIC = auto()
    GROUP = auto()


class Operation(Enum):
    """The action of a request on its resource, named as in Kafka's access control lists."""

    READ = auto()
    WRITE = auto()
    CREATE = auto()
    DELETE = auto()
    ALTER = auto()
    DESCRIBE = auto()
    DESCRIBE_CONFIGS = auto()
    ALTER_CONFIGS = auto()
    IDEMPOTENT_WRITE = auto()


class Access(NamedTuple):
    resource: Resource
    operation: Operation


@dataclass(frozen=True, slots=True)
class Handler:
    """One request that this broker answers.

    low, offered: the versions that ApiVersions reports.
    of_brokers: a higher version, which only brokers use.
    access: the permission that the caller needs; None if everybody may send the request.  It is not checked yet.
    """

    low: int
    offered: int
    answer: Callable[[Handlers, Caller, memoryview], Outcome]
    access: Access | None
    of_brokers: int = 0

    @property
    def accepted(self) -> int:
        """The highest version that this broker answers."""
        return max(self.offered, self.of_brokers)


class Handlers:
    def __init__(
        self,
        replicas: Replicas,
        controller_call: ControllerCall,
        *,
        node_id: int,
        cluster_id: str,
        limits: KafkaLimits,
        wait_for_metadata: Callable[[int], Awaitable[object]] | None,
        reply_room: Callable[[], int],
    ) -> None:
        """reply_room: returns the bytes of records that one reply to a consumer may contain now."""
        self._replicas = replicas
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._forwarder = admin.Forwarder(controller_call, limits.controller_timeout_max_ms, wait_for_metadata)
        self._limits = limits
        self._metadata = MetadataResponses(node_id, cluster_id, limits.metadata_cache_max_bytes)
        self._reply_room = reply_room
        self.requests: dict[str, int] = {api.name.lower(): 0 for api in HANDLERS}
        """Number of requests begun, by name, for the metrics."""
        self._api_versions: dict[int, bytes] = {}

    def joined(self, cluster_id: str) -> None:
        """Set the cluster id, which may not have been known when this object was made."""
        self._cluster_id = cluster_id
        self._metadata = MetadataResponses(self._node_id, cluster_id, self._limits.metadata_cache_max_bytes)

    def dispatch(self, caller: Caller, frame: memoryview) -> Outcome:
        """Begin a request.

        Raises: HangUp, RemoteProtocolError.
        """
        header = caller.header
        if header.api_key not in HANDLERS:
            raise HangUp(f"unknown api key {header.api_key} (version {header.api_version})")
        api = Api(header.api_key)
        handler = HANDLERS[api]
        if not handler.low <= header.api_version <= handler.accepted:
            if api is Api.API_VERSIONS:  # clients can read this refusal alone, and only in the oldest version
                return (self._api_versions_body(0, _UNSUPPORTED_VERSION),)
            raise HangUp(f"version {header.api_version} of {api.name}; {handler.low} to {handler.offered} are offered")
        self.requests[api.name.lower()] += 1
        return handler.answer(self, caller, frame)

    # --- answered at once ---

    def _on_produce(self, caller: Caller, frame: memoryview) -> Outcome:
        return data.handle_produce(self._replicas, caller, frame)

    def _on_api_versions(self, caller: Caller, frame: memoryview) -> Reply:
        codec.decode_request(caller.header, frame)
        version = caller.header.api_version
        if version not in self._api_versions:
            self._api_versions[version] = self._api_versions_body(version, 0)
        return (self._api_versions[version],)

    def _api_versions_body(self, version: int, error_code: int) -> bytes:
        keys = [
            {"api_key": int(api), "min_version": handler.low, "max_version": handler.offered}
            for api, handler in sorted(HANDLERS.items())
        ]
        return codec.encode_response_body(Api.API_VERSIONS, version, {"error_code": error_code, "api_keys": keys})

    def _on_metadata(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        version = caller.header.api_version
        wanted = wanted_topics(request, version)
        return (self._metadata.response(self._replicas.image, version, caller.listener, wanted, len(frame)),)

    def _on_find_coordinator(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        if getattr(request, "key_type", _GROUP) == _GROUP:
            code, message = int(KafkaCode.COORDINATOR_NOT_AVAILABLE), _NO_GROUPS
        else:  # fatal to a producer, so that it fails at once instead of waiting for a coordinator
            code, message = _TRANSACTIONAL_ID_AUTHORIZATION_FAILED, _NO_TRANSACTIONS
        nowhere = {"error_code": code, "error_message": message, "node_id": -1, "host": "", "port": -1}
        keys = getattr(request, "coordinator_keys", ())
        return _encoded(caller, {**nowhere, "coordinators": [{**nowhere, "key": key} for key in keys]})

    def _on_describe_cluster(self, caller: Caller, frame: memoryview) -> Reply:
        codec.decode_request(caller.header, frame)
        image = self._replicas.image
        nodes = node_endpoints(image, image.brokers, caller.listener)
        known = any(node.node_id == self._node_id for node in nodes)
        brokers = [
            {"broker_id": node.node_id, "host": node.host, "port": node.port, "rack": node.rack} for node in nodes
        ]
        values = {"cluster_id": self._cluster_id, "controller_id": self._node_id if known else -1, "brokers": brokers}
        return _encoded(caller, values)

    def _on_describe_configs(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        return _encoded(caller, configs.describe_configs(request, self._replicas.image))

    def _on_epoch_end(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        topics = []
        for topic in request.topics:
            partitions = []
            for item in topic.partitions:
                end = self._replicas.epoch_end(
                    topic.topic, item.partition, item.leader_epoch, item.current_leader_epoch
                )
                partitions.append(
                    {
                        "partition": item.partition,
                        "error_code": end.error_code,
                        "leader_epoch": end.leader_epoch,
                        "end_offset": end.end_offset,
                    }
                )
            topics.append({"topic": topic.topic, "partitions": partitions})
        return _encoded(caller, {"topics": topics})

    # --- answered after a wait ---

    def _on_fetch(self, caller: Caller, frame: memoryview) -> Outcome:
        return data.handle_fetch(self._replicas, caller, frame, self._reply_room)

    async def _on_list_offsets(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        knows_not_available = caller.header.api_version >= _FIRST_LIST_OFFSETS_WITH_NOT_AVAILABLE
        topics = []
        for topic in request.topics:
            partitions = []
            for item in topic.partitions:
                epoch = getattr(item, "current_leader_epoch", NO_EPOCH)
                found = await self._replicas.list_offset(topic.name, item.partition_index, item.timestamp, epoch)
                code = found.error_code
                if code == KafkaCode.OFFSET_NOT_AVAILABLE and not knows_not_available:
                    code = int(KafkaCode.LEADER_NOT_AVAILABLE)
                partitions.append(
                    {
                        "partition_index": item.partition_index,
                        "error_code": code,
                        "timestamp": found.timestamp,
                        "offset": found.offset,
                        "leader_epoch": found.leader_epoch,
                    }
                )
            topics.append({"name": topic.name, "partitions": partitions})
        return _encoded(caller, {"topics": topics})

    async def _on_init_producer_id(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        if request.transactional_id is not None:
            values = {"error_code": _TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "producer_epoch": -1}
            return _encoded(caller, values)
        given = await self._replicas.allocate_producer_id()
        values = {
            "error_code": given.error_code,
            "producer_id": given.producer_id,
            "producer_epoch": given.producer_epoch,
        }
        return _encoded(caller, values)

    async def _on_create_topics(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        return _encoded(caller, await admin.create_topics(self._forwarder, request))

    async def _on_delete_topics(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        return _encoded(caller, await admin.delete_topics(self._forwarder, request, self._replicas.image))

    async def _on_create_partitions(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        return _encoded(caller, await partitions.create_partitions(self._forwarder, request, self._replicas.image))

    async def _on_elect_leaders(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        return _encoded(caller, await partitions.elect_leaders(self._forwarder, request))

    async def _on_alter_reassignments(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        return _encoded(caller, await reassignments.alter(self._forwarder, request))

    async def _on_list_reassignments(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        return _encoded(caller, await reassignments.list_ongoing(self._forwarder, request))

    def _on_alter_configs(self, caller: Caller, frame: memoryview) -> Outcome:
        return self._alter_configs(caller, frame, incremental=False)

    def _on_incremental_alter_configs(self, caller: Caller, frame: memoryview) -> Outcome:
        return self._alter_configs(caller, frame, incremental=True)

    async def _alter_configs(self, caller: Caller, frame: memoryview, *, incremental: bool) -> Reply:
        request = codec.decode_request(caller.header, frame)
        timeout_ms = self._limits.controller_timeout_max_ms
        values = await configs.alter_configs(self._forwarder, request, timeout_ms, incremental=incremental)
        return _encoded(caller, values)


def _encoded(caller: Caller, values: dict[str, Any]) -> Reply:
    return (codec.encode_response_body(caller.header.api_key, caller.header.api_version, values),)


def _topic(operation: Operation) -> Access:
    return Access(Resource.TOPIC, operation)


def _cluster(operation: Operation) -> Access:
    return Access(Resource.CLUSTER, operation)


HANDLERS: Final[dict[Api, Handler]] = {
    Api.PRODUCE: Handler(produce.FIRST_VERSION, produce.LAST_VERSION, Handlers._on_produce, _topic(Operation.WRITE)),
    Api.FETCH: Handler(
        fetch.FIRST_VERSION, fetch.CLIENT_VERSION, Handlers._on_fetch, _topic(Operation.READ), fetch.LAST_VERSION
    ),
    Api.LIST_OFFSETS: Handler(1, 7, Handlers._on_list_offsets, _topic(Operation.DESCRIBE)),
    Api.METADATA: Handler(0, 12, Handlers._on_metadata, _topic(Operation.DESCRIBE)),
    Api.FIND_COORDINATOR: Handler(0, 4, Handlers._on_find_coordinator, Access(Resource.GROUP, Operation.DESCRIBE)),
    Api.API_VERSIONS: Handler(0, 4, Handlers._on_api_versions, None),
    Api.CREATE_TOPICS: Handler(2, 7, Handlers._on_create_topics, _cluster(Operation.CREATE)),
    Api.DELETE_TOPICS: Handler(1, 6, Handlers._on_delete_topics, _topic(Operation.DELETE)),
    Api.INIT_PRODUCER_ID: Handler(0, 4, Handlers._on_init_producer_id, _cluster(Operation.IDEMPOTENT_WRITE)),
    Api.OFFSET_FOR_LEADER_EPOCH: Handler(2, 4, Handlers._on_epoch_end, _topic(Operation.DESCRIBE)),
    Api.DESCRIBE_CONFIGS: Handler(1, 4, Handlers._on_describe_configs, _topic(Operation.DESCRIBE_CONFIGS)),
    Api.ALTER_CONFIGS: Handler(0, 2, Handlers._on_alter_configs, _topic(Operation.ALTER_CONFIGS)),
    Api.CREATE_PARTITIONS: Handler(0, 3, Handlers._on_create_partitions, _topic(Operation.ALTER)),
    Api.ELECT_LEADERS: Handler(0, 2, Handlers._on_elect_leaders, _cluster(Operation.ALTER)),
    Api.INCREMENTAL_ALTER_CONFIGS: Handler(
        0, 1, Handlers._on_incremental_alter_configs, _topic(Operation.ALTER_CONFIGS)
    ),
    Api.ALTER_PARTITION_REASSIGNMENTS: Handler(0, 1, Handlers._on_alter_reassignments, _cluster(Operation.ALTER)),
    Api.LIST_PARTITION_REASSIGNMENTS: Handler(0, 0, Handlers._on_list_reassignments, _cluster(Operation.DESCRIBE)),
    Api.DESCRIBE_CLUSTER: Handler(0, 1, Handlers._on_describe_cluster, _cluster(Operation.DESCRIBE)),
}
