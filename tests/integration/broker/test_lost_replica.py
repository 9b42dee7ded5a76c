"""A replica with missing or damaged data: not recreated automatically, out of the ISR, refilled on request."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from broker.replica.limits import ReplicaLimits
from metadata.control.partitions_count import remove_partitions
from metadata.image import ClusterImage
from metadata.records import LOST, NO_LEADER
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.disk import DiskError
from quorumlog.runtime.file_disk import FileDisk
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from tests.integration.broker.harness import Broker, Cluster, values_of
from tests.integration.broker.test_reassign import is_in_sync, replicas_are
from tests.integration.broker.test_replication import leading, written


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path, 3, limits=ReplicaLimits(fetcher_backoff_max_ms=100)) as running:
        yield running


def folder(cluster: Cluster, broker_id: int) -> Path:
    (found,) = (cluster[broker_id].root / "logs").iterdir()
    return found


def is_in_directory(topic_id: UUID, position: int, directory_id: UUID) -> Callable[[ClusterImage], bool]:
    """The replica at this position of partition 0 is in this directory, as far as the controller knows."""

    def condition(image: ClusterImage) -> bool:
        partition = image.partition(topic_id, 0)
        assert partition is not None
        return partition.replicas[position].directory_id == directory_id

    return condition


async def as_a_crash_leaves_it(broker: Broker) -> None:
    """The facts hold watermarks, but no checkpoint and no mark of a clean stop."""
    disk = FileDisk.acquire(broker.root, broker.id, "test", uuid4)
    await disk.facts.commit(dict.fromkeys(["clean", *disk.facts.load("log/")]))
    assert any(int(value) > 0 for value in disk.facts.load("watermark/").values())
    disk.close()


@pytest.mark.parametrize("clean", [True, False])
async def test_a_replica_whose_folder_is_missing_is_copied_again_only_on_request(cluster: Cluster, clean: bool) -> None:
    topic = cluster.controller.create("t", (1, 2))
    leader = await leading(cluster, 1, "t")
    await written(leader, "t", b"a")
    await cluster.controller.until(is_in_sync(2, "t"))
    await cluster[2].stop(clean)
    shutil.rmtree(folder(cluster, 2))
    await cluster[2].start()
    await cluster.controller.until(is_in_directory(topic, 1, LOST))
    assert cluster.controller.partition(topic).isr == (1,)
    assert "is missing, although it held a replica" in cluster[2].hosted("t").offline
    assert list((cluster[2].root / "logs").iterdir()) == []
    await written(leader, "t", b"b")

    cluster.controller.reassign("t", 1, 3)
    await cluster.controller.until(replicas_are("t", 1, 3))
    cluster.controller.reassign("t", 1, 2)
    await cluster.controller.until(replicas_are("t", 1, 2))
    await written(leader, "t", b"c")
    assert values_of(cluster[2].hosted("t")) == [b"a", b"b", b"c"]
    await cluster[2].stop(clean=False)
    await cluster[2].start()
    await cluster.controller.until(is_in_sync(2, "t"))


async def test_a_leader_with_a_damaged_last_batch_is_replaced(cluster: Cluster) -> None:
    topic = cluster.controller.create("t", (1, 2))
    leader = await leading(cluster, 1, "t")
    await written(leader, "t", b"a")
    await cluster.controller.until(is_in_sync(2, "t"))
    await leader.stop(clean=False)
    await as_a_crash_leaves_it(leader)
    (segment,) = folder(cluster, 1).glob("*.log")
    damaged = bytearray(segment.read_bytes())
    damaged[-1] ^= 1
    segment.write_bytes(damaged)
    await leader.start()
    await cluster.controller.until(is_in_directory(topic, 0, LOST))
    assert "were durable and committed" in leader.hosted("t").offline
    other = await leading(cluster, 2, "t")
    assert values_of(other.hosted("t")) == [b"a"]
    await written(other, "t", b"b")
    assert segment.read_bytes() == damaged


async def test_the_loss_of_the_last_replica_is_reported(cluster: Cluster) -> None:
    topic = cluster.controller.create("t", (1,))
    leader = await leading(cluster, 1, "t")
    await written(leader, "t", b"a")
    await leader.stop()
    shutil.rmtree(folder(cluster, 1))
    await leader.start()
    await cluster.controller.until(lambda _: cluster.controller.partition(topic).leader == NO_LEADER)
    assert cluster.controller.partition(topic).replicas[0].directory_id == LOST


async def test_a_loss_is_reported_although_the_topic_got_another_id(cluster: Cluster) -> None:
    cluster.controller.create("t", (1, 2), (1, 2))
    leader = await leading(cluster, 1, "t")
    await written(leader, "t", b"a")
    cluster.controller.refusals[rpcs.ASSIGN_DIRECTORIES] = ApiError.NOT_CONTROLLER
    key = leader.hosted("t").key
    leader.role.logs.take_offline(key, CorruptStoreError("damaged for this test"))
    second = UUID(int=99)
    cluster.controller.decide(lambda image: remove_partitions(image, "t", 1, lambda: second))
    await cluster.until(lambda: second in leader.replicas.image.topics, "applied")
    del cluster.controller.refusals[rpcs.ASSIGN_DIRECTORIES]
    await cluster.controller.until(is_in_directory(second, 0, LOST))
    await leading(cluster, 2, "t")
    assert cluster.controller.partition(second).isr == (2,)


@pytest.mark.parametrize("clean", [True, False])
async def test_the_newer_copy_of_a_replica_is_used_when_a_failed_directory_with_an_older_one_recovers(
    tmp_path: Path, clean: bool
) -> None:
    limits = ReplicaLimits(fetcher_backoff_max_ms=100)
    async with Cluster(tmp_path, 3, limits=limits, directories=2) as cluster:
        topic = cluster.controller.create("t", (1, 2))
        leader, broker = await leading(cluster, 1, "t"), cluster[2]
        await written(leader, "t", b"a")
        await cluster.controller.until(is_in_sync(2, "t"))
        first = directory_of(broker)
        await cluster.controller.until(is_in_directory(topic, 1, first))
        broker.role.logs.disk_failed(first, DiskError("broken"))
        await cluster.controller.until(lambda image: image.brokers[2].directories_offline == (first,))
        cluster.controller.reassign("t", 1, 3)
        await cluster.controller.until(replicas_are("t", 1, 3))
        await written(leader, "t", b"b")
        cluster.controller.reassign("t", 1, 2)
        await cluster.controller.until(replicas_are("t", 1, 2))
        await written(leader, "t", b"c")
        second = directory_of(broker)
        assert second != first
        await cluster.controller.until(is_in_directory(topic, 1, second))
        await broker.stop(clean)
        await broker.start()
        await cluster.controller.until(is_in_sync(2, "t"))
        assert directory_of(broker) == second
        assert values_of(broker.hosted("t")) == [b"a", b"b", b"c"]
        assert [stray.directory_id for stray in broker.role.logs.strays()] == [first]
        assert cluster.controller.partition(topic).replicas[1].directory_id == second


def directory_of(broker: Broker) -> UUID:
    return broker.log("t").directory_id
