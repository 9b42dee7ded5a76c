"""The promises of the cluster's metadata, watched at every batch that any node applies.

Nobody's own replay is trusted: each committed batch is decoded and applied once more, by the watch, and every node's
image is compared with that one at the same offset.  What a batch did to partitions and brokers is judged once, when the
first node applies it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from broker.log import LogKey
from metadata.codec import decode
from metadata.control.election import min_isr_of
from metadata.image import BrokerImage, ClusterImage, PartitionImage, TopicImage
from metadata.records import (
    LOST,
    METADATA_VERSION,
    METADATA_VERSION_MAX,
    METADATA_VERSION_MIN,
    NO_LEADER,
    PartitionChange,
    Reason,
    Record,
)
from quorum.core.types import Batch
from simulation.cluster.voters import VotersWatch

Check = Callable[[bool, Callable[[], str]], None]


class Spot(NamedTuple):
    """A partition by its place: what clients call it."""

    topic: str
    index: int  # type: ignore[assignment]  # of the partition; a tuple's own method is of no use here


class Election(NamedTuple):
    """Of a partition, and the leader epoch that begins with it."""

    key: LogKey
    leader_epoch: int


class Proposed(NamedTuple):
    """An ISR, each broker with its epoch, and the epochs of the partition that it was meant for."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: frozenset[tuple[int, int]]


@dataclass(eq=False)
class Follower:
    """A process that applies metadata."""

    node_id: int
    committed: Callable[[], int]
    """What the quorum node of the process says is committed."""
    applied: int = 0


@dataclass(eq=False)
class MetadataWatch:
    """check: raises, with the message, what does not hold.  unclean: topics that may lose records in an election."""

    check: Check
    unclean: frozenset[str]
    seen: Counter[str]
    image: ClusterImage = field(default_factory=ClusterImage)
    identities: dict[Spot, list[LogKey]] = field(default_factory=dict)
    """All that have ever been, oldest first."""
    names: dict[LogKey, Spot] = field(default_factory=dict)
    topic_ids: set[UUID] = field(default_factory=set)
    """Of all topics that have ever been."""
    on_unclean: Callable[[Election], None] = lambda _: None
    on_epoch: Callable[[Election], None] = lambda _: None
    """Told of each new leader epoch, when the first node applies it."""
    on_elected: Callable[[Election, PartitionImage, PartitionImage], None] = lambda *_: None
    """Told of each clean election, with the partition before and after it."""
    on_change: Callable[[str], None] = lambda _: None
    understood_by: Callable[[int], int] = lambda _: METADATA_VERSION_MAX
    """The highest feature level that the release on a node understands."""
    on_joined: Callable[[LogKey, frozenset[int]], None] = lambda *_: None
    """Told of the brokers that are in sync again because their leader said so."""
    caching: frozenset[str] = frozenset()
    """Topics with write.caching."""
    asked_uncleanly: set[Spot] = field(default_factory=set)
    """Partitions for which the operator has requested an unclean election, because nobody held everything."""
    has_crashed: Callable[[UUID], bool] = lambda _: False
    """Whether this incarnation of a broker has ended without a clean stop."""
    proposals: set[Proposed] = field(default_factory=set)
    """Every ISR that a leader has asked for."""
    on_image: Callable[[ClusterImage], None] = lambda _: None
    """Told of the image after each committed batch."""
    voters: VotersWatch = field(init=False)
    _digests: dict[int, str] = field(default_factory=dict)
    _batches: dict[int, Batch] = field(default_factory=dict)
    _epochs: dict[Spot, int] = field(default_factory=dict)
    _broker_epochs: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.voters = VotersWatch(self.check, self.seen)

    # One batch at one node

    def applied(self, follower: Follower, batch: Batch, image: ClusterImage) -> None:
        """`follower` has just applied `batch`, and `image` is what it made of it."""
        node_id = follower.node_id
        self.check(
            batch.base_offset == follower.applied,
            lambda: f"I15: {node_id} applies a batch at {batch.base_offset} after {follower.applied}",
        )
        self.check(
            batch.end_offset <= follower.committed(),
            lambda: f"I15: {node_id} applies up to {batch.end_offset}, committed is {follower.committed()}",
        )
        follower.applied = batch.end_offset
        self._is_understood(node_id, image)
        if batch.base_offset >= self.image.end_offset:
            self._commit(node_id, batch)
        known = self._batches.get(batch.base_offset)
        self.check(
            known is not None and known.payload == batch.payload and known.epoch == batch.epoch,
            lambda: f"I15: {node_id} applies another batch at {batch.base_offset} than others did",
        )
        self._compare(node_id, image)

    def loaded(self, follower: Follower, image: ClusterImage) -> None:
        """`follower` goes on from a snapshot."""
        self.seen["metadata snapshot loaded"] += 1
        follower.applied = image.end_offset
        self._is_understood(follower.node_id, image)
        self._compare(follower.node_id, image)

    def _is_understood(self, node_id: int, image: ClusterImage) -> None:
        level = image.features.get(METADATA_VERSION, METADATA_VERSION_MIN)
        self.check(
            level <= self.understood_by(node_id),
            lambda: f"I26: {node_id} works at level {level}, which its release does not understand",
        )

    def _compare(self, node_id: int, image: ClusterImage) -> None:
        expected = self._digests.get(image.end_offset)
        self.check(
            expected is not None and expected == image.digest(),
            lambda: f"I13: {node_id} has another image at {image.end_offset} than the log gives",
        )

    def _commit(self, node_id: int, batch: Batch) -> None:
        old = self.image
        self.check(
            batch.base_offset == old.end_offset,
            lambda: f"I15: {node_id} applies {batch.base_offset}, the log is known up to {old.end_offset}",
        )
        records: list[Record] = []
        self.voters.committed(batch)
        if batch.control is None:
            records = decode(batch.payload, batch.base_offset)
            new = old.apply(batch.base_offset, records, batch.epoch)
        else:
            new = old.advance(batch.end_offset, batch.epoch)
        self.image = new
        self._batches[batch.base_offset] = batch
        self._digests[new.end_offset] = new.digest()
        if records:
            self._judge(old, new, records)
        self.on_image(new)

    # A quorum that is rebuilt

    def first_lacking(self, survivor: Sequence[Batch], start: int) -> int:
        """Where what is committed begins to differ from the survivor's log, which begins at `start`."""
        held = {batch.base_offset: batch for batch in survivor}
        lacking = (offset for offset, batch in self._batches.items() if offset >= start and held.get(offset) != batch)
        return min(lacking, default=self.image.end_offset)

    def images_from(self, offset: int) -> Iterator[ClusterImage]:
        """The image at this offset, and after each later batch that is committed."""
        image = ClusterImage()
        for base, batch in sorted(self._batches.items()):
            if base == offset:
                yield image
            image = _after(image, batch)
            if base >= offset:
                yield image
        if offset == self.image.end_offset:
            yield image

    def rebuilt(self, offset: int) -> MetadataWatch:
        """The watch of the next generation of the quorum, which has only what is committed below `offset`."""
        watch = MetadataWatch(self.check, self.unclean, self.seen, identities=self.identities, names=self.names)
        watch.on_unclean, watch.on_epoch, watch.on_change = self.on_unclean, self.on_epoch, self.on_change
        watch.understood_by, watch.proposals = self.understood_by, self.proposals
        for base, batch in sorted(self._batches.items()):
            if base < offset:
                watch._take_over(batch, self._digests[batch.end_offset])
        return watch

    def _take_over(self, batch: Batch, digest: str) -> None:
        """What was judged before is not judged again."""
        self.voters.committed(batch)
        self.image = image = _after(self.image, batch)
        self._batches[batch.base_offset], self._digests[batch.end_offset] = batch, digest
        self.topic_ids.update(image.topics)
        self._broker_epochs.update({broker.broker_id: broker.epoch for broker in image.brokers.values()})
        for topic in image.topics.values():
            for partition in topic.partitions:
                if partition is not None:
                    self._epochs[Spot(topic.name, partition.index)] = partition.leader_epoch

    # What a batch did

    def _judge(self, old: ClusterImage, new: ClusterImage, records: list[Record]) -> None:
        changes = {(one.topic_id, one.index): one for one in records if isinstance(one, PartitionChange)}
        for broker in new.brokers.values():
            self._judge_broker(broker)
        self._judge_levels(old, new)
        self.topic_ids.update(new.topics)
        for topic in new.topics.values():
            before = old.topic(topic.name)
            for index, partition in enumerate(topic.partitions):
                assert partition is not None, f"I16: {topic.name}-{index} is missing"
                self._judge_state(new, topic, partition)
                key = LogKey(topic.origin, index, partition.created)
                same = before is not None and before.origin == topic.origin
                former = before.partition(index) if same and before is not None else None
                if former is not None and former.created == partition.created:
                    change = changes.get((topic.topic_id, index)) or changes.get((before.topic_id, index))  # type: ignore[union-attr]
                    self._judge_change(new, topic, former, partition, change, key)
                    self._judge_last(old, new, topic, former, partition)
                else:
                    self._judge_new(topic, partition, key)
                self._epochs[Spot(topic.name, index)] = partition.leader_epoch

    def _judge_broker(self, broker: BrokerImage) -> None:
        before = self._broker_epochs.get(broker.broker_id, -1)
        self.check(
            broker.epoch >= before, lambda: f"I23: broker {broker.broker_id} goes from epoch {before} to {broker.epoch}"
        )
        self._broker_epochs[broker.broker_id] = broker.epoch

    def _judge_levels(self, old: ClusterImage, new: ClusterImage) -> None:
        """I26: a level only rises, and every registered broker understands it."""
        for name, level in new.features.items():
            before = old.features.get(name, METADATA_VERSION_MIN)
            self.check(level >= before, lambda name=name, level=level: f"I26: {name} goes down to level {level}")  # type: ignore[misc]
            if level > before:
                self.seen["feature level raised"] += 1
            lacking = [one.broker_id for one in new.brokers.values() if not one.feature_min <= level <= one.feature_max]
            self.check(
                not lacking,
                lambda name=name, level=level, lacking=lacking: (  # type: ignore[misc]
                    f"I26: {name} is at level {level}, brokers {lacking} do not understand it"
                ),
            )

    def _judge_new(self, topic: TopicImage, partition: PartitionImage, key: LogKey) -> None:
        spot = Spot(topic.name, partition.index)
        before = self._epochs.get(spot, -1)
        self.check(
            partition.leader_epoch > before,
            lambda: f"I17: {_name(spot)} begins anew in leader epoch {partition.leader_epoch}, {before} was reached",
        )
        self.identities.setdefault(spot, []).append(key)
        self.names[key] = spot

    def _judge_state(self, image: ClusterImage, topic: TopicImage, partition: PartitionImage) -> None:
        """I18, of each partition after each batch."""
        ids, isr, leader = partition.replica_ids, partition.isr, partition.leader

        def broken(what: str) -> Callable[[], str]:
            return lambda: f"I18: {topic.name}-{partition.index}: {what}: {partition}"

        self.check(len(set(ids)) == len(ids), broken("a broker twice"))
        self.check(set(isr) <= set(ids) and len(set(isr)) == len(isr), broken("the isr is no part of the replicas"))
        self.check(set(partition.elr) <= set(ids) - set(isr), broken("the elr is no part of the other replicas"))
        self.check(set(partition.adding) | set(partition.removing) <= set(ids), broken("adds or removes no replica"))
        if leader == NO_LEADER:
            return
        self.check(leader in isr, broken("the leader is not in the isr"))
        for broker_id in isr:
            broker, replica = image.brokers.get(broker_id), partition.replica(broker_id)
            self.check(broker is not None and broker.active, broken(f"{broker_id} is in the isr and not active"))
            assert broker is not None
            assert replica is not None
            self.check(
                replica.directory_id != LOST and broker.directory_online(replica.directory_id),
                broken(f"{broker_id} is in the isr without a working directory"),
            )
        wanted = min(min_isr_of(image, topic.topic_id), partition.settled_count)
        self.check(len(isr) < wanted or not partition.elr, broken("an elr beside an isr that is large enough"))

    def _judge_change(
        self,
        image: ClusterImage,
        topic: TopicImage,
        old: PartitionImage,
        new: PartitionImage,
        change: PartitionChange | None,
        key: LogKey,
    ) -> None:
        name = f"{topic.name}-{new.index}"
        self.check(
            new.leader_epoch >= old.leader_epoch and new.partition_epoch >= old.partition_epoch,
            lambda: f"I17: {name} goes back from {old} to {new}",
        )
        self.check(
            new.leader == old.leader or new.leader_epoch > old.leader_epoch,
            lambda: f"I17: {name} goes from leader {old.leader} to {new.leader} in epoch {old.leader_epoch}",
        )
        if new.partition_epoch == old.partition_epoch:
            return
        if new.leader_epoch > old.leader_epoch:
            self.on_epoch(Election(key, new.leader_epoch))
        reason = Reason(change.reason) if change is not None else None
        self.seen[f"{reason.name.lower() if reason else 'several changes'}"] += 1
        self.on_change(f"META {name} {reason.name if reason else None} {_shown(new)}")
        if reason in (Reason.ISR_EXPAND, Reason.REASSIGNMENT_COMPLETED):
            self.on_joined(key, frozenset(new.isr) - frozenset(old.isr))
        if new.leader not in (NO_LEADER, old.leader):
            self._judge_election(topic, old, new, reason, key)
        if reason is Reason.REASSIGNMENT_COMPLETED:
            arrived = set(new.replica_ids) - (set(old.replica_ids) - set(old.adding))
            self.check(
                arrived <= set(new.isr) and not new.reassigning,
                lambda: f"I18: the reassignment of {name} ends with {arrived} not in sync: {old} to {new}",
            )
        if reason in (Reason.ISR_SHRINK, Reason.ISR_EXPAND) and new.partition_epoch == old.partition_epoch + 1:
            isr = frozenset((each, image.brokers[each].epoch) for each in new.isr)
            asked = Proposed(topic.topic_id, new.index, old.leader_epoch, old.partition_epoch, isr)
            self.check(asked in self.proposals, lambda: f"I18: nobody asked for the isr of {name}: {old} to {new}")
        gone = set(old.replica_ids) - set(new.replica_ids)
        self.check(
            not gone or new.leader != NO_LEADER or old.leader == NO_LEADER,
            lambda: f"I18: {name} loses replicas {gone} and its leader: {old} to {new}",
        )

    def _judge_last(
        self, before: ClusterImage, image: ClusterImage, topic: TopicImage, old: PartitionImage, new: PartitionImage
    ) -> None:
        """I18: the last that are sure to hold everything count until their disk is gone.

        With write.caching, they count until they stop uncleanly.
        """
        if not old.isr or new.isr or new.elr:
            return
        for broker_id in old.isr:
            was, now, replica = before.brokers.get(broker_id), image.brokers.get(broker_id), new.replica(broker_id)
            here = now is not None and replica is not None and replica.directory_id in now.directory_ids
            crashed = topic.name in self.caching and was is not None and self.has_crashed(was.incarnation_id)
            self.check(
                not here or crashed,
                lambda broker_id=broker_id: (  # type: ignore[misc]
                    f"I18: {topic.name}-{new.index} gives up {broker_id}, which holds everything: {old} to {new}"
                ),
            )
            self.seen["last replica given up after a crash"] += crashed

    def _judge_election(
        self, topic: TopicImage, old: PartitionImage, new: PartitionImage, reason: Reason | None, key: LogKey
    ) -> None:
        name = f"{topic.name}-{new.index}"
        if reason is Reason.UNCLEAN_ELECTION:
            self.seen["unclean"] += 1
            # With write.caching, anybody may be elected once nobody is sure to hold everything.
            given_up = (not old.isr and not old.elr) or Spot(topic.name, new.index) in self.asked_uncleanly
            allowed = topic.name in self.unclean or (topic.name in self.caching and given_up)
            self.check(allowed, lambda: f"I20: an unclean election of {name}: {old} to {new}")
            self.on_unclean(Election(key, new.leader_epoch))
            return
        sound = {*old.isr, *old.elr}
        if reason in (Reason.REASSIGNMENT_COMPLETED, None):
            sound.update(new.isr)
        self.check(new.leader in sound, lambda: f"I20: {new.leader}, not in sync, is elected in {name}: {old} to {new}")
        if new.leader not in old.isr and new.leader in old.elr:
            self.seen["elected out of the elr"] += 1
        self.on_elected(Election(key, new.leader_epoch), old, new)


def _after(image: ClusterImage, batch: Batch) -> ClusterImage:
    if batch.control is not None:
        return image.advance(batch.end_offset, batch.epoch)
    return image.apply(batch.base_offset, decode(batch.payload, batch.base_offset), batch.epoch)


def _shown(partition: PartitionImage) -> str:
    moves = f" adding {partition.adding} removing {partition.removing}" if partition.reassigning else ""
    return (
        f"leader {partition.leader} epochs {partition.leader_epoch}/{partition.partition_epoch} isr {partition.isr} elr"
        f" {partition.elr} of {partition.replica_ids}{moves}"
    )


def _name(spot: Spot) -> str:
    return f"{spot.topic}-{spot.index}"
