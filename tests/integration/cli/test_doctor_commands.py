"""Each command that `kctl doctor` prints runs in a shell on a real cluster and removes its finding.

Where doctor asks for an action instead, such as the start of a broker, the test performs that action.
`tests/unit/quorumlog/doctor/test_doctor_steps.py` lists which test covers which finding.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from quorumlog.kctl.context import wait_until
from quorumlog.kctl.dev_cluster import DevCluster, Node
from tests.integration.cli.test_doctor import FAST, examined, start, until
from tests.integration.quorum import clusters
from tests.integration.quorum.clusters import TIMEOUT_S, done, kctl, leader_of, node_of, quorum_is, running, say
from tests.integration.quorum.test_disaster import tool
from tests.integration.quorum.test_target import ATTEMPTS, set_target

ALWAYS = {"ONE_VOTER"}
"""Found in each of these clusters except the last one; these cases are not about the quorum."""


async def shell(cluster: DevCluster, line: str) -> None:
    """Run a line as an operator with KCTL_CONTROLLERS set would; it must succeed."""
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
    """Wait for a finding that comes with commands, or only with those that give up records."""
    seen: list[Any] = []

    async def is_so() -> bool:
        _, findings, _ = await examined(cluster)
        seen[:] = [each for each in findings.get(word, []) if each["commands"] or each["last_resort"]]
        return bool(seen)

    await wait_until(is_so, TIMEOUT_S, f"found: {word}")
    return seen[0]


async def heal(cluster: DevCluster, word: str) -> Any:
    """Run the commands of a finding, and wait until it disappears."""
    finding = await found(cluster, word)
    for line in finding["commands"] or finding["last_resort"]:
        await shell(cluster, line)
    await gone(cluster, finding)
    await wait_until(lambda: _is_settled(cluster), TIMEOUT_S, "no reassignment is under way")
    return finding


async def gone(cluster: DevCluster, finding: Any) -> None:
    """Wait until doctor no longer prints this finding."""
    word = finding["finding"]

    async def is_deleted() -> bool:
        _, findings, document = await examined(cluster)
        leads = document["looked_at"]["leader_id"] is not None  # without a leader, other findings are missing too
        return leads and all(each["what"] != finding["what"] for each in findings.get(word, []))

    await wait_until(is_deleted, TIMEOUT_S, f"{word} is resolved after: {finding['next']}")


async def look(cluster: DevCluster, finding: Any, line: str) -> None:
    """Run a command that a finding prints to show more; it must not change anything."""
    assert line in finding["next"], finding
    await shell(cluster, line)
    assert (await found(cluster, finding["finding"]))["what"] == finding["what"]


async def _is_settled(cluster: DevCluster) -> bool:
    return not (await done(cluster, "reassign", "status"))


async def led(cluster: DevCluster, topic: str, leader: int | None, *, isr: list[int]) -> None:
    """Wait until partition 0 has this leader and these replicas in sync."""

    async def is_so() -> bool:
        (described,) = await done(cluster, "topics", "describe", topic)
        partition = described["partitions"][0]
        return (partition["leader"], partition["isr"]) == (leader, isr)

    await wait_until(is_so, TIMEOUT_S, f"{topic}-0: leader {leader}, in sync {isr}")


async def test_the_commands_that_doctor_prints_as_advice_run_unchanged(tmp_path: Path) -> None:
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
        await until(cluster, ALWAYS)


async def test_the_commands_of_doctor_replace_a_lost_broker(tmp_path: Path) -> None:
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
        await until(cluster, ALWAYS, besides=frozenset({"MIN_ISR_IS_ALL"}))


async def test_the_last_resort_of_doctor_gives_up_the_records_of_a_lost_last_replica(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, brokers=3, **FAST) as cluster:
        await done(cluster, "topics", "create", "pair", "--assignment", "12:13", "--wait")
        for broker_id, leader in ((13, 12), (12, None)):
            await clusters.kill(node_of(cluster, broker_id))
            await led(cluster, "pair", leader, isr=[12])
        await start(cluster, node_of(cluster, 13))
        waiting = await found(cluster, "OFFLINE")
        assert waiting["cause"].startswith("only broker 12 may lead")
        await heal(cluster, "OFFLINE")


async def test_the_commands_of_doctor_recreate_lost_replicas(tmp_path: Path) -> None:
    # With a short session, a busy machine may have fenced the other replica of `pair` when a broker loses its disk.
    async with running(tmp_path, voters=1, brokers=3, **FAST | {"broker_session_timeout_ms": 6_000}) as cluster:
        await done(cluster, "topics", "create", "t", "--assignment", "11:12:13", "--wait")
        await done(cluster, "topics", "create", "pair", "--assignment", "11:12", "--wait")
        await done(cluster, "topics", "create", "alone", "--assignment", "13", "--wait")
        records = tmp_path / "records"
        records.write_text("\n".join(f"record {number}" for number in range(100)))
        for topic in ("t", "pair", "alone"):
            assert (await say(cluster, "produce", topic, str(records))).code == 0

        # The logs of two replicas are deleted from their broker's directory.
        broker = node_of(cluster, 12)
        await clusters.stop(broker)
        for topic in ("t", "pair"):
            (log,) = (Path(broker.data_dir) / "logs").glob(f"{topic}-0.*")
            shutil.rmtree(log)
        await start(cluster, broker)
        lost = await heal(cluster, "LOST_REPLICA")
        assert lost["next"].startswith("copy it to another broker, or drop it, then copy it again: ")
        await led(cluster, "pair", 11, isr=[11, 13])

        # A broker returns with an empty disk, which had the only replica of a topic.
        broker = node_of(cluster, 13)
        await clusters.kill(broker)
        shutil.rmtree(broker.data_dir)
        await start(cluster, broker)
        lost = await heal(cluster, "OFFLINE")
        assert lost["what"] == "1 partition lost with the only replica, on broker 13: alone-0"
        await until(cluster, ALWAYS | {"REPLICATION_FACTOR_1"})


async def test_the_commands_of_doctor_add_and_replace_voters(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, brokers=3, **FAST) as cluster:
        await heal(cluster, "ONE_VOTER")
        await until(cluster, set())
        await done(cluster, "remove-voter", "12")
        await heal(cluster, "EVEN_VOTERS")
        await until(cluster, set())

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
        await until(cluster, set())


async def test_a_partition_below_min_insync_replicas_becomes_writable_by_the_steps_of_doctor(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, brokers=3, **FAST) as cluster:
        await done(
            cluster, "topics", "create", "t", "--assignment", "11:12", "--config", "min.insync.replicas=2", "--wait"
        )
        broker = node_of(cluster, 12)
        await clusters.kill(broker)
        below = await found(cluster, "BELOW_MIN_ISR")
        assert below["next"].startswith("start broker 12; ")
        await start(cluster, broker)
        await gone(cluster, below)

        await clusters.kill(broker)
        await heal(cluster, "BELOW_MIN_ISR")
        (topic,) = await done(cluster, "topics", "describe", "t")
        assert sorted(topic["partitions"][0]["isr"]) == [11, 13]


async def test_doctor_lowers_min_insync_replicas_if_no_other_broker_exists(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, brokers=2, **FAST) as cluster:
        for topic in ("tight", "tight-too"):
            placed = ("--assignment", "11:12", "--config", "min.insync.replicas=2")
            await done(cluster, "topics", "create", topic, *placed, "--wait")
        finding = await heal(cluster, "MIN_ISR_IS_ALL")
        assert finding["commands"] == [
            f"kctl configs set min.insync.replicas=1 --topic {topic}" for topic in ("tight", "tight-too")
        ]
        await until(cluster, ALWAYS)


async def test_a_reassignment_to_a_broker_that_is_down_continues_or_is_cancelled(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, brokers=3, **FAST) as cluster:
        await done(cluster, "topics", "create", "t", "--assignment", "11:12", "--wait")
        records = tmp_path / "records"
        records.write_text("\n".join("x" * 5000 for _ in range(200)))
        assert (await say(cluster, "produce", "t", str(records))).code == 0
        throttled = ("reassign", "start", "--topic", "t", "--throttle", "1", "--brokers")
        await done(cluster, *throttled, "11,13")
        await clusters.kill(node_of(cluster, 13))
        await until(cluster, ALWAYS | {"FENCED", "REASSIGNMENT_STUCK"})
        stuck = await found(cluster, "REASSIGNMENT_STUCK")
        assert stuck["cause"].startswith("the target: broker 13 is fenced")
        assert stuck["next"].startswith("resolve that, and it continues automatically; or go back: ")
        await done(cluster, "reassign", "start", "--throttle", "none")
        await start(cluster, node_of(cluster, 13))
        await gone(cluster, stuck)
        await wait_until(lambda: _is_settled(cluster), TIMEOUT_S, "the reassignment ends")
        assert await _replicas(cluster) == [11, 13]

        await done(cluster, *throttled, "11,12")
        await clusters.kill(node_of(cluster, 12))
        await until(cluster, ALWAYS | {"FENCED", "REASSIGNMENT_STUCK"})
        assert (await heal(cluster, "REASSIGNMENT_STUCK"))["commands"] == ["kctl reassign cancel --topic t"]
        assert await _replicas(cluster) == [11, 13]


async def _replicas(cluster: DevCluster) -> list[int]:
    (topic,) = await done(cluster, "topics", "describe", "t")
    return sorted(topic["partitions"][0]["replicas"])


async def test_a_live_replica_is_kept_when_none_is_known_to_hold_all_records(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, brokers=2, **FAST) as cluster:
        await done(cluster, "topics", "create", "t", "--assignment", "11:12", "--wait")
        await clusters.kill(node_of(cluster, 12))
        await until(cluster, ALWAYS | {"FENCED", "UNDER_REPLICATED"})
        # The only replica in sync is lost: its broker returns with an empty disk.
        leader = node_of(cluster, 11)
        await clusters.kill(leader)
        shutil.rmtree(leader.data_dir)
        for broker_id in (11, 12):
            await start(cluster, node_of(cluster, broker_id))
        offline = await found(cluster, "OFFLINE")
        assert offline["cause"].startswith("no replica is known to hold all acknowledged records")
        await look(cluster, offline, "kctl explain t-0")
        await heal(cluster, "OFFLINE")


async def test_replicas_that_a_rebuilt_quorum_does_not_know_are_purged(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, brokers=1, **FAST) as cluster:
        voter, broker = node_of(cluster, 1), node_of(cluster, 11)
        # The quorum is rebuilt from an old copy of its disk, which lacks the topic.
        await clusters.stop(voter)
        copy = tmp_path / "copy"
        shutil.copytree(voter.data_dir, copy)
        await start(cluster, voter)
        await done(cluster, "topics", "create", "late", "--wait")
        records = tmp_path / "records"
        records.write_text("the only record\n")  # the log exists on disk once it has a record
        assert (await say(cluster, "produce", "late", str(records))).code == 0
        for node in (voter, broker):
            await clusters.kill(node)
        shutil.rmtree(voter.data_dir)
        shutil.move(copy, voter.data_dir)
        status, said = await tool("recover", "--data-dir", voter.data_dir, "--yes")
        assert status == 0, said
        for node in (voter, broker):
            await clusters.spawn(cluster, node)
        for node in (voter, broker):
            await clusters.ready(node)
        strays = await found(cluster, "STRAYS")
        await look(cluster, strays, "kctl brokers purge-strays --dry-run")
        await heal(cluster, "STRAYS")
        assert (await done(cluster, "brokers", "purge-strays", "--dry-run"))["strays"] == []


async def test_a_voter_that_is_down_is_started_or_replaced(tmp_path: Path) -> None:
    async with running(tmp_path, voters=3, **FAST) as cluster:
        leader = await leader_of(cluster)
        voter = next(node for node in cluster.nodes if node is not leader)
        await clusters.kill(voter)
        down = await found(cluster, "VOTER_DOWN")
        assert down["next"].startswith(f"start node {voter.id}; ")
        await start(cluster, voter)
        await gone(cluster, down)

        await clusters.kill(voter)
        down = await found(cluster, "VOTER_DOWN")
        shutil.rmtree(voter.data_dir)
        await start(cluster, voter)
        for line in down["commands"]:
            await shell(cluster, line)
        await gone(cluster, down)
        await until(cluster, {"NO_BROKERS"})


async def test_the_command_of_doctor_removes_one_of_four_voters(tmp_path: Path) -> None:
    async with running(tmp_path, voters=4, **FAST) as cluster:
        finding = await heal(cluster, "EVEN_VOTERS")
        assert finding["next"].startswith("remove one: kctl remove-voter ")
        await quorum_is(cluster, "three voters are left", lambda it: len(clusters.voter_ids(it)) == 3)
        await until(cluster, {"NO_BROKERS"})


async def test_a_change_of_voters_that_doctor_reports_as_blocked_continues_or_is_cancelled(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, joining=2, **FAST) as cluster:
        newcomer = node_of(cluster, 3)
        await killed_midway(cluster, newcomer)
        waiting = await found(cluster, "TARGET_NOT_REACHED")
        assert waiting["next"].startswith("resolve that, and the change continues automatically; or cancel it: ")
        await start(cluster, newcomer)
        await gone(cluster, waiting)
        await quorum_is(cluster, "the target is reached", clusters.are([1, 2, 3]))

        await done(cluster, "alter-quorum", "--target", clusters.named(cluster, 1), "--wait")
        await killed_midway(cluster, newcomer)
        await heal(cluster, "TARGET_NOT_REACHED")
        left = await quorum_is(cluster, "no target", lambda it: not it.HasField("target_voters"))
        assert newcomer.id not in clusters.voter_ids(left)


async def killed_midway(cluster: DevCluster, newcomer: Node) -> None:
    """Make voters of nodes 2 and 3, and kill one that is not a voter yet."""
    for _ in range(ATTEMPTS):
        await set_target(cluster, [1, 2, 3])
        await clusters.kill(newcomer)
        described = await quorum_is(cluster, "a leader", lambda it: True)
        if described.HasField("target_voters") and newcomer.id not in clusters.voter_ids(described):
            return
        await start(cluster, newcomer)  # it was a voter already
        await done(cluster, "alter-quorum", "--target", clusters.named(cluster, 1), "--wait")
    raise AssertionError("the target was always reached before the node was killed")


async def test_the_command_of_doctor_starts_the_first_broker(tmp_path: Path) -> None:
    """As printed, except for the port of Kafka clients: 9092 may be in use on this machine."""
    async with running(tmp_path, voters=1, **FAST) as cluster:
        finding = (await until(cluster, ALWAYS | {"NO_BROKERS"}))["NO_BROKERS"][0]
        line = finding["next"].removeprefix("start one, for example on this machine: ")
        program = f'broker() {{ exec "{sys.executable}" -P -m broker.cli "$@"; }}'
        broker = await asyncio.create_subprocess_exec(
            *("bash", "-c", f"{program}; {line.replace('127.0.0.1:9092', '127.0.0.1:0')}"),
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(clusters.ROOT)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            await gone(cluster, finding)
            await done(cluster, "topics", "create", "t", "--replication-factor", "1", "--wait")
        finally:
            broker.terminate()
            await broker.wait()
        assert broker.returncode == 0


async def test_doctor_requests_the_start_of_the_remaining_founders(tmp_path: Path) -> None:
    cluster = clusters.plan(tmp_path, **FAST)
    first = cluster.nodes[0]
    try:
        Path(first.data_dir).parent.mkdir(parents=True)
        await clusters.spawn(cluster, first)
        finding = (await until(cluster, {"NO_CLUSTER"}))["NO_CLUSTER"][0]
        assert finding["next"].startswith("start every node of --initial-voters, each with the same list; ")
        await clusters.start(cluster)
        await until(cluster, {"NO_BROKERS"})
    finally:
        for node in cluster.nodes:
            if node.is_running:
                await clusters.kill(node)


async def test_doctor_reports_wrong_addresses_and_duplicate_node_ids_until_they_are_corrected(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, **FAST) as cluster:
        (voter,) = cluster.nodes
        ours = ("--controllers", voter.control)
        stranger = clusters.another_node(cluster, 7)
        stranger.command += ["--initial-voters", f"7@{stranger.control}"]
        await start(cluster, stranger)
        assert "DIFFERENT_CLUSTERS" in await _words(cluster)
        assert await _words(cluster, *ours) == ALWAYS | {"NO_BROKERS"}

        await clusters.stop(stranger)
        await until(cluster, ALWAYS | {"NO_BROKERS", "UNKNOWN_ADDRESS"})
        assert await _words(cluster, *ours) == ALWAYS | {"NO_BROKERS"}
        cluster.nodes.remove(stranger)

        double = clusters.another_node(cluster, voter.id, "--join", voter.control)
        await clusters.spawn(cluster, double)
        finding = (await until(cluster, ALWAYS | {"NO_BROKERS", "SAME_ID"}))["SAME_ID"][0]
        assert finding["next"].startswith("stop the wrong node, or start it with another --node-id and an empty data ")
        await clusters.kill(double)
        shutil.rmtree(Path(double.data_dir).parent)
        cluster.nodes.remove(double)
        await start(cluster, clusters.another_node(cluster, 2, "--join", voter.control))
        await until(cluster, ALWAYS | {"NO_BROKERS"})


async def _words(cluster: DevCluster, *arguments: str) -> set[str]:
    _, findings, _ = await examined(cluster, *arguments)
    return set(findings)
