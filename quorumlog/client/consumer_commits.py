"""The committed offsets of a consumer: commits them under its membership, and looks them up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from quorumlog.client.coordinators import refused
from quorumlog.client.group_descriptions import CommittedOffset, Partition
from quorumlog.client.group_member import GroupMember
from quorumlog.client.group_protocol import NO_GENERATION
from quorumlog.client.groups import GroupClient
from quorumlog.client.messages import TopicPartition
from quorumlog.client.positions import Position
from quorumlog.client.producer_transactions import GroupMetadata
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError, KafkaCode

_ILLEGAL_GENERATION: Final = "ILLEGAL_GENERATION"
_OUT_OF_GROUP: Final = frozenset({"UNKNOWN_MEMBER_ID", _ILLEGAL_GENERATION, "REBALANCE_IN_PROGRESS"})


class Commits:
    """The offsets of one group.

    positions: the consumer's positions, which store the last committed offset.
    committed_only: before a committed offset is used or returned, wait for open transactions that may replace it.
    member: the consumer's membership; None if the consumer only uses the group's offsets.
    """

    def __init__(
        self, groups: GroupClient, group: str, positions: Mapping[TopicPartition, Position], *, committed_only: bool
    ) -> None:
        self.member: GroupMember | None = None
        self._groups = groups
        self._group = group
        self._positions = positions
        self._committed_only = committed_only
        self._lock = asyncio.Lock()

    async def commit(self, wanted: Mapping[TopicPartition, int], timeout_s: float) -> None:
        """Commit offsets after earlier calls have ended; return once they are durable.

        Raises: as `Consumer.commit`.
        """
        for refusal in (await self.answered(wanted, timeout_s)).values():
            raise refusal

    async def answered(
        self, wanted: Mapping[TopicPartition, int], timeout_s: float
    ) -> Mapping[Partition, ClusterError]:
        """Commit offsets as `commit` does; return the errors of refused partitions.

        Raises: ClusterError: there was no answer in time, or the consumer is not in the group.
        """
        values: dict[Partition, CommittedOffset] = {
            partition: CommittedOffset(offset, -1, "") for partition, offset in wanted.items()
        }
        member = self.member
        # This membership may end while an earlier commit is awaited, and then other members own the partitions.
        identity = None if member is None else (member.core.member_id, member.core.generation)
        owned = {partition: self._positions.get(partition) for partition in wanted}
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._lock.acquire()
        except TimeoutError as cause:
            text = f"group {self._group}: an earlier commit of this consumer got no answer within {timeout_s:g} s"
            step = "check that the brokers run, then retry"
            raise ClusterError(ApiError.TIMED_OUT, text, step, retriable=True) from cause
        self.may_have_changed(wanted)  # the answer may be lost, or this call may be cancelled
        try:
            left_s = max(deadline - asyncio.get_running_loop().time(), 0.0)
            if member is None or identity is None:
                refusals = await self._groups.commit(self._group, values, left_s)
            else:
                refusals = await self._commit_as(member, *identity, owned, values, left_s)
        finally:
            self._lock.release()
        for partition, offset in wanted.items():
            position = self._positions.get(partition)
            if position is not None and partition not in refusals:
                position.committed = offset
        return refusals

    def may_have_changed(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that the committed offsets are unknown, so that the next commit does not omit them as unchanged."""
        for partition in partitions:
            if (position := self._positions.get(partition)) is not None:
                position.committed = None

    def _has_kept(self, owned: Mapping[TopicPartition, Position | None]) -> bool:
        """Return whether the consumer has read these partitions since the call, so that no other member had them."""
        return all(
            position is not None and self._positions.get(partition) is position for partition, position in owned.items()
        )

    async def _commit_as(
        self,
        member: GroupMember,
        member_id: str,
        generation: int,
        owned: Mapping[TopicPartition, Position | None],
        values: dict[Partition, CommittedOffset],
        timeout_s: float,
    ) -> dict[Partition, ClusterError]:
        if generation == NO_GENERATION:
            message = f"group {self._group}: this consumer is not in the group now"
            raise ClusterError("UNKNOWN_MEMBER_ID", message, "commit while partitions are assigned")
        refusals = await self._groups.commit(
            self._group,
            values,
            timeout_s,
            member_id=member_id,
            generation=generation,
            instance_id=member.instance_id,
        )
        is_stale = any(refusal.code == _ILLEGAL_GENERATION for refusal in refusals.values())
        if is_stale and member.core.continues(member_id, generation) and self._has_kept(owned):
            # In a cooperative rebalance, the member keeps partitions, and the coordinator is the first to know the next
            # generation.  So the member is not out of the group, and the same commit succeeds after the rebalance.
            code = KafkaCode.REBALANCE_IN_PROGRESS
            return {key: refused(code, f"group {self._group}: a commit of {key[0]}-{key[1]}") for key in refusals}
        for refusal in refusals.values():
            if refusal.code in _OUT_OF_GROUP:
                member.commit_refused(generation, refusal.code)
        return refusals

    async def committed(self, partitions: Iterable[tuple[str, int]], timeout_s: float) -> dict[TopicPartition, int]:
        """Return committed offsets by partition; partitions without one are left out.  Raises: ClusterError."""
        found = await self._groups.committed(self._group, timeout_s, partitions, stable=self._committed_only)
        return {TopicPartition(*partition): offset.offset for partition, offset in found.items()}

    async def to_begin_at(self, partitions: list[Partition], timeout_s: float) -> Mapping[Partition, CommittedOffset]:
        """Return the committed offsets at which reading begins; partitions without one are left out.

        Raises: ClusterError.
        """
        return await self._groups.committed(self._group, timeout_s, partitions, stable=self._committed_only)

    def metadata(self) -> GroupMetadata:
        """Return the membership of the consumer."""
        if self.member is None:
            return GroupMetadata(self._group)
        core = self.member.core
        return GroupMetadata(self._group, core.member_id, core.generation, self.member.instance_id)


def no_group(what: str) -> ClusterError:
    """Return the refusal of a consumer without a group.  what: the consequence, in words."""
    return ClusterError(ApiError.INVALID_REQUEST, f"a consumer without a group {what}", "pass group=…")
