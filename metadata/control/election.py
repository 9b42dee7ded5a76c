"""Who may lead, and who does: one election for every occasion, and what a broker's leaving changes.

Only members of the ISR are elected, because only they hold every committed record; the exception is an unclean
election, where the topic allows it.  Without ISR member to elect a partition has no leader, and its last ISR member
stays in the ISR (it alone knows what was committed) until it is back.  A replica that cannot hold it any more, because
its directory is not the same, leaves even as the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from itertools import islice
from typing import NamedTuple

from metadata.image import BrokerImage, ClusterImage, PartitionImage, TopicImage, indexes
from metadata.records import MAX_RECORDS_PER_BATCH, NO_LEADER, PartitionChange, Reason, Replica


class Policy(Enum):
    """OFFLINE keeps a leader that may stay; PREFERRED goes back to the first replica; UNCLEAN takes any that lives."""

    OFFLINE = 1
    PREFERRED = 2
    UNCLEAN = 3


class Elected(NamedTuple):
    leader: int  # NO_LEADER: nobody may lead
    isr: tuple[int, ...]
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


def elect(partition: PartitionImage, isr: Sequence[int], eligible: Eligible, policy: Policy) -> Elected:
    """The leader among `isr`, the in-sync replicas as they are to be, and the ISR with it.

    The assignment's order decides between several, so that every controller would choose the same.
    """
    candidates = [each.broker_id for each in partition.replicas if each.broker_id in isr and eligible(each)]
    if policy is Policy.PREFERRED and candidates and candidates[0] == partition.replicas[0].broker_id:
        return Elected(candidates[0], tuple(isr))
    if partition.leader in candidates:
        return Elected(partition.leader, tuple(isr))
    if candidates:
        return Elected(candidates[0], tuple(isr))
    if policy is Policy.UNCLEAN:
        for replica in partition.replicas:
            if eligible(replica):
                return Elected(replica.broker_id, (replica.broker_id,), unclean=True)
    return Elected(NO_LEADER, tuple(isr))


def policy_of(image: ClusterImage, topic: TopicImage) -> Policy:
    """What an automatic election of this topic may do."""
    unclean = image.topic_config(topic.topic_id, "unclean.leader.election.enable") == "true"
    return Policy.UNCLEAN if unclean else Policy.OFFLINE


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
    lost: those that leave even as the last ISR member, because they do not hold the data any more.
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
        policy = policy_of(image, topic)
        for index in indexes(hostings[topic_id]):
            partition = topic.partitions[index]
            assert partition is not None, f"{topic.name}-{index} is hosted by {broker_id} but is not there"
            replica = partition.replica(broker_id)
            assert replica is not None, f"{topic.name}-{index} is hosted by {broker_id} but has no replica there"
            if not concerned(replica):
                continue
            change = _leave(topic, partition, replica, leaving, policy, reason, image.end_offset, lost)
            if change is not None:
                yield change


def _leave(
    topic: TopicImage,
    partition: PartitionImage,
    replica: Replica,
    eligible: Eligible,
    policy: Policy,
    reason: Reason,
    cause_offset: int,
    lost: Lost,
) -> PartitionChange | None:
    broker_id = replica.broker_id
    if broker_id not in partition.isr and broker_id not in partition.elr and partition.leader != broker_id:
        return None
    isr = tuple([member for member in partition.isr if member != broker_id])
    elr = partition.elr
    if (not isr or broker_id in elr) and lost(topic, partition, replica):
        elr = tuple([member for member in elr if member != broker_id])
    elif not isr:
        isr = partition.isr
    elected = elect(partition, isr, eligible, policy)
    if (elected.leader, elected.isr, elr) == (partition.leader, partition.isr, partition.elr):
        return None
    return PartitionChange(
        topic_id=topic.topic_id,
        index=partition.index,
        reason=Reason.UNCLEAN_ELECTION if elected.unclean else reason,
        cause_offset=cause_offset,
        previous_offset=partition.last_offset,
        isr=elected.isr if elected.isr != partition.isr else None,
        elr=elr if elr != partition.elr else None,
        leader=elected.leader if elected.leader != partition.leader else None,
    )


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
        policy = policy_of(image, topic)
        for index in indexes(fewer[topic_id] & more.get(topic_id, 0)):
            partition = topic.partitions[index]
            assert partition is not None, f"{topic.name}-{index} has no leader but is not there"
            elected = elect(partition, partition.isr, eligible, policy)
            if elected.leader != NO_LEADER:
                yield PartitionChange(
                    topic_id=topic_id,
                    index=index,
                    reason=Reason.UNCLEAN_ELECTION if elected.unclean else Reason.BROKER_UNFENCED,
                    cause_offset=cause_offset,
                    previous_offset=partition.last_offset,
                    isr=elected.isr if elected.isr != partition.isr else None,
                    leader=elected.leader,
                )
