"""Changes that brokers make to single partitions: the ISR, by compare-and-set, and the directory of a replica.

The order of the checks of an ISR change is part of the protocol, because the leader reacts differently to each refusal:

- NOT_CONTROLLER: an epoch is ahead of this controller's, so this controller is stale.  The leader asks another node.
- FENCED_LEADER_EPOCH: the leader epoch is behind the controller's, so the sender no longer leads.
- INVALID_UPDATE_VERSION: the partition epoch is behind the controller's, so the partition has changed since the leader
  decided.  The leader first applies the newer metadata, then decides again.
- INELIGIBLE_REPLICA: a member is not eligible for the ISR now.  The leader drops the proposal.

If an ISR change completes a reassignment (see `reassign`), one record contains both, possibly with a new leader.  The
answer contains the resulting partition.

A broker that finds a replica damaged or missing, while the directory works, reports the directory `LOST`.  The replica
is then in neither ISR nor ELR, even if it is the last member, so a replica without its records is never elected.  After
the repair the broker reports the real directory again, and the replica rejoins through the ISR like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

import msgspec

from metadata.control.brokers import check_broker
from metadata.control.decision import Decision
from metadata.control.election import Eligibility, Eligible, Policy, change_to, elect, min_isr_of, policy_of
from metadata.control.errors import OK, Outcome
from metadata.control.reassign import CHANGES_MAX, completed, ended
from metadata.image import BrokerImage, ClusterImage, PartitionImage
from metadata.records import (
    LOST,
    NO_LEADER,
    NO_OFFSET,
    RECORDS_PER_BATCH_MAX,
    UNASSIGNED,
    PartitionChange,
    Reason,
    Record,
    Replica,
)
from quorumlog.wire.errors import ApiError


class Member(NamedTuple):
    """An ISR member as the leader knows it: the epoch belongs to the incarnation that fetched from the leader."""

    broker_id: int
    broker_epoch: int


class IsrChange(msgspec.Struct, frozen=True):
    """isr: the whole requested ISR, in any order."""

    topic_id: UUID
    index: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[Member, ...]


class IsrChanged(msgspec.Struct, frozen=True):
    """The partition after the decision; -1 for unknown values."""

    topic_id: UUID
    index: int
    outcome: Outcome
    leader: int = -1
    leader_epoch: int = -1
    partition_epoch: int = -1
    isr: tuple[int, ...] = ()


class AlterPartitionAnswer(msgspec.Struct, frozen=True):
    """outcome: of the whole request.  items: one for each change, in the order of the request; empty if refused."""

    outcome: Outcome
    items: tuple[IsrChanged, ...] = ()


class Assignment(msgspec.Struct, frozen=True):
    """The new directory of the sending broker's replica, or `LOST` if the replica is damaged or missing.

    moved_from: the directory that the replica has left, with all its records; None if it has not moved.
    """

    topic_id: UUID
    index: int
    directory_id: UUID
    moved_from: UUID | None = None


def alter_partition(
    image: ClusterImage, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
) -> Decision[AlterPartitionAnswer]:
    """Decide the ISR changes of one leader broker, each item independently."""
    refusal = check_broker(image, broker_id, broker_epoch)
    if refusal is None and len(changes) > CHANGES_MAX:
        refusal = _too_many(len(changes))
    if refusal is not None:
        return Decision(AlterPartitionAnswer(refusal))
    reassigned = 0
    records: list[Record] = []
    items: list[IsrChanged] = []
    seen: set[tuple[UUID, int]] = set()
    eligible = Eligibility(image)
    for change in changes:
        key = (change.topic_id, change.index)
        partition = image.partition(*key)
        if key in seen:
            outcome = Outcome(ApiError.INVALID_REQUEST, f"partition {change.index} is named twice in one request")
        else:
            outcome = _check_change(image, broker_id, change, partition) or OK
        seen.add(key)
        if partition is None:
            items.append(IsrChanged(*key, outcome))
            continue
        after = partition
        if outcome.ok:
            # Even for an unchanged ISR: a leader whose earlier proposal was never answered needs a partition epoch
            # above every copy of the proposal that may still be in transit.
            record = _isr_record(image, change, partition, eligible)
            after = _after(partition, record)
            reassigned += partition.reassigning and not after.reassigning
            records.append(record)
        items.append(IsrChanged(*key, outcome, after.leader, after.leader_epoch, after.partition_epoch, after.isr))
    return Decision(AlterPartitionAnswer(OK, tuple(items)), (*records, *ended(image, reassigned)))


def _too_many(count: int, most: int = CHANGES_MAX) -> Outcome:
    return Outcome(ApiError.POLICY_VIOLATION, f"{count} partitions: one request can change at most {most}")


def _after(partition: PartitionImage, record: PartitionChange) -> PartitionImage:
    """Return the partition after the record, for the answer."""
    return msgspec.structs.replace(
        partition,
        isr=partition.isr if record.isr is None else record.isr,
        adding=partition.adding if record.adding is None else record.adding,
        removing=partition.removing if record.removing is None else record.removing,
        leader=partition.leader if record.leader is None else record.leader,
        leader_epoch=partition.leader_epoch + (record.leader is not None),
        partition_epoch=partition.partition_epoch + 1,
    )


def _isr_record(
    image: ClusterImage, change: IsrChange, partition: PartitionImage, eligible: Eligible
) -> PartitionChange:
    wanted = {member.broker_id for member in change.isr}
    min_isr = min_isr_of(image, change.topic_id)
    elected = elect(partition, wanted, eligible, Policy.OFFLINE, min_isr=min_isr)
    assert elected.leader == partition.leader, f"{partition} with the isr {wanted} would be led by {elected.leader}"
    done = completed(image, change.topic_id, partition, elected, eligible)
    if done is not None:
        return done
    return PartitionChange(
        topic_id=change.topic_id,
        index=partition.index,
        reason=Reason.ISR_SHRINK if wanted.issubset(partition.isr) else Reason.ISR_EXPAND,
        cause_offset=NO_OFFSET,
        previous_offset=partition.last_offset,
        isr=elected.isr,
        elr=elected.elr if elected.elr != partition.elr else None,
    )


def _check_change(
    image: ClusterImage, broker_id: int, change: IsrChange, partition: PartitionImage | None
) -> Outcome | None:
    topic = image.topics.get(change.topic_id)
    if topic is None:
        return Outcome(ApiError.UNKNOWN_TOPIC_ID, f"unknown topic id {change.topic_id}")
    name = f"{topic.name}-{change.index}"
    if partition is None:
        return Outcome(ApiError.UNKNOWN_TOPIC_OR_PARTITION, f"{name} does not exist")
    if change.leader_epoch > partition.leader_epoch or change.partition_epoch > partition.partition_epoch:
        return Outcome(
            ApiError.NOT_CONTROLLER,
            f"{name}: leader epoch {change.leader_epoch}, partition epoch {change.partition_epoch} are ahead of this"
            f" controller's {partition.leader_epoch}, {partition.partition_epoch}",
        )
    if change.leader_epoch < partition.leader_epoch:
        text = f"{name}: leader epoch {change.leader_epoch} is old; the current one is {partition.leader_epoch}"
        return Outcome(ApiError.FENCED_LEADER_EPOCH, text)
    if broker_id != partition.leader:
        return Outcome(ApiError.INVALID_REQUEST, f"{name} is led by {partition.leader}, not by {broker_id}")
    if change.partition_epoch < partition.partition_epoch:
        text = (
            f"{name}: partition epoch {change.partition_epoch} is old; the current one is {partition.partition_epoch}"
        )
        return Outcome(ApiError.INVALID_UPDATE_VERSION, text)
    return _check_members(image, name, change, partition)


def _check_members(image: ClusterImage, name: str, change: IsrChange, partition: PartitionImage) -> Outcome | None:
    ids = [member.broker_id for member in change.isr]
    if len(set(ids)) < len(ids) or not set(ids).issubset(partition.replica_ids) or partition.leader not in ids:
        text = f"{name}: isr {ids[:20]} must be a subset of the replicas {partition.replica_ids}, with the leader"
        return Outcome(ApiError.INVALID_REQUEST, text)
    for member in change.isr:
        broker = image.brokers.get(member.broker_id)
        replica = partition.replica(member.broker_id)
        assert replica is not None, f"{name}: {member.broker_id} is in the replicas but has no replica"
        problem = None
        if broker is None:
            problem = "is not registered"
        elif member.broker_epoch != broker.epoch:
            problem = f"has epoch {broker.epoch}, not {member.broker_epoch}"
        elif broker.fenced:
            problem = "is fenced"
        elif broker.in_controlled_shutdown:
            problem = "is shutting down"
        elif not broker.directory_online(replica.directory_id):
            problem = "has lost the directory"
        if problem is not None:
            return Outcome(ApiError.INELIGIBLE_REPLICA, f"{name}: broker {member.broker_id} {problem}")
    return None


def assign_directories(
    image: ClusterImage, broker_id: int, broker_epoch: int, assignments: Sequence[Assignment]
) -> Decision[Outcome]:
    """Decide the directories of a broker's replicas: the whole request, or nothing.

    A topic or partition that was deleted meanwhile is skipped.  A directory that failed meanwhile is accepted, so that
    the controller learns which replicas are offline with it.
    """
    refusal = check_broker(image, broker_id, broker_epoch)
    if refusal is None and len(assignments) > RECORDS_PER_BATCH_MAX:
        refusal = _too_many(len(assignments), RECORDS_PER_BATCH_MAX)
    if refusal is not None:
        return Decision(refusal)
    broker = image.brokers[broker_id]
    eligible = Eligibility(image)
    records: dict[tuple[UUID, int], PartitionChange | None] = {}
    for assignment in assignments:
        topic_id, index, directory_id = assignment.topic_id, assignment.index, assignment.directory_id
        if directory_id != LOST and directory_id not in broker.directory_ids:
            text = f"directory {directory_id} is not one of broker {broker_id}"
            return Decision(Outcome(ApiError.INVALID_REQUEST, text))
        partition = image.partition(topic_id, index)
        if partition is None:
            continue
        replica = partition.replica(broker_id)
        if replica is None:
            text = f"broker {broker_id} has no replica of {image.topics[topic_id].name}-{index}"
            return Decision(Outcome(ApiError.INVALID_REQUEST, text))
        if (topic_id, index) in records:
            text = f"{image.topics[topic_id].name}-{index} is named twice in one request"
            return Decision(Outcome(ApiError.INVALID_REQUEST, text))
        records[topic_id, index] = _move(image, broker, eligible, assignment, partition, replica)
    return Decision(OK, tuple([record for record in records.values() if record is not None]))


def _move(
    image: ClusterImage,
    broker: BrokerImage,
    eligible: Eligible,
    assignment: Assignment,
    partition: PartitionImage,
    replica: Replica,
) -> PartitionChange | None:
    """Return the record that assigns a replica to its new directory; None if the replica is already there.

    If the old directory has failed, the new directory counts as empty, unless the replica had already moved there with
    all its records.  If the new directory has failed, the replica cannot serve.
    """
    moved = Replica(replica.broker_id, assignment.directory_id)
    if moved == replica:
        return None
    replicas = tuple([moved if each == replica else each for each in partition.replicas])
    topic_id = assignment.topic_id
    has_left = assignment.moved_from == replica.directory_id
    stays = has_left or replica.directory_id == UNASSIGNED or broker.directory_online(replica.directory_id)
    works = assignment.directory_id != LOST and broker.directory_online(assignment.directory_id)
    isr: Sequence[int] = [member for member in partition.isr if member != replica.broker_id]
    lost = (replica.broker_id,) if works or assignment.directory_id == LOST or not stays else ()
    if works and (stays or replica.directory_id == LOST):
        if not has_left or partition.leader != NO_LEADER:
            return PartitionChange(
                topic_id=topic_id,
                index=partition.index,
                reason=Reason.DIRECTORY_ASSIGNED,
                cause_offset=NO_OFFSET,
                previous_offset=partition.last_offset,
                replicas=replicas,
            )
        # The failure of the former directory was decided before this request, and left the partition without a leader.
        isr, lost = partition.isr, ()
    elected = elect(
        partition,
        isr,
        eligible,
        policy_of(image, topic_id),
        min_isr=min_isr_of(image, topic_id),
        replicas=replicas,
        lost=lost,
    )
    if assignment.directory_id == LOST:
        reason = Reason.REPLICA_LOST
    else:
        reason = Reason.DIRECTORY_ASSIGNED if works else Reason.DIRECTORY_OFFLINE
    return change_to(topic_id, partition, elected, reason, NO_OFFSET, replicas=replicas)
