"""The leaders that this node has known: how the last leadership ended, and which leaders lost leadership quickly.

Every node records this from its own observations.  So a new leader also knows a preferred node that recently failed to
keep leadership, and does not hand over to it for a while.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from quorum.core.events import Transferred, VoterChangeError
from quorum.core.roles import Follower, Leader
from quorum.core.state import CoreState
from quorum.core.timeouts import backoff_ms
from quorum.core.types import ReplicaKey


@dataclass(slots=True)
class PendingTransfer:
    """A `Transfer` that is not answered yet.  epoch: the epoch that was given up; None while this node still leads."""

    call: int
    to: int
    deadline_ms: int
    epoch: int | None = None


class Leadership(NamedTuple):
    """The leadership of an epoch."""

    epoch: int
    leader_id: int


class EndedLeadership(NamedTuple):
    """A leadership that ended, and the reason that this node knows."""

    epoch: int
    leader_id: int
    reason: str
    ended_ms: int


class Farewell(NamedTuple):
    """The content of the last EndQuorumEpoch: the epoch, and why its leader gave it up."""

    epoch: int
    reason: str


class HandedOver(NamedTuple):
    """A leadership that this node or another gave up, and the node that was to lead next."""

    epoch: int
    to: int


@dataclass(slots=True)
class Unsteady:
    """A node that did not take leadership, or did not keep it: not preferred before `until_ms`."""

    failures: int
    until_ms: int


class LeaderHistory:
    """Follows the leaderships that this node sees, and answers a pending transfer when its outcome is known."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self.farewell: Farewell | None = None
        self.last_end: EndedLeadership | None = None
        self.transfer: PendingTransfer | None = None
        self._handed_over: HandedOver | None = None
        self._unsteady: dict[int, Unsteady] = {}  # by node id
        self._known: Leadership | None = None  # of the current epoch
        self._known_since_ms = 0
        self._joined: Leadership | None = None  # the leadership in which this node takes part, as leader or follower

    def has_resigned(self, epoch: int) -> bool:
        """Return whether the leader of this epoch has announced its end."""
        return self.farewell is not None and self.farewell.epoch == epoch

    def unsteady_until(self, node_id: int) -> int | None:
        """Return the time before which this node is not preferred; None if no failure of it is recorded."""
        unsteady = self._unsteady.get(node_id)
        return unsteady.until_ms if unsteady is not None else None

    def note_successors(self, epoch: int, successors: tuple[ReplicaKey, ...]) -> None:
        """Note that the leader of this epoch gives up leadership in favour of the first of these voters."""
        if successors:
            self._handed_over = HandedOver(epoch, successors[0].node_id)

    def end_transfer(self, error: VoterChangeError, message: str) -> None:
        if self.transfer is not None:
            self._state.effects.append(Transferred(self.transfer.call, error, message))
            self.transfer = None

    def observe(self, now_ms: int, reason: str) -> None:
        """Take note of a transition of this node, which has just happened for `reason`."""
        self._note_end(now_ms, reason)
        self._follow_leaders(now_ms)

    def _note_end(self, now_ms: int, reason: str) -> None:
        """Note the end of the leadership in which this node took part, and its reason."""
        state, before, leader_id = self._state, self._joined, None
        match state.role:
            case Leader():
                leader_id = state.key.node_id
            case Follower() as follower:
                leader_id = follower.leader_id
        self._joined = Leadership(state.epoch, leader_id) if leader_id is not None else None
        if before is None or before == self._joined:
            return
        # The leader's own reason replaces the reason that this node concluded.
        if self.farewell is not None and self.farewell.epoch == before.epoch and self.farewell.reason:
            reason = f"resigned: {self.farewell.reason}"
        self.last_end = EndedLeadership(before.epoch, before.leader_id, reason, now_ms)

    def _follow_leaders(self, now_ms: int) -> None:
        """Note when the current leader became known, whether the last leadership lasted, and how a handover ended."""
        epoch, leader_id = self._state.election.epoch, self._state.election.leader_id
        if self._known is not None and epoch > self._known.epoch:
            before, self._known = self._known, None
            if now_ms - self._known_since_ms < self._state.config.steady_ms:
                self.note_failure(before.leader_id, now_ms)
            else:
                self._unsteady.pop(before.leader_id, None)
        if leader_id is None or self._known is not None:
            return
        self._known, self._known_since_ms = Leadership(epoch, leader_id), now_ms
        if self._handed_over is not None and epoch > self._handed_over.epoch:
            wanted, self._handed_over = self._handed_over.to, None
            if leader_id != wanted:
                self.note_failure(wanted, now_ms)
        transfer = self.transfer
        if transfer is not None and transfer.epoch is not None and epoch > transfer.epoch:
            if leader_id == transfer.to:
                self.end_transfer(VoterChangeError.NONE, f"node {leader_id} leads epoch {epoch}")
            else:
                other = f"node {leader_id} leads epoch {epoch}, not node {transfer.to}"
                self.end_transfer(VoterChangeError.OUTCOME_UNKNOWN, other)
        elif transfer is not None and transfer.epoch is None and not isinstance(self._state.role, Leader):
            self.end_transfer(VoterChangeError.NOT_LEADER, f"node {leader_id} now leads epoch {epoch}")

    def note_failure(self, node_id: int, now_ms: int) -> None:
        """Do not prefer this node for a time that doubles with each failure, up to `preference_wait_max_ms`."""
        config = self._state.config
        found = self._unsteady.get(node_id)
        failures = found.failures + 1 if found is not None else 1
        wait_ms = backoff_ms(config.preference_wait_ms, config.preference_wait_max_ms, failures)
        self._unsteady[node_id] = Unsteady(failures, now_ms + wait_ms)
