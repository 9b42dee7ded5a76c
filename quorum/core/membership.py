"""Who votes: one change at a time, in force when appended (design §4.8, Raft §4 of the thesis, KIP-853).

Theory of operation.  Two majorities, of a voter set and of one that differs by one voter, always share a voter.  So the
voters may be changed by a plain record, if each change starts from a committed one and in an epoch whose own record is
committed.  The leader takes on one change that was asked for at a time (`leader.change`), and beside it at most one
step of its own (`leader.step`).  Both go through the same gate, `_decide`, each time that something has happened:

    not yet            an address was not heard yet, the newcomer is not measured as caught up, or what the other one
                       of the two has appended is not committed: wait
    a verdict          refused, or so already: tell it; nothing was changed
    a control record   append it; done when it is committed

Nothing is believed that can be asked.  The leader asks the advertised address who answers there (Introduce): that
proves it reachable, keeps a mistyped one out of the log, and finds the directory id, which nobody has to type.  A
newcomer counts as caught up by a fetch that was sent after the measuring began, from under that directory id.  A change
that would leave no majority of live voters is refused with the arithmetic: alive is who has fetched within the fetch
timeout, unless another disk was met at that voter's address since.

A target (`TargetVoters`) is a record: whoever leads reads the next step off the two sets and takes it, so the work
survives any leader.  Putting a new disk in an old one's place is such a target, too: it takes two steps, and is not
lost between them.  A leader that has taken itself out leads until that is committed, without counting itself; then it
resigns, and the best of the others stands at once."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from quorum.core.changes import (
    VOTERS_MAX,
    Verdict,
    names,
    next_change,
    refuse_without_majority,
    with_voter,
    without_voter,
)
from quorum.core.events import (
    AddVoter,
    CancelTarget,
    ChangeVoters,
    Peer,
    RemoveVoter,
    SetTarget,
    UpdateVoter,
    VoterChangeError,
    VoterChangeResult,
    VotersChanged,
)
from quorum.core.handover import Handovers
from quorum.core.messages import Introduce, IntroduceReply, Reply
from quorum.core.roles import Change, Errand, Leader, Probe, RoleState
from quorum.core.state import Call, Purpose
from quorum.core.types import Batch, ControlRecord, ReplicaKey, TargetVoters, Voter, Voters, VoterSet

PROBES_MAX = 3
"""An address that has not answered so often in a row cannot be reached."""


class Membership(Handovers):
    """Changes the voters as leader."""

    target_problem: str | None = None
    """Of a leader: why the last step towards the target was not taken; None when it was."""

    @property
    def target_step(self) -> str | None:
        """Of a leader: what it is doing towards the target, in words; None when nothing is under way."""
        state = self._state
        step = state.role.step if isinstance(state.role, Leader) else None
        if step is None or state.history.target is None:
            return None
        doing = "is committing" if step.end is not None else "is checking"
        match step.change:
            case AddVoter() as change:
                waits = step.measured_from is not None and step.end is None
                doing = "waits until it has caught up" if waits else doing
                return f"add node {change.node_id} at {change.address}: {doing}"
            case RemoveVoter() as change:
                return f"take node {change.node_id} out: {doing}"
            case UpdateVoter() as change:
                return f"move node {change.key.node_id} to {change.address}: {doing}"
        return None

    # Asked for

    def _on_change_voters(self, event: ChangeVoters, now_ms: int) -> None:
        refusal = self._refuse_change(event, now_ms)
        if refusal is not None:
            return self._tell_change(event.call, refusal)
        leader = self._state.role
        assert isinstance(leader, Leader)
        if leader.change is not None:
            overridden = Verdict(VoterChangeError.OUTCOME_UNKNOWN, "another target was set before this one was reached")
            self._end_change(leader, leader.change, overridden, now_ms)
        deadline = now_ms + max(event.timeout_ms, 1)
        leader.change = Change(event.call, event.change, event.dry_run, deadline)
        return None

    def _refuse_change(self, event: ChangeVoters, now_ms: int) -> Verdict | None:
        """What must hold before any change is looked at."""
        state = self._state
        leader = state.role
        if not isinstance(leader, Leader):
            return Verdict(VoterChangeError.NOT_LEADER, "this node does not lead")
        self._contacts.update_pause(leader, now_ms)
        if leader.paused:
            return Verdict(VoterChangeError.PAUSED, *self._paused_words())
        if state.high_watermark <= leader.epoch_start:
            message = f"the leader has not committed a record of its epoch {state.epoch} yet"
            return Verdict(VoterChangeError.NOT_COMMITTED_YET, message, "try again in a moment")
        targets = isinstance(event.change, SetTarget | CancelTarget)
        may_override = targets and not event.dry_run
        if leader.change is not None and not (may_override and leader.change.sets_target):
            return Verdict(VoterChangeError.CHANGE_PENDING, "another change is under way", "try again when it is done")
        if leader.handover is not None:
            return Verdict(VoterChangeError.CHANGE_PENDING, "leadership is being handed over", "try again in a moment")
        target = state.history.target
        if target is not None and not targets:
            message = f"the voters are being changed from {names(state.history.current)} to {names(target)}"
            advice = "wait (`kctl alter-quorum --wait`), set another target, or `kctl alter-quorum --cancel`"
            return Verdict(VoterChangeError.TARGET_IN_PROGRESS, message, advice)
        if self._is_uncommitted and not targets:
            message = f"the last change, to voters {names(state.history.current)}, is not committed yet"
            return Verdict(VoterChangeError.CHANGE_PENDING, message, "try again when it is")
        return None

    def _paused_words(self) -> tuple[str, str]:
        timeout = self._state.config.fetch_timeout_ms
        return f"no majority of the voters has fetched within {timeout} ms", "see that a majority of them runs"

    @property
    def _is_uncommitted(self) -> bool:
        state = self._state
        return state.history.changed_at >= state.high_watermark

    def _restart_checks(self, leader: Leader) -> None:
        """Ask and measure anew for changes under way, after this node was held up.

        A reply that waited meanwhile does not show that its sender is alive.
        """
        for work in (leader.change, leader.step):
            if work is not None and work.end is None:
                work.probes.clear()
                work.measured_from = work.expiry_ms = None

    def _tell_change(self, call: int, verdict: Verdict, *, changed: bool = False, offset: int = 0) -> None:
        state = self._state
        voters, target = state.history.current, state.history.target
        state.effects.append(VotersChanged(call, VoterChangeResult(*verdict, changed, offset, voters, target)))

    # Working on it

    def _pursue_changes(self, leader: Leader, now_ms: int) -> None:
        if leader.change is not None:
            self._advance_change(leader, leader.change, now_ms)
        if leader.step is not None:  # that change may have set another target, which ended it
            self._advance_change(leader, leader.step, now_ms)
        if leader.step is None and self._may_step(leader, now_ms):
            self._begin_step(leader, now_ms)
        if not self._state.is_voter and not self._is_uncommitted:
            self._resign(now_ms, "is no voter any more")

    def _advance_change(self, leader: Leader, work: Change, now_ms: int) -> None:
        state = self._state
        if work.end is not None:
            reached = not work.sets_target or state.history.target is None
            if reached and state.high_watermark >= max(work.end, state.history.changed_at + 1):
                self._end_change(leader, work, None, now_ms)
            elif work.call is not None and now_ms >= work.deadline_ms:
                unknown = Verdict(
                    VoterChangeError.OUTCOME_UNKNOWN,
                    "not committed in time; it may still be",
                    "see in `kctl quorum status` which voters fetch; it is done once a majority of the new set does",
                )
                self._end_change(leader, work, unknown, now_ms)
            return
        outcome: Verdict | ControlRecord | None
        if leader.paused:
            outcome = Verdict(VoterChangeError.PAUSED, *self._paused_words())
        elif now_ms >= work.deadline_ms:
            outcome = Verdict(VoterChangeError.TIMED_OUT, "not done in time; nothing was changed", "try again")
        else:
            outcome = self._decide(leader, work, now_ms)
        if outcome is None:
            self._ask_probes(work, now_ms)
        elif isinstance(outcome, Verdict):
            self._end_change(leader, work, outcome, now_ms)
        elif work.dry_run:
            self._tell_dry_run(leader, work, outcome)
        elif isinstance(outcome, Voters) and self._is_uncommitted:
            return  # another change was appended while this one asked around: it goes first
        else:
            work.sets_target = isinstance(outcome, TargetVoters) and not isinstance(
                work.change, SetTarget | CancelTarget
            )
            self._append_control(leader, outcome, now_ms)
            work.end = state.log.end

    def _append_control(self, leader: Leader, record: ControlRecord, now_ms: int) -> None:
        state = self._state
        timestamp_ms = now_ms + state.config.wall_offset_ms
        state.append(Batch(state.log.end, state.epoch, 1, timestamp_ms, control=record))
        if isinstance(record, TargetVoters):
            leader.step_failures, leader.step_due_ms, self.target_problem = 0, None, None
            if leader.step is not None and leader.step.end is None:
                leader.step = None  # it was on the way to something else
        if isinstance(record, Voters):
            known = leader.announcements
            later = now_ms + state.config.fetch_timeout_ms // 2  # a newcomer fetches already
            leader.announcements = {key: known.get(key) or Errand(later) for key in state.other_voters}

    def _tell_dry_run(self, leader: Leader, work: Change, record: ControlRecord) -> None:
        state = self._state
        leader.change = None
        voters, target = state.history.current, state.history.target
        if isinstance(record, Voters):
            voters = record.voters
        if isinstance(record, TargetVoters):
            target = record.target
        message = f"would lead to voters {names(target if target is not None else voters)}"
        assert work.call is not None, f"a dry run of nobody's: {work}"
        result = VoterChangeResult(VoterChangeError.NONE, message, "", False, 0, voters, target)
        state.effects.append(VotersChanged(work.call, result))

    def _end_change(self, leader: Leader, work: Change, verdict: Verdict | None, now_ms: int) -> None:
        """The work is over: with a verdict, or committed."""
        state = self._state
        if work is leader.step:
            leader.step = None
            if verdict is not None and verdict.error is not VoterChangeError.NONE:
                self.target_problem = verdict.message
                base, most = state.config.step_backoff_ms, state.config.step_backoff_max_ms
                leader.step_due_ms = now_ms + min(most, base << min(leader.step_failures, 10))
                leader.step_failures += 1
            else:
                leader.step_failures, leader.step_due_ms, self.target_problem = 0, None, None
            return None
        assert work is leader.change, f"{work} is not worked on"
        assert work.call is not None, f"a change of nobody's: {work}"
        leader.change = None
        if verdict is not None:
            return self._tell_change(work.call, verdict, offset=work.end or 0)
        target = state.history.target
        aim = f"; the target is {names(target)}" if target is not None else ""
        done = Verdict(VoterChangeError.NONE, f"voters {names(state.history.current)}{aim}")
        self._tell_change(work.call, done, changed=True, offset=state.history.changed_at + 1)
        return None

    # The leader's own steps

    def _may_step(self, leader: Leader, now_ms: int) -> bool:
        if leader.paused or leader.handover is not None or self._is_uncommitted:
            return False
        if leader.change is not None and not leader.change.sets_target:
            return False
        waits = leader.step_due_ms is not None and now_ms < leader.step_due_ms
        return not waits and self._state.high_watermark > leader.epoch_start

    def _begin_step(self, leader: Leader, now_ms: int) -> None:
        """The next step towards the target, if there is one; else a voter that has moved."""
        state = self._state
        current, target = state.history.current, state.history.target
        change: AddVoter | RemoveVoter | UpdateVoter | None
        if target is not None:
            live = self._live(leader, current, now_ms)
            change = next_change(current, target, state.history.target_started_size, state.key, live)
            if change is None:
                return self._append_control(leader, TargetVoters(None), now_ms)
        else:
            change = self._moved_voter(leader, now_ms)
        if change is not None:
            leader.step = Change(None, change, False, now_ms + state.config.step_timeout_ms)
            self._advance_change(leader, leader.step, now_ms)
        return None

    def _moved_voter(self, leader: Leader, now_ms: int) -> UpdateVoter | None:
        """A voter that advertises, by its fetches, another address than the log has.

        Of several another one after each failure: it may be nowhere to be reached, or where the next one was.
        """
        state = self._state
        moved: list[UpdateVoter] = []
        for voter in state.history.current:
            address = voter.address
            if voter.key == state.key:
                address = state.config.address
            elif self._contacts.is_live(leader, voter.key, now_ms):
                address = leader.replicas[voter.key].address
            if address != voter.address:
                moved.append(UpdateVoter(voter.key, address))
        return moved[leader.step_failures % len(moved)] if moved else None

    # The gate

    def _decide(self, leader: Leader, work: Change, now_ms: int) -> Verdict | ControlRecord | None:
        match work.change:
            case AddVoter() as change:
                return self._decide_add(leader, work, change, now_ms)
            case RemoveVoter() as change:
                return self._decide_remove(leader, change, now_ms)
            case UpdateVoter() as change:
                return self._decide_update(work, change, now_ms)
            case SetTarget() as change:
                return self._decide_target(leader, work, change, now_ms)
            case CancelTarget():
                if self._state.history.target is None:
                    return Verdict(VoterChangeError.NONE, "no target is being worked towards")
                return TargetVoters(None)

    def _decide_add(
        self, leader: Leader, work: Change, change: AddVoter, now_ms: int
    ) -> Verdict | ControlRecord | None:
        current = self._state.history.current
        present = current.by_id(change.node_id)
        named = (None, present.key.directory_id) if present is not None else ()
        same = present is not None and present.address == change.address and change.directory_id in named
        if present is None and len(current) >= VOTERS_MAX:
            message = f"there are {len(current)} voters; at most {VOTERS_MAX} are possible"
            return Verdict(VoterChangeError.INVALID_REQUEST, message, "take another one out first")
        found = self._identify(work, change.node_id, change.address, change.directory_id, now_ms)
        if found is None:
            return None
        if isinstance(found, Verdict):
            if same and not change.replace and found.error is VoterChangeError.UNREACHABLE:
                return Verdict(
                    VoterChangeError.NONE, f"node {change.node_id} is a voter already; it does not answer now"
                )
            return found
        if (taken := self._refuse_address(change.node_id, change.address)) is not None:
            return taken
        voter = Voter(found, change.address)
        if present is not None and present.key == found:
            if same:
                return Verdict(VoterChangeError.NONE, f"node {change.node_id} is a voter already")
            return self._voters(with_voter(current, voter))
        if present is not None and not change.replace:
            return Verdict(
                VoterChangeError.DUPLICATE_VOTER,
                f"node {change.node_id} is a voter with another disk: {present.key}; {found} answers now",
                self._other_disk_words(leader, present.key, now_ms),
            )
        if (lag := self._measure(leader, work, found, now_ms)) is not None:
            return lag if lag.error is not VoterChangeError.NONE else None
        after = with_voter(current, voter)
        live = {*self._live(leader, current, now_ms), found}
        if present is None:
            return refuse_without_majority(after, live) or self._voters(after)
        between = without_voter(current, present.key)
        if len(between) == 0:
            return Verdict(VoterChangeError.LAST_VOTER, f"{present.key} is the only voter", "add another one first")
        refusal = refuse_without_majority(between, live) or refuse_without_majority(after, live)
        return refusal or TargetVoters(after)

    def _other_disk_words(self, leader: Leader, voter: ReplicaKey, now_ms: int) -> str:
        """What to do about a voter's id that answers from another disk."""
        if self._contacts.is_live(leader, voter, now_ms):
            return f"two nodes run with id {voter.node_id}: give one another id, or stop the old one and use --replace"
        return "if the old disk is lost for good: the same with --replace"

    def _decide_remove(self, leader: Leader, change: RemoveVoter, now_ms: int) -> Verdict | ControlRecord:
        state = self._state
        current = state.history.current
        voter = current.by_id(change.node_id)
        if voter is None or change.directory_id not in (None, voter.key.directory_id):
            if state.history.was_voter(change.node_id, change.directory_id):
                return Verdict(VoterChangeError.NONE, f"node {change.node_id} was a voter, and is none already")
            which = f" with directory id {change.directory_id}" if change.directory_id is not None else ""
            message = f"node {change.node_id}{which} is not among the voters {names(current)}"
            return Verdict(VoterChangeError.VOTER_NOT_FOUND, message, "see `kctl quorum status`")
        if len(current) == 1:
            message = f"node {change.node_id} is the last voter"
            return Verdict(VoterChangeError.LAST_VOTER, message, "add another one first")
        after = without_voter(current, voter.key)
        return refuse_without_majority(after, self._live(leader, current, now_ms)) or self._voters(after)

    def _decide_update(self, work: Change, change: UpdateVoter, now_ms: int) -> Verdict | ControlRecord | None:
        current = self._state.history.current
        voter = current.by_id(change.key.node_id)
        if voter is None or voter.key != change.key:
            return Verdict(VoterChangeError.VOTER_NOT_FOUND, f"{change.key} is not among the voters {names(current)}")
        if voter.address == change.address:
            return Verdict(VoterChangeError.NONE, f"node {change.key.node_id} is at {change.address} already")
        if (taken := self._refuse_address(change.key.node_id, change.address)) is not None:
            return taken
        found = self._identify(work, change.key.node_id, change.address, change.key.directory_id, now_ms)
        if found is None or isinstance(found, Verdict):
            return found
        return self._voters(with_voter(current, Voter(voter.key, change.address)))

    def _decide_target(
        self, leader: Leader, work: Change, change: SetTarget, now_ms: int
    ) -> Verdict | ControlRecord | None:
        state = self._state
        if (wrong := _refuse_target(change)) is not None:
            return wrong
        current = state.history.current
        voters: list[Voter] = []
        live = set(self._live(leader, current, now_ms))
        waiting = False
        for node_id, address in change.voters:
            found = self._identify(work, node_id, address, None, now_ms)
            present = current.by_id(node_id)
            if isinstance(found, ReplicaKey):
                voters.append(Voter(found, address))
                live.add(found)
            elif found is None:
                waiting = True
            elif present is not None and present.address == address and found.error is VoterChangeError.UNREACHABLE:
                voters.append(present)  # it is down, but known
            else:
                return found
        if waiting:
            return None
        target = VoterSet(tuple(sorted(voters, key=lambda voter: voter.key.node_id)))
        if target == state.history.target:
            return Verdict(VoterChangeError.NONE, f"{names(target)} is the target already")
        if state.history.target is None and target == current:
            return Verdict(VoterChangeError.NONE, f"the voters are {names(target)} already")
        return refuse_without_majority(target, live) or TargetVoters(target)

    # What it looks at

    def _voters(self, voters: VoterSet) -> Voters:
        record = self._state.history.record
        assert record is not None, "leads without a founding record"
        return replace(record, voters=voters)

    def _live(self, leader: Leader, voters: VoterSet, now_ms: int) -> set[ReplicaKey]:
        return {voter.key for voter in voters if self._contacts.is_live(leader, voter.key, now_ms)}

    def _refuse_address(self, node_id: int, address: str) -> Verdict | None:
        for voter in self._state.history.current:
            if voter.address == address and voter.key.node_id != node_id:
                message = f"{address} is the address of voter {voter.key.node_id}"
                return Verdict(VoterChangeError.INVALID_REQUEST, message, f"give the address of node {node_id}")
        return None

    def _identify(
        self, work: Change, node_id: int, address: str, directory_id: UUID | None, now_ms: int
    ) -> ReplicaKey | Verdict | None:
        """Which disk answers at `address`; None while that is being asked."""
        state = self._state
        if (node_id, address) == (state.key.node_id, state.config.address):
            found = state.key
        else:
            probe = work.probes.setdefault(address, Probe(now_ms))
            if probe.reply is None:
                if probe.failures < PROBES_MAX:
                    return None
                message = f"nobody answers at {address}"
                return Verdict(
                    VoterChangeError.UNREACHABLE, message, f"start node {node_id} there, or correct the address"
                )
            refusal = self._refuse_newcomer(probe.reply, node_id, address)
            if refusal is not None:
                return refusal
            found = probe.reply.key
        if directory_id not in (None, found.directory_id):
            message = f"node {node_id} at {address} has directory id {found.directory_id}, not {directory_id}"
            return Verdict(VoterChangeError.WRONG_NODE, message)
        return found

    def _refuse_newcomer(self, reply: IntroduceReply, node_id: int, address: str) -> Verdict | None:
        state = self._state
        if reply.key.node_id != node_id:
            message = f"node {reply.key.node_id} answers at {address}, not node {node_id}"
            return Verdict(VoterChangeError.WRONG_NODE, message, "see `kctl quorum status` for who is where")
        theirs = reply.known.cluster_id
        if theirs not in (None, state.cluster_id):
            message = f"node {node_id} at {address} belongs to cluster {theirs}, not {state.cluster_id}"
            return Verdict(
                VoterChangeError.WRONG_CLUSTER, message, "give a node of this cluster, see `kctl quorum status`"
            )
        if theirs is None or reply.newborn:
            message = f"node {node_id} at {address} has not joined the cluster yet"
            return Verdict(
                VoterChangeError.NOT_CAUGHT_UP, message, "start it with --join and an address of this cluster"
            )
        return None

    def _measure(self, leader: Leader, work: Change, key: ReplicaKey, now_ms: int) -> Verdict | None:
        """None once the newcomer has caught up; else a verdict, of which NONE means: wait.

        A fetch that was parked before says nothing about now, so it is answered, to make the newcomer fetch again.
        """
        state = self._state
        progress = leader.replicas.get(key)
        if work.measured_from is None:
            work.measured_from = (now_ms, progress.fetches if progress is not None else 0)
            self._replication.answer_parked(leader, key)
        from_ms, fetches = work.measured_from
        if progress is not None and progress.caught_up_fetch > fetches:
            work.expiry_ms = None
            return None
        heard_ms = progress.last_fetch_ms if progress is not None else None
        work.expiry_ms = max(from_ms, heard_ms or 0) + state.config.fetch_timeout_ms
        if now_ms >= work.expiry_ms:
            message = self._contacts.why_not_ready(leader, key, now_ms)
            return Verdict(VoterChangeError.NOT_CAUGHT_UP, message, "wait until it has caught up, then try again")
        return Verdict(VoterChangeError.NONE, "is catching up")

    # Asking addresses

    def _ask_probes(self, work: Change, now_ms: int) -> None:
        state = self._state
        for address, probe in work.probes.items():
            if probe.is_due(now_ms):
                request = Introduce(state.sender, ())
                state.ask(probe, Purpose.PROBE, Peer(None, address), request, now_ms)

    def _on_probe_reply(self, number: int, call: Call, reply: Reply | None, now_ms: int) -> None:
        """An address has answered, or (None) has not."""
        leader = self._state.role
        if not isinstance(leader, Leader):
            return
        for work in (leader.change, leader.step):
            probe = work.probes.get(call.to.address) if work is not None else None
            if probe is None or probe.call != number:
                continue
            probe.call = None
            if isinstance(reply, IntroduceReply):
                probe.reply, probe.due_ms = reply, None
                self._contacts.note_disk(leader, reply.key, call.to.address, now_ms)
            else:
                probe.failures += 1
                is_last = probe.failures >= PROBES_MAX
                probe.due_ms = None if is_last else now_ms + self._timeouts.backoff_ms(probe.failures)

    def _change_timers(self, leader: Leader, now_ms: int) -> list[int | None]:
        times: list[int | None] = []
        for work in (leader.change, leader.step):
            if work is not None and (work.end is None or work.call is not None):
                times.append(work.deadline_ms)
            if work is not None and work.end is None:
                times += [probe.wakes_ms for probe in work.probes.values()]
                times.append(work.expiry_ms)
        if leader.step is None and leader.step_due_ms is not None and leader.step_due_ms > now_ms:
            times.append(leader.step_due_ms)
        return times

    # The end of a reign

    def _become(self, role: RoleState, now_ms: int, reason: str) -> None:
        before, self.target_problem = self._state.role, None
        super()._become(role, now_ms, reason)
        if not isinstance(before, Leader) or before.change is None or before.change.call is None:
            return
        work, before.change = before.change, None
        assert work.call is not None
        if work.end is None:
            lost = Verdict(
                VoterChangeError.NOT_LEADER, f"leads no more: {reason}; nothing was changed", "ask the new leader"
            )
        elif work.sets_target:
            lost = Verdict(
                VoterChangeError.OUTCOME_UNKNOWN,
                f"leads no more: {reason}; the next leader goes on if the target was committed",
            )
        else:
            lost = Verdict(
                VoterChangeError.OUTCOME_UNKNOWN, f"leads no more: {reason}; the change may still be committed"
            )
        self._tell_change(work.call, lost, offset=work.end or 0)


def _refuse_target(change: SetTarget) -> Verdict | None:
    ids = [node_id for node_id, _ in change.voters]
    addresses = [address for _, address in change.voters]
    if not ids:
        return Verdict(VoterChangeError.LAST_VOTER, "a target without voters")
    if len(ids) > VOTERS_MAX:
        return Verdict(VoterChangeError.INVALID_REQUEST, f"{len(ids)} voters; at most {VOTERS_MAX} are possible")
    if len(set(ids)) < len(ids) or len(set(addresses)) < len(addresses):
        return Verdict(VoterChangeError.INVALID_REQUEST, "the target names a node or an address twice")
    return None
