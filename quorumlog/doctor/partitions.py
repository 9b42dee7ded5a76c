"""Findings about partitions: without a leader, with replicas out of sync, being moved, or with little redundancy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from quorumlog.doctor.findings import ADVICE, CRITICAL, PROBLEM, Finding
from quorumlog.doctor.layout import UNFENCED, Layout
from quorumlog.doctor.observed import NO_LEADER
from quorumlog.doctor.steps import TOPICS_AT_ONCE_MAX, cancel, first_topics, some, start, texts, unclean
from quorumlog.words import Key, about, counted, listed, named

if TYPE_CHECKING:
    from quorumlog.wire.v1.controller_pb2 import PartitionDescription

THROTTLE = "reassignment.throttle.bytes.per.second"
NO_THROTTLE = "-1"
CHOICE = "docs/partitions.md, A partition has no leader"


def availability_findings(layout: Layout) -> Iterator[Finding]:
    """Yield the findings about partitions that cannot be read or written."""
    yield from _leaderless(layout)
    yield from _below_minimum(layout)


def replication_findings(layout: Layout) -> Iterator[Finding]:
    """Yield the findings about partitions that work with fewer replicas in sync than they should have."""
    groups: dict[int, list[Key]] = {}
    for key, partition in layout.partitions.items():
        if partition.leader == NO_LEADER or len(partition.isr) < layout.required_isr(key):
            continue
        for broker_id in layout.missing(key):
            if not layout.is_lost(key, broker_id):
                groups.setdefault(broker_id, []).append(key)
    for broker_id, keys in sorted(groups.items()):
        step, commands = _bring_back(layout, (broker_id,), keys)
        yield Finding(
            PROBLEM,
            "UNDER_REPLICATED",
            what=f"{counted(len(keys), 'partition')} whose replica on broker {broker_id} is not in sync: {named(keys)}",
            cause=_why_missing(layout, (broker_id,), keys),
            next=step,
            nodes=(broker_id,),
            partitions=texts(keys),
            commands=commands,
        )


# Partitions without a leader


def _leaderless(layout: Layout) -> Iterator[Finding]:
    groups: dict[tuple[tuple[int, ...], bool], list[Key]] = {}
    for key, partition in layout.partitions.items():
        if partition.leader == NO_LEADER:
            eligible = tuple(sorted({*partition.isr, *partition.elr}))
            replicas = {replica.broker_id for replica in partition.replicas}
            groups.setdefault((eligible, bool(replicas.difference(eligible))), []).append(key)
    for (eligible, has_others), keys in sorted(groups.items()):
        if not eligible:
            yield from _nobody_eligible(layout, keys)
            continue
        brokers = listed(f"broker {each}" for each in eligible)
        commands = unclean(keys, layout.leaderless)
        if has_others:
            held = "it" if len(eligible) == 1 else "they"
            give_up = f"give up the records that only {held} held: {'; '.join(commands)}"
        else:
            commands, give_up = _recreate(layout, keys, eligible)
        yield Finding(
            CRITICAL,
            "OFFLINE",
            what=f"{counted(len(keys), 'partition')} without a leader: {named(keys)}",
            cause=f"only {brokers} may lead: {'; '.join(_obstacle(layout, each, keys) for each in eligible)}",
            next=f"{_lead_again(layout, eligible, keys)}; "
            f"if {'it is' if len(eligible) == 1 else 'all of them are'} lost permanently: {give_up}",
            nodes=eligible,
            partitions=texts(keys),
            last_resort=commands,
        )


def _obstacle(layout: Layout, broker_id: int, keys: list[Key]) -> str:
    """Return the reason why an eligible broker does not lead, as text."""
    if layout.is_up(broker_id):
        for key in keys:
            if problem := layout.offline_cause(key, broker_id):
                return f"broker {broker_id} is up, but cannot serve {key[0]}-{key[1]}: {problem}"
    return layout.state(broker_id)


def _lead_again(layout: Layout, eligible: tuple[int, ...], keys: list[Key]) -> str:
    """Return the step after which one of the eligible brokers can lead, as text."""
    down = [each for each in eligible if not layout.is_up(each)]
    failed = [each for each in eligible if each not in down and any(layout.offline_cause(key, each) for key in keys)]
    steps: list[str] = []
    if len(down) == 1:
        steps.append(start(layout.observed, down, "broker"))
    elif down:
        steps.append(f"start one of {listed(f'broker {each}' for each in down)}")
    if failed:
        brokers = listed((f"broker {each}" for each in failed), "or")
        steps.append(f"repair the disk of {brokers}, and restart that broker; its log has the error")
    return ", or ".join(steps) or "an election should follow at once; run doctor again"


def _recreate(layout: Layout, keys: list[Key], brokers: tuple[int, ...]) -> tuple[tuple[str, ...], str]:
    """Return the commands that recreate partitions whose replicas were all on lost brokers, and the step as text."""
    lost = (
        f"the records are lost, because {'it had the only replica' if len(brokers) == 1 else 'they had all replicas'}"
    )
    broker_id, topics = brokers[0], first_topics(keys)
    factor = layout.factor_of(topics, drain=broker_id)
    others = [each for each in layout.open_brokers() if each != broker_id]
    if len(others) < factor:
        lack = f" ({counted(len(others), 'is', 'are')} up, {factor} are needed)" if factor > 1 else ""
        return (), f"{lost}; start another broker{lack}, then run doctor again"
    # The move waits for the election that follows it, so kctl must not wait for the move.
    commands = (layout.move(topics, drain=broker_id).removesuffix(" --wait"), *unclean(keys, layout.leaderless))
    return commands, f"{lost}; these commands recreate the partition, empty, on another broker: {'; '.join(commands)}"


def _nobody_eligible(layout: Layout, keys: list[Key]) -> Iterator[Finding]:
    """Report partitions that have no leader, and no replica that is known to hold all acknowledged records."""
    alone: dict[int, list[Key]] = {}
    others: list[Key] = []
    for key in keys:
        replicas = layout.partitions[key].replicas
        if len(replicas) == 1:
            alone.setdefault(replicas[0].broker_id, []).append(key)
        else:
            others.append(key)
    for broker_id, lost in sorted(alone.items()):
        commands = unclean(lost, layout.leaderless)
        yield Finding(
            CRITICAL,
            "OFFLINE",
            what=f"{counted(len(lost), 'partition')} lost with the only replica, on broker {broker_id}: {named(lost)}",
            cause=f"broker {broker_id} once registered without its records: with another disk, with an empty "
            "directory, or after an unclean stop with write.caching",
            next=f"if its old disk still exists, stop broker {broker_id} and start it with that disk; then, or if the "
            f"disk is lost permanently, restart the partition with the records that broker {broker_id} has now: "
            f"{'; '.join(commands)}",
            nodes=(broker_id,),
            partitions=texts(lost),
            last_resort=commands,
        )
    if others:
        topic, index = min(others)
        explain = about("kctl explain", f"{topic}-{index}")
        commands = unclean(others, layout.leaderless)
        yield Finding(
            CRITICAL,
            "OFFLINE",
            what=f"{counted(len(others), 'partition')} without a leader: {named(others)}",
            cause="no replica is known to hold all acknowledged records: disks were lost, or all replicas in sync "
            "stopped uncleanly with write.caching",
            next=f"{explain} shows how that happened; start all brokers with a replica, and compare "
            f"the ends of their logs ({CHOICE}); to keep the records of one replica and give up the rest: "
            f"{'; '.join(commands)}",
            partitions=texts(others),
            last_resort=commands,
        )


# Partitions with too few replicas in sync


def _below_minimum(layout: Layout) -> Iterator[Finding]:
    groups: dict[tuple[int, ...], list[Key]] = {}
    for key, partition in layout.partitions.items():
        if partition.leader != NO_LEADER and len(partition.isr) < layout.required_isr(key):
            groups.setdefault(layout.missing(key), []).append(key)
    for missing, keys in sorted(groups.items()):
        step, commands = _bring_back(layout, missing, keys)
        yield Finding(
            CRITICAL,
            "BELOW_MIN_ISR",
            what=f"{counted(len(keys), 'partition')} with fewer replicas in sync than min.insync.replicas: "
            f"{named(keys)}; producers with acks=all are refused",
            cause=_why_missing(layout, missing, keys),
            next=step,
            nodes=missing,
            partitions=texts(keys),
            commands=commands,
        )


def _why_missing(layout: Layout, missing: tuple[int, ...], keys: list[Key]) -> str:
    if not missing:
        return "min.insync.replicas was raised, or replicas are being moved"
    return "; ".join(_why_out_of_sync(layout, broker_id, keys) for broker_id in missing)


def _why_out_of_sync(layout: Layout, broker_id: int, keys: list[Key]) -> str:
    broker = layout.brokers.get(broker_id)
    if broker is None or broker.state != UNFENCED or layout.observed.silence_of(broker_id) is not None:
        return layout.state(broker_id)
    if any(layout.is_lost(key, broker_id) for key in keys):
        return f"broker {broker_id} has lost its replica"
    if offline := [cause for key in keys if (cause := layout.offline_cause(key, broker_id))]:
        return f"broker {broker_id} cannot serve it: {offline[0]}"
    behind = [(lag, key) for key in keys if (lag := layout.lag(key, broker_id)) is not None]
    if not behind:
        return f"broker {broker_id} is up, but its replica has not caught up"
    lag, key = max(behind)
    text = f"broker {broker_id} is up, but behind: by {counted(lag, 'record')} in {key[0]}-{key[1]}"
    return text if layout.copies(key, broker_id) or not lag else f"{text}, and got none in the last seconds"


def _bring_back(layout: Layout, missing: tuple[int, ...], keys: list[Key]) -> tuple[str, tuple[str, ...]]:
    """Return the step that brings missing replicas back in sync, and its commands."""
    absent = [broker_id for broker_id in missing if layout.is_absent(broker_id)]
    topic, index = min(keys)
    if not absent:
        return f"{about('kctl explain', f'{topic}-{index}')}; the log of the broker says why it does not follow", ()
    commands, elsewhere = layout.place(first_topics(keys))
    step = start(layout.observed, absent, "broker")
    return f"{step}; the missing records are then copied; if it is lost permanently: {elsewhere}", commands


# Reassignments


def reassignment_findings(layout: Layout) -> Iterator[Finding]:
    """Yield the findings about reassignments that make no progress."""
    moving = {key: each for key, each in layout.partitions.items() if each.adding or each.removing}
    groups: dict[tuple[str, bool], list[Key]] = {}
    for key, partition in moving.items():
        if stuck := _stuck(layout, key, partition):
            groups.setdefault(stuck, []).append(key)
    for (cause, is_throttled), keys in sorted(groups.items()):
        back = cancel(keys, moving.keys())
        commands, step = back, "resolve that, and it continues automatically"
        if is_throttled:
            commands = ("kctl reassign start --throttle none",)
            step = f"remove the throttle: {commands[0]}"
        yield Finding(
            PROBLEM,
            "REASSIGNMENT_STUCK",
            what=f"{counted(len(keys), 'partition')} being moved, without progress: {named(keys)}",
            cause=cause,
            next=f"{step}; or go back: {'; '.join(back)}",
            partitions=texts(keys),
            commands=commands,
        )


def _stuck(layout: Layout, key: Key, partition: PartitionDescription) -> tuple[str, bool] | None:
    """Return the reason why a reassignment makes no progress, and whether it is throttled; None if it progresses."""
    if partition.leader == NO_LEADER:
        return "it has no leader to copy from", False
    waiting = sorted(set(partition.adding).difference(partition.isr))
    for broker_id in waiting:
        broker = layout.brokers.get(broker_id)
        if broker is None or broker.state != UNFENCED:
            return f"the target: {layout.state(broker_id)}", False
        if cause := layout.offline_cause(key, broker_id):
            return f"the target, broker {broker_id}: {cause}", False
    for broker_id in waiting:
        if layout.lag(key, broker_id) and not layout.copies(key, broker_id):
            cause = f"broker {broker_id} copied nothing in the last seconds"
            throttle = layout.configs.get(("", THROTTLE), NO_THROTTLE)
            if throttle == NO_THROTTLE:
                return cause, False
            return f"{cause}; the throttle is {throttle} bytes/s", True
    if not waiting:
        settled = [each for each in partition.isr if each not in partition.removing]
        if len(settled) < min(layout.min_isr[key[0]], len(partition.replicas) - len(partition.removing)):
            return (
                "the old replicas cannot be removed: fewer than min.insync.replicas would be in sync without them",
                False,
            )
    return None


# Little redundancy, by configuration


def redundancy_findings(layout: Layout) -> Iterator[Finding]:
    """Yield advice about topics whose configuration tolerates no failure.

    Topics that are being reassigned are left out: the commands of the advice would be refused.
    """
    alone: dict[str, list[Key]] = {}
    tight: dict[str, list[Key]] = {}
    moving = {key[0] for key in layout.partitions if layout.is_moving(key)}
    for key in layout.partitions:
        if key[0] in moving:
            continue
        factor = layout.factor([key])
        if factor == 1:
            alone.setdefault(key[0], []).append(key)
        elif layout.min_isr[key[0]] >= factor:
            tight.setdefault(key[0], []).append(key)
    if alone:
        yield _alone(layout, alone)
    by_factor: dict[int, dict[str, list[Key]]] = {}
    for topic, keys in tight.items():  # each topic once, because the commands set configs of whole topics
        by_factor.setdefault(min(layout.factor([key]) for key in keys), {})[topic] = keys
    for factor, topics in sorted(by_factor.items()):
        yield _tight(layout, factor, topics)


def _alone(layout: Layout, alone: dict[str, list[Key]]) -> Finding:
    topics = sorted(alone)
    keys = [key for topic in topics for key in alone[topic]]
    up = len(layout.open_brokers())
    commands: tuple[str, ...] = ()
    step = "start more brokers first"
    if up >= 2:
        commands, step = layout.enlarge(dict.fromkeys(first_topics(keys), min(3, up)))
    return Finding(
        ADVICE,
        "REPLICATION_FACTOR_1",
        what=f"{counted(len(topics), 'topic')} without a second replica ({counted(len(keys), 'partition')}): "
        f"{some(topics)}",
        cause="they are unavailable while their broker is down; if its disk is lost, their records are lost too"
        + ("; there is only one broker to hold them" if up < 2 else ""),
        next=step,
        partitions=texts(keys),
        commands=commands,
    )


def _tight(layout: Layout, factor: int, tight: dict[str, list[Key]]) -> Finding:
    topics = sorted(tight)
    keys = [key for topic in topics for key in tight[topic]]
    commands, step = layout.enlarge({topic: layout.min_isr[topic] + 1 for topic in first_topics(keys)})
    if commands:
        step = f"raise the replication factor: {step}"
    else:
        commands = tuple(
            f"kctl configs set min.insync.replicas={factor - 1} --topic {topic}"
            for topic in topics[:TOPICS_AT_ONCE_MAX]
        )
        wanted = max(layout.factor_of(topics), *(layout.min_isr[topic] + 1 for topic in topics))
        acknowledge = "one replica" if factor == 2 else f"{factor - 1} replicas"
        step = (
            f"start another broker, and use {wanted} replicas (doctor then gives the command); or, if {acknowledge} "
            f"may acknowledge alone: {'; '.join(commands)}"
        )
    return Finding(
        ADVICE,
        "MIN_ISR_IS_ALL",
        what=f"{counted(len(topics), 'topic')} with min.insync.replicas as high as the replication factor: "
        f"{some(topics)}",
        cause="as soon as one replica is down, producers with acks=all are refused",
        next=step,
        partitions=texts(keys),
        commands=commands,
    )
