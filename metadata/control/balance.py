"""Elections on request, and the controller's automatic return to the preferred leaders.

The first replica of a partition is its preferred leader.  Placement spreads preferred leaders evenly over the brokers,
but each failure moves leaderships away, and only this module moves them back.  A leader is moved only to an eligible
replica that is in sync, so no record is lost and clients just follow.  An unclean election on request affects only
partitions without a leader.  It elects a replica with all committed records where one is available.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from uuid import UUID

import msgspec

from metadata.control.decision import Decision
from metadata.control.election import Eligibility, Eligible, Policy, change_to, elect, min_isr_of
from metadata.control.errors import OK, Outcome, no_topic
from metadata.image import ClusterImage, PartitionImage, TopicImage, indexes
from metadata.records import NO_LEADER, NO_OFFSET, RECORDS_PER_BATCH_MAX, PartitionChange, Reason, Record
from quorumlog.wire.errors import ApiError

BALANCE_BATCH = 1_000
"""Maximum number of leaders that one batch moves back, so that the controller can do other work between batches."""


class Election(msgspec.Struct, frozen=True):
    """The election of one partition.

    leader, leader_epoch: the values after the election; -1 if the partition does not exist.
    """

    topic: str
    index: int
    outcome: Outcome
    leader: int = NO_LEADER
    leader_epoch: int = -1
    unclean: bool = False


def elect_leaders(
    image: ClusterImage, policy: Policy, partitions: Sequence[tuple[str, int]], *, validate_only: bool = False
) -> Decision[tuple[Election, ...]]:
    """Decide elections on request, each partition independently.

    policy: PREFERRED or UNCLEAN.
    partitions: (topic name, index) of each partition.  Empty: all partitions that need an election, at most one batch;
    the answer contains only these.
    """
    assert policy in (Policy.PREFERRED, Policy.UNCLEAN), f"{policy} cannot be requested"
    eligible = Eligibility(image)
    answers: list[Election] = []
    records: list[Record] = []
    for topic, index, answer in _named(image, partitions) if partitions else _needing(image, policy, eligible):
        if answer is not None:
            answers.append(answer)
            continue
        assert topic is not None, f"partition {index} of no topic"
        found, change = _ask(image, topic, index, policy, eligible)
        answers.append(found)
        if change is not None:
            records.append(change)
    if len(records) > RECORDS_PER_BATCH_MAX:
        text = f"{len(records)} elections: one request can hold at most {RECORDS_PER_BATCH_MAX}"
        refusal = Outcome(ApiError.POLICY_VIOLATION, text, "request fewer at a time")
        return Decision(tuple([Election(each.topic, each.index, refusal) for each in answers]))
    return Decision(tuple(answers), () if validate_only else tuple(records))


_Asked = tuple[TopicImage | None, int, Election | None]
"""(topic, index, the answer if the request for this partition is refused)."""


def _named(image: ClusterImage, partitions: Sequence[tuple[str, int]]) -> Iterator[_Asked]:
    seen: set[tuple[str, int]] = set()
    for name, index in partitions:
        topic = image.topic(name)
        if (name, index) in seen:
            refusal = Outcome(ApiError.INVALID_REQUEST, f"partition {name[:60]}-{index} is named twice in one request")
            yield topic, index, Election(name, index, refusal)
        elif topic is None:
            yield None, index, Election(name, index, no_topic(name))
        elif topic.partition(index) is None:
            text = f"topic {name} has partitions 0 to {len(topic.partitions) - 1}, not {index}"
            yield topic, index, Election(name, index, Outcome(ApiError.UNKNOWN_TOPIC_OR_PARTITION, text))
        else:
            yield topic, index, None
        seen.add((name, index))


def _needing(image: ClusterImage, policy: Policy, eligible: Eligible) -> Iterator[_Asked]:
    """Yield the partitions that an election with this policy would change, at most one batch."""
    found = _misplaced(image, sorted(image.topics), eligible)
    if policy is Policy.UNCLEAN:
        found = _leaderless(image, eligible)
    for topic, partition in islice(found, RECORDS_PER_BATCH_MAX):
        yield topic, partition.index, None


def _leaderless(image: ClusterImage, eligible: Eligible) -> Iterator[tuple[TopicImage, PartitionImage]]:
    leaderless = image.leaderships(NO_LEADER)
    for topic_id in sorted(leaderless):
        topic = image.topics[topic_id]
        for index in indexes(leaderless[topic_id]):
            partition = topic.partitions[index]
            assert partition is not None, f"{topic.name}-{index} has no leader but does not exist"
            if any(eligible(replica) for replica in partition.replicas):
                yield topic, partition


def _ask(
    image: ClusterImage, topic: TopicImage, index: int, policy: Policy, eligible: Eligible
) -> tuple[Election, PartitionChange | None]:
    partition = topic.partition(index)
    assert partition is not None, f"{topic.name}-{index} does not exist"
    refusal = _not_needed(topic, partition, policy, eligible)
    if refusal is not None:
        return Election(topic.name, index, refusal, partition.leader, partition.leader_epoch), None
    min_isr = min_isr_of(image, topic.topic_id)
    elected = elect(partition, partition.isr, eligible, policy, min_isr=min_isr)
    if policy is Policy.UNCLEAN and elected.leader == NO_LEADER:  # only replicas that are being added can lead
        elected = elect(partition, partition.isr, eligible, policy, min_isr=min_isr, adding=())
    assert elected.leader not in (NO_LEADER, partition.leader), f"{topic.name}-{index}: {partition} gave {elected}"
    reason = Reason.PREFERRED_ELECTION if policy is Policy.PREFERRED else Reason.BROKER_UNFENCED
    change = change_to(topic.topic_id, partition, elected, reason, NO_OFFSET)
    found = Election(topic.name, index, OK, elected.leader, partition.leader_epoch + 1, elected.unclean)
    return found, change


def _not_needed(topic: TopicImage, partition: PartitionImage, policy: Policy, eligible: Eligible) -> Outcome | None:
    """Return the reason why no election takes place, or None."""
    name = f"{topic.name}-{partition.index}"
    preferred = partition.replicas[0]
    if policy is Policy.UNCLEAN:
        if partition.leader != NO_LEADER:
            return Outcome(ApiError.ELECTION_NOT_NEEDED, f"{name} has a leader, {partition.leader}")
        if not any(eligible(replica) for replica in partition.replicas):
            text = f"{name}: no broker of {list(partition.replica_ids)} is unfenced with a working directory"
            return Outcome(ApiError.ELIGIBLE_LEADERS_NOT_AVAILABLE, text, "start one of them")
        return None
    if partition.leader == preferred.broker_id:
        return Outcome(ApiError.ELECTION_NOT_NEEDED, f"{name} is led by its preferred leader, {partition.leader}")
    problem = None
    if preferred.broker_id not in partition.isr:
        problem = f"is not in sync; the ISR is {list(partition.isr)}"
    elif not eligible(preferred):
        problem = "is fenced, is shutting down, or has lost the directory"
    if problem is not None:
        text = f"{name}: its preferred leader {preferred.broker_id} {problem}"
        return Outcome(ApiError.PREFERRED_LEADER_NOT_AVAILABLE, text)
    return None


# Automatic balance


def balance(image: ClusterImage, topic_ids: Sequence[UUID]) -> Decision[None]:
    """Move leaders of these topics back to their preferred replicas, at most `BALANCE_BATCH` of them.

    `more` is set if others may remain.  Deleted topics are skipped.
    """
    eligible = Eligibility(image)
    changes = []
    for topic, partition in islice(_misplaced(image, topic_ids, eligible), BALANCE_BATCH):
        min_isr = min_isr_of(image, topic.topic_id)
        elected = elect(partition, partition.isr, eligible, Policy.PREFERRED, min_isr=min_isr)
        change = change_to(topic.topic_id, partition, elected, Reason.PREFERRED_BALANCE, NO_OFFSET)
        assert change is not None, f"{topic.name}-{partition.index} is led by its preferred leader"
        changes.append(change)
    return Decision(None, tuple(changes), more=len(changes) == BALANCE_BATCH)


def _misplaced(
    image: ClusterImage, topic_ids: Sequence[UUID], eligible: Eligible
) -> Iterator[tuple[TopicImage, PartitionImage]]:
    """Yield partitions whose preferred replica is in sync and eligible but does not lead."""
    for topic_id in topic_ids:
        topic = image.topics.get(topic_id)
        for partition in () if topic is None else topic.partitions:
            if partition is None or partition.leader == partition.replicas[0].broker_id:
                continue
            preferred = partition.replicas[0]
            if preferred.broker_id in partition.isr and eligible(preferred):
                assert topic is not None, "a partition of no topic"
                yield topic, partition
