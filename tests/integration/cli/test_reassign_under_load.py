"""Replicas move under load while a controller and a target broker are killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quorumlog.errors import ClusterError
from quorumlog.kctl.context import wait_until
from quorumlog.kctl.dev_cluster import DevCluster
from tests.integration.quorum.clusters import (
    TIMEOUT_S,
    done,
    kctl,
    kill,
    leader_of,
    node_of,
    ready,
    running,
    spawn,
)
from tests.integration.quorum.load import TOPIC, Load, under_load

RECORDS = 450
"""Records to write before a move.  Each partition then exceeds the smallest portion of a throttled copy, 4,096 bytes: a
partition that fits into one portion is complete before anything can be killed."""


async def test_no_record_is_lost_when_controller_and_target_are_killed_during_a_reassignment(tmp_path: Path) -> None:
    async with running(tmp_path, voters=3, brokers=5) as cluster, under_load(cluster) as load:
        await wait_until(lambda: _has(load, RECORDS), TIMEOUT_S, "there is something to move")
        await done(cluster, "reassign", "start", "--topic", TOPIC, "--brokers", "13,14,15", "--throttle", "1")
        await _copying(cluster, "replicas are copied")
        controller = await leader_of(cluster)
        await kill(controller)
        await _copying(cluster, "another controller continues it")
        await spawn(cluster, controller)
        await kill(node_of(cluster, 14))
        await spawn(cluster, node_of(cluster, 14))
        await ready(node_of(cluster, 14))
        await _reassign(cluster, "13,14,15", "--throttle", "none")
        await _verified(cluster, "13,14,15")

        # Then back; the move is cancelled midway while a controller fails.
        before = load.record_count
        await done(cluster, "reassign", "start", "--topic", TOPIC, "--brokers", "11,12,13", "--throttle", "1")
        await _copying(cluster, "replicas are copied")
        controller = await leader_of(cluster)
        await kill(controller)
        await done(cluster, "reassign", "cancel", "--topic", TOPIC)
        await spawn(cluster, controller)
        await _verified(cluster, "13,14,15")
        assert (await done(cluster, "reassign", "status")) == []
        await wait_until(lambda: _has(load, before + 30), TIMEOUT_S, "writes go on")


async def _has(load: Load, count: int) -> bool:
    return load.record_count >= count


async def _copying(cluster: DevCluster, what: str) -> None:
    """Wait until a replica is copied.  A failure shows the last answer: perhaps all copies were complete already."""
    answer: tuple[int, Any] = (0, None)

    async def is_copying() -> bool:
        nonlocal answer
        code, rows = answer = await kctl(cluster, "reassign", "status")
        return code == 0 and "copying" in {row["state"] for row in rows}

    try:
        await wait_until(is_copying, TIMEOUT_S, what)
    except ClusterError as error:
        raise AssertionError(f"{error}; the last answer was {answer}") from error


async def _reassign(cluster: DevCluster, brokers: str, *options: str) -> Any:
    timeout = ("--wait", "--timeout", f"{TIMEOUT_S:g}")
    return await done(cluster, "reassign", "start", "--topic", TOPIC, "--brokers", brokers, *options, *timeout)


async def _verified(cluster: DevCluster, brokers: str) -> None:
    rows = await done(cluster, "reassign", "verify", "--topic", TOPIC, "--brokers", brokers)
    assert {row["state"] for row in rows} == {"complete"}
