"""Each file of a clean stop, deleted and emptied: refused by name, or repaired as the manual says."""

from __future__ import annotations

import asyncio
import fnmatch
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.kafka.api import FetchPartition, FetchPlan
from broker.server.process import BrokerProcess, make_broker_process
from quorum.core.types import Role
from quorumlog.errors import QuorumlogError
from quorumlog.kctl.context import wait_until
from quorumlog.runtime.addresses import Address, parse_target
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.config import KafkaListener, NodeConfig
from quorumlog.wire import rpcs
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog_server.control_plane import ControlPlane, make_control_plane
from tests.integration.broker.harness import batch
from tests.integration.broker.processes import ANY_PORT, WAIT_S

ROOT = Path(__file__).parents[3]
REFUSED, REPAIRED, SAID, OFFLINE = "refused", "repaired", "repaired, and said", "replica offline"
RECORDS = 40

QUORUM_FILES = {
    "quorum.formatted": SAID,
    "quorum/lock": SAID,
    "quorum/quorum.db": REFUSED,
    "quorum/quorum.json": REFUSED,
    "quorum/*.snapshot": REPAIRED,  # if the log has the earlier records: else see the contract of stores
}
STANDING = {"quorum/standing.json": REFUSED}
DIRECTORY_FILES = {
    "lock": REPAIRED,
    "meta.json": REFUSED,
    "facts.db": REFUSED,
    "logs/t-0.*/00000000000000000000.log": OFFLINE,
    "logs/t-0.*/*[1-9]?.log": OFFLINE,
    "logs/t-0.*/*.index": REPAIRED,
    "logs/t-0.*/*.producers": REPAIRED,
}
FILES = {
    "voter": QUORUM_FILES | STANDING,
    "broker": DIRECTORY_FILES | QUORUM_FILES,
    "standalone": DIRECTORY_FILES | QUORUM_FILES | STANDING,
}
CASES = [(kind, pattern, how) for kind in FILES for pattern in FILES[kind] for how in ("deleted", "emptied")]


def voter_config(folder: Path) -> NodeConfig:
    return NodeConfig(
        role="quorum-node",
        node_id=1,
        data_dirs=(str(folder),),
        standalone=True,
        control_listen=ANY_PORT,
        quorum_auto_join=True,
        metadata_snapshot_interval_ms=1,
    )


def broker_config(folder: Path, voter: Address | None) -> NodeConfig:
    return NodeConfig(
        role="broker",
        node_id=1 if voter is None else 11,
        data_dirs=(str(folder),),
        standalone=voter is None,
        bootstrap=() if voter is None else (voter,),
        control_listen=ANY_PORT,
        kafka_listeners=(KafkaListener("default", ANY_PORT),),
        broker_heartbeat_interval_ms=100,
        quorum_auto_join=voter is None,
        metadata_snapshot_interval_ms=1,
    )


@asynccontextmanager
async def running(kind: str, folder: Path) -> AsyncIterator[ControlPlane | BrokerProcess]:
    """The node of this kind in `folder`/node, ready; a broker's voter is in `folder`/voter, and ready before it."""
    async with AsyncExitStack() as stack, asyncio.timeout(WAIT_S):
        voter = None
        if kind == "broker":
            plane = await stack.enter_async_context(make_control_plane(voter_config(folder / "voter"), Sources.real()))
            await plane.ready()
            voter = parse_target(plane.address)
        node: ControlPlane | BrokerProcess
        if kind == "voter":
            node = make_control_plane(voter_config(folder / "node"), Sources.real())
        else:
            node = make_broker_process(broker_config(folder / "node", voter), Sources.real())
        await stack.enter_async_context(node)
        await node.ready()
        yield node


async def write(node: BrokerProcess, index: int, number: int) -> int:
    """Append the record with this number, as one producer."""
    content = batch(b"x" * 1000, producer=(7, 0, number))
    return (await node.role.replicas.produce("t", index, memoryview(content), -1, 5_000)).error_code


async def read(node: BrokerProcess, index: int) -> list[int]:
    """The error code of a fetch at each offset."""
    codes = []
    for offset in range(RECORDS):
        plan = FetchPlan((FetchPartition(None, "t", index, offset, 1),), max_wait_ms=0, min_bytes=1, max_bytes=1)
        codes.append((await node.role.replicas.fetch(plan)).results[0].error_code)
    return codes


async def fill(node: BrokerProcess) -> None:
    request = pb.CreateTopicsRequest()
    topic = request.topics.add(name="t", partitions=2, replication_factor=1)
    topic.configs.add(key="segment.bytes", value="16384")
    reply = await node.plane.service.call(rpcs.CREATE_TOPICS, request, 10_000)
    assert reply.topics[0].result.error == "NONE", reply
    await node.role.wait_applied(reply.topics[0].offset)
    for index in (0, 1):
        assert [await write(node, index, number) for number in range(RECORDS)] == [KafkaCode.NONE] * RECORDS


async def stopped_cleanly(kind: str, folder: Path) -> None:
    async with running(kind, folder) as node:
        if isinstance(node, BrokerProcess):
            await fill(node)
        await wait_until(lambda: all_written(kind, folder / "node"), WAIT_S, "every file", 0.01)


async def all_written(kind: str, folder: Path) -> bool:
    """Return whether the files exist that background tasks write, and no snapshot is being written."""
    late = ("quorum/*.snapshot", *STANDING) if STANDING.keys() <= FILES[kind].keys() else ("quorum/*.snapshot",)
    found = files(folder)
    is_writing = fnmatch.filter(found, "quorum/*.snapshot.part")
    return not is_writing and all(fnmatch.filter(found, pattern) for pattern in late)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return, by kind, the files that a clean stop has left."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in FILES}
    for kind, folder in folders.items():
        asyncio.run(stopped_cleanly(kind, folder))
    return folders


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", FILES)
def test_every_file_that_a_clean_stop_leaves_is_in_the_table(stopped: dict[str, Path], kind: str) -> None:
    left = [name.replace("logs/t-1.", "logs/t-0.") for name in files(stopped[kind] / "node")]
    for name in left:
        assert any(fnmatch.fnmatch(name, pattern) for pattern in FILES[kind]), name
    for pattern in FILES[kind]:
        assert fnmatch.filter(left, pattern), pattern


@pytest.mark.parametrize(("kind", "pattern", "how"), CASES)
async def test_a_start_with_a_deleted_or_emptied_file_is_refused_by_name_or_repairs_the_file(
    stopped: dict[str, Path], tmp_path: Path, kind: str, pattern: str, how: str
) -> None:
    shutil.copytree(stopped[kind], tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "node"
    lost = folder / fnmatch.filter(files(folder), pattern)[-1]
    lost.unlink() if how == "deleted" else lost.write_bytes(b"")
    outcome = FILES[kind][pattern]
    if outcome is REFUSED:
        with pytest.raises(QuorumlogError) as refused:
            async with running(kind, tmp_path):
                pytest.fail("it serves")
        assert refused.value.exit_status in (2, 7)
        assert str(lost) in refused.value.message
        assert refused.value.next_step
        assert lost.read_bytes() == b"" if how == "emptied" else not lost.exists()
        return
    with capture_logs() as logs:
        async with running(kind, tmp_path) as node:
            plane = node.plane if isinstance(node, BrokerProcess) else node
            assert kind == "broker" or plane.node.role is Role.LEADER
            if isinstance(node, BrokerProcess):
                await assert_serves(node, lost, outcome)
    for identity in ("quorum/quorum.json", "meta.json"):
        before = stopped[kind] / "node" / identity
        assert not before.exists() or (folder / identity).read_bytes() == before.read_bytes()
    if outcome is SAID:
        assert [entry["file"] for entry in logs if "was missing" in entry["event"]] == [str(lost)]
    if outcome is OFFLINE:
        assert not lost.exists() or lost.stat().st_size == 0
        errors = [str(entry["error"]) for entry in logs if entry["event"] == "log offline"]
        assert any(f"{lost.relative_to(folder)} is missing" in error or "has 0 bytes" in error for error in errors)


async def assert_serves(node: BrokerProcess, lost: Path, outcome: str) -> None:
    """Check that the node reads and writes both partitions, or only the second one if the first one is offline."""
    assert set(await read(node, 1)) == {KafkaCode.NONE}
    assert await write(node, 1, RECORDS) == KafkaCode.NONE
    codes = await read(node, 0)
    if outcome is OFFLINE:
        assert codes[-1] == KafkaCode.KAFKA_STORAGE_ERROR or codes[0] == KafkaCode.KAFKA_STORAGE_ERROR
        assert await write(node, 0, RECORDS) == KafkaCode.KAFKA_STORAGE_ERROR
    else:
        assert set(codes) == {KafkaCode.NONE}
        assert await write(node, 0, RECORDS) == KafkaCode.NONE


def test_the_manual_has_every_file_of_the_table() -> None:
    manual = (ROOT / "docs/operations.md").read_text()
    for pattern in {pattern for table in FILES.values() for pattern in table}:
        name = pattern.rpartition("/")[2].lstrip("*")
        assert f"`{name if '.log' not in name else '.log'}`" in manual, name
