"""Failures that end a broker process, and failures that do not: disks, errors in the body, a damaged replica."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from broker.kafka.api import FetchPartition, FetchPlan
from broker.server.process import BrokerProcess, make_broker_process
from metadata.records import UNASSIGNED
from quorumlog.errors import FatalError
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.config import KafkaListener, NodeConfig
from quorumlog.runtime.disk import DiskError
from quorumlog.wire import rpcs
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.hanging_syncs import hanging_syncs
from tests.integration.broker.harness import batch
from tests.integration.broker.processes import ANY_PORT, WAIT_S

PARTITIONS = 4


def config(*roots: Path) -> NodeConfig:
    return NodeConfig(
        role="broker",
        node_id=1,
        data_dirs=tuple(str(root) for root in roots),
        standalone=True,
        control_listen=ANY_PORT,
        kafka_listeners=(KafkaListener("default", ANY_PORT),),
        broker_heartbeat_interval_ms=100,
    )


async def ready(process: BrokerProcess) -> None:
    async with asyncio.timeout(WAIT_S):
        await process.ready()


async def create(process: BrokerProcess, **configs: str) -> None:
    request = pb.CreateTopicsRequest()
    topic = request.topics.add(name="t", partitions=PARTITIONS, replication_factor=1)
    for key, value in configs.items():
        topic.configs.add(key=key.replace("_", "."), value=value)
    reply = await process.plane.service.call(rpcs.CREATE_TOPICS, request, 10_000)
    assert reply.topics[0].result.error == "NONE", reply
    await process.role.wait_applied(reply.topics[0].offset)


async def write(process: BrokerProcess, index: int) -> int:
    return (await process.role.replicas.produce("t", index, memoryview(batch(b"x")), -1, 5_000)).error_code


async def fetch(process: BrokerProcess, index: int, offset: int) -> int:
    partition = FetchPartition(None, "t", index, offset, 1)
    plan = FetchPlan((partition,), max_wait_ms=0, min_bytes=1, max_bytes=1)
    return (await process.role.replicas.fetch(plan)).results[0].error_code


async def test_an_error_in_the_body_of_the_brokers_context_is_raised_unchanged(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with make_broker_process(config(tmp_path), Sources.real()) as process:
            await ready(process)
            raise ZeroDivisionError


def fail(process: BrokerProcess, directory_id: UUID) -> None:
    process.role.logs.events.directory_failed(directory_id, DiskError("no more"))


async def test_the_failure_of_the_last_disk_ends_the_process(tmp_path: Path) -> None:
    with pytest.raises(FatalError, match="every data directory"):  # noqa: PT012
        async with make_broker_process(config(tmp_path), Sources.real()) as process:
            await ready(process)
            await create(process)
            fail(process, process.role._disks[0].directory_id)
            await asyncio.Event().wait()


async def test_a_failed_directory_takes_only_its_own_replicas_offline(tmp_path: Path) -> None:
    async with make_broker_process(config(tmp_path / "a", tmp_path / "b"), Sources.real()) as process:
        await ready(process)
        await create(process)
        image = process.plane.replay.image
        topic = image.topic("t")
        assert topic is not None
        homes = {}
        for index in range(PARTITIONS):
            hosted = process.role.table.find("t", index)
            assert hosted is not None
            assert hosted.log is not None
            homes[index] = hosted.log.directory_id
        assert len(set(homes.values())) == 2
        assert [await write(process, index) for index in range(PARTITIONS)] == [0] * PARTITIONS

        def told() -> bool:
            """Return whether the controller knows the directory of each replica."""
            now = process.plane.replay.image.topics[topic.topic_id].partitions
            found = [each.replicas[0].directory_id for each in now if each is not None]
            return UNASSIGNED not in found and found == [homes[index] for index in range(PARTITIONS)]

        async with asyncio.timeout(WAIT_S):
            while not told():
                await process.role.wait_applied(process.role.progress.applied_offset + 1)

        failing = homes[0]
        fail(process, failing)
        for index in range(PARTITIONS):
            expected = KafkaCode.KAFKA_STORAGE_ERROR if homes[index] == failing else KafkaCode.NONE
            assert await write(process, index) == expected
        async with asyncio.timeout(WAIT_S):
            while not process.plane.replay.image.brokers[1].directories_offline:
                await process.role.wait_applied(process.role.progress.applied_offset + 1)
        assert process.plane.replay.image.brokers[1].directories_offline == (failing,)
        # Only the second directory is left: the stop must not write to the failed one.


async def test_a_directory_whose_facts_cannot_be_written_is_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds although no client writes to its logs at that moment."""

    async def fail(changes: dict[str, bytes | None]) -> None:
        raise DiskError("no more")

    async with make_broker_process(config(tmp_path / "a", tmp_path / "b"), Sources.real()) as process:
        await ready(process)
        await create(process)
        assert [await write(process, index) for index in range(PARTITIONS)] == [0] * PARTITIONS
        role = process.role
        failing = role._disks[0]
        monkeypatch.setattr(failing.facts, "commit", fail)
        for replica in role.table:
            role.watermarks.note(replica)
        await role.watermarks.save()
        assert list(role.logs.failed_disks) == [failing.directory_id]
        async with asyncio.timeout(WAIT_S):
            while process.plane.replay.image.brokers[1].directories_offline != (failing.directory_id,):
                await role.wait_applied(role.progress.applied_offset + 1)
        offline = [hosted for hosted in role.table if hosted.log is None]
        assert len(offline) == PARTITIONS // 2


async def test_a_damaged_replica_is_offline_and_the_others_serve(tmp_path: Path) -> None:
    async with make_broker_process(config(tmp_path), Sources.real()) as process:
        await ready(process)
        await create(process, segment_bytes="16384")
        for _ in range(400):
            assert await write(process, 0) == KafkaCode.NONE
        assert await write(process, 1) == KafkaCode.NONE
    segments = sorted((tmp_path / "logs").glob("t-0.*/*.log"))
    assert len(segments) > 1
    data = bytearray(segments[0].read_bytes())
    data[len(data) // 2] ^= 0xFF
    segments[0].write_bytes(data)
    async with make_broker_process(config(tmp_path), Sources.real()) as process:
        await ready(process)
        assert await write(process, 1) == KafkaCode.NONE
        # The start trusts the clean stop; a read finds the damage and takes the replica offline.
        codes = [await fetch(process, 0, offset) for offset in range(400)]
        assert KafkaCode.KAFKA_STORAGE_ERROR in codes
        assert codes[-1] == KafkaCode.KAFKA_STORAGE_ERROR
        assert await write(process, 0) == KafkaCode.KAFKA_STORAGE_ERROR
        assert await write(process, 1) == KafkaCode.NONE
        hosted = process.role.table.find("t", 0)
        assert hosted is not None
        assert segments[0].name in hosted.offline


async def test_a_hanging_directory_goes_offline_and_the_other_continues_to_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = replace(config(tmp_path / "a", tmp_path / "b"), log_dir_stall_timeout_ms=1000)
    async with make_broker_process(both, Sources.real()) as process:
        await ready(process)
        await create(process)
        homes: dict[int, UUID] = {}
        for index in range(PARTITIONS):
            hosted = process.role.table.find("t", index)
            assert hosted is not None
            assert hosted.log is not None
            homes[index] = hosted.log.directory_id
        hung = process.role._disks[0].directory_id
        with hanging_syncs(tmp_path / "a" / "logs", monkeypatch):
            codes = await asyncio.gather(*(write(process, index) for index in range(PARTITIONS)))
            assert [code == KafkaCode.NONE for code in codes] == [homes[index] != hung for index in range(PARTITIONS)]
            assert "the disk hangs" in str(process.role.logs.failed_disks[hung])
            async with asyncio.timeout(WAIT_S):
                await process.role.logs.maintain(lambda: 0, 0)
