"""Current reads: the leader proves that it still leads (ReadIndex in the Raft thesis, §6.4).

Theory of operation.  The state that a leader has committed is current only while no other leader has committed more,
and the leader may not know of another leader.  So the voters confirm a read.  The leader raises its *round*, which
every fetch reply carries and every fetch repeats, and immediately answers the parked fetches of all voters.  A fetch
with that round was sent after the read was requested, by a voter that was still in this epoch.  A majority of such
fetches shows that no later leader had been elected when the read began.  The read must then see everything below the
watermark of that moment.  A fetch of an older round proves nothing, however late it arrives.

Before the leader's own first record is committed, the leader knows only that everything its predecessors committed is
below that record.  So a read always waits for that record.

Reads share a round until a reply has carried it, and most fetches of a round would be sent anyway.  So a single read
takes one round trip, and a read under load takes at most two.

Changes of the voters use rounds in the same way, to find the voters that are live (`change_gate.py`)."""

from __future__ import annotations

from quorum.core.contacts import Contacts
from quorum.core.events import ConfirmRead, ReadConfirmed, ReadRefused
from quorum.core.roles import Leader, WaitingRead
from quorum.core.state import CoreState


class ReadIndex:
    """Confirms reads as leader."""

    def __init__(self, state: CoreState, contacts: Contacts) -> None:
        self._state = state
        self._contacts = contacts

    def on_confirm_read(self, event: ConfirmRead, now_ms: int) -> None:
        state = self._state
        leader = state.role
        if not isinstance(leader, Leader):
            known = state.leader
            who = f"node {known.node_id} leads" if known is not None else "no leader is known"
            state.effects.append(ReadRefused(event.call, f"not the leader; {who}"))
            return
        self._contacts.update_pause(leader, now_ms)
        if not leader.paused and len(leader.waiting_reads) >= state.config.reads_max:
            state.effects.append(ReadRefused(event.call, f"{len(leader.waiting_reads)} reads wait already"))
            return
        offset = max(state.high_watermark, leader.epoch_start + 1)
        leader.waiting_reads.append(WaitingRead(event.call, self._contacts.begin_round(leader), offset))

    def confirm_reads(self, leader: Leader) -> None:
        """Confirm the reads in whose round a majority has fetched.  While the leader is paused, refuse all reads."""
        state = self._state
        if leader.paused:
            return refuse_reads(
                state, leader, f"paused: no majority has fetched within {state.config.fetch_timeout_ms} ms"
            )
        if not leader.waiting_reads:
            return None
        rounds = [
            leader.round if voter.key == state.key else self._contacts.round_of(leader, voter.key)
            for voter in state.history.current
        ]
        confirmed = sorted(rounds, reverse=True)[state.history.current.majority - 1]
        waiting: list[WaitingRead] = []
        for read in leader.waiting_reads:
            if read.round <= confirmed and state.high_watermark >= read.offset:
                state.effects.append(ReadConfirmed(read.call, read.offset))
            else:
                waiting.append(read)
        leader.waiting_reads = waiting
        return None


def refuse_reads(state: CoreState, leader: Leader, reason: str) -> None:
    """Refuse all reads that wait to be confirmed by this leader."""
    for read in leader.waiting_reads:
        state.effects.append(ReadRefused(read.call, reason))
    leader.waiting_reads = []
