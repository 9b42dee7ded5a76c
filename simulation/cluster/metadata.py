"""The invariants of the cluster's metadata, checked at every batch that any node applies.

The watch does not trust the replay of any node.  It decodes and applies each committed batch itself, and compares every
node's image with its own at the same offset.  The changes of a batch to partitions and brokers are checked once, when
the first node applies it.
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
from metadata.control.features import LOWERABLE
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
from simulation.cluster.voter_sets import VotersWatch

Check = Callable[[bool, Callable[[], str]], None]


class Spot(NamedTuple):
    """A partition by its name and index, as clients identify it."""

    topic: str
    index: int  # type: ignore[assignment]  # of the partition; hides the method `index` of tuples


class Election(NamedTuple):
    """An election in a partition, and the leader epoch that begins with it."""

    key: LogKey
    leader_epoch: int


class Proposed(NamedTuple):
    """A proposed ISR: each broker with its epoch, and the epochs of the partition to which the proposal applies."""

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
    """Returns the high watermark of the quorum node in the process."""
    applied: int = 0


@dataclass(eq=False)
class MetadataWatch:
    """The checks of one generation of the quorum.

    check: raises Violation with the message unless the condition holds.  unclean: topics with unclean elections.
    """

    check: Check
    unclean: frozenset[str]
    seen: Counter[str]
    image: ClusterImage = field(default_factory=ClusterImage)
    identities: dict[Spot, list[LogKey]] = field(default_factory=dict)
    """By name and index: the keys of all partitions that have ever had them, oldest first."""
    names: dict[LogKey, Spot] = field(default_factory=dict)
    topic_ids: set[UUID] = field(default_factory=set)
    """The ids of all topics that have ever existed."""
    on_unclean: Callable[[Election], None] = lambda _: None
    on_epoch: Callable[[Election], None] = lambda _: None
    """Called with each new leader epoch, when the first node applies it."""
    on_elected: Callable[[Election, PartitionImage, PartitionImage], None] = lambda *_: None
    """Called with each clean election, and with the partition before and after it."""
    on_change: Callable[[str], None] = lambda _: None
    supported_by: Callable[[int], int] = lambda _: METADATA_VERSION_MAX
    """Returns the highest feature level that the release on a node supports."""
    on_joined: Callable[[LogKey, frozenset[int]], None] = lambda *_: None
    """Called with a partition, and the brokers that its leader has added to the ISR."""
    caching: frozenset[str] = frozenset()
    """Topics with write.caching."""
    asked_uncleanly: set[Spot] = field(default_factory=set)
    """Partitions for which the operator has requested an unclean election, because no replica had all records."""
    has_crashed: Callable[[UUID], bool] = lambda _: False
    """Returns whether this incarnation of a broker has ended without a clean stop."""
    proposals: set[Proposed] = field(default_factory=set)
    """Every ISR that a leader has proposed."""
    on_image: Callable[[ClusterImage], None] = lambda _: None
    """Called with the image after each committed batch."""
    voters: VotersWatch = field(init=False)
    _min_isrs: dict[UUID, list[tuple[int, int]]] = field(default_factory=dict)
    """By topic: each value of min.insync.replicas, with the end offset of the metadata at which it came into force."""
    _digests: dict[int, str] = field(default_factory=dict)
    _batches: dict[int, Batch] = field(default_factory=dict)
    _epochs: dict[Spot, int] = field(default_factory=dict)
    _broker_epochs: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.voters = VotersWatch(self.check, self.seen)

    # One batch at one node

    def applied(self, follower: Follower, batch: Batch, image: ClusterImage) -> None:
        """Check the image of `follower` after it has applied `batch`."""
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
        self._check_supported(node_id, image)
        if batch.base_offset >= self.image.end_offset:
            self._commit(node_id, batch)
        known = self._batches.get(batch.base_offset)
        self.check(
            known is not None and known.payload == batch.payload and known.epoch == batch.epoch,
            lambda: f"I15: {node_id} and other nodes apply different batches at {batch.base_offset}",
        )
        self._compare(node_id, image)

    def loaded(self, follower: Follower, image: ClusterImage) -> None:
        """Check the image that `follower` has loaded from a snapshot."""
        self.seen["metadata snapshot loaded"] += 1
        follower.applied = image.end_offset
        self._check_supported(follower.node_id, image)
        self._compare(follower.node_id, image)

    def _check_supported(self, node_id: int, image: ClusterImage) -> None:
        level = image.features.get(METADATA_VERSION, METADATA_VERSION_MIN)
        self.check(
            level <= self.supported_by(node_id),
            lambda: f"I26: {node_id} runs at level {level}, which its release does not support",
        )

    def _compare(self, node_id: int, image: ClusterImage) -> None:
        expected = self._digests.get(image.end_offset)
        self.check(
            expected is not None and expected == image.digest(),
            lambda: f"I13: the image of {node_id} at {image.end_offset} differs from the replay of the log",
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
        self._note_min_isrs(new)
        self._batches[batch.base_offset] = batch
        self._digests[new.end_offset] = new.digest()
        if records:
            self._judge(old, new, records)
        self.on_image(new)

    def _note_min_isrs(self, image: ClusterImage) -> None:
        for topic_id in image.topics:
            known, value = self._min_isrs.setdefault(topic_id, []), min_isr_of(image, topic_id)
            if not known or known[-1][1] != value:
                known.append((image.end_offset, value))

    def least_min_isr(self, topic_id: UUID, first: int, last: int) -> int:
        """Return the lowest min.insync.replicas of a topic from metadata offset `first` to `last`, both included."""
        known = self._min_isrs.get(topic_id, [])
        at_first = [value for end, value in known if end <= first][-1:]
        return min([*at_first, *(value for end, value in known if first < end <= last)], default=1)

    # A quorum that is rebuilt

    def first_lacking(self, survivor: Sequence[Batch], start: int) -> int:
        """Return the first committed offset that is missing in the survivor's log, which begins at `start`."""
        held = {batch.base_offset: batch for batch in survivor}
        lacking = (offset for offset, batch in self._batches.items() if offset >= start and held.get(offset) != batch)
        return min(lacking, default=self.image.end_offset)

    def images_from(self, offset: int) -> Iterator[ClusterImage]:
        """Yield the image at this offset, and the image after each later committed batch."""
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
        """Return the watch of the next generation, whose log has only the committed batches below `offset`."""
        watch = MetadataWatch(self.check, self.unclean, self.seen, identities=self.identities, names=self.names)
        watch.on_unclean, watch.on_epoch, watch.on_change = self.on_unclean, self.on_epoch, self.on_change
        watch.on_elected, watch.on_joined, watch.has_crashed = self.on_elected, self.on_joined, self.has_crashed
        watch.caching, watch.asked_uncleanly = self.caching, self.asked_uncleanly
        watch.supported_by, watch.proposals = self.supported_by, self.proposals
        for base, batch in sorted(self._batches.items()):
            if base < offset:
                watch._take_over(batch, self._digests[batch.end_offset])
        return watch

    def _take_over(self, batch: Batch, digest: str) -> None:
        """Add a batch that was already checked in an earlier generation."""
        self.voters.committed(batch)
        self.image = image = _after(self.image, batch)
        self._note_min_isrs(image)
        self._batches[batch.base_offset], self._digests[batch.end_offset] = batch, digest
        self.topic_ids.update(image.topics)
        self._broker_epochs.update({broker.broker_id: broker.epoch for broker in image.brokers.values()})
        for topic in image.topics.values():
            for partition in topic.partitions:
                if partition is not None:
                    self._epochs[Spot(topic.name, partition.index)] = partition.leader_epoch

    # The changes of a batch

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
                    assert before is not None
                    self._judge_last(old, new, before.topic_id, topic, former, partition)
                else:
                    self._judge_new(topic, partition, key)
                self._epochs[Spot(topic.name, index)] = partition.leader_epoch

    def _judge_broker(self, broker: BrokerImage) -> None:
        before = self._broker_epochs.get(broker.broker_id, -1)
        self.check(
            broker.epoch >= before,
            lambda: f"I23: broker {broker.broker_id} had epoch {before}, now {broker.epoch}",
        )
        self._broker_epochs[broker.broker_id] = broker.epoch

    def _judge_levels(self, old: ClusterImage, new: ClusterImage) -> None:
        """I26: a level only rises, unless its feature is `LOWERABLE`, and every registered broker supports it."""
        for name, level in new.features.items():
            if name in LOWERABLE:
                continue
            before = old.features.get(name, METADATA_VERSION_MIN)
            self.check(level >= before, lambda name=name, level=level: f"I26: {name} is lowered to level {level}")  # type: ignore[misc]
            if level > before:
                self.seen["feature level raised"] += 1
            lacking = [one.broker_id for one in new.brokers.values() if not one.feature_min <= level <= one.feature_max]
            self.check(
                not lacking,
                lambda name=name, level=level, lacking=lacking: (  # type: ignore[misc]
                    f"I26: {name} is at level {level}, which brokers {lacking} do not support"
                ),
            )

    def _judge_new(self, topic: TopicImage, partition: PartitionImage, key: LogKey) -> None:
        spot = Spot(topic.name, partition.index)
        before = self._epochs.get(spot, -1)
        self.check(
            partition.leader_epoch > before,
            lambda: f"I17: {_name(spot)} starts again in leader epoch {partition.leader_epoch}, after {before}",
        )
        self.identities.setdefault(spot, []).append(key)
        self.names[key] = spot

    def _judge_state(self, image: ClusterImage, topic: TopicImage, partition: PartitionImage) -> None:
        """Check I18 for each partition after each batch."""
        ids, isr, leader = partition.replica_ids, partition.isr, partition.leader

        def broken(problem: str) -> Callable[[], str]:
            return lambda: f"I18: {topic.name}-{partition.index}: {problem}: {partition}"

        self.check(len(set(ids)) == len(ids), broken("a broker is named twice"))
        self.check(set(isr) <= set(ids) and len(set(isr)) == len(isr), broken("the isr contains a wrong broker"))
        self.check(set(partition.elr) <= set(ids) - set(isr), broken("the elr contains a wrong broker"))
        self.check(
            set(partition.adding) | set(partition.removing) <= set(ids),
            broken("adds or removes a wrong broker"),
        )
        if leader == NO_LEADER:
            return
        self.check(leader in isr, broken("the leader is not in the isr"))
        for broker_id in isr:
            broker, replica = image.brokers.get(broker_id), partition.replica(broker_id)
            self.check(broker is not None and broker.active, broken(f"{broker_id} is in the isr but not active"))
            assert broker is not None
            assert replica is not None
            self.check(
                replica.directory_id != LOST and broker.directory_online(replica.directory_id),
                broken(f"{broker_id} is in the isr without a working directory"),
            )
        wanted = min(min_isr_of(image, topic.topic_id), partition.settled_count)
        self.check(len(isr) < wanted or not partition.elr, broken("there is an elr although the isr is large enough"))

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
            lambda: f"I17: an epoch of {name} decreases from {old} to {new}",
        )
        self.check(
            new.leader == old.leader or new.leader_epoch > old.leader_epoch,
            lambda: f"I17: the leader of {name} changes from {old.leader} to {new.leader} in epoch {old.leader_epoch}",
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
            self._judge_election(image, topic, old, new, reason, key)
        self._judge_growth(name, old, new, reason)
        if reason is Reason.REASSIGNMENT_COMPLETED:
            arrived = set(new.replica_ids) - (set(old.replica_ids) - set(old.adding))
            self.check(
                arrived <= set(new.isr) and not new.reassigning,
                lambda: f"I18: the reassignment of {name} completes, but {arrived} are not in sync: {old} to {new}",
            )
        if reason in (Reason.ISR_SHRINK, Reason.ISR_EXPAND) and new.partition_epoch == old.partition_epoch + 1:
            isr = frozenset((each, image.brokers[each].epoch) for each in new.isr)
            asked = Proposed(topic.topic_id, new.index, old.leader_epoch, old.partition_epoch, isr)
            self.check(asked in self.proposals, lambda: f"I18: no leader proposed the isr of {name}: {old} to {new}")
        removed = set(old.replica_ids) - set(new.replica_ids)
        self.check(
            not removed or new.leader != NO_LEADER or old.leader == NO_LEADER,
            lambda: f"I18: {name} loses replicas {removed} and its leader: {old} to {new}",
        )

    def _judge_last(
        self,
        before: ClusterImage,
        image: ClusterImage,
        old_topic: UUID,
        topic: TopicImage,
        old: PartitionImage,
        new: PartitionImage,
    ) -> None:
        """I18: the last replicas that hold all committed records stay in ISR or ELR until their disk is lost.

        With write.caching, they stay until they stop uncleanly.
        """
        if new.isr or new.elr or new.partition_epoch == old.partition_epoch:
            return
        # A change of min.insync.replicas empties the ELR, which was filled under another rule.
        is_same_rule = min_isr_of(before, old_topic) == min_isr_of(image, topic.topic_id)
        for broker_id in (*old.isr, *(old.elr if is_same_rule else ())):
            was, now, replica = before.brokers.get(broker_id), image.brokers.get(broker_id), new.replica(broker_id)
            here = now is not None and replica is not None and replica.directory_id in now.directory_ids
            crashed = topic.name in self.caching and was is not None and self.has_crashed(was.incarnation_id)
            self.check(
                not here or crashed,
                lambda broker_id=broker_id: (  # type: ignore[misc]
                    f"I18: {topic.name}-{new.index} drops {broker_id}, which has all committed records: {old} to {new}"
                ),
            )
            self.seen["last replica dropped after a crash"] += crashed

    def _judge_growth(self, name: str, old: PartitionImage, new: PartitionImage, reason: Reason | None) -> None:
        """I18: a replica returns to the ISR only by a request of its leader, or by its own election."""
        if reason in (Reason.ISR_EXPAND, Reason.REASSIGNMENT_COMPLETED, None):
            return
        joined = set(new.isr) - set(old.isr)
        self.check(
            joined <= {new.leader},
            lambda: f"I18: {sorted(joined)} join the isr of {name}, and no leader asked for it: {old} to {new}",
        )

    def _judge_election(
        self,
        image: ClusterImage,
        topic: TopicImage,
        old: PartitionImage,
        new: PartitionImage,
        reason: Reason | None,
        key: LogKey,
    ) -> None:
        name = f"{topic.name}-{new.index}"
        if reason is Reason.UNCLEAN_ELECTION:
            self.seen["unclean"] += 1
            able = [one for one in (*old.isr, *old.elr) if can_lead(image, new, one)]
            self.check(not able, lambda: f"I20: an unclean election of {name}, but {able} can lead: {old} to {new}")
            # With write.caching, any replica may be elected once none is known to hold all committed records.
            given_up = (not old.isr and not old.elr) or Spot(topic.name, new.index) in self.asked_uncleanly
            allowed = topic.name in self.unclean or (topic.name in self.caching and given_up)
            self.check(allowed, lambda: f"I20: an unclean election of {name}: {old} to {new}")
            self.on_unclean(Election(key, new.leader_epoch))
            return
        sound = {*old.isr, *old.elr}
        if reason in (Reason.REASSIGNMENT_COMPLETED, None):
            sound.update(new.isr)
        self.check(new.leader in sound, lambda: f"I20: {new.leader}, out of sync, is elected in {name}: {old} to {new}")
        if new.leader not in old.isr and new.leader in old.elr:
            self.seen["elected out of the elr"] += 1
        self.on_elected(Election(key, new.leader_epoch), old, new)


def can_lead(image: ClusterImage, partition: PartitionImage, broker_id: int) -> bool:
    """Return whether the broker is active, and its replica is in a working directory."""
    broker, replica = image.brokers.get(broker_id), partition.replica(broker_id)
    return (
        broker is not None and broker.active and replica is not None and broker.directory_online(replica.directory_id)
    )


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
