"""Commit of one metadata record, with 1, 3 and 5 voters as real processes, from a client's request to its answer.

Each request allocates producer ids: one record, appended, replicated, fsynced by a majority, applied, answered.
Measured one at a time (latency) and 64 at once (records/s).  The floor beside it, from the same run: an fdatasync of
4 KiB on the same disk, and a gRPC round trip to a voter that needs no commit.  All processes share the machine.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from quorumlog.client.controller import ControllerClient
from quorumlog.kctl import dev_cluster
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import metadata_pb2 as records_pb

VOTERS = (1, 3, 5)
AT_ONCE = 64
TIMEOUT_S = 30.0
PORT_BASE = 41_000
BROKER_ID = 1000


def run(tiny: bool) -> dict[str, Any]:
    requests = 50 if tiny else 1000
    return asyncio.run(_run(VOTERS[:2] if tiny else VOTERS, requests))


async def _run(sizes: tuple[int, ...], requests: int) -> dict[str, Any]:
    results = []
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="quorumlog-bench-") as folder:
            results.append({"voters": size, **await _measure(Path(folder), size, requests)})
    return {"requests": requests, "at_once": AT_ONCE, "results": results}


async def _measure(folder: Path, voters: int, requests: int) -> dict[str, Any]:
    cluster = dev_cluster.plan(folder / "cluster", voters, 0, PORT_BASE, made_dir=True)
    await dev_cluster.start(cluster, TIMEOUT_S, lambda line: None)
    try:
        async with ControllerClient(cluster.controllers.split(",")) as client:
            registered = await client.call("RegisterBroker", _registration(BROKER_ID), TIMEOUT_S)
            request = pb.AllocateProducerIdsRequest(broker_id=BROKER_ID, broker_epoch=registered.broker_epoch)

            async def commit() -> None:
                await client.call("AllocateProducerIds", request, TIMEOUT_S)

            async def look() -> None:
                await client.describe_quorum(TIMEOUT_S)

            await _times(commit, requests // 10)  # warm
            commits = await _times(commit, requests)
            looks = await _times(look, requests)
            began = time.perf_counter()
            await asyncio.gather(*(_times(commit, requests // AT_ONCE + 1) for _ in range(AT_ONCE)))
            rate = AT_ONCE * (requests // AT_ONCE + 1) / (time.perf_counter() - began)
    finally:
        await dev_cluster.stop_nodes(cluster.nodes, lambda line: None)
    syncs = _fdatasync_times(folder, min(requests, 300))
    floor = median(syncs) + median(looks)
    return {
        "commit_ms_p50": _ms(median(commits)),
        "commit_ms_p99": _ms(quantiles(commits, n=100)[98]),
        "records_s_at_once": round(rate),
        "fdatasync_ms_p50": _ms(median(syncs)),
        "grpc_round_trip_ms_p50": _ms(median(looks)),
        "ratio_to_floor": round(median(commits) / floor, 2),
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _registration(broker_id: int) -> pb.RegisterBrokerRequest:
    unique = broker_id.to_bytes(16, "big")
    return pb.RegisterBrokerRequest(
        registration=records_pb.RegisterBroker(
            broker_id=broker_id,
            incarnation_id=unique,
            endpoints=[records_pb.Endpoint(name="default", host="127.0.0.1", port=9092, security="PLAINTEXT")],
            directory_ids=[unique],
            previous_broker_epoch=-1,
            feature_min=1,
            feature_max=1,
            fenced=True,
        )
    )


async def _times(act: Callable[[], Awaitable[None]], times: int) -> list[float]:
    """Seconds of each of `times` calls, one after another."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        await act()
        found.append(time.perf_counter() - began)
    return found


def _fdatasync_times(folder: Path, times: int) -> list[float]:
    found = []
    descriptor = os.open(folder / "floor", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        for _ in range(times):
            os.write(descriptor, bytes(4096))
            began = time.perf_counter()
            os.fdatasync(descriptor)
            found.append(time.perf_counter() - began)
    finally:
        os.close(descriptor)
    return found
