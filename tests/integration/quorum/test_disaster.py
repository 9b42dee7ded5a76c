"""A lost majority of the quorum, with real processes: recovered by hand, and all other nodes follow."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from quorumlog.client.controller import ControllerClient
from quorumlog.kctl.context import wait_until
from quorumlog.kctl.dev_cluster import DevCluster, Node
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import node_pb2
from tests.integration.quorum import clusters
from tests.integration.quorum.clusters import ROOT, TIMEOUT_S, done, kctl, node_of, running, say

FAST = {"broker_heartbeat_interval_ms": 200}


async def tool(*arguments: str) -> tuple[int, str]:
    """Run quorum-node as an operator would; return its exit status and all of its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QUORUMLOG_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "quorumlog_server.quorum_node", *arguments),
        env={**environment, "PYTHONPATH": str(ROOT)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(TIMEOUT_S):
        out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


async def produce(cluster: DevCluster, folder: Path, topic: str, values: list[str]) -> None:
    """Write records with acks=all: all are acknowledged on return."""
    file = folder / "records.txt"
    file.write_text("".join(f"{value}\n" for value in values))
    said = await say(cluster, "produce", topic, str(file), "--partition", "0")
    assert said.code == 0, said


async def consumed(cluster: DevCluster, topic: str) -> list[str]:
    said = await say(cluster, "-o", "json", "consume", topic, "--from", "beginning", "--exit-at-end")
    assert said.code == 0, said
    return [line.split('"value":"')[1].split('"')[0] for line in said.out.splitlines()]


async def serves(cluster: DevCluster, topic: str, *brokers: int) -> None:
    """Wait until these brokers have rejoined: every partition has a leader, and all of them are in its ISR."""

    async def is_so() -> bool:
        code, described = await kctl(cluster, "topics", "describe", topic)
        if code != 0:
            return False
        (found,) = described
        return all(part["leader"] is not None and set(part["isr"]) == set(brokers) for part in found["partitions"])

    await wait_until(is_so, TIMEOUT_S, f"{topic} is served by {brokers}", 0.2)


async def led_anew(cluster: DevCluster, *brokers: int) -> None:
    """Wait until a node leads and reports exactly these brokers as unfenced."""
    await clusters.leader_of(cluster)

    async def is_so() -> bool:
        code, found = await kctl(cluster, "brokers", "list")
        return code == 0 and {each["id"] for each in found if each["state"] == "unfenced"} == set(brokers)

    await wait_until(is_so, TIMEOUT_S, f"brokers {brokers} are unfenced", 0.2)


async def strays(cluster: DevCluster, *arguments: str) -> list[tuple[int, str, bool]]:
    document = await done(cluster, "brokers", "purge-strays", *arguments)
    return sorted((each["broker"], each["topic"], each["kept"]) for each in document["strays"])


async def digest_offset(node: Node) -> int:
    """Return the end of this node's metadata."""
    async with ControllerClient([node.control]) as client:
        reply = await client.ask_any(rpcs.DESCRIBE_NODE, node_pb2.DescribeNodeRequest(), TIMEOUT_S)
        return int(reply.applied_offset)


def has_logged(node: Node, text: str) -> bool:
    return text in Path(node.log).read_text()


def quorum_folders(node: Node) -> list[str]:
    return sorted(path.name for path in Path(node.data_dir).iterdir() if path.is_dir() and "quorum" in path.name)


async def test_recovery_after_two_of_three_voters_lost_their_disks(tmp_path: Path) -> None:
    async with running(tmp_path, voters=3, brokers=2, **FAST) as cluster:
        one, two, three = (node_of(cluster, number) for number in (1, 2, 3))
        stays, goes = node_of(cluster, 11), node_of(cluster, 12)
        await done(cluster, "topics", "create", "early", "--replication-factor", "2", "--wait")
        records = [f"early-{number}" for number in range(500)]
        await produce(cluster, tmp_path, "early", records)
        before = await done(cluster, "topics", "describe", "early")

        # Changes that the survivor never receives.
        await clusters.kill(one)
        await led_anew(cluster, 11, 12)
        await done(cluster, "topics", "create", "late", "--replication-factor", "2", "--wait")
        await produce(cluster, tmp_path, "late", ["lost-with-its-topic"])
        known_to_brokers = await digest_offset(stays)

        # The disaster: one broker dies as well, and one continues.
        for node in (two, three, goes):
            await clusters.kill(node)
        for node in (two, three):
            shutil.move(node.data_dir, tmp_path / f"copy-of-{node.id}")
        status, said = await tool("recover", "--data-dir", one.data_dir, "--yes")
        assert (status, "generation 1" in said) == (0, True), said
        for node in (one, goes):
            await clusters.spawn(cluster, node)
        for node in (one, stays, goes):
            await clusters.ready(node)

        # Everything that the survivor had still exists, with every record.
        await serves(cluster, "early", 11, 12)
        assert await consumed(cluster, "early") == records
        (after,) = await done(cluster, "topics", "describe", "early")
        assert after["topic_id"] == before[0]["topic_id"]
        assert after["partitions"][0]["leader_epoch"] > before[0]["partitions"][0]["leader_epoch"] + 1000
        more = [f"after-{number}" for number in range(100)]
        await produce(cluster, tmp_path, "early", more)
        assert await consumed(cluster, "early") == records + more

        # The missing records are reported, and the old directory is kept.
        for node in (stays, goes):
            assert quorum_folders(node) == ["quorum", "quorum.generation-0"]
            assert has_logged(node, "metadata records are lost: only the directory that was set aside has them")
            assert has_logged(node, f"to_offset={known_to_brokers}")
        assert [topic["name"] for topic in await done(cluster, "topics", "list")] == ["early"]
        kept = [(11, "late", True), (12, "late", True)]
        assert await strays(cluster, "--dry-run") == kept
        await clusters.stop(goes)
        await clusters.spawn(cluster, goes)
        await clusters.ready(goes)
        assert await strays(cluster, "--dry-run") == kept
        assert await strays(cluster, "--broker", "11") == kept[:1]
        assert await strays(cluster) == kept[1:]
        assert await strays(cluster) == []

        await old_voters_come_back(cluster, tmp_path)
        assert await consumed(cluster, "early") == records + more


async def old_voters_come_back(cluster: DevCluster, folder: Path) -> None:
    """Old voters, restored from a copy, are refused.  After the printed steps they are voters again."""
    quorum = await done(cluster, "quorum", "status")
    assert (quorum["generation"], [voter["id"] for voter in quorum["voters"]]) == (1, [1])
    for number in (2, 3):
        node = node_of(cluster, number)
        shutil.move(folder / f"copy-of-{number}", node.data_dir)
        await clusters.spawn(cluster, node)
        last = "\n".join(await clusters.ended(node))
        assert "the quorum was rebuilt: it is at generation 1, this node at 0" in last
        assert "this disk was a voter's" in last
        assert f"quorum-node set-aside --data-dir {node.data_dir}" in last
        status, said = await tool("set-aside", "--data-dir", node.data_dir)
        assert (status, f"{node.data_dir}/quorum.set-aside" in said) == (0, True), said
        await clusters.spawn(cluster, node)
        await clusters.ready(node)
        await done(cluster, "add-voter", f"{number}@{node.control}", "--wait")
    quorum = await done(cluster, "quorum", "status")
    assert [voter["id"] for voter in quorum["voters"]] == [1, 2, 3]


async def test_the_survivor_with_the_longest_log_is_recovered(tmp_path: Path) -> None:
    """A broker also keeps the whole metadata log.  Recovery from its disk loses nothing, and makes it the voter."""
    async with running(tmp_path, voters=3, brokers=2, **FAST) as cluster:
        one, two, three = (node_of(cluster, number) for number in (1, 2, 3))
        broker, other = node_of(cluster, 11), node_of(cluster, 12)
        await clusters.kill(one)
        await led_anew(cluster, 11, 12)
        await done(cluster, "topics", "create", "late", "--replication-factor", "2", "--wait")
        await produce(cluster, tmp_path, "late", ["kept"])
        for node in (two, three, broker, other):
            await clusters.kill(node)
        for node in (two, three):
            shutil.rmtree(node.data_dir)
        folders: list[Any] = ["--data-dir", one.data_dir, "--data-dir", broker.data_dir]
        status, said = await tool("recover", *folders, "--yes")
        assert (status, "--address" in said) == (2, True), said
        status, said = await tool("recover", *folders, "--yes", "--address", broker.control)
        assert (status, f"chosen: {broker.data_dir}/quorum" in said) == (0, True), said
        for node in cluster.nodes:  # no node knew the address of a broker before
            place = node.command.index("--controllers" if node.role == "broker" else "--initial-voters")
            node.command[place : place + 2] = ["--join", broker.control]
        for node in (broker, other):
            await clusters.spawn(cluster, node)
        for node in (broker, other):
            await clusters.ready(node)
        await serves(cluster, "late", 11, 12)
        assert await consumed(cluster, "late") == ["kept"]
        assert await strays(cluster, "--dry-run") == []
        assert has_logged(other, "the rebuilt quorum has all metadata records of this node")
