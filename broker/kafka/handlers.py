"""The requests that this broker answers, with their versions and functions: the table `HANDLERS`.

Handlers convert and decide nothing (see `broker/kafka/api.py`).  A handler that does not wait returns its reply.  The
others return a `Pending`, or a coroutine that becomes a task.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from broker.kafka import (
    admin,
    configs,
    consumer_groups,
    data,
    group_offsets,
    groups,
    logs,
    partitions,
    reassignments,
    scopes,
    security,
    share_groups,
    share_offsets,
    telemetry,
    transactions,
    voters,
)
from broker.kafka.api import Groups, Node, Replicas, Shares, Transactions
from broker.kafka.auto_topics import AutoTopics
from broker.kafka.clusters import describe_cluster, unregister_broker
from broker.kafka.config_descriptions import describe_configs
from broker.kafka.connection import Caller, HangUp, Pending, Reply
from broker.kafka.coordinated import DecodedRequest
from broker.kafka.deletions import handle_delete_records
from broker.kafka.features import features, software_problem, update_features
from broker.kafka.limits import KafkaLimits
from broker.kafka.list_offsets import list_offsets
from broker.kafka.metadata import MetadataResponses, wanted_topics
from broker.kafka.quorum import describe_quorum
from broker.kafka.topic_partitions import describe_topic_partitions
from broker.kafka.transactions import NoTransactions
from quorumlog.wire.kafka import codec, fetch, produce
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.rpcs import ControllerCall

_UNSUPPORTED_VERSION: Final = 35
_ADVERTISED_LOW: Final = {Api.PRODUCE: 0}
"""First versions that are advertised although they are not served.  Older releases of librdkafka (as in kcat) silently
turn off gzip, snappy and lz4 unless Produce 0 is advertised.  Apache Kafka 4 also advertises it (KAFKA-18659)."""


Outcome = Reply | Pending | Awaitable[Reply]


class Resource(Enum):
    """The kind of object that a request acts on, named as in Kafka's access control lists."""

    CLUSTER = auto()
    TOPIC = auto()
    GROUP = auto()
    TRANSACTIONAL_ID = auto()


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
    CLUSTER_ACTION = auto()


class Access(NamedTuple):
    resource: Resource
    operation: Operation


class Handler(msgspec.Struct, frozen=True):
    """One request that this broker answers.

    low, offered: the first and the last version that are served.  ApiVersions reports them (but see `_ADVERTISED_LOW`).
    access: the permission that the caller needs; None if every client may send the request.  It is not checked yet.
    is_listed: whether ApiVersions lists the request.
    """

    low: int
    offered: int
    answer: Callable[[Handlers, Caller, memoryview], Outcome]
    access: Access | None
    is_listed: bool = True


class Handlers:
    """Answers the requests of all connections of a broker."""

    def __init__(
        self,
        replicas: Replicas,
        controller_call: ControllerCall,
        *,
        node: Node,
        node_id: int,
        cluster_id: str,
        limits: KafkaLimits,
        wait_for_metadata: Callable[[int], Awaitable[object]] | None,
        reply_room: Callable[[], int],
        groups: Groups,
        new_id: Callable[[], UUID],
        transactions: Transactions,
        shares: Shares,
    ) -> None:
        """reply_room: returns how many bytes of records one reply to a consumer may contain now."""
        self._replicas = replicas
        self._groups = groups
        self._new_id = new_id
        self._transactions = transactions
        self._shares = shares
        self._node = node
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._forwarder = admin.Forwarder(controller_call, limits.controller_timeout_max_ms, wait_for_metadata)
        self._auto_topics = AutoTopics(self._forwarder, limits)
        self._limits = limits
        self._metadata = MetadataResponses(node_id, cluster_id, limits.metadata_cache_max_bytes)
        self._reply_room = reply_room
        self.requests: dict[str, int] = {api.name.lower(): 0 for api in HANDLERS}
        """Number of requests begun, by name, for the metrics."""
        self._api_versions: dict[int, bytes] = {}
        self._api_versions_offset = -1

    def joined(self, cluster_id: str) -> None:
        """Set the cluster id, which may not have been known when this object was made."""
        self._cluster_id = cluster_id
        self._metadata = MetadataResponses(self._node_id, cluster_id, self._limits.metadata_cache_max_bytes)

    async def close(self) -> None:
        """End the automatic creations of topics, for which no request waits."""
        await self._auto_topics.close()

    def disconnected(self, peer: str) -> None:
        """Note that the connection of a client is lost."""
        self._shares.disconnected(peer)

    def dispatch(self, caller: Caller, frame: memoryview) -> Outcome:
        """Begin a request.

        Raises: HangUp, RemoteProtocolError.
        """
        header = caller.header
        if header.api_key not in HANDLERS:
            name = codec.api_name(header.api_key)
            raise HangUp(f"api key {header.api_key} ({name}), version {header.api_version}, is not served")
        api = Api(header.api_key)
        handler = HANDLERS[api]
        if not handler.low <= header.api_version <= handler.offered:
            if api is Api.API_VERSIONS:  # clients can read this refusal only in the oldest version
                return (self._api_versions_body(0, _UNSUPPORTED_VERSION),)
            raise HangUp(
                f"version {header.api_version} of {api.name} is not served; {handler.low} to {handler.offered} are"
            )
        self.requests[api.name.lower()] += 1
        return handler.answer(self, caller, frame)

    # --- answered from the state of this broker ---

    def _on_produce(self, caller: Caller, frame: memoryview) -> Outcome:
        return data.handle_produce(self._replicas, caller, frame)

    def _on_api_versions(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        version = caller.header.api_version
        problem = software_problem(request, version)
        if problem is not None:
            return _encoded(caller, {"error_code": problem})
        offset = self._replicas.image.end_offset
        if offset != self._api_versions_offset:  # the response contains the offset of the metadata
            self._api_versions.clear()
            self._api_versions_offset = offset
        if version not in self._api_versions:
            self._api_versions[version] = self._api_versions_body(version, 0)
        return (self._api_versions[version],)

    def _api_versions_body(self, version: int, error_code: int) -> bytes:
        keys = [
            {"api_key": int(api), "min_version": _ADVERTISED_LOW.get(api, handler.low), "max_version": handler.offered}
            for api, handler in sorted(HANDLERS.items())
            if handler.is_listed and not (api in OF_SCOPES and isinstance(self._transactions, NoTransactions))
        ]
        values = {"error_code": error_code, "api_keys": keys, **features(self._replicas.image, version)}
        return codec.encode_response_body(Api.API_VERSIONS, version, values)

    def _on_metadata(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        version = caller.header.api_version
        wanted = wanted_topics(request, version)
        if wanted and getattr(request, "allow_auto_topic_creation", True):
            names = (name for topic_id, name in wanted if topic_id is None and name is not None)
            self._auto_topics.want(names, self._replicas.image)
        return (self._metadata.response(self._replicas.image, version, caller.listener, wanted, len(frame)),)

    def _on_describe_cluster(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        return _encoded(
            caller,
            describe_cluster(request, self._replicas.image, caller.listener, self._cluster_id, self._node_id),
        )

    async def _on_describe_configs(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        version = caller.header.api_version
        return (await describe_configs(request, version, self._replicas.image, self._node_id, self._node.settings()),)

    def _on_list_config_resources(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        return _encoded(caller, configs.list_config_resources(request, self._replicas.image))

    def _on_describe_topic_partitions(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        return _encoded(caller, describe_topic_partitions(request, self._replicas.image, caller.listener))

    def _on_describe_log_dirs(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        return _encoded(caller, logs.describe_log_dirs(request, self._node, self._replicas, self._node_id))

    async def _on_alter_log_dirs(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        return _encoded(caller, await logs.alter_log_dirs(request, self._node, self._replicas))

    def _on_describe_producers(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        return _encoded(caller, logs.describe_producers(request, self._replicas))

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

    def _on_get_subscriptions(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        return _encoded(caller, telemetry.get_subscriptions(request, self._new_id))

    def _on_push_telemetry(self, caller: Caller, frame: memoryview) -> Reply:
        return _encoded(caller, telemetry.push(codec.decode_request(caller.header, frame)))

    # --- answered after a wait ---

    def _on_fetch(self, caller: Caller, frame: memoryview) -> Outcome:
        return data.handle_fetch(self._replicas, caller, frame, self._reply_room)

    def _on_delete_records(self, caller: Caller, frame: memoryview) -> Outcome:
        return handle_delete_records(self._replicas, caller, frame)

    async def _on_list_offsets(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        return _encoded(caller, await list_offsets(request, self._replicas, caller.header.api_version))

    async def _on_init_producer_id(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        if request.transactional_id is not None:
            return await transactions.init_producer_id(self._asked(caller, frame))
        given = await self._replicas.allocate_producer_id()
        values = {
            "error_code": given.error_code,
            "producer_id": given.producer_id,
            "producer_epoch": given.producer_epoch,
        }
        return _encoded(caller, values)

    async def _on_create_topics(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        return _encoded(caller, await admin.create_topics(self._forwarder, request, lambda: self._replicas.image))

    async def _on_delete_topics(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        return _encoded(caller, await admin.delete_topics(self._forwarder, request, self._replicas.image))

    async def _on_describe_quorum(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        return _encoded(caller, await describe_quorum(request, self._node, self._limits.describe_quorum_timeout_ms))

    async def _on_update_features(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        return _encoded(caller, await update_features(self._forwarder, request, self._replicas.image))

    async def _on_unregister_broker(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        timeout_ms = self._limits.controller_timeout_max_ms
        return _encoded(caller, await unregister_broker(self._forwarder, request, timeout_ms))

    async def _on_add_voter(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        return _encoded(caller, await voters.add_voter(self._forwarder, request, self._cluster_id))

    async def _on_remove_voter(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        timeout_ms = self._limits.voter_change_timeout_ms
        return _encoded(caller, await voters.remove_voter(self._forwarder, request, self._cluster_id, timeout_ms))

    async def _on_update_voter(self, caller: Caller, frame: memoryview) -> Reply:
        request = codec.decode_request(caller.header, frame)
        timeout_ms = self._limits.voter_change_timeout_ms
        values = await voters.update_voter(self._forwarder, request, self._cluster_id, self._node, timeout_ms)
        return _encoded(caller, values)

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

    def _on_share_fetch(self, caller: Caller, frame: memoryview) -> Outcome:
        return share_groups.share_fetch(self._asked(caller, frame), self._reply_room)

    def to_coordinator(self, answer: Callable[[DecodedRequest], Outcome], caller: Caller, frame: memoryview) -> Outcome:
        """Answer a request to coordinators with the function `answer`."""
        return answer(self._asked(caller, frame))

    def _asked(self, caller: Caller, frame: memoryview) -> DecodedRequest:
        return DecodedRequest(self._groups, self._transactions, self._shares, self._replicas, caller, frame)

    async def _alter_configs(self, caller: Caller, frame: memoryview, *, incremental: bool) -> Reply:
        request = codec.decode_request(caller.header, frame)
        timeout_ms = self._limits.controller_timeout_max_ms
        image = self._replicas.image
        values = await configs.alter_configs(self._forwarder, request, image, timeout_ms, incremental=incremental)
        return _encoded(caller, values)


def _encoded(caller: Caller, values: dict[str, Any]) -> Reply:
    return (codec.encode_response_body(caller.header.api_key, caller.header.api_version, values),)


def _group(operation: Operation) -> Access:
    return Access(Resource.GROUP, operation)


def _of_groups(low: int, offered: int, answer: Callable[[DecodedRequest], Outcome], operation: Operation) -> Handler:
    """Return the handler of a request about groups."""
    return Handler(
        low, offered, lambda handlers, caller, frame: handlers.to_coordinator(answer, caller, frame), _group(operation)
    )


def _of_brokers(low: int, offered: int, answer: Callable[[DecodedRequest], Outcome]) -> Handler:
    """Return the handler of a request between brokers, about share groups."""
    access = _cluster(Operation.CLUSTER_ACTION)
    return Handler(low, offered, lambda handlers, caller, frame: handlers.to_coordinator(answer, caller, frame), access)


def _of_transactions(
    low: int, offered: int, answer: Callable[[DecodedRequest], Outcome], operation: Operation
) -> Handler:
    """Return the handler of a request about transactions."""
    access = Access(Resource.TRANSACTIONAL_ID, operation)
    return Handler(low, offered, lambda handlers, caller, frame: handlers.to_coordinator(answer, caller, frame), access)


def _fixed(low: int, offered: int, values_of: Callable[[Any], dict[str, Any]], operation: Operation) -> Handler:
    """Return the handler of a request whose answer depends only on the request."""

    def answer(handlers: Handlers, caller: Caller, frame: memoryview) -> Reply:
        return _encoded(caller, values_of(codec.decode_request(caller.header, frame)))

    return Handler(low, offered, answer, _cluster(operation))


def _topic(operation: Operation) -> Access:
    return Access(Resource.TOPIC, operation)


def _cluster(operation: Operation) -> Access:
    return Access(Resource.CLUSTER, operation)


OF_SCOPES: Final = (Api.INIT_SCOPE, Api.INIT_SCOPE_PRODUCER, Api.END_SCOPE, Api.ABORT_SCOPE, Api.DESCRIBE_SCOPES)
"""The requests of scopes.  A listener without coordinators of transactions does not list them, because a client uses
scopes if they are listed."""
HANDLERS: Final[dict[Api, Handler]] = {
    Api.PRODUCE: Handler(produce.FIRST_VERSION, produce.LAST_VERSION, Handlers._on_produce, _topic(Operation.WRITE)),
    Api.FETCH: Handler(fetch.FIRST_VERSION, fetch.LAST_VERSION, Handlers._on_fetch, _topic(Operation.READ)),
    Api.LIST_OFFSETS: Handler(1, 11, Handlers._on_list_offsets, _topic(Operation.DESCRIBE)),
    Api.METADATA: Handler(0, 13, Handlers._on_metadata, _topic(Operation.DESCRIBE)),
    Api.OFFSET_COMMIT: _of_groups(2, 10, group_offsets.offset_commit, Operation.READ),
    Api.OFFSET_FETCH: _of_groups(1, 10, group_offsets.offset_fetch, Operation.DESCRIBE),
    Api.FIND_COORDINATOR: _of_groups(0, 6, groups.find_coordinator, Operation.DESCRIBE),
    Api.JOIN_GROUP: _of_groups(0, 9, groups.join_group, Operation.READ),
    Api.HEARTBEAT: _of_groups(0, 4, groups.heartbeat, Operation.READ),
    Api.LEAVE_GROUP: _of_groups(0, 5, groups.leave_group, Operation.READ),
    Api.SYNC_GROUP: _of_groups(0, 5, groups.sync_group, Operation.READ),
    Api.DESCRIBE_GROUPS: _of_groups(0, 6, groups.describe_groups, Operation.DESCRIBE),
    Api.LIST_GROUPS: _of_groups(0, 5, groups.list_groups, Operation.DESCRIBE),
    Api.API_VERSIONS: Handler(0, 4, Handlers._on_api_versions, None),
    Api.CREATE_TOPICS: Handler(2, 7, Handlers._on_create_topics, _cluster(Operation.CREATE)),
    Api.DELETE_TOPICS: Handler(1, 6, Handlers._on_delete_topics, _topic(Operation.DELETE)),
    Api.DELETE_RECORDS: Handler(0, 2, Handlers._on_delete_records, _topic(Operation.DELETE)),
    Api.INIT_PRODUCER_ID: Handler(0, 5, Handlers._on_init_producer_id, _cluster(Operation.IDEMPOTENT_WRITE)),
    Api.ADD_PARTITIONS_TO_TXN: _of_transactions(0, 5, transactions.add_partitions, Operation.WRITE),
    Api.ADD_OFFSETS_TO_TXN: _of_transactions(0, 4, transactions.add_offsets, Operation.WRITE),
    Api.END_TXN: _of_transactions(0, 5, transactions.end_txn, Operation.WRITE),
    Api.WRITE_TXN_MARKERS: _of_transactions(1, 2, transactions.write_markers, Operation.ALTER),
    Api.TXN_OFFSET_COMMIT: _of_transactions(0, 5, transactions.txn_offset_commit, Operation.WRITE),
    Api.DESCRIBE_TRANSACTIONS: _of_transactions(0, 0, transactions.describe_transactions, Operation.DESCRIBE),
    Api.LIST_TRANSACTIONS: _of_transactions(0, 1, transactions.list_transactions, Operation.DESCRIBE),
    Api.OFFSET_FOR_LEADER_EPOCH: Handler(2, 4, Handlers._on_epoch_end, _topic(Operation.DESCRIBE)),
    Api.DESCRIBE_ACLS: _fixed(1, 3, security.describe_acls, Operation.DESCRIBE),
    Api.CREATE_ACLS: _fixed(1, 3, security.create_acls, Operation.ALTER),
    Api.DELETE_ACLS: _fixed(1, 3, security.delete_acls, Operation.ALTER),
    Api.DESCRIBE_CONFIGS: Handler(1, 4, Handlers._on_describe_configs, _topic(Operation.DESCRIBE_CONFIGS)),
    Api.ALTER_CONFIGS: Handler(0, 2, Handlers._on_alter_configs, _topic(Operation.ALTER_CONFIGS)),
    Api.ALTER_REPLICA_LOG_DIRS: Handler(1, 2, Handlers._on_alter_log_dirs, _cluster(Operation.ALTER)),
    Api.CREATE_PARTITIONS: Handler(0, 3, Handlers._on_create_partitions, _topic(Operation.ALTER)),
    Api.CREATE_DELEGATION_TOKEN: _fixed(1, 3, security.refuse_token, Operation.ALTER),
    Api.RENEW_DELEGATION_TOKEN: _fixed(1, 2, security.refuse_token, Operation.ALTER),
    Api.EXPIRE_DELEGATION_TOKEN: _fixed(1, 2, security.refuse_token, Operation.ALTER),
    Api.DESCRIBE_DELEGATION_TOKEN: _fixed(1, 3, security.refuse_token, Operation.DESCRIBE),
    Api.DELETE_GROUPS: _of_groups(0, 2, groups.delete_groups, Operation.DELETE),
    Api.ELECT_LEADERS: Handler(0, 2, Handlers._on_elect_leaders, _cluster(Operation.ALTER)),
    Api.INCREMENTAL_ALTER_CONFIGS: Handler(
        0, 1, Handlers._on_incremental_alter_configs, _topic(Operation.ALTER_CONFIGS)
    ),
    Api.ALTER_PARTITION_REASSIGNMENTS: Handler(0, 1, Handlers._on_alter_reassignments, _cluster(Operation.ALTER)),
    Api.LIST_PARTITION_REASSIGNMENTS: Handler(0, 0, Handlers._on_list_reassignments, _cluster(Operation.DESCRIBE)),
    Api.OFFSET_DELETE: _of_groups(0, 0, group_offsets.offset_delete, Operation.DELETE),
    Api.DESCRIBE_LOG_DIRS: Handler(1, 5, Handlers._on_describe_log_dirs, _cluster(Operation.DESCRIBE)),
    Api.DESCRIBE_CLIENT_QUOTAS: _fixed(0, 1, security.describe_quotas, Operation.DESCRIBE_CONFIGS),
    Api.ALTER_CLIENT_QUOTAS: _fixed(0, 1, security.alter_quotas, Operation.ALTER_CONFIGS),
    Api.DESCRIBE_USER_SCRAM_CREDENTIALS: _fixed(0, 0, security.describe_scram, Operation.DESCRIBE),
    Api.ALTER_USER_SCRAM_CREDENTIALS: _fixed(0, 0, security.alter_scram, Operation.ALTER),
    Api.DESCRIBE_QUORUM: Handler(0, 2, Handlers._on_describe_quorum, _cluster(Operation.DESCRIBE)),
    Api.UPDATE_FEATURES: Handler(0, 2, Handlers._on_update_features, _cluster(Operation.ALTER)),
    Api.UNREGISTER_BROKER: Handler(0, 0, Handlers._on_unregister_broker, _cluster(Operation.ALTER)),
    Api.ADD_RAFT_VOTER: Handler(0, 1, Handlers._on_add_voter, _cluster(Operation.ALTER)),
    Api.REMOVE_RAFT_VOTER: Handler(0, 0, Handlers._on_remove_voter, _cluster(Operation.ALTER)),
    Api.UPDATE_RAFT_VOTER: Handler(0, 0, Handlers._on_update_voter, _cluster(Operation.ALTER)),
    Api.DESCRIBE_PRODUCERS: Handler(0, 0, Handlers._on_describe_producers, _topic(Operation.READ)),
    Api.CONSUMER_GROUP_HEARTBEAT: _of_groups(0, 1, consumer_groups.consumer_group_heartbeat, Operation.READ),
    Api.CONSUMER_GROUP_DESCRIBE: _of_groups(0, 1, consumer_groups.consumer_group_describe, Operation.DESCRIBE),
    Api.GET_TELEMETRY_SUBSCRIPTIONS: Handler(0, 0, Handlers._on_get_subscriptions, None, is_listed=False),
    Api.PUSH_TELEMETRY: Handler(0, 0, Handlers._on_push_telemetry, None, is_listed=False),
    Api.LIST_CONFIG_RESOURCES: Handler(0, 1, Handlers._on_list_config_resources, _cluster(Operation.DESCRIBE_CONFIGS)),
    Api.DESCRIBE_TOPIC_PARTITIONS: Handler(0, 0, Handlers._on_describe_topic_partitions, _topic(Operation.DESCRIBE)),
    Api.DESCRIBE_CLUSTER: Handler(0, 2, Handlers._on_describe_cluster, _cluster(Operation.DESCRIBE)),
    Api.SHARE_GROUP_HEARTBEAT: _of_groups(1, 1, share_groups.share_group_heartbeat, Operation.READ),
    Api.SHARE_GROUP_DESCRIBE: _of_groups(1, 1, share_groups.share_group_describe, Operation.DESCRIBE),
    Api.SHARE_FETCH: Handler(1, 2, Handlers._on_share_fetch, _group(Operation.READ)),
    Api.SHARE_ACKNOWLEDGE: _of_groups(1, 2, share_groups.share_acknowledge, Operation.READ),
    Api.INITIALIZE_SHARE_GROUP_STATE: _of_brokers(0, 0, share_groups.initialize_state),
    Api.READ_SHARE_GROUP_STATE: _of_brokers(0, 0, share_groups.read_state),
    Api.WRITE_SHARE_GROUP_STATE: _of_brokers(0, 1, share_groups.write_state),
    Api.DELETE_SHARE_GROUP_STATE: _of_brokers(0, 0, share_groups.delete_state),
    Api.READ_SHARE_GROUP_STATE_SUMMARY: _of_brokers(0, 1, share_groups.read_state_summary),
    Api.DESCRIBE_SHARE_GROUP_OFFSETS: _of_groups(0, 1, share_offsets.describe_offsets, Operation.DESCRIBE),
    Api.ALTER_SHARE_GROUP_OFFSETS: _of_groups(0, 0, share_offsets.alter_offsets, Operation.READ),
    Api.DELETE_SHARE_GROUP_OFFSETS: _of_groups(0, 0, share_offsets.delete_offsets, Operation.DELETE),
    Api.WRITE_DEAD_LETTERS: _of_brokers(0, 0, share_groups.write_dead_letters),
    Api.FIND_OUTCOME: _of_transactions(0, 0, transactions.find_outcome, Operation.DESCRIBE),
    Api.EXPLAIN_GROUPS: _of_groups(0, 0, groups.explain_groups, Operation.DESCRIBE),
    Api.INIT_SCOPE: _of_transactions(0, 0, scopes.init_scope, Operation.WRITE),
    Api.INIT_SCOPE_PRODUCER: _of_transactions(0, 0, scopes.init_scope_producer, Operation.WRITE),
    Api.END_SCOPE: _of_transactions(0, 0, scopes.end_scope, Operation.WRITE),
    Api.ABORT_SCOPE: _of_transactions(0, 0, scopes.abort_scope, Operation.WRITE),
    Api.DESCRIBE_SCOPES: _of_transactions(0, 0, scopes.describe_scopes, Operation.DESCRIBE),
}
