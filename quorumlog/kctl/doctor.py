"""kctl doctor: what is wrong, why, and what to type next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from quorumlog.kctl import exits
from quorumlog.kctl.context import Command, Context, with_loop

if TYPE_CHECKING:
    from quorumlog.kctl.doctor_findings import Finding
    from quorumlog.kctl.doctor_look import Look

_HEADS = {"critical": "CRITICAL", "problem": "PROBLEM", "advice": "ADVICE"}
_STYLES = {"critical": "red", "problem": "yellow", "advice": "cyan"}


@click.command("doctor", cls=Command)
@with_loop
async def command(context: Context) -> int:
    """Name what is wrong, with the cause and the next step.

    Every node that can be found is asked, and nobody is waited for long.  Exit code 0: nothing is wrong (there may be
    advice); 1: something is; 4: no node answers.
    """
    from quorumlog.kctl.doctor_findings import ADVICE, SEVERITIES
    from quorumlog.kctl.doctor_look import Doctor
    from quorumlog.kctl.doctor_partitions import cluster_findings
    from quorumlog.kctl.doctor_quorum import metadata_unreadable, quorum_findings, unreachable
    from quorumlog.kctl.doctor_space import space_findings

    context.interrupted = "nothing was changed"
    async with context.client() as client:
        look = await Doctor(client, context.addresses, context.deadline_s).examine()
    is_reached = any(node.answers for node in look.nodes)
    findings = list(quorum_findings(look)) if is_reached else [unreachable(look)]
    if look.metadata is not None and look.voters:
        findings += cluster_findings(look)
    elif is_reached:
        findings += metadata_unreadable(look)
    findings += space_findings(look)
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    is_healthy = all(finding.severity == ADVICE for finding in findings)
    if context.output.is_json:
        context.output.document(document(look, findings, is_healthy))
    else:
        _tell(context, look, findings)
    return exits.DONE if is_healthy else exits.FAILED if is_reached else exits.UNAVAILABLE


def document(look: Look, findings: list[Finding], is_healthy: bool) -> dict[str, Any]:
    """The JSON: what was seen, and what is wrong with it."""
    return {
        "healthy": is_healthy,
        "looked_at": looked_at(look),
        "findings": [
            {
                **finding._asdict(),
                "nodes": list(finding.nodes),
                "partitions": list(finding.partitions),
                "commands": list(finding.commands),
            }
            for finding in findings
        ],
    }


def looked_at(look: Look) -> dict[str, Any]:
    """What there is, in numbers; null what nobody could tell."""
    quorum, metadata, leader = look.quorum, look.metadata, look.leader
    fsyncs = [n.described.fsync_p99_us for n in look.nodes if n.described and n.described.HasField("fsync_p99_us")]
    partitions = None if metadata is None else [p for topic in metadata.topics for p in topic.partitions]
    return {
        "cluster_id": quorum.known.cluster_id if quorum is not None and quorum.known.HasField("cluster_id") else None,
        "leader_id": leader.node_id if leader is not None else look.followed,
        "leader_epoch": None if quorum is None else quorum.known.epoch,
        "offset": None if metadata is None else metadata.offset,
        "nodes": len(look.nodes),
        "nodes_answering": sum(node.answers for node in look.nodes),
        "voters": None if quorum is None else len(quorum.voters),
        "voters_answering": sum(
            node.answers and node.node_id in look.voters and node.node_id not in look.replaced_voters
            for node in look.nodes
        ),
        "brokers": None if metadata is None else len(metadata.brokers),
        "brokers_unfenced": None if metadata is None else sum(b.state == "unfenced" for b in metadata.brokers),
        "topics": None if metadata is None else len(metadata.topics),
        "partitions": None if partitions is None else len(partitions),
        "partitions_in_sync": None
        if partitions is None
        else sum(p.leader >= 0 and len(p.isr) == len(p.replicas) for p in partitions),
        "fsync_p99_max_ms": max(fsyncs) / 1000 if fsyncs else None,
    }


def _tell(context: Context, look: Look, findings: list[Finding]) -> None:
    from quorumlog.kctl.words import counted
    from quorumlog.runtime.logging import rfc3339

    output = context.output
    is_urgent = any(finding.severity == "critical" for finding in findings)
    for finding in findings:
        if is_urgent and finding.severity == "advice":
            continue  # it can wait
        output.styled(f"{_HEADS[finding.severity]}  {finding.finding}", _STYLES[finding.severity])
        output.hanging("  what ", finding.what)
        if finding.cause:
            output.hanging("  why  ", finding.cause)
        output.hanging("  next ", finding.next)
        output.text("")
    wrong = sum(finding.severity != "advice" for finding in findings)
    advice = len(findings) - wrong
    verdict = f"{counted(wrong, 'thing')} {'is' if wrong == 1 else 'are'} wrong" if wrong else "all is well"
    if advice:
        verdict += f"; {advice} to think about" + (", when there is time (-o json)" if is_urgent else "")
    output.styled(verdict, "bold")
    if look.leader is None and look.metadata is not None and look.metadata.timestamp_ms:
        at = rfc3339(look.metadata.timestamp_ms)
        output.text(f"brokers and partitions are as of {at}: without a leader nothing is written down")
    output.wrapped(_seen(look), 0)


def _seen(look: Look) -> str:
    """One line: what the verdict rests on."""
    from quorumlog.kctl.words import counted

    seen = looked_at(look)
    parts = [
        f"{seen['nodes_answering']} of {counted(seen['nodes'], 'node')} {'answers' if seen['nodes'] == 1 else 'answer'}"
    ]
    if seen["cluster_id"]:
        parts.insert(0, f"cluster {seen['cluster_id']}")
    if seen["leader_id"] is not None:
        parts.append(f"node {seen['leader_id']} leads epoch {seen['leader_epoch']}")
    if seen["voters"]:
        parts.append(f"{seen['voters_answering']} of {counted(seen['voters'], 'voter')}")
    if seen["brokers"] is not None:
        parts.append(f"{seen['brokers_unfenced']} of {counted(seen['brokers'], 'broker')} unfenced")
        partitions = counted(seen["partitions"], "partition")
        in_sync = f"{seen['partitions_in_sync']} of {partitions} of {counted(seen['topics'], 'topic')} in sync"
        parts.append(in_sync if seen["topics"] else "no topics")
    if seen["fsync_p99_max_ms"] is not None:
        parts.append(f"slowest disk {seen['fsync_p99_max_ms']:.3g} ms (p99 of fsync)")
    return "; ".join(parts)
