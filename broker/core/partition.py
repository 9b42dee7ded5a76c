"""One replica of one partition: what it may acknowledge, show and propose.  Pure; the shell owns log, clock and wires.

Theory of operation
-------------------
A replica is a leader or a follower, never both; each role has its own class, so that neither can read the other's
state.

**Positions.**  A follower's fetch offset is its *flushed* end, so the position that a leader keeps of it is what that
disk would still have after a power cut.  The leader's own position is its flushed end, too: its unflushed tail counts
for nobody.  A position counts only from a fetch of this leader epoch, by the broker epoch that the image knows, at an
offset that the leader's epoch history confirms; anything else could acknowledge bytes of another history.  So a
position is an offset *and* the epoch of the record before it.  Both sides still know that epoch when retention has
deleted the record, and a replica that starts over is given it with its new start.

**Watermark.**  The lowest position over the *maximal* ISR: the committed one plus every addition that was ever proposed
at this partition epoch and might still be accepted.  A proposed removal does not count before it is committed.  So,
whichever ISR the controller elects from, each member holds everything below the watermark.  It stays where it is while
the committed ISR is smaller than the minimum (KAFKA-15583), and never goes back.

**Proposals.**  An ISR change is a compare-and-set on the partition epoch.  Once sent, it is in force, as far as the
watermark is concerned, until the metadata log shows a higher partition epoch, or a definite refusal arrives.  No answer
(timeout, connection, NOT_CONTROLLER) says nothing: an earlier copy may still be accepted.  Then its additions stay in
the maximal ISR, and whatever is proposed next, under the same partition epoch, decides the matter: at most one of
them can win.  A refusal that follows an unanswered copy is therefore not yet definite: the committed ISR itself is
proposed, and its acceptance moves the partition epoch past every copy.

**Joining.**  A follower may join when it has everything below the watermark and reached the offset at which this leader
began (else it could miss what the previous leader acknowledged: KIP-279), when its fetch came under the broker epoch
of the image (KAFKA-15221: a rebooted follower's old fetch must not vouch for it), and when it is not fenced.

**Leaving.**  A follower leaves when it has not had everything that the leader had for `lag_max_ms`; one that fetches
no more is never "caught up", also when nothing is written.  If `lag_max_bytes` is set, it leaves at once when it lacks
more than that, and joins only when it lacks less; one that has not fetched from this leader yet is given its time.

**Election.**  A new leader starts from the watermark that it knew as a follower, which may be low, as far as its disk
goes: nobody has waited for the disk of an unclean one.  Until it has passed the log end at election, `latest` is
unknown: an older leader may have shown more (design §6).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple, Protocol

from broker.core.epochs import EpochCache
from broker.core.errors import Code

UNKNOWN_END = -1
ACKS_ALL = -1
ACKS_LEADER = 1
ACKS_NONE = 0


class Assignment(NamedTuple):
    """What the committed image says of a partition."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    adding: tuple[int, ...] = ()
    """Of the replicas, those that a reassignment is adding."""


class Cluster(Protocol):
    """What a leader asks the image about brokers."""

    def broker_epoch(self, broker_id: int) -> int:
        """-1 when it is not registered."""
        ...

    def may_join(self, broker_id: int) -> bool:
        """Registered, unfenced, not shutting down."""
        ...


class Limits(NamedTuple):
    """min_isr: min.insync.replicas as configured; never above the replication factor in force."""

    lag_max_ms: int
    min_isr: int
    lag_max_bytes: int = -1
    """-1: any number."""
    retry_ms: int = 500
    """Before a proposal that was refused or not answered is made again."""
    overdue_ms: int = 5_000
    """Before one that was accepted, or overtaken, is made again because the log has shown nothing."""


@dataclass(slots=True)
class Contact:
    """When a follower's fetcher was last heard.  One for all partitions of a session: a fetch writes it once."""

    last_fetch_ms: int


@dataclass(slots=True)
class FollowerPosition:
    """What a leader knows of one follower.

    end: its flushed end; UNKNOWN_END until it has fetched under this leader.
    caught_up_ms: when it last had all that the leader had.
    contact: None when no session of its fetcher lists this partition.
    """

    caught_up_ms: int
    end: int = UNKNOWN_END
    broker_epoch: int = -1
    contact: Contact | None = None
    leader_end_seen: int = UNKNOWN_END
    last_fetch_ms: int = 0


class Proposal(NamedTuple):
    """An ISR for the controller: (broker id, broker epoch) in assignment order."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(broker_id for broker_id, _ in self.isr)


class Answer(Enum):
    """What became of a proposal."""

    ACCEPTED = auto()  # the log will show it
    REFUSED = auto()  # definitely not accepted
    OVERTAKEN = auto()  # the partition has moved on; the log will show how
    UNKNOWN = auto()  # no usable answer; it may still be accepted


@dataclass(slots=True)
class PendingIsr:
    """The ISR changes proposed at one partition epoch.

    settled: `sent` was accepted or overtaken, and the metadata log does not show it yet.
    additions: members, beyond the committed ISR, of every proposal that might still be accepted.
    doubt: a proposal was never answered.
    """

    sent: Proposal | None = None
    settled: bool = False
    additions: set[int] = field(default_factory=set)
    doubt: bool = False
    not_before_ms: int = 0


class LeaderState:
    """The leader's half.  Offsets are ends, exclusive.

    size_from: bytes of the log from an offset on; asked only when the limits name bytes.
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
        self.followers = {id_: FollowerPosition(now_ms) for id_ in assignment.replicas if id_ != broker_id}
        self._pending = PendingIsr()
        self.advance()

    # -- what clients are told

    def latest_known(self) -> bool:
        """Whether `high_watermark` is at least all that an earlier leader may have shown."""
        return self.high_watermark >= self.epoch_start

    def admits(self, acks: int) -> Code:
        """Whether a produce may be appended."""
        if acks not in (ACKS_ALL, ACKS_LEADER, ACKS_NONE):
            return Code.INVALID_REQUIRED_ACKS
        if acks == ACKS_ALL and len(self.isr) < self.min_isr:
            return Code.NOT_ENOUGH_REPLICAS
        return Code.NONE

    def verdict(self, acks: int, end: int) -> Code | None:
        """The answer to a produce that ends at `end`; None = not yet."""
        if acks == ACKS_ALL:
            if self.high_watermark >= end:
                return Code.NONE
            return Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND if len(self.isr) < self.min_isr else None
        if acks == ACKS_LEADER:
            return Code.NONE if self.flushed_end >= end else None
        return Code.NONE

    @property
    def min_isr(self) -> int:
        """In force: replicas that are only being added do not count, as the controller does not count them."""
        return min(self.limits.min_isr, len(self.replicas) - len(self.adding))

    @property
    def under_replicated(self) -> bool:
        """Somebody is not in the ISR, those being added among them."""
        return len(self.isr) < len(self.replicas)

    @property
    def lacks_replicas(self) -> bool:
        """Somebody has left the ISR: those being added were never in it."""
        return any(id_ not in self.isr and id_ not in self.adding for id_ in self.replicas)

    def is_joining(self, broker_id: int) -> bool:
        """Is being added, and not in the ISR yet: what it fetches is the reassignment's."""
        return broker_id in self.adding and broker_id not in self.isr

    @property
    def has_pending_isr(self) -> bool:
        """Whether a proposal is not decided yet, so that `propose` must be called again soon."""
        return self._pending.sent is not None or self._pending.doubt

    # -- what happens to the log and its followers; each returns whether the watermark moved

    def on_appended(self, log_end: int) -> None:
        assert log_end >= self.log_end, (log_end, self.log_end)
        for follower in self.followers.values():
            self._settle_contact(follower)  # until now it had everything
        self.log_end = log_end

    def on_flushed(self, flushed_end: int) -> bool:
        self.flushed_end = max(self.flushed_end, min(flushed_end, self.log_end))
        return self.advance()

    def on_fetch(self, broker_id: int, broker_epoch: int, end: int, now_ms: int, contact: Contact | None) -> bool:
        """A follower fetches from `end`, which the caller has checked: epoch history, bounds of the log."""
        assert end <= self.log_end, (end, self.log_end)
        follower = self.followers.get(broker_id)
        if follower is None or broker_epoch < max(follower.broker_epoch, self.cluster.broker_epoch(broker_id)):
            return False
        if broker_epoch > follower.broker_epoch:
            # Another incarnation: what the one before has had says nothing of this one.
            follower.broker_epoch = broker_epoch
            follower.leader_end_seen = UNKNOWN_END
        if end >= self.log_end:
            follower.caught_up_ms = max(follower.caught_up_ms, now_ms)
        elif follower.leader_end_seen != UNKNOWN_END and end >= follower.leader_end_seen:
            follower.caught_up_ms = max(follower.caught_up_ms, follower.last_fetch_ms)
        follower.end = end
        follower.contact = contact
        follower.leader_end_seen = self.log_end
        follower.last_fetch_ms = now_ms
        return self.advance()

    def on_fetch_stopped(self, broker_id: int, contact: Contact | None) -> None:
        """A session that listed this partition ended or dropped it; what is still listed elsewhere stays."""
        follower = self.followers.get(broker_id)
        if follower is not None and follower.contact is contact:
            self._settle_contact(follower)
            follower.contact = None

    def on_assignment(self, assignment: Assignment, now_ms: int) -> bool:
        """The log shows a newer partition epoch under the same leader epoch.  An older one changes nothing."""
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
        """Other limits from now on: under a lower minimum more may be committed."""
        self.limits = limits
        return self.advance()

    def maximal_isr(self) -> frozenset[int]:
        return frozenset(self.isr) | self._pending.additions

    def advance(self) -> bool:
        """Move the watermark as far as the maximal ISR carries it; what is committed already needs this disk alone."""
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
        """What to send to the controller now, if anything; it is in force from this moment.

        The caller sends it and gives the answer to `on_answer`; until then there is no other.
        """
        pending = self._pending
        if now_ms < pending.not_before_ms or (pending.sent is not None and not pending.settled):
            return None
        wanted = self.wanted_isr(now_ms)
        if pending.settled:
            # Accepted or overtaken, and the log is late: the same again, or what is right by now.
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
        """The controller answered, or did not.  Returns whether the watermark moved."""
        pending = self._pending
        if pending.sent is not proposal:
            return False  # the log was faster
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
        """The ISR as the positions of this moment have it, in assignment order."""
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
            and follower.broker_epoch == self.cluster.broker_epoch(broker_id)
            and self.cluster.may_join(broker_id)
        )

    def _lacks_too_much(self, end: int) -> bool:
        most = self.limits.lag_max_bytes
        return most >= 0 and UNKNOWN_END < end < self.log_end and self._size_from(end) > most

    def _settle_contact(self, follower: FollowerPosition) -> None:
        """A session leaves out what has not changed: a caught-up follower's fetch says "still caught up" for all."""
        if follower.contact is not None and follower.end >= self.log_end:
            follower.caught_up_ms = max(follower.caught_up_ms, follower.contact.last_fetch_ms)


class Divergence(NamedTuple):
    """The largest epoch that both histories may share, and where it ends for the leader."""

    epoch: int
    end: int


def check_position(
    fetch_offset: int, last_fetched_epoch: int, log_start: int, epochs: EpochCache, *, is_replica: bool
) -> Divergence | Code:
    """Compare a fetcher's position with the leader's history; Code.NONE when it fits.

    last_fetched_epoch: -1 when the fetcher does not know it.  A consumer's position is then only held to the bounds of
    the log.  A replica's fits only if the leader does not know that epoch either, because both logs begin there: else
    an empty log that ends at an offset of another history would count as having this one up to there.
    """
    if fetch_offset < log_start:
        return Code.OFFSET_OUT_OF_RANGE
    if last_fetched_epoch < 0:
        if is_replica:
            fits = fetch_offset == log_start and epochs.epoch_of(log_start - 1) < 0
        else:
            fits = fetch_offset <= epochs.end_offset
        return Code.NONE if fits else Code.OFFSET_OUT_OF_RANGE
    epoch, end = epochs.end_of(min(last_fetched_epoch, epochs.latest))
    if epoch < last_fetched_epoch or end < fetch_offset:
        return Divergence(epoch, end)
    return Code.NONE


def check_leader_epoch(current_leader_epoch: int, leader_epoch: int) -> Code:
    """What a fetcher believes against what is; -1 believes nothing."""
    if current_leader_epoch in (-1, leader_epoch):
        return Code.NONE
    return Code.FENCED_LEADER_EPOCH if current_leader_epoch < leader_epoch else Code.UNKNOWN_LEADER_EPOCH


# -- the follower's half


class SentPosition(NamedTuple):
    """What a fetch request said of one partition."""

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
    """It answers a question that is no longer ours."""


class TruncateTo(NamedTuple):
    end: int


class RestartAt(NamedTuple):
    """Our log shares nothing with what the leader still has: drop it and start where the leader's log does.

    epoch: of the record before `start`; -1 when the leader did not say.
    """

    start: int
    epoch: int = -1


class AppendRecords(NamedTuple):
    """Append the batches, if any; then the watermark may move up to this."""

    high_watermark: int


class StandBack(NamedTuple):
    """The leader cannot serve us now: ask again later, or as soon as the log names another leader."""

    code: int


FollowerStep = Drop | TruncateTo | RestartAt | AppendRecords | StandBack


class FollowerState:
    """The follower's half."""

    def __init__(self, leader_id: int, leader_epoch: int, high_watermark: int) -> None:
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.high_watermark = high_watermark

    def on_reply(
        self,
        sent: SentPosition,
        reply: LeaderReply,
        log_start: int,
        epochs: EpochCache,
    ) -> FollowerStep:
        """What to do with a reply.  Divergence comes before the watermark (KAFKA-14704).

        sent: the question that this answers; a reply to another epoch or position is dropped (KAFKA-18991).  The same
        offset may be another position: after a truncation the log has grown back to it, with another last epoch.

        log_start, epochs: of our log.  If the histories part below its start, what was deleted here cannot be told from
        what the leader has: the replica starts over (after an unclean election only).
        """
        log_end = epochs.end_offset
        if sent != (self.leader_epoch, log_end, epochs.last_epoch):
            return Drop()
        # Without records and an epoch there is nothing that could be compared, wherever the log ends.
        shares_nothing = reply.log_start > log_end or (log_start == log_end and sent.last_fetched_epoch < 0)
        if reply.code == Code.OFFSET_OUT_OF_RANGE and reply.log_start >= 0 and shares_nothing:
            return RestartAt(reply.log_start, -1 if reply.diverging is None else reply.diverging.epoch)
        if reply.code != Code.NONE:
            return StandBack(reply.code)
        if reply.diverging is not None:
            return _part_ways(reply.diverging, reply.log_start, log_start, epochs)
        if reply.first_offset not in (UNKNOWN_END, log_end):
            return StandBack(Code.CORRUPT_MESSAGE)
        return AppendRecords(reply.high_watermark)

    def watermark_after(self, leader_high_watermark: int, log_end: int) -> bool:
        """Take the leader's watermark, as far as our log goes; never backwards.  Returns whether it moved."""
        watermark = min(leader_high_watermark, log_end)
        if watermark <= self.high_watermark:
            return False
        self.high_watermark = watermark
        return True

    def on_truncated(self, log_end: int) -> None:
        self.high_watermark = min(self.high_watermark, log_end)


def _part_ways(diverging: Divergence, leaders_start: int, log_start: int, epochs: EpochCache) -> FollowerStep:
    """Decide what a follower does when its history differs from the leader's from some offset on."""
    if diverging.epoch > epochs.last_epoch or leaders_start < 0:
        return StandBack(Code.CORRUPT_MESSAGE)  # no answer to what was asked
    end = truncation_point(diverging, epochs)
    return TruncateTo(end) if end >= log_start else RestartAt(leaders_start)


def truncation_point(diverging: Divergence, epochs: EpochCache) -> int:
    """Where a follower cuts: the end of what both may share.  Below the log's start: it shares nothing that it has.

    When it does not know the leader's epoch, it cuts at the end of its own largest smaller one, and asks again; each
    round goes down an epoch, so it ends.
    """
    epoch, end = epochs.end_of(diverging.epoch)
    shared = min(end, diverging.end) if epoch == diverging.epoch else end
    return min(shared, epochs.end_offset)
