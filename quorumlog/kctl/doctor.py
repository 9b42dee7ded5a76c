"""kctl doctor: prints the problems of a cluster, their causes, and the next steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from quorumlog.kctl.context import Command, Context, with_loop
from quorumlog.wire.errors import ExitCode
from quorumlog.words import rfc3339

if TYPE_CHECKING:
    from quorumlog.doctor.diagnosis import Diagnosis, Summary
    from quorumlog.kctl.output import Output

_HEADS = {"critical": "CRITICAL", "problem": "PROBLEM", "advice": "ADVICE"}
_STYLES = {"critical": "red", "problem": "yellow", "advice": "cyan"}


@click.command("doctor", cls=Command)
@with_loop
async def command(context: Context) -> int:
    """Name each problem, its cause and the next step.

    Every node that can be found is asked, each with a short time limit.  Exit code 0: nothing is wrong (there may be
    advice); 1: something is wrong; 4: no node answers.
    """
    from quorumlog.doctor.diagnosis import diagnose
    from quorumlog.doctor.examine import examine

    context.interrupted = "nothing was changed"
    limit_s = context.left_s
    context.lift_limit()  # requests that time out end a little later, and the report must not be lost then
    async with context.client() as client:
        diagnosis = diagnose(await examine(client, context.addresses, limit_s))
    if context.output.is_json:
        context.output.document(_document(diagnosis))
    else:
        _print(context.output, diagnosis)
    if not diagnosis.is_reached:
        return ExitCode.UNAVAILABLE
    return ExitCode.DONE if diagnosis.is_healthy else ExitCode.FAILED


def _document(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "healthy": diagnosis.is_healthy,
        "looked_at": diagnosis.summary._asdict(),
        "findings": [
            {
                **finding._asdict(),
                "nodes": list(finding.nodes),
                "partitions": list(finding.partitions),
                "commands": list(finding.commands),
                "last_resort": list(finding.last_resort),
            }
            for finding in diagnosis.findings
        ],
    }


def _print(output: Output, diagnosis: Diagnosis) -> None:
    is_urgent = any(finding.severity == "critical" for finding in diagnosis.findings)
    for finding in diagnosis.findings:
        if is_urgent and finding.severity == "advice":
            continue
        output.styled(f"{_HEADS[finding.severity]}  {finding.finding}", _STYLES[finding.severity])
        output.hanging("  what ", finding.what)
        if finding.cause:
            output.hanging("  why  ", finding.cause)
        output.hanging("  next ", finding.next)
        output.text("")
    output.styled(_verdict(diagnosis, is_urgent), "bold")
    if diagnosis.stale_since_ms is not None:
        at = rfc3339(diagnosis.stale_since_ms)
        output.text(f"brokers and partitions are shown as of {at}: without a leader no change is recorded")
    output.wrapped(_summary_line(diagnosis.summary), 0)


def _verdict(diagnosis: Diagnosis, is_urgent: bool) -> str:
    from quorumlog.words import counted

    wrong = sum(finding.severity != "advice" for finding in diagnosis.findings)
    advice = len(diagnosis.findings) - wrong
    verdict = f"{counted(wrong, 'thing')} {'is' if wrong == 1 else 'are'} wrong" if wrong else "all is well"
    if advice:
        verdict += f"; {counted(advice, 'piece', 'pieces')} of advice" + (" (shown by -o json)" if is_urgent else "")
    return verdict


def _summary_line(seen: Summary) -> str:
    from quorumlog.words import counted

    parts = [f"{seen.nodes_answering} of {counted(seen.nodes, 'node')} {'answers' if seen.nodes == 1 else 'answer'}"]
    if seen.cluster_id:
        parts.insert(0, f"cluster {seen.cluster_id}")
    if seen.leader_id is not None:
        parts.append(f"node {seen.leader_id} leads epoch {seen.leader_epoch}")
    if seen.voters:
        parts.append(f"{seen.voters_answering} of {counted(seen.voters, 'voter')}")
    if seen.brokers is not None and seen.partitions is not None and seen.topics is not None:
        parts.append(f"{seen.brokers_unfenced} of {counted(seen.brokers, 'broker')} unfenced")
        partitions = counted(seen.partitions, "partition")
        in_sync = f"{seen.partitions_in_sync} of {partitions} of {counted(seen.topics, 'topic')} in sync"
        parts.append(in_sync if seen.topics else "no topics")
    if seen.fsync_p99_max_ms is not None:
        parts.append(f"slowest disk {seen.fsync_p99_max_ms:.3g} ms (p99 of fsync)")
    return "; ".join(parts)
