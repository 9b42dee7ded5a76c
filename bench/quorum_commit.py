"""Commit of one metadata record, with 1, 3 and 5 voters as real processes, from a client's request to its answer.

Each request allocates producer ids: one record, appended, replicated, fsynced by a majority, applied, answered.
Requests are measured one at a time (latency) and 64 concurrently (records/s).  The same run also measures the lower
bound: an fdatasync of 4 KiB on the same disk, and a gRPC round trip of a request that needs no commit.  All processes
share the machine.

beside_etcd: three voters beside three members of etcd, as `bench.rounds` describes.  etcd commits a Put of 16 bytes,
which its majority also fsyncs.  Both clients use grpc.aio and send to the leader.  The processor time is that of all
servers for each commit, one after another.  The aim is a p50 of at most 1.5 times etcd's in the same run.  If etcd is
not installed, the result gives the reason and our figures alone.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.clusters import OURS
from bench.etcd import ETCD, EtcdClient, EtcdCluster, etcd_cluster, put_request
from bench.latency import p50_ms, p99_ms, times
from bench.nodes import FIRST_FAKE_ID, LOOK_S, TIMEOUT_S, registration, voters
from bench.plots import Panel, show
from bench.processes import Servers
from bench.rounds import Figures, Rounds, Taken, turns
from quorumlog.client.controller import ControllerClient
from quorumlog.errors import ClusterError
from quorumlog.kctl.dev_cluster import DevCluster
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.clients.outcomes import Skipped

Commit = Callable[[], Awaitable[object]]

VOTERS = (1, 3, 5)
BESIDE_ETCD: Final = 3
"""The number of voters, and of members of etcd, that are measured side by side."""
ROUNDS: Final = 3
AT_ONCE = 64
AT_ONCE_TIMES: Final = 4
"""Beside etcd, this many times as many requests are sent at once as one after another, so that it takes a second."""
PORT_BASE = 29_200
AIM_RATIO: Final = 1.5
"""p50 with three voters, divided by etcd's p50 in the same run."""
SETTLE_S: Final = 3.0
"""Time after a suspension in which both systems finish the elections that it caused.  Fetches time out in 2.5 s."""
P50: Final = "commit p50, ms"
PUT: Final = put_request(b"name", bytes(16))


def run(tiny: bool) -> dict[str, Any]:
    requests, rounds = (50, 1) if tiny else (1000, ROUNDS)
    return asyncio.run(_run(VOTERS[:1] if tiny else VOTERS, requests, rounds))


async def _run(sizes: tuple[int, ...], requests: int, rounds: int) -> dict[str, Any]:
    results = [{"voters": size, **await _measure(size, requests)} for size in sizes]
    beside = (await _beside_etcd(requests, rounds)).result()
    return {
        "requests": requests,
        "at_once": AT_ONCE,
        "aim_ms_p50_3_voters": aim_ms(beside),
        "results": results,
        "beside_etcd": beside,
    }


def aim_ms(beside: dict[str, Any]) -> float | None:
    """Return the aim for the p50 with three voters; None if etcd was not measured."""
    (row,) = [each for each in beside["results"] if each["figure"] == P50]
    return round(AIM_RATIO * row[ETCD], 2) if ETCD in row else None


def present(result: dict[str, Any]) -> list[Panel]:
    rows, beside, aim = result["results"], result["beside_etcd"], result["aim_ms_p50_3_voters"]
    show("commit of one metadata record", rows, {"commit_ms_p50": f"aim: {aim:g} with 3"} if aim else None)
    show(f"{BESIDE_ETCD} voters beside etcd (medians; ratio = ours / etcd's)", beside["results"])
    if beside["missing"]:
        show("Not measured", [{"cluster": ETCD, "reason": beside["missing"]}])
    shares = {
        name: " ".join(f"{share:.0%}" for share in found) for name, found in beside["others_processor_share"].items()
    }
    show("processor share of others, by round", [shares])
    voters = [row["voters"] for row in rows]
    floors = [round(row["fdatasync_ms_p50"] + row["grpc_round_trip_ms_p50"], 3) for row in rows]
    latencies = {
        "p50": [row["commit_ms_p50"] for row in rows],
        "p99": [row["commit_ms_p99"] for row in rows],
        "floor: fdatasync + gRPC round trip": floors,
    }
    line = (aim, f"aim for p50 with 3 voters: {aim:g} ms ({AIM_RATIO:g} times etcd's)") if aim else None
    rates = {f"{result['at_once']} requests at once": [row["records_s_at_once"] for row in rows]}
    return [
        Panel("Commit of one metadata record", "voters", "ms", voters, latencies, line),
        Panel("Committed records", "voters", "records/s", voters, rates),
    ]


async def _measure(size: int, requests: int) -> dict[str, Any]:
    async with voters(size, PORT_BASE) as cluster, ControllerClient(cluster.controllers.split(",")) as client:
        commit = await _commit_of(client)

        async def look() -> None:
            await client.describe_quorum(TIMEOUT_S)

        await times(commit, requests // 10)  # warm
        commits = await times(commit, requests)
        looks = await times(look, requests)
        rate = await _rate_at_once(commit, requests)
        syncs = _fdatasync_times(Path(cluster.nodes[0].data_dir), min(requests, 300))
    floor = median(syncs) + median(looks)
    return {
        "commit_ms_p50": p50_ms(commits),
        "commit_ms_p99": p99_ms(commits),
        "records_s_at_once": round(rate),
        "fdatasync_ms_p50": p50_ms(syncs),
        "grpc_round_trip_ms_p50": p50_ms(looks),
        "ratio_to_floor": round(median(commits) / floor, 2),
    }


async def _commit_of(client: ControllerClient) -> Commit:
    """Return a function that sends a request for one record to the active controller."""
    registered = await client.call(rpcs.REGISTER_BROKER, registration(FIRST_FAKE_ID), TIMEOUT_S)
    request = pb.AllocateProducerIdsRequest(broker_id=FIRST_FAKE_ID, broker_epoch=registered.broker_epoch)
    client.prefer((await client.describe_quorum(TIMEOUT_S)).known.leader_address)  # others would forward it
    return lambda: client.call(rpcs.ALLOCATE_PRODUCER_IDS, request, TIMEOUT_S)


async def _rate_at_once(commit: Commit, requests: int) -> float:
    """Return the commits a second of AT_ONCE loops together."""
    each = requests // AT_ONCE + 1
    began = time.perf_counter()
    await asyncio.gather(*(times(commit, each) for _ in range(AT_ONCE)))
    return AT_ONCE * each / (time.perf_counter() - began)


def _fdatasync_times(folder: Path, count: int) -> list[float]:
    found = []
    descriptor = os.open(folder / "floor", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        for _ in range(count):
            os.write(descriptor, bytes(4096))
            began = time.perf_counter()
            os.fdatasync(descriptor)
            found.append(time.perf_counter() - began)
    finally:
        os.close(descriptor)
    return found


# --- beside etcd ---


async def _beside_etcd(requests: int, rounds: int) -> Rounds:
    taken, missing = Taken(), None
    async with voters(BESIDE_ETCD, PORT_BASE) as cluster:
        with ExitStack() as stack:
            ours = Servers(OURS, tuple(node.pid for node in cluster.nodes))
            stack.callback(ours.resume)  # a suspended process could not stop
            clusters, etcd = [ours], None
            try:
                etcd = stack.enter_context(etcd_cluster(BESIDE_ETCD))
                clusters.append(etcd.servers)
            except Skipped as reason:
                missing = str(reason)
            for servers, _ in turns(clusters, rounds):
                await asyncio.sleep(SETTLE_S)
                with taken.watch(servers):
                    if servers is ours:
                        found = await _of_voters(cluster, servers, requests)
                    else:
                        assert etcd is not None
                        found = await _of_etcd(etcd, servers, requests)
                taken.add(servers, found)
    return Rounds(rounds, taken.figures, {}, taken.others, missing)


async def _of_voters(cluster: DevCluster, servers: Servers, requests: int) -> Figures:
    async with ControllerClient(cluster.controllers.split(",")) as client:
        return await _figures(await _after_elections(client), servers, requests)


async def _after_elections(client: ControllerClient) -> Commit:
    """Return the function of `_commit_of` as soon as the voters, which were suspended, answer."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                return await _commit_of(client)
            except ClusterError as error:
                if not error.retriable:
                    raise
            await asyncio.sleep(LOOK_S)


async def _of_etcd(etcd: EtcdCluster, servers: Servers, requests: int) -> Figures:
    async with EtcdClient(await asyncio.to_thread(etcd.leader)) as client:
        return await _figures(lambda: client.put(PUT), servers, requests)


async def _figures(commit: Commit, servers: Servers, requests: int) -> Figures:
    await times(commit, requests // 10)  # warm
    before_s = servers.processor_s()
    commits = await times(commit, requests)
    spent_s = servers.processor_s() - before_s
    rate = await _rate_at_once(commit, AT_ONCE_TIMES * requests)
    return {
        P50: p50_ms(commits),
        "commit p99, ms": p99_ms(commits),
        f"records/s, {AT_ONCE} requests at once": rate,
        "servers' processor time, ms/commit": 1e3 * spent_s / requests,
    }
