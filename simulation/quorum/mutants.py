"""Known mistakes of the quorum, planted one at a time to show that its simulator finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch
from uuid import UUID

from msgspec.structs import replace

from metadata.image import ClusterImage
from metadata.snapshot import chunks
from quorum.applier import Applier
from quorum.core.addresses import VoterAddresses
from quorum.core.change_gate import ChangeGate
from quorum.core.contacts import Contacts
from quorum.core.core import RaftCore
from quorum.core.election import Elections
from quorum.core.events import AdvanceHighWatermark, VoterChangeError
from quorum.core.following import Following
from quorum.core.handover import Handovers
from quorum.core.log_index import LogIndex
from quorum.core.membership import Membership
from quorum.core.messages import VoteReply
from quorum.core.replication import Replication
from quorum.core.roles import Candidate, Leader, Prospective
from quorum.core.state import Checked, CoreState, Purpose
from quorum.core.timeouts import Timeouts
from quorum.core.types import Batch, Election, LogEnd, ReplicaKey, TargetVoters
from quorum.core.voters import VoterHistory
from quorum.node import QuorumNode
from quorum.ports import NotLeaderError
from quorum.store import SqliteQuorumStore
from quorum.waiters import OffsetWaiters
from simulation.kernel.mutation import Mutant, mutant_of
from simulation.kernel.store import QuorumDisk, SimulatedStore
from simulation.quorum.plan import draw
from simulation.quorum.run import play
from simulation.quorum.world import QuorumWorld, Replay

Patch = Callable[[], Any]


MUTANTS: list[Mutant] = []


_mutant = mutant_of(MUTANTS)


# Commit and durability


def _commit_with(own_end: Callable[[Any], int], own_epoch_only: bool) -> Callable[[Any, Leader], None]:
    def commit(self: Any, leader: Leader) -> None:
        state = self._state
        voters = state.history.current
        ends = sorted(
            (
                own_end(state) if voter.key == state.key else getattr(leader.replicas.get(voter.key), "end", 0)
                for voter in voters
            ),
            reverse=True,
        )
        offset = ends[voters.majority - 1]
        if not own_epoch_only or offset > leader.epoch_start:
            state.advance_watermark(offset)

    return commit


@_mutant("no own-epoch rule")
def _no_own_epoch_rule() -> list[Any]:
    return [patch.object(Replication, "commit", _commit_with(lambda state: int(state.log.durable_end), False))]


@_mutant("acknowledges before fsync")
def _ack_before_fsync() -> list[Any]:
    return [patch.object(CoreState, "all_durable", property(lambda self: True))]


@_mutant("sole voter commits before fsync")
def _commits_before_fsync() -> list[Any]:
    def announce(self: Any) -> None:
        state = self._state
        if state.high_watermark > self._announced:
            self._announced = state.high_watermark
            state.effects.append(AdvanceHighWatermark(state.high_watermark))

    return [
        patch.object(Replication, "commit", _commit_with(lambda state: int(state.log.end), True)),
        patch.object(Replication, "report_watermark", announce),
    ]


@_mutant("a completed write also counts for later appends")
def _any_completion_counts() -> list[Any]:
    original = LogIndex.written

    def written(self: LogIndex, write_id: int) -> None:
        original(self, write_id)
        self.durable_end = self.end

    return [patch.object(LogIndex, "written", written)]


@_mutant("messages do not wait for their write")
def _after_is_ignored() -> list[Any]:
    original = QuorumNode._execute

    def execute(self: QuorumNode, effect: Any) -> None:
        original(self, replace(effect, after=None) if getattr(effect, "after", None) is not None else effect)

    return [patch.object(QuorumNode, "_execute", execute)]


# Votes


@_mutant("votes without persistence")
def _vote_is_not_kept() -> list[Any]:
    return [patch.object(CoreState, "after_election", property(lambda self: None))]


@_mutant("votes twice in an epoch")
def _votes_twice() -> list[Any]:
    original = Elections._grants_vote

    def grants(self: Any, request: Any, now_ms: int) -> bool:
        state = self._state
        if state.election.voted_for not in (None, state.key) and state.election.leader_id is None:
            state.election = Election(state.epoch)
            state.checked = Checked(state.election, state.high_watermark)
        return original(self, request, now_ms)

    return [patch.object(Elections, "_grants_vote", grants)]


@_mutant("votes for a shorter log")
def _log_is_not_compared() -> list[Any]:
    grants, grants_pre_vote = Elections._grants_vote, Elections._grants_pre_vote

    def vote(self: Any, request: Any, now_ms: int) -> bool:
        return grants(self, replace(request, log_end=LogEnd(request.epoch, 1 << 40)), now_ms)

    def pre_vote(self: Any, request: Any, now_ms: int) -> bool:
        return grants_pre_vote(self, replace(request, log_end=LogEnd(request.epoch, 1 << 40)), now_ms)

    return [patch.object(Elections, "_grants_vote", vote), patch.object(Elections, "_grants_pre_vote", pre_vote)]


@_mutant("forgets its vote at a restart")
def _vote_is_forgotten() -> list[Any]:
    original = SimulatedStore.open

    async def opened(self: SimulatedStore, node_id: int, cluster_id: str | None) -> Any:
        stored = await original(self, node_id, cluster_id)
        election = replace(stored.state.election, voted_for=None)
        return replace(stored, state=replace(stored.state, election=election))

    return [patch.object(SimulatedStore, "open", opened)]


@_mutant("no pre-vote")
def _no_pre_vote() -> list[Any]:
    def begin_election(self: Any, now_ms: int, reason: str) -> None:
        self._transitions.become_candidate(now_ms, reason)

    return [patch.object(Elections, "begin_election", begin_election)]


@_mutant("counts a reply of an earlier vote")
def _old_replies_count() -> list[Any]:
    original = RaftCore._on_reply

    def on_reply(self: Any, number: int, call: Any, reply: Any, now_ms: int) -> None:
        candidacy, granted = self._state.role, isinstance(reply, VoteReply) and reply.granted
        late = call.purpose is Purpose.VOTE and call.role is not candidacy
        if granted and late and isinstance(candidacy, Prospective | Candidate) and call.voter in candidacy.votes:
            candidacy.votes[call.voter].granted = True
            self._elections.count_votes(now_ms)
        original(self, number, call, reply, now_ms)

    return [patch.object(RaftCore, "_on_reply", on_reply)]


# Identity


@_mutant("no directory id check")
def _no_directory_check() -> list[Any]:
    original = CoreState.refuse_stranger

    def refuse(self: Any, sender: Any, target: Any) -> Any:
        return original(self, sender, None)

    return [patch.object(CoreState, "refuse_stranger", refuse)]


@_mutant("an emptied voter keeps its directory id")
def _old_directory_id() -> list[Any]:
    original = QuorumWorld.new_disk

    def new_disk(self: QuorumWorld, node_id: int) -> QuorumDisk:
        disk = original(self, node_id)
        disk.node_id, disk.directory_id = node_id, UUID(int=node_id)
        return disk

    return [patch.object(QuorumWorld, "new_disk", new_disk)]


# Divergence


@_mutant("accepts a fetch position without a check")
def _no_divergence() -> list[Any]:
    return [patch.object(Replication, "_divergence", lambda self, request: None)]


def _cut_to(where: Callable[[Any, LogEnd], int]) -> list[Any]:
    def cut_back(self: Any, diverging: LogEnd) -> bool:
        state = self._state
        to = where(state, diverging)
        if not state.log.start <= to < state.log.end or state.log.splits_a_batch(to):
            return False
        draft = state.open_draft()
        draft.truncate_to = to
        state.log.truncate(to)
        state.high_watermark = min(state.high_watermark, to)
        state.checked = Checked(state.election, state.high_watermark)
        state.history.truncate(to)
        return True

    return [patch.object(Following, "_cut_back", cut_back)]


@_mutant("truncates its log below the watermark")
def _cuts_an_epoch() -> list[Any]:
    def start_of_epoch(state: Any, diverging: LogEnd) -> int:
        return int(state.log.end_of_epoch(diverging.epoch - 1).offset) or 1

    return _cut_to(start_of_epoch)


@_mutant("truncates its log to its own watermark")
def _cuts_to_watermark() -> list[Any]:
    return _cut_to(lambda state, _: max(1, int(state.high_watermark)))


# Membership


@_mutant("changes the voters while a change is uncommitted")
def _two_changes_at_once() -> list[Any]:
    return [patch.object(Membership, "_is_uncommitted", property(lambda self: False))]


@_mutant("changes the voters before it has committed in its epoch")
def _changes_too_early() -> list[Any]:
    def may_step(self: Any, leader: Leader, now_ms: int) -> bool:
        return leader.handover is None and self._state.history.target is not None

    original = Membership._refuse_change

    def refuse(self: Any, event: Any, now_ms: int) -> Any:
        verdict = original(self, event, now_ms)
        early = verdict is not None and verdict.error is VoterChangeError.NOT_COMMITTED_YET
        return None if early else verdict

    return [patch.object(Membership, "_may_step", may_step), patch.object(Membership, "_refuse_change", refuse)]


@_mutant("changes to the target in one step")
def _one_great_step() -> list[Any]:
    original = ChangeGate._decide_target

    def decide(self: Any, leader: Leader, work: Any, change: Any, now_ms: int) -> Any:
        found = original(self, leader, work, change, now_ms)
        if isinstance(found, TargetVoters) and found.target is not None:
            return self._voters(found.target)
        return found

    return [patch.object(ChangeGate, "_decide_target", decide)]


@_mutant("a leader that is not a voter counts itself")
def _counts_itself() -> list[Any]:
    def commit(self: Any, leader: Leader) -> None:
        state = self._state
        voters = state.history.current
        ends = [getattr(leader.replicas.get(voter.key), "end", 0) for voter in voters if voter.key != state.key]
        offset = sorted([*ends, state.log.durable_end], reverse=True)[voters.majority - 1]
        if offset > leader.epoch_start:
            state.advance_watermark(offset)

    return [patch.object(Replication, "commit", commit)]


@_mutant("a truncation keeps the voters that it removed")
def _voters_are_not_restored() -> list[Any]:
    return [patch.object(VoterHistory, "truncate", lambda self, to: [])]


# Snapshots


@_mutant("a snapshot is named by the offset of its last record")
def _inclusive_snapshot() -> list[Any]:
    original = Applier.snapshot_base

    def base(self: Applier) -> Any:
        found = original(self)
        if found is None or found.end.offset < 2:
            return None
        return replace(found, end=LogEnd(found.end.epoch, found.end.offset - 1))

    return [patch.object(Applier, "snapshot_base", base)]


@_mutant("a snapshot lacks the last batch before its end")
def _snapshot_is_behind() -> list[Any]:
    class Behind(Replay):
        """A snapshot contains the state before its last batch."""

        _before = ClusterImage()

        def apply(self, batch: Batch) -> None:
            self._before = self.image
            super().apply(batch)

        def snapshot(self) -> Iterator[bytes]:
            return chunks(self._before)

    return [patch("simulation.quorum.world.Replay", Behind)]


# Epochs and generations


@_mutant("an epoch is sent before it is durable")
def _epoch_leaks() -> list[Any]:
    return [patch.object(CoreState, "epoch_to_report", property(lambda self: None))]


@_mutant("a fetch of an older epoch counts")
def _old_fetches_count() -> list[Any]:
    original = Replication.on_fetch

    def on_fetch(self: Any, call: int, request: Any, now_ms: int) -> None:
        original(self, call, replace(request, epoch=self._state.epoch, round=0), now_ms)

    return [patch.object(Replication, "on_fetch", on_fetch)]


@_mutant("a disk of an older generation is accepted")
def _generations_are_not_compared() -> list[Any]:
    refuse, learn = CoreState.refuse_stranger, Elections.learn

    def refuse_stranger(self: Any, sender: Any, target: Any) -> Any:
        return refuse(self, replace(sender, generation=self.generation), target)

    def believe(self: Any, known: Any, now_ms: int) -> Any:
        return learn(self, replace(known, generation=self._state.generation), now_ms)

    return [patch.object(CoreState, "refuse_stranger", refuse_stranger), patch.object(Elections, "learn", believe)]


@_mutant("returns to a leader that has resigned")
def _farewells_are_forgotten() -> list[Any]:
    original = Elections._meet_leader

    def meet_leader(self: Any, *about: Any) -> bool:
        kept, self._leaders.farewell = self._leaders.farewell, None
        try:
            return original(self, *about)
        finally:
            self._leaders.farewell = kept

    return [patch.object(Elections, "_meet_leader", meet_leader)]


# The store itself


@_mutant("SQLite keeps a vote only with the next batch")
def _votes_wait() -> list[Any]:
    transaction = SqliteQuorumStore._transaction

    def with_batches_only(self: SqliteQuorumStore, connection: Any, writes: Any) -> int:
        is_worth_it = any(write.batches or write.base or write.truncate_to is not None for write in writes)
        return transaction(self, connection, writes) if is_worth_it else 0

    return [patch.object(SqliteQuorumStore, "_transaction", with_batches_only)]


@_mutant("a truncation leaves its last batch in the database")
def _one_batch_too_few() -> list[Any]:
    truncate = SqliteQuorumStore._truncate

    def keep_one(self: SqliteQuorumStore, connection: Any, offset: int, start: int, end: int) -> int:
        last = "SELECT * FROM batches ORDER BY base_offset DESC LIMIT 1"
        row = connection.execute(last).fetchone() if offset < end else None
        left = truncate(self, connection, offset, start, end)
        if row is not None:
            places = ",".join("?" * len(row))
            connection.execute(f"INSERT OR IGNORE INTO batches VALUES ({places})", row)
        return left

    return [patch.object(SqliteQuorumStore, "_truncate", keep_one)]


# Liveness


@_mutant("the next leader ignores the target")
def _targets_are_forgotten() -> list[Any]:
    original = Membership._may_step

    def may_step(self: Any, leader: Leader, now_ms: int) -> bool:
        set_here = leader.change is not None or self._state.history.changed_at > leader.epoch_start
        return set_here and original(self, leader, now_ms)

    return [patch.object(Membership, "_may_step", may_step)]


@_mutant("a leader ignores a node that is ahead of it")
def _seekers_are_not_heard() -> list[Any]:
    return [patch.object(Elections, "hear_seeker", lambda self, request, now_ms: None)]


@_mutant("a moved voter is not found without a leader")
def _addresses_are_not_heard() -> list[Any]:
    return [patch.object(VoterAddresses, "given", lambda self, key, address: None)]


# Zombies and answers


@_mutant("a zombie leader keeps deciding")
def _never_paused() -> list[Any]:
    return [patch.object(Contacts, "update_pause", lambda self, leader, now_ms: None)]


@_mutant("leadership circulates among slow disks")
def _blind_to_slow_disks() -> list[Any]:
    return [
        patch.object(Contacts, "stall_limit_ms", lambda self, leader, now_ms: self._state.config.fetch_timeout_ms),
        patch.object(Timeouts, "patience_ms", lambda self, now_ms: 0),
    ]


@_mutant("leadership returns to a preferred voter with a slow disk")
def _prefers_slow_disks() -> list[Any]:
    return [patch.object(Handovers, "_has_slow_disk", lambda self, leader, fetcher: False)]


@_mutant("an answer is sent before its records are committed")
def _answers_at_once() -> list[Any]:
    async def committed(self: QuorumNode, end_offset: int, epoch: int) -> None:
        return None

    return [patch.object(QuorumNode, "committed", committed)]


@_mutant("a stale read is served")
def _stale_reads() -> list[Any]:
    async def confirm_read(self: QuorumNode, timeout_ms: int) -> int:
        if not isinstance(self.core.role, Leader):
            raise NotLeaderError("not the leader")
        return self.high_watermark

    return [patch.object(QuorumNode, "confirm_read", confirm_read)]


@_mutant("any fetch confirms a read")
def _any_fetch_confirms() -> list[Any]:
    def round_of(self: Any, leader: Leader, key: ReplicaKey) -> int:
        """Every voter that has ever fetched from this leader counts, in whichever round."""
        return leader.round if key in leader.replicas else 0

    return [patch.object(Contacts, "round_of", round_of)]


@_mutant("calls that wait for a commit do not fail when the leadership ends")
def _waiters_survive() -> list[Any]:
    return [patch.object(OffsetWaiters, "fail", lambda self, error: None)]


@_mutant("applies uncommitted batches")
def _applies_early() -> list[Any]:
    original = Replication.report_watermark

    def announce(self: Any) -> None:
        state = self._state
        original(self)
        if state.log.durable_end > self._announced:
            self._announced = state.log.durable_end
            state.effects.append(AdvanceHighWatermark(self._announced))

    return [patch.object(Replication, "report_watermark", announce)]


def attack_quorum(seed: int) -> str | None:
    return play(draw(seed)).violation
