"""Findings about brokers and partitions: who is fenced, what has no leader, what lacks replicas, because of whom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from quorumlog.kctl.doctor_findings import (
    ADVICE,
    CRITICAL,
    PROBLEM,
    TOPICS_AT_ONCE_MAX,
    Finding,
    first_topics,
    move,
    texts,
    unclean,
    wake,
)
from quorumlog.kctl.doctor_look import NOBODY, Look
from quorumlog.kctl.doctor_space import before_start
from quorumlog.kctl.words import SHOWN_MAX, Key, counted, listed, named

LOST_DIRECTORY = bytes(15) + b"\1"
FENCED, UNFENCED, SHUTTING_DOWN = "fenced", "unfenced", "controlled_shutdown"
THROTTLE = "reassignment.throttle.bytes.per.second"
THROTTLED = "; the throttle is "
MIN_ISR = "min.insync.replicas"
RECOVERY = "docs/recovery.md"


@dataclass(slots=True)
class Cluster:
    """The metadata, arranged for questions."""

    look: Look
    brokers: dict[int, Any] = field(default_factory=dict)
    partitions: dict[Key, Any] = field(default_factory=dict)
    min_isr: dict[str, int] = field(default_factory=dict)
    configs: dict[tuple[str, str], str] = field(default_factory=dict)
    """Of brokers, by (id, key), and of the cluster, by ("", key)."""

    @classmethod
    def of(cls, look: Look) -> Cluster:
        metadata = look.metadata
        cluster = cls(look)
        cluster.brokers = {broker.broker_id: broker for broker in metadata.brokers}
        cluster.configs = {(config.resource, config.key): config.value for config in metadata.configs}
        default = cluster.configs.get(("", MIN_ISR), "1")
        for topic in metadata.topics:
            own = {config.key: config.value for config in topic.configs}
            cluster.min_isr[topic.name] = int(own.get(MIN_ISR, default))
            for partition in topic.partitions:
                cluster.partitions[topic.name, partition.index] = partition
        return cluster

    def wanted(self, key: Key) -> int:
        """How many must be in sync: not more than there are replicas, those being added not counted."""
        partition = self.partitions[key]
        settled = len(partition.replicas) - len(set(partition.adding))
        return min(self.min_isr[key[0]], max(settled, 1))

    def missing(self, key: Key) -> tuple[int, ...]:
        """Replicas that are not in sync and should be: those being added or dropped are on their way."""
        partition = self.partitions[key]
        moving = {*partition.isr, *partition.adding, *partition.removing}
        return tuple(sorted({replica.broker_id for replica in partition.replicas} - moving))

    def open_brokers(self) -> list[int]:
        """Brokers that a plan gives replicas to by itself."""
        return [
            broker_id for broker_id, broker in sorted(self.brokers.items())
            if broker.state == UNFENCED and self.configs.get((str(broker_id), "cordoned")) != "true"
        ]  # fmt: skip

    def state(self, broker_id: int) -> str:
        """Why a replica on this broker cannot be in sync, in words; what the broker is, if that is not it."""
        broker = self.brokers.get(broker_id)
        silence = self.look.silence_of(broker_id)
        if broker is None:
            return f"broker {broker_id} is not registered"
        if broker.state != UNFENCED:
            return f"broker {broker_id} is {broker.state.replace('_', ' ')}" + (f" ({silence})" if silence else "")
        return f"broker {broker_id} is up" if silence is None else f"broker {broker_id} does not answer ({silence})"

    def is_lost(self, key: Key, broker_id: int) -> bool:
        """Whether the broker has said that it cannot serve this replica."""
        return any(
            replica.broker_id == broker_id and replica.directory_id == LOST_DIRECTORY
            for replica in self.partitions[key].replicas
        )


def cluster_findings(look: Look) -> Iterator[Finding]:
    """Of a cluster whose metadata could be read."""
    cluster = Cluster.of(look)
    yield from _leaderless(cluster)
    yield from _below_minimum(cluster)
    yield from _brokers(cluster)
    yield from _under_replicated(cluster)
    yield from _lost(cluster)
    yield from _directories(cluster)
    yield from _reassignments(cluster)
    yield from _strays(cluster)
    yield from _pending(cluster)
    yield from _by_design(cluster)


# Partitions that do not work


def _leaderless(cluster: Cluster) -> Iterator[Finding]:
    groups: dict[tuple[tuple[int, ...], bool], list[Key]] = {}
    for key, partition in cluster.partitions.items():
        if partition.leader == NOBODY:
            waited_for = tuple(sorted({*partition.isr, *partition.elr}))
            replicas = {replica.broker_id for replica in partition.replicas}
            groups.setdefault((waited_for, bool(replicas.difference(waited_for))), []).append(key)
    for (waited_for, has_others), keys in sorted(groups.items()):
        what = f"{counted(len(keys), 'partition')} without a leader: {named(keys)}"
        if not waited_for:
            yield from _nobody_may_lead(cluster, keys)
            continue
        brokers = listed(f"broker {each}" for each in waited_for)
        step = _wake(cluster, waited_for) if len(waited_for) == 1 else f"start one of {brokers}"
        cause = f"only {brokers} may lead: {'; '.join(cluster.state(broker_id) for broker_id in waited_for)}"
        commands = unclean(keys)
        if has_others:
            given_up = f"the records that it alone held are given up by {'; '.join(commands)}"
        else:
            commands, given_up = _begin_anew(cluster, keys, waited_for[0])
        yield Finding(
            CRITICAL, "OFFLINE", what, cause, f"{step}; only if that is gone for good: {given_up}", waited_for,
            texts(keys), commands,
        )  # fmt: skip


def _begin_anew(cluster: Cluster, keys: list[Key], broker_id: int) -> tuple[tuple[str, ...], str]:
    """The commands that begin partitions anew whose only replica is gone with its broker, and what they mean."""
    others = [each for each in cluster.open_brokers() if each != broker_id]
    if not others:
        return (
            (),
            "its records are lost too, because it had the only replica; start another broker, then ask doctor again",
        )
    commands = (move(first_topics(keys), drain=broker_id).removesuffix(" --wait"), *unclean(keys))
    return commands, (
        "its records are lost too: it had the only replica; these commands recreate the partition, empty, on "
        f"another broker: {'; '.join(commands)}"
    )


def _nobody_may_lead(cluster: Cluster, keys: list[Key]) -> Iterator[Finding]:
    """Partitions whose acknowledged records are not known to be on any disk: of a lost sole replica, and others."""
    alone: dict[int, list[Key]] = {}
    others: list[Key] = []
    for key in keys:
        replicas = cluster.partitions[key].replicas
        if len(replicas) == 1:
            alone.setdefault(replicas[0].broker_id, []).append(key)
        else:
            others.append(key)
    for broker_id, lost in sorted(alone.items()):
        commands = unclean(lost)
        yield Finding(
            CRITICAL, "OFFLINE", f"{counted(len(lost), 'partition')} lost with the only replica, on broker "
            f"{broker_id}: {named(lost)}",
            f"broker {broker_id} has returned without its records: with another disk, an emptied directory, or after "
            "an unclean stop with write.caching",
            f"stop broker {broker_id} and start it with the disk that it had; only if that is gone for good, this "
            f"restarts the partition with the records that are left: {'; '.join(commands)}",
            (broker_id,), texts(lost), commands,
        )  # fmt: skip
    if others:
        topic, index = min(others)
        commands = unclean(others)
        yield Finding(
            CRITICAL, "OFFLINE", f"{counted(len(others), 'partition')} without a leader: {named(others)}",
            "no replica is known to hold all acknowledged records",
            f"kctl explain {topic}-{index} shows how that came; whatever another replica has can be kept, and the rest "
            f"given up: {'; '.join(commands)}",
            (), texts(others), commands,
        )  # fmt: skip


def _below_minimum(cluster: Cluster) -> Iterator[Finding]:
    groups: dict[tuple[int, ...], list[Key]] = {}
    for key, partition in cluster.partitions.items():
        if partition.leader != NOBODY and len(partition.isr) < cluster.wanted(key):
            groups.setdefault(cluster.missing(key), []).append(key)
    for missing, keys in sorted(groups.items()):
        yield Finding(
            CRITICAL, "BELOW_MIN_ISR",
            f"{counted(len(keys), 'partition')} with fewer in sync than min.insync.replicas: {named(keys)}; "
            "producers with acks=all are refused",
            _why(cluster, missing, keys), *_bring_back(cluster, missing, keys),
        )  # fmt: skip


def _under_replicated(cluster: Cluster) -> Iterator[Finding]:
    groups: dict[int, list[Key]] = {}
    for key, partition in cluster.partitions.items():
        if partition.leader == NOBODY or len(partition.isr) < cluster.wanted(key):
            continue
        for broker_id in cluster.missing(key):
            if not cluster.is_lost(key, broker_id):
                groups.setdefault(broker_id, []).append(key)
    for broker_id, keys in sorted(groups.items()):
        yield Finding(
            PROBLEM, "UNDER_REPLICATED",
            f"{counted(len(keys), 'partition')} without {'its' if len(keys) == 1 else 'their'} replica on broker "
            f"{broker_id} in sync: {named(keys)}",
            _why(cluster, (broker_id,), keys), *_bring_back(cluster, (broker_id,), keys),
        )  # fmt: skip


def _why(cluster: Cluster, missing: tuple[int, ...], keys: list[Key]) -> str:
    if not missing:
        return "fewer replicas than the minimum: it was raised, or some are being moved"
    return "; ".join(_why_one(cluster, broker_id, keys) for broker_id in missing)


def _why_one(cluster: Cluster, broker_id: int, keys: list[Key]) -> str:
    broker = cluster.brokers.get(broker_id)
    if broker is None or broker.state != UNFENCED or cluster.look.silence_of(broker_id) is not None:
        return cluster.state(broker_id)
    if any(cluster.is_lost(key, broker_id) for key in keys):
        return f"broker {broker_id} has lost its replica"
    if offline := [problem for key in keys if (problem := _offline(cluster, key, broker_id))]:
        return f"broker {broker_id} cannot serve it: {offline[0]}"
    behind = [(lag, key) for key in keys if (lag := _lag(cluster, key, broker_id)) is not None]
    if not behind:
        return f"broker {broker_id} is up, but its replica has not caught up"
    lag, key = max(behind)
    return f"broker {broker_id} is up, and behind: by {counted(lag, 'record')} in {key[0]}-{key[1]}" + (
        "" if _moves(cluster, key, broker_id) or not lag else ", and got none in the last seconds"
    )


def _offline(cluster: Cluster, key: Key, broker_id: int) -> str:
    node = cluster.look.node(broker_id)
    replica = node.replicas.get(key) if node is not None else None
    if replica is not None and replica.state == "offline":
        return str(replica.problem) or "it is offline"
    partition = cluster.partitions[key]
    for known, state in zip(partition.replicas, partition.replica_states, strict=True):
        if known.broker_id == broker_id and state == "offline":
            return "its data directory is offline"
    return ""


def _lag(cluster: Cluster, key: Key, broker_id: int) -> int | None:
    """Records that the leader has and this replica does not; None when one of them did not say."""
    leader, follower = cluster.look.node(cluster.partitions[key].leader), cluster.look.node(broker_id)
    ahead = leader.replicas.get(key) if leader is not None else None
    behind = follower.replicas.get(key) if follower is not None else None
    return None if ahead is None or behind is None else max(0, ahead.end_offset - behind.end_offset)


def _moves(cluster: Cluster, key: Key, broker_id: int) -> bool:
    """Whether the replica got records between the two looks, or nobody can tell."""
    node = cluster.look.node(broker_id)
    if node is None or key not in node.replicas or key not in node.replicas_later:
        return True
    return bool(node.replicas_later[key].end_offset > node.replicas[key].end_offset)


def _bring_back(
    cluster: Cluster, missing: tuple[int, ...], keys: list[Key]
) -> tuple[str, tuple[int, ...], tuple[str, ...], tuple[str, ...]]:
    """The end of a finding about replicas that are not in sync: next, nodes, partitions, commands."""
    absent = [
        each for each in missing
        if (broker := cluster.brokers.get(each)) is None or broker.state == FENCED
        or cluster.look.silence_of(each) is not None
    ]  # fmt: skip
    topic, index = min(keys)
    if not absent:
        step = f"kctl explain {topic}-{index}; the log of the broker says why it does not follow"
        return step, missing, texts(keys), ()
    factor = max(len(cluster.partitions[key].replicas) for key in keys)
    commands, elsewhere = _elsewhere(cluster, first_topics(keys), factor, keep_factor=True)
    step = f"{_wake(cluster, absent)}; what it lacks is copied by itself; if it is gone for good: {elsewhere}"
    return step, missing, texts(keys), commands


def _wake(cluster: Cluster, broker_ids: Iterable[int]) -> str:
    broker_ids = list(broker_ids)
    return before_start(cluster.look, broker_ids) + wake(
        ((broker_id, cluster.look.silence_of(broker_id)) for broker_id in broker_ids), "broker"
    )


def _elsewhere(cluster: Cluster, topics: list[str], factor: int, *, keep_factor: bool) -> tuple[tuple[str, ...], str]:
    """The commands that place topics anew on the brokers that are up, and the step in words."""
    if len(cluster.open_brokers()) < factor:
        up = counted(len(cluster.open_brokers()), "is", "are")
        return (), f"start another broker first, {up} up, {factor} are wanted"
    command = move(topics, factor=None if keep_factor else factor)
    return (command,), command


# Brokers


def _brokers(cluster: Cluster) -> Iterator[Finding]:
    if not cluster.brokers:
        yield Finding(
            ADVICE, "NO_BROKERS", "no broker is registered", "so there can be no topics yet",
            f"start one, for example on this machine: {_example_broker(cluster)}",
        )  # fmt: skip
    for broker_id, broker in sorted(cluster.brokers.items()):
        if broker.state == FENCED:
            yield _fenced(cluster, broker_id, broker)
        elif broker.state == SHUTTING_DOWN:
            yield Finding(
                ADVICE, "SHUTTING_DOWN", f"broker {broker_id} is shutting down",
                f"it was told to, and hands over; it leads {counted(broker.leaders, 'partition')} yet",
                "start it again when that is done", (broker_id,),
            )  # fmt: skip
        elif (silence := cluster.look.silence_of(broker_id)) is not None:
            yield Finding(
                PROBLEM, "BROKER_UNREACHABLE", f"broker {broker_id} does not answer here, and is not fenced",
                f"{silence}; so it has just stopped, or this machine cannot reach it",
                "look again in a few seconds: kctl doctor", (broker_id,),
            )  # fmt: skip
        if cluster.configs.get((str(broker_id), "cordoned")) == "true":
            yield Finding(
                ADVICE, "CORDONED", f"broker {broker_id} is cordoned: it gets no new replicas",
                f"its config cordoned is true; it has {counted(broker.replicas, 'replica')}",
                f"kctl configs unset cordoned --broker {broker_id}", (broker_id,), (),
                (f"kctl configs unset cordoned --broker {broker_id}",),
            )  # fmt: skip
    for node in cluster.look.nodes:
        if node.described is not None and node.described.is_broker and node.node_id not in cluster.brokers:
            yield Finding(
                PROBLEM, "NOT_REGISTERED", f"broker {node.node_id} runs, but is not registered",
                _checks(node.described),
                f"look at the log of broker {node.node_id}: it says what the controller answers", (node.node_id or 0,),
            )  # fmt: skip


def _example_broker(cluster: Cluster) -> str:
    """A command that starts a broker here, with an id that is free."""
    node_id = max([each.node_id or 0 for each in cluster.look.nodes], default=0) + 1
    controllers = ",".join(node.address for node in cluster.look.nodes if node.answers)
    return (
        f"broker run --node-id {node_id} --data-dir ./broker-{node_id} --listen 127.0.0.1:9092 "
        f"--control-listen 127.0.0.1:0 --controllers {controllers}"
    )


def _fenced(cluster: Cluster, broker_id: int, broker: Any) -> Finding:
    node = cluster.look.node(broker_id)
    costs = f"{counted(broker.replicas, 'replica')} out of use" if broker.replicas else "it has no replicas"
    what = f"broker {broker_id} is fenced: {costs}"
    if node is not None and node.described is not None:
        cause = f"it runs; {_checks(node.described) or 'its heartbeats do not reach the controller'}"
        step = f"look at the log of broker {broker_id}; if it hangs, restart it"
        return Finding(PROBLEM, "FENCED", what, cause, step, (broker_id,))
    where = "" if node is None else f"node {broker_id} at {node.address}: "
    silence = cluster.look.silence_of(broker_id)
    cause = f"it sends no heartbeats; {where}{silence or 'it takes connections of clients'}"
    commands, gone = _forget(cluster, broker_id)
    step = _wake(cluster, [broker_id]) + ("" if cluster.look.end_of(broker_id) else "; its log says why")
    step += f"; if it is gone for good: {gone}"
    return Finding(PROBLEM, "FENCED", what, cause, step, (broker_id,), (), commands)


def _forget(cluster: Cluster, broker_id: int) -> tuple[tuple[str, ...], str]:
    """The commands that take everything off a broker and forget it, and the step in words."""
    unregister = f"kctl brokers unregister {broker_id}"
    keys = [
        key for key, partition in cluster.partitions.items()
        if any(replica.broker_id == broker_id for replica in partition.replicas)
    ]  # fmt: skip
    if not keys:
        return (unregister,), unregister
    factor = max(len(cluster.partitions[key].replicas) for key in keys)
    if len(cluster.open_brokers()) < factor:
        up = counted(len(cluster.open_brokers()), "is", "are")
        return (), f"start another broker first ({up} up, {factor} are wanted); doctor then says how to replace it"
    offline = [key for key in keys if cluster.partitions[key].leader == NOBODY]
    if offline:
        return (), f"first decide on {counted(len(offline), 'partition')} without a leader, as said there"
    commands = (move((), drain=broker_id), unregister)
    return commands, "; ".join(commands)


def _checks(described: Any) -> str:
    return "; ".join(f"{check.name}: {check.detail}" for check in described.checks if not check.ok)


def _directories(cluster: Cluster) -> Iterator[Finding]:
    for node in cluster.look.nodes:
        if node.described is None or not node.described.directories_offline:
            continue
        paths = list(node.described.directories_offline)
        yield Finding(
            PROBLEM, "DIRECTORY_OFFLINE", f"broker {node.node_id} does not use {listed(paths)} any more",
            ("; ".join(each.problem for each in node.described.directories if each.problem)
             or "a write or an fsync there failed") + "; what it held is served by the other replicas",
            f"mend or replace that disk, then restart broker {node.node_id}; its log has the error",
            (node.node_id or 0,),
        )  # fmt: skip


def _lost(cluster: Cluster) -> Iterator[Finding]:
    groups: dict[tuple[int, bool], list[Key]] = {}
    for key, partition in cluster.partitions.items():
        for replica in partition.replicas:
            if replica.directory_id == LOST_DIRECTORY:
                groups.setdefault((replica.broker_id, partition.leader == NOBODY), []).append(key)
    for (broker_id, is_leaderless), keys in sorted(groups.items()):
        causes = {problem for key in keys if (problem := _offline(cluster, key, broker_id))}
        if is_leaderless:
            commands: tuple[str, ...] = ()
            step = f"nobody leads to copy it from: restore what is missing, restart broker {broker_id}; {RECOVERY}"
        else:
            commands, step = _copy_anew(cluster, keys, broker_id)
        yield Finding(
            PROBLEM, "LOST_REPLICA",
            f"broker {broker_id} has lost {counted(len(keys), 'replica')}: {named(keys)}",
            "; ".join(sorted(causes)[:SHOWN_MAX]) or "it reports them as damaged or gone",
            step, (broker_id,), texts(keys), commands,
        )  # fmt: skip


def _copy_anew(cluster: Cluster, keys: list[Key], broker_id: int) -> tuple[tuple[str, ...], str]:
    """The commands that drop a lost replica and make another one: on a broker to spare, else on the same one again."""
    topics = first_topics(keys)
    factor = max(len(cluster.partitions[key].replicas) for key in keys)
    spare = [each for each in cluster.open_brokers() if each != broker_id]
    if len(spare) >= factor:
        commands: tuple[str, ...] = (move(topics, drain=broker_id),)
        meaning = "another broker gets it"
    else:
        commands = (move(topics, drain=broker_id, factor=factor - 1), move(topics, factor=factor))
        meaning = "drop it, then have it copied anew"
    return commands, f"{meaning}: {'; '.join(commands)}; {RECOVERY}"


def _strays(cluster: Cluster) -> Iterator[Finding]:
    for node in cluster.look.nodes:
        kept = [stray for stray in node.strays if stray.kept]
        if kept:
            yield Finding(
                ADVICE, "STRAYS", f"broker {node.node_id} keeps {counted(len(kept), 'replica')} that the metadata does "
                "not know", "the quorum was rebuilt, and may have forgotten them",
                "kctl brokers purge-strays --dry-run shows them; this deletes them: kctl brokers purge-strays",
                (node.node_id or 0,), (), ("kctl brokers purge-strays",),
            )  # fmt: skip


def _pending(cluster: Cluster) -> Iterator[Finding]:
    """Brokers that have the metadata, but do not carry it out."""
    for broker_id, heard in sorted(cluster.look.heard.items()):
        later = cluster.look.heard_later.get(broker_id)
        if later is not None and later.pending_changes >= heard.pending_changes > 0:
            yield Finding(
                PROBLEM, "CHANGES_PENDING",
                f"broker {broker_id} has {counted(later.pending_changes, 'change')} yet to carry out",
                f"it had {heard.pending_changes} a moment before, by its own heartbeats",
                f"look at the load, the disk and the log of broker {broker_id}; kctl state-changes shows which",
                (broker_id,),
            )  # fmt: skip


# Reassignments


def _reassignments(cluster: Cluster) -> Iterator[Finding]:
    """Those that do not get on; the others are no finding."""
    groups: dict[str, list[Key]] = {}
    for key, partition in cluster.partitions.items():
        if (partition.adding or partition.removing) and (cause := _stuck(cluster, key, partition)):
            groups.setdefault(cause, []).append(key)
    for cause, keys in sorted(groups.items()):
        step = "mend that, and it goes on by itself"
        back = "kctl reassign cancel" + "".join(f" --topic {topic}" for topic in first_topics(keys))
        commands = (back,)
        if THROTTLED in cause:
            commands = ("kctl reassign start --throttle none",)
            step = f"take the throttle away: {commands[0]}"
        yield Finding(
            PROBLEM, "REASSIGNMENT_STUCK",
            f"{counted(len(keys), 'partition')} being moved, without progress: {named(keys)}",
            cause, f"{step}; or go back: {back}", (), texts(keys), commands,
        )  # fmt: skip


def _stuck(cluster: Cluster, key: Key, partition: Any) -> str:
    if partition.leader == NOBODY:
        return "it has no leader to copy from"
    waiting = sorted(set(partition.adding).difference(partition.isr))
    for broker_id in waiting:
        broker = cluster.brokers.get(broker_id)
        if broker is None or broker.state != UNFENCED:
            return f"the target: {cluster.state(broker_id)}"
        if problem := _offline(cluster, key, broker_id):
            return f"the target, broker {broker_id}: {problem}"
    for broker_id in waiting:
        if _lag(cluster, key, broker_id) and not _moves(cluster, key, broker_id):
            throttle = cluster.configs.get(("", THROTTLE), "-1")
            limit = "" if throttle == "-1" else f"{THROTTLED}{throttle} bytes/s"
            return f"broker {broker_id} copied nothing in the last seconds{limit}"
    if not waiting:
        settled = [each for each in partition.isr if each not in partition.removing]
        if len(settled) < min(cluster.min_isr[key[0]], len(partition.replicas) - len(partition.removing)):
            return "the old replicas cannot go: without them fewer than min.insync.replicas would be in sync"
    return ""


# What is so on purpose, and costs


def _by_design(cluster: Cluster) -> Iterator[Finding]:
    alone: dict[str, list[Key]] = {}
    tight: dict[tuple[int, str], list[Key]] = {}
    for key, partition in cluster.partitions.items():
        factor = len(partition.replicas) - len(partition.removing)  # once a move has ended
        if factor == 1:
            alone.setdefault(key[0], []).append(key)
        elif cluster.min_isr[key[0]] >= factor:
            tight.setdefault((factor, key[0]), []).append(key)
    if alone:
        yield _alone(cluster, alone)
    for factor in sorted({factor for factor, _ in tight}):
        yield _tight(cluster, factor, {topic: keys for (each, topic), keys in tight.items() if each == factor})


def _alone(cluster: Cluster, alone: dict[str, list[Key]]) -> Finding:
    topics = sorted(alone)
    keys = [key for topic in topics for key in alone[topic]]
    up = len(cluster.open_brokers())
    commands: tuple[str, ...] = ()
    step = "start more brokers first"
    if up >= 2:
        commands, step = _elsewhere(cluster, first_topics(keys), min(3, up), keep_factor=False)
    return Finding(
        ADVICE, "REPLICATION_FACTOR_1",
        f"{counted(len(topics), 'topic')} without a second replica ({counted(len(keys), 'partition')}): "
        + _some(topics),
        "they are unavailable while their broker is down; if its disk is lost, so are their records"
        + ("; there is only one broker to hold them" if up < 2 else ""),
        step, (), texts(keys), commands,
    )  # fmt: skip


def _tight(cluster: Cluster, factor: int, tight: dict[str, list[Key]]) -> Finding:
    topics = sorted(tight)
    keys = [key for topic in topics for key in tight[topic]]
    lower = tuple(f"kctl configs set min.insync.replicas={factor - 1} --topic {topic}" for topic in topics)
    wanted = max(cluster.min_isr[topic] for topic in topics) + 1
    if wanted <= len(cluster.open_brokers()):
        commands: tuple[str, ...] = (move(first_topics(keys), factor=wanted),)
        step = f"have one replica more than that: {commands[0]}"
    else:
        commands = lower[:TOPICS_AT_ONCE_MAX]
        step = (
            f"start another broker, and have {wanted} replicas (doctor then gives the command); or, if one replica may "
            f"confirm alone: {'; '.join(commands)}"
        )
    return Finding(
        ADVICE, "MIN_ISR_IS_ALL",
        f"{counted(len(topics), 'topic')} with min.insync.replicas as high as the replication factor: {_some(topics)}",
        "as soon as one replica is down, producers with acks=all are refused", step, (), texts(keys), commands,
    )  # fmt: skip


def _some(topics: list[str]) -> str:
    rest = len(topics) - SHOWN_MAX
    return ", ".join(topics[:SHOWN_MAX]) + (f" and {rest} more" if rest > 0 else "")
