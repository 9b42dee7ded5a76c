"""The history of a partition in words.

Every change names its reason, the previous change, and the record that caused it, if one did.  This module turns
changes into sentences.  A change is a delta, so the previous value of a field is known only if an earlier record of the
chain has the field.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from metadata.control.election import min_isr_of
from metadata.image import ClusterImage, PartitionImage, TopicImage
from metadata.records import (
    LOST,
    NO_LEADER,
    NO_OFFSET,
    BrokerChange,
    Config,
    Partition,
    PartitionChange,
    Reason,
    Record,
    RegisterBroker,
    Replica,
    UnregisterBroker,
)


class Entry(NamedTuple):
    """A record of the chain.  cause: the record that caused this record; None without a cause, or if it was deleted."""

    offset: int
    record: Partition | PartitionChange
    cause: Record | None = None


_REASONS = {
    Reason.BROKER_FENCED: "a broker was fenced",
    Reason.BROKER_UNFENCED: "a replica that may lead was unfenced",
    Reason.CONTROLLED_SHUTDOWN: "a broker is shutting down",
    Reason.NEW_INCARNATION: "a broker restarted",
    Reason.ISR_SHRINK: "the leader found that a follower lags",
    Reason.ISR_EXPAND: "the leader found that a follower has caught up",
    Reason.PREFERRED_ELECTION: "an election of the preferred leader was requested",
    Reason.PREFERRED_BALANCE: "the controller balances leaders: the preferred one is in sync",
    Reason.UNCLEAN_ELECTION: "no in-sync replica was available and unclean elections are allowed: records that only the"
    " former in-sync replicas held may be lost",
    Reason.DIRECTORY_OFFLINE: "a data directory failed",
    Reason.REASSIGNMENT: "a reassignment was started",
    Reason.REASSIGNMENT_COMPLETED: "the reassignment is complete",
    Reason.REASSIGNMENT_CANCELLED: "the reassignment was cancelled",
    Reason.DIRECTORY_ASSIGNED: "a broker reported the directory of its replica",
    Reason.UNREGISTERED: "a broker was unregistered",
    Reason.QUORUM_REBUILT: "the quorum was rebuilt by `quorum-node recover`",
    Reason.CONFIG_CHANGED: "a config changed",
    Reason.REPLICA_LOST: "a broker reported its replica as damaged or missing",
}


def reason_word(record: Partition | PartitionChange) -> str:
    """Return the reason as a word for replies: `created`, or the name of the reason in lower case."""
    return "created" if isinstance(record, Partition) else record.reason.name.lower()


def cause_offset(record: Partition | PartitionChange) -> int:
    """Return the offset of the record that caused this one; -1 if none did."""
    return -1 if isinstance(record, Partition) else record.cause_offset


@dataclass(slots=True)
class _Known:
    """The state of the partition so far, as known from the chain."""

    leader: int | None = None
    isr: tuple[int, ...] | None = None
    elr: tuple[int, ...] | None = None
    replicas: tuple[Replica, ...] | None = None
    leader_epoch: int | None = None
    topic_id: UUID | None = None


def explain(chain: Sequence[Entry]) -> list[str]:
    """Return a sentence for each entry.  chain: ascending, without gaps; it may begin after the creation."""
    known = _Known()
    return [_explain(entry, known) for entry in chain]


def _explain(entry: Entry, known: _Known) -> str:
    record = entry.record
    if isinstance(record, Partition):
        known.leader, known.isr, known.elr = record.leader, record.isr, record.elr
        known.replicas, known.leader_epoch, known.topic_id = record.replicas, record.leader_epoch, record.topic_id
        return (
            f"created with replicas {_ids(r.broker_id for r in record.replicas)}; {_leader(record.leader)} in leader"
            f" epoch {record.leader_epoch}; in sync {_ids(record.isr)}"
        )
    changes = [*_renewal(record, known), *_changes(record, known)]
    return f"{'; '.join(changes) or 'a new epoch'}, because {_because(entry, record)}"


def _renewal(record: PartitionChange, known: _Known) -> list[str]:
    before, known.topic_id = known.topic_id, record.topic_id
    if before is None or before == record.topic_id:
        return []
    return ["the topic's highest partitions were removed, and it continues under another id"]


def _changes(record: PartitionChange, known: _Known) -> list[str]:
    changes: list[str] = []
    if record.leader is not None:
        if known.leader_epoch is not None:
            known.leader_epoch += 1
        if record.leader_epoch is not None:
            known.leader_epoch = record.leader_epoch
        was = "" if known.leader is None else f" (was {'none' if known.leader == NO_LEADER else known.leader})"
        again = record.leader == known.leader
        epoch = "" if known.leader_epoch is None else f" in leader epoch {known.leader_epoch}"
        changes.append(f"{_leader(record.leader)} again{epoch}" if again else f"{_leader(record.leader)}{epoch}{was}")
        known.leader = record.leader
    if record.replicas is not None:
        changes += _replica_changes(record.replicas, known.replicas)
        known.replicas = record.replicas
    if record.isr is not None:
        if known.isr is None or sorted(known.isr) != sorted(record.isr):  # a different order alone is not a change
            changes.append(f"in sync {_ids(record.isr)}" + ("" if known.isr is None else f" (was {_ids(known.isr)})"))
        known.isr = record.isr
    if record.elr is not None:
        changes.append(f"{_ids(record.elr)} may lead as well" if record.elr else "no other replica may lead any more")
        known.elr = record.elr
    if record.adding:
        changes.append(f"adding {_ids(record.adding)}")
    if record.removing:
        changes.append(f"removing {_ids(record.removing)}")
    return changes


def _replica_changes(now: tuple[Replica, ...], before: tuple[Replica, ...] | None) -> list[str]:
    ids = [replica.broker_id for replica in now]
    if before is None or [replica.broker_id for replica in before] != ids:
        was = "" if before is None else f" (were {_ids(replica.broker_id for replica in before)})"
        return [f"replicas {_ids(ids)}{was}"]
    moved = [new.broker_id for new, old in zip(now, before, strict=True) if new != old]
    return [f"directory of the replica on {_ids(moved)}"] if moved else []


def _because(entry: Entry, record: PartitionChange) -> str:
    at = f" (offset {record.cause_offset})" if record.cause_offset >= 0 else ""
    match entry.cause:
        case BrokerChange(broker_id=broker_id, fenced=True) if record.reason is Reason.BROKER_FENCED:
            return f"broker {broker_id} was fenced: it sent no heartbeat in time, or requested the fencing{at}"
        case BrokerChange(broker_id=broker_id, fenced=False) if record.reason is Reason.BROKER_UNFENCED:
            return f"broker {broker_id} was unfenced and may lead{at}"
        case BrokerChange(broker_id=broker_id, in_controlled_shutdown=True):
            return f"broker {broker_id} is shutting down{at}"
        case BrokerChange(broker_id=broker_id) if record.reason is Reason.DIRECTORY_OFFLINE:
            return f"a data directory of broker {broker_id} failed{at}"
        case RegisterBroker(broker_id=broker_id, previous_broker_epoch=previous):
            stop = "after a clean stop" if previous != NO_OFFSET else "without a clean stop before"
            return f"broker {broker_id} restarted {stop}, which ended its leaderships and ISR memberships{at}"
        case UnregisterBroker(broker_id=broker_id):
            return f"broker {broker_id} was unregistered{at}"
        case Config(key=key, value=value):
            return f"the config {key} was {'removed' if value is None else f'set to {value}'}{at}"
    return _REASONS[record.reason] + at


def now_text(image: ClusterImage, topic: TopicImage, partition: PartitionImage) -> str:
    """Return the state of a partition and its problems: which operations fail, and why."""
    state = (
        f"{topic.name}-{partition.index}: {_leader(partition.leader)} in leader epoch {partition.leader_epoch};"
        f" replicas {_ids(partition.replica_ids)}; in sync {_ids(partition.isr)}"
    )
    if partition.elr:
        state += f"; {_ids(partition.elr)} may lead as well"
    if partition.adding:
        state += f"; adding {_ids(partition.adding)}"
    if partition.removing:
        state += f"; removing {_ids(partition.removing)}"
    sentences = [state]
    if topic.topic_id != topic.origin:
        sentences.append("Partitions of this topic were removed, and it continues under another id")
    if partition.leader == NO_LEADER:
        sentences.append(_waits_for(image, partition))
    else:
        sentences += _shortcomings(image, topic, partition)
    return ". ".join(sentences)


def _waits_for(image: ClusterImage, partition: PartitionImage) -> str:
    needed = (*partition.isr, *partition.elr)
    if not needed:
        return (
            "Reads and writes fail: no replica is known to hold all acknowledged records, so only an unclean"
            " election can help"
        )
    problems = ", ".join(f"{each} ({_problem(image, partition, each) or 'may lead'})" for each in needed)
    return f"Reads and writes fail until {'one of these' if len(needed) > 1 else 'this one'} can lead: {problems}"


def _shortcomings(image: ClusterImage, topic: TopicImage, partition: PartitionImage) -> list[str]:
    """Return the problems of a partition that has a leader."""
    found = []
    wanted = min(min_isr_of(image, topic.topic_id), partition.settled_count)
    if len(partition.isr) < wanted:
        text = f"{len(partition.isr)} in sync, min.insync.replicas is {wanted}"
        found.append(f"Writes with acks=all are refused: {text}")
    missing = [each for each in partition.replica_ids if each not in partition.isr]
    if missing:
        problems = ", ".join(f"{each} ({_problem(image, partition, each) or 'catches up'})" for each in missing)
        found.append(f"Not in sync: {problems}")
    return found


def _problem(image: ClusterImage, partition: PartitionImage, broker_id: int) -> str:
    """Return why a replica does not serve; empty if it can."""
    broker = image.brokers.get(broker_id)
    replica = partition.replica(broker_id)
    if broker is None:
        return "is not registered"
    if replica is not None and replica.directory_id == LOST:
        return "has a damaged or missing replica"
    if broker.fenced:
        return "is fenced"
    if broker.in_controlled_shutdown:
        return "is shutting down"
    if replica is None or not broker.directory_online(replica.directory_id):
        return "has the replica on a failed directory"
    return ""


REPLICA_NEW, REPLICA_ONLINE, REPLICA_OFFLINE, REPLICA_NON_EXISTENT = "new", "online", "offline", "non-existent"


def replica_state(image: ClusterImage, partition: PartitionImage, replica: Replica) -> str:
    """Return the state of a replica: `non-existent` if its broker is not registered, `offline` if its broker is fenced
    or its directory has failed, `new` if it is being added and is not in sync yet, else `online`."""
    broker = image.brokers.get(replica.broker_id)
    if broker is None:
        return REPLICA_NON_EXISTENT
    if broker.fenced or not broker.directory_online(replica.directory_id):
        return REPLICA_OFFLINE
    if replica.broker_id in partition.adding and replica.broker_id not in partition.isr:
        return REPLICA_NEW
    return REPLICA_ONLINE


def _leader(broker_id: int) -> str:
    return "no leader" if broker_id == NO_LEADER else f"leader {broker_id}"


def _ids(values: Iterable[int]) -> str:
    return ", ".join(map(str, values)) or "none"
