"""Changes of very many partitions are applied in turns and requested together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import UUID

import pytest
from google.protobuf.message import Message

from broker.replica import isr
from broker.replica.limits import ReplicaLimits
from metadata.control.configs import Changes, Resource, alter_configs
from metadata.image import ClusterImage
from metadata.records import ConfigScope
from quorumlog.runtime import turns
from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.integration.broker.harness import Cluster
from tests.integration.broker.test_replication import leading

COUNT = 300


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path, count=1) as running:
        yield running


class Turns:
    """Counts the turns of the loop."""

    def __init__(self) -> None:
        self.count = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.count += 1


async def applied(cluster: Cluster) -> None:
    role = cluster[1].role
    async with asyncio.timeout(60):
        await role.wait_applied(cluster.controller.image.end_offset)
        await cluster.until(lambda: not role.progress.pending_changes, "applied")


def alter(cluster: Cluster, key: str, value: str) -> None:
    wanted = Changes(Resource(ConfigScope.CLUSTER, ""), ((key, value),))
    cluster.controller.commit(alter_configs(cluster.controller.image, [wanted]).records)


def reload(cluster: Cluster) -> None:
    """As after the snapshot of an absence."""
    image = cluster.controller.image
    cluster[1].role.follower.on_batch(image, image, None)


async def test_changes_of_many_partitions_let_other_tasks_run_between_partitions(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With turns of no length each step on each partition has its own, so heartbeats go between any two of them.

    The numbers: how many steps on every partition such a change has.
    """
    monkeypatch.setattr(turns, "YIELD_MS", 0)
    seen = Turns()
    ticking = asyncio.create_task(seen.run())
    made: list[UUID] = []
    changes: list[tuple[str, int, Callable[[], object]]] = [
        ("created", 3, lambda: made.append(cluster.controller.create("t", *[(1,)] * COUNT))),
        ("loaded from a snapshot", 6, lambda: reload(cluster)),
        ("config of the cluster", 1, lambda: alter(cluster, "reassignment.throttle.bytes.per.second", "9000")),
        ("deleted", 7, lambda: cluster.controller.delete(made[0])),
    ]
    for what, steps, change in changes:
        before = seen.count
        change()
        await applied(cluster)
        assert seen.count - before >= steps * COUNT, what
    assert len(cluster[1].table) == 0
    ticking.cancel()


async def test_isr_changes_of_many_partitions_share_requests(tmp_path: Path) -> None:
    """One request is under way at a time, with all reports that were made meanwhile."""
    async with Cluster(tmp_path, count=2, lag_max_ms=300, limits=ReplicaLimits()) as cluster:
        topic_id = cluster.controller.create("t", *[(1, 2)] * COUNT)
        await leading(cluster, 1, "t")

        def all_have_shrunk(image: ClusterImage) -> bool:
            return all(len(cluster.controller.partition(topic_id, index).isr) == 1 for index in range(COUNT))

        await cluster.until(lambda: len(cluster[2].table) == COUNT, "followed")
        before = len(cluster.controller.answers)
        await cluster[2].role.fetchers.stop()
        await cluster.controller.until(all_have_shrunk)
        asked = [word for rpc, word in cluster.controller.answers[before:] if rpc == rpcs.ALTER_PARTITION]
        assert 1 <= len(asked) <= COUNT // 20


async def test_an_isr_request_names_a_limited_number_of_partitions_and_later_requests_name_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isr, "ITEMS_MAX", 7)
    sizes: list[int] = []
    async with Cluster(tmp_path, count=2, lag_max_ms=300) as cluster:
        topic_id = cluster.controller.create("t", *[(1, 2)] * 40)
        await leading(cluster, 1, "t")
        await cluster.until(lambda: len(cluster[2].table) == 40, "followed")
        handle = cluster.controller._handle

        def counted(rpc: AnyRpc, request: Message) -> object:
            if isinstance(request, pb.AlterPartitionRequest):
                sizes.append(len(request.items))
            return handle(rpc, request)

        monkeypatch.setattr(cluster.controller, "_handle", counted)
        await cluster[2].role.fetchers.stop()
        await cluster.controller.until(
            lambda image: all(cluster.controller.partition(topic_id, index).isr == (1,) for index in range(40))
        )
    assert max(sizes) == 7
    assert sum(sizes) >= 40
