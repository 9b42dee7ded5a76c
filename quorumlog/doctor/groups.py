"""Findings about consumer groups: those that are stuck, rebalance again and again, are unused, or fall behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from quorumlog.doctor.findings import ADVICE, CRITICAL, PROBLEM, Finding
from quorumlog.doctor.layout import Layout
from quorumlog.doctor.observed import NO_LEADER, ObservedCluster
from quorumlog.doctor.steps import texts
from quorumlog.words import SHOWN_MAX, about, counted, listed, named, quoted

if TYPE_CHECKING:
    from quorumlog.client.group_descriptions import GroupExplanation, GroupMember
    from quorumlog.doctor.groups_observed import ObservedGroups

OFFSETS = "__consumer_offsets"
STUCK_MS = 60_000
"""A rebalance is stuck if it takes longer than this: its members wait for a request that one of them has not sent."""
FLAPS = 5
FLAPS_WITHIN_MS = 300_000
"""A group flaps if it began FLAPS rebalances within this time, by the clock of its coordinator."""
EMPTY_MS = 3 * 86_400_000
"""A group without members counts as unused after this time, which is longer than the interval of a daily job."""
FACTOR = 3
"""With this many replicas, committed offsets survive the loss of one broker during the maintenance of another one."""


def group_findings(cluster: ObservedCluster) -> Iterator[Finding]:
    """Yield at most one finding of each kind, except for groups that are stuck."""
    yield from _coordinators(cluster)
    groups = cluster.groups
    if groups is None:
        return
    if groups.problem:
        yield Finding(
            PROBLEM,
            "GROUPS_UNKNOWN",
            what="some coordinators of consumer groups do not answer",
            cause=groups.problem,
            next="wait for the broker that the message names, then retry: kctl groups list; if it lasts, the log of "
            "that broker says which partition of __consumer_offsets cannot be loaded (`coordinator not loaded`)",
        )
    yield from _stuck(groups)
    yield from _flapping(groups)
    yield from _growing(groups)
    yield from _unused(groups)


def _coordinators(cluster: ObservedCluster) -> Iterator[Finding]:
    metadata = cluster.metadata
    topic = None if metadata is None else next((each for each in metadata.topics if each.name == OFFSETS), None)
    if metadata is None or topic is None:
        return
    offline = [(OFFSETS, each.index) for each in topic.partitions if each.leader == NO_LEADER]
    if offline:
        yield Finding(
            CRITICAL,
            "NO_COORDINATOR",
            what=f"consumer groups in {counted(len(offline), 'partition')} of {OFFSETS} have no coordinator: their "
            "members can neither join nor commit",
            cause=f"no leader: {named(offline)}",
            next="give these partitions a leader, as the finding OFFLINE describes",
            partitions=texts(offline),
        )
    layout = Layout(cluster, metadata)
    wanted = min(FACTOR, len(layout.open_brokers()))
    few = [(OFFSETS, each.index) for each in topic.partitions if 1 < len(each.replicas) < wanted]
    is_moving = any(map(layout.is_moving, layout.by_topic[OFFSETS]))
    if few and not is_moving:  # otherwise the command would be refused
        commands, step = layout.enlarge({OFFSETS: wanted})
        yield Finding(
            ADVICE,
            "OFFSETS_UNDER_REPLICATED",
            what=f"{counted(len(few), 'partition')} of {OFFSETS} {'has' if len(few) == 1 else 'have'} fewer than "
            f"{wanted} replicas",
            cause="the topic was created with a lower default.replication.factor, and keeps it",
            next=step,
            partitions=texts(few),
            commands=commands,
        )


def _stuck(groups: ObservedGroups) -> Iterator[Finding]:
    for each in groups.explained.values():
        last = each.rebalances[-1] if each.rebalances else None
        if last is None or last.duration_ms is not None or each.now_ms - last.started_ms < STUCK_MS:
            continue
        late = listed(_member(member) for member in each.awaited[:SHOWN_MAX])
        more = f" and {len(each.awaited) - SHOWN_MAX} more" if len(each.awaited) > SHOWN_MAX else ""
        yield Finding(
            PROBLEM,
            "GROUP_STUCK",
            what=f"group {quoted(each.group)} has been rebalancing for {(each.now_ms - last.started_ms) // 1000} s",
            cause=f"{last.cause}; the rebalance waits for {late}{more}",
            next=f"{about('kctl groups explain', each.group)}; then look at these members: they do not poll, or hang; "
            "max.poll.interval.ms limits how long the group waits for them",
            nodes=(each.coordinator.broker_id,),
        )


def _flapping(groups: ObservedGroups) -> Iterator[Finding]:
    found = []
    for each in groups.explained.values():
        recent = [one for one in each.rebalances if each.now_ms - one.started_ms <= FLAPS_WITHIN_MS]
        if len(recent) >= FLAPS:
            (reason, count), *_ = Counter(one.reason for one in recent).most_common(1)
            found.append((each, f"{quoted(each.group)}: {len(recent)} rebalances, {count} of them because: {reason}"))
    if not found:
        return
    yield Finding(
        ADVICE,
        "GROUP_FLAPS",
        what=f"{counted(len(found), 'group')} began {FLAPS} or more rebalances within {FLAPS_WITHIN_MS // 60_000} "
        "minutes",
        cause="; ".join(text for _, text in found[:SHOWN_MAX]) + _rest(len(found)),
        next=f"{about('kctl groups explain', found[0][0].group)} names the members; a longer session.timeout.ms or "
        "max.poll.interval.ms, or static members (group.instance.id), avoid rebalances of members that restart or are "
        "slow",
        nodes=tuple(sorted({each.coordinator.broker_id for each, _ in found})),
    )


def _growing(groups: ObservedGroups) -> Iterator[Finding]:
    found = sorted(groups.lags.items(), key=lambda item: (item[1][0].lag - item[1][-1].lag, item[0]))
    if not found:
        return
    shown = [
        f"{quoted(name)} ({samples[-1].group.state}): from {samples[0].lag} to {samples[-1].lag}"
        for name, samples in found[:SHOWN_MAX]
    ]
    # The members of a share group share partitions, so their number is not limited.
    limit = "" if found[0][1][-1].group.is_share else ", up to the number of partitions"
    is_empty = any(samples[-1].group.state == "Empty" for _, samples in found)
    yield Finding(
        ADVICE,
        "LAG_GROWS",
        what=f"the lag of {counted(len(found), 'group')} grew in each of {len(found[0][1])} samples within "
        f"{groups.watched_s:.0f} s",
        cause="; ".join(shown) + _rest(len(found)),
        next=f"{about('kctl groups lag', found[0][0], options=' --follow')}; add members{limit}"
        + (", and start the members of groups that have none" if is_empty else ""),
    )


def _unused(groups: ObservedGroups) -> Iterator[Finding]:
    found = [
        each
        for each in groups.explained.values()
        if each.empty_since_ms is not None and each.now_ms - each.empty_since_ms > EMPTY_MS
    ]
    if not found:
        return
    found.sort(key=lambda each: (each.empty_since_ms or 0, each.group))
    shown = [f"{quoted(each.group)} for {_days(each)} days" for each in found[:SHOWN_MAX]]
    delete = about("kctl groups delete", *(each.group for each in found[:SHOWN_MAX]), options=" --yes")
    yield Finding(
        ADVICE,
        "GROUP_UNUSED",
        what=f"{counted(len(found), 'group')} with committed offsets {'has' if len(found) == 1 else 'have'} no members",
        cause="; ".join(shown) + _rest(len(found)),
        next="offsets.retention.minutes deletes their offsets later; if somebody still needs them, start the members; "
        f"if nobody does: {delete}",
    )


def _days(each: GroupExplanation) -> int:
    return (each.now_ms - (each.empty_since_ms or 0)) // 86_400_000


def _rest(count: int) -> str:
    return f" and {counted(count - SHOWN_MAX, 'more group')}" if count > SHOWN_MAX else ""


def _member(member: GroupMember) -> str:
    return f"{quoted(member.member_id)} ({quoted(member.client_id)} at {member.host.lstrip('/')})"
