"""Offsets of share groups (KIP-932), for administrators: the start offset and the lag of each share partition.

A share group has no committed offsets.  Its coordinator stores the start offset of each share partition: the offset of
the first record that is neither accepted nor archived.  Later records may already be accepted or archived.  So the lag
may be smaller than the distance to the log end, and only the coordinator knows the lag.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from quorumlog.client.coordinators import CoordinatorCalls, check, refused, refusing
from quorumlog.client.group_descriptions import Partition
from quorumlog.client.kafka import KafkaConnection
from quorumlog.client.leader_calls import by_topic
from quorumlog.errors import ClusterError, RemoteProtocolError
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import Api

K = TypeVar("K")

NEWEST: Final = {
    Api.SHARE_GROUP_DESCRIBE: 1,
    Api.DESCRIBE_SHARE_GROUP_OFFSETS: 1,
    Api.ALTER_SHARE_GROUP_OFFSETS: 0,
    Api.DELETE_SHARE_GROUP_OFFSETS: 0,
}
"""For each request about share groups, the newest version to send."""


class ShareOffset(NamedTuple):
    """The state of a share group in one partition.

    start: the offset of the first record that is neither accepted nor archived; None if no member has read the
        partition yet, or if it is unknown.
    lag: the number of records that are neither accepted nor archived; None if it is unknown.
    problem: the reason, in words, why the coordinator does not know the start; None without a problem.
    """

    start: int | None
    lag: int | None
    problem: str | None = None


class ShareOffsets:
    """Asks the coordinators of share groups.  Every call ends within its `timeout_s`."""

    def __init__(self, calls: CoordinatorCalls) -> None:
        self._calls = calls

    async def describe(self, group: str, timeout_s: float) -> dict[Partition, ShareOffset]:
        """Return the share partitions of a group that have been assigned to members, ascending.

        Raises:
            ClusterError: GROUP_ID_NOT_FOUND (not a share group), TIMED_OUT.
        """

        async def attempt(connection: KafkaConnection, left_s: float) -> dict[Partition, ShareOffset]:
            values = {"groups": [{"group_id": group, "topics": None}]}
            reply = await self._calls.ask(connection, Api.DESCRIBE_SHARE_GROUP_OFFSETS, values, left_s)
            answers = list(reply.groups)
            with connection.judged():
                if [each.group_id for each in answers] != [group]:
                    raise RemoteProtocolError("the answer is about other groups than the request")
            check(answers[0].error_code, f"group {group}: its offsets")
            found = {
                (str(topic.topic_name), int(each.partition_index)): share_offset(
                    each, f"{topic.topic_name}-{each.partition_index}"
                )
                for topic in answers[0].topics
                for each in topic.partitions
            }
            return dict(sorted(found.items()))

        missing = refusing(KafkaCode.GROUP_ID_NOT_FOUND, f"group {group}")
        return await self._calls.call(group, timeout_s, attempt, missing)

    async def alter(
        self, group: str, starts: Mapping[Partition, int], timeout_s: float
    ) -> dict[Partition, ClusterError]:
        """Set the start offsets of share partitions; return the errors of the refused partitions.

        The group must have no members; a missing group is created.  All records from the start on are available again,
        including those that were accepted.  All offsets that are not refused are durable on return.

        Raises:
            ClusterError: GROUP_ID_NOT_FOUND (a group of another type has this name), NON_EMPTY_GROUP, TIMED_OUT.
        """
        topics = [
            {
                "topic_name": topic,
                "partitions": [
                    {"partition_index": index, "start_offset": starts[topic, index]} for index in sorted(indexes)
                ],
            }
            for topic, indexes in by_topic(sorted(starts)).items()
        ]
        values = {"group_id": group, "topics": topics}

        async def attempt(connection: KafkaConnection, left_s: float) -> dict[Partition, ClusterError]:
            reply = await self._calls.ask(connection, Api.ALTER_SHARE_GROUP_OFFSETS, values, left_s)
            check(reply.error_code, f"group {group}")
            answered = {
                (str(topic.topic_name), int(each.partition_index)): each
                for topic in reply.responses
                for each in topic.partitions
            }
            with connection.judged():
                if answered.keys() != starts.keys():
                    raise RemoteProtocolError("the answer is about other partitions than the request")
            refusals = {
                key: refused(each.error_code, f"group {group}: the start of {key[0]}-{key[1]}", _reason(each))
                for key, each in sorted(answered.items())
                if each.error_code
            }
            return _unless_retriable(refusals)

        return await self._calls.call(group, timeout_s, attempt)

    async def delete(self, group: str, topics: Collection[str], timeout_s: float) -> dict[str, ClusterError]:
        """Delete the offsets of whole topics; return the errors of the refused topics.

        The group must have no members.  A topic without offsets is not refused.

        Raises:
            ClusterError: GROUP_ID_NOT_FOUND (not a share group), NON_EMPTY_GROUP, TIMED_OUT.
        """
        values = {"group_id": group, "topics": [{"topic_name": topic} for topic in sorted(set(topics))]}

        async def attempt(connection: KafkaConnection, left_s: float) -> dict[str, ClusterError]:
            reply = await self._calls.ask(connection, Api.DELETE_SHARE_GROUP_OFFSETS, values, left_s)
            check(reply.error_code, f"group {group}")
            answered = {each.topic_name: each.error_code for each in reply.responses}
            with connection.judged():
                if answered.keys() != set(topics):
                    raise RemoteProtocolError("the answer is about other topics than the request")
            refusals = {
                topic: refused(code, f"group {group}: the deletion of its offsets of {topic}")
                for topic, code in sorted(answered.items())
                if code not in (KafkaCode.NONE, KafkaCode.UNKNOWN_TOPIC_OR_PARTITION)
            }
            return _unless_retriable(refusals)

        missing = refusing(KafkaCode.GROUP_ID_NOT_FOUND, f"group {group}")
        return await self._calls.call(group, timeout_s, attempt, missing)


def _unless_retriable(refusals: dict[K, ClusterError]) -> dict[K, ClusterError]:
    """Return the refusals.  Raises: ClusterError: the first retriable refusal, to repeat the request."""
    for error in refusals.values():
        if error.retriable:
            raise error
    return refusals


def _reason(answer: Any) -> str:
    """Return the broker's explanation of an error, to be appended to a message; may be empty."""
    return f": {answer.error_message}" if answer.error_message else ""


def share_offset(answer: Any, name: str) -> ShareOffset:
    """Return the offset in one partition of an answer.  name: the partition's name, for messages."""
    if answer.error_code:
        return ShareOffset(None, None, refused(answer.error_code, f"the offset of {name}", _reason(answer)).message)
    if answer.start_offset < 0:
        return ShareOffset(None, None)
    lag = getattr(answer, "lag", -1)  # version 0 has no lag
    return ShareOffset(answer.start_offset, lag if lag >= 0 else None)
