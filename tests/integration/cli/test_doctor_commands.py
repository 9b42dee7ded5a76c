"""Each command that `kctl doctor` prints is run as printed, by a shell, on a real cluster; then its finding is gone."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from quorumlog.kctl.context import wait_until
from quorumlog.kctl.dev_cluster import DevCluster
from tests.integration.cli.test_doctor import FAST, examined, start, until
from tests.integration.quorum import clusters
from tests.integration.quorum.clusters import TIMEOUT_S, done, kctl, node_of, running, say

ALWAYS = {"ONE_VOTER"}
"""Found in each of these clusters but the last one: the quorum is not what they are about."""
BUSY = frozenset({"SLOW_DISK"})
"""What a busy machine may add."""


async def shell(cluster: DevCluster, line: str) -> None:
    """Run a line as a person does who has set KCTL_CONTROLLERS; it must succeed."""
    kctl_command = f'kctl() {{ "{sys.executable}" -P -m quorumlog.kctl.main "$@"; }}'
    process = await asyncio.create_subprocess_exec(
        *("bash", "-o", "pipefail", "-c", f"{kctl_command}; {line}"),
        env={
            **os.environ,
            "PYTHONPATH": str(clusters.ROOT),
            "KCTL_CONTROLLERS": ",".join(clusters.everybody(cluster)),
        },
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(2 * TIMEOUT_S):
        said, _ = await process.communicate()
    assert process.returncode == 0, (line, said.decode())


async def found(cluster: DevCluster, word: str) -> Any:
    """Wait for a finding that comes with commands."""
    seen: list[Any] = []

    async def is_so() -> bool:
        _, findings, _ = await examined(cluster)
        seen[:] = [each for each in findings.get(word, []) if each["commands"]]
        return bool(seen)

    await wait_until(is_so, TIMEOUT_S, f"found: {word}")
    return seen[0]


async def heal(cluster: DevCluster, word: str) -> Any:
    """Run the commands of a finding; wait until it is gone."""
    finding = await found(cluster, word)
    for line in finding["commands"]:
        await shell(cluster, line)

    async def is_gone() -> bool:
        _, findings, _ = await examined(cluster)
        return all(each["what"] != finding["what"] for each in findings.get(word, []))

    await wait_until(is_gone, TIMEOUT_S, f"{word} is gone after {finding['commands']}")
    await wait_until(lambda: _is_settled(cluster), TIMEOUT_S, "no reassignment is under way")
    return finding


async def _is_settled(cluster: DevCluster) -> bool:
    return not (await done(cluster, "reassign", "status"))


@pytest.mark.timeout(400)
async def test_advice_is_followed_to_the_letter(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, brokers=3, **FAST) as cluster:
        await done(cluster, "topics", "create", "alone", "--assignment", "12", "--wait")
        await done(cluster, "topics", "create", "single", "--assignment", "13,11", "--wait")
        await heal(cluster, "REPLICATION_FACTOR_1")
        tight = ["--assignment", "11:12,12:13", "--config", "min.insync.replicas=2", "--wait"]
        await done(cluster, "topics", "create", "tight", *tight)
        await done(cluster, "topics", "create", "tight-too", *tight)
        await heal(cluster, "MIN_ISR_IS_ALL")
        await done(cluster, "configs", "set", "cordoned=true", "--broker", "12")
        await heal(cluster, "CORDONED")
        await done(cluster, "topics", "create", "slow", "--assignment", "11:12", "--wait")
        records = tmp_path / "records"
        records.write_text("\n".join("x" * 5000 for _ in range(200)))
        assert (await say(cluster, "produce", "slow", str(records))).code == 0
        await done(cluster, "reassign", "start", "--topic", "slow", "--brokers", "11,13", "--throttle", "1")
        await heal(cluster, "REASSIGNMENT_STUCK")
        await until(cluster, ALWAYS, besides=BUSY)


@pytest.mark.timeout(400)
async def test_brokers_that_are_gone_for_good_are_replaced(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, brokers=4, **FAST) as cluster:
        for topic in ("a", "b"):
            await done(cluster, "topics", "create", topic, "--assignment", "12:13:14,13:14:12", "--wait")
        await done(cluster, "topics", "create", "alone", "--assignment", "14,13", "--wait")
        await done(cluster, "topics", "create", "pair", "--assignment", "14:13", "--wait")
        await clusters.kill(node_of(cluster, 14))
        assert "alone-0" in (await heal(cluster, "OFFLINE"))["what"]
        await heal(cluster, "UNDER_REPLICATED")
        await heal(cluster, "FENCED")
        _, brokers = await kctl(cluster, "brokers", "list")
        assert [broker["id"] for broker in brokers] == [11, 12, 13]
        await heal(cluster, "REPLICATION_FACTOR_1")
        await until(cluster, ALWAYS, besides=BUSY | {"MIN_ISR_IS_ALL"})


@pytest.mark.timeout(400)
async def test_the_last_replica_in_sync_is_given_up(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, brokers=3, **FAST) as cluster:
        await done(cluster, "topics", "create", "pair", "--assignment", "12:13", "--wait")
        for broker_id in (13, 12):
            await clusters.kill(node_of(cluster, broker_id))
            await until(cluster, ALWAYS, besides=BUSY | {"FENCED", "BROKER_UNREACHABLE", "UNDER_REPLICATED", "OFFLINE"})
        await start(cluster, node_of(cluster, 13))
        waiting = await found(cluster, "OFFLINE")
        assert waiting["cause"].startswith("only broker 12 may lead")
        await heal(cluster, "OFFLINE")


@pytest.mark.timeout(400)
async def test_replicas_that_are_lost_are_made_anew(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, brokers=3, **FAST) as cluster:
        await done(cluster, "topics", "create", "t", "--assignment", "11:12:13", "--wait")
        await done(cluster, "topics", "create", "alone", "--assignment", "13", "--wait")
        records = tmp_path / "records"
        records.write_text("\n".join(f"record {number}" for number in range(100)))
        for topic in ("t", "alone"):
            assert (await say(cluster, "produce", topic, str(records))).code == 0

        # The log of one replica vanishes from its broker's directory.
        broker = node_of(cluster, 12)
        await clusters.stop(broker)
        (log,) = (Path(broker.data_dir) / "logs").iterdir()
        shutil.rmtree(log)
        await start(cluster, broker)
        await heal(cluster, "LOST_REPLICA")

        # A broker returns with an empty disk, which had the only replica of a topic.
        broker = node_of(cluster, 13)
        await clusters.kill(broker)
        shutil.rmtree(broker.data_dir)
        await start(cluster, broker)
        lost = await heal(cluster, "OFFLINE")
        assert lost["what"] == "1 partition lost with the only replica, on broker 13: alone-0"
        await until(cluster, ALWAYS | {"REPLICATION_FACTOR_1"}, besides=BUSY)


@pytest.mark.timeout(400)
async def test_voters_are_made_and_replaced(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, brokers=3, **FAST) as cluster:
        await heal(cluster, "ONE_VOTER")
        await until(cluster, set(), besides=BUSY)
        await done(cluster, "remove-voter", "12")
        await heal(cluster, "EVEN_VOTERS")
        await until(cluster, set(), besides=BUSY)

        # A voter returns with an empty disk; it is not counted among the voters that answer.
        _, status = await kctl(cluster, "quorum", "status")
        voter = next(each["id"] for each in status["voters"] if each["id"] not in (1, status["leader_id"]))
        node = node_of(cluster, voter)
        await clusters.kill(node)
        shutil.rmtree(node.data_dir)
        await start(cluster, node)
        _, findings, document = await examined(cluster)
        assert "VOTER_NEW_DISK" in findings, findings
        assert (document["looked_at"]["voters"], document["looked_at"]["voters_answering"]) == (3, 2)
        assert document["healthy"] is False
        await heal(cluster, "VOTER_NEW_DISK")
        await until(cluster, set(), besides=BUSY)
