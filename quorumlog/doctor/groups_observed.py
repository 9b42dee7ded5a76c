"""Observations of consumer groups, and the requests for them: lists, explanations, and several samples of lag.

A client commits at intervals, by default every 5 s, so the lag of a healthy group falls only at a commit.  Lag counts
as growing if it grows in every sample over a time that includes at least two commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from quorumlog.client.cluster import Cluster
from quorumlog.client.coordinators import all_of
from quorumlog.client.group_descriptions import GroupExplanation, ListedGroup
from quorumlog.client.group_lag import LEFT_MIN_S, LagSum, lag_of_all
from quorumlog.client.groups import GroupClient
from quorumlog.errors import ClusterError

LIST_S = 3.0
"""Time limit of the list of groups, of all explanations and of each sample of lag.  A coordinator that has not answered
by then is reported."""
SAMPLE_EVERY_S = 2.0
SAMPLES_MAX = 7
"""Number of samples of the lag, which take 12 s.  A group whose lag did not grow gets no further sample."""
EXPLAINED_MAX = 500
"""Maximum number of groups that are explained; groups in a rebalance come first.  The others are examined for growing
lag only."""
LAGS_MAX = 500
"""Maximum number of groups whose lag is examined, in the order of their names."""


@dataclass(slots=True)
class ObservedGroups:
    """The consumer groups of a cluster.

    problem: the reason why all or some groups are unknown; empty if all are known.
    explained: the explanations, by name of the group.
    lags: the samples of each group whose lag grew in every sample, by name of the group.
    watched_s: seconds from the first to the last sample; 0 unless all SAMPLES_MAX samples were taken.
    """

    problem: str = ""
    listed: Sequence[ListedGroup] = ()
    explained: dict[str, GroupExplanation] = field(default_factory=dict)
    lags: dict[str, list[LagSum]] = field(default_factory=dict)
    watched_s: float = 0.0


async def look_at_groups(addresses: Iterable[str], timeout_s: float) -> ObservedGroups:
    """Ask the coordinators of a cluster, within about `timeout_s`.

    addresses: the addresses of its brokers for Kafka clients.
    """
    seen = ObservedGroups()
    async with Cluster(list(addresses), client_id="kctl-doctor") as cluster:
        client = GroupClient(cluster)
        end = asyncio.get_running_loop().time() + timeout_s
        try:
            seen.listed = await client.list_groups(min(LIST_S, timeout_s))
            await _explain(client, seen, end)
            await _watch_lags(client, cluster, seen, end)
        except ClusterError as error:
            seen.problem = error.message
    return seen


async def _explain(client: GroupClient, seen: ObservedGroups, end: float) -> None:
    """Ask for the last rebalances of all groups, within LIST_S, and until `end` at most.

    Share groups are left out, because they never rebalance.  A group is also left out if it was deleted meanwhile, or
    if its coordinator is too old for this request.
    """
    loop = asyncio.get_running_loop()
    end = min(end, loop.time() + LIST_S)

    async def ask(name: str) -> None:
        try:
            seen.explained[name] = await client.explain(name, max(end - loop.time(), LEFT_MIN_S))
        except ClusterError as error:
            if error.retriable:
                raise

    listed = [each for each in seen.listed if not each.is_share]
    wanted = sorted(listed, key=lambda each: (not each.state.endswith("Rebalance"), each.group))
    await all_of(ask(each.group) for each in wanted[:EXPLAINED_MAX])


async def _watch_lags(client: GroupClient, cluster: Cluster, seen: ObservedGroups, end: float) -> None:
    """Take a sample of the lag of all groups, then further samples of the groups whose lag still grows."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    left: Sequence[ListedGroup] = seen.listed[:LAGS_MAX]
    samples: dict[str, list[LagSum]] = {each.group: [] for each in left}
    for number in range(SAMPLES_MAX):
        if number:
            await asyncio.sleep(SAMPLE_EVERY_S)
        left_s = end - loop.time()
        if left_s <= SAMPLE_EVERY_S:
            return  # too little time to conclude anything
        for each in await lag_of_all(client, cluster, left, min(LIST_S, left_s)):
            samples[each.group.group].append(each)
        left = [each for each in left if grows(samples[each.group])]
        if not left:
            return
    seen.watched_s = loop.time() - begun
    seen.lags = {each.group: samples[each.group] for each in left}


def grows(samples: Sequence[LagSum]) -> bool:
    """Return whether all samples are complete, and each has a higher lag than the sample before."""
    return all(each.unknown == 0 for each in samples) and all(
        later.lag > earlier.lag for earlier, later in pairwise(samples)
    )
