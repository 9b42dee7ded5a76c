"""One replica of one partition: decides about acknowledgements, the watermark and ISR proposals.  Pure.

Theory of operation
-------------------
A replica is a leader or a follower, never both; each role has its own class, so that neither can read the other's
state.

**Positions.** A follower's fetch offset is its *flushed* end.  So its position at the leader covers only records that
its disk would still have after a power failure.  The leader's own position is also its flushed end; its unflushed tail
never counts.  With `write.caching`, records count as flushed once they are written.  A position counts only if the
fetch names this leader epoch, if its broker epoch is not older than the one in the image, and if the leader's epoch
history confirms its offset.  Any other position could acknowledge bytes of another history.  So a position is an offset
*and* the epoch of the record before it.  Both sides still know that epoch when retention has deleted the record.  A
replica that starts over receives this epoch with its new start.

**Watermark.**  The watermark is the lowest position in the *maximal* ISR.  That is the committed ISR plus every
addition that was proposed at this partition epoch and might still be accepted.  A proposed removal does not count
before it is committed.  So each member of any ISR that the controller may elect from holds everything below the
watermark.  While the committed ISR is smaller than the minimum, the watermark rises at most to the watermark that this
leader knew at its election (KAFKA-15583).  It never moves back.

**Proposals.**  An ISR change is a compare-and-set on the partition epoch.  For the watermark, a proposal is in force
from the moment it is sent until the metadata log shows a higher partition epoch or a definite refusal arrives.  A
missing answer (timeout, connection, NOT_CONTROLLER) decides nothing: a copy of the request may still be in transit, and
may still be accepted.  The additions of the proposal then stay in the maximal ISR, even if a later proposal under the
same partition epoch is refused.  So the leader proposes again, even if the proposal equals the committed ISR.  At most
one proposal under a partition epoch is accepted, and its acceptance moves the partition epoch past every copy.

**Joining.**  A follower may join under these conditions.  It is within the limits on lag (see **Leaving**).  It has
everything below the watermark.  It has reached the offset at which this leader began; otherwise it could lack records
that the previous leader acknowledged (KIP-279).  Its fetch came under the broker epoch of the image; otherwise a fetch
from before a reboot could vouch for it (KAFKA-15221).  Its broker is active: neither fenced nor shutting down.  Its
durable log start has reached every answered deletion, including those that were answered while its broker was not
active.  Otherwise deleted records could reappear if it became leader.

**Leaving.** A follower leaves when it has not been caught up for `lag_max_ms`.  A follower that has stopped fetching is
never caught up, even if nothing is written.  If `lag_max_bytes` is set, a follower leaves immediately when it lacks
more bytes than that, and joins only when it does not.  This bound applies from its first fetch from this leader on.

**Election.**  A new leader starts from the watermark that it knew as a follower, which may be low.  It never starts
above its flushed end: after an unclean election, its disk may lack committed records.  Until the watermark has reached
the log end at election, `latest` is unknown: an earlier leader may have reported a later offset.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple, Protocol

from broker.core.epochs import EpochCache
from quorumlog.wire.errors import KafkaCode

UNKNOWN_END = -1
ACKS_ALL = -1
ACKS_LEADER = 1
ACKS_NONE = 0


class Assignment(NamedTuple):
    """The state of a partition in the committed image."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    adding: tuple[int, ...] = ()
    """The replicas that a reassignment is adding; a subset of `replicas`."""


class Cluster(Protocol):
    """The facts about brokers that a leader looks up in the image."""

    def broker_epoch(self, broker_id: int) -> int:
        """Return the broker's epoch; -1 if it is not registered."""
        ...

    def may_join(self, broker_id: int) -> bool:
        """Return whether the broker is registered, unfenced and not shutting down."""
        ...


class Limits(NamedTuple):
    """The limits of a partition.  min_isr: min.insync.replicas as configured; `LeaderState.min_isr` is in force."""

    lag_max_ms: int
    min_isr: int
    lag_max_bytes: int = -1
    """-1: no limit."""
    retry_ms: int = 500
    """Time before a proposal that was refused or not answered is repeated.  It does not grow, because Produce requests
    may be waiting."""
    overdue_ms: int = 5_000
    """Time before a proposal that was accepted or overtaken is repeated, because the metadata log does not show it."""


@dataclass(slots=True)
class Contact:
    """The time of a fetcher's last request.  All partitions of a session share it, so that a fetch writes it once."""

    last_fetch_ms: int


@dataclass(slots=True)
class FollowerPosition:
    """A leader's knowledge of one follower.

    end: its flushed end; UNKNOWN_END until it has fetched under this leader.
    caught_up_ms: the last time at which it had everything that the leader had.
    log_start: its durable log start; UNKNOWN_END until it has fetched under this leader.
    contact: None when no session of its fetcher lists this partition.
    last_fetch_ms, leader_end_seen: the time of its last fetch of this partition, and the leader's log end at that time.
    """

    caught_up_ms: int
    end: int = UNKNOWN_END
    broker_epoch: int = -1
    contact: Contact | None = None
    leader_end_seen: int = UNKNOWN_END
    last_fetch_ms: int = 0
    log_start: int = UNKNOWN_END


class Proposal(NamedTuple):
    """An ISR for the controller: (broker id, broker epoch) in assignment order."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(broker_id for broker_id, _ in self.isr)


class Answer(Enum):
    """The outcome of a proposal."""

    ACCEPTED = auto()  # the metadata log will show the change
    REFUSED = auto()  # definitely not accepted
    OVERTAKEN = auto()  # the partition has changed meanwhile; the metadata log will show how
    UNKNOWN = auto()  # no usable answer; the proposal may still be accepted


@dataclass(slots=True)
class PendingIsr:
    """The ISR changes proposed at one partition epoch.

    settled: `sent` was accepted or overtaken, but the metadata log does not show that yet.
    additions: members, beyond the committed ISR, of all proposals that might still be accepted.
    doubt: the outcome of a proposal is unknown.
    """

    sent: Proposal | None = None
    settled: bool = False
    additions: set[int] = field(default_factory=set)
    doubt: bool = False
    not_before_ms: int = 0


class LeaderState:
    """The state of a leader.  Offsets are ends, exclusive.

    size_from: returns the size in bytes of the log from an offset on; called only if `lag_max_bytes` is set.
    log_start: the durable log start.  It covers every deletion that an earlier leader has answered, if this leader was
        elected from the ISR.
    """

    def __init__(
        self,
        broker_id: int,
        assignment: Assignment,
        *,
        log_end: int,
        flushed_end: int,
        high_watermark: int,
        cluster: Cluster,
        limits: Limits,
        now_ms: int,
        size_from: Callable[[int], int] = lambda offset: 0,
        log_start: int = 0,
    ) -> None:
        assert assignment.leader == broker_id, (assignment, broker_id)
        assert high_watermark <= log_end, (high_watermark, log_end)
        assert flushed_end <= log_end, (flushed_end, log_end)
        self.broker_id = broker_id
        self.replicas = assignment.replicas
        self.adding = assignment.adding
        self.isr = assignment.isr
        self.leader_epoch = assignment.leader_epoch
        self.partition_epoch = assignment.partition_epoch
        self.epoch_start = log_end
        self.log_end = log_end
        self.flushed_end = flushed_end
        self.high_watermark = min(high_watermark, flushed_end)
        self._inherited = high_watermark
        self.cluster = cluster
        self.limits = limits
        self._size_from = size_from
        self._deleted_below = log_start
        self.followers = {id_: FollowerPosition(now_ms) for id_ in assignment.replicas if id_ != broker_id}
        self._pending = PendingIsr()
        self.advance()

    # -- answers to clients

    def latest_known(self) -> bool:
        """Return whether `high_watermark` has reached everything that an earlier leader may have shown."""
        return self.high_watermark >= self.epoch_start

    def admits(self, acks: int) -> KafkaCode:
        """Return NONE if a produce with `acks` may be appended, else the error."""
        if acks not in (ACKS_ALL, ACKS_LEADER, ACKS_NONE):
            return KafkaCode.INVALID_REQUIRED_ACKS
        if acks == ACKS_ALL and len(self.isr) < self.min_isr:
            return KafkaCode.NOT_ENOUGH_REPLICAS
        return KafkaCode.NONE

    def verdict(self, acks: int, end: int) -> KafkaCode | None:
        """Return the answer to a produce that ends at `end`; None if it must wait."""
        if acks == ACKS_ALL:
            if self.high_watermark >= end:
                return KafkaCode.NONE
            return KafkaCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND if len(self.isr) < self.min_isr else None
        if acks == ACKS_LEADER:
            return KafkaCode.NONE if self.flushed_end >= end else None
        return KafkaCode.NONE

    @property
    def min_isr(self) -> int:
        """The minimum ISR in force.  Replicas that are being added do not count, as in the controller."""
        return min(self.limits.min_isr, len(self.replicas) - len(self.adding))

    @property
    def under_replicated(self) -> bool:
        """Return whether any replica, including those that are being added, is not in the ISR."""
        return len(self.isr) < len(self.replicas)

    @property
    def lacks_replicas(self) -> bool:
        """Return whether a replica has left the ISR.  Replicas that are being added do not count."""
        return any(id_ not in self.isr and id_ not in self.adding for id_ in self.replicas)

    def is_joining(self, broker_id: int) -> bool:
        """Return whether the broker is being added and not in the ISR yet; its fetches are reassignment traffic."""
        return broker_id in self.adding and broker_id not in self.isr

    @property
    def has_pending_isr(self) -> bool:
        """Return whether a proposal is undecided, so that `propose` must be called again soon."""
        return self._pending.sent is not None or self._pending.doubt

    # -- events of the log and its followers; unless stated otherwise, they return whether the watermark moved

    def on_appended(self, log_end: int) -> None:
        assert log_end >= self.log_end, (log_end, self.log_end)
        for follower in self.followers.values():
            self._settle_contact(follower)  # before `log_end` moves: the follower may have been caught up until now
        self.log_end = log_end

    def on_flushed(self, flushed_end: int) -> bool:
        self.flushed_end = max(self.flushed_end, min(flushed_end, self.log_end))
        return self.advance()

    def on_fetch(self, broker_id: int, broker_epoch: int, end: int, now_ms: int, contact: Contact | None) -> bool:
        """Process a follower's fetch from `end`.  The caller has checked the position against the epoch history."""
        assert end <= self.log_end, (end, self.log_end)
        follower = self.followers.get(broker_id)
        if follower is None or broker_epoch < max(follower.broker_epoch, self.cluster.broker_epoch(broker_id)):
            return False
        if broker_epoch > follower.broker_epoch:
            # Another incarnation: the state of the previous one proves nothing about its log.
            follower.broker_epoch = broker_epoch
            follower.leader_end_seen = UNKNOWN_END
            follower.log_start = UNKNOWN_END
        if end >= self.log_end:
            follower.caught_up_ms = max(follower.caught_up_ms, now_ms)
        elif follower.leader_end_seen != UNKNOWN_END and end >= follower.leader_end_seen:
            follower.caught_up_ms = max(follower.caught_up_ms, follower.last_fetch_ms)
        follower.end = end
        follower.contact = contact
        follower.leader_end_seen = self.log_end
        follower.last_fetch_ms = now_ms
        return self.advance()

    def on_log_start(self, broker_id: int, broker_epoch: int, log_start: int) -> bool:
        """Note the log start that a follower's fetch names, after `on_fetch`.  Return whether it has changed."""
        follower = self.followers.get(broker_id)
        if follower is None or follower.broker_epoch != broker_epoch or follower.log_start == log_start:
            return False
        follower.log_start = log_start
        return True

    def low_watermark(self, own_start: int) -> int:
        """Return the offset below which no replica of the ISR or of an active broker has records any more.

        Return UNKNOWN_END if one of these replicas has not fetched yet.  A replica that an undecided proposal may still
        admit counts as a member of the ISR.
        own_start: the leader's durable log start.
        """
        members = self.maximal_isr()
        starts = [
            follower.log_start
            for id_, follower in self.followers.items()
            if id_ in members or self.cluster.may_join(id_)
        ]
        return min([own_start, *starts])

    def on_deleted(self, offset: int) -> None:
        """Note that a deletion below `offset` is answered.  A replica joins only once its log start is that high."""
        self._deleted_below = max(self._deleted_below, offset)

    def on_fetch_stopped(self, broker_id: int, contact: Contact | None) -> None:
        """Note that a session no longer lists this partition.  A newer session that lists it is not affected."""
        follower = self.followers.get(broker_id)
        if follower is not None and follower.contact is contact:
            self._settle_contact(follower)
            follower.contact = None

    def on_assignment(self, assignment: Assignment, now_ms: int) -> bool:
        """Apply a newer partition epoch under the same leader epoch.  An older assignment changes nothing."""
        assert assignment.leader_epoch == self.leader_epoch, (assignment, self.leader_epoch)
        assert assignment.leader == self.broker_id, (assignment, self.broker_id)
        if assignment.partition_epoch <= self.partition_epoch:
            return False
        self.partition_epoch = assignment.partition_epoch
        self.replicas = assignment.replicas
        self.adding = assignment.adding
        self.isr = assignment.isr
        self._pending = PendingIsr()
        known = self.followers
        self.followers = {
            id_: known.get(id_) or FollowerPosition(now_ms) for id_ in assignment.replicas if id_ != self.broker_id
        }
        return self.advance()

    def on_limits(self, limits: Limits) -> bool:
        """Replace the limits.  A lower minimum may commit more records."""
        self.limits = limits
        return self.advance()

    def maximal_isr(self) -> frozenset[int]:
        """Return the committed ISR with all additions that might still be accepted."""
        return frozenset(self.isr) | self._pending.additions

    def advance(self) -> bool:
        """Move the watermark as far as the maximal ISR permits; return whether it moved.

        Records that were committed before this leader began need only be flushed on this broker.
        """
        end = min(self._inherited, self.flushed_end)
        if len(self.isr) >= self.min_isr:
            end = max(end, self._carried_end())
        if end <= self.high_watermark:
            return False
        self.high_watermark = end
        return True

    def _carried_end(self) -> int:
        end = self.flushed_end
        for broker_id in self.isr:
            if broker_id != self.broker_id:
                end = min(end, self._end_of(broker_id))
        for broker_id in self._pending.additions:
            end = min(end, self._end_of(broker_id))
        return end

    def _end_of(self, broker_id: int) -> int:
        follower = self.followers.get(broker_id)
        return UNKNOWN_END if follower is None else follower.end

    # -- ISR proposals

    def propose(self, now_ms: int) -> Proposal | None:
        """Return the proposal to send to the controller now, or None.  It is in force from this moment.

        The caller sends it and passes the answer to `on_answer`.  Until then there is no other proposal.
        """
        pending = self._pending
        if now_ms < pending.not_before_ms or (pending.sent is not None and not pending.settled):
            return None
        wanted = self.wanted_isr(now_ms)
        if pending.settled:
            # The proposal was accepted or overtaken, but the metadata log is late.  So propose again, now according to
            # the current positions.
            pending.doubt = True
        if wanted == self.isr and not pending.doubt:
            return None
        proposal = Proposal(
            self.leader_epoch,
            self.partition_epoch,
            tuple((id_, self.cluster.broker_epoch(id_)) for id_ in wanted),
        )
        pending.sent = proposal
        pending.settled = False
        pending.additions.update(set(wanted) - set(self.isr))
        return proposal

    def on_answer(self, proposal: Proposal, answer: Answer, now_ms: int) -> bool:
        """Process the controller's answer, or its absence; return whether the watermark moved."""
        pending = self._pending
        if pending.sent is not proposal:
            return False  # the metadata log has already decided the proposal
        match answer:
            case Answer.ACCEPTED | Answer.OVERTAKEN:
                pending.settled = True
                pending.not_before_ms = now_ms + self.limits.overdue_ms
            case Answer.UNKNOWN:
                pending.sent = None
                pending.doubt = True
                pending.not_before_ms = now_ms + self.limits.retry_ms
            case Answer.REFUSED:
                pending.sent = None
                pending.not_before_ms = now_ms + self.limits.retry_ms
                if not pending.doubt:
                    pending.additions.clear()
                    return self.advance()
        return False

    def wanted_isr(self, now_ms: int) -> tuple[int, ...]:
        """Return the ISR according to the current positions, in assignment order; first renew each `caught_up_ms`."""
        return tuple(id_ for id_ in self.replicas if id_ == self.broker_id or self._in_sync(id_, now_ms))

    def _in_sync(self, broker_id: int, now_ms: int) -> bool:
        follower = self.followers[broker_id]
        self._settle_contact(follower)
        if now_ms - follower.caught_up_ms > self.limits.lag_max_ms:
            return False
        if self._lacks_too_much(follower.end):
            return False
        if broker_id in self.isr:
            return True
        return (
            follower.end >= self.high_watermark
            and follower.end >= self.epoch_start
            and max(follower.log_start, 0) >= self._deleted_below
            and follower.broker_epoch == self.cluster.broker_epoch(broker_id)
            and self.cluster.may_join(broker_id)
        )

    def _lacks_too_much(self, end: int) -> bool:
        most = self.limits.lag_max_bytes
        return most >= 0 and UNKNOWN_END < end < self.log_end and self._size_from(end) > most

    def _settle_contact(self, follower: FollowerPosition) -> None:
        """Renew `caught_up_ms` of a caught-up follower from its session's last fetch.

        A fetch leaves out unchanged partitions.  So it confirms all caught-up partitions of the session.
        """
        if follower.contact is not None and follower.end >= self.log_end:
            follower.caught_up_ms = max(follower.caught_up_ms, follower.contact.last_fetch_ms)


class Divergence(NamedTuple):
    """The largest epoch that both histories may share, with its end offset in the leader's log."""

    epoch: int
    end: int


def check_position(
    fetch_offset: int, last_fetched_epoch: int, log_start: int, epochs: EpochCache, *, is_replica: bool
) -> Divergence | KafkaCode:
    """Compare a fetcher's position with the leader's history; return KafkaCode.NONE if it fits.

    Return OFFSET_OUT_OF_RANGE if the position is below `log_start`, or has no epoch and does not fit.  Return a
    Divergence if the epochs show that the histories differ.

    last_fetched_epoch: -1 if the fetcher does not know it.  A consumer's position must then only be within the bounds
    of the log.  A replica's position then fits only at the leader's log start, and only if the leader does not know the
    epoch before it either.  Otherwise an empty log that ends at an offset of another history would count as a copy of
    the leader's log.
    """
    if fetch_offset < log_start:
        return KafkaCode.OFFSET_OUT_OF_RANGE
    if last_fetched_epoch < 0:
        if is_replica:
            fits = fetch_offset == log_start and epochs.epoch_of(log_start - 1) < 0
        else:
            fits = fetch_offset <= epochs.end_offset
        return KafkaCode.NONE if fits else KafkaCode.OFFSET_OUT_OF_RANGE
    epoch, end = epochs.end_of(min(last_fetched_epoch, epochs.latest))
    if epoch < last_fetched_epoch or end < fetch_offset:
        return Divergence(epoch, end)
    return KafkaCode.NONE


def check_leader_epoch(current_leader_epoch: int, leader_epoch: int) -> KafkaCode:
    """Compare the leader epoch that a fetcher knows (-1: it states none) with the leader's epoch."""
    if current_leader_epoch in (-1, leader_epoch):
        return KafkaCode.NONE
    return KafkaCode.FENCED_LEADER_EPOCH if current_leader_epoch < leader_epoch else KafkaCode.UNKNOWN_LEADER_EPOCH


# -- the follower


class SentPosition(NamedTuple):
    """The position of one partition in a fetch request."""

    leader_epoch: int
    offset: int
    last_fetched_epoch: int


class LeaderReply(NamedTuple):
    """One partition of a fetch reply, without its bytes."""

    code: int
    high_watermark: int
    log_start: int
    diverging: Divergence | None
    """With OFFSET_OUT_OF_RANGE: the epoch of the record before the leader's log start, if the leader knows it."""
    first_offset: int
    """Base offset of the first batch; UNKNOWN_END when there is none."""


class Drop(NamedTuple):
    """Drop the reply: it answers an outdated position."""


class TruncateTo(NamedTuple):
    end: int


class RestartAt(NamedTuple):
    """Drop the log and start where the leader's log starts, because the two logs share nothing.

    epoch: epoch of the record before `start`; -1 if the leader did not state it.
    """

    start: int
    epoch: int = -1


class AppendRecords(NamedTuple):
    """Append the batches, if any.  Then the watermark may move up to `high_watermark`."""

    high_watermark: int


class DelayFetch(NamedTuple):
    """Fetch this partition again after a back-off, because the leader cannot serve it now.

    If another leader is elected meanwhile, the follower fetches from it at once.

    code: the leader's error, or CORRUPT_MESSAGE for a reply that cannot be correct.
    """

    code: int


FollowerStep = Drop | TruncateTo | RestartAt | AppendRecords | DelayFetch


class FollowerState:
    """The state of a follower.

    leader_watermark: the highest watermark that the leader has reported; it may be past this log's end.
    agrees: the leader has confirmed, under this leader epoch, that its log contains this log.  Until then, the
        records below the watermark may belong to a history that an unclean election discarded.
    """

    def __init__(self, leader_id: int, leader_epoch: int, high_watermark: int) -> None:
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.high_watermark = high_watermark
        self.leader_watermark = high_watermark
        self.agrees = False

    def on_reply(
        self,
        sent: SentPosition,
        reply: LeaderReply,
        log_start: int,
        epochs: EpochCache,
    ) -> FollowerStep:
        """Return the step that follows from a reply.  A divergence is handled before the watermark moves (KAFKA-14704).

        sent: the position that the reply answers.  A reply for another epoch or position is dropped (KAFKA-18991).  The
        same offset may be another position: after a truncation the log may reach it again with another last epoch.

        log_start, epochs: of this follower's log.  If the histories diverge below its start, the deleted records cannot
        be compared with the leader's.  The replica then starts over.  This happens only after an unclean election.
        The replica also starts over if all its records lie below the leader's log start, because the leader no longer
        knows the epochs there.
        """
        log_end = epochs.end_offset
        if sent != (self.leader_epoch, log_end, epochs.last_epoch):
            return Drop()
        # A log without records and without an epoch has nothing to compare, regardless of its end offset.
        shares_nothing = reply.log_start > log_end or (log_start == log_end and sent.last_fetched_epoch < 0)
        if reply.code == KafkaCode.OFFSET_OUT_OF_RANGE and reply.log_start >= 0 and shares_nothing:
            return RestartAt(reply.log_start, -1 if reply.diverging is None else reply.diverging.epoch)
        if reply.code != KafkaCode.NONE:
            return DelayFetch(reply.code)
        if reply.diverging is not None:
            return _resolve_divergence(reply.diverging, reply.log_start, log_start, epochs)
        if reply.first_offset not in (UNKNOWN_END, log_end):
            return DelayFetch(KafkaCode.CORRUPT_MESSAGE)
        if log_start < log_end < reply.log_start:
            # A client deleted a part of the leader's first batch, which begins at this log's end (KAFKA-6975).
            return RestartAt(reply.log_start)
        self.agrees = True
        return AppendRecords(reply.high_watermark)

    def on_leader_watermark(self, leader_high_watermark: int, log_end: int) -> bool:
        """Advance to the leader's watermark, up to this log's end; never move back.  Return whether it moved."""
        self.leader_watermark = max(self.leader_watermark, leader_high_watermark)
        watermark = min(leader_high_watermark, log_end)
        if watermark <= self.high_watermark:
            return False
        self.high_watermark = watermark
        return True

    def on_truncated(self, log_end: int) -> None:
        """Note that the log was truncated to this end.  The leader must confirm the rest of the log again."""
        self.high_watermark = min(self.high_watermark, log_end)
        self.agrees = False

    def missing(self, offset: int, log_end: int) -> KafkaCode:
        """Return the answer to a consumer whose position this log may not have reached yet (KIP-392).

        NONE if the log has reached the position.  OFFSET_NOT_AVAILABLE if the leader has committed the records before
        that position, so that they will arrive in this log.  Otherwise OFFSET_OUT_OF_RANGE: the consumer then asks the
        leader.
        """
        if offset <= log_end:
            return KafkaCode.NONE
        return KafkaCode.OFFSET_NOT_AVAILABLE if offset <= self.leader_watermark else KafkaCode.OFFSET_OUT_OF_RANGE


def _resolve_divergence(diverging: Divergence, leaders_start: int, log_start: int, epochs: EpochCache) -> FollowerStep:
    """Decide the action of a follower whose history differs from the leader's from some offset on."""
    if diverging.epoch > epochs.last_epoch or leaders_start < 0:
        return DelayFetch(KafkaCode.CORRUPT_MESSAGE)  # not a possible answer to the request
    end = truncation_point(diverging, epochs)
    return TruncateTo(end) if end >= log_start else RestartAt(leaders_start)


def truncation_point(diverging: Divergence, epochs: EpochCache) -> int:
    """Return the end of the history that both logs may share.

    If this end is below the log's start, the logs share no existing record.

    If the follower does not know the leader's epoch, it truncates to the end of its own largest smaller epoch and
    fetches again.  Each round moves to an earlier epoch, so the number of rounds is finite.
    """
    epoch, end = epochs.end_of(diverging.epoch)
    shared = min(end, diverging.end) if epoch == diverging.epoch else end
    return min(shared, epochs.end_offset)
