"""`quorum-node recover`: two of three disks are lost, and the cluster recovers with the data of the third."""

from __future__ import annotations

import asyncio
import errno
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest

from metadata.codec import decode, encode
from metadata.image import ClusterImage
from metadata.records import NO_LEADER, Partition, Record, Replica, Topic
from quorum.store.directory import DATABASE
from quorumlog.errors import ConfigError
from quorumlog.runtime.addresses import Address, InitialVoter
from quorumlog.runtime.config import NodeConfig
from quorumlog_server import recover
from quorumlog_server.control_plane import ControlPlane
from quorumlog_server.quorum_node import run
from quorumlog_server.recover import EPOCH_JUMP, PRODUCER_ID_JUMP, rebuilt_partitions
from tests.integration.quorum import test_snapshots
from tests.integration.quorum.test_control_plane import brokers, configure, free_ports, plane, ready, register
from tests.integration.quorum.test_snapshots import same

TOPIC = UUID(int=7)


async def three_nodes(folder: Path) -> list[NodeConfig]:
    """Create a cluster of three voters, use it, and stop it."""
    ports = free_ports(3)
    voters = tuple(InitialVoter(number, Address("127.0.0.1", port)) for number, port in enumerate(ports, 1))
    configs = [configure(folder, number, port, initial_voters=voters) for number, port in enumerate(ports, 1)]
    async with plane(configs[0]) as one, plane(configs[1]) as two, plane(configs[2]) as three:
        await ready(one, two, three)
        await register(one, 11)
        leader = next(each for each in (one, two, three) if each.controller.active)
        records: list[Record] = [Topic(TOPIC, "t"), Partition(TOPIC, 0, (Replica(11),), (11,), 11, leader_epoch=4)]
        end = leader.node.append(leader.node.epoch, encode(records), 2) + 2
        await leader.node.committed(end, leader.node.epoch)
        await same(one, two, three)
    return configs


def recovered(folder: Path, *more: str) -> int:
    return run(["recover", "--data-dir", str(folder), *more], {})


def contents(folder: Path) -> dict[str, bytes | list[str]]:
    """Return all files of a stopped node by their paths; of the database its rows, without the count of its starts."""

    def content(path: Path) -> bytes | list[str]:
        if path.name != DATABASE:
            return path.read_bytes()
        with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as database:
            return [line for line in database.iterdump() if not line.startswith('INSERT INTO "starts"')]

    return {str(path.relative_to(folder)): content(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def cut_off(directory: str, identity: object) -> None:
    raise OSError(errno.EIO, "the disk hangs on one nail")


async def test_one_disk_of_three_recovers_the_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configs = await three_nodes(tmp_path)
    for gone in ("2", "3"):
        (tmp_path / gone).rename(tmp_path / f"lost-{gone}")
    assert await asyncio.to_thread(recovered, tmp_path / "1", "--yes") == 0
    assert "generation 1" in capsys.readouterr().out
    async with plane(configs[0]) as one:
        await ready(one)
        assert one.node.core.generation == 1
        assert [voter.key.node_id for voter in one.node.core.history.current] == [1]
        assert await brokers(one) == [11]
        partition = one.replay.image.partition(TOPIC, 0)
        assert partition is not None
        assert (partition.leader_epoch >= 4 + EPOCH_JUMP, partition.isr) == (True, (11,))
        assert one.node.epoch > EPOCH_JUMP
        await register(one, 12)
        await returns(tmp_path, configs[1], one)


async def returns(folder: Path, config: NodeConfig, one: ControlPlane) -> None:
    """Check that a voter of the earlier generation is refused.  With an empty disk, it joins as an observer."""
    (folder / "lost-2").rename(folder / "2")
    with pytest.raises(ConfigError, match="the quorum was rebuilt"):
        async with asyncio.timeout(30), plane(config):
            await asyncio.Event().wait()
    shutil.rmtree(folder / "2")
    async with plane(config) as two:
        await ready(two)
        await same(one, two)
        assert not two.node.core.is_voter


async def test_the_disk_with_the_longest_log_is_chosen_for_recovery(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configs = await three_nodes(tmp_path)
    async with plane(configs[0]) as one, plane(configs[1]) as two:
        await ready(one, two)
        await register(one, 12)
        await same(one, two)
    before = await asyncio.to_thread(contents, tmp_path / "3")
    status = await asyncio.to_thread(recovered, tmp_path / "3", "--data-dir", str(tmp_path / "1"), "--yes")
    assert status == 0
    assert f"chosen: {tmp_path / '1' / 'quorum'}" in capsys.readouterr().out
    assert await asyncio.to_thread(contents, tmp_path / "3") == before, "the other directories are unchanged"
    async with plane(configs[0]) as one:
        await ready(one)
        assert await brokers(one) == [11, 12]


async def test_a_recovery_interrupted_between_its_writes_is_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = await three_nodes(tmp_path)
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(recover, "replace_identity", cut_off)
            assert await asyncio.to_thread(recovered, tmp_path / "1", "--yes") == 7
        said = capsys.readouterr()
        assert "run it again" in said.out.splitlines()[-1]
        assert "one nail (next: repair the disk, and run it again)" in said.err
    assert await asyncio.to_thread(recovered, tmp_path / "1", "--yes") == 0
    said = capsys.readouterr()
    assert "was interrupted at generation 2; this run repeats it" in said.out
    assert "brokers rejoin automatically" in said.out
    async with plane(configs[0]) as one:
        await ready(one)
        assert one.node.core.generation == 3


@pytest.mark.parametrize("cut_off_before", [False, True])
async def test_recovery_reports_how_other_nodes_find_the_quorum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, cut_off_before: bool
) -> None:
    await three_nodes(tmp_path)
    if cut_off_before:
        with monkeypatch.context() as patch:
            patch.setattr(recover, "replace_identity", cut_off)
            await asyncio.to_thread(recovered, tmp_path / "1", "--yes", "--address", "127.0.0.1:2")
    assert await asyncio.to_thread(recovered, tmp_path / "1", "--yes", "--address", "127.0.0.1:2") == 0
    said = capsys.readouterr().out
    assert "brokers rejoin automatically" not in said
    assert "the others do not find it, because no former voter\n  was at 127.0.0.1:2" in said
    assert "with --join 127.0.0.1:2 instead" in said


async def test_recovery_without_a_confirmation_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = await three_nodes(tmp_path)
    monkeypatch.setattr("builtins.input", lambda prompt: "no")
    assert await asyncio.to_thread(recovered, tmp_path / "1") == 1
    async with plane(configs[0]) as one, plane(configs[1]) as two:
        await ready(one, two)
        assert one.node.core.generation == 0


async def test_impossible_recoveries_are_refused(tmp_path: Path) -> None:
    await three_nodes(tmp_path / "a")
    configs = await three_nodes(tmp_path / "b")
    both = (tmp_path / "a" / "1", "--data-dir", str(tmp_path / "b" / "1"), "--yes")
    assert await asyncio.to_thread(recovered, *both) == 2
    assert await asyncio.to_thread(recovered, tmp_path / "nothing", "--yes") == 2
    async with plane(configs[0]):
        assert await asyncio.to_thread(recovered, tmp_path / "b" / "1", "--yes") == 2


async def test_a_log_that_starts_after_a_snapshot_is_recovered_with_its_metadata(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    config = configure(tmp_path, 1, port, standalone=True)
    async with test_snapshots.plane(config) as one:
        await ready(one)
        await test_snapshots.grow(one, 0)
        before, next_producer_id = await brokers(one), one.replay.image.next_producer_id
    assert await asyncio.to_thread(recovered, tmp_path / "1", "--yes") == 0
    async with test_snapshots.plane(config) as one:
        await ready(one)
        assert one.node.core.generation == 1
        assert one.node.core.log.start > 0
        assert await brokers(one) == before
        assert one.replay.image.next_producer_id >= next_producer_id + PRODUCER_ID_JUMP


def test_partitions_get_leader_epochs_above_all_lost_ones() -> None:
    records: list[Record] = [
        Topic(TOPIC, "t"),
        *(Partition(TOPIC, at, (Replica(1),), (1,), 1, leader_epoch=at) for at in range(3)),
    ]
    image = ClusterImage().apply(0, records, 1)
    (changes,) = rebuilt_partitions(image, cause_offset=4)
    assert decode(encode(changes)) == changes
    after = image.apply(4, changes, 2)
    assert [(each.leader, each.leader_epoch) for each in after.topics[TOPIC].partitions if each is not None] == [
        (NO_LEADER, at + EPOCH_JUMP) for at in range(3)
    ]
