"""Growth with the partitions of a broker: memory, start, idle processor time, and writes to one of the partitions.

Three voters and one broker, with one replica of each partition; then three voters and three brokers with three replicas
of each partition, up to a smaller size, because all brokers share this machine.  The partitions are empty, except one.

    create_s        from the request for the new partitions until every broker has created its replicas
    broker_mib      resident memory of a broker (mean), after the creation; started_mib: of broker 11 after its restart
    idle_broker_percent, idle_all_percent   processor time of a broker (mean) and of all processes while nobody sends
                    a request, in percent of one core
    write_ms_p50, write_ms_p99   one record of one partition after another, acks=all, fsynced
    stop_s, ready_s a clean stop of broker 11, and its start until it is ready (unfenced, all metadata applied)
    others_percent  the share of the machine that other programs took during idle time and writes
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, Final, NamedTuple

from bench.clusters import wait_until_whole
from bench.growth.curve import Bound, line, processor_percent, show_curve, spread
from bench.latency import p50_ms, p99_ms, times
from bench.nodes import TIMEOUT_S, create_partitions, has_applied, one_record, start, stop, until
from bench.plots import Panel
from bench.processes import Others, processor_s, resident_mib
from quorumlog.client.cluster import Cluster
from quorumlog.client.controller import ControllerClient
from quorumlog.client.producer import Producer
from quorumlog.kctl import dev_cluster
from quorumlog.kctl.dev_cluster import BROKER, DevCluster, Node
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb

PORT_BASE: Final = 28_100
VOTERS: Final = 3
WRITTEN: Final = "bench-0"
"""The first topic that is created; the first size must be 1, so that it has one partition."""
CREATE_TIMEOUT_S: Final = 600.0
START_TIMEOUT_S: Final = 300.0
SETTLE_S: Final = 2.0
BOUND: Final = Bound(
    "memory and start: every replica is a set of Python objects (log, replica, role), which a start makes one after "
    "another on one event loop, in one process and on one core; after a clean stop it reads their states from facts.db "
    "and no segment",
    "idle: with followers, the ISR check visits every led partition each replica.lag.time.max.ms / 2, and upkeep "
    "visits every log each minute; fetches do not grow, because one session per pair of brokers covers all partitions",
)


class Size(NamedTuple):
    """How much is measured.  curves: the partitions of each broker, by the number of brokers, ascending from 1."""

    curves: dict[int, Sequence[int]]
    idle_s: float
    writes: int
    restarts: int


FULL: Final = Size({1: (1, 100, 1_000, 5_000, 20_000), 3: (1, 100, 1_000, 5_000)}, 10.0, 500, 3)
TINY: Final = Size({1: (1, 20)}, 0.5, 20, 1)


def run(tiny: bool) -> dict[str, Any]:
    size = TINY if tiny else FULL
    results = [row for brokers in size.curves for row in asyncio.run(_curve(brokers, size))]
    return {"voters": VOTERS, "writes": size.writes, "results": results, "bound": BOUND._asdict()}


def present(result: dict[str, Any]) -> list[Panel]:
    rows = result["results"]
    show_curve("growth with the partitions of a broker", result)
    by_brokers = {count: [row for row in rows if row["brokers"] == count] for count in {row["brokers"] for row in rows}}
    x = sorted({row["partitions"] for row in rows})
    return [
        Panel(
            title,
            "partitions of a broker",
            unit,
            x,
            {
                f"{count} brokers" if count > 1 else "1 broker": line(found, "partitions", figure, x)
                for count, found in sorted(by_brokers.items())
            },
            log_x=True,
        )
        for title, unit, figure in (
            ("Memory of a broker", "MiB", "broker_mib"),
            ("Start after a clean stop", "s", "ready_s"),
            ("Idle processor time of a broker", "% of one core", "idle_broker_percent"),
            ("Write to one partition, p50", "ms", "write_ms_p50"),
        )
    ]


async def _curve(brokers: int, size: Size) -> list[dict[str, Any]]:
    rows = []
    async with _stage(brokers) as stage:
        for partitions in size.curves[brokers]:
            create_s = await stage.grow_to(partitions)
            found = await stage.measure(size)
            rows.append({"brokers": brokers, "partitions": partitions, "create_s": round(create_s, 2), **found})
    return rows


@contextlib.asynccontextmanager
async def _stage(brokers: int) -> AsyncIterator[_Stage]:
    with tempfile.TemporaryDirectory(prefix="quorumlog-bench-") as folder:
        cluster = dev_cluster.plan(Path(folder) / "cluster", VOTERS, brokers, PORT_BASE, made_dir=True)
        await start(cluster)
        try:
            async with ControllerClient(cluster.controllers.split(",")) as client:
                yield _Stage(cluster, client)
        finally:
            await dev_cluster.stop_nodes(cluster.nodes, lambda line: None)


@dataclass
class _Stage:
    """A running cluster.  existing: the number of partitions; next_topic: see `create_partitions`."""

    cluster: DevCluster
    client: ControllerClient
    existing: int = 0
    next_topic: int = 0

    @property
    def brokers(self) -> list[Node]:
        return [node for node in self.cluster.nodes if node.role == BROKER]

    async def grow_to(self, partitions: int) -> float:
        """Create the missing partitions; return the seconds until all brokers have them."""
        began = time.perf_counter()
        missing = partitions - self.existing
        self.next_topic = await create_partitions(self.client, missing, len(self.brokers), self.next_topic)
        self.existing = partitions
        end_offset = (await self.client.describe_quorum(TIMEOUT_S)).high_watermark
        for node in self.brokers:
            await until(partial(has_applied, self.client, node, end_offset), CREATE_TIMEOUT_S)
        await self._until_whole()
        return time.perf_counter() - began

    async def measure(self, size: Size) -> dict[str, Any]:
        await asyncio.sleep(SETTLE_S)
        brokers = [node.pid for node in self.brokers]
        everyone = [node.pid for node in self.cluster.nodes]
        memory_mib = mean(resident_mib(pid) for pid in brokers)
        others = Others(lambda: sum(processor_s(pid) for pid in everyone))
        idle_broker, idle_all = await asyncio.gather(
            processor_percent(brokers, size.idle_s), processor_percent(everyone, size.idle_s)
        )
        writes = await self._write(size.writes)
        others_share = others.share()
        stops, starts = [], []
        for _ in range(size.restarts):
            stop_s, ready_s = await self._restart(self.brokers[0])
            stops.append(stop_s)
            starts.append(ready_s)
        return {
            "broker_mib": round(memory_mib, 1),
            "started_mib": round(resident_mib(self.brokers[0].pid), 1),
            "idle_broker_percent": round(idle_broker / len(brokers), 1),
            "idle_all_percent": idle_all,
            "write_ms_p50": p50_ms(writes),
            "write_ms_p99": p99_ms(writes),
            "stop_s": round(max(stops), 2),
            **spread("ready_s", starts),
            "others_percent": round(100 * others_share, 1),
        }

    async def _write(self, count: int) -> list[float]:
        """Return the seconds of each write."""
        async with Cluster(self.cluster.bootstrap) as cluster, Producer(cluster) as producer:

            async def write() -> None:
                await (await producer.send(WRITTEN, 0, one_record()))

            await times(write, count // 10)  # warm
            return await times(write, count)

    async def _restart(self, node: Node) -> tuple[float, float]:
        """Return the seconds of a clean stop of the broker, and of its start; then let it lead as before."""
        began = time.perf_counter()
        await stop(node)
        stop_s = time.perf_counter() - began
        ready_s = await start(self.cluster, START_TIMEOUT_S)
        await self._until_whole()
        request = pb.ElectLeadersRequest(policy=pb.ElectLeadersRequest.POLICY_PREFERRED)
        await self.client.call(rpcs.ELECT_LEADERS, request, TIMEOUT_S)
        return stop_s, ready_s

    async def _until_whole(self) -> None:
        await asyncio.to_thread(wait_until_whole, self.cluster.bootstrap, len(self.brokers))
