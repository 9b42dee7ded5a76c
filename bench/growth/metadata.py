"""Growth with the partitions in the metadata: memory and start of one voter.

One voter, a real process; three fake brokers, and three replicas of each partition, as in the bench `snapshot`.  Each
size begins with an empty log.  The time without a controller after a kill of the active one, with three voters and the
same sizes, is the curve of the bench `controller_failover`.

    fill_s          time in which the partitions were created
    filled_mib      resident memory after that; started_mib: after the start from the snapshot
    ready_from_log_s, ready_from_snapshot_s   from the start of the killed voter until it is ready, if it has all
                    records in its log, and if a snapshot has them
    snapshot_mib    size of the snapshot file
    others_percent  the share of the machine that other programs took while the partitions were created
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

from bench.growth.curve import Bound, panels, show_curve
from bench.nodes import FakeBrokers, voters
from bench.plots import Panel
from bench.processes import Others, processor_s, resident_mib
from bench.snapshot import FEW, OFTEN, restart, snapshot_of_all, snapshots
from quorumlog.client.controller import ControllerClient

PORT_BASE: Final = 28_300
BROKERS: Final = 3
PARTITIONS: Final = (1_000, 10_000, 100_000, 1_000_000)
TINY_PARTITIONS: Final = (1_000,)
BOUND: Final = Bound(
    "memory: the image of all partitions is in the memory of every voter and every broker; a start replays the log, or "
    "loads a snapshot, record after record on one core",
    "a change of many partitions at once is decided in batches of at most 10,000 records (RECORDS_PER_BATCH_MAX), each "
    "in one turn of the controller's event loop",
)


def run(tiny: bool) -> dict[str, Any]:
    results = [asyncio.run(_row(partitions)) for partitions in (TINY_PARTITIONS if tiny else PARTITIONS)]
    return {"voters": 1, "brokers": BROKERS, "results": results, "bound": BOUND._asdict()}


def present(result: dict[str, Any]) -> list[Panel]:
    show_curve("growth with the partitions in the metadata", result)
    figures: dict[str, tuple[str, Sequence[str]]] = {
        "Memory of a voter": ("MiB", ("filled_mib", "started_mib", "snapshot_mib")),
        "Start of a voter": ("s", ("ready_from_log_s", "ready_from_snapshot_s")),
    }
    return panels(result["results"], "partitions", figures)


async def _row(partitions: int) -> dict[str, Any]:
    async with (
        voters(1, PORT_BASE, FEW) as cluster,
        ControllerClient([cluster.controllers]) as client,
        FakeBrokers(client, BROKERS) as brokers,
    ):
        (node,) = cluster.nodes
        pid, command = node.pid, list(node.command)
        others, began = Others(lambda: processor_s(pid)), time.perf_counter()
        await brokers.create_partitions(partitions)
        fill_s, others_share, filled_mib = time.perf_counter() - began, others.share(), resident_mib(pid)
        from_log_s = await restart(cluster, [*command, *OFTEN])
        await snapshot_of_all(cluster, client)
        from_snapshot_s = await restart(cluster, command)
        return {
            "partitions": partitions,
            "fill_s": round(fill_s, 2),
            "filled_mib": round(filled_mib, 1),
            "started_mib": round(resident_mib(node.pid), 1),
            "snapshot_mib": round(snapshots(cluster)[-1].stat().st_size / 2**20, 2),
            "ready_from_log_s": round(from_log_s, 2),
            "ready_from_snapshot_s": round(from_snapshot_s, 2),
            "others_percent": round(100 * others_share, 1),
        }
