"""Findings about logs that are not compacted."""

from __future__ import annotations

from collections.abc import Iterator

from quorumlog.doctor.findings import ADVICE, PROBLEM, Finding
from quorumlog.doctor.observed import ObservedCluster
from quorumlog.words import SHOWN_MAX, counted

BEHIND_MS = 3_600_000
"""A broker is behind if one of its logs has been due for compaction for longer than this."""


def compaction_findings(cluster: ObservedCluster) -> Iterator[Finding]:
    """Yield at most one finding about logs that cannot be compacted, and one about brokers that are behind."""
    yield from _uncleanable(cluster)
    yield from _behind(cluster)


def _uncleanable(cluster: ObservedCluster) -> Iterator[Finding]:
    found = [
        (node.node_id or 0, log)
        for node in cluster.own_nodes
        if node.described is not None
        for log in node.described.compaction.uncleanable
    ]
    if not found:
        return
    count = sum(node.described.compaction.uncleanable_count for node in cluster.own_nodes if node.described is not None)
    found.sort(key=lambda one: (not one[1].is_final, one[1].topic, one[1].index, one[0]))
    shown = [f"{log.topic}-{log.index} on node {node_id}: {log.cause}" for node_id, log in found[:SHOWN_MAX]]
    more = f" and {count - len(shown)} more" if count > len(shown) else ""
    is_final = any(log.is_final for _, log in found)
    yield Finding(
        PROBLEM if is_final else ADVICE,
        "UNCLEANABLE",
        what=f"{counted(count, 'replica')} of compacted topics cannot be compacted",
        cause="; ".join(shown) + more,
        next="these logs grow until the cause is removed: watch the free space of the nodes; "
        + ("docs/compaction.md lists the causes" if is_final else "the brokers try again every 30 s"),
        nodes=tuple(sorted({node_id for node_id, _ in found})),
        partitions=tuple(sorted({f"{log.topic}-{log.index}" for _, log in found})),
    )


def _behind(cluster: ObservedCluster) -> Iterator[Finding]:
    behind = [
        (node.node_id or 0, node.described.compaction)
        for node in cluster.own_nodes
        if node.described is not None and node.described.compaction.longest_wait_ms > BEHIND_MS
    ]
    if not behind:
        return
    behind.sort(key=lambda one: (-one[1].longest_wait_ms, one[0]))
    shown = [
        f"node {node_id}: {counted(one.due, 'log')} due, {one.dirty_bytes >> 20} MiB, the first for "
        f"{one.longest_wait_ms // 60_000} minutes"
        for node_id, one in behind[:SHOWN_MAX]
    ]
    more = f" and {counted(len(behind) - SHOWN_MAX, 'more node', 'more nodes')}" if len(behind) > SHOWN_MAX else ""
    yield Finding(
        ADVICE,
        "COMPACTION_BEHIND",
        what=f"compaction is behind on {counted(len(behind), 'broker')}",
        cause="; ".join(shown) + more,
        next="raise log.cleaner.io.max.bytes.per.second, or log.cleaner.dedupe.buffer.size if the topics have many "
        "keys, and restart these brokers",
        nodes=tuple(sorted(node_id for node_id, _ in behind)),
    )
