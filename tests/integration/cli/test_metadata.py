"""kctl metadata with real processes: the log at each node while leaders are killed, and dumps of their disks."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from quorumlog.kctl.context import wait_until
from quorumlog.kctl.dev_cluster import DevCluster, Node
from tests.integration.quorum import clusters
from tests.integration.quorum.clusters import TIMEOUT_S, done, everybody, kctl, leader_of, node_of, running, say
from tests.integration.quorum.test_history import SMALL, snapshots, write


def parsed(out: str) -> list[Any]:
    return [json.loads(line) for line in out.splitlines()]


class Tail:
    """`kctl metadata tail -o json` as a process; its lines as they come."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.records: list[Any] = []

    async def until(self, kind: str, topic: str | None = None) -> Any:
        """The next record of this kind."""
        output = self.process.stdout
        assert output is not None
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                line = await output.readline()
                assert line, "it ended"
                self.records.append(json.loads(line))
                if self.records[-1]["kind"] == kind and topic in (None, self.records[-1]["topic"]):
                    return self.records[-1]

    async def interrupt(self) -> tuple[int | None, str]:
        """Send Ctrl-C, and return the exit code and the output."""
        self.process.send_signal(signal.SIGINT)
        async with asyncio.timeout(TIMEOUT_S):
            _, err = await self.process.communicate()
        return self.process.returncode, err.decode()


@asynccontextmanager
async def tailing(cluster: DevCluster, *arguments: str) -> AsyncIterator[Tail]:
    command = (sys.executable, "-P", "-m", "quorumlog.kctl.main", "metadata", "tail", "-o", "json", *arguments)
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, "PYTHONPATH": str(clusters.ROOT), "KCTL_CONTROLLERS": everybody(cluster)[0]},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Tail(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def returns(cluster: DevCluster, node: Node, records: list[dict[str, Any]]) -> bool:
    """Return whether the records of this node's log begin with these."""
    alone = ("--controllers", node.control)
    said = await say(cluster, *alone, "-o", "json", "metadata", "tail", "--from", "beginning", "--exit-at-end")
    found = parsed(said.out)
    assert found[: len(records)] == records[: len(found)], node.name
    return len(found) >= len(records)


async def test_tail_continues_when_leaders_are_killed(tmp_path: Path) -> None:
    async with running(tmp_path, brokers=1) as cluster, tailing(cluster, "--from", "beginning") as tail:
        await tail.until("broker_change")
        await done(cluster, "topics", "create", "first", "--partitions", "2", "--replication-factor", "1", "--wait")
        assert (await tail.until("config", "first"))["record"]["value"] == "1"
        for name in ("second", "third"):
            leader = await leader_of(cluster)
            await clusters.kill(leader)
            await tail.until("leader_change")
            await done(cluster, "topics", "create", name, "--partitions", "1", "--replication-factor", "1", "--wait")
            created = await tail.until("partition", name)
            assert created["text"] == f"{name}-0 is created: leader 11, replicas 11, in sync 11"
            await clusters.spawn(cluster, leader)
            await clusters.ready(leader)
        await done(cluster, "topics", "delete", "second")
        assert (await tail.until("remove_topic", "second"))["text"] == "topic second is deleted"
        assert [record["offset"] for record in tail.records] == list(range(len(tail.records)))
        code, err = await tail.interrupt()
        assert (code, err) == (130, "")

        # The removal of a voter is also a difference.
        before = (await done(cluster, "metadata", "at", "end"))["offset"]
        leader = await leader_of(cluster)
        gone = next(node for node in cluster.nodes if node.role == "voter" and node is not leader)
        await done(cluster, "remove-voter", str(gone.id))
        deleted = f"- voter {gone.id}: deleted; it was at {gone.control}\n"

        async def is_shown() -> bool:
            changed = await say(cluster, "metadata", "diff", str(before))
            return changed.out == deleted

        await wait_until(is_shown, TIMEOUT_S, "the node that answers had applied the removal")

        # Every node returns the same, also when it is read again.  A broker may still follow the killed leader.
        for node in cluster.nodes:
            await wait_until(partial(returns, cluster, node, tail.records), TIMEOUT_S, f"{node.name} had every record")


async def test_metadata_at_and_diff_show_the_fencing_of_a_killed_broker(tmp_path: Path) -> None:
    settings = {"broker_session_timeout_ms": 1500, "broker_heartbeat_interval_ms": 200}
    async with running(tmp_path, voters=1, brokers=2, **settings) as cluster:
        await done(cluster, "topics", "create", "t", "--assignment", "11:12,12:11", "--wait")
        before = await done(cluster, "metadata", "at", "end")
        assert [(broker["id"], broker["state"]) for broker in before["brokers"]] == [(11, "unfenced"), (12, "unfenced")]
        assert [partition["leader"] for partition in before["topics"][0]["partitions"]] == [11, 12]
        await clusters.kill(node_of(cluster, 12))

        async def is_fenced() -> bool:
            now = await done(cluster, "brokers", "list")
            return any(broker["id"] == 12 and broker["state"] == "fenced" for broker in now)

        await wait_until(is_fenced, TIMEOUT_S, "12 is fenced")
        said = await say(cluster, "metadata", "diff", str(before["offset"]))
        assert said.out.splitlines() == [
            "~ broker 12: state unfenced -> fenced",
            "~ t-0: in sync 11,12 -> 11",
            "~ t-1: leader 12 -> 11; in sync 12,11 -> 11",
        ]
        assert await done(cluster, "metadata", "at", str(before["offset"])) == before
        changes = (await done(cluster, "metadata", "diff", str(before["offset"]), "end"))["changes"]
        back = (await done(cluster, "metadata", "diff", "end", str(before["offset"])))["changes"]
        assert [(c["name"], c["field"], c["before"], c["after"]) for c in changes] == [
            (c["name"], c["field"], c["after"], c["before"]) for c in back
        ]
        table = await say(cluster, "metadata", "at", str(before["offset"]))
        assert "the cluster at offset" in table.err
        assert "retention" not in table.out
        assert table.out.splitlines()[0].startswith("voters: 1@")
        code, error = await kctl(cluster, "metadata", "at", "100000")
        assert (code, error["error"]) == (3, "OFFSET_OUT_OF_RANGE")
        assert "contains offsets 0 to " in error["message"]


async def test_tail_and_dump_show_a_log_that_starts_after_a_snapshot(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, **SMALL) as cluster:
        node = node_of(cluster, 1)
        await done(cluster, "configs", "set", "metadata.retention.bytes=0", "--cluster")

        async def begins() -> int:
            await write(cluster, 20)
            return int((await done(cluster, "metadata", "at", "end"))["history_begins"])

        async def is_cut() -> bool:
            return await begins() > 0

        await wait_until(is_cut, TIMEOUT_S, "the log begins after a snapshot", 0.0)
        now = await done(cluster, "metadata", "at", "end")
        first = now["history_begins"]
        code, error = await kctl(cluster, "metadata", "at", str(first - 1))
        assert (code, error["error"]) == (3, "OFFSET_OUT_OF_RANGE")
        assert f"the metadata history contains offsets {first} to {now['offset']}" in error["message"]
        tail = await say(cluster, "-o", "json", "metadata", "tail", "--from", "beginning", "--exit-at-end")
        told = parsed(tail.out)
        assert [record["offset"] for record in told] == list(range(first, now["offset"]))
        refused = await say(cluster, "metadata", "dump", node.data_dir)
        assert (refused.code, f"is in use by process {node.pid}" in refused.err) == (5, True), refused

        at_snapshot = await done(cluster, "metadata", "at", str(first))
        await clusters.kill(node)
        dumped = await say(cluster, "-o", "json", "metadata", "dump", node.data_dir)
        assert (dumped.code, f"the log contains offsets {first} to {now['offset']}" in dumped.err) == (0, True), dumped
        assert parsed(dumped.out) == told
        rest = await say(cluster, "-o", "json", "metadata", "dump", node.data_dir, "--from", str(now["offset"] - 2))
        assert parsed(rest.out) == told[-2:]
        [snapshot] = snapshots(node)
        held = await done(cluster, "metadata", "dump", str(snapshot))
        assert {**held, "at": None} == {**at_snapshot, "at": None}
        damaged = bytearray(snapshot.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        (tmp_path / "damaged.snapshot").write_bytes(damaged)
        code, error = await kctl(cluster, "metadata", "dump", str(tmp_path / "damaged.snapshot"))
        assert (code, error["error"]) == (1, "CORRUPT_STORE")
        await clusters.spawn(cluster, node)
        await clusters.ready(node)
        assert (await done(cluster, "metadata", "at", str(now["offset"])))["configs"] == now["configs"]
