"""The lag of groups: how many offsets of each partition they have not read, from commits and log ends.

The log end is the high watermark, as in Kafka's own tool.  Commits are read before log ends: in the reverse order, a
fast consumer could seem to be ahead of the log.

Share groups commit no offsets.  Their coordinators report the start and the lag of each share partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

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
from quorumlog.client.share_groups import ShareOffset
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError

LOG_S: Final = 5.0
"""How long leaders that do not answer are asked for their log's offsets.  Then the lag of their partitions is unknown,
and the others are reported without them."""
LEFT_MIN_S: Final = 0.05
"""Each coordinator is asked for at least this long, even if others have used up the time."""

T = TypeVar("T")


class PartitionLag(NamedTuple):
    """One partition that a group has read from, or that one of its members is assigned.

    committed: None if the group has not committed an offset of it.
    log_start, log_end: first offset kept, and high watermark; None if unknown.
    member: the member that is assigned the partition, if any.
    problem: why the figures are incomplete, or which problem the consumer will have; in words.
    share: the state of a share partition; None for other groups, or if no member has been assigned the partition yet.
    """

    topic: str
    partition: int
    committed: CommittedOffset | None
    log_start: int | None
    log_end: int | None
    member: GroupMember | None
    problem: str | None
    share: ShareOffset | None = None

    @property
    def has_lag(self) -> bool:
        """Return whether the group has read from the partition, so that it has a lag, known or not."""
        return self.committed is not None or (self.share is not None and _has_lag(self.share))

    @property
    def lag(self) -> int | None:
        """Return the number of offsets from the committed one to the log end; None if one of them is unknown.

        Of a share group: the number of records that are not done, as its coordinator reports it.
        """
        if self.share is not None:
            return self.share.lag
        if self.committed is None or self.log_end is None:
            return None
        return max(self.log_end - self.committed.offset, 0)


class GroupLag(NamedTuple):
    """The lag of a group in all its partitions, by partition."""

    description: GroupDescription
    partitions: tuple[PartitionLag, ...]


class LagSum(NamedTuple):
    """The lag of a group in one number.

    lag: the sum over the partitions whose lag is known.  unknown: the number of other partitions with a committed
        offset.
    worst: the partition with the highest lag; None if no lag is above zero.
    """

    group: ListedGroup
    partitions: int
    lag: int
    unknown: int
    worst: Partition | None
    worst_lag: int


class LagsOfGroups(NamedTuple):
    """sums: of the groups whose coordinators answered, in the order of the groups.  unknown: why the others failed."""

    sums: list[LagSum]
    unknown: dict[str, ClusterError]


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
    if description.is_share:
        return await _lag_of_shares(client, cluster, description, timeout_s)
    committed = await client.committed(group, timeout_s)
    owners = {key: member for member in description.members for key in member.partitions()}
    keys = sorted(committed.keys() | owners.keys())
    starts, ends = await log_ranges(cluster, keys, min(timeout_s, LOG_S))
    found = (partition_lag(key, committed.get(key), starts[key], ends[key], owners.get(key)) for key in keys)
    return GroupLag(description, tuple(found))


async def _lag_of_shares(
    client: GroupClient, cluster: Cluster, description: GroupDescription, timeout_s: float
) -> GroupLag:
    shares = await client.shares.describe(description.group, timeout_s)
    keys = sorted(shares.keys() | {key for member in description.members for key in member.partitions()})
    starts, ends = await log_ranges(cluster, keys, min(timeout_s, LOG_S))
    return GroupLag(
        description, tuple(share_partition_lag(key, shares.get(key), starts[key], ends[key]) for key in keys)
    )


def share_partition_lag(
    key: Partition, share: ShareOffset | None, start: int | ClusterError, end: int | ClusterError
) -> PartitionLag:
    """Return the lag of a share partition.  It has no owner: several members may read it at a time."""
    error = next((each for each in (end, start) if isinstance(each, ClusterError)), None)
    problem = None
    if share is not None and share.problem is not None:
        problem = share.problem
    elif error is not None:
        problem = error.message
    elif share is None or share.start is None:
        problem = "no member has read it yet"
    elif isinstance(start, int) and share.start < start:
        problem = f"the records from {share.start} to {start} (exclusive) are deleted"
    elif share.lag is None:
        problem = "the coordinator reports no lag; the leader of the partition may not answer it"
    log_start = start if isinstance(start, int) else None
    log_end = end if isinstance(end, int) else None
    return PartitionLag(*key, None, log_start, log_end, None, problem, share)


def _has_lag(share: ShareOffset) -> bool:
    return share.start is not None or share.problem is not None


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
    sums, unknown = await known_lags(client, cluster, groups, timeout_s)
    for error in unknown.values():
        raise error
    return sums


async def known_lags(
    client: GroupClient, cluster: Cluster, groups: Iterable[ListedGroup], timeout_s: float
) -> LagsOfGroups:
    """As `lag_of_all`, but a coordinator that does not answer does not hide the lags of other groups.

    timeout_s: for the coordinators, and again, up to LOG_S, for the leaders.

    Raises:
        ClusterError: a final refusal of a coordinator.
    """
    listed, loop = list(groups), asyncio.get_running_loop()
    end_s = loop.time() + timeout_s
    unknown: dict[str, ClusterError] = {}

    async def of_each(names: Iterable[str], ask: Callable[[str, float], Awaitable[T]]) -> dict[str, T]:
        """Return the answers about groups; `unknown` gets the reasons of those that are missing."""
        found: dict[str, T] = {}

        async def one(name: str) -> None:
            try:
                found[name] = await ask(name, max(end_s - loop.time(), LEFT_MIN_S))
            except ClusterError as error:
                if not error.retriable:
                    raise
                unknown[name] = error

        await all_of(map(one, names))
        return found

    commits = await of_each([each.group for each in listed if not each.is_share], client.committed)
    sharing = [each.group for each in listed if each.is_share]
    shares = await of_each(sharing, lambda name, left_s: _shares_of(client, name, left_s))
    keys = sorted({key for offsets in commits.values() for key in offsets})
    ends = await list_offsets(cluster, dict.fromkeys(keys, LATEST), min(timeout_s, LOG_S))
    sums = [
        share_sum(each, shares[each.group]) if each.group in shares else lag_sum(each, commits[each.group], ends)
        for each in listed
        if each.group not in unknown
    ]
    return LagsOfGroups(sums, unknown)


async def _shares_of(client: GroupClient, group: str, timeout_s: float) -> dict[Partition, ShareOffset]:
    """Return none for a group that was deleted since it was listed, like its committed offsets."""
    try:
        return await client.shares.describe(group, timeout_s)
    except ClusterError as error:
        if error.code != ApiError.GROUP_ID_NOT_FOUND:
            raise
        return {}


def share_sum(group: ListedGroup, shares: Mapping[Partition, ShareOffset]) -> LagSum:
    """Return the lag of a share group in one number."""
    read = {key: share for key, share in shares.items() if _has_lag(share)}
    return _sum(group, len(read), {key: share.lag for key, share in read.items() if share.lag is not None})


def lag_sum(group: ListedGroup, committed: Mapping[Partition, CommittedOffset], ends: Found) -> LagSum:
    """Return the lag of a group in one number."""
    lags = {}
    for key, offset in committed.items():
        end = ends[key]
        if isinstance(end, int):
            lags[key] = max(end - offset.offset, 0)
    return _sum(group, len(committed), lags)


def _sum(group: ListedGroup, partitions: int, lags: Mapping[Partition, int]) -> LagSum:
    """lags: those that are known, of `partitions` partitions."""
    worst = max(lags, key=lambda key: (lags[key], key), default=None)
    worst_lag = 0 if worst is None else lags[worst]
    unknown = partitions - len(lags)
    return LagSum(group, partitions, sum(lags.values()), unknown, worst if worst_lag else None, worst_lag)
