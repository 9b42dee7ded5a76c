"""Findings about brokers: fenced brokers, lost replicas and directories, pending changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from quorumlog.doctor.findings import ADVICE, PROBLEM, Finding
from quorumlog.doctor.layout import FENCED, LOST_DIRECTORY, SHUTTING_DOWN, Layout
from quorumlog.doctor.observed import NO_LEADER
from quorumlog.doctor.steps import RECOVERY, first_topics, some, start, texts
from quorumlog.words import SHOWN_MAX, Key, counted, listed, named

if TYPE_CHECKING:
    from quorumlog.wire.v1.controller_pb2 import BrokerDescription


def broker_findings(layout: Layout) -> Iterator[Finding]:
    """Yield the findings about the brokers and their directories."""
    yield from _states(layout)
    yield from _lost_replicas(layout)
    yield from _offline_directories(layout)
    yield from _strays(layout)
    yield from _pending_changes(layout)


def _states(layout: Layout) -> Iterator[Finding]:
    if not layout.brokers:
        yield Finding(
            ADVICE,
            "NO_BROKERS",
            what="no broker is registered",
            cause="without a broker there can be no topics",
            next=f"start one, for example on this machine: {_example_broker(layout)}",
        )
    for broker_id, broker in sorted(layout.brokers.items()):
        if broker.state == FENCED:
            yield _fenced(layout, broker_id, broker)
        elif broker.state == SHUTTING_DOWN:
            yield Finding(
                ADVICE,
                "SHUTTING_DOWN",
                what=f"broker {broker_id} is shutting down",
                cause=f"it was asked to stop, and hands its leaderships over; {broker.leaders} are left",
                next="start it again when it has stopped",
                nodes=(broker_id,),
            )
        elif (silence := layout.observed.silence_of(broker_id)) is not None:
            yield Finding(
                PROBLEM,
                "BROKER_UNREACHABLE",
                what=f"broker {broker_id} does not answer this machine, and is not fenced",
                cause=f"{silence}; so it has just stopped, or this machine cannot reach it",
                next="look again in a few seconds: kctl doctor",
                nodes=(broker_id,),
            )
        if layout.configs.get((str(broker_id), "cordoned")) == "true":
            command = f"kctl configs unset cordoned --broker {broker_id}"
            yield Finding(
                ADVICE,
                "CORDONED",
                what=f"broker {broker_id} is cordoned: it gets no new replicas",
                cause=f"its config cordoned is true; it has {counted(broker.replicas, 'replica')}",
                next=command,
                nodes=(broker_id,),
                commands=(command,),
            )
    for node in layout.observed.own_nodes:
        if node.described is not None and node.described.is_broker and node.node_id not in layout.brokers:
            yield Finding(
                PROBLEM,
                "NOT_REGISTERED",
                what=f"broker {node.node_id} runs, but is not registered",
                cause=node.failing_checks(),
                next=f"look at the log of broker {node.node_id}: it has the controller's answer",
                nodes=(node.node_id or 0,),
            )


def _example_broker(layout: Layout) -> str:
    """Return a command that starts a broker on this machine, with a free id."""
    node_id = max([each.node_id or 0 for each in layout.observed.own_nodes], default=0) + 1
    controllers = ",".join(node.address for node in layout.observed.own_nodes if node.answers)
    return (
        f"broker run --node-id {node_id} --data-dir ./broker-{node_id} --listen 127.0.0.1:9092 "
        f"--control-listen 127.0.0.1:0 --controllers {controllers}"
    )


def _fenced(layout: Layout, broker_id: int, broker: BrokerDescription) -> Finding:
    observed = layout.observed
    node = observed.node(broker_id)
    replicas = f"{counted(broker.replicas, 'replica')} out of use" if broker.replicas else "it has no replicas"
    what = f"broker {broker_id} is fenced: {replicas}"
    if node is not None and node.described is not None:
        return Finding(
            PROBLEM,
            "FENCED",
            what=what,
            cause=f"it runs; {node.failing_checks() or 'its heartbeats do not reach the controller'}",
            next=f"look at the log of broker {broker_id}; if it hangs, restart it",
            nodes=(broker_id,),
        )
    where = "" if node is None else f"node {broker_id} at {node.address}: "
    silence = observed.silence_of(broker_id) or "its client port accepts connections"
    commands, replacement = _replace(layout, broker_id)
    step = start(observed, [broker_id], "broker") + ("" if observed.end_of(broker_id) else "; its log says why")
    return Finding(
        PROBLEM,
        "FENCED",
        what=what,
        cause=f"it sends no heartbeats; {where}{silence}",
        next=f"{step}; if it is lost permanently: {replacement}",
        nodes=(broker_id,),
        commands=commands,
    )


def _replace(layout: Layout, broker_id: int) -> tuple[tuple[str, ...], str]:
    """Return the commands that move all replicas off a broker and unregister it, and the step as text."""
    unregister = f"kctl brokers unregister {broker_id}"
    keys = [key for key in layout.partitions if layout.has_replica(key, broker_id)]
    if not keys:
        return (unregister,), unregister
    offline = [key for key in keys if layout.partitions[key].leader == NO_LEADER]
    if lack := layout.lack_of_brokers(layout.factor(keys)):
        if offline:
            return (), f"start another broker first ({lack}); doctor then says how to replace it"
        again = f"start broker {broker_id} with empty data directories, and it copies its replicas from the others"
        return (), f"{again}; or start another broker ({lack}), and doctor says how to replace this one"
    if offline:
        return (), f"first resolve OFFLINE: {counted(len(offline), 'partition')} without a leader"
    commands = (layout.move((), drain=broker_id), unregister)
    return commands, "; ".join(commands)


def _offline_directories(layout: Layout) -> Iterator[Finding]:
    for node in layout.observed.own_nodes:
        if node.described is None or not node.described.directories_offline:
            continue
        problems = [each.problem for each in node.described.directories if each.problem]
        yield Finding(
            PROBLEM,
            "DIRECTORY_OFFLINE",
            what=f"broker {node.node_id} no longer uses {listed(node.described.directories_offline)}",
            cause=f"{'; '.join(problems) or 'a write or an fsync there failed'}; {_served(layout, node.node_id or 0)}",
            next=f"repair or replace that disk, then restart broker {node.node_id}; its log has the error",
            nodes=(node.node_id or 0,),
        )


def _served(layout: Layout, broker_id: int) -> str:
    """Return, as text, whether other replicas serve the partitions whose replica on this broker is offline."""
    alone = sorted(key for key in layout.leaderless if layout.offline_cause(key, broker_id))
    return f"no other replica serves {named(alone)}" if alone else "other replicas serve its partitions"


def _lost_replicas(layout: Layout) -> Iterator[Finding]:
    groups: dict[tuple[int, bool], list[Key]] = {}
    for key, partition in layout.partitions.items():
        for replica in partition.replicas:
            if replica.directory_id == LOST_DIRECTORY:
                groups.setdefault((replica.broker_id, partition.leader == NO_LEADER), []).append(key)
    for (broker_id, is_leaderless), keys in sorted(groups.items()):
        causes = {cause for key in keys if (cause := layout.offline_cause(key, broker_id))}
        if is_leaderless:
            commands: tuple[str, ...] = ()
            step = f"no leader has a copy: restore the missing files, then restart broker {broker_id}; {RECOVERY}"
        else:
            commands, step = _copy_again(layout, keys, broker_id)
        yield Finding(
            PROBLEM,
            "LOST_REPLICA",
            what=f"broker {broker_id} has lost {counted(len(keys), 'replica')}: {named(keys)}",
            cause="; ".join(sorted(causes)[:SHOWN_MAX]) or "the broker reports them as damaged or missing",
            next=step,
            nodes=(broker_id,),
            partitions=texts(keys),
            commands=commands,
        )


def _copy_again(layout: Layout, keys: list[Key], broker_id: int) -> tuple[tuple[str, ...], str]:
    """Return the commands that replace lost replicas, on another broker if enough others are up, and the step."""
    by_factor: dict[int, list[str]] = {}
    for topic in first_topics(keys):
        by_factor.setdefault(layout.factor_of([topic], drain=broker_id), []).append(topic)
    open_brokers = layout.open_brokers()
    others = [each for each in open_brokers if each != broker_id]
    commands: list[str] = []
    meanings: list[str] = []
    waiting: list[str] = []
    for factor, topics in sorted(by_factor.items()):
        if len(others) >= factor:
            commands.append(layout.move(topics, drain=broker_id))
            meanings.append("copy it to another broker")
        elif len(open_brokers) < factor:  # a replica that is dropped could not be copied again
            waiting += topics
        else:
            equal = [topic for topic in topics if layout.factors(topic) == {factor}]  # these get their factor back
            waiting += [topic for topic in topics if topic not in equal]
            if equal:
                commands.append(layout.move(equal, drain=broker_id, factor=factor - 1))
                commands.append(layout.move(equal, factor=factor))
                meanings.append("drop it, then copy it again")
    steps = [f"{', or '.join(dict.fromkeys(meanings))}: {'; '.join(commands)}"] if commands else []
    if waiting:
        again = "" if broker_id in open_brokers else f", or use broker {broker_id} again,"
        steps.append(f"start another broker{again} before {some(waiting)} can be repaired")
    return tuple(commands), "; ".join([*steps, RECOVERY])


def _strays(layout: Layout) -> Iterator[Finding]:
    for node in layout.observed.own_nodes:
        kept = [stray for stray in node.strays if stray.kept]
        if kept:
            command = "kctl brokers purge-strays"
            yield Finding(
                ADVICE,
                "STRAYS",
                what=f"broker {node.node_id} keeps {counted(len(kept), 'replica')} that the metadata does not contain",
                cause="the quorum was rebuilt, and the records that created them may be lost",
                next=f"kctl brokers purge-strays --dry-run lists them; to delete them: {command}",
                nodes=(node.node_id or 0,),
                commands=(command,),
            )


def _pending_changes(layout: Layout) -> Iterator[Finding]:
    """Report brokers with unapplied changes of the metadata whose number did not fall between the two looks."""
    for broker_id, first in sorted(layout.observed.heartbeats.items()):
        later = layout.observed.heartbeats_later.get(broker_id)
        if later is not None and later.pending_changes >= first.pending_changes > 0:
            yield Finding(
                PROBLEM,
                "CHANGES_PENDING",
                what=f"broker {broker_id} has {counted(later.pending_changes, 'pending change')}",
                cause=f"its heartbeat reported {first.pending_changes} a moment before",
                next=f"look at the load, disk and log of broker {broker_id}; kctl state-changes shows the changes",
                nodes=(broker_id,),
            )
