"""Snapshots and history with real processes and small limits: retention, and nodes that rejoin."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from quorumlog.client.controller import ControllerClient
from quorumlog.errors import ClusterError
from quorumlog.kctl.context import wait_until
from quorumlog.kctl.dev_cluster import DevCluster, Node
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import metadata_pb2, node_pb2
from tests.integration.quorum import clusters
from tests.integration.quorum.clusters import TIMEOUT_S, everybody, node_of, running
from tests.integration.quorum.test_disaster import has_logged

SMALL = {"metadata_snapshot_log_bytes": 4000}


async def write(cluster: DevCluster, count: int) -> None:
    """Write some metadata: `count` changes of a config."""
    async with ControllerClient([node.control for node in cluster.nodes if node.is_running]) as client:
        for number in range(count):
            await configure(client, **{"num.partitions": number % 1000 + 2})


async def configure(client: ControllerClient, **values: int) -> None:
    request = pb.AlterConfigsRequest()
    resource = request.resources.add()
    resource.resource.scope = metadata_pb2.Config.SCOPE_CLUSTER
    for key, value in values.items():
        resource.changes.add(key=key, value=str(value))
    for _ in range(10):
        try:
            reply = await client.call(rpcs.ALTER_CONFIGS, request, 30.0)
        except ClusterError as error:  # idempotent: may be sent again
            if not error.retriable:
                raise
        else:
            assert reply.resources[0].result.error == "NONE", reply
            return
    raise AssertionError("the controller does not answer")


@asynccontextmanager
async def writes(cluster: DevCluster) -> AsyncIterator[None]:
    """Write changes until the block ends."""

    async def on() -> None:
        while True:
            await write(cluster, 10)

    task = asyncio.create_task(on())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def metadata(node: Node) -> node_pb2.DescribeMetadataReply:
    async with ControllerClient([node.control]) as client:
        request = node_pb2.DescribeMetadataRequest(at_offset=-1)
        return await client.ask_any(rpcs.DESCRIBE_METADATA, request, TIMEOUT_S)


async def history_begins(node: Node) -> int:
    async with ControllerClient([node.control]) as client:
        request = node_pb2.ReadMetadataRequest(from_offset=-1)
        return int((await client.ask_any(rpcs.READ_METADATA, request, TIMEOUT_S)).log_start)


async def same(cluster: DevCluster, *nodes: Node) -> None:
    """Wait until all these nodes have the same metadata."""

    async def is_so() -> bool:
        found = [await metadata(node) for node in nodes]
        return len({(one.offset, tuple((c.key, c.value) for c in one.configs)) for one in found}) == 1

    await wait_until(is_so, TIMEOUT_S, "all have the same metadata", 0.1)


def snapshots(node: Node) -> list[Path]:
    return sorted((Path(node.data_dir) / "quorum").glob("*.snapshot"))


async def test_the_cluster_config_determines_how_much_metadata_history_is_retained(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, **SMALL) as cluster:
        node = node_of(cluster, 1)

        async def grown_to(count: int) -> bool:
            await write(cluster, 20)
            return len(snapshots(node)) >= count

        await wait_until(lambda: grown_to(4), TIMEOUT_S, "four snapshots are kept", 0.0)
        assert await history_begins(node) == 0
        async with ControllerClient(everybody(cluster)) as client:
            await configure(client, **{"metadata.retention.bytes": 0})

        async def only_the_newest() -> bool:
            await write(cluster, 20)
            return len(snapshots(node)) == 1 and await history_begins(node) > 0

        await wait_until(only_the_newest, TIMEOUT_S, "only what is needed is kept", 0.0)
        await clusters.kill(node)
        await clusters.spawn(cluster, node)  # the config is read from the snapshot
        await clusters.ready(node)
        begins = await history_begins(node)

        async def goes_on() -> bool:
            await write(cluster, 20)
            return await history_begins(node) > begins and len(snapshots(node)) == 1

        await wait_until(goes_on, TIMEOUT_S, "the start of the history continues to advance", 0.0)


async def test_a_voter_rejoins_after_a_long_absence_during_writes(tmp_path: Path) -> None:
    async with running(tmp_path, voters=3, **SMALL) as cluster:
        one, two, three = (node_of(cluster, number) for number in (1, 2, 3))
        async with ControllerClient(everybody(cluster)) as client:
            await configure(client, **{"metadata.retention.bytes": 0})
        await same(cluster, one, two, three)
        away_since = (await metadata(three)).offset
        await clusters.kill(three)

        async def past() -> bool:
            await write(cluster, 20)
            return min(await history_begins(one), await history_begins(two)) > away_since

        await wait_until(past, TIMEOUT_S, "the others' logs begin above what it has", 0.0)
        async with writes(cluster):
            await clusters.spawn(cluster, three)
            await clusters.ready(three)
            assert has_logged(three, "snapshot received")
        await same(cluster, one, two, three)

        # An interrupted download continues at its position; one that a crash has damaged is named and starts over.
        for damaged in (False, True):
            await clusters.kill(three)
            for path in (three.data_dir, three.log):
                shutil.move(path, tmp_path / f"{Path(path).name}-{damaged}")
            leader = await clusters.leader_of(cluster)
            newest = snapshots(leader)[-1]
            half = bytearray(newest.read_bytes()[: newest.stat().st_size // 2])
            if damaged:
                half[len(half) // 2] ^= 1
            part = Path(three.data_dir) / "quorum" / (newest.name + ".part")
            part.parent.mkdir(parents=True)
            part.write_bytes(half)
            await clusters.spawn(cluster, three)
            await clusters.ready(three)
            assert has_logged(three, f"snapshot={newest.name} from_position={len(half)}")
            assert has_logged(three, "snapshot received is damaged") == damaged
            assert (part.with_suffix(".damaged")).exists() == damaged
            await same(cluster, one, two, three)
