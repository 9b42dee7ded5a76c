"""Decisions about a change of the voters: wait, report a verdict, or append a record.

Theory of operation.  `decide` examines a pending change again after each event:

    None               an address or a voter has not answered yet, or the newcomer has not caught up: wait
    a verdict          refused, or already satisfied: report it; nothing was changed
    a control record   append it; the change is done when the record is committed

The leader verifies everything that it can.  It asks at the advertised address which node answers there (Introduce).
This proves that the address is reachable, keeps a mistyped address out of the log, and finds the directory id, so that
no operator has to type it.  A new voter counts as caught up once a fetch from that directory id, received after the
check began, has reached the end of the log.  A change that would leave no majority of live voters is refused, and the
refusal names the numbers (`contacts.py` decides which voters are live).

A contact from before the check proves too little: the voter may have lost its disk since then.  A new set that needs
this voter for its majority could never commit the change, and the quorum would stay paused permanently, although the
old set still had a live majority.  So the check ends with a new round (`reads.py`).  The change is appended as soon as
a majority of each new set has fetched or downloaded in that round.  The members that were measured, or that answered at
their address, count without a fetch, and so does the leader if it is a member.  If the majority is missing after the
fetch timeout, the change is refused.
"""

from __future__ import annotations

from uuid import UUID

from msgspec.structs import replace

from quorum.core.changes import VOTERS_MAX, Verdict, names, refuse_without_majority, with_voter, without_voter
from quorum.core.contacts import Contacts
from quorum.core.events import (
    AddVoter,
    CancelTarget,
    RemoveVoter,
    SetTarget,
    UpdateVoter,
    VoterChangeError,
)
from quorum.core.messages import IntroduceReply
from quorum.core.replication import Replication
from quorum.core.roles import Confirmation, Leader, Measured, PendingChange, Probe
from quorum.core.state import CoreState
from quorum.core.types import ControlRecord, ReplicaKey, TargetVoters, Voter, Voters, VoterSet

PROBES_MAX = 5
"""An address counts as unreachable after this many requests in a row without an answer.

The pauses between these requests take 0.75 s or more by default.  A connection that has failed may wait 0.6 s before it
tries again, so a node that has just started is still reached.
"""


class ChangeGate:
    """Decides on changes of the voters for a leader."""

    def __init__(self, state: CoreState, contacts: Contacts, replication: Replication) -> None:
        self._state = state
        self._contacts = contacts
        self._replication = replication

    def decide(self, leader: Leader, work: PendingChange, now_ms: int) -> Verdict | ControlRecord | None:
        """Return the decision about a change, or None to wait; see the module's docstring.

        Also begin the checks that the decision waits for: add probes to `work`, answer a newcomer's parked fetch, or
        begin a round in which the voters confirm the change.
        """
        match work.change:
            case AddVoter() as change:
                return self._decide_add(leader, work, change, now_ms)
            case RemoveVoter() as change:
                return self._decide_remove(leader, work, change, now_ms)
            case UpdateVoter() as change:
                return self._decide_update(work, change, now_ms)
            case SetTarget() as change:
                return self._decide_target(leader, work, change, now_ms)
            case CancelTarget():
                if self._state.history.target is None:
                    return Verdict(VoterChangeError.NONE, "there is no target")
                return TargetVoters(None)

    def _decide_add(
        self, leader: Leader, work: PendingChange, change: AddVoter, now_ms: int
    ) -> Verdict | ControlRecord | None:
        current = self._state.history.current
        present = current.by_id(change.node_id)
        named = (None, present.key.directory_id) if present is not None else ()
        same = present is not None and present.address == change.address and change.directory_id in named
        if present is None and len(current) >= VOTERS_MAX:
            message = f"there are {len(current)} voters; at most {VOTERS_MAX} are possible"
            return Verdict(VoterChangeError.INVALID_REQUEST, message, "remove another voter first")
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
        if not self._has_caught_up(leader, work, found, now_ms):
            return self._too_slow(leader, work, found, now_ms)
        after = with_voter(current, voter)
        if present is None:
            return self._confirm(leader, work, self._voters(after), (after,), {found}, now_ms)
        between = without_voter(current, present.key)
        if len(between) == 0:
            return Verdict(VoterChangeError.LAST_VOTER, f"{present.key} is the only voter", "add another voter first")
        return self._confirm(leader, work, TargetVoters(after), (between, after), {found}, now_ms)

    def _other_disk_words(self, leader: Leader, voter: ReplicaKey, now_ms: int) -> str:
        """Return the next step for an operator if another disk answers with the id of a voter."""
        if self._contacts.is_live(leader, voter, now_ms):
            return f"two nodes run with id {voter.node_id}: give one another id, or stop the old node and use --replace"
        return "if the old disk is lost permanently: repeat the command with --replace"

    def _decide_remove(
        self, leader: Leader, work: PendingChange, change: RemoveVoter, now_ms: int
    ) -> Verdict | ControlRecord | None:
        state = self._state
        current = state.history.current
        voter = current.by_id(change.node_id)
        if voter is None or change.directory_id not in (None, voter.key.directory_id):
            if state.history.was_voter(change.node_id, change.directory_id):
                return Verdict(VoterChangeError.NONE, f"node {change.node_id} has been removed already")
            which = f" with directory id {change.directory_id}" if change.directory_id is not None else ""
            message = f"node {change.node_id}{which} is not among the voters {names(current)}"
            return Verdict(VoterChangeError.VOTER_NOT_FOUND, message, "see `kctl quorum status`")
        if len(current) == 1:
            message = f"node {change.node_id} is the last voter"
            return Verdict(VoterChangeError.LAST_VOTER, message, "add another voter first")
        after = without_voter(current, voter.key)
        return self._confirm(leader, work, self._voters(after), (after,), set(), now_ms)

    def _decide_update(self, work: PendingChange, change: UpdateVoter, now_ms: int) -> Verdict | ControlRecord | None:
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
        self, leader: Leader, work: PendingChange, change: SetTarget, now_ms: int
    ) -> Verdict | ControlRecord | None:
        state = self._state
        if (wrong := _refuse_target(change)) is not None:
            return wrong
        current = state.history.current
        voters: list[Voter] = []
        answered: set[ReplicaKey] = set()
        waiting = False
        for node_id, address in change.voters:
            found = self._identify(work, node_id, address, None, now_ms)
            present = current.by_id(node_id)
            if isinstance(found, ReplicaKey):
                voters.append(Voter(found, address))
                answered.add(found)
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
        return self._confirm(leader, work, TargetVoters(target), (target,), answered, now_ms)

    # Checks

    def _voters(self, voters: VoterSet) -> Voters:
        record = self._state.history.record
        assert record is not None, "leads without a founding record"
        return replace(record, voters=voters)

    def _refuse_address(self, node_id: int, address: str) -> Verdict | None:
        for voter in self._state.history.current:
            if voter.address == address and voter.key.node_id != node_id:
                message = f"{address} is the address of voter {voter.key.node_id}"
                return Verdict(VoterChangeError.INVALID_REQUEST, message, f"give the address of node {node_id}")
        return None

    def _identify(
        self, work: PendingChange, node_id: int, address: str, directory_id: UUID | None, now_ms: int
    ) -> ReplicaKey | Verdict | None:
        """Return the key of the disk that answers at `address`; None until it has answered.

        Return a verdict if no node answers, or a node that was not expected.
        """
        state = self._state
        if (node_id, address) == (state.key.node_id, state.config.address):
            found = state.key
        else:
            probe = work.probes.setdefault(address, Probe(now_ms))
            if probe.reply is None:
                if probe.failures < PROBES_MAX:
                    return None
                message = f"no node answers at {address}"
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
            return Verdict(VoterChangeError.WRONG_NODE, message, "`kctl quorum status` shows the address of each node")
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

    def _has_caught_up(self, leader: Leader, work: PendingChange, key: ReplicaKey, now_ms: int) -> bool:
        """Return whether the new voter has fetched up to the end of the log since the check began.

        The first call begins the check.
        """
        progress = leader.replicas.get(key)
        if work.measured_from is None:
            work.measured_from = Measured(now_ms, progress.fetches if progress is not None else 0)
            # A fetch that was parked before does not show that the newcomer is live now: make it fetch again.
            self._replication.answer_parked(leader, key)
        return progress is not None and progress.caught_up_fetch > work.measured_from.fetches

    def _too_slow(self, leader: Leader, work: PendingChange, key: ReplicaKey, now_ms: int) -> Verdict | None:
        """Refuse a new voter that has not fetched for the fetch timeout; None to wait until it has caught up."""
        assert work.measured_from is not None, f"{key} was not measured"
        progress = leader.replicas.get(key)
        heard_ms = progress.last_fetch_ms if progress is not None else None
        work.expiry_ms = max(work.measured_from.since_ms, heard_ms or 0) + self._state.config.fetch_timeout_ms
        if now_ms < work.expiry_ms:
            return None
        message = self._contacts.why_not_ready(leader, key, now_ms)
        return Verdict(VoterChangeError.NOT_CAUGHT_UP, message, "wait until it has caught up, then try again")

    def _confirm(
        self,
        leader: Leader,
        work: PendingChange,
        record: ControlRecord,
        sets: tuple[VoterSet, ...],
        answered: set[ReplicaKey],
        now_ms: int,
    ) -> Verdict | ControlRecord | None:
        """Return the record once a majority of each set is known to be live; None to wait; a verdict to refuse it.

        answered: the nodes that this check has already heard.
        """
        state, contacts = self._state, self._contacts
        live = answered | contacts.live_voters(leader, state.history.current, now_ms)
        confirmed = answered | {state.key}
        if work.confirmation is not None:
            confirmed |= {key for key in live if contacts.round_of(leader, key) >= work.confirmation.round}
        missing = _refuse_any(sets, confirmed)
        if missing is None:
            work.expiry_ms = None
            return record
        if work.confirmation is None:
            if (refusal := _refuse_any(sets, live)) is not None:
                return refusal
            work.confirmation = Confirmation(now_ms, contacts.begin_round(leader))
        work.expiry_ms = work.confirmation.since_ms + state.config.fetch_timeout_ms
        return missing if now_ms >= work.expiry_ms else None


def _refuse_any(sets: tuple[VoterSet, ...], live: set[ReplicaKey]) -> Verdict | None:
    """Refuse the first set without a live majority; None if each has one."""
    refusals = (refuse_without_majority(voters, live) for voters in sets)
    return next((refusal for refusal in refusals if refusal is not None), None)


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
