"""The search for the leader, by a node that has no contact with a leader.

Theory of operation.  A node without a leader asks other nodes: it sends one DescribeQuorum at a time, to a voter or
bootstrap address drawn at random.  Every node answers from its own state.

A *paused* leader, from which no majority fetches, searches as well.  It may have been replaced, or removed from the
voters, while it was disconnected, and any node may know about that.  It asks voters and other nodes in turn, including
observers, because its link to a broker may work while its links to the voters do not.  When it has tried all other
voters and reached none, it drops its connections (`ResetConnections`) and asks a bootstrap address.  It stays leader
until it learns of a newer epoch, so that no election is needed when the links work again.
"""

from __future__ import annotations

from quorum.core.events import Peer, ResetConnections
from quorum.core.messages import DescribeQuorum
from quorum.core.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from quorum.core.state import CoreState, Purpose
from quorum.core.timeouts import Timeouts


class LeaderSearch:
    """Asks one node after the other which leader it knows."""

    def __init__(self, state: CoreState, timeouts: Timeouts) -> None:
        self._state = state
        self._timeouts = timeouts

    def is_on(self) -> bool:
        """Return whether this node searches for a leader now."""
        state = self._state
        match state.role:
            case Unattached() | Prospective() | Resigned() | Candidate(overdue=True):
                return state.met
            case Follower() as follower:
                return follower.leader_ended or follower.fetch.failures > 0
            case Leader() as leader:
                return leader.paused
        return False

    def ask_next(self, now_ms: int) -> None:
        """Ask one random node, if the pause after the last request is over."""
        state = self._state
        if not state.seek.is_due(now_ms):
            return
        peers = self._peers_of_paused(state.role) if isinstance(state.role, Leader) else self.addresses()
        if not peers:
            state.seek.due_ms = None
            return
        to = peers[self._timeouts.draw(len(peers))]
        reported = state.epoch if state.epoch_to_report is None else state.epoch_to_report
        epoch = 0 if isinstance(state.role, Leader) else reported
        state.ask(state.seek, Purpose.SEEK, to, DescribeQuorum(state.sender, state.config.address, epoch), now_ms)

    def _peers_of_paused(self, leader: Leader) -> list[Peer]:
        """Return the nodes from which a paused leader draws the next node to ask.

        These are voters and other nodes in turn; after the connections were dropped, the bootstrap nodes once.
        """
        state = self._state
        known = self.addresses()
        if leader.reset:
            leader.reset = False
            named = {*state.config.bootstrap, *(address for _, address in state.config.founders)}
            bootstrap = [peer for peer in known if peer.address in named]
            return bootstrap or known
        voters = [peer for peer in known if self._is_voter_id(peer.node_id)]
        others = [peer for peer in known if not self._is_voter_id(peer.node_id)]
        for key in sorted(leader.replicas):
            if key not in state.history.current:
                others.append(Peer(key.node_id, leader.replicas[key].address))
        voters = [peer for peer in voters if peer.node_id not in leader.unreached] or voters
        first, second = (voters, others) if state.seek.failures % 2 == 0 else (others, voters)
        return first or second

    def _note_contact(self, leader: Leader, to: Peer, answered: bool, now_ms: int) -> None:
        """Note whether a voter answered.

        When no other voter was reached, drop the connections, at most once in `reset_interval_ms`.
        """
        state = self._state
        if to.node_id is None or not self._is_voter_id(to.node_id):
            return
        if answered:
            leader.unreached.clear()
            return
        leader.unreached.add(to.node_id)
        others = {key.node_id for key in state.other_voters}
        if others <= leader.unreached and now_ms >= leader.reset_due_ms:
            leader.unreached.clear()
            leader.reset_due_ms = now_ms + state.config.reset_interval_ms
            leader.reset = True
            state.effects.append(ResetConnections())

    def _is_voter_id(self, node_id: int | None) -> bool:
        return node_id is not None and self._state.history.current.by_id(node_id) is not None

    def addresses(self) -> list[Peer]:
        """Return the addresses of other nodes in a fixed order: voters, then the bootstrap and founders' addresses."""
        state = self._state
        found = {voter.address: voter.key.node_id for voter in state.history.current if voter.key != state.key}
        peers = [Peer(node_id, address) for address, node_id in found.items()]
        named = sorted({*state.config.bootstrap, *(address for _, address in state.config.founders)})
        peers += [Peer(None, address) for address in named if address not in found and address != state.config.address]
        return peers

    def ended(self, to: Peer, answered: bool, now_ms: int) -> None:
        """Note whether the node that was asked last has answered, and set the time of the next request."""
        state = self._state
        state.seek.call = None
        if isinstance(state.role, Leader):
            self._note_contact(state.role, to, answered, now_ms)
        state.seek.failures += 1
        state.seek.due_ms = now_ms + self._timeouts.retry_ms(state.seek.failures)
