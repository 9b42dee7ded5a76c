"""The election of partition leaders, and the effects of a broker that leaves.

Theory of operation.  A leader must hold every committed record.  The members of the ISR do, and so do the eligible
leader replicas (ELR).  A record is committed when the whole ISR holds it, and nothing more is committed while the ISR
is smaller than min.insync.replicas.  Therefore, if a replica leaves the ISR and the ISR falls below that size, the
replica still holds all committed records until the ISR is large enough again.  For that time, the replica is in the
ELR.  The effective min.insync.replicas is at most the number of replicas, without those that a reassignment is adding.
The leader of the partition uses the same value.

`elect` applies these rules to the replicas and the ISR that a decision requests:

- An eligible member of the ISR leads (its broker is unfenced and not shutting down, its directory works): the current
  leader, else the first in the order of the assignment, so that every controller chooses the same leader.
- Else an eligible member of the ELR leads; the ISR is then that leader alone, and the former ISR members are in the
  ELR.
- Else any eligible replica leads, if the topic or an operator permits an *unclean* election.  Records that only the
  others hold are lost, so from then on only the new leader is in the ISR, and the ELR is empty.  A replica that a
  reassignment is still adding may have few records: it is chosen only on an operator's request, as the last resort.
- Else there is no leader (`NO_LEADER`) until a member of ISR or ELR returns.  The last ISR members stay in the ISR.
- A replica that no longer holds its data (its directory is missing, or the broker stopped uncleanly and the topic has
  or had write.caching) is `lost`: it is in neither ISR nor ELR, even if it is the last member.
- The ELR is empty whenever the ISR has at least the effective min.insync.replicas.  A change of min.insync.replicas
  also empties the ELR, since the old value determined its members, unless the ISR is empty.

Because the last members stay in the ISR, no separate last known leader is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from enum import Enum
from itertools import islice
from typing import NamedTuple
from uuid import UUID

from metadata.image import BrokerImage, ClusterImage, PartitionImage, TopicImage, indexes
from metadata.records import NO_LEADER, RECORDS_PER_BATCH_MAX, PartitionChange, Reason, Replica

MIN_ISR = "min.insync.replicas"
UNCLEAN = "unclean.leader.election.enable"


class Policy(Enum):
    """The permitted kinds of election.  All except PREFERRED keep a leader that may stay.

    OFFLINE: elect from the ISR, then the ELR.  REASSIGNED: only from the ISR, for a change of the replicas.
    PREFERRED: as OFFLINE, but return to the first replica if it is in sync.
    UNCLEAN: as OFFLINE, then any eligible replica that is not being added.
    """

    OFFLINE = 1
    PREFERRED = 2
    UNCLEAN = 3
    REASSIGNED = 4


class Elected(NamedTuple):
    """The elected state of a partition, in the order of the assignment.  leader: NO_LEADER if no replica may lead."""

    leader: int
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    unclean: bool = False


Eligible = Callable[[Replica], bool]
"""Whether a replica may lead and be in the ISR: its broker is unfenced and not shutting down, its directory works."""


class Eligibility:
    """The `Eligible` of an image, with one broker excluded (about to leave) or included (about to return)."""

    __slots__ = ("_active", "_image", "_joining", "_leaving")

    def __init__(self, image: ClusterImage, *, leaving: int | None = None, joining: int | None = None) -> None:
        self._image = image
        self._leaving = leaving
        self._joining = joining
        self._active: dict[int, BrokerImage | None] = {}

    def __call__(self, replica: Replica) -> bool:
        broker_id = replica.broker_id
        if broker_id not in self._active:
            found = self._image.brokers.get(broker_id)
            stays = found is not None and (found.active or broker_id == self._joining) and broker_id != self._leaving
            self._active[broker_id] = found if stays else None
        broker = self._active[broker_id]
        return broker is not None and broker.directory_online(replica.directory_id)


# The election


def elect(
    partition: PartitionImage,
    isr: Collection[int],
    eligible: Eligible,
    policy: Policy,
    *,
    min_isr: int,
    replicas: Sequence[Replica] | None = None,
    adding: Collection[int] | None = None,
    lost: Collection[int] = (),
) -> Elected:
    """Return leader, ISR and ELR of a partition that is about to change.

    isr: the requested in-sync replicas; if empty or all lost, the previous members stay, unless they are lost as well.
    min_isr: min.insync.replicas as configured, see `min_isr_of`.
    replicas: the requested assignment; None: unchanged.  Other replicas are in neither ISR nor ELR.
    adding: the broker ids in `replicas` that are being added, and do not count for the effective min.insync.replicas;
    None: unchanged.
    lost: brokers whose replica no longer holds its data.
    """
    order = partition.replicas if replicas is None else replicas
    newcomers = partition.adding if adding is None else adding
    wanted = min(min_isr, len(order) - len(newcomers))
    sound = [each.broker_id for each in order if each.broker_id not in lost]
    in_sync = tuple([each for each in sound if each in isr]) or tuple([each for each in sound if each in partition.isr])
    former = [each for each in sound if each in partition.isr or each in partition.elr]
    candidates = [each.broker_id for each in order if each.broker_id in in_sync and eligible(each)]
    if candidates:
        return Elected(_choose(partition, order, candidates, policy), in_sync, _left(former, in_sync, wanted))
    if policy is not Policy.REASSIGNED:
        for replica in order:
            if replica.broker_id in former and eligible(replica):
                alone = (replica.broker_id,)
                return Elected(replica.broker_id, alone, _left(former, alone, wanted))
    if policy is Policy.UNCLEAN:
        for replica in order:
            if replica.broker_id not in newcomers and eligible(replica):
                return Elected(replica.broker_id, (replica.broker_id,), unclean=True)
    return Elected(NO_LEADER, in_sync, _left(former, in_sync, wanted))


def _choose(partition: PartitionImage, order: Sequence[Replica], candidates: Sequence[int], policy: Policy) -> int:
    if policy is Policy.PREFERRED and candidates[0] == order[0].broker_id:
        return candidates[0]
    return partition.leader if partition.leader in candidates else candidates[0]


def _left(former: Sequence[int], isr: Collection[int], wanted: int) -> tuple[int, ...]:
    """Return the ELR: the former members of ISR and ELR that are not in the ISR, while the ISR is too small."""
    return () if len(isr) >= wanted else tuple([each for each in former if each not in isr])


def min_isr_of(image: ClusterImage, topic_id: UUID) -> int:
    """Return min.insync.replicas of a topic, as configured."""
    return int(image.topic_config(topic_id, MIN_ISR))


def policy_of(image: ClusterImage, topic_id: UUID) -> Policy:
    """Return the policy of automatic elections for this topic."""
    return Policy.UNCLEAN if image.topic_config(topic_id, UNCLEAN) == "true" else Policy.OFFLINE


def change_to(
    topic_id: UUID,
    partition: PartitionImage,
    elected: Elected,
    reason: Reason,
    cause_offset: int,
    *,
    replicas: tuple[Replica, ...] | None = None,
    adding: tuple[int, ...] | None = None,
    removing: tuple[int, ...] | None = None,
    new_epoch: bool = False,
) -> PartitionChange | None:
    """Return the record that gives the partition this state, or None if the partition already has it.

    replicas, adding, removing: None if unchanged.
    new_epoch: start a new leader epoch even under the same leader, because a replica left the assignment.
    The record of an unclean election always has the reason UNCLEAN_ELECTION, because the possible loss matters most.
    """
    change = PartitionChange(
        topic_id=topic_id,
        index=partition.index,
        reason=Reason.UNCLEAN_ELECTION if elected.unclean else reason,
        cause_offset=cause_offset,
        previous_offset=partition.last_offset,
        isr=elected.isr if elected.isr != partition.isr else None,
        elr=elected.elr if elected.elr != partition.elr else None,
        replicas=replicas if replicas != partition.replicas else None,
        adding=adding if adding != partition.adding else None,
        removing=removing if removing != partition.removing else None,
        leader=elected.leader if new_epoch or elected.leader != partition.leader else None,
    )
    values = (change.isr, change.elr, change.replicas, change.adding, change.removing, change.leader)
    return None if all(value is None for value in values) else change


# Departure of a broker

Concerned = Callable[[Replica], bool]
Lost = Callable[[TopicImage, PartitionImage, Replica], bool]


def departures(
    image: ClusterImage,
    broker_id: int,
    reason: Reason,
    *,
    concerned: Concerned = lambda replica: True,
    lost: Lost = lambda topic, partition, replica: False,
) -> list[PartitionChange]:
    """Decide the effects of a broker that leaves its ISRs and leaderships: at most one batch plus one record.

    concerned: whether a replica of the broker leaves.  By default, all leave.
    lost: whether a replica no longer holds the data.  It then also leaves the ELR, and leaves an ISR even as the last
    member.
    The cause of each change is the next record after the image, at offset `image.end_offset`.
    """
    return list(islice(_departures(image, broker_id, reason, concerned, lost), RECORDS_PER_BATCH_MAX + 1))


def _departures(
    image: ClusterImage, broker_id: int, reason: Reason, concerned: Concerned, lost: Lost
) -> Iterator[PartitionChange]:
    leaving = Eligibility(image, leaving=broker_id)
    hostings = image.hostings(broker_id)
    for topic_id in sorted(hostings):
        topic = image.topics[topic_id]
        policy, min_isr = policy_of(image, topic_id), min_isr_of(image, topic_id)
        for index in indexes(hostings[topic_id]):
            partition = topic.partitions[index]
            assert partition is not None, f"{topic.name}-{index} is hosted by {broker_id} but does not exist"
            replica = partition.replica(broker_id)
            assert replica is not None, f"{topic.name}-{index} is hosted by {broker_id} but has no replica there"
            if broker_id not in partition.isr and broker_id not in partition.elr:
                continue
            if not concerned(replica):
                continue
            isr = [member for member in partition.isr if member != broker_id]
            gone = (broker_id,) if lost(topic, partition, replica) else ()
            elected = elect(partition, isr, leaving, policy, min_isr=min_isr, lost=gone)
            change = change_to(topic_id, partition, elected, reason, image.end_offset)
            if change is not None:
                yield change


# Leaders for partitions without one


def elections(
    image: ClusterImage, *, cause_offset: int, broker_id: int | None = None, joining: bool = False
) -> list[PartitionChange]:
    """Elect leaders for partitions that have none and can have one: at most one batch.

    broker_id: only partitions with a replica on this broker; None: all.
    joining: treat `broker_id` as already unfenced.
    """
    found = _elections(image, cause_offset, broker_id, Eligibility(image, joining=broker_id if joining else None))
    return list(islice(found, RECORDS_PER_BATCH_MAX))


def _elections(
    image: ClusterImage, cause_offset: int, broker_id: int | None, eligible: Eligible
) -> Iterator[PartitionChange]:
    leaderless = image.leaderships(NO_LEADER)
    hostings = leaderless if broker_id is None else image.hostings(broker_id)
    fewer, more = sorted((leaderless, hostings), key=len)
    for topic_id in sorted(fewer):
        topic = image.topics[topic_id]
        policy, min_isr = policy_of(image, topic_id), min_isr_of(image, topic_id)
        for index in indexes(fewer[topic_id] & more.get(topic_id, 0)):
            partition = topic.partitions[index]
            assert partition is not None, f"{topic.name}-{index} has no leader but does not exist"
            elected = elect(partition, partition.isr, eligible, policy, min_isr=min_isr)
            if elected.leader != NO_LEADER:
                change = change_to(topic_id, partition, elected, Reason.BROKER_UNFENCED, cause_offset)
                assert change is not None, f"{topic.name}-{index} has no leader and would have {elected}"
                yield change
