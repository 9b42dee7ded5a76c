"""The groups of a cluster, for administrators: a client of their coordinators.

All calls here can be repeated: a repeated commit stores the same offsets, and a repeated deletion finds nothing left to
delete.  So `CoordinatorCalls` (`coordinators`) retries them, even at another coordinator.

The client also talks to Apache Kafka from 3.0 on.  Groups of KIP-848 are described as soon as a broker serves
ConsumerGroupDescribe, and share groups (KIP-932) as soon as it serves ShareGroupDescribe.

A refusal is a `ClusterError` whose code is Kafka's name of the error.  If a coordinator cannot be found or does not
answer in time, the error is TIMED_OUT, with the last refusal in its message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from quorumlog.client.cluster import Cluster
from quorumlog.client.coordinators import Answers, Coordinator, CoordinatorCalls, Kind, check, refused, refusing
from quorumlog.client.group_descriptions import (
    DEAD,
    SHARE,
    CommittedOffset,
    GroupDescription,
    GroupExplanation,
    ListedGroup,
    Partition,
    classic_group,
    explained_group,
    new_group,
)
from quorumlog.client.group_protocol import CONSUMER
from quorumlog.client.kafka import KafkaConnection
from quorumlog.client.share_groups import NEWEST as NEWEST_OF_SHARES
from quorumlog.client.share_groups import ShareOffsets
from quorumlog.errors import ClusterError, RemoteProtocolError
from quorumlog.runtime.addresses import Address
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka.codec import Api

NO_MEMBER: Final = -1
"""The generation of a commit by a client that is not a member: an administrator, or a simple consumer."""

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
    **NEWEST_OF_SHARES,
}
"""For each request, the newest version to send.  Later versions of OffsetCommit and OffsetFetch name topics by id."""
_LATER_DESCRIPTIONS: Final = (
    (Api.CONSUMER_GROUP_DESCRIBE, CONSUMER),
    (Api.SHARE_GROUP_DESCRIBE, SHARE),
)
"""Requests for groups that DescribeGroups does not know, each with the type of its groups."""
_FIRST_FETCH_OF_STABLE: Final = 7
_FIRST_FETCH_WITH_GROUPS: Final = 8


class GroupClient:
    """Asks coordinators; bound to the loop of its `Cluster`, which the caller closes.

    Every call ends within its `timeout_s`.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.calls: Final = CoordinatorCalls(cluster, Kind.GROUP, _NEWEST)
        """Sends requests of members as well."""
        self.shares: Final = ShareOffsets(self.calls)

    # -- groups

    async def list_groups(self, timeout_s: float, states: Collection[str] = ()) -> list[ListedGroup]:
        """Return the groups of all brokers, ascending by name.

        states: only groups in one of these states, in upper or lower case; empty means all.
        Each broker lists the groups that it coordinates.

        Raises:
            ClusterError: TIMED_OUT, naming a broker that does not answer, or whose coordinators are still loading.
        """
        items, missing = await self.list_answered(timeout_s, states)
        if missing is not None:
            raise missing
        return items

    async def list_answered(self, timeout_s: float, states: Collection[str] = ()) -> Answers[ListedGroup]:
        """Return the result of `list_groups`, or when the time is up, the groups of the brokers that answered.

        Raises:
            ClusterError: TIMED_OUT: no broker has answered.
        """
        wanted = {state.lower() for state in states}
        items, missing = await self.calls.of_answering_brokers("the list of groups", timeout_s, self._listed_by)
        return Answers(sorted(each for each in items if not wanted or each.state.lower() in wanted), missing)

    async def _listed_by(self, broker_id: int, address: Address, left_s: float) -> list[ListedGroup]:
        connection = await self._cluster.connection(address, left_s)
        reply = await self.calls.ask(connection, Api.LIST_GROUPS, {}, left_s)
        check(reply.error_code, "the list of its groups")
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
            self.calls.remember(each.group, Coordinator(broker_id, address))
        return found

    async def describe(self, group: str, timeout_s: float) -> GroupDescription:
        """Return one group.

        Raises:
            ClusterError: GROUP_ID_NOT_FOUND, INVALID_GROUP_ID, TIMED_OUT.
        """

        async def attempt(coordinator: Coordinator, connection: KafkaConnection, left_s: float) -> GroupDescription:
            values = {"groups": [group]}
            reply = await self.calls.ask(connection, Api.DESCRIBE_GROUPS, values, left_s)
            described = _only(connection, reply.groups, group)
            is_missing = described.error_code == KafkaCode.GROUP_ID_NOT_FOUND or described.group_state == DEAD
            if not is_missing:
                check(described.error_code, f"group {group}")
                return classic_group(described, coordinator)
            for api, group_type in _LATER_DESCRIPTIONS:
                if await self.calls.version(connection, api, left_s) is None:
                    continue
                reply = await self.calls.ask(connection, api, {"group_ids": [group]}, left_s)
                described = _only(connection, reply.groups, group)
                if described.error_code != KafkaCode.GROUP_ID_NOT_FOUND:
                    check(described.error_code, f"group {group}")
                    return new_group(described, coordinator, group_type)
            raise refused(KafkaCode.GROUP_ID_NOT_FOUND, f"group {group}")

        return await self.calls.call_coordinator(
            group, timeout_s, attempt, refusing(KafkaCode.GROUP_ID_NOT_FOUND, f"group {group}")
        )

    async def explain(self, group: str, timeout_s: float) -> GroupExplanation:
        """Return the last rebalances of a group, with their causes.

        Raises:
            ClusterError: GROUP_ID_NOT_FOUND; TIMED_OUT; UNSUPPORTED_VERSION: the broker is not one of quorumlog.
        """

        async def attempt(coordinator: Coordinator, connection: KafkaConnection, left_s: float) -> GroupExplanation:
            reply = await self.calls.ask(connection, Api.EXPLAIN_GROUPS, {"group_ids": [group]}, left_s)
            explained = _only(connection, reply.groups, group)
            check(explained.error_code, f"group {group}")
            return explained_group(explained, coordinator)

        return await self.calls.call_coordinator(
            group, timeout_s, attempt, refusing(KafkaCode.GROUP_ID_NOT_FOUND, f"group {group}")
        )

    async def delete(self, group: str, timeout_s: float) -> None:
        """Delete a group with its offsets.

        Raises:
            ClusterError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, TIMED_OUT.  After TIMED_OUT, the group may be deleted.
                A missing group counts as deleted if its coordinator failed or changed during the call.
        """
        may_be_done = False

        async def attempt(connection: KafkaConnection, left_s: float) -> None:
            nonlocal may_be_done
            repeats, may_be_done = may_be_done, True
            reply = await self.calls.ask(connection, Api.DELETE_GROUPS, {"groups_names": [group]}, left_s)
            code = _only(connection, reply.results, group).error_code
            if code == KafkaCode.COORDINATOR_LOAD_IN_PROGRESS:
                # After another retriable error, it may be deleted: a coordinator that loses its leadership also answers
                # NOT_COORDINATOR to calls whose records are in its log, and the next coordinator may have them.
                may_be_done = repeats
            if not (repeats and code == KafkaCode.GROUP_ID_NOT_FOUND):
                check(code, f"group {group}")

        await self.calls.call(group, timeout_s, attempt, refusing(KafkaCode.GROUP_ID_NOT_FOUND, f"group {group}"))

    # -- offsets

    async def committed(
        self, group: str, timeout_s: float, partitions: Iterable[Partition] | None = None, *, stable: bool = False
    ) -> dict[Partition, CommittedOffset]:
        """Return the committed offsets of a group by partition, ascending.

        A partition without a committed offset is left out.  For a missing group, the result is empty.
        partitions: None means all.  stable: wait while a transaction that contains new offsets is open (KIP-447).

        Raises:
            ClusterError: INVALID_GROUP_ID, TIMED_OUT, or the error of a partition.
        """
        topics = None if partitions is None else _by_topic(partitions, "partition_indexes", lambda key: key[1])

        async def attempt(connection: KafkaConnection, left_s: float) -> dict[Partition, CommittedOffset]:
            asked: dict[str, Any] = {"group_id": group, "topics": topics}
            version = await self.calls.version(connection, Api.OFFSET_FETCH, left_s)
            values: dict[str, Any] = asked if (version or 0) < _FIRST_FETCH_WITH_GROUPS else {"groups": [asked]}
            if stable and (version or 0) >= _FIRST_FETCH_OF_STABLE:
                values["require_stable"] = True
            reply = await self.calls.ask(connection, Api.OFFSET_FETCH, values, left_s)
            answered = _only(connection, reply.groups, group) if hasattr(reply, "groups") else reply
            check(answered.error_code, f"group {group}: its offsets")
            found = {}
            for topic in answered.topics:
                for each in topic.partitions:
                    check(each.error_code, f"group {group}: its offset of {topic.name}-{each.partition_index}")
                    if each.committed_offset >= 0:
                        found[str(topic.name), int(each.partition_index)] = CommittedOffset(
                            each.committed_offset, each.committed_leader_epoch, each.metadata or ""
                        )
            return dict(sorted(found.items()))

        return await self.calls.call(group, timeout_s, attempt)

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
        """Commit offsets; return the errors of the refused partitions.  All other offsets are durable on return.

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
            reply = await self.calls.ask(connection, Api.OFFSET_COMMIT, values, left_s)
            return _refusals(connection, reply.topics, offsets, f"group {group}: a commit of")

        return await self.calls.call(group, timeout_s, attempt)

    async def delete_offsets(
        self, group: str, partitions: Collection[Partition], timeout_s: float
    ) -> dict[Partition, ClusterError]:
        """Delete committed offsets; return the errors of the refused partitions.

        A partition without a committed offset is not refused.

        Raises:
            ClusterError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP (not a group of consumers), TIMED_OUT.
        """
        topics = _by_topic(partitions, "partitions", lambda key: {"partition_index": key[1]})

        async def attempt(connection: KafkaConnection, left_s: float) -> dict[Partition, ClusterError]:
            reply = await self.calls.ask(connection, Api.OFFSET_DELETE, {"group_id": group, "topics": topics}, left_s)
            check(reply.error_code, f"group {group}")
            return _refusals(connection, reply.topics, partitions, f"group {group}: the deletion of its offset of")

        return await self.calls.call(
            group, timeout_s, attempt, refusing(KafkaCode.GROUP_ID_NOT_FOUND, f"group {group}")
        )


def _by_topic(
    partitions: Iterable[Partition], list_name: str, value: Callable[[Partition], Any]
) -> list[dict[str, Any]]:
    """Return partitions in the form of a request: ascending, and each once."""
    by_topic: dict[str, list[Any]] = {}
    for key in sorted(set(partitions)):
        by_topic.setdefault(key[0], []).append(value(key))
    return [{"name": topic, list_name: values} for topic, values in by_topic.items()]


def _refusals(
    connection: KafkaConnection, topics: Iterable[Any], asked: Collection[Partition], what: str
) -> dict[Partition, ClusterError]:
    """Return the errors of the refused partitions.

    Raises:
        ClusterError: a retriable error other than UNKNOWN_TOPIC_OR_PARTITION, so that the whole request is repeated.
    """
    answered = {(topic.name, each.partition_index): each.error_code for topic in topics for each in topic.partitions}
    with connection.judged():
        if answered.keys() != set(asked):
            raise RemoteProtocolError("the answer is about other partitions than the request")
    refusals = {
        (topic, index): refused(code, f"{what} {topic}-{index}") for (topic, index), code in answered.items() if code
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
