"""Findings about free disk space, and about the cause for which a node that is down has ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from quorumlog.kctl.doctor_findings import ADVICE, PROBLEM, Finding
from quorumlog.kctl.doctor_look import Look, NodeLook
from quorumlog.kctl.words import SHOWN_MAX, counted, listed, quoted

FREE_MIN_BYTES = 1 << 30
FREE_MIN_PART = 0.1


def is_low(directory: Any) -> bool:
    """Whether a directory has less than 1 GiB, or less than a tenth of its file system, left."""
    free, total = int(directory.free_bytes), int(directory.total_bytes)
    return total > 0 and (free < FREE_MIN_BYTES or free < FREE_MIN_PART * total)


def space_findings(look: Look) -> Iterator[Finding]:
    """Of the nodes that answer."""
    low = [(node, directory) for node in look.nodes for directory in _directories(node) if is_low(directory)]
    if not low:
        return
    low.sort(key=lambda found: (found[1].free_bytes, found[0].node_id or 0))
    shown = [f"node {node.node_id}: {in_words(directory)}" for node, directory in low]
    more = f" and {len(shown) - SHOWN_MAX} more" if len(shown) > SHOWN_MAX else ""
    urgent = any(d.free_bytes < FREE_MIN_BYTES and d.free_bytes < FREE_MIN_PART * d.total_bytes for _, d in low)
    yield Finding(
        PROBLEM if urgent else ADVICE, "LOW_SPACE",
        f"{counted(len(low), 'directory', 'directories')} with little room left: {'; '.join(shown[:SHOWN_MAX])}{more}",
        "less than 1 GiB or a tenth is free; a full data directory goes offline, and with its last one, or with a full "
        "quorum directory, the process ends",
        "make room on these file systems, or enlarge them; retention.ms and retention.bytes bound what topics keep",
        tuple(sorted({node.node_id or 0 for node, _ in low})),
    )  # fmt: skip


def in_words(directory: Any) -> str:
    """512 MiB of 10 GiB free in /data."""
    return f"{_size(directory.free_bytes)} of {_size(directory.total_bytes)} free in {directory.path}"


def before_start(look: Look, node_ids: Iterable[int]) -> str:
    """Return what these nodes reported when they ended, as steps to take before they are started; ends with a comma.

    A report is not authenticated, so its words are quoted and never become advice of doctor's own.
    """
    steps = []
    for node_id in node_ids:
        if (end := look.end_of(node_id)) is not None:
            full = [quoted(directory.path) for directory in end.directories if is_low(directory)]
            if full:
                steps.append(f"node {node_id} reported: little room in {listed(full)}; make room there")
            elif end.next:
                steps.append(f"node {node_id} reported: {quoted(end.next)}; resolve that")
    return f"{'; '.join(steps)}, then " if steps else ""


def _directories(node: NodeLook) -> list[Any]:
    """The directories in use, each file system once."""
    if node.described is None:
        return []
    found: list[Any] = []
    for directory in node.described.directories:
        inside = any(
            directory.path.startswith(f"{one.path.rstrip('/')}/") and directory.total_bytes == one.total_bytes
            for one in found
        )
        if not inside and not directory.problem:
            found.append(directory)
    return found


def _size(count: int) -> str:
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.3g} {units[0]}" if size < 1000 else f"{size:.0f} {units[0]}"
