"""Who may lead, and who does: one election for every occasion, and what a broker's leaving changes.

Theory of operation.  A leader must hold every committed record.  Those that surely do are the members of the ISR and,
after them, the eligible leader replicas (ELR): what is committed is what the whole ISR holds, and nothing more is
committed while the ISR is smaller than min.insync.replicas.  Therefore whoever leaves an ISR that falls below that size
still holds all that there is, until the ISR is large enough again; it is remembered in the ELR.  The size in force is
never above the number of replicas (without those that a reassignment is adding), for the leader and here alike.

The rules, which `elect` applies to whatever a decision wants the replicas and the ISR to be:

- A member of the ISR that is eligible (its broker unfenced and staying, its directory working) leads: the leader as it
  is, else the first in the order of the assignment, so that every controller would choose the same.
- Else one of the ELR; the ISR is then that leader alone, and those who were in it are in the ELR.
- Else, where the topic or an operator allows it, any that is eligible: an *unclean* election.  What only the others
  hold is lost, so nobody but the new leader is in the ISR or ELR from then on.  A replica that a reassignment is still
  adding may have next to nothing: it is taken only when an operator asks, and there is no other.
- Else nobody (`NO_LEADER`), until one of ISR or ELR returns.  The last members of an ISR stay in it meanwhile.
- A replica that does not hold its data any more (its directory is gone, or it was written with caching and stopped
  uncleanly) is `lost`: in neither ISR nor ELR, even as the last.
- The ELR is empty whenever the ISR has the size in force; and whoever changes min.insync.replicas empties it, since it
  was filled under another rule.

Because the last members stay in the ISR, there is no need to remember a last known leader beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from enum import Enum
from itertools import islice
from typing import NamedTuple
from uuid import UUID

from metadata.image import BrokerImage, ClusterImage, PartitionImage, TopicImage, indexes
from metadata.records import MAX_RECORDS_PER_BATCH, NO_LEADER, PartitionChange, Reason, Replica

MIN_ISR = "min.insync.replicas"
UNCLEAN = "unclean.leader.election.enable"


class Policy(Enum):
    """What an election may do.  All but PREFERRED keep a leader that may stay.

    OFFLINE: from the ISR, then the ELR.  REASSIGNED: only from the ISR, for replicas that are to change.
    PREFERRED: as OFFLINE, but back to the first replica if that is in sync.
    UNCLEAN: as OFFLINE, then any that is eligible.
    """

    OFFLINE = 1
    PREFERRED = 2
    UNCLEAN = 3
    REASSIGNED = 4


class Elected(NamedTuple):
    """How the partition is to be, all in the order of the assignment.  `leader` NO_LEADER: nobody may lead."""

    leader: int
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    unclean: bool = False


Eligible = Callable[[Replica], bool]
"""Whether a replica may lead and be in the ISR: its broker is unfenced and staying, its directory works."""


class Eligibility:
    """The `Eligible` of an image, with one broker taken out (it is about to leave) or in (it is about to come back)."""

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
    """Leader, ISR and ELR of a partition that is about to change.

    isr: the in-sync replicas as they are to be; empty or all lost: those of before stay, unless they are lost too.
    min_isr: min.insync.replicas as configured, see `min_isr_of`.
    replicas: the assignment as it is to be; None: as it is.  Who is not in it is in neither ISR nor ELR.
    adding: of `replicas`, those that are only being added, which do not count for the size in force; None: as it is.
    lost: brokers whose replica does not hold its data any more.
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
    """The ELR beside this ISR: of those that were in ISR or ELR, all others, while the ISR is too small."""
    return () if len(isr) >= wanted else tuple([each for each in former if each not in isr])


def min_isr_of(image: ClusterImage, topic_id: UUID) -> int:
    """min.insync.replicas of a topic, as configured."""
    return int(image.topic_config(topic_id, MIN_ISR))


def policy_of(image: ClusterImage, topic_id: UUID) -> Policy:
    """What an automatic election of this topic may do."""
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
    """The record that brings the partition there, or None if it is so already.  None for a list: as it is.

    new_epoch: also the same leader leads a new epoch (a replica has left the assignment).  An unclean election is
    recorded as that, whatever brought it about: the loss is the news.
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


# A broker leaves

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
    """What changes when a broker leaves the ISRs and leaderships it is in: at most one batch and one record more.

    concerned: of its replicas, those that leave (all, or those on a failed directory).
    lost: those that leave ELRs too, and ISRs even as the last, because they do not hold the data any more.
    The cause is the record at the image's end.
    """
    return list(islice(_departures(image, broker_id, reason, concerned, lost), MAX_RECORDS_PER_BATCH + 1))


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
            assert partition is not None, f"{topic.name}-{index} is hosted by {broker_id} but is not there"
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


# Leaders for those that have none


def elections(
    image: ClusterImage, *, cause_offset: int, broker_id: int | None = None, joining: bool = False
) -> list[PartitionChange]:
    """Leaders for the partitions that have none and could have one: at most one batch.

    broker_id: only partitions that this broker has a replica of; None: all.
    joining: take `broker_id` for unfenced already.
    """
    found = _elections(image, cause_offset, broker_id, Eligibility(image, joining=broker_id if joining else None))
    return list(islice(found, MAX_RECORDS_PER_BATCH))


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
            assert partition is not None, f"{topic.name}-{index} has no leader but is not there"
            elected = elect(partition, partition.isr, eligible, policy, min_isr=min_isr)
            if elected.leader != NO_LEADER:
                change = change_to(topic_id, partition, elected, Reason.BROKER_UNFENCED, cause_offset)
                assert change is not None, f"{topic.name}-{index} has no leader and would have {elected}"
                yield change
