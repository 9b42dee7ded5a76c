"""Moving replicas to other brokers, so that nothing that is acknowledged is ever on fewer disks than it should be.

Theory of operation.  A reassignment is three lists of the partition itself, so a new controller goes on wherever the
last one was, and nothing else remembers anything:

- `replicas` := the target, in its order, and after it those that are to go;
- `adding` := the target without those that were there; `removing` := those that were there without the target.

From the start on the new replicas copy; the old ones go on as before, all of them, in the ISR or not.  A replica that
is being added joins the ISR like any other, and once in it, it counts like any other.  It never raises what
min.insync.replicas asks for: until the end that is no more than there were replicas (`PartitionImage.settled_count`),
so a partition stays as writable as it was.

The reassignment is *complete* when, of the target alone,

- all that were added are in the ISR;
- all of it is in the ISR, if it is smaller than the set before: fewer copies are wanted, not fewer than that
  (KAFKA-19975: reassigning 0,1,2,3,4 to 2,3,4,5 with 0,1,5 in sync waits; 0,1,2 to 1,2,3 with 2 dead does not);
- the part in the ISR has min.insync.replicas (KAFKA-15665), so that completing takes no acknowledged record off its
  second disk, and leaves no partition that cannot be written;
- one of those may lead.

Then one record drops the others from replicas and ISR, clears the lists, and moves the leader if it was one of them.
It is written together with the ISR change that makes it due; what else may make it due (a broker or directory that came
back, a config) has the active controller look at the partitions under way, of which the image keeps a mask.

When a replica leaves the assignment the leader begins a new epoch, even if it is the same one: a broker that has the
replica again soon after must not be taken for one that never left.

A replacement of the target goes on from where things are.  Who was being added and is not wanted any more leaves at
once, unless it is in the ISR or ELR: then it stays until the end, in both lists, so that neither start nor replacement
ever makes the ISR smaller.  Cancelling drops all that were being added, and leads from those that were there before; if
none of them may lead without loss, it is refused.

The throttle is the cluster config `reassignment.throttle.bytes.per.second`; it goes in the batch that ends the last
reassignment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec

from metadata.control.decision import Decision
from metadata.control.election import Elected, Eligibility, Eligible, Policy, change_to, elect, min_isr_of, policy_of
from metadata.control.errors import OK, Outcome, no_topic
from metadata.image import ClusterImage, PartitionImage, TopicImage, indexes
from metadata.records import (
    MAX_RECORDS_PER_BATCH,
    NO_LEADER,
    NO_OFFSET,
    Config,
    ConfigScope,
    PartitionChange,
    Reason,
    Record,
    Replica,
)
from quorumlog.wire.errors import ApiError

THROTTLE = "reassignment.throttle.bytes.per.second"
NO_THROTTLE = -1
CHANGES_MAX = MAX_RECORDS_PER_BATCH - 1
"""Partitions that one batch changes: one record is kept for the throttle."""
PROBLEMS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Wanted:
    """`replicas`: the broker ids there shall be, the preferred leader first; empty: cancel."""

    topic: str
    index: int
    replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Altered:
    """Of one partition: how it ended, and whether something changes (or would, if only checked)."""

    topic: str
    index: int
    outcome: Outcome
    changed: bool = False


@dataclass(frozen=True, slots=True)
class Reassigned:
    """`outcome` is that of the whole: nothing was changed if any partition was refused."""

    outcome: Outcome
    partitions: tuple[Altered, ...] = ()
    changed: bool = False


# Start, replace, cancel


def alter_reassignments(
    image: ClusterImage,
    wanted: Sequence[Wanted],
    *,
    replace: bool = False,
    throttle: int | None = None,
    keep_factor: bool = False,
    validate_only: bool = False,
) -> Decision[Reassigned]:
    """Decide reassignments and cancellations: all of the request or nothing.

    replace: an unfinished reassignment of a partition may be given another target.
    keep_factor: refuse targets of more or fewer replicas than there were (KIP-860).
    throttle: bytes a second that a broker copies to replicas being added; NO_THROTTLE: none; None: as it is.
    """
    refusal = _refuse_request(image, wanted, throttle)
    if refusal is not None:
        return Decision(Reassigned(refusal))
    eligible = Eligibility(image)
    records: list[Record] = []
    items: list[Altered] = []
    seen: set[tuple[str, int]] = set()
    under_way = image.reassigning_count
    for each in wanted:
        if (each.topic, each.index) in seen:
            text = f"{_name(each)} is named twice in one request"
            found: Outcome | _Plan = Outcome(ApiError.INVALID_REQUEST, text)
        else:
            found = _plan(image, each, replace, keep_factor, eligible)
        seen.add((each.topic, each.index))
        if isinstance(found, Outcome):
            items.append(Altered(each.topic, each.index, found))
            continue
        items.append(Altered(each.topic, each.index, found.outcome, found.change is not None))
        under_way += found.under_way
        if found.change is not None:
            records.append(found.change)
    problems = [item for item in items if not item.outcome.ok]
    if problems:
        return Decision(_refused(items, problems))
    if records or throttle is not None:
        records += _throttle_records(image, throttle, under_way)
    changed = bool(records) and not validate_only
    return Decision(Reassigned(OK, tuple(items), changed), () if validate_only else tuple(records))


def _refuse_request(image: ClusterImage, wanted: Sequence[Wanted], throttle: int | None) -> Outcome | None:
    if len(wanted) > CHANGES_MAX:
        text = f"{len(wanted)} partitions: one request reassigns at most {CHANGES_MAX}"
        return Outcome(ApiError.POLICY_VIOLATION, text, "split the plan")
    if throttle is not None and throttle != NO_THROTTLE and not 0 < throttle < 2**63:
        text = f"a throttle of {throttle} bytes a second: it must be above 0, or {NO_THROTTLE} for none"
        return Outcome(ApiError.INVALID_REQUEST, text)
    if not wanted and throttle is None:
        return Outcome(ApiError.INVALID_REQUEST, "no partition is named, and no throttle")
    if not wanted and not image.reassigning_count and throttle != NO_THROTTLE:
        text = "no reassignment is going on that could be throttled"
        return Outcome(
            ApiError.NO_REASSIGNMENT_IN_PROGRESS, text, "give it with what is to be moved: --plan or --topic"
        )
    return None


def _refused(items: Sequence[Altered], problems: Sequence[Altered]) -> Reassigned:
    """The whole of a request that has problems: those of the first say what it is about."""
    first = problems[0].outcome
    texts = [each.outcome.message for each in problems[:PROBLEMS_SHOWN]]
    if len(problems) > PROBLEMS_SHOWN:
        texts.append(f"and {len(problems) - PROBLEMS_SHOWN} more")
    spared = Outcome(ApiError.OPERATION_NOT_ATTEMPTED, "another partition of the request was refused")
    answers = [each if not each.outcome.ok else Altered(each.topic, each.index, spared) for each in items]
    text = "; ".join(texts) + ("" if len(items) == 1 else "; nothing was changed")
    return Reassigned(Outcome(first.error, text, first.next_step), tuple(answers))


@dataclass(frozen=True, slots=True)
class _Plan:
    """`change`: None when all is so already, as `outcome` says.  under_way: +1 begins one, -1 ends one."""

    outcome: Outcome
    change: PartitionChange | None = None
    under_way: int = 0


def _name(wanted: Wanted) -> str:
    return f"{wanted.topic[:60]}-{wanted.index}"


def _plan(image: ClusterImage, wanted: Wanted, replace: bool, keep_factor: bool, eligible: Eligible) -> _Plan | Outcome:
    topic = image.topic(wanted.topic)
    if topic is None:
        return no_topic(wanted.topic)
    partition = topic.partition(wanted.index)
    if partition is None:
        text = f"topic {topic.name} has partitions 0 to {len(topic.partitions) - 1}, not {wanted.index}"
        return Outcome(ApiError.UNKNOWN_TOPIC_OR_PARTITION, text)
    if not wanted.replicas:
        return _cancel(image, topic, partition, eligible)
    refusal = _refuse_target(image, partition, wanted)
    if refusal is not None:
        return refusal
    count = len(original_of(partition))
    if keep_factor and len(wanted.replicas) != count:
        text = f"{_name(wanted)} has {count} replicas, the target {len(wanted.replicas)}"
        return Outcome(ApiError.INVALID_REPLICATION_FACTOR, text)
    target = target_of(partition)
    if target == wanted.replicas:
        so_already = "is being moved there already" if partition.reassigning else "is there already"
        return _Plan(Outcome(ApiError.NONE, f"{_name(wanted)} {so_already}"))
    if partition.reassigning and not replace:
        text = f"{_name(wanted)} is being moved to {_ids(target)}, adding {_ids(partition.adding)}"
        return Outcome(
            ApiError.REASSIGNMENT_IN_PROGRESS, text, "cancel that first, or ask for it to be replaced (--replace)"
        )
    return _start(image, topic, partition, wanted.replicas, eligible)


def _refuse_target(image: ClusterImage, partition: PartitionImage, wanted: Wanted) -> Outcome | None:
    """A broker that is down is refused where completing needs it.  One that has the replica already may stay."""
    name, target = _name(wanted), wanted.replicas
    present = original_of(partition)
    needed = set(target).difference(present)
    if len(target) < len(present):
        needed.update(target)
    strangers = [broker_id for broker_id in target if broker_id not in image.brokers]
    down = [broker_id for broker_id in target if broker_id in needed and broker_id in image.brokers]
    down = [broker_id for broker_id in down if not image.brokers[broker_id].active]
    problem, next_step = "", "kctl brokers list"
    if len(set(target)) < len(target):
        problem, next_step = f"{_ids(target)} names a broker twice", ""
    elif strangers:
        problem = f"broker {_ids(strangers)} is not registered"
    elif down:
        state = "fenced" if image.brokers[down[0]].fenced else "shutting down"
        problem, next_step = f"broker {_ids(down)} is {state}, and could not get in sync", "start it first"
    return Outcome(ApiError.INVALID_REPLICA_ASSIGNMENT, f"{name}: {problem}", next_step) if problem else None


def target_of(partition: PartitionImage) -> tuple[int, ...]:
    """The replicas that there shall be in the end; without a reassignment, those there are."""
    return tuple([each for each in partition.replica_ids if each not in partition.removing])


def original_of(partition: PartitionImage) -> tuple[int, ...]:
    """The replicas from before the reassignment, to which a cancellation returns."""
    return tuple([each for each in partition.replica_ids if each not in partition.adding])


def _start(
    image: ClusterImage, topic: TopicImage, partition: PartitionImage, target: tuple[int, ...], eligible: Eligible
) -> _Plan:
    present = original_of(partition)
    adding = [each for each in target if each not in present]
    removing = [each for each in present if each not in target]
    for each in partition.adding:  # of a target that is being replaced
        if each not in target and (each in partition.isr or each in partition.elr):
            adding.append(each)
            removing.append(each)
    replicas = [partition.replica(each) or image.brokers[each].new_replica() for each in (*target, *removing)]
    begun = msgspec.structs.replace(partition, replicas=tuple(replicas), adding=tuple(adding), removing=tuple(removing))
    change = _completed(image, topic.topic_id, partition, begun, eligible, NO_OFFSET)
    if change is None:
        isr, min_isr = partition.isr, min_isr_of(image, topic.topic_id)
        elected = elect(partition, isr, eligible, Policy.OFFLINE, min_isr=min_isr, replicas=replicas, adding=adding)
        change = _change(topic.topic_id, partition, elected, Reason.REASSIGNMENT, begun)
        return _Plan(OK, change, under_way=0 if partition.reassigning else 1)
    return _Plan(OK, change, under_way=-1 if partition.reassigning else 0)


def _cancel(image: ClusterImage, topic: TopicImage, partition: PartitionImage, eligible: Eligible) -> _Plan | Outcome:
    name = f"{topic.name}-{partition.index}"
    if not partition.reassigning:
        return Outcome(ApiError.NO_REASSIGNMENT_IN_PROGRESS, f"{name} is not being reassigned")
    original = original_of(partition)
    back = msgspec.structs.replace(partition, replicas=_only(partition, original), adding=(), removing=())
    policy, min_isr = policy_of(image, topic.topic_id), min_isr_of(image, topic.topic_id)
    isr = [each for each in partition.isr if each in original]
    elected = elect(partition, isr, eligible, policy, min_isr=min_isr, replicas=back.replicas, adding=())
    whole = elected.isr or elected.elr
    if (elected.leader == NO_LEADER and partition.leader != NO_LEADER) or not whole:
        text = (
            f"{name}: of {_ids(original)}, to which it would return, none is in sync and may lead; in sync are"
            f" {_ids(partition.isr)}, so acknowledged records would be lost"
        )
        next_step = "start one of them and wait until it is in sync, or let the reassignment complete"
        return Outcome(ApiError.ELIGIBLE_LEADERS_NOT_AVAILABLE, text, next_step)
    return _Plan(OK, _change(topic.topic_id, partition, elected, Reason.REASSIGNMENT_CANCELLED, back), under_way=-1)


def _only(partition: PartitionImage, broker_ids: Iterable[int]) -> tuple[Replica, ...]:
    wanted = set(broker_ids)
    return tuple([each for each in partition.replicas if each.broker_id in wanted])


def _change(
    topic_id: UUID,
    partition: PartitionImage,
    elected: Elected,
    reason: Reason,
    after: PartitionImage,
    cause_offset: int = NO_OFFSET,
) -> PartitionChange:
    """The record that brings the partition to the lists of `after`, with the leader and ISR elected for them."""
    gone = set(partition.replica_ids).difference(after.replica_ids)
    change = change_to(
        topic_id,
        partition,
        elected,
        reason,
        cause_offset,
        replicas=after.replicas,
        adding=after.adding,
        removing=after.removing,
        new_epoch=bool(gone),
    )
    assert change is not None, f"nothing changes from {partition} to {after}"
    return change


# Progress


def _completed(
    image: ClusterImage,
    topic_id: UUID,
    partition: PartitionImage,
    now: PartitionImage,
    eligible: Eligible,
    cause_offset: int,
) -> PartitionChange | None:
    """The record that brings `partition` to the end of the reassignment, if it is complete as of `now`."""
    target = target_of(now)
    isr = [each for each in now.isr if each in target]
    min_isr = min_isr_of(image, topic_id)
    needed = set(now.adding).intersection(target)
    if len(target) < now.settled_count:
        needed.update(target)
    unchanged = set(target) == set(now.replica_ids) == set(partition.replica_ids)
    if not needed.issubset(isr) or not (unchanged or len(isr) >= min(min_isr, len(target))):
        return None
    replicas = _only(now, target)
    elected = elect(now, isr, eligible, Policy.REASSIGNED, min_isr=min_isr, replicas=replicas, adding=())
    if elected.leader == NO_LEADER and not unchanged:
        return None
    after = msgspec.structs.replace(now, replicas=replicas, adding=(), removing=())
    return _change(topic_id, partition, elected, Reason.REASSIGNMENT_COMPLETED, after, cause_offset)


def completed(
    image: ClusterImage, topic_id: UUID, partition: PartitionImage, isr: Elected, eligible: Eligible
) -> PartitionChange | None:
    """The record that an ISR change becomes when it completes a reassignment; None if it does not.

    partition: as the image has it.  isr: the ISR as it is to be.
    """
    if not partition.reassigning:
        return None
    now = msgspec.structs.replace(partition, isr=isr.isr, elr=isr.elr, leader=isr.leader)
    return _completed(image, topic_id, partition, now, eligible, NO_OFFSET)


def ended(image: ClusterImage, count: int) -> list[Record]:
    """What belongs into the batch in which `count` reassignments end: none of the throttle is left with the last."""
    return _throttle_records(image, None, image.reassigning_count - count) if count else []


def _throttle_records(image: ClusterImage, throttle: int | None, under_way: int) -> list[Record]:
    """`under_way`: reassignments that go on after the batch."""
    assert under_way >= 0, f"{under_way} reassignments would be left"
    now = image.config(ConfigScope.CLUSTER, "").get(THROTTLE)
    value = now if throttle is None else None if throttle == NO_THROTTLE else str(throttle)
    if not under_way:
        value = None
    return [] if value == now else [Config(ConfigScope.CLUSTER, "", THROTTLE, value)]


def progress(image: ClusterImage) -> Decision[int]:
    """Complete what is due: at most one batch, `more` if there may be others.  The reply: how many.

    For whatever makes a completion due besides an ISR change, and for a new controller.
    """
    eligible = Eligibility(image)
    records: list[Record] = []
    reassigning = image.reassigning
    for topic_id in sorted(reassigning):
        topic = image.topics[topic_id]
        for index in indexes(reassigning[topic_id]):
            partition = topic.partitions[index]
            assert partition is not None, f"{topic.name}-{index} is being reassigned but is not there"
            change = _completed(image, topic_id, partition, partition, eligible, NO_OFFSET)
            if change is not None:
                records.append(change)
            if len(records) == CHANGES_MAX:
                return Decision(CHANGES_MAX, (*records, *ended(image, CHANGES_MAX)), more=True)
    return Decision(len(records), (*records, *ended(image, len(records))))


# Description


@dataclass(frozen=True, slots=True)
class Ongoing:
    topic: str
    partition: PartitionImage


def list_reassignments(image: ClusterImage, partitions: Sequence[tuple[str, int]]) -> list[Ongoing]:
    """What is going on, of these partitions (topic name, index) or of all, by topic name and index."""
    found: list[Ongoing] = []
    if partitions:
        for name, index in sorted(set(partitions)):
            topic = image.topic(name)
            partition = None if topic is None else topic.partition(index)
            if partition is not None and partition.reassigning:
                found.append(Ongoing(name, partition))
        return found
    names = {image.topics[topic_id].name: topic_id for topic_id in image.reassigning}
    for name in sorted(names):
        topic = image.topics[names[name]]
        for index in indexes(image.reassigning[names[name]]):
            partition = topic.partitions[index]
            assert partition is not None, f"{name}-{index} is being reassigned but is not there"
            found.append(Ongoing(name, partition))
    return found


def _ids(broker_ids: Iterable[int]) -> str:
    listed = list(broker_ids)
    shown = ",".join(map(str, listed[:20])) or "none"
    return shown + ("…" if len(listed) > 20 else "")
