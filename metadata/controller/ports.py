"""The controller's interface to the quorum node below it: a part of `quorum.node.QuorumNode`."""

from __future__ import annotations

from typing import Protocol

from quorum.core.events import Transferred, VoterChange, VoterChangeResult


class Node(Protocol):
    """The driver of this process's Raft replica.  Everything happens on one event loop."""

    @property
    def node_id(self) -> int: ...

    @property
    def cluster_id(self) -> str | None:
        """None until the node has joined or founded its cluster."""
        ...

    @property
    def generation(self) -> int:
        """The number of times that the node's quorum was rebuilt by `quorum-node recover`."""
        ...

    @property
    def epoch(self) -> int: ...

    @property
    def leader_id(self) -> int | None: ...

    @property
    def leader_address(self) -> str | None: ...

    def control_address_of(self, node_id: int) -> str | None:
        """The control address (HOST:PORT) in a node's fetches from this leader; None if unknown."""
        ...

    @property
    def paused(self) -> bool:
        """Return whether this node leads, but no majority of the voters fetches from it."""
        ...

    @property
    def resumed_at(self) -> float:
        """Loop time at which this node's last pause ended; 0.0 when it has not been paused yet."""
        ...

    @property
    def log_end_offset(self) -> int: ...

    def append(self, epoch: int, payload: bytes, count: int) -> int:
        """Append a batch immediately and return its base offset.

        Raises:
            NotLeaderError: this node does not lead `epoch` and never will again; nothing was appended.
            CannotAppendNowError: it leads `epoch` but accepts nothing now; a retry may succeed.
        """
        ...

    async def committed(self, end_offset: int, epoch: int) -> None:
        """Wait until everything below `end_offset` is committed.

        Raises:
            LeadershipLostError: this node stopped leading `epoch` first.
        """
        ...

    async def confirm_read(self, timeout_ms: int) -> int:
        """Wait until a majority has confirmed, since the call, that this node leads.

        Return the end offset that a current read must have applied.

        Raises:
            NotLeaderError: this node does not lead, or cannot get a confirmation now.
            TimeoutError: not confirmed in time.
        """
        ...

    @property
    def voter_ids(self) -> tuple[int, ...]:
        """Node ids of the current voters, ascending."""
        ...

    async def change_voters(self, change: VoterChange, *, dry_run: bool, timeout_ms: int) -> VoterChangeResult:
        """Change the voters, as the leader, and return the outcome.  A cancellation does not stop the change."""
        ...

    async def transfer_leader(self, to: int | None, timeout_ms: int) -> Transferred:
        """Hand leadership to a voter, or to the best candidate, and return the outcome."""
        ...
