"""Derives the problems of a cluster from the observations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from quorumlog.doctor.brokers import broker_findings
from quorumlog.doctor.compaction import compaction_findings
from quorumlog.doctor.dead_letters import dead_letter_findings
from quorumlog.doctor.findings import ADVICE, PROBLEM, SEVERITIES, Finding
from quorumlog.doctor.groups import group_findings
from quorumlog.doctor.layout import UNFENCED, Layout
from quorumlog.doctor.nodes import node_findings
from quorumlog.doctor.observed import ObservedCluster
from quorumlog.doctor.partitions import (
    availability_findings,
    reassignment_findings,
    redundancy_findings,
    replication_findings,
)
from quorumlog.doctor.quorum import quorum_findings, unreachable
from quorumlog.doctor.space import space_findings
from quorumlog.doctor.transactions import transaction_findings


class Summary(NamedTuple):
    """The cluster in numbers.  A number is None if no node has reported it."""

    cluster_id: str | None
    leader_id: int | None
    leader_epoch: int | None
    offset: int | None
    nodes: int
    nodes_answering: int
    voters: int | None
    voters_answering: int
    brokers: int | None
    brokers_unfenced: int | None
    topics: int | None
    partitions: int | None
    partitions_in_sync: int | None
    fsync_p99_max_ms: float | None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The problems of a cluster, and its numbers.  findings: the most severe first.

    stale_since_ms: the time of the metadata from which findings about brokers and partitions are derived, in ms since
    1970.  None if a leader answers, because the metadata then counts as current, or if there is no metadata.
    """

    findings: tuple[Finding, ...]
    summary: Summary
    stale_since_ms: int | None

    @property
    def is_reached(self) -> bool:
        """Whether any node answers."""
        return self.summary.nodes_answering > 0

    @property
    def is_healthy(self) -> bool:
        """Return whether there is nothing to repair; there may be advice."""
        return all(finding.severity == ADVICE for finding in self.findings)


def diagnose(cluster: ObservedCluster) -> Diagnosis:
    """Return all problems of an observed cluster."""
    findings = sorted(_findings(cluster), key=lambda finding: SEVERITIES.index(finding.severity))
    metadata = cluster.metadata
    is_stale = cluster.leader is None and metadata is not None and metadata.timestamp_ms > 0
    return Diagnosis(
        tuple(findings), _summary(cluster), metadata.timestamp_ms if is_stale and metadata is not None else None
    )


def _findings(cluster: ObservedCluster) -> Iterator[Finding]:
    """Yield the findings.  Findings of the same severity are shown in this order."""
    is_reached = any(node.answers for node in cluster.nodes)
    if not is_reached:
        yield unreachable(cluster)
        return
    yield from quorum_findings(cluster)
    yield from node_findings(cluster)
    if cluster.metadata is not None and cluster.voters:
        layout = Layout(cluster, cluster.metadata)
        yield from availability_findings(layout)
        yield from broker_findings(layout)
        yield from replication_findings(layout)
        yield from reassignment_findings(layout)
        yield from redundancy_findings(layout)
    elif cluster.voters:  # before a cluster is founded there is no metadata
        yield Finding(
            PROBLEM,
            "METADATA_UNREADABLE",
            what="no node reports the brokers and topics",
            cause=cluster.metadata_problem or "no node that answers has any metadata",
            next="look at the logs of these nodes; kctl quorum status",
        )
    yield from space_findings(cluster)
    yield from compaction_findings(cluster)
    yield from group_findings(cluster)
    yield from dead_letter_findings(cluster)
    yield from transaction_findings(cluster)


def _unknown_brokers(cluster: ObservedCluster) -> int:
    """Return the number of registered brokers whose control address no node knows, and nobody named.

    A leader knows only the observers that have fetched from it, so it does not know a broker that is down since before
    its election.
    """
    registered = {broker.broker_id for broker in cluster.metadata.brokers} if cluster.metadata is not None else set()
    unidentified = sum(node.node_id is None for node in cluster.nodes)  # one of them may be such a broker
    return max(0, len(registered.difference(node.node_id for node in cluster.nodes)) - unidentified)


def _summary(cluster: ObservedCluster) -> Summary:
    quorum, metadata, leader = cluster.quorum, cluster.metadata, cluster.leader
    known = [node.described for node in cluster.own_nodes if node.described is not None]
    fsyncs = [each.fsync_p99_us for each in known if each.HasField("fsync_p99_us")]
    partitions = None if metadata is None else [p for topic in metadata.topics for p in topic.partitions]
    in_sync = [p for p in partitions or () if p.leader >= 0 and len(p.isr) == len(p.replicas)]
    voting = [voter for voter in cluster.voters if cluster.answers(voter) and voter not in cluster.replaced_voters]
    return Summary(
        cluster_id=quorum.known.cluster_id if quorum is not None and quorum.known.HasField("cluster_id") else None,
        leader_id=leader.node_id if leader is not None else cluster.followed,
        leader_epoch=None if quorum is None else quorum.known.epoch,
        offset=None if metadata is None else metadata.offset,
        nodes=len(cluster.nodes) + _unknown_brokers(cluster),
        nodes_answering=sum(node.answers for node in cluster.nodes),
        voters=None if quorum is None else len(quorum.voters),
        voters_answering=len(voting),
        brokers=None if metadata is None else len(metadata.brokers),
        brokers_unfenced=None if metadata is None else sum(b.state == UNFENCED for b in metadata.brokers),
        topics=None if metadata is None else len(metadata.topics),
        partitions=None if partitions is None else len(partitions),
        partitions_in_sync=None if partitions is None else len(in_sync),
        fsync_p99_max_ms=max(fsyncs) / 1000 if fsyncs else None,
    )
