"""A broker ends because its disk is full: doctor names the cause, and so does the next start of the broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quorumlog.client.cluster import Cluster
from quorumlog.client.producer import Producer
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.errors import ClusterError
from quorumlog.kctl.context import wait_until
from quorumlog.kctl.dev_cluster import DevCluster
from tests.integration.quorum.clusters import (
    TIMEOUT_S,
    done,
    ended,
    kctl,
    kill,
    last_lines,
    node_of,
    plan,
    ready,
    spawn,
    start,
)
from tests.integration.small_disk import SIZE_MIB, mount
from tests.integration.small_disk import small_disk as small_disk

BROKER = 12
VALUE = b"x" * 100_000
EPOCH_MS = 1_700_000_000_000


async def findings(cluster: DevCluster) -> dict[str, Any]:
    _, document = await kctl(cluster, "doctor")
    return {finding["finding"]: finding for finding in document["findings"] if BROKER in finding["nodes"]}


async def fill(cluster: DevCluster) -> None:
    """Write twice the capacity of the disk."""
    async with Cluster(cluster.bootstrap) as clients, Producer(clients, delivery_timeout_s=2.0) as producer:
        for _ in range(2 * (SIZE_MIB << 20) // len(VALUE)):
            await (await producer.send("t", 0, build_batch([NewRecord(None, VALUE, EPOCH_MS)])))


async def test_doctor_and_the_next_start_name_the_full_disk_that_ended_a_broker(
    tmp_path: Path, small_disk: Path
) -> None:
    cluster = plan(tmp_path, voters=1, brokers=2, broker_session_timeout_ms=3_000)
    node = node_of(cluster, BROKER)
    node.data_dir = node.command[node.command.index("--data-dir") + 1] = str(small_disk / "data")
    Path(node.log).parent.mkdir(parents=True)
    try:
        await start(cluster)
        await done(cluster, "topics", "create", "t", "--assignment", "12")
        low = (await findings(cluster))["LOW_SPACE"]
        assert str(small_disk / "data") in low["what"]
        with pytest.raises(ClusterError):
            await fill(cluster)
        lines = await ended(node)
        assert "full" in lines[-1] or "No space left" in lines[-1], lines

        async def is_named() -> bool:
            return "FENCED" in await findings(cluster)

        await wait_until(is_named, TIMEOUT_S, "doctor sees that the broker is fenced")
        found = (await findings(cluster))["FENCED"]
        assert "it ended at 20" in found["cause"]
        assert "with status 7: " in found["cause"]
        assert "full" in found["cause"] or "No space left" in found["cause"], found
        assert found["next"].startswith(f'node {BROKER} reported little free space in "{small_disk / "data"}"')
        assert f"free space there, then start broker {BROKER}" in found["next"]

        assert mount("-o", "remount,size=8g", str(small_disk))
        await spawn(cluster, node)
        await ready(node)
        assert "the previous process failed" in last_lines(node)

        async def is_healed() -> bool:
            return not await findings(cluster)

        await wait_until(is_healed, TIMEOUT_S, "doctor finds nothing wrong with the broker")

        # The earlier report no longer applies: a killed broker leaves no cause.
        await kill(node)
        await wait_until(is_named, TIMEOUT_S, "doctor sees that the broker is fenced")
        assert "it ended" not in (await findings(cluster))["FENCED"]["cause"]
        await spawn(cluster, node)
        await ready(node)
        assert "the previous process recorded no cause" in last_lines(node)
    finally:
        for each in cluster.nodes:
            if each.is_running:
                await kill(each)
