"""Findings about dead letters of share groups that cannot be written."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from quorumlog.doctor.findings import PROBLEM, Finding
from quorumlog.doctor.observed import ObservedCluster
from quorumlog.words import SHOWN_MAX, about, counted, quoted


def dead_letter_findings(cluster: ObservedCluster) -> Iterator[Finding]:
    """Yield at most one finding."""
    described = [
        (node.node_id or 0, node.described.dead_letters) for node in cluster.own_nodes if node.described is not None
    ]
    found = sorted(
        [
            (each.since_ms, each.group, each.topic, each.index, each)
            for _, letters in described
            for each in letters.failing
        ],
        key=lambda one: one[:4],
    )
    if not found:
        return
    count = sum(letters.failing_count for _, letters in described)
    failing = [each for *_, each in found]
    shown = [f"{each.topic}-{each.index} in group {quoted(each.group)}: {each.cause}" for each in failing[:SHOWN_MAX]]
    more = f" and {count - len(shown)} more" if count > len(shown) else ""
    first = failing[0]
    topic, group = quote(first.dead_letter_topic), quote(first.group)
    admits = "errors.deadletterqueue.group.enable=true"
    create = about("kctl topics create", first.dead_letter_topic, options=f" --config {admits}")
    yield Finding(
        PROBLEM,
        "DEAD_LETTERS_FAIL",
        what=f"dead letters of {counted(count, 'share partition')} cannot be written; their start offsets do not move",
        cause="; ".join(shown) + more,
        next=f"remove the cause; for a missing topic: {create}; for a topic that does not admit letters: "
        f"kctl configs set {admits} --topic {topic}; to do without letters: "
        f"kctl configs unset errors.deadletterqueue.topic.name --group {group}",
        nodes=tuple(sorted(node_id for node_id, letters in described if letters.failing_count)),
        partitions=tuple(sorted({f"{each.topic}-{each.index}" for each in failing})),
    )
