"""Snapshots of an image with a million partitions: stalls while they are taken, their size, and the time to load them.

One voter, a real process, receives requests for commits and heartbeats one after another, each kind over its own
connection: first without snapshots, then with one every two seconds.  The longest answer is the longest stall.  Aim: no
stall above 50 ms.  The bench also measures the time in which the killed voter restarts from its log alone and from a
snapshot, and the time in which this process loads the snapshot's image.  Bytes per partition are computed from the size
of the snapshot file.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import quantiles
from typing import Any

from bench.nodes import TIMEOUT_S, FakeBrokers, kill, start, until, voters
from bench.plots import Panel, show
from metadata.snapshot import ImageLoader
from quorum.snapshot_file import SnapshotParser
from quorumlog.client.controller import ControllerClient
from quorumlog.kctl.dev_cluster import DevCluster
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb

PARTITIONS = 1_000_000
WATCHED_S = 20.0
AIM_STALL_MS = 50
PORT_BASE = 29_400
FEW = ("--set", "metadata.snapshot.log.bytes=1099511627776")
OFTEN = ("--set", "metadata.snapshot.interval.ms=2000")


def run(tiny: bool) -> dict[str, Any]:
    return asyncio.run(_run(1_000, 3.0) if tiny else _run(PARTITIONS, WATCHED_S))


def present(result: dict[str, Any]) -> list[Panel]:
    rows = result["results"]
    aims = {name: f"aim: {AIM_STALL_MS}" for name in ("commit_ms_max", "heartbeat_ms_max")}
    show(f"snapshots of {result['partitions']:,} partitions", rows, aims)
    lines = {
        f"{what}, {which}": [row[f"{what}_ms_{which}"] for row in rows]
        for what in ("commit", "heartbeat")
        for which in ("p99", "max")
    }
    names = [row["snapshots"] for row in rows]
    aim = (AIM_STALL_MS, f"aim: {AIM_STALL_MS} ms")
    return [Panel("Answers while snapshots are taken", "snapshots", "ms", range(len(rows)), lines, aim, x_names=names)]


async def _run(partitions: int, watched_s: float) -> dict[str, Any]:
    async with (
        voters(1, PORT_BASE, FEW) as cluster,
        ControllerClient([cluster.controllers]) as client,
        FakeBrokers(client, 3) as brokers,
    ):
        await brokers.create_partitions(partitions)
        command = list(cluster.nodes[0].command)
        replayed_s = await restart(cluster, [*command, *OFTEN])
        await snapshot_of_all(cluster, client)
        started_s = await restart(cluster, command)
        without = await _watch(cluster, brokers, watched_s)
        await restart(cluster, [*command, *OFTEN])
        with_them = await _watch(cluster, brokers, watched_s)
        newest = snapshots(cluster)[-1]
        size, load_s = newest.stat().st_size, _load(newest)
    return {
        "partitions": partitions,
        "aim_stall_ms": AIM_STALL_MS,
        "watched_s": watched_s,
        "results": [{"snapshots": "none", **without}, {"snapshots": "one after another", **with_them}],
        "bytes_a_partition": round(size / partitions, 1),
        "load_s": round(load_s, 3),
        "ready_from_log_s": round(replayed_s, 2),
        "ready_from_snapshot_s": round(started_s, 2),
    }


async def restart(cluster: DevCluster, command: list[str]) -> float:
    """Kill the voter and start it with `command`; return the seconds from its start until it is ready."""
    (node,) = cluster.nodes
    await kill(node)
    node.command = command
    return await start(cluster)


def snapshots(cluster: DevCluster) -> list[Path]:
    """Return the snapshots, ascending by their ends."""
    return sorted(Path(cluster.nodes[0].data_dir).rglob("*.snapshot"), key=lambda path: path.name)


async def snapshot_of_all(cluster: DevCluster, client: ControllerClient) -> None:
    """Return once a snapshot holds all committed records."""
    end_offset = (await client.describe_quorum(TIMEOUT_S)).high_watermark

    async def is_there() -> bool:
        return any(int(path.name.partition("-")[0]) >= end_offset for path in snapshots(cluster))

    await until(is_there)


async def _watch(cluster: DevCluster, brokers: FakeBrokers, watched_s: float) -> dict[str, Any]:
    """Request commits and heartbeats for this time, and measure each answer."""
    broker_id, epoch = next(iter(brokers.epochs.items()))
    allocate = pb.AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=epoch)
    beat = pb.BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=epoch)
    names = {path.name for path in snapshots(cluster)}
    before = len(names)
    async with ControllerClient([cluster.controllers]) as one, ControllerClient([cluster.controllers]) as other:
        watching = asyncio.gather(
            _ask_on(lambda: one.call(rpcs.ALLOCATE_PRODUCER_IDS, allocate, TIMEOUT_S), watched_s),
            _ask_on(lambda: other.call(rpcs.BROKER_HEARTBEAT, beat, TIMEOUT_S), watched_s),
        )
        while not watching.done():
            await asyncio.wait((watching,), timeout=0.5)
            names |= {path.name for path in snapshots(cluster)}
        commits, beats = watching.result()
    return {
        "snapshots_taken": len(names) - before,
        "commits": len(commits),
        "commit_ms_p99": _ms(quantiles(commits, n=100)[98]),
        "commit_ms_max": _ms(max(commits)),
        "heartbeats": len(beats),
        "heartbeat_ms_p99": _ms(quantiles(beats, n=100)[98]),
        "heartbeat_ms_max": _ms(max(beats)),
    }


async def _ask_on(ask: Callable[[], Awaitable[Any]], watched_s: float) -> list[float]:
    """Return the seconds of each answer; requests do not overlap, and a fifth of the time is pauses."""
    await ask()  # connects
    times = []
    end = time.perf_counter() + watched_s
    while (began := time.perf_counter()) < end:
        await ask()
        times.append(time.perf_counter() - began)
        await asyncio.sleep(times[-1] / 4)
    return times


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


def _load(path: Path) -> float:
    """Return the seconds to check and load the snapshot, as a voter does at its start."""
    began = time.perf_counter()
    parser, loader = SnapshotParser(), ImageLoader(path.name)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            for chunk in parser.feed(piece):
                loader.feed(chunk)
    parser.finish()
    loader.finish()
    return time.perf_counter() - began
