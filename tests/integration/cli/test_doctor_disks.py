"""kctl doctor about voters with bad disks.  A library that is loaded into real processes makes their disks bad."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from quorumlog.kctl.context import wait_until
from quorumlog.kctl.dev_cluster import Node
from tests.fuzz.native import compile_c
from tests.integration.cli.test_doctor import FAST, start, until
from tests.integration.cli.test_doctor_commands import heal, shell
from tests.integration.quorum import clusters
from tests.integration.quorum.clusters import TIMEOUT_S, done, kctl, leader_of, running, started

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="replaces reads and syncs with LD_PRELOAD")

LONG_TIMEOUTS = ("quorum.election.timeout.ms=60000", "quorum.fetch.timeout.ms=60000")
"""A voter with these does not become a candidate unless it is asked to."""


class BadDisk:
    """The disk of a node that is started with the library."""

    def __init__(self, library: Path, node: Node) -> None:
        self._folder = Path(node.data_dir).parent
        node.command[:0] = ["env", f"LD_PRELOAD={library}", f"BAD_DISK={self._folder}"]

    def make(self, fault: str) -> None:
        """Let reads hang ("hangs"), or syncs be slow ("slow")."""
        (self._folder / fault).touch()

    def repair(self, fault: str) -> None:
        (self._folder / fault).unlink()


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return compile_c(Path(__file__).parent / "bad_disk.c", tmp_path / "bad_disk.so", "-shared", "-fPIC", "-ldl")


async def opened(node: Node) -> None:
    """Wait until a node has opened its disk, which reads a part of it."""

    async def answers() -> bool:
        assert node.is_running, clusters.last_lines(node)
        try:
            return bool((await clusters.describe(node)).answered_by.directory_id)
        except Exception:  # it does not listen yet
            return False

    await wait_until(answers, TIMEOUT_S, f"{node.name} has opened its disk", 0.05)


async def test_the_command_of_doctor_moves_leadership_from_a_voter_whose_reads_hang(
    tmp_path: Path, library: Path
) -> None:
    """The voter is elected, and the first record of its epoch is committed, but it cannot apply earlier records."""
    async with running(tmp_path, brokers=1, **FAST) as cluster:
        # A batch that is larger than a page of the database, so that opening the database does not read all of it.
        await done(cluster, "topics", "create", "wide", "--partitions", "200", "--replication-factor", "1", "--wait")
        leader = await leader_of(cluster)
        others = [node for node in cluster.nodes if node.role == "voter" and node is not leader]
        for node in (*others, leader):  # the leader last, so that no other log is longer
            await clusters.kill(node)
        disk = BadDisk(library, leader)
        await clusters.spawn(cluster, leader)
        await opened(leader)
        disk.make("hangs")
        for node in others:
            node.command += [part for setting in LONG_TIMEOUTS for part in ("--set", setting)]
            await clusters.spawn(cluster, node)

        finding = await heal(cluster, "NOT_SERVING")
        assert finding["cause"].startswith("it has not applied "), finding
        assert await leader_of(cluster) in others
        await done(cluster, "topics", "create", "later", "--wait")

        # The rest of the step: the disk is found and repaired.
        await clusters.kill(leader)
        disk.repair("hangs")
        await start(cluster, leader)
        await until(cluster, {"REPLICATION_FACTOR_1"})


async def test_the_command_of_doctor_moves_leadership_from_a_voter_with_a_slow_disk(
    tmp_path: Path, library: Path
) -> None:
    planned = clusters.plan(tmp_path, **FAST)
    disks = {node.id: BadDisk(library, node) for node in planned.nodes}
    async with started(planned) as cluster:
        leader = await leader_of(cluster)
        disks[leader.id].make("slow")
        await done(cluster, "configs", "set", "default.replication.factor=2", "--cluster")
        seen: list[Any] = []

        async def is_slow(*, leads: bool) -> bool:
            """Return whether the disk is reported: if `leads`, with a command, otherwise without one."""
            _, document = await kctl(cluster, "doctor")
            slow = [one for one in document["findings"] if one["finding"] == "SLOW_DISK"]
            seen[:] = [one for one in slow if one["nodes"] == [leader.id]]
            return bool(seen) and ("; meanwhile: " in seen[0]["next"]) == leads

        await wait_until(lambda: is_slow(leads=True), TIMEOUT_S, "the disk of the leader is slow")
        await shell(cluster, seen[0]["next"].partition("; meanwhile: ")[2])
        assert await leader_of(cluster) is not leader
        assert await is_slow(leads=False), seen
