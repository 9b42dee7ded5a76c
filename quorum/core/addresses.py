"""The addresses of voters that have moved, while no leader can write them to the log.

A voter gives its address with its requests.  It sends none to voters that it does not know, such as those that were
added while it was down.  Therefore nodes without a leader also report the addresses that they have heard, in their
replies to DescribeQuorum.
"""

from __future__ import annotations

from typing import NamedTuple

from quorum.core.events import Peer
from quorum.core.state import CoreState
from quorum.core.types import ReplicaKey, Voter


class VoterAddress(NamedTuple):
    """An address of a voter that is newer than the one in the log."""

    by_log: str  # the voter's address in the log at that time; once the log has another one, this entry is outdated
    heard: str
    is_own: bool  # the voter itself gave it; otherwise another node reported it


class VoterAddresses:
    """The addresses that this node has heard and that are newer than those in the log."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._heard: dict[ReplicaKey, VoterAddress] = {}

    def given(self, key: ReplicaKey, address: str) -> None:
        """Note the address that a voter gives with a request."""
        self._note(key, address, is_own=True)

    def reported(self, voters: tuple[Voter, ...]) -> None:
        """Note the addresses in another node's reply, except of voters that have given their own."""
        for voter in voters:
            known = self.newest(voter.key)
            in_log = self._state.history.current.by_id(voter.key.node_id)
            if (known is None or not known.is_own) and in_log is not None and in_log.address != voter.address:
                self._note(voter.key, voter.address, is_own=False)

    def _note(self, key: ReplicaKey, address: str, *, is_own: bool) -> None:
        voter = self._state.history.current.by_id(key.node_id)
        if voter is not None and voter.key == key and address:
            self._heard[key] = VoterAddress(voter.address, address, is_own)

    def newest(self, key: ReplicaKey) -> VoterAddress | None:
        """Return the address that a voter gave, or another node reported, after the address in the log was written."""
        known, voter = self._heard.get(key), self._state.history.current.by_id(key.node_id)
        if known is None or voter is None or voter.key != key or known.by_log != voter.address:
            return None
        return known

    def where(self, voter: ReplicaKey, failures: int) -> Peer:
        """Return the address for a request for a vote: the newer address and the log's address in turn."""
        known = self.newest(voter)
        if known is None or failures % 2:
            return self._state.peer(voter)
        return Peer(voter.node_id, known.heard)
