"""The invariants of the quorum, checked for all nodes of a run at every step of every core.

Theory of operation.  The watch sees the effects of each core, each write that becomes durable on a disk, each message
that is sent, each request that arrives, and each acknowledgement to a client.  It never compares two logs as a whole.
Instead it checks that batches with equal (offset, epoch) are equal and follow batches of equal epochs; by induction,
all logs then match.  Only the log of a new leader is compared with all committed batches (I7).  A violated invariant
raises `Violation`, which the product never catches.  The run ends there, and the message names the invariant
(docs/simulator.md lists I1 and so on).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from quorum.core.core import RaftCore
from quorum.core.events import (
    AdvanceHighWatermark,
    ConfirmRead,
    Effect,
    Event,
    ProposalAppended,
    ReadConfirmed,
    RequestReceived,
    RoleChanged,
    SendReply,
    Tick,
    Write,
)
from quorum.core.messages import (
    BeginQuorumEpoch,
    EndQuorumEpoch,
    EndQuorumEpochReply,
    ErrorCode,
    Fetch,
    FetchSnapshot,
    Reply,
    Request,
    Vote,
    VoteReply,
)
from quorum.core.roles import Leader
from quorum.core.types import Batch, Election, LogBase, LogEnd, ReplicaKey, Role, Voters
from quorum.ports import StoreWrite
from simulation.kernel.store import QuorumDisk
from simulation.kernel.violation import Violation
from simulation.quorum.coverage import TRANSITIONS, Row, row_of
from simulation.quorum.images import CommittedImages

ALIVE_TIMEOUTS = 6
"""Limit for the time since the last fetch of a voter, in fetch timeouts.

A leader notices a voter without contact within 2.5 fetch timeouts by its own clock, which may run at half the rate.
This is at most 5 fetch timeouts of true time.  One more is for messages in transit.
"""
MARK = re.compile(rb"<(\d+)>")
"""Matches the number of a client's operation in a payload."""


@dataclass(eq=False)
class Run:
    """One process of a node, from its start to its end."""

    node_id: int
    core: RaftCore
    log: list[Batch]
    voters: list[Batch]  # voter sets of the snapshot before `log`, if any, and of `log`; the last is in force
    role: Role | None = None
    watermark: int = 0
    confirmed: int = 0  # how many batches of `log` were compared with the committed ones
    sent: int = 0  # the high watermark that this leader may have sent to others
    led: int = 0  # the last epoch that it led
    ended: int = 0  # the last epoch whose leader has reported to this node that it resigned
    since_ms: int = 0  # when it began to lead
    fetched_ms: dict[ReplicaKey, int] = field(default_factory=dict)  # when each replica last fetched in this leadership
    asked: dict[int, int] = field(default_factory=dict)  # by call of a read: the committed end at its start
    ticks: int = 0
    applied: int = 0
    bases: set[int] = field(default_factory=set)  # ends of the snapshots at which its log has started


@dataclass(frozen=True, slots=True)
class Stale:
    """A request of an older epoch, and the state that it must not change."""

    request: Vote | BeginQuorumEpoch | EndQuorumEpoch | Fetch | FetchSnapshot
    election: Election
    log_end: int
    progress: tuple[int, int | None] | None


_OF_AN_EPOCH = Vote | BeginQuorumEpoch | EndQuorumEpoch | Fetch | FetchSnapshot


def _progress(core: RaftCore, key: ReplicaKey) -> tuple[int, int | None] | None:
    """Return the log end of a replica according to its leader, and the time of its last fetch."""
    found = core.role.replicas.get(key) if isinstance(core.role, Leader) else None
    return None if found is None else (found.end, found.last_fetch_ms)


def _is_accepted(effects: list[Effect]) -> bool:
    replies = [effect.reply for effect in effects if isinstance(effect, SendReply)]
    return any(isinstance(reply, EndQuorumEpochReply) and reply.error is ErrorCode.NONE for reply in replies)


def _voters_of(base: LogBase) -> Batch:
    """Return a batch that represents the voters in a snapshot."""
    return Batch(base.end.offset - 1, base.end.epoch, 1, 0, control=base.voters)


class DurableDisk:
    """The durable data of a disk, which is remembered even after the disk is lost."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.start = self.end = 0
        self.epoch = 0
        self.batches: dict[int, Batch] = {}
        self.ends: dict[int, Batch] = {}
        self.state: Any = None
        self.base_voters: Batch | None = None

    def take_over(self, disk: QuorumDisk) -> None:
        """Take over the current contents of the disk."""
        self.start, self.end = disk.log_start, disk.log_end
        self.batches = {batch.base_offset: batch for batch in disk.batches}
        self.ends = {batch.end_offset: batch for batch in disk.batches}
        self.epoch, self.state = disk.state.election.epoch, disk.state
        if disk.base is not None:
            self.base_voters = _voters_of(disk.base)

    def holds(self, batch: Batch) -> bool:
        """Return whether the disk has the batch, either in its log or in a snapshot."""
        return batch.base_offset < self.start or self.batches.get(batch.base_offset) == batch


class Watch:
    """All invariants of one run of the simulation, for one generation of the quorum."""

    def __init__(self, fetch_timeout_ms: int, time_s: Callable[[], float]) -> None:
        self.seen: Counter[str] = Counter()  # how often rare events occurred
        self.transitions: Counter[Row] = Counter()
        self.images = CommittedImages()
        self.steps = 0
        self.committed: dict[int, Batch] = {}  # by base offset
        self.committed_end = 0
        self.marks: set[int] = set()  # operations in committed batches
        self.closed = False
        self.generation = 0
        self.epoch_kept = 0  # the greatest epoch that any disk has ever had
        self.on_violation: Callable[[str], None] = lambda _: None
        self.fetch_timeout_ms = fetch_timeout_ms
        self.time_s = time_s
        self._sent_s: dict[ReplicaKey, float] = {}  # when each replica sent its last fetch
        self._leaders: dict[int, int] = {}
        self._votes: dict[tuple[UUID, int], ReplicaKey] = {}
        self._batches: dict[tuple[int, int], tuple[Batch, int]] = {}
        self._disks: dict[ReplicaKey, DurableDisk] = {}
        self._disk_of: dict[int, DurableDisk] = {}  # the current disk of each node
        self._key_of: dict[int, ReplicaKey] = {}

    # Disks and processes

    def disk(self, node_id: int, directory_id: UUID) -> DurableDisk:
        """Return the disk with this directory id, and note that it is the node's current disk."""
        key = ReplicaKey(node_id, directory_id)
        self._key_of[node_id] = key
        self._disk_of[node_id] = self._disks.setdefault(key, DurableDisk(node_id))
        return self._disk_of[node_id]

    def after_a_disaster(self, disks: Sequence[tuple[int, QuorumDisk]], rebuilt: QuorumDisk, generation: int) -> Watch:
        """Return the watch of the next generation, which starts with the batches in the rebuilt disk's snapshots."""
        watch = Watch(self.fetch_timeout_ms, self.time_s)
        watch.seen, watch.transitions, watch.steps = self.seen, self.transitions, self.steps
        watch.on_violation, watch.generation = self.on_violation, generation
        held = max([rebuilt.log_start, *(end.offset for end in rebuilt.snapshots)])
        for batch in self.committed.values():
            if batch.end_offset <= held:
                watch.committed[batch.base_offset] = batch
                watch.committed_end = batch.end_offset
                watch.images.commit(batch)
        for node_id, disk in disks:
            watch.epoch_kept = max(watch.epoch_kept, disk.state.election.epoch)
            if disk.directory_id is not None:
                watch.disk(node_id, disk.directory_id).take_over(disk)
        return watch

    def started(self, core: RaftCore, batches: list[Batch], base: LogBase | None) -> Run:
        """Check that a process starts with the state of its disk, and return its `Run`."""
        node_id = core.key.node_id
        disk = self.disk(node_id, core.key.directory_id)
        self._check(
            core.epoch >= disk.epoch, lambda: f"I2: {node_id} restarts in epoch {core.epoch}, was in {disk.epoch}"
        )
        self._check(
            core.log.end == disk.end, lambda: f"I5: {node_id} restarts with log end {core.log.end}, had {disk.end}"
        )
        kept, now = disk.state.election if disk.state is not None else None, core.election
        self._check(
            kept is None or now.epoch > kept.epoch or now == kept,
            lambda: f"I2: {node_id} restarts with {now}, its disk has {kept}",
        )
        run = Run(node_id, core, list(batches), [one for one in batches if isinstance(one.control, Voters)])
        if base is not None and core.generation >= self.generation:
            self._begin_at(run, base)
        elif base is not None:  # batches of an earlier generation were checked by the earlier watch
            self._take_base(run, base)
        return run

    def _check(self, holds: bool, message: Callable[[], str]) -> None:
        if not holds and not self.closed:
            text = message()
            self.on_violation(text)
            raise Violation(text)

    # Steps

    def before(self, run: Run, event: Event) -> Stale | None:
        """Before a step: return the state that the event must not change, if it is a request of an older epoch."""
        if not isinstance(event, RequestReceived) or not isinstance(event.request, _OF_AN_EPOCH):
            return None
        core = run.core
        if event.request.epoch >= core.epoch:
            return None
        self.seen["request of an older epoch"] += 1
        return Stale(event.request, core.election, core.log.end, _progress(core, event.request.sender.key))

    def _is_fenced(self, run: Run, stale: Stale) -> None:
        """I10: a request of an older epoch changes nothing."""
        core = run.core
        self._check(
            core.election == stale.election,
            lambda: f"I10: {run.node_id} changes from {stale.election} to {core.election} for {stale.request}",
        )
        self._check(
            core.log.end == stale.log_end or isinstance(core.role, Leader),
            lambda: (
                f"I10: the log end of {run.node_id} moves from {stale.log_end} to {core.log.end} for {stale.request}"
            ),
        )
        self._check(
            _progress(core, stale.request.sender.key) == stale.progress,
            lambda: f"I10: {run.node_id} counts {stale.request} in epoch {core.epoch}",
        )

    def stepped(self, run: Run, event: Event, effects: list[Effect], now_ms: int, stale: Stale | None) -> None:
        """Check each step, before its effects are executed."""
        self.steps += 1
        if stale is not None:
            self._is_fenced(run, stale)
        elif isinstance(event, RequestReceived) and isinstance(event.request, EndQuorumEpoch) and _is_accepted(effects):
            run.ended = max(run.ended, event.request.epoch)
        if isinstance(event, ConfirmRead):
            run.asked[event.call] = self.committed_end
        run.ticks += isinstance(event, Tick)
        core = run.core
        if run.role is Role.LEADER and core.high_watermark > run.sent:  # even if it has resigned in this step
            run.sent = core.high_watermark
            self._commit(run, core.high_watermark)
        for effect in effects:
            match effect:
                case Write():
                    self._write(run, effect)
                case RoleChanged():
                    self._role(run, effect, now_ms)
                case AdvanceHighWatermark(offset):
                    self._watermark(run, offset)
                case ProposalAppended():
                    self._decided(run, now_ms, "decides")
                case ReadConfirmed(call, offset):
                    self._decided(run, now_ms, "confirms a read")
                    self._read(run, call, offset)
        if isinstance(core.role, Leader):
            self.seen["paused"] += core.role.paused

    def _read(self, run: Run, call: int, offset: int) -> None:
        self.seen["read confirmed"] += 1
        end = run.asked.pop(call)
        self._check(
            offset >= end, lambda: f"I14: {run.node_id} reads at {offset}, {end} was committed before the read began"
        )

    def _write(self, run: Run, write: Write) -> None:
        log = run.log
        if write.truncate_to is not None:
            self.seen["truncation"] += 1
            replaced = write.base is not None and write.base.end.offset >= run.watermark
            self._check(
                write.truncate_to >= run.watermark or replaced,
                lambda: f"I5: {run.node_id} truncates its log to {write.truncate_to}, its watermark is {run.watermark}",
            )
            while log and log[-1].base_offset >= write.truncate_to:
                log.pop()
            while run.voters and run.voters[-1].base_offset >= write.truncate_to:
                run.voters.pop()
            run.confirmed = min(run.confirmed, len(log))
        if write.base is not None:
            self.seen["log restarted at a snapshot"] += 1
            self._begin_at(run, write.base)
        for batch in write.batches:
            if isinstance(batch.control, Voters):
                if batch.base_offset > 0:
                    self._voters_follow(run, batch, batch.control)
                run.voters.append(batch)
            if batch.epoch > 0:  # the founding batch may be lost and written again
                self._unique(run, batch)
            log.append(batch)
        if run.voters and (write.batches or write.truncate_to is not None):
            latest, in_force = self._keys(run.voters[-1]), {voter.key for voter in write.state.voters}
            self._check(
                latest == in_force,
                lambda: f"I11: {run.node_id} uses the voters {sorted(in_force)}, its log has {sorted(latest)}",
            )
        election = write.state.election
        if election.leader_id is not None:
            self._one_leader(election.epoch, election.leader_id)

    def _begin_at(self, run: Run, base: LogBase) -> None:
        """Start the log after a snapshot, which must contain only committed batches."""
        offset = base.end.offset
        last = next((one for one in reversed(self.committed.values()) if one.end_offset <= offset), None)
        self._check(
            last is not None and (last.end_offset, last.epoch) == (offset, base.end.epoch),
            lambda: f"I13: {run.node_id} continues from a snapshot of {base.end}; committed is {last}",
        )
        self._take_base(run, base)

    @staticmethod
    def _take_base(run: Run, base: LogBase) -> None:
        offset = base.end.offset
        run.bases.add(offset)
        dropped = [one for one in run.log if one.base_offset < offset]
        run.log[:] = [one for one in run.log if one.base_offset >= offset]
        run.confirmed = max(0, run.confirmed - len(dropped))
        run.voters[:] = [_voters_of(base), *(one for one in run.voters if one.base_offset >= offset)]

    def _unique(self, run: Run, batch: Batch) -> None:
        before = run.log[-1].epoch if run.log else run.voters[-1].epoch if run.bases else 0
        same = self._batches.setdefault((batch.base_offset, batch.epoch), (batch, before))
        self._check(
            same == (batch, before),
            lambda: f"I4: {run.node_id} appends {batch} after epoch {before}, elsewhere it is {same}",
        )

    @property
    def elected(self) -> int:
        """The number of epochs that had a leader so far."""
        return len(self._leaders)

    def _one_leader(self, epoch: int, leader_id: int) -> None:
        other = self._leaders.setdefault(epoch, leader_id)
        self._check(other == leader_id, lambda: f"I1: epoch {epoch} is led by {other} and by {leader_id}")

    def _voters_follow(self, run: Run, batch: Batch, record: Voters) -> None:
        """I11: one voter changes at a time; a leader first commits the last change and a record of its own epoch."""
        earlier = run.voters
        if earlier and isinstance(earlier[-1].control, Voters) and earlier[-1].control.generation < record.generation:
            rebuilt = record.generation == self.generation and len(record.voters) == 1
            self._check(rebuilt, lambda: f"I11: {run.node_id} has voters of another generation: {record}")
            return
        before, after = self._keys(earlier[-1]) if earlier else set(), {voter.key for voter in record.voters}
        changed = len(before ^ after)
        self.seen["voters changed"] += changed > 0
        self._check(changed <= 1, lambda: f"I11: voters {sorted(before)} are followed by {sorted(after)}")
        if isinstance(run.core.role, Leader) and batch.epoch == run.core.epoch:
            end = run.core.high_watermark
            self._check(
                not earlier or earlier[-1].end_offset <= end,
                lambda: f"I11: {run.node_id} changes the voters at {batch.base_offset}, the last change is uncommitted",
            )
            self._check(
                run.core.role.epoch_start < end,
                lambda: (
                    f"I11: {run.node_id} changes the voters at {batch.base_offset} before it committed in its epoch"
                ),
            )
            self._majority_is_alive(run, sorted(after))

    def _majority_is_alive(self, run: Run, keys: list[ReplicaKey]) -> None:
        """I11: a leader changes the voters only if a majority of the new set has recently sent a fetch."""
        now_s, bound_s = self.time_s(), ALIVE_TIMEOUTS * self.fetch_timeout_ms / 1000
        alive = [key for key in keys if key == run.core.key or now_s - self._sent_s.get(key, -bound_s) <= bound_s]
        self._check(
            len(alive) > len(keys) // 2,
            lambda: f"I11: {run.node_id} changes the voters to {keys}; only {alive} sent a fetch in {bound_s:.1f} s",
        )

    @staticmethod
    def _keys(batch: Batch) -> set[ReplicaKey]:
        return {voter.key for voter in batch.control.voters} if isinstance(batch.control, Voters) else set()

    def _role(self, run: Run, change: RoleChanged, now_ms: int) -> None:
        before, run.role = run.role, change.role
        self.transitions[row_of(before, change)] += 1
        voters = {voter.key for voter in run.core.history.current}
        self._check(
            change.role in TRANSITIONS[before],
            lambda: f"transition: {run.node_id} from {before} to {change.role}: {change}",
        )
        if change.role is Role.CANDIDATE and before not in (Role.PROSPECTIVE, Role.LEADER):
            self._check(len(voters) == 1, lambda: f"transition: {run.node_id} has had no pre-vote: {change}")
        self._check(
            change.role is not Role.FOLLOWER or change.epoch > run.ended,
            lambda: f"I1: {run.node_id} follows the leader of epoch {change.epoch}, which has ended: {change}",
        )
        if change.role is not Role.LEADER:
            return
        self._one_leader(change.epoch, run.node_id)
        own_key = run.core.key
        granted = [key for key in sorted(voters) if self._votes.get((key.directory_id, change.epoch)) == own_key]
        self._check(
            len(granted) > len(voters) // 2,
            lambda: f"I3: {own_key} leads epoch {change.epoch}, but only {granted} have its vote on disk",
        )
        run.since_ms, run.fetched_ms, run.sent, run.led = now_ms, {}, 0, change.epoch
        own = {batch.base_offset: batch for batch in run.log}
        start = max(run.bases, default=0)
        missing = [one for offset, one in self.committed.items() if offset >= start and own.get(offset) != one]
        self._check(not missing, lambda: f"I7: {run.node_id} leads epoch {change.epoch} without {missing[:1]}")

    def _watermark(self, run: Run, offset: int) -> None:
        self._check(offset > run.watermark, lambda: f"I5: {run.node_id}: high watermark {run.watermark} -> {offset}")
        run.watermark = offset
        durable = max([self._disk_of[run.node_id].end, *run.bases])  # a snapshot is durable before the log starts at it
        self._check(
            offset <= durable,
            lambda: f"I6: {run.node_id} has high watermark {offset}, durable end {durable}",
        )
        self._commit(run, offset)

    def _commit(self, run: Run, offset: int) -> None:
        """Compare the batches below `offset`, which this node treats as committed, with those that others committed."""
        newest: Batch | None = None
        log = run.log
        while run.confirmed < len(log) and log[run.confirmed].end_offset <= offset:
            batch = log[run.confirmed]
            run.confirmed += 1
            if self._commit_one(run, batch):
                newest = batch
        if newest is not None:
            found = newest
            self._check(
                run.role is Role.LEADER and found.epoch == run.led,
                lambda: f"I6: {run.node_id}, {run.role} and last leader of {run.led}, is the first to commit {found}",
            )
            self._majority_holds(found, sorted(self._keys(run.voters[-1])))

    def _commit_one(self, run: Run, batch: Batch) -> bool:
        """Return whether this node is the first to commit the batch."""
        if batch.base_offset < self.committed_end:
            same = self.committed.get(batch.base_offset)
            self._check(same == batch, lambda: f"I8: {run.node_id} commits {batch} where {same} was committed")
            return False
        end = self.committed_end
        self._check(batch.base_offset == end, lambda: f"I8: {run.node_id} commits {batch} after {end}")
        self.committed[batch.base_offset] = batch
        self.committed_end = batch.end_offset
        self.images.commit(batch)
        self.marks.update(int(number) for number in MARK.findall(batch.payload))
        return True

    def _majority_holds(self, batch: Batch, keys: list[ReplicaKey]) -> None:
        holders = [key for key in keys if key in self._disks and self._disks[key].holds(batch)]
        self._check(
            len(holders) > len(keys) // 2,
            lambda: f"I6: {batch} is committed, but only {holders} of {keys} have it on disk",
        )

    def _decided(self, run: Run, now_ms: int, act: str) -> None:
        """I9: a leader without fetches of a majority within the fetch timeout decides nothing and confirms no read."""
        core = run.core
        voters = core.history.current
        others = [voter.key for voter in voters if voter.key != core.key]
        needed = len(voters) // 2 + 1 - (len(voters) - len(others))
        if needed == 0:
            return
        contacts = sorted((run.fetched_ms.get(key, run.since_ms) for key in others), reverse=True)
        silent_ms = now_ms - contacts[needed - 1]
        self._check(
            silent_ms <= self.fetch_timeout_ms,
            lambda: f"I9: {run.node_id} {act} in epoch {core.epoch}; no majority has fetched for {silent_ms} ms",
        )

    # Disks

    def durable(self, node_id: int, directory_id: UUID, write: StoreWrite) -> None:
        """Check a write that has become durable on a disk: epoch, vote and truncation."""
        disk = self.disk(node_id, directory_id)
        cut: list[Batch] = []
        if write.truncate_to is not None:
            for offset in [one for one in disk.batches if one >= write.truncate_to]:
                batch = disk.batches.pop(offset)
                del disk.ends[batch.end_offset]
                cut.append(batch)
            disk.end = write.truncate_to
        if write.base is not None:
            disk.start = write.base.end.offset
            for offset in [one for one in disk.batches if one < disk.start]:
                del disk.ends[disk.batches.pop(offset).end_offset]
            disk.end = max(disk.end, disk.start)
            disk.base_voters = _voters_of(write.base)
        for batch in write.batches:
            disk.batches[batch.base_offset] = disk.ends[batch.end_offset] = batch
            disk.end = batch.end_offset
        election = write.state.election
        self._check(election.epoch >= disk.epoch, lambda: f"I2: {node_id} writes {election} after epoch {disk.epoch}")
        disk.epoch, disk.state = election.epoch, write.state
        self.epoch_kept = max(self.epoch_kept, election.epoch)
        if election.voted_for is not None:
            other = self._votes.setdefault((directory_id, election.epoch), election.voted_for)
            self._check(other == election.voted_for, lambda: f"I3: {node_id} votes for {other} and for {election}")
        lost = [one for one in cut if self.committed.get(one.base_offset) == one and not disk.holds(one)]
        self._check(not lost, lambda: f"I5: {node_id} truncates {lost[0]} on its disk, which is committed")

    def voters(self) -> list[ReplicaKey]:
        """Return the voters according to the newest record on any disk that is in use."""
        newest: Batch | None = None
        for disk in self._disk_of.values():
            for batch in (disk.base_voters, *disk.batches.values()):
                if batch is not None and isinstance(batch.control, Voters):
                    newest = max(newest or batch, batch, key=lambda one: (one.epoch, one.base_offset))
        return sorted(self._keys(newest)) if newest is not None else []

    # Messages

    def leaves(self, node_id: int, request: Request) -> None:
        """Check a request that is about to be sent: its promises must be durable."""
        disk = self._disk_of.get(node_id)
        if isinstance(request, _OF_AN_EPOCH):
            self._epoch_is_kept(node_id, request.epoch, request)
        if isinstance(request, Fetch | FetchSnapshot):
            self._sent_s[request.sender.key] = self.time_s()
        match request:
            case Vote(pre_vote=False, sender=sender, epoch=epoch):
                self._vote_is_kept(node_id, epoch, sender.key, "asks for votes")
            case Fetch(offset=offset) if disk is not None:
                end, epoch, last = disk.end, request.last_fetched_epoch, disk.ends.get(offset)
                self._check(end >= offset, lambda: f"I6: {node_id} acknowledges {offset}, its disk ends at {end}")
                self._check(
                    last is None or last.epoch == epoch,
                    lambda: f"I6: {node_id} acknowledges {offset} of epoch {epoch}, its disk has {last}",
                )

    def answers(self, node_id: int, request: Request, reply: Reply) -> None:
        """Check a reply that is about to be sent."""
        self._epoch_is_kept(node_id, reply.known.epoch, reply)
        match request, reply:
            case Vote(pre_vote=False, sender=sender, epoch=epoch, target=target), VoteReply(granted=True):
                self._vote_is_kept(node_id, epoch, sender.key, "grants its vote")
                own = self._key_of.get(node_id)
                self._check(target == own, lambda: f"I12: {own} grants a vote that was requested from {target}")

    def _epoch_is_kept(self, node_id: int, epoch: int, message: Request | Reply) -> None:
        """I2: an epoch that a message contains is on some disk, so no crash can revoke it."""
        self._check(
            epoch <= self.epoch_kept,
            lambda: f"I2: {node_id} sends epoch {epoch}, the greatest on any disk is {self.epoch_kept}: {message}",
        )

    def _vote_is_kept(self, node_id: int, epoch: int, candidate: ReplicaKey, act: str) -> None:
        disk = self._disk_of.get(node_id)
        election = disk.state.election if disk is not None and disk.state is not None else None
        kept = election is not None and (
            election.epoch > epoch or (election.epoch, election.voted_for) == (epoch, candidate)
        )
        self._check(kept, lambda: f"I3: {node_id} {act} in epoch {epoch} for {candidate}, its disk has {election}")

    def arrives(self, run: Run, request: Request, now_ms: int) -> None:
        """Remember when a fetch of the current epoch arrived, for I9."""
        if isinstance(request, Fetch | FetchSnapshot) and request.epoch == run.core.epoch:  # both come from a follower
            run.fetched_ms[request.sender.key] = now_ms

    # Clients and state machines

    def applied(self, run: Run, batch: Batch) -> None:
        """I8, I15: a node applies only committed batches, in order, without a gap."""
        expected = batch.base_offset if batch.base_offset in run.bases else run.applied
        self._check(batch.base_offset == expected, lambda: f"I15: {run.node_id} applies {batch} after {run.applied}")
        same = self.committed.get(batch.base_offset)
        self._check(same == batch, lambda: f"I8: {run.node_id} applies {batch} where {same} is committed")
        run.applied = batch.end_offset

    def is_whole(self, run: Run, pairs: Sequence[tuple[str | None, str | None]]) -> None:
        """I16: the records of one request are all present or all absent."""
        halves = [pair for pair in pairs if pair[0] != pair[1]]
        self._check(not halves, lambda: f"I16: {run.node_id} shows {halves} at {run.applied}")

    def snapshot(self, node_id: int, end: LogEnd, data: bytes) -> None:
        """I13: a snapshot, taken or received, equals the replay of the log."""
        self.seen["snapshot compared with the log"] += 1
        problem = self.images.snapshot_problem(end, data)
        self._check(problem is None, lambda: f"I13: snapshot {end} of {node_id}: {problem}")

    def acknowledged(self, number: int) -> None:
        """Check the acknowledgement of operation `number`."""
        self._check(number in self.marks, lambda: f"I8: operation {number} is acknowledged before it is committed")
