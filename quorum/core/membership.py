"""The changes of the voters: one at a time, in force when appended (Raft thesis §4, KIP-853).

Theory of operation.  If two voter sets differ by one voter, any majority of one shares a voter with any majority of the
other.  So the voters may be changed by a plain record, if each change starts from a committed set, in an epoch whose
own record is committed.  The leader works on one requested change at a time (`leader.change`), and beside it on at most
one step of its own (`leader.step`).  `change_gate.py` decides about both again after each event.

A target (`TargetVoters`) is a record: any leader derives the next step from the voters and the target, so the work
survives a change of the leader.  The replacement of a disk also sets such a target: it takes two steps, and continues
if the leader fails between them.  A leader that has removed itself leads until the removal is committed, without
counting itself.  Then it resigns, and the first of its successors immediately becomes a candidate."""

from __future__ import annotations

from quorum.core.change_gate import PROBES_MAX, ChangeGate
from quorum.core.changes import Verdict, names, next_change, report_change
from quorum.core.contacts import Contacts
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
from quorum.core.messages import Introduce, IntroduceReply, Reply
from quorum.core.roles import Leader, PendingChange, PendingRequest
from quorum.core.state import Call, CoreState, Purpose
from quorum.core.timeouts import Timeouts, backoff_ms
from quorum.core.types import Batch, ControlRecord, TargetVoters, Voters


class Membership:
    """Changes the voters while this node leads."""

    def __init__(self, state: CoreState, timeouts: Timeouts, contacts: Contacts, gate: ChangeGate) -> None:
        self._state = state
        self._timeouts = timeouts
        self._contacts = contacts
        self._gate = gate

    # Requested changes

    def on_change_voters(self, event: ChangeVoters, now_ms: int) -> None:
        refusal = self._refuse_change(event, now_ms)
        if refusal is not None:
            return report_change(self._state, event.call, refusal)
        leader = self._state.role
        assert isinstance(leader, Leader)
        if leader.change is not None:
            message = "another target was set before this one was reached"
            if isinstance(event.change, CancelTarget):
                message = "the target was cancelled before it was reached"
            overridden = Verdict(VoterChangeError.OUTCOME_UNKNOWN, message)
            self._end_change(leader, leader.change, overridden, now_ms)
        deadline = now_ms + max(event.timeout_ms, 1)
        leader.change = PendingChange(event.call, event.change, event.dry_run, deadline)
        return None

    def _refuse_change(self, event: ChangeVoters, now_ms: int) -> Verdict | None:
        """Return the reason why no change of this kind can begin now; None if one can."""
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
            return Verdict(
                VoterChangeError.CHANGE_PENDING, "another change is in progress", "try again when it is complete"
            )
        if leader.handover is not None:
            return Verdict(VoterChangeError.CHANGE_PENDING, "leadership is being handed over", "try again in a moment")
        target = state.history.target
        if target is not None and not targets:
            message = f"the voters are being changed from {names(state.history.current)} to {names(target)}"
            advice = "wait (`kctl alter-quorum --wait`), set another target, or `kctl alter-quorum --cancel`"
            return Verdict(VoterChangeError.TARGET_IN_PROGRESS, message, advice)
        if self._is_uncommitted and not targets:
            message = f"the last change, to voters {names(state.history.current)}, is not committed yet"
            return Verdict(VoterChangeError.CHANGE_PENDING, message, "try again when it is committed")
        return None

    def _paused_words(self) -> tuple[str, str]:
        timeout = self._state.config.fetch_timeout_ms
        return (
            f"no majority of the voters has fetched within {timeout} ms",
            "start the others, or repair their connections",
        )

    @property
    def _is_uncommitted(self) -> bool:
        state = self._state
        return state.history.changed_at >= state.high_watermark

    def restart_checks(self, leader: Leader) -> None:
        """Repeat the probes and measurements of the changes in progress, because this node was stalled.

        A reply that waited meanwhile does not show that its sender is alive.
        """
        for work in (leader.change, leader.step):
            if work is not None and work.end is None:
                work.probes.clear()
                work.restart()

    # Progress

    def pursue(self, leader: Leader, now_ms: int) -> None:
        """Advance the requested change and the leader's own step, and begin the next step if there is one."""
        if leader.change is not None:
            self._advance_change(leader, leader.change, now_ms)
        if leader.step is not None:  # the change above may have set another target, which ends the step
            self._advance_change(leader, leader.step, now_ms)
        if leader.step is None and self._may_step(leader, now_ms):
            self._begin_step(leader, now_ms)

    @property
    def has_left(self) -> bool:
        """Return whether this leader has left the voters, and its removal is committed.  It then resigns."""
        return not self._state.is_voter and not self._is_uncommitted

    def _advance_change(self, leader: Leader, work: PendingChange, now_ms: int) -> None:
        state = self._state
        if work.end is not None:
            reached = not work.sets_target or state.history.target is None
            if reached and state.high_watermark >= max(work.end, state.history.changed_at + 1):
                self._end_change(leader, work, None, now_ms)
            elif work.call is not None and now_ms >= work.deadline_ms:
                unknown = Verdict(
                    VoterChangeError.OUTCOME_UNKNOWN,
                    "not committed in time, but it may still be committed",
                    "`kctl quorum status` shows which voters fetch; "
                    "the change is complete once a majority of the new set fetches",
                )
                self._end_change(leader, work, unknown, now_ms)
            return
        outcome: Verdict | ControlRecord | None
        if leader.paused:
            outcome = Verdict(VoterChangeError.PAUSED, *self._paused_words())
        elif now_ms >= work.deadline_ms:
            outcome = Verdict(VoterChangeError.TIMED_OUT, "not done in time; nothing was changed", "try again")
        elif self._is_uncommitted and not isinstance(work.change, SetTarget | CancelTarget):
            work.restart()  # another change was appended meanwhile, and must be committed first
            outcome = None
        else:
            outcome = self._gate.decide(leader, work, now_ms)
        if outcome is None:
            self._ask_probes(work, now_ms)
        elif isinstance(outcome, Verdict):
            self._end_change(leader, work, outcome, now_ms)
        elif work.dry_run:
            self._report_dry_run(leader, work, outcome)
        else:
            work.sets_target = isinstance(outcome, TargetVoters) and not isinstance(
                work.change, SetTarget | CancelTarget
            )
            self._append_control(leader, outcome, now_ms)
            work.end = state.log.end

    def _append_control(self, leader: Leader, record: ControlRecord, now_ms: int) -> None:
        """Append a change, which is in force from now on."""
        state = self._state
        timestamp_ms = now_ms + state.config.wall_offset_ms
        state.append(Batch(state.log.end, state.epoch, 1, timestamp_ms, control=record))
        if isinstance(record, TargetVoters):
            leader.step_failures, leader.step_due_ms, leader.target_problem = 0, None, None
            if leader.step is not None and leader.step.end is None:
                leader.step = None  # the step to the target was chosen before this change
        if isinstance(record, Voters):
            known = leader.announcements
            # A new voter fetches already, so it does not need an immediate announcement of the leader.
            later = now_ms + state.config.fetch_timeout_ms // 2
            leader.announcements = {key: known.get(key) or PendingRequest(later) for key in state.other_voters}

    def _report_dry_run(self, leader: Leader, work: PendingChange, record: ControlRecord) -> None:
        state = self._state
        leader.change = None
        voters, target = state.history.current, state.history.target
        if isinstance(record, Voters):
            voters = record.voters
        if isinstance(record, TargetVoters):
            target = record.target
        message = f"would lead to voters {names(target if target is not None else voters)}"
        assert work.call is not None, f"nobody requested the dry run {work}"
        result = VoterChangeResult(VoterChangeError.NONE, message, "", False, 0, voters, target)
        state.effects.append(VotersChanged(work.call, result))

    def _end_change(self, leader: Leader, work: PendingChange, verdict: Verdict | None, now_ms: int) -> None:
        """End the work.  verdict: None if the change is committed; else the refusal, or why the outcome is unknown."""
        state = self._state
        if work is leader.step:
            leader.step = None
            if verdict is not None and verdict.error is not VoterChangeError.NONE:
                leader.target_problem = verdict.message
                leader.step_failures += 1
                first_ms, max_ms = state.config.step_backoff_ms, state.config.step_backoff_max_ms
                leader.step_due_ms = now_ms + backoff_ms(first_ms, max_ms, leader.step_failures)
            else:
                leader.step_failures, leader.step_due_ms, leader.target_problem = 0, None, None
            return None
        assert work is leader.change, f"{work} is not worked on"
        assert work.call is not None, f"nobody requested the change {work}"
        leader.change = None
        if verdict is not None:
            return report_change(self._state, work.call, verdict, offset=work.end or 0)
        target = state.history.target
        aim = f"; the target is {names(target)}" if target is not None else ""
        done = Verdict(VoterChangeError.NONE, f"voters {names(state.history.current)}{aim}")
        report_change(self._state, work.call, done, changed=True, offset=state.history.changed_at + 1)
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
        """Begin the next step towards the target, if there is one; else the update of a voter that has moved."""
        state = self._state
        current, target = state.history.current, state.history.target
        change: AddVoter | RemoveVoter | UpdateVoter | None
        if target is not None:
            live = self._contacts.live_voters(leader, current, now_ms)
            change = next_change(current, target, state.history.target_started_size, state.key, live)
            if change is None:
                return self._append_control(leader, TargetVoters(None), now_ms)
        else:
            change = self._moved_voter(leader, now_ms)
            if change is None:  # a voter whose update was refused has its former address again, or is not live
                leader.step_failures, leader.step_due_ms, leader.target_problem = 0, None, None
        if change is not None:
            leader.step = PendingChange(None, change, False, now_ms + state.config.step_timeout_ms)
            self._advance_change(leader, leader.step, now_ms)
        return None

    def _moved_voter(self, leader: Leader, now_ms: int) -> UpdateVoter | None:
        """Return a change of the address of a voter that has moved, or None if no voter has.

        A voter has moved if it advertises an address that differs from its address in the log.

        If several voters have moved, each failed step is followed by another voter: one voter may be unreachable, or
        may have moved to an address that the log still has for another voter.
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

    # Asking addresses

    def _ask_probes(self, work: PendingChange, now_ms: int) -> None:
        state = self._state
        for address, probe in work.probes.items():
            if probe.is_due(now_ms):
                request = Introduce(state.sender, ())
                state.ask(probe, Purpose.PROBE, Peer(None, address), request, now_ms)

    def on_probe_reply(self, number: int, call: Call, reply: Reply | None, now_ms: int) -> None:
        """Note the reply of the node at an address.  reply: None if it has not answered."""
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
                probe.due_ms = None if is_last else now_ms + self._timeouts.retry_ms(probe.failures)

    def timers(self, leader: Leader, now_ms: int) -> list[int | None]:
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
