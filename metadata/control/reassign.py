"""Reassignments: moving replicas to other brokers without reducing the copies of acknowledged records.

Theory of operation.  A reassignment consists of three lists in the partition itself, so a new controller continues
where the last controller stopped, and needs no other state:

- `replicas` := the target, in its order, followed by the replicas to remove;
- `adding` := the target without the original replicas; `removing` := the original replicas without the target.

From the start the new replicas copy records, while the old replicas continue unchanged, in the ISR or not.  An added
replica joins the ISR like any other, and then counts like any other.  It does not raise the effective
min.insync.replicas: until the end of the reassignment, this value is at most the original number of replicas
(`PartitionImage.settled_count`), so the partition stays as writable as it was.

The reassignment is *complete* when the target meets these conditions:

- all added replicas are in the ISR;
- if the target is smaller than the original set, all of the target is in the ISR, so that at least the requested number
  of copies exists (KAFKA-19975: a move from 0,1,2,3,4 to 2,3,4,5 with 0,1,5 in sync waits; a move from 0,1,2 to 1,2,3
  with 2 dead does not);
- at least min.insync.replicas brokers of the target are in the ISR (KAFKA-15665), or all of a smaller target, so that
  the completion leaves no acknowledged record on fewer disks, and the partition stays writable;
- one of these brokers may lead.

If the target has the same brokers as the partition now, the last two conditions do not apply.  So a change of the order
alone is complete at once.

When a reassignment is complete, one record removes the other replicas from the partition and its ISR, clears the lists,
and moves the leadership if one of the removed replicas leads.  The same record contains the ISR change that completes
the reassignment.  Other events can also complete a reassignment: a broker or directory returns, or a config changes.
Then the active controller checks all partitions that are being reassigned; the image keeps a mask of them.

When a replica leaves the assignment, a new leader epoch begins even under the same leader: if the broker gets the
replica again soon afterwards, the replica must not be treated as if it had never left.

A replacement of the target starts from the current lists.  Added replicas that are not in the new target leave
immediately, unless they are in the ISR or ELR.  In that case they stay until the end, in both `adding` and `removing`,
so that neither a start nor a replacement makes the ISR smaller.  A cancellation removes all added replicas, and one of
the original replicas leads if one may.  A cancellation is refused if the partition would lose its leader, or if no
original replica would be in the ISR or ELR.

The throttle is the cluster config `reassignment.throttle.bytes.per.second`; the batch that ends the last reassignment
removes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

import msgspec

from metadata.control.decision import Decision
from metadata.control.election import Elected, Eligibility, Eligible, Policy, change_to, elect, min_isr_of, policy_of
from metadata.control.errors import OK, Outcome, no_topic
from metadata.image import ClusterImage, PartitionImage, TopicImage, indexes
from metadata.records import (
    NO_LEADER,
    NO_OFFSET,
    RECORDS_PER_BATCH_MAX,
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
CHANGES_MAX = RECORDS_PER_BATCH_MAX - 1
"""Maximum number of partitions that one batch changes; one more record is reserved for the throttle."""
PROBLEMS_SHOWN = 5


class Wanted(msgspec.Struct, frozen=True):
    """replicas: the target broker ids, the preferred leader first; empty: cancel."""

    topic: str
    index: int
    replicas: tuple[int, ...] = ()


class Altered(msgspec.Struct, frozen=True):
    """The result for one partition: the outcome, and whether something changes (or would, for a dry run)."""

    topic: str
    index: int
    outcome: Outcome
    changed: bool = False


class Reassigned(msgspec.Struct, frozen=True):
    """outcome: the result for the whole request; nothing was changed if any partition was refused."""

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
    """Decide reassignments and cancellations: the whole request or nothing.

    replace: permit a new target for an unfinished reassignment.
    keep_factor: refuse targets with another number of replicas (KIP-860).
    throttle: bytes per second that a broker copies to added replicas; NO_THROTTLE: unlimited; None: unchanged.
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
        text = f"{len(wanted)} partitions: one request can reassign at most {CHANGES_MAX}"
        return Outcome(ApiError.POLICY_VIOLATION, text, "split the plan")
    if throttle is not None and throttle != NO_THROTTLE and not 0 < throttle < 2**63:
        text = f"a throttle of {throttle} bytes per second: it must be above 0, or {NO_THROTTLE} for none"
        return Outcome(ApiError.INVALID_REQUEST, text)
    if not wanted and throttle is None:
        return Outcome(ApiError.INVALID_REQUEST, "the request names neither a partition nor a throttle")
    if not wanted and not image.reassigning_count and throttle != NO_THROTTLE:
        text = "no reassignment is in progress, so there is nothing to throttle"
        return Outcome(ApiError.NO_REASSIGNMENT_IN_PROGRESS, text, "set the throttle together with --plan or --topic")
    return None


def _refused(items: Sequence[Altered], problems: Sequence[Altered]) -> Reassigned:
    """Return the result of a request with problems; the message names the first problems."""
    first = problems[0].outcome
    texts = [each.outcome.message for each in problems[:PROBLEMS_SHOWN]]
    if len(problems) > PROBLEMS_SHOWN:
        texts.append(f"and {len(problems) - PROBLEMS_SHOWN} more")
    spared = Outcome(ApiError.OPERATION_NOT_ATTEMPTED, "another partition of the request was refused")
    answers = [each if not each.outcome.ok else Altered(each.topic, each.index, spared) for each in items]
    text = "; ".join(texts) + ("" if len(items) == 1 else "; nothing was changed")
    return Reassigned(Outcome(first.error, text, first.next_step), tuple(answers))


class _Plan(msgspec.Struct, frozen=True):
    """change: None if nothing needs to change, as `outcome` says.  under_way: +1 begins a reassignment, -1 ends one."""

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
    target = target_of(partition)
    is_satisfied = target == wanted.replicas  # then a broker of the target may have gone down since it was accepted
    refusal = None if is_satisfied else _refuse_target(image, partition, wanted)
    if refusal is not None:
        return refusal
    count = len(original_of(partition))
    if keep_factor and len(wanted.replicas) != count:
        text = f"{_name(wanted)} has {count} replicas; the target has {len(wanted.replicas)}"
        return Outcome(ApiError.INVALID_REPLICATION_FACTOR, text)
    if is_satisfied:
        so_already = "is already being moved there" if partition.reassigning else "is already there"
        return _Plan(Outcome(ApiError.NONE, f"{_name(wanted)} {so_already}"))
    if partition.reassigning and not replace:
        text = f"{_name(wanted)} is being moved to {_ids(target)}, adding {_ids(partition.adding)}"
        return Outcome(ApiError.REASSIGNMENT_IN_PROGRESS, text, "cancel that first, or replace it (--replace)")
    return _start(image, topic, partition, wanted.replicas, eligible)


def _refuse_target(image: ClusterImage, partition: PartitionImage, wanted: Wanted) -> Outcome | None:
    """Refuse a target with a repeated or unregistered broker, or with a broker that is down but must become in sync.

    A broker that is down is accepted if it has the replica, unless the target has fewer replicas than before.
    """
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
        problem, next_step = f"broker {_ids(down)} is {state}, and cannot become in sync", "start it first"
    return Outcome(ApiError.INVALID_REPLICA_ASSIGNMENT, f"{name}: {problem}", next_step) if problem else None


def target_of(partition: PartitionImage) -> tuple[int, ...]:
    """Return the broker ids of the replicas after the reassignment; without a reassignment, the current ones."""
    return tuple([each for each in partition.replica_ids if each not in partition.removing])


def original_of(partition: PartitionImage) -> tuple[int, ...]:
    """Return the broker ids of the replicas before the reassignment, to which a cancellation returns."""
    return tuple([each for each in partition.replica_ids if each not in partition.adding])


def _start(
    image: ClusterImage, topic: TopicImage, partition: PartitionImage, target: tuple[int, ...], eligible: Eligible
) -> _Plan:
    present = original_of(partition)
    adding = [each for each in target if each not in present]
    removing = [each for each in present if each not in target]
    for each in partition.adding:  # added for the target that is being replaced
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
    min_isr = min_isr_of(image, topic.topic_id)
    # A leader that works is never replaced uncleanly, even if the topic permits it: acknowledged records would be lost.
    policy = policy_of(image, topic.topic_id) if partition.leader == NO_LEADER else Policy.OFFLINE
    isr = [each for each in partition.isr if each in original]
    elected = elect(partition, isr, eligible, policy, min_isr=min_isr, replicas=back.replicas, adding=())
    whole = elected.isr or elected.elr
    if (elected.leader == NO_LEADER and partition.leader != NO_LEADER) or not whole:
        text = (
            f"{name}: none of the original replicas {_ids(original)} is in sync and may lead; the ISR is"
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
    """Return the record that gives the partition the lists of `after`, with the leader and ISR elected for them."""
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
    """Return the record that ends the reassignment of `partition`, if that is complete in the state `now`."""
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
    """Return the record for an ISR change that completes a reassignment; None if it does not.

    partition: from the image.  isr: the requested ISR.
    """
    if not partition.reassigning:
        return None
    now = msgspec.structs.replace(partition, isr=isr.isr, elr=isr.elr, leader=isr.leader)
    return _completed(image, topic_id, partition, now, eligible, NO_OFFSET)


def ended(image: ClusterImage, count: int) -> list[Record]:
    """Return the further records of a batch that ends `count` reassignments: if none remains, remove the throttle."""
    return _throttle_records(image, None, image.reassigning_count - count) if count else []


def _throttle_records(image: ClusterImage, throttle: int | None, under_way: int) -> list[Record]:
    """under_way: reassignments that continue after the batch."""
    assert under_way >= 0, f"{under_way} reassignments would be left"
    now = image.config(ConfigScope.CLUSTER, "").get(THROTTLE)
    value = now if throttle is None else None if throttle == NO_THROTTLE else str(throttle)
    if not under_way:
        value = None
    return [] if value == now else [Config(ConfigScope.CLUSTER, "", THROTTLE, value)]


def progress(image: ClusterImage) -> Decision[int]:
    """Complete the reassignments that meet the conditions: at most one batch, with `more` if others may remain.

    The reply is the number of reassignments that the batch completes.  The active controller calls this function after
    events that may complete a reassignment without an ISR change, and when it becomes active.
    """
    eligible = Eligibility(image)
    records: list[Record] = []
    reassigning = image.reassigning
    for topic_id in sorted(reassigning):
        topic = image.topics[topic_id]
        for index in indexes(reassigning[topic_id]):
            partition = topic.partitions[index]
            assert partition is not None, f"{topic.name}-{index} is being reassigned but does not exist"
            change = _completed(image, topic_id, partition, partition, eligible, NO_OFFSET)
            if change is not None:
                records.append(change)
            if len(records) == CHANGES_MAX:
                return Decision(CHANGES_MAX, (*records, *ended(image, CHANGES_MAX)), more=True)
    return Decision(len(records), (*records, *ended(image, len(records))))


# Description


class Ongoing(msgspec.Struct, frozen=True):
    """A partition that is being reassigned.  topic: its name."""

    topic: str
    partition: PartitionImage


def list_reassignments(image: ClusterImage, partitions: Sequence[tuple[str, int]]) -> list[Ongoing]:
    """Return the reassignments in progress, sorted by topic name and index.

    partitions: (topic name, index) of each wanted partition; empty: all.
    """
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
            assert partition is not None, f"{name}-{index} is being reassigned but does not exist"
            found.append(Ongoing(name, partition))
    return found


def _ids(broker_ids: Iterable[int]) -> str:
    listed = list(broker_ids)
    shown = ",".join(map(str, listed[:20])) or "none"
    return shown + ("…" if len(listed) > 20 else "")
