"""kill -9 of the active controller of three voters, with few and with very many partitions in the image.

Measures the time from the signal until another controller answers a request that must be committed (producer ids), for
a client that knows all three voters.  It uses the default timeouts: the others notice the failure after a fetch timeout
of 2 to 2.5 s, unless they notice the closed connection first.  Aim: p99 under 3 s, the same for every number of
partitions.  The killed voter is started again and catches up before the next kill.
"""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import Any

from bench.nodes import TIMEOUT_S, FakeBrokers, kill, voters
from bench.plots import Panel, show
from quorumlog.client.controller import ControllerClient
from quorumlog.errors import ClusterError
from quorumlog.kctl import dev_cluster
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb

PARTITIONS = (1_000, 10_000, 100_000, 1_000_000)
KILLS = 7
AIM_P99_S = 3.0
PORT_BASE = 29_300


def run(tiny: bool) -> dict[str, Any]:
    return asyncio.run(_run(PARTITIONS[:1] if tiny else PARTITIONS, 1 if tiny else KILLS))


def present(result: dict[str, Any]) -> list[Panel]:
    rows = result["results"]
    show("kill -9 of the active controller", rows, {"failover_s_max": f"aim: {AIM_P99_S:g}"})
    lines = {name: [row[f"failover_s_{name}"] for row in rows] for name in ("median", "min", "max")}
    sizes = [row["partitions"] for row in rows]
    aim = (AIM_P99_S, f"aim for p99: {AIM_P99_S:g} s")
    return [
        Panel("Time without a controller after kill -9", "partitions in the image", "s", sizes, lines, aim, log_x=True)
    ]


async def _run(sizes: tuple[int, ...], kills: int) -> dict[str, Any]:
    results = []
    async with (
        voters(3, PORT_BASE) as cluster,
        ControllerClient(cluster.controllers.split(",")) as client,
        FakeBrokers(client, 3) as brokers,
    ):
        existing = 0
        for size in sizes:
            began = time.perf_counter()
            await brokers.create_partitions(size - existing)
            existing, filled_s = size, time.perf_counter() - began
            times = [await _one(cluster, client, brokers) for _ in range(kills)]
            results.append(
                {
                    "partitions": size,
                    "fill_s": round(filled_s, 1),
                    "failover_s_median": round(median(times), 3),
                    "failover_s_min": round(min(times), 3),
                    "failover_s_max": round(max(times), 3),
                }
            )
    return {"voters": 3, "kills": kills, "aim_p99_s": AIM_P99_S, "results": results}


async def _one(cluster: dev_cluster.DevCluster, client: ControllerClient, brokers: FakeBrokers) -> float:
    """Return the seconds without a controller after one kill."""
    await dev_cluster.start(cluster, TIMEOUT_S, lambda line: None)  # until all have caught up
    await _commit(client, brokers)
    leader_id = (await client.describe_quorum(TIMEOUT_S)).known.leader_id
    (leader,) = (node for node in cluster.nodes if node.id == leader_id)
    began = time.perf_counter()
    await asyncio.gather(kill(leader), _commit(client, brokers))
    return time.perf_counter() - began


async def _commit(client: ControllerClient, brokers: FakeBrokers) -> None:
    """Request one record repeatedly until an answer arrives."""
    broker_id, epoch = next(iter(brokers.epochs.items()))
    request = pb.AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=epoch)
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                await client.call(rpcs.ALLOCATE_PRODUCER_IDS, request, TIMEOUT_S)
                return
            except ClusterError as error:
                if not error.retriable:
                    raise
