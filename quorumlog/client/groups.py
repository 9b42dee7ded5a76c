"""The groups of a cluster, for administrators: a client that looks up coordinators and asks them.

Theory of operation.  The coordinator of a group leads the partition that holds the group, so it moves like any leader.
A call looks it up with FindCoordinator, which any broker answers, and remembers it.  If the coordinator refuses, fails
or has moved, the call looks it up again and retries, with growing pauses, until the deadline.  All calls here can be
repeated: a repeated commit stores the same offsets, and a repeated deletion finds nothing left to delete.

A coordinator that hangs keeps its connections open.  So when an answer is late, other brokers are asked at intervals
whether another broker coordinates the group now.  If so, the call goes there.

Versions are those that the broker reports in ApiVersions, up to the newest one that this module knows, so it also talks
to Apache Kafka from 3.0 on.  Groups of KIP-848 are described as soon as a broker serves ConsumerGroupDescribe.

A refusal is a `ClusterError` whose code is Kafka's name of it.  A coordinator that cannot be found or does not answer
in time is TIMED_OUT, with the last refusal in its message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from quorumlog.client.cluster import HURRY_S, Cluster
from quorumlog.client.group_descriptions import (
    DEAD,
    CommittedOffset,
    Coordinator,
    GroupDescription,
    GroupExplanation,
    ListedGroup,
    Partition,
    classic_group,
    explained_group,
    new_group,
)
from quorumlog.client.kafka import KafkaConnection, error_word
from quorumlog.errors import ClusterError, RemoteProtocolError
from quorumlog.runtime.addresses import Address
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka import codec
from quorumlog.wire.kafka.codec import Api

LOOK_AFTER_S: Final = 1.0
"""If an answer takes this long, other brokers are asked for the coordinator, and again at this interval."""
AT_ONCE_MAX: Final = 64
"""Requests of one call that are under way at a time; others wait."""
COORDINATORS_MAX: Final = 100_000
"""Groups whose coordinator is remembered.  Beyond it, all are forgotten and looked up again."""
NO_MEMBER: Final = -1
"""The generation of a commit by a client that is no member: an administrator, or a simple consumer."""

_API_VERSIONS_VERSION: Final = 3
_FIND_COORDINATOR_VERSION: Final = 4
_NEWEST: Final = {
    Api.LIST_GROUPS: 5,
    Api.DESCRIBE_GROUPS: 6,
    Api.CONSUMER_GROUP_DESCRIBE: 1,
    Api.OFFSET_COMMIT: 9,
    Api.OFFSET_FETCH: 9,
    Api.OFFSET_DELETE: 0,
    Api.DELETE_GROUPS: 2,
    Api.EXPLAIN_GROUPS: 0,
    Api.JOIN_GROUP: 7,
    Api.SYNC_GROUP: 5,
    Api.HEARTBEAT: 4,
    Api.LEAVE_GROUP: 4,
}
"""The newest version of each request that is sent.  Later ones of OffsetCommit and OffsetFetch name topics by id."""
_FIRST_FETCH_WITH_GROUPS: Final = 8

T = TypeVar("T")


class GroupClient:
    """Asks coordinators; bound to the loop of its `Cluster`, which the caller closes.

    Every call ends within its `timeout_s`.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._coordinators: dict[str, Coordinator] = {}
        self._versions: WeakKeyDictionary[KafkaConnection, dict[int, tuple[int, int]]] = WeakKeyDictionary()

    # -- groups

    async def list_groups(self, timeout_s: float, states: Collection[str] = ()) -> list[ListedGroup]:
        """Return the groups of all brokers by name, or only those in one of `states` (in any case).

        Each broker lists the groups that it coordinates.  A list without one broker's would look complete and be
        wrong, so the call asks until all have answered.

        Raises:
            ClusterError: TIMED_OUT, naming a broker that does not answer, or whose coordinators are still loading.
        """
        wanted = {state.lower() for state in states}

        async def once(left_s: float) -> list[ListedGroup]:
            brokers = await self._cluster.brokers(left_s)
            asked = (self._listed_by(broker_id, address, left_s) for broker_id, address in sorted(brokers.items()))
            return [group for part in await all_of(asked) for group in part]

        listed = await self._retrying("the list of groups", timeout_s, once)
        return sorted(each for each in listed if not wanted or each.state.lower() in wanted)

    async def _listed_by(self, broker_id: int, address: Address, left_s: float) -> list[ListedGroup]:
        limit_s = min(left_s, HURRY_S)
        try:
            connection = await self._cluster.connection(address, limit_s)
            reply = await self._ask(connection, Api.LIST_GROUPS, {}, limit_s)
        except ClusterError as error:
            raise ClusterError(error.code, f"broker {broker_id}: {error.message}", retriable=error.retriable) from error
        _check(reply.error_code, f"broker {broker_id}: the list of its groups")
        found = [
            ListedGroup(
                group.group_id,
                getattr(group, "group_type", "") or None,
                getattr(group, "group_state", ""),
                group.protocol_type,
                broker_id,
            )
            for group in reply.groups
        ]
        for each in found:
            self._remember(each.group, Coordinator(broker_id, address))
        return found

    async def describe(self, group: str, timeout_s: float) -> GroupDescription:
        """Return one group.

        Raises:
            ClusterError: GROUP_ID_NOT_FOUND, INVALID_GROUP_ID, TIMED_OUT.
        """

        async def attempt(connection: KafkaConnection, left_s: float) -> GroupDescription:
            coordinator = self._coordinators[group]
            values = {"groups": [group]}
            reply = await self._ask(connection, Api.DESCRIBE_GROUPS, values, left_s)
            described = _only(connection, reply.groups, group)
            is_missing = described.error_code == KafkaCode.GROUP_ID_NOT_FOUND or described.group_state == DEAD
            if not is_missing:
                _check(described.error_code, f"group {group}")
                return classic_group(described, coordinator)
            if await self._version(connection, Api.CONSUMER_GROUP_DESCRIBE, left_s) is None:
                raise _refused(KafkaCode.GROUP_ID_NOT_FOUND, f"group {group}")
            reply = await self._ask(connection, Api.CONSUMER_GROUP_DESCRIBE, {"group_ids": [group]}, left_s)
            described = _only(connection, reply.groups, group)
            _check(described.error_code, f"group {group}")
            return new_group(described, coordinator)

        return await self._call(group, timeout_s, attempt)

    async def explain(self, group: str, timeout_s: float) -> GroupExplanation:
        """Return why the last rebalances of a group happened.

        Raises:
            ClusterError: GROUP_ID_NOT_FOUND, TIMED_OUT; UNSUPPORTED_VERSION by a broker that is not of quorumlog.
        """

        async def attempt(connection: KafkaConnection, left_s: float) -> GroupExplanation:
            coordinator = self._coordinators[group]
            reply = await self._ask(connection, Api.EXPLAIN_GROUPS, {"group_ids": [group]}, left_s)
            explained = _only(connection, reply.groups, group)
            _check(explained.error_code, f"group {group}")
            return explained_group(explained, coordinator)

        return await self._call(group, timeout_s, attempt)

    async def delete(self, group: str, timeout_s: float) -> None:
        """Delete a group with its offsets.

        Raises:
            ClusterError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, TIMED_OUT.  After TIMED_OUT it may be deleted.
        """
        may_be_done = False

        async def attempt(connection: KafkaConnection, left_s: float) -> None:
            nonlocal may_be_done
            repeats, may_be_done = may_be_done, True
            reply = await self._ask(connection, Api.DELETE_GROUPS, {"groups_names": [group]}, left_s)
            code = _only(connection, reply.results, group).error_code
            if not (repeats and code == KafkaCode.GROUP_ID_NOT_FOUND):
                _check(code, f"group {group}")

        await self._call(group, timeout_s, attempt)

    # -- offsets

    async def committed(
        self, group: str, timeout_s: float, partitions: Iterable[Partition] | None = None
    ) -> dict[Partition, CommittedOffset]:
        """Return the committed offsets of a group by partition, ascending; of all partitions if None.

        A partition without one is left out.  A group that does not exist has none.

        Raises:
            ClusterError: INVALID_GROUP_ID, TIMED_OUT, or the error of a partition.
        """
        topics = None if partitions is None else _by_topic(partitions, "partition_indexes", lambda key: key[1])

        async def attempt(connection: KafkaConnection, left_s: float) -> dict[Partition, CommittedOffset]:
            asked = {"group_id": group, "topics": topics}
            version = await self._version(connection, Api.OFFSET_FETCH, left_s)
            values = {"groups": [asked]} if (version or 0) >= _FIRST_FETCH_WITH_GROUPS else asked
            reply = await self._ask(connection, Api.OFFSET_FETCH, values, left_s)
            answered = _only(connection, reply.groups, group) if hasattr(reply, "groups") else reply
            _check(answered.error_code, f"group {group}: its offsets")
            found = {}
            for topic in answered.topics:
                for each in topic.partitions:
                    _check(each.error_code, f"group {group}: its offset of {topic.name}-{each.partition_index}")
                    if each.committed_offset >= 0:
                        found[str(topic.name), int(each.partition_index)] = CommittedOffset(
                            each.committed_offset, each.committed_leader_epoch, each.metadata or ""
                        )
            return dict(sorted(found.items()))

        return await self._call(group, timeout_s, attempt)

    async def commit(
        self,
        group: str,
        offsets: Mapping[Partition, CommittedOffset],
        timeout_s: float,
        *,
        member_id: str = "",
        generation: int = NO_MEMBER,
        instance_id: str | None = None,
    ) -> dict[Partition, ClusterError]:
        """Commit offsets; return the refused partitions, none if all offsets are committed and durable.

        Without a member id, the group must have no members.  A group that does not exist is created.

        Raises:
            ClusterError: TIMED_OUT.  Any of the offsets may be committed then.
        """

        def to_commit(key: Partition) -> dict[str, Any]:
            offset = offsets[key]
            return {
                "partition_index": key[1],
                "committed_offset": offset.offset,
                "committed_leader_epoch": offset.leader_epoch,
                "committed_metadata": offset.metadata,
            }

        values = {
            "group_id": group,
            "generation_id_or_member_epoch": generation,
            "member_id": member_id,
            "group_instance_id": instance_id,
            "topics": _by_topic(offsets, "partitions", to_commit),
        }

        async def attempt(connection: KafkaConnection, left_s: float) -> dict[Partition, ClusterError]:
            reply = await self._ask(connection, Api.OFFSET_COMMIT, values, left_s)
            return _refusals(connection, reply.topics, offsets, f"group {group}: a commit of")

        return await self._call(group, timeout_s, attempt)

    async def delete_offsets(
        self, group: str, partitions: Collection[Partition], timeout_s: float
    ) -> dict[Partition, ClusterError]:
        """Delete committed offsets; return the refused partitions.  One without a committed offset is not refused.

        Raises:
            ClusterError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP (not a group of consumers), TIMED_OUT.
        """
        topics = _by_topic(partitions, "partitions", lambda key: {"partition_index": key[1]})

        async def attempt(connection: KafkaConnection, left_s: float) -> dict[Partition, ClusterError]:
            reply = await self._ask(connection, Api.OFFSET_DELETE, {"group_id": group, "topics": topics}, left_s)
            _check(reply.error_code, f"group {group}")
            return _refusals(connection, reply.topics, partitions, f"group {group}: the deletion of its offset of")

        return await self._call(group, timeout_s, attempt)

    # -- coordinators

    async def coordinator(self, group: str, timeout_s: float) -> Coordinator:
        """Return the coordinator that a broker names now, with retries until it names one.

        If the topic that holds the groups does not exist, the broker creates it first.

        Raises:
            ClusterError: TIMED_OUT.
        """
        return await self._retrying(
            f"the coordinator of group {group}", timeout_s, lambda left_s: self._find(group, left_s)
        )

    async def known_coordinator(self, group: str, timeout_s: float) -> Coordinator:
        """Return the remembered coordinator, or look it up once.  Raises a retriable ClusterError."""
        return self._coordinators.get(group) or await self._find(group, timeout_s)

    def forget(self, group: str) -> None:
        """Look the coordinator of a group up again at the next call, at another broker."""
        self._coordinators.pop(group, None)
        self._cluster.ask_another_broker()

    async def answer_of(self, group: str, coordinator: Coordinator, asked: asyncio.Future[T]) -> T:
        """Return the answer, or raise a retriable ClusterError if another broker is the coordinator meanwhile."""
        return await self._answer(group, coordinator, asked)

    async def ask(
        self, connection: KafkaConnection, api: Api, values: dict[str, Any], timeout_s: float, answer_s: float
    ) -> tuple[int, Any]:
        """Send a request, once, in the newest version that both sides know; return the version and the answer.

        answer_s: how long the answer may take; `timeout_s` limits what comes before it.  Raises: ClusterError.
        """
        version = await self._version(connection, api, timeout_s)
        if version is None:
            raise ClusterError(ApiError.UNSUPPORTED_VERSION, f"{connection.peer} does not serve {codec.api_name(api)}")
        return version, await connection.ask(api, version, values, answer_s)

    async def _find(self, group: str, left_s: float) -> Coordinator:
        values = {"key_type": 0, "coordinator_keys": [group]}
        try:
            reply = await self._cluster.ask_any_broker(Api.FIND_COORDINATOR, _FIND_COORDINATOR_VERSION, values, left_s)
            found = next((each for each in reply.coordinators if each.key == group), None)
            if found is None:
                raise _refused(KafkaCode.COORDINATOR_NOT_AVAILABLE, f"group {group}: no broker")
            if found.error_code:
                reason = f": {found.error_message}" if found.error_message else ""
                raise _refused(found.error_code, f"the coordinator of group {group}", reason)
        except ClusterError:
            self._cluster.ask_another_broker()
            raise
        coordinator = Coordinator(found.node_id, Address(found.host, found.port))
        self._remember(group, coordinator)
        return coordinator

    def _remember(self, group: str, coordinator: Coordinator) -> None:
        if len(self._coordinators) >= COORDINATORS_MAX:
            self._coordinators.clear()
        self._coordinators[group] = coordinator

    async def _call(
        self, group: str, timeout_s: float, attempt: Callable[[KafkaConnection, float], Coroutine[Any, Any, T]]
    ) -> T:
        """Return the result of `attempt(connection, seconds left)` at the coordinator, with retries."""

        async def once(left_s: float) -> T:
            coordinator = self._coordinators.get(group) or await self._find(group, left_s)
            try:
                connection = await self._cluster.connection(coordinator.address, left_s)
                self._remember(group, coordinator)
                return await self._answer(group, coordinator, asyncio.ensure_future(attempt(connection, left_s)))
            except ClusterError as error:
                if error.retriable:
                    self._coordinators.pop(group, None)
                    self._cluster.ask_another_broker()
                raise

        return await self._retrying(f"group {group}", timeout_s, once)

    async def _retrying(self, what: str, timeout_s: float, ask: Callable[[float], Awaitable[T]]) -> T:
        """`Cluster.retrying`, but the last try, which may have little time left, does not hide an earlier refusal."""
        refusal: ClusterError | None = None

        async def once(left_s: float) -> T:
            nonlocal refusal
            try:
                return await ask(left_s)
            except ClusterError as error:
                if error.code == ApiError.REQUEST_TIMED_OUT and left_s < HURRY_S and refusal is not None:
                    raise refusal from error
                refusal = error
                raise

        return await self._cluster.retrying(what, timeout_s, once)

    async def _answer(self, group: str, coordinator: Coordinator, asked: asyncio.Future[T]) -> T:
        """Return the answer, or raise a retriable ClusterError if another broker is the coordinator meanwhile."""
        look: asyncio.Future[bool] | None = None
        try:
            await asyncio.wait({asked}, timeout=LOOK_AFTER_S)
            while not asked.done():
                look = asyncio.ensure_future(self._has_moved(group, coordinator))
                await asyncio.wait((asked, look), return_when=asyncio.FIRST_COMPLETED)
                if asked.done():
                    break
                if look.result():
                    text = f"broker {coordinator.broker_id} does not answer, and no longer coordinates the group"
                    raise ClusterError(ApiError.NOT_COORDINATOR, text, retriable=True)
                await asyncio.wait({asked}, timeout=LOOK_AFTER_S)
            return asked.result()
        finally:
            asked.cancel()
            if look is not None:
                look.cancel()

    async def _has_moved(self, group: str, coordinator: Coordinator) -> bool:
        self._cluster.ask_another_broker()
        try:
            return await self._find(group, HURRY_S) != coordinator
        except ClusterError:
            return False

    # -- requests

    async def _ask(self, connection: KafkaConnection, api: Api, values: dict[str, Any], left_s: float) -> Any:
        """Send a request in the newest version that both sides know.

        Raises:
            ClusterError: as `KafkaConnection.send`; UNSUPPORTED_VERSION if there is no such version.
        """
        version = await self._version(connection, api, left_s)
        if version is None:
            raise ClusterError(ApiError.UNSUPPORTED_VERSION, f"{connection.peer} does not serve {codec.api_name(api)}")
        return await self._cluster.ask(connection, api, version, values, left_s)

    async def _version(self, connection: KafkaConnection, api: Api, left_s: float) -> int | None:
        """Return the newest version of a request that both sides know; None if there is none."""
        offered = self._versions.get(connection)
        if offered is None:
            values = {"client_software_name": "quorumlog", "client_software_version": "1"}
            reply = await self._cluster.ask(connection, Api.API_VERSIONS, _API_VERSIONS_VERSION, values, left_s)
            _check(reply.error_code, f"{connection.peer}: the versions of its requests")
            offered = {each.api_key: (each.min_version, each.max_version) for each in reply.api_keys}
            self._versions[connection] = offered
        low, high = offered.get(api, (0, -1))
        version = min(high, _NEWEST[api])
        return version if version >= low else None


async def all_of(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all, at most AT_ONCE_MAX at a time; raise the first error after all of them have ended."""
    slots = asyncio.Semaphore(AT_ONCE_MAX)

    async def one(each: Coroutine[Any, Any, T]) -> T:
        async with slots:
            return await each

    results = await asyncio.gather(*map(one, work), return_exceptions=True)
    failures = [each for each in results if isinstance(each, BaseException)]
    # A final refusal, or our own bug, says more than a broker that may answer later.
    failures.sort(key=lambda each: isinstance(each, ClusterError) and each.retriable)
    if failures:
        raise failures[0]
    return [each for each in results if not isinstance(each, BaseException)]


def _by_topic(
    partitions: Iterable[Partition], list_name: str, value: Callable[[Partition], Any]
) -> list[dict[str, Any]]:
    """Return partitions as a request lists them, ascending and each once."""
    by_topic: dict[str, list[Any]] = {}
    for key in sorted(set(partitions)):
        by_topic.setdefault(key[0], []).append(value(key))
    return [{"name": topic, list_name: values} for topic, values in by_topic.items()]


def _refusals(
    connection: KafkaConnection, topics: Iterable[Any], asked: Collection[Partition], what: str
) -> dict[Partition, ClusterError]:
    """Return the errors of the partitions.  A retriable one is raised: the whole request is repeated."""
    answered = {(topic.name, each.partition_index): each.error_code for topic in topics for each in topic.partitions}
    with connection.judged():
        if answered.keys() != set(asked):
            raise RemoteProtocolError("the answer is about other partitions than the request")
    refusals = {
        (topic, index): _refused(code, f"{what} {topic}-{index}") for (topic, index), code in answered.items() if code
    }
    for error in refusals.values():
        if error.retriable and error.code != ApiError.UNKNOWN_TOPIC_OR_PARTITION:
            raise error
    return refusals


def _only(connection: KafkaConnection, answers: Iterable[Any], group: str) -> Any:
    """Return the only element of an answer, which must be about `group`."""
    found = list(answers)
    with connection.judged():
        if [each.group_id for each in found] != [group]:
            raise RemoteProtocolError("the answer is about other groups than the request")
    return found[0]


def _check(code: int, what: str) -> None:
    if code:
        raise _refused(code, what)


def _refused(code: int, what: str, reason: str = "") -> ClusterError:
    name, retriable = error_word(code)
    known = ApiError.named(name)
    text = (
        f"{what}: {name}" if known is None else f"{what}: {known.sentence[:1].lower()}{known.sentence[1:].rstrip('.')}"
    )
    return ClusterError(name, f"{text}{reason}", retriable=retriable)
