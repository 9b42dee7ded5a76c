"""Findings about free disk space."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from quorumlog.doctor.findings import ADVICE, PROBLEM, Finding
from quorumlog.doctor.observed import ObservedCluster, ObservedNode
from quorumlog.words import SHOWN_MAX, counted

if TYPE_CHECKING:
    from quorumlog.wire.v1 import node_pb2

FREE_MIN_BYTES = 1 << 30
FREE_MIN_PART = 0.1


def is_low(directory: node_pb2.Directory) -> bool:
    """Return whether less than 1 GiB or less than a tenth of the directory's file system is free."""
    free, total = directory.free_bytes, directory.total_bytes
    return total > 0 and (free < FREE_MIN_BYTES or free < FREE_MIN_PART * total)


def space_findings(cluster: ObservedCluster) -> Iterator[Finding]:
    """Yield at most one finding about all directories with little free space, those with the least space first."""
    low = [(node, each) for node in cluster.own_nodes for each in _directories(node) if is_low(each)]
    if not low:
        return
    low.sort(key=lambda found: (found[1].free_bytes, found[0].node_id or 0))
    shown = [
        f"node {node.node_id}: {_size(each.free_bytes)} of {_size(each.total_bytes)} free in {each.path}"
        for node, each in low
    ]
    more = f" and {len(shown) - SHOWN_MAX} more" if len(shown) > SHOWN_MAX else ""
    is_urgent = any(d.free_bytes < FREE_MIN_BYTES and d.free_bytes < FREE_MIN_PART * d.total_bytes for _, d in low)
    count = counted(len(low), "directory", "directories")
    yield Finding(
        PROBLEM if is_urgent else ADVICE,
        "LOW_SPACE",
        what=f"{count} with little free space: {'; '.join(shown[:SHOWN_MAX])}{more}",
        cause="less than 1 GiB or less than a tenth is free; a full data directory goes offline, and the process ends "
        "when its last data directory or its quorum directory is full",
        next="free space on these file systems, or enlarge them; retention.ms and retention.bytes limit what topics "
        "keep",
        nodes=tuple(sorted({node.node_id or 0 for node, _ in low})),
    )


def _directories(node: ObservedNode) -> list[node_pb2.Directory]:
    """Return the directories in use, without those inside another directory on the same file system."""
    found: list[node_pb2.Directory] = []
    for directory in [] if node.described is None else node.described.directories:
        is_inside = any(
            directory.path.startswith(f"{one.path.rstrip('/')}/") and directory.total_bytes == one.total_bytes
            for one in found
        )
        if not is_inside and not directory.problem:
            found.append(directory)
    return found


def _size(count: int) -> str:
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.3g} {units[0]}" if size < 1000 else f"{size:.0f} {units[0]}"
