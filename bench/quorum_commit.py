"""Commit of one metadata record, with 1, 3 and 5 voters as real processes, from a client's request to its answer.

Each request allocates producer ids: one record, appended, replicated, fsynced by a majority, applied, answered.
Requests are measured one at a time (latency) and 64 concurrently (records/s).  The same run also measures the lower
bound: an fdatasync of 4 KiB on the same disk, and a gRPC round trip of a request that needs no commit.  All processes
share the machine.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from bench.nodes import FIRST_FAKE_ID, TIMEOUT_S, registration, voters
from bench.plots import Panel, show
from quorumlog.client.controller import ControllerClient
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb

VOTERS = (1, 3, 5)
AT_ONCE = 64
PORT_BASE = 29_200
AIM_MS = 1.28
"""p50 with three voters: the figure of etcd on two cores."""


def run(tiny: bool) -> dict[str, Any]:
    requests = 50 if tiny else 1000
    return asyncio.run(_run(VOTERS[:2] if tiny else VOTERS, requests))


async def _run(sizes: tuple[int, ...], requests: int) -> dict[str, Any]:
    results = [{"voters": size, **await _measure(size, requests)} for size in sizes]
    return {"requests": requests, "at_once": AT_ONCE, "aim_ms_p50_3_voters": AIM_MS, "results": results}


def present(result: dict[str, Any]) -> list[Panel]:
    rows = result["results"]
    show("commit of one metadata record", rows, {"commit_ms_p50": f"aim: {AIM_MS:g} with 3"})
    voters = [row["voters"] for row in rows]
    floors = [round(row["fdatasync_ms_p50"] + row["grpc_round_trip_ms_p50"], 3) for row in rows]
    latencies = {
        "p50": [row["commit_ms_p50"] for row in rows],
        "p99": [row["commit_ms_p99"] for row in rows],
        "floor: fdatasync + gRPC round trip": floors,
    }
    aim = (AIM_MS, f"aim for p50 with 3 voters: {AIM_MS:g} ms (etcd)")
    rates = {f"{result['at_once']} requests at once": [row["records_s_at_once"] for row in rows]}
    return [
        Panel("Commit of one metadata record", "voters", "ms", voters, latencies, aim),
        Panel("Committed records", "voters", "records/s", voters, rates),
    ]


async def _measure(size: int, requests: int) -> dict[str, Any]:
    async with voters(size, PORT_BASE) as cluster, ControllerClient(cluster.controllers.split(",")) as client:
        registered = await client.call(rpcs.REGISTER_BROKER, registration(FIRST_FAKE_ID), TIMEOUT_S)
        request = pb.AllocateProducerIdsRequest(broker_id=FIRST_FAKE_ID, broker_epoch=registered.broker_epoch)

        async def commit() -> None:
            await client.call(rpcs.ALLOCATE_PRODUCER_IDS, request, TIMEOUT_S)

        async def look() -> None:
            await client.describe_quorum(TIMEOUT_S)

        await _times(commit, requests // 10)  # warm
        commits = await _times(commit, requests)
        looks = await _times(look, requests)
        began = time.perf_counter()
        await asyncio.gather(*(_times(commit, requests // AT_ONCE + 1) for _ in range(AT_ONCE)))
        rate = AT_ONCE * (requests // AT_ONCE + 1) / (time.perf_counter() - began)
        syncs = _fdatasync_times(Path(cluster.nodes[0].data_dir), min(requests, 300))
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


async def _times(act: Callable[[], Awaitable[None]], times: int) -> list[float]:
    """Return the seconds of each of `times` calls, one after another."""
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
