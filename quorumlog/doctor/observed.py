"""The observations of one examination of a cluster, and what follows from them without further requests.

Everything here describes the cluster at the time of the examination.  Messages are kept as the nodes sent them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quorumlog.words import Key, quoted, rfc3339

if TYPE_CHECKING:
    from quorumlog.doctor.groups_observed import ObservedGroups
    from quorumlog.doctor.transactions_observed import ObservedTransactions
    from quorumlog.wire.v1 import controller_pb2, node_pb2, quorum_pb2

NO_LEADER = -1


@dataclass(slots=True)
class ObservedNode:
    """One node.  Fields that end in `later` hold the second answer, if a second one was requested."""

    address: str
    node_id: int | None = None
    silence: str | None = None
    """The reason why the node does not answer; None if it answers.

    The fields below are then empty, except `hangs`, and `quorum` if the node answered only the first request.
    """
    hangs: bool = False
    """Whether the node accepts connections, but does not answer."""
    quorum: quorum_pb2.DescribeQuorumReply | None = None
    """The quorum as this node sees it."""
    described: node_pb2.DescribeNodeReply | None = None
    described_later: node_pb2.DescribeNodeReply | None = None
    clock_ahead_ms: int | None = None
    """How far the node's wall clock is ahead of the examiner's; negative if it is behind."""
    strays: list[node_pb2.Stray] = field(default_factory=list)
    replicas: dict[Key, node_pb2.ReplicaDescription] = field(default_factory=dict)
    """The node's replicas of topics with a problem (`troubled_topics`)."""
    replicas_later: dict[Key, node_pb2.ReplicaDescription] = field(default_factory=dict)

    @property
    def answers(self) -> bool:
        return self.silence is None

    @property
    def leads(self) -> bool:
        """Return whether the node reports that it leads the quorum."""
        return self.quorum is not None and self.leader_id == self.quorum.answered_by.node_id

    @property
    def leader_id(self) -> int | None:
        """The leader according to this node."""
        known = None if self.quorum is None else self.quorum.known
        return known.leader_id if known is not None and known.HasField("leader_id") else None

    @property
    def cluster_id(self) -> str | None:
        """The cluster to which this node belongs; None if it does not answer, or is in no cluster yet."""
        known = None if self.quorum is None else self.quorum.known
        return known.cluster_id if known is not None and known.HasField("cluster_id") else None

    @property
    def epoch(self) -> int:
        """The quorum's epoch as this node knows it; 0 if it does not answer."""
        return 0 if self.quorum is None else self.quorum.known.epoch

    def failing_checks(self, *, ignored: tuple[str, ...] = ()) -> str:
        """Return the health checks that fail, as text; empty if none does."""
        checks = [] if self.described is None else self.described.checks
        failing = [check for check in checks if not check.ok and check.name not in ignored]
        return "; ".join(f"{check.name}: {check.detail}" for check in failing)


@dataclass(slots=True)
class ObservedCluster:
    """All observations.  addresses: the addresses that the user gave."""

    addresses: list[str]
    nodes: list[ObservedNode] = field(default_factory=list)
    quorum: quorum_pb2.DescribeQuorumReply | None = None
    """The reply of the leader, or without a leader the most advanced reply; None if no node answers."""
    metadata: node_pb2.DescribeMetadataReply | None = None
    metadata_problem: str = ""
    """The reason why `metadata` is None; not valid otherwise."""
    heartbeats: dict[int, controller_pb2.BrokerDescription] = field(default_factory=dict)
    """The information of the brokers' heartbeats at the controller, by id."""
    heartbeats_later: dict[int, controller_pb2.BrokerDescription] = field(default_factory=dict)
    """The same from a second request, made to see progress; empty if it was not necessary or not answered."""
    controller_problem: str = ""
    """The reason why the active controller does not answer.  Empty if it answers, or if no controller is active."""
    client_ports: dict[int, str | None] = field(default_factory=dict)
    """For brokers whose control address no node knows: why the client port refuses connections; None if it accepts
    them."""
    groups: ObservedGroups | None = None
    """The consumer groups; None if no group was ever used, or no broker could be asked."""
    transactions: ObservedTransactions | None = None
    """The transactions in the logs; None if no transaction was ever begun, or no broker could be asked."""
    doubles: dict[int, list[str]] = field(default_factory=dict)
    """Addresses of nodes that claim the same id with different disks, by id."""

    @property
    def own_nodes(self) -> list[ObservedNode]:
        """The nodes that do not report another cluster than `quorum` does.

        Nodes of another cluster may have the same ids as these nodes.
        """
        return [node for node in self.nodes if not self.is_foreign(node)]

    def is_foreign(self, node: ObservedNode) -> bool:
        """Return whether a node reports that it belongs to another cluster."""
        return self.cluster_id is not None and node.cluster_id not in (None, self.cluster_id)

    @property
    def cluster_id(self) -> str | None:
        """The id of the cluster in `quorum`; None if it is not known."""
        known = None if self.quorum is None else self.quorum.known
        return known.cluster_id if known is not None and known.HasField("cluster_id") else None

    @property
    def clock_ahead_ms(self) -> int:
        """The median time by which the nodes' clocks are ahead of the examiner's, which may be wrong; 0 if unknown.

        If the nodes are divided in halves, the lower half counts.  With a clock that is ahead, healthy transactions
        would seem to hang, and doctor would advise to abort them.
        """
        known = [node.clock_ahead_ms for node in self.own_nodes if node.clock_ahead_ms is not None]
        return statistics.median_low(known) if known else 0

    @property
    def leader(self) -> ObservedNode | None:
        """The node that reports that it leads, in the highest epoch."""
        leaders = [node for node in self.nodes if node.leads]
        return max(leaders, key=lambda node: node.epoch, default=None)

    @property
    def voters(self) -> list[int]:
        """Ids of the voters in `quorum`, sorted."""
        return [] if self.quorum is None else sorted(voter.replica.key.node_id for voter in self.quorum.voters)

    @property
    def replaced_voters(self) -> list[int]:
        """Voters whose node answers with another disk.  Such a node is an observer, so the voter is missing."""
        if self.quorum is None:
            return []
        return [
            key.node_id for key in (status.replica.key for status in self.quorum.voters)
            if (node := self.node(key.node_id)) is not None and node.quorum is not None
            and key.directory_id and (disk := node.quorum.answered_by.directory_id) and disk != key.directory_id
        ]  # fmt: skip

    @property
    def followed(self) -> int | None:
        """The leader that a majority of the voters follows in one epoch, even if it does not answer this machine."""
        views = [
            (node.epoch, node.leader_id)
            for node in self.own_nodes
            if node.node_id in self.voters and node.leader_id is not None
        ]
        found = max(set(views), key=views.count, default=None)
        return found[1] if found is not None and 2 * views.count(found) > len(self.voters) else None

    @property
    def committed_end(self) -> int:
        """End of the records that were certainly committed when the quorum was asked."""
        return int(self.quorum.high_watermark) if self.quorum is not None else 0

    def node(self, node_id: int) -> ObservedNode | None:
        """Return the node with this id.  If there are several, prefer one that answers.

        A node of another cluster counts only at an address of this cluster, where it replaces the node with this id.
        """
        replicas = [] if self.quorum is None else [*self.quorum.voters, *self.quorum.observers]
        places = {status.replica.address for status in replicas}
        found = [
            node
            for node in self.nodes
            if node.node_id == node_id and (not self.is_foreign(node) or node.address in places)
        ]
        return next((node for node in found if node.answers), found[0] if found else None)

    def answers(self, node_id: int) -> bool:
        node = self.node(node_id)
        return node is not None and node.answers

    def hangs(self, node_id: int) -> bool:
        """Return whether the process must be restarted: it accepts connections, does not answer and reported no end."""
        node = self.node(node_id)
        return node is not None and node.hangs and self.end_of(node_id) is None

    def silence_of(self, node_id: int) -> str | None:
        """Return the reason why a node does not answer, and the end that it reported.

        None: it answers, or its address is not known.  Only a leader knows the control addresses of brokers; without a
        leader, the client port of the broker is the evidence.
        """
        node = self.node(node_id)
        silence = self.client_ports.get(node_id) if node is None else node.silence
        end = self.end_of(node_id)
        if silence is None or end is None:
            return silence
        reported = f"it ended at {rfc3339(end.at_ms)} with status {end.exit_status}: {quoted(end.cause)}"
        return f"{silence}; node {node_id} reported: {reported}"

    def end_of(self, node_id: int) -> node_pb2.NodeEnd | None:
        """Return the latest end that an unavailable node reported to others; None if it answers or reported none."""
        if self.answers(node_id):
            return None
        reported = [end for each in self.own_nodes if each.described is not None for end in each.described.ends]
        own = [end for end in reported if end.node_id == node_id]
        return max(own, key=lambda end: end.at_ms, default=None)


def ids_of(nodes: Iterable[ObservedNode]) -> tuple[int, ...]:
    """Return the known ids of nodes, sorted."""
    return tuple(sorted(node.node_id for node in nodes if node.node_id is not None))


def is_troubled(partition: controller_pb2.PartitionDescription) -> bool:
    """Return whether a partition has no leader, lacks a replica in sync, or is being moved."""
    return bool(
        partition.leader == NO_LEADER
        or len(partition.isr) < len(partition.replicas)
        or partition.adding
        or partition.removing
    )


def troubled_topics(metadata: node_pb2.DescribeMetadataReply) -> set[str]:
    """Return the names of topics with a troubled partition."""
    return {topic.name for topic in metadata.topics if any(map(is_troubled, topic.partitions))}
