"""Growth with the open connections to one broker: memory, idle processor time, and a small request.

One standalone broker (controller and broker in one process).  The clients are asyncio connections of this process.
Each connection sends one request after it was opened, and then stays open.  Connections are added from size to size.

    kib_a_connection   growth of the broker's resident memory since there were no connections, divided by their number
    idle_percent    processor time of the broker while no client sends a request, in percent of one core; idle_before:
                    without connections (in the result's head)
    request_ms_p50, request_ms_p99   an ApiVersions request, over all connections in turn, one after another
    others_percent  the share of the machine that other programs took

A size that does not fit is skipped, with the reason: the broker accepts a limited number of connections, and each end
of a connection needs a file descriptor.  The largest number that fits is measured instead.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, NamedTuple

from bench.growth.curve import Bound, panels, processor_percent, show_curve
from bench.latency import p50_ms, p99_ms, times
from bench.nodes import TIMEOUT_S
from bench.plots import Panel
from bench.processes import Others, processor_s, resident_mib
from broker.kafka.limits import KafkaLimits
from quorumlog.client.kafka import KafkaConnection
from quorumlog.runtime.addresses import parse_address
from quorumlog.runtime.descriptors import descriptor_limit, raise_descriptor_limit
from quorumlog.testing import Broker, standalone
from quorumlog.wire.kafka.codec import Api

API_VERSIONS_VERSION: Final = 3
CLIENT: Final = {"client_software_name": "bench", "client_software_version": "1"}
AT_ONCE: Final = 50
RESERVED: Final = 100
"""Descriptors of this process, and connections of the broker, that are left for other purposes."""
SETTLE_S: Final = 1.0
BOUND: Final = Bound(
    f"their number: a broker accepts {KafkaLimits().connections_max:,} connections (KafkaLimits.connections_max), and "
    "uses at most half of its file descriptors for them; a further one replaces an idle one",
    "memory for each connection, and a sweep that visits all connections each "
    f"{KafkaLimits().sweep_ms / 1000:g} s on the event loop, to find idle and stalled ones",
)


class Size(NamedTuple):
    """How much is measured.  counts: the numbers of connections, ascending."""

    counts: Sequence[int]
    idle_s: float
    requests: int


FULL: Final = Size((10, 100, 1_000, 10_000), 10.0, 1_000)
TINY: Final = Size((5, 20), 0.5, 50)


def run(tiny: bool) -> dict[str, Any]:
    raise_descriptor_limit()
    size = TINY if tiny else FULL
    counts, skipped = fitting(size.counts, KafkaLimits().connections_max, descriptor_limit())
    with standalone() as broker:
        result = asyncio.run(_run(broker, counts, size))
    return {**result, "skipped": skipped, "bound": BOUND._asdict()}


def fitting(wanted: Sequence[int], accepted_max: int, descriptors: int) -> tuple[list[int], dict[str, str]]:
    """Return the numbers of connections to measure, and the reason for each that is skipped.

    accepted_max: connections that the broker accepts.  descriptors: the limit of open files of each process.  The
    broker uses half of them for connections; this process needs one for each of its ends.
    """
    limits = {
        f"a broker accepts {accepted_max:,} connections": accepted_max,
        f"a broker uses half of its {descriptors:,} file descriptors for connections": descriptors // 2,
    }
    reason, limit = min(limits.items(), key=lambda each: each[1])
    most = limit - RESERVED
    counts = [count for count in wanted if count <= most]
    skipped = {f"{count:,} connections": reason for count in wanted if count > most}
    return ([*counts, most] if skipped and most not in counts else counts), skipped


def present(result: dict[str, Any]) -> list[Panel]:
    show_curve("growth with the connections of a broker", result)
    figures: dict[str, tuple[str, Sequence[str]]] = {
        "Memory for each connection": ("KiB", ("kib_a_connection",)),
        "Idle processor time": ("% of one core", ("idle_percent",)),
        "Small request": ("ms", ("request_ms_p50", "request_ms_p99")),
    }
    return panels(result["results"], "connections", figures)


async def _run(broker: Broker, counts: Sequence[int], size: Size) -> dict[str, Any]:
    address = parse_address(broker.bootstrap)
    results = []
    idle_before = await processor_percent([broker.pid], size.idle_s)
    before_mib = resident_mib(broker.pid)
    async with AsyncExitStack() as stack:
        connections: list[KafkaConnection] = []

        async def open_one() -> None:
            connection = KafkaConnection(address.host, address.port)
            await connection.connect(TIMEOUT_S)
            stack.push_async_callback(connection.close)
            await _request(connection)
            connections.append(connection)

        for count in counts:
            while (missing := count - len(connections)) > 0:
                await asyncio.gather(*(open_one() for _ in range(min(missing, AT_ONCE))))
            results.append(await _row(broker, connections, before_mib, size))
    return {"before_mib": round(before_mib, 1), "idle_before_percent": idle_before, "results": results}


async def _row(broker: Broker, connections: Sequence[KafkaConnection], before_mib: float, size: Size) -> dict[str, Any]:
    await asyncio.sleep(SETTLE_S)
    grown_mib = resident_mib(broker.pid) - before_mib
    others = Others(lambda: processor_s(broker.pid))
    idle_percent = await processor_percent([broker.pid], size.idle_s)
    turns = itertools.cycle(connections)
    taken = await times(lambda: _request(next(turns)), size.requests)
    closed = sum(not connection.is_open for connection in connections)
    assert closed == 0, f"the broker closed {closed} of {len(connections)} connections"
    return {
        "connections": len(connections),
        "kib_a_connection": round(1024 * grown_mib / len(connections), 1),
        "idle_percent": idle_percent,
        "request_ms_p50": p50_ms(taken),
        "request_ms_p99": p99_ms(taken),
        "others_percent": round(100 * others.share(), 1),
    }


async def _request(connection: KafkaConnection) -> None:
    reply = await connection.ask(Api.API_VERSIONS, API_VERSIONS_VERSION, CLIENT, TIMEOUT_S)
    assert reply.error_code == 0, reply
