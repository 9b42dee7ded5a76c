"""The lag of groups: how many offsets of each partition they have not read, from commits and log ends.

The log end is the high watermark, as in Kafka's own tool.  Commits are read before log ends: the other way round, a
fast consumer could seem to be ahead of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from quorumlog.client.cluster import Cluster
from quorumlog.client.consumer import EARLIEST, LATEST
from quorumlog.client.coordinators import all_of
from quorumlog.client.group_descriptions import (
    CommittedOffset,
    GroupDescription,
    GroupMember,
    ListedGroup,
    Partition,
)
from quorumlog.client.groups import GroupClient
from quorumlog.client.log_offsets import Found, list_offsets
from quorumlog.errors import ClusterError

LOG_S: Final = 5.0
"""How long leaders that do not answer are asked for their log's offsets.  Then the lag of their partitions is unknown,
and the others are reported without them."""


class PartitionLag(NamedTuple):
    """One partition that a group has read from, or that one of its members is assigned.

    committed: None if the group has not committed an offset of it.
    log_start, log_end: first offset kept, and high watermark; None if unknown.
    member: the member that is assigned the partition, if any.
    problem: why the figures are incomplete, or what the consumer will meet; in words.
    """

    topic: str
    partition: int
    committed: CommittedOffset | None
    log_start: int | None
    log_end: int | None
    member: GroupMember | None
    problem: str | None

    @property
    def lag(self) -> int | None:
        """Return the number of offsets from the committed one to the log end; None if one of them is unknown."""
        if self.committed is None or self.log_end is None:
            return None
        return max(self.log_end - self.committed.offset, 0)


class GroupLag(NamedTuple):
    """The lag of a group in all its partitions, by partition."""

    description: GroupDescription
    partitions: tuple[PartitionLag, ...]


class LagSum(NamedTuple):
    """The lag of a group in one number.

    lag: of the partitions whose lag is known.  unknown: the number of the others with a committed offset.
    worst: the partition with the highest lag; None if no lag is above zero.
    """

    group: ListedGroup
    partitions: int
    lag: int
    unknown: int
    worst: Partition | None
    worst_lag: int


def partition_lag(
    key: Partition, committed: CommittedOffset | None, start: int | ClusterError, end: int | ClusterError,
    member: GroupMember | None,
) -> PartitionLag:  # fmt: skip
    """Return the lag of a partition, with the problem that its figures show."""
    log_start = start if isinstance(start, int) else None
    log_end = end if isinstance(end, int) else None
    problem = None
    error = next((each for each in (end, start) if isinstance(each, ClusterError)), None)
    if error is not None:
        problem = error.message
    elif committed is None:
        problem = "no offset is committed"
    elif log_start is not None and committed.offset < log_start:
        problem = f"the records from {committed.offset} to {log_start} (exclusive) are deleted"
    elif log_end is not None and committed.offset > log_end:
        problem = f"the committed offset is after the log end {log_end}"
    return PartitionLag(*key, committed, log_start, log_end, member, problem)


async def lag_of(client: GroupClient, cluster: Cluster, group: str, timeout_s: float) -> GroupLag:
    """Return the lag of one group.

    Raises:
        ClusterError: GROUP_ID_NOT_FOUND, TIMED_OUT: no coordinator, or no broker answers.
    """
    description = await client.describe(group, timeout_s)
    committed = await client.committed(group, timeout_s)
    owners = {key: member for member in description.members for key in member.partitions()}
    keys = sorted(committed.keys() | owners.keys())
    starts, ends = await log_ranges(cluster, keys, min(timeout_s, LOG_S))
    found = (partition_lag(key, committed.get(key), starts[key], ends[key], owners.get(key)) for key in keys)
    return GroupLag(description, tuple(found))


async def log_ranges(cluster: Cluster, keys: Iterable[Partition], timeout_s: float) -> tuple[Found, Found]:
    """Return the log starts and the log ends of partitions, or why they are unknown."""
    wanted = list(keys)
    starts = await list_offsets(cluster, dict.fromkeys(wanted, EARLIEST), timeout_s)
    known = [key for key in wanted if isinstance(starts[key], int)]
    ends = await list_offsets(cluster, dict.fromkeys(known, LATEST), timeout_s)
    return starts, {key: ends.get(key, starts[key]) for key in wanted}


async def lag_of_all(
    client: GroupClient, cluster: Cluster, groups: Iterable[ListedGroup], timeout_s: float
) -> list[LagSum]:
    """Return the lag of each group, in their order; each log end is asked for once.

    Raises:
        ClusterError: TIMED_OUT: a coordinator, or all brokers, do not answer.
    """
    listed = list(groups)
    committed = await all_of(client.committed(each.group, timeout_s) for each in listed)
    keys = sorted({key for offsets in committed for key in offsets})
    ends = await list_offsets(cluster, dict.fromkeys(keys, LATEST), min(timeout_s, LOG_S))
    return [lag_sum(group, offsets, ends) for group, offsets in zip(listed, committed, strict=True)]


def lag_sum(group: ListedGroup, committed: Mapping[Partition, CommittedOffset], ends: Found) -> LagSum:
    """Return the lag of a group in one number."""
    lags = {}
    for key, offset in committed.items():
        end = ends[key]
        if isinstance(end, int):
            lags[key] = max(end - offset.offset, 0)
    worst = max(lags, key=lambda key: (lags[key], key), default=None)
    worst_lag = 0 if worst is None else lags[worst]
    unknown = len(committed) - len(lags)
    return LagSum(group, len(committed), sum(lags.values()), unknown, worst if worst_lag else None, worst_lag)
