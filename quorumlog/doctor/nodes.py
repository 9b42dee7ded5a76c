"""Findings about single nodes: clocks, disks, nodes that lag behind the metadata or are not ready."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

from quorumlog.doctor.findings import PROBLEM, Finding
from quorumlog.doctor.observed import ObservedCluster, ObservedNode
from quorumlog.words import counted, listed

CLOCK_DIFFERENCE_MS = 5_000
SLOW_FSYNC_US = 100_000
CAUGHT_UP_MS = 2_000
"""A leader hands over only to a voter that was caught up within this time (`quorum.fetch.timeout.ms`)."""


def node_findings(cluster: ObservedCluster) -> Iterator[Finding]:
    """Yield the findings about the nodes that answer."""
    yield from _clocks(cluster)
    yield from _disks(cluster)
    yield from _behind(cluster)
    yield from _not_ready(cluster)


def transfer_command(cluster: ObservedCluster, leader: ObservedNode, *, faster_than_us: float = math.inf) -> str:
    """Return the command that hands leadership to the answering voter with the fastest disk; empty without one.

    Only voters that are caught up count, because the leader refuses to hand over to any other.
    faster_than_us: the voter's disk must make a write durable within less than this (p99), in microseconds.  A voter
    whose disk has an unknown speed counts only if there is no such limit.
    """
    statuses = [] if leader.quorum is None else leader.quorum.voters
    caught_up = {
        status.replica.key.node_id
        for status in statuses
        if status.HasField("last_caught_up_ms") and status.last_caught_up_ms <= CAUGHT_UP_MS
    }
    others = [
        (node.described.fsync_p99_us if node.described.HasField("fsync_p99_us") else math.inf, node.node_id)
        for node in cluster.own_nodes
        if node.described is not None and node is not leader
        and node.node_id in caught_up and node.node_id not in cluster.replaced_voters
    ]  # fmt: skip
    fastest_us, node_id = min(others, default=(math.inf, None))
    is_fast = faster_than_us == math.inf or fastest_us < faster_than_us
    return f"kctl transfer-leader --to {node_id}" if node_id is not None and is_fast else ""


def fsync_text(node: ObservedNode | None) -> str:
    """Return the time that the node's disk takes to make a write durable, as text."""
    if node is None or node.described is None or not node.described.HasField("fsync_p99_us"):
        return "the speed of its disk is not known"
    duration_ms = float(f"{node.described.fsync_p99_us / 1000:.3g}")  # three digits
    return f"it takes {duration_ms:g} ms to make a write durable (p99)"


def _clocks(cluster: ObservedCluster) -> Iterator[Finding]:
    """Compare the nodes with each other, because the examiner's own clock may be wrong.

    If they are divided in halves, as two nodes are, the examiner's clock decides which half is right.
    """
    clocks = [(node.clock_ahead_ms, node.node_id) for node in cluster.own_nodes if node.clock_ahead_ms is not None]
    if len(clocks) < 2:
        return
    all_ahead = [ahead for ahead, _ in clocks]
    middle = min(statistics.median_low(all_ahead), statistics.median_high(all_ahead), key=abs)
    wrong = [(ahead - middle, node_id) for ahead, node_id in clocks if abs(ahead - middle) > CLOCK_DIFFERENCE_MS]
    if wrong:
        yield Finding(
            PROBLEM,
            "CLOCKS",
            what=f"the clocks of {len(clocks)} nodes differ",
            cause="; ".join(
                f"node {node_id} is {_duration(abs(ahead))} {'ahead' if ahead > 0 else 'behind'}"
                for ahead, node_id in wrong
            ),
            next=f"set the clock of {listed(f'node {node_id}' for _, node_id in wrong)}, and keep it right with NTP "
            "(chrony); timestamps, searches by time and retention use the clock of each leader",
            nodes=tuple(sorted(node_id or 0 for _, node_id in wrong)),
        )


def _duration(milliseconds: int) -> str:
    seconds = milliseconds // 1000
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _disks(cluster: ObservedCluster) -> Iterator[Finding]:
    for node in cluster.own_nodes:
        described = node.described
        if described is None or not described.HasField("fsync_p99_us") or described.fsync_p99_us < SLOW_FSYNC_US:
            continue
        consequence = "changes of the metadata wait for it" if node.leads else "requests that wait for it are late"
        step = f"check the disk of node {node.node_id}, and which other programs use it: iostat -x 1"
        if node.leads and (command := transfer_command(cluster, node, faster_than_us=described.fsync_p99_us)):
            step += f"; meanwhile: {command}"
        yield Finding(
            PROBLEM,
            "SLOW_DISK",
            what=f"the disk of node {node.node_id} is slow: {fsync_text(node)}",
            cause=f"measured over the writes of its metadata log in the last minutes; {consequence}",
            next=step,
            nodes=(node.node_id or 0,),
        )


def _behind(cluster: ObservedCluster) -> Iterator[Finding]:
    end = cluster.committed_end
    for node in cluster.own_nodes:
        first, later = node.described, node.described_later
        if first is None or later is None or later.applied_offset >= end:
            continue
        missing, missing_before = end - later.applied_offset, end - first.applied_offset
        moved = f"{missing_before - missing} of {missing_before}" if missing < missing_before else "none"
        wrong_leader = _wrong_leader(cluster, node)
        step = f"look at the load and the log of node {node.node_id}"
        yield Finding(
            PROBLEM,
            "LAGGING",
            what=f"{'broker' if first.is_broker else 'node'} {node.node_id} is behind: it lacks "
            f"{counted(missing, 'record')} of the metadata",
            cause=f"it has applied {later.applied_offset} of {end}; of the missing records it applied {moved} "
            f"meanwhile; {wrong_leader or node.failing_checks() or fsync_text(node)}",
            next=f"look again in a few seconds: kctl doctor; then {step}"
            if wrong_leader
            else f"{step}; kctl brokers list shows its pending changes",
            nodes=(node.node_id or 0,),
        )


def _wrong_leader(cluster: ObservedCluster, node: ObservedNode) -> str:
    """Return a text if the node does not know the leader yet; else an empty text.

    This is normal for some seconds after a failover.
    """
    if cluster.leader is None or node.quorum is None or node.leader_id == cluster.leader.node_id:
        return ""
    follows = "" if node.leader_id is None else f": it follows node {node.leader_id}"
    return f"it does not know the leader yet{follows}"


def _not_ready(cluster: ObservedCluster) -> Iterator[Finding]:
    """Report failing checks, unless the quorum has no working leader: then they fail on every node."""
    leader = cluster.leader
    if leader is None or leader.quorum is None or leader.quorum.paused:
        return
    for node in cluster.own_nodes:
        if failing := node.failing_checks(ignored=("broker", "metadata")):  # other findings cover these two
            yield Finding(
                PROBLEM,
                "NOT_READY",
                what=f"node {node.node_id} is not ready",
                cause=failing,
                next=f"look at the log of node {node.node_id}",
                nodes=(node.node_id or 0,),
            )
