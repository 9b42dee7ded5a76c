"""Growth with the number of brokers: the active controller of three voters, while brokers send heartbeats.

The brokers are fakes: they register and send a heartbeat each second, the default, from a process of their own.  Unlike
real brokers, they do not fetch the metadata log and follow no partition, so the curve shows heartbeats and sessions.
All processes share the machine, the fakes included; with many brokers, they may be what takes its cores.

    register_s      until all brokers are registered and unfenced
    heartbeats_s    heartbeats that were answered each second; if this is less than the number of brokers, the machine
                    is too small for this size.  fenced: how many of the answers reported a fenced broker
    active_percent, senders_percent   processor time of the active controller, and of the process with the fakes, in
                    percent of one core
    active_mib      resident memory of the active controller
    heartbeat_ms_p50, heartbeat_ms_p99   heartbeats of one more broker, one each 20 ms, from this process
    commit_ms_p50, commit_ms_p99   commits of one record, one each 20 ms, as in the bench `quorum_commit`
    others_percent  the share of the machine that other programs took
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from bench.growth.curve import Bound, panels, processor_percent, show_curve
from bench.growth.senders import senders
from bench.latency import p50_ms, p99_ms, times
from bench.nodes import TIMEOUT_S, FakeBrokers, voters
from bench.plots import Panel
from bench.processes import Others, processor_s, resident_mib
from quorumlog.client.controller import ControllerClient
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb

PORT_BASE: Final = 28_200
VOTERS: Final = 3
INTERVAL_S: Final = 1.0
"""broker.heartbeat.interval.ms by default."""
PAUSE_S: Final = 0.02
NO_PROBES: Final = ("--set", "broker.fence.on.refusal=false")
"""Fake brokers have no addresses, so the controller would try in vain to connect to them, again and again."""
BOUND: Final = Bound(
    "each heartbeat is one gRPC call, which the active controller decides on its one event loop: brokers / "
    "broker.heartbeat.interval.ms calls a second on one core, while commits wait for their turn on the same loop",
    "a commit is sent to every broker, because each one fetches the metadata log from the active controller; the fakes "
    "do not fetch, so this curve does not show it",
)


class Size(NamedTuple):
    """How much is measured.  counts: the numbers of brokers.  samples: heartbeats and commits that are timed."""

    counts: Sequence[int]
    watched_s: float
    samples: int


FULL: Final = Size((3, 10, 100, 1_000), 10.0, 500)
TINY: Final = Size((10,), 1.0, 20)


def run(tiny: bool) -> dict[str, Any]:
    size = TINY if tiny else FULL
    results = [asyncio.run(_row(count, size)) for count in size.counts]
    return {"voters": VOTERS, "interval_s": INTERVAL_S, "results": results, "bound": BOUND._asdict()}


def present(result: dict[str, Any]) -> list[Panel]:
    show_curve("growth with the number of brokers (simulated)", result)
    figures: dict[str, tuple[str, Sequence[str]]] = {
        "Processor time": ("% of one core", ("active_percent", "senders_percent")),
        "Memory of the active controller": ("MiB", ("active_mib",)),
        "Heartbeats and commits": ("ms", ("heartbeat_ms_p50", "heartbeat_ms_p99", "commit_ms_p50", "commit_ms_p99")),
    }
    return panels(result["results"], "brokers", figures)


async def _row(count: int, size: Size) -> dict[str, Any]:
    async with (
        voters(VOTERS, PORT_BASE, NO_PROBES) as cluster,
        ControllerClient(cluster.controllers.split(",")) as client,
        FakeBrokers(client, 1, interval_s=INTERVAL_S) as own,
        senders(cluster.controllers, count - 1, INTERVAL_S) as fakes,
    ):
        known = (await client.describe_quorum(TIMEOUT_S)).known
        (active,) = [node.pid for node in cluster.nodes if node.id == known.leader_id]
        client.prefer(known.leader_address)
        measured = [*(node.pid for node in cluster.nodes), fakes.pid]
        others = Others(lambda: sum(processor_s(pid) for pid in measured))
        active_percent, senders_percent = await asyncio.gather(
            processor_percent([active], size.watched_s), processor_percent([fakes.pid], size.watched_s)
        )
        beats, commits = await _latencies(client, own, size.samples)
        others_share, active_mib = others.share(), resident_mib(active)
        sent = await fakes.end()
    return {
        "brokers": count,
        "register_s": round(sent.register_s, 2),
        "heartbeats_s": round(sent.heartbeats_s + 1 / INTERVAL_S, 1),
        "fenced": sent.fenced,
        "active_percent": active_percent,
        "senders_percent": senders_percent,
        "active_mib": round(active_mib, 1),
        "heartbeat_ms_p50": p50_ms(beats),
        "heartbeat_ms_p99": p99_ms(beats),
        "commit_ms_p50": p50_ms(commits),
        "commit_ms_p99": p99_ms(commits),
        "others_percent": round(100 * others_share, 1),
    }


async def _latencies(client: ControllerClient, own: FakeBrokers, samples: int) -> tuple[list[float], list[float]]:
    """Return the seconds of heartbeats and of commits."""
    ((broker_id, epoch),) = own.epochs.items()
    offset = (await client.describe_quorum(TIMEOUT_S)).high_watermark
    beat = pb.BrokerHeartbeatRequest(
        broker_id=broker_id, broker_epoch=epoch, applied_offset=offset, received_offset=offset
    )
    allocate = pb.AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=epoch)
    beats = await times(lambda: client.call(rpcs.BROKER_HEARTBEAT, beat, TIMEOUT_S), samples, PAUSE_S)
    commits = await times(lambda: client.call(rpcs.ALLOCATE_PRODUCER_IDS, allocate, TIMEOUT_S), samples, PAUSE_S)
    return beats, commits
