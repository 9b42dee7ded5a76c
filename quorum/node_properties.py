"""The properties of a quorum node that only read its configuration and its core."""

from __future__ import annotations

from abc import ABC, abstractmethod
from uuid import UUID

from quorum.core.config import RaftConfig
from quorum.core.core import RaftCore
from quorum.core.messages import DescribeQuorumReply
from quorum.core.types import Role, VoterSet
from quorumlog.runtime.clock import now_ms


class NodeProperties(ABC):
    """The base class of `QuorumNode`: its properties that only read its configuration and its core."""

    def __init__(self, config: RaftConfig) -> None:
        self._config = config

    @property
    @abstractmethod
    def core(self) -> RaftCore:
        """Return the core, which exists only once the node is open."""

    def describe(self) -> DescribeQuorumReply:
        """Return the state of the quorum as far as this node knows it."""
        return self.core.describe(now_ms())

    @property
    def log_start(self) -> int:
        """Return the offset of the first batch that this node's log still holds."""
        return self.core.log.start

    def voters_below(self, offset: int) -> tuple[VoterSet, VoterSet | None]:
        """Return the voters and the target voters according to the log below `offset`.

        `offset` must not be below the log's start.
        """
        return self.core.history.below(offset)

    @property
    def node_id(self) -> int:
        return self._config.node_id

    @property
    def directory_id(self) -> UUID:
        return self.core.key.directory_id

    @property
    def address(self) -> str:
        """Return the control address that this node advertises."""
        return self._config.address

    @property
    def generation(self) -> int:
        """Return how often the quorum that this node belongs to was rebuilt by `quorum-node recover`."""
        return self.core.generation

    @property
    def epoch(self) -> int:
        return self.core.epoch

    @property
    def voter_ids(self) -> tuple[int, ...]:
        """Return the node ids of the voter set in force, ascending."""
        return tuple(voter.key.node_id for voter in self.core.history.current)

    @property
    def paused(self) -> bool:
        """Return whether this node leads and no majority fetches from it."""
        return self.core.paused

    @property
    def role(self) -> Role:
        return self.core.role.role

    @property
    def leader_id(self) -> int | None:
        leader = self.core.leader
        return None if leader is None else leader.node_id

    @property
    def leader_address(self) -> str | None:
        leader = self.core.leader
        return None if leader is None else leader.address

    def control_address_of(self, node_id: int) -> str | None:
        """Return the control address that a node advertises in its fetches from this leader.

        None when it is unknown, or when this node does not lead.
        """
        return self.core.address_of(node_id)

    @property
    def log_end_offset(self) -> int:
        return self.core.log.end
