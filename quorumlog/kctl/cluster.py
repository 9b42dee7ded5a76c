"""kctl cluster health: checks whether anything needs an operator's attention."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from quorumlog.errors import ClusterError
from quorumlog.kctl import brokers
from quorumlog.kctl.context import LEFT_MIN_S, Context, Group, with_loop
from quorumlog.kctl.exits import exit_code
from quorumlog.kctl.quorum import status_document
from quorumlog.kctl.reads import Reads
from quorumlog.kctl.topic_reads import describe_all_topics
from quorumlog.wire.errors import ApiError, ExitCode
from quorumlog.words import counted

if TYPE_CHECKING:
    from quorumlog.client.controller import ControllerClient

WATCH_INTERVAL_S = 1.0
LOOK_MIN_S = 1.0
"""The least time for a check.  With less time, a check would report unanswered requests instead of real problems."""
STALE_FETCH_MS = 5000
"""A voter whose last fetch is older than this is reported as a problem."""
SHOWN_MAX = 20


@click.group("cluster", cls=Group)
def group() -> None:
    """Check the cluster as a whole."""


@group.command("health")
@click.option("--watch", is_flag=True, help="Continue, and print a line at each change.")
@click.option("--exit-when-healthy", is_flag=True, help="Wait until healthy, at most --timeout.")
@with_loop
async def health(context: Context, watch: bool, exit_when_healthy: bool) -> int:
    """Check that the cluster is healthy, and name each problem.

    Healthy means: a majority follows the leader, every voter and broker runs, and every partition has a leader and is
    in sync, apart from replicas that a reassignment adds.  Exit code 0 if healthy, 1 if not, and 4 if no node answers
    or --exit-when-healthy timed out.

    With --watch, --timeout, if given, limits the whole command; its default limits only each check.
    """
    context.interrupted = "" if watch else "nothing was changed"
    if not watch or exit_when_healthy:
        return await _checked(context, watch, exit_when_healthy)
    context.ends_with_output = True
    context.lift_limit()
    with suppress(TimeoutError):  # a success: the user chose this time
        async with asyncio.timeout(context.follow_s):
            await _checked(context, watch, exit_when_healthy)
    return ExitCode.DONE


async def _checked(context: Context, watch: bool, exit_when_healthy: bool) -> int:
    """Check once, or until `health` ends, and return the exit code."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + context.left_s
    shown: object = None  # the last output; for tables, only health and problems, so that a new offset prints nothing
    async with context.client() as client:
        while True:
            is_endless = watch and not exit_when_healthy
            limit_s = context.deadline_s if is_endless else max(deadline - loop.time(), LEFT_MIN_S)
            document, failure = await examine(context, client, limit_s)
            seen = document if context.output.is_json else (document["healthy"], document["problems"])
            if seen != shown and (watch or not exit_when_healthy or document["healthy"]):
                _show(context, document, stream=watch)
                shown = seen
            if exit_when_healthy and document["healthy"]:
                return ExitCode.DONE
            if not watch and not exit_when_healthy:
                if failure is not None:
                    return exit_code(failure)
                return ExitCode.DONE if document["healthy"] else ExitCode.FAILED
            pause_s = WATCH_INTERVAL_S if is_endless else min(WATCH_INTERVAL_S, deadline - loop.time() - LOOK_MIN_S)
            if pause_s <= 0:
                raise ClusterError(
                    ApiError.TIMED_OUT, f"not healthy: {'; '.join(document['problems'])}", retriable=True
                )
            await asyncio.sleep(pause_s)  # servers push nothing to kctl


async def examine(
    context: Context, client: ControllerClient, timeout_s: float
) -> tuple[dict[str, Any], ClusterError | None]:
    """Check everything once, and return the JSON, and the error if no node answered.

    `problems` describes each problem, failed requests included.  Of the partitions without a leader, and of those that
    are under-replicated, it names at most SHOWN_MAX each, and the number of the others.
    """
    document: dict[str, Any] = {
        "healthy": False, "cluster_id": None, "leader_id": None, "leader_epoch": None, "voters": None, "brokers": None,
        "brokers_unfenced": None, "topics": None, "partitions": None, "partitions_without_leader": None,
        "partitions_under_replicated": None, "offset": None, "unconfirmed": None, "problems": [],
    }  # fmt: skip
    problems: list[str] = document["problems"]
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s

    def left_s() -> float:
        return max(deadline - loop.time(), LEFT_MIN_S)

    try:
        described = await client.describe_quorum(left_s())
    except ClusterError as error:
        problems.append(error.message)
        return document, error
    try:
        status = status_document(described)
        document |= {name: status[name] for name in ("cluster_id", "leader_id", "leader_epoch")}
        document["voters"] = len(status["voters"])
        problems += _quorum_problems(status)
        reads = Reads(context, client)
        registered = await brokers.fetch(context, reads, left_s())
        topics = await describe_all_topics(reads, left_s)
    except ClusterError as error:
        problems.append(error.message)
        return document, None
    document["brokers"] = len(registered)
    document["brokers_unfenced"] = sum(broker["state"] == "unfenced" for broker in registered)
    problems += [
        f"broker {broker['id']} is {broker['state']}" for broker in registered if broker["state"] != "unfenced"
    ]
    leaderless, lagging = _partition_problems(topics)
    document["topics"] = len(topics)
    document["partitions"] = sum(len(topic.partitions) for topic in topics)
    document["partitions_without_leader"] = len(leaderless)
    document["partitions_under_replicated"] = len(lagging)
    problems += _shown(leaderless, "without a leader") + _shown(lagging, "under-replicated")
    document |= reads.validity
    if reads.unconfirmed:
        problems.append(f"no active controller answers: topics and brokers are as of offset {reads.offset}")
    document["healthy"] = not problems
    return document, None


def _shown(problems: list[str], state: str) -> list[str]:
    """Return the first SHOWN_MAX problems, and a line with the number of the others."""
    if len(problems) <= SHOWN_MAX:
        return problems
    more = counted(len(problems) - SHOWN_MAX, "more partition")
    return [*problems[:SHOWN_MAX], f"{more} {'is' if len(problems) == SHOWN_MAX + 1 else 'are'} {state}"]


def _quorum_problems(status: dict[str, Any]) -> list[str]:
    if status["leader_id"] is None:
        return ["the quorum has no leader"]
    if status["answered_by"] != status["leader_id"]:
        return [f"the leader, node {status['leader_id']}, does not answer"]
    problems = (
        [f"the leader, node {status['leader_id']}, is paused: no majority follows it"] if status["paused"] else []
    )
    for voter in status["voters"]:
        age = voter["last_fetch_ms"]
        if voter["id"] != status["leader_id"] and (age is None or age > STALE_FETCH_MS):
            problems.append(
                f"voter {voter['id']} " + ("has never fetched" if age is None else f"last fetched {age} ms ago")
            )
    return problems


def _partition_problems(topics: Iterable[Any]) -> tuple[list[str], list[str]]:
    leaderless, lagging = [], []
    for topic in topics:
        for partition in topic.partitions:
            name = f"{topic.name}-{partition.index}"
            if partition.leader < 0:
                leaderless.append(f"{name} has no leader")
            # As in the metric of the brokers, a replica that is being added is not missing.
            settled = {replica.broker_id for replica in partition.replicas}.difference(partition.adding)
            missing = sorted(settled.difference(partition.isr))
            if missing:
                lagging.append(f"{name} is under-replicated: {','.join(map(str, missing))} not in its ISR")
    return leaderless, lagging


def _show(context: Context, document: dict[str, Any], stream: bool) -> None:
    output = context.output
    if output.is_json:
        if stream:
            output.line(document)
        else:
            output.document(document)
    elif stream:
        output.text("healthy" if document["healthy"] else "not healthy: " + "; ".join(document["problems"]))
    else:
        rows = [(name, value) for name, value in document.items() if name != "problems"]
        output.table(("", ""), rows)
        for problem in document["problems"]:
            output.text(f"- {problem}")
