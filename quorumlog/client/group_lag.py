"""The lag of groups: the number of offsets of each partition between the committed offset and the log end.

The log end is the high watermark, as in Kafka's own tool.  Committed offsets are read before log ends, because in the
reverse order, a fast consumer could seem to be ahead of the log.

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
"""Time limit for the leaders' answers about offsets.  If a leader does not answer in time, the lag of its partitions is
unknown, and all other lags are reported."""
LEFT_MIN_S: Final = 0.05
"""The least time limit of a request to a coordinator, even if other requests have used up the time."""

T = TypeVar("T")


class PartitionLag(NamedTuple):
    """One partition that a group has read from, or that is assigned to one of its members.

    committed: None if the group has committed no offset in this partition.
    log_start, log_end: the log start offset and the high watermark; None if unknown.
    member: the member to which the partition is assigned; None if there is none, or in a share group.
    problem: the reason, in words, why a number is missing, or a problem that the consumer will have; None if there is
        none.
    share: the state of a share partition; None for other groups, or if the coordinator does not report the partition.
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
        """Return whether the group has read from the partition.  Only then does it have a lag, which may be unknown."""
        return self.committed is not None or (self.share is not None and _has_lag(self.share))

    @property
    def lag(self) -> int | None:
        """Return the number of offsets from the committed offset to the log end; None if one of these is unknown.

        For a share group: the number of records that are neither accepted nor archived, according to its coordinator.
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

    partitions: the number of partitions that the group has read from.  lag: the sum of the known lags.
    unknown: the number of these partitions whose lag is unknown.
    worst: the partition with the highest lag; None if no lag is above zero.
    """

    group: ListedGroup
    partitions: int
    lag: int
    unknown: int
    worst: Partition | None
    worst_lag: int


class LagsOfGroups(NamedTuple):
    """The lags of several groups.

    sums: one for each group whose coordinator answered, in the requested order.
    unknown: the error of each other group, by its name.
    """

    sums: list[LagSum]
    unknown: dict[str, ClusterError]


def partition_lag(
    key: Partition, committed: CommittedOffset | None, start: int | ClusterError, end: int | ClusterError,
    member: GroupMember | None,
) -> PartitionLag:  # fmt: skip
    """Return the lag of a partition, with the problem that its offsets reveal."""
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
    """Return the lag of one group.  timeout_s: the time limit of each request.

    Raises:
        ClusterError: GROUP_ID_NOT_FOUND; TIMED_OUT: the coordinator, or every broker, does not answer.
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
    """Return the lag of a share partition.  `member` is None, because several members may read the partition."""
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
    """Return the log start offsets and the log ends of partitions; an error in place of each unknown offset."""
    wanted = list(keys)
    starts = await list_offsets(cluster, dict.fromkeys(wanted, EARLIEST), timeout_s)
    known = [key for key in wanted if isinstance(starts[key], int)]
    ends = await list_offsets(cluster, dict.fromkeys(known, LATEST), timeout_s)
    return starts, {key: ends.get(key, starts[key]) for key in wanted}


async def lag_of_all(
    client: GroupClient, cluster: Cluster, groups: Iterable[ListedGroup], timeout_s: float
) -> list[LagSum]:
    """Return the lag of each group, in the given order.  Each log end is requested only once.

    Raises:
        ClusterError: TIMED_OUT: a coordinator, or every broker, does not answer.
    """
    sums, unknown = await known_lags(client, cluster, groups, timeout_s)
    for error in unknown.values():
        raise error
    return sums


async def known_lags(
    client: GroupClient, cluster: Cluster, groups: Iterable[ListedGroup], timeout_s: float
) -> LagsOfGroups:
    """Return the lags of groups, even if some coordinators do not answer.

    timeout_s: time limit for the answers of coordinators.  Then leaders have the same time, but at most LOG_S.

    Raises:
        ClusterError: a final refusal of a coordinator.
    """
    listed, loop = list(groups), asyncio.get_running_loop()
    end_s = loop.time() + timeout_s
    unknown: dict[str, ClusterError] = {}

    async def of_each(names: Iterable[str], ask: Callable[[str, float], Awaitable[T]]) -> dict[str, T]:
        """Return the answers about groups; add the errors of the other groups to `unknown`."""
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
    """Return the share offsets of a group; an empty dict if the group was deleted since it was listed."""
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
    """Return the sum of the lags.  partitions: the number of partitions.  lags: the known lags."""
    worst = max(lags, key=lambda key: (lags[key], key), default=None)
    worst_lag = 0 if worst is None else lags[worst]
    unknown = partitions - len(lags)
    return LagSum(group, partitions, sum(lags.values()), unknown, worst if worst_lag else None, worst_lag)
