"""kctl doctor and every problem that it knows: one finding, its cause, and the next command."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from quorumlog.client.probe import probe
from quorumlog.doctor import examine as examination
from quorumlog.doctor.examine import examine
from quorumlog.doctor.steps import start_or_restart
from quorumlog.kctl.main import run
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import node_pb2
from quorumlog.words import counted, listed, named
from tests.unit.quorumlog.doctor.clinic import BROKERS, SILENT, Clinic, Diagnose, address

# All is well


def test_doctor_reports_a_healthy_cluster_in_two_lines(
    clinic: Clinic, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncio, "sleep", None)  # no node is examined twice
    clinic.topic("t", (11, 12, 13), (12, 13, 11), min_insync_replicas="2")
    assert run(["doctor"]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        "all is well",
        "cluster C; 6 of 6 nodes answer; node 1 leads epoch 5; 3 of 3 voters; 3 of 3 brokers unfenced; "
        "2 of 2 partitions of 1 topic in sync; slowest disk 2 ms (p99 of fsync)",
    ]
    assert captured.err == ""
    assert run(["doctor", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "healthy": True,
        "looked_at": {
            "cluster_id": "C", "leader_id": 1, "leader_epoch": 5, "offset": 100, "nodes": 6, "nodes_answering": 6,
            "voters": 3, "voters_answering": 3, "brokers": 3, "brokers_unfenced": 3, "topics": 1, "partitions": 2,
            "partitions_in_sync": 2, "fsync_p99_max_ms": 2.0,
        },
        "findings": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("known", "given", "nodes"),
    [([11, 12, 13], address(1), (6, 5)), ([11, 13], address(1), (6, 5)), ([11, 13], f"{address(1)},nowhere:1", (6, 5))],
    ids=["known to the leader", "unknown", "perhaps at the address that does not answer"],
)
def test_a_registered_broker_counts_as_a_node_even_if_no_node_knows_its_address(
    clinic: Clinic, capsys: pytest.CaptureFixture[str], known: list[int], given: str, nodes: tuple[int, int]
) -> None:
    """A new leader does not know the address of a broker that was down at its election."""
    clinic.brokers = known
    clinic.silent = {12: SILENT}
    run(["doctor", "--controllers", given, "-o", "json"])
    looked_at = json.loads(capsys.readouterr().out)["looked_at"]
    assert (looked_at["nodes"], looked_at["nodes_answering"]) == nodes


@pytest.mark.parametrize("given", [address(1), address(2), address(11), f"nowhere:1,{address(13)}"])
def test_doctor_finds_all_nodes_through_a_single_address_that_answers(
    clinic: Clinic, diagnose: Diagnose, given: str
) -> None:
    findings, _ = diagnose("--controllers", given)
    assert findings.keys() == ({"UNKNOWN_ADDRESS"} if "nowhere" in given else set())
    assert {node for node, rpc in clinic.asked if rpc == rpcs.DESCRIBE_NODE} == {1, 2, 3, 11, 12, 13}


def test_advice_does_not_change_the_exit_code(
    clinic: Clinic, diagnose: Diagnose, capsys: pytest.CaptureFixture[str]
) -> None:
    clinic.topic("alone", (11,), (12,))
    clinic.topic("tight", (11, 12), min_insync_replicas="2")
    clinic.metadata.configs.add(scope=3, resource="12", key="cordoned", value="true")
    findings, code = diagnose()
    assert (code, findings.keys()) == (0, {"REPLICATION_FACTOR_1", "MIN_ISR_IS_ALL", "CORDONED"})
    assert findings["REPLICATION_FACTOR_1"]["partitions"] == ["alone-0", "alone-1"]
    assert findings["REPLICATION_FACTOR_1"]["commands"] == [
        "kctl reassign generate --topic alone --replication-factor 2 | kctl reassign start --plan - --wait"
    ]
    assert findings["MIN_ISR_IS_ALL"]["next"] == (
        "start another broker, and use 3 replicas (doctor then gives the command); or, if one replica may "
        "acknowledge alone: kctl configs set min.insync.replicas=1 --topic tight"
    )
    assert findings["CORDONED"]["next"] == "kctl configs unset cordoned --broker 12"
    del clinic.metadata.configs[:]
    findings, _ = diagnose()
    assert findings["MIN_ISR_IS_ALL"]["commands"] == [
        "kctl reassign generate --topic tight --replication-factor 3 | kctl reassign start --plan - --wait"
    ]
    clinic.metadata.configs.add(scope=3, resource="12", key="cordoned", value="true")
    assert run(["doctor"]) == 0
    assert "all is well; 3 pieces of advice" in capsys.readouterr().out


# Nodes


@pytest.mark.parametrize(("node_id", "step"), [(1, "meanwhile: kctl transfer-leader --to 2"), (12, "iostat -x 1")])
def test_doctor_reports_a_slow_disk(clinic: Clinic, diagnose: Diagnose, node_id: int, step: str) -> None:
    clinic.described[node_id].fsync_p99_us = 271_234
    findings, _ = diagnose()
    assert list(findings) == ["SLOW_DISK"]
    assert findings["SLOW_DISK"]["what"] == (
        f"the disk of node {node_id} is slow: it takes 271 ms to make a write durable (p99)"
    )
    assert findings["SLOW_DISK"]["next"].endswith(step)
    clinic.described[node_id].fsync_p99_us = 99_999
    assert diagnose()[0] == {}


def test_doctor_suggests_no_leader_with_a_slower_disk(clinic: Clinic, diagnose: Diagnose) -> None:
    for node_id, fsync_us in ((1, 150_000), (2, 900_000), (3, 400_000)):
        clinic.described[node_id].fsync_p99_us = fsync_us
    assert "transfer-leader" not in diagnose()[0]["SLOW_DISK"]["next"]
    clinic.described[3].fsync_p99_us = 140_000
    assert diagnose()[0]["SLOW_DISK"]["next"].endswith("meanwhile: kctl transfer-leader --to 3")
    clinic.described[2].ClearField("fsync_p99_us")  # node 2 has written nothing recently, so it may be slow
    assert diagnose()[0]["SLOW_DISK"]["next"].endswith("meanwhile: kctl transfer-leader --to 3")


def test_doctor_reports_a_broker_that_lags_in_applying_metadata(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.described[12].applied_offset = 60
    later = node_pb2.DescribeNodeReply()
    later.CopyFrom(clinic.described[12])
    clinic.later[12] = later
    later.applied_offset = 100
    assert diagnose()[0] == {}, "the missing records arrived in time"
    clinic.asked.clear()
    later.applied_offset = 70
    findings, _ = diagnose()
    assert list(findings) == ["LAGGING"]
    assert findings["LAGGING"]["what"] == "broker 12 is behind: it lacks 30 records of the metadata"
    assert "of the missing records it applied 10 of 40 meanwhile" in findings["LAGGING"]["cause"]
    clinic.asked.clear()
    later.applied_offset = 60
    assert "it applied none meanwhile" in diagnose()[0]["LAGGING"]["cause"]
    clinic.asked.clear()
    clinic.views[12] = 2
    found = diagnose()[0]["LAGGING"]
    assert found["cause"].endswith("it applied none meanwhile; it does not know the leader yet: it follows node 2")
    assert found["next"].startswith("look again in a few seconds")


def test_doctor_reports_a_broker_whose_pending_changes_do_not_decrease(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.heard = [{12: 50}, {12: 20}]
    assert diagnose()[0] == {}, "the number of pending changes decreases"
    clinic.heard = [{12: 50}, {12: 50}]
    findings, _ = diagnose()
    assert findings["CHANGES_PENDING"]["what"] == "broker 12 has 50 pending changes"


def test_doctor_reports_the_failed_check_of_a_node_that_is_not_ready(clinic: Clinic, diagnose: Diagnose) -> None:
    check = clinic.described[13].checks[1]
    check.ok, check.detail = False, "knows no leader in epoch 5"
    findings, _ = diagnose()
    assert findings["NOT_READY"]["cause"] == "leader: knows no leader in epoch 5"


def test_doctor_reports_failed_directories_and_kept_stray_replicas(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.described[11].directories_offline.append("/disk2")
    clinic.strays[12] = [node_pb2.Stray(topic="old", kept=True), node_pb2.Stray(topic="older")]
    findings, _ = diagnose()
    assert findings["DIRECTORY_OFFLINE"]["what"] == "broker 11 no longer uses /disk2"
    assert findings["STRAYS"]["what"].startswith("broker 12 keeps 1 replica that")
    assert findings["STRAYS"]["severity"] == "advice"


# Output


def test_doctor_examines_more_partitions_than_one_reply_can_hold(clinic: Clinic, diagnose: Diagnose) -> None:
    for number in range(20):
        clinic.topic(f"t{number:02}", *[(11, 12, 13)] * (number % 3 + 1))
    clinic.topic("ill", (11, 12, 13), (12, 13, 11), (13, 11, 12))
    clinic.metadata.topics[-1].partitions[2].isr[:] = [13, 12]
    clinic.partitions_max = 3
    findings, _ = diagnose()
    assert findings["UNDER_REPLICATED"]["partitions"] == ["ill-2"]


def test_doctor_reports_that_no_node_can_describe_the_metadata(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.topic("t", (11,), (12,))
    clinic.partitions_max = 1
    findings, _ = diagnose()
    assert findings["METADATA_UNREADABLE"]["cause"].endswith(": too many")


def test_doctor_lists_urgent_findings_first_and_only_counts_advice(
    clinic: Clinic, capsys: pytest.CaptureFixture[str]
) -> None:
    clinic.topic("alone", (12,))
    clinic.fence(12)
    assert run(["doctor"]) == 1
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line and not line.startswith(" ")][:2] == [
        "CRITICAL  OFFLINE", "PROBLEM  FENCED",
    ]  # fmt: skip
    assert "ADVICE" not in out
    assert "2 things are wrong; 1 piece of advice (shown by -o json)" in out
    assert "\033" not in out


async def test_doctor_asks_many_nodes_at_the_same_time_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    clinic = Clinic(brokers=tuple(range(11, 111)))
    monkeypatch.setattr(examination, "probe", clinic.probe)
    monkeypatch.setattr(examination, "why_silent", clinic.why_silent)
    waiting = most = 0
    ask = clinic.describe_quorum_of

    async def count(where: str, timeout_s: float) -> Any:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        await asyncio.sleep(0)
        waiting -= 1
        return await ask(where, timeout_s)

    monkeypatch.setattr(clinic, "describe_quorum_of", count)
    observed = await examine(clinic.client, [address(1)], 10.0)
    assert len(observed.nodes) == 103
    assert most == examination.AT_ONCE_MAX


async def test_probe_reports_why_an_address_does_not_answer() -> None:
    async def hang(host: str, port: int) -> Any:
        await asyncio.Event().wait()

    async def refuse(host: str, port: int) -> Any:
        raise ConnectionRefusedError

    async def unknown(host: str, port: int) -> Any:
        raise OSError(-2, "Name or service not known")

    assert (
        await probe("h:1", 0.01, hang)
        == "no answer to a connection: the machine is down, or this machine cannot reach it"
    )
    assert await probe("h:1", 1, refuse) == SILENT
    assert await probe("h:1", 1, unknown) == "cannot be reached: Name or service not known"
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        assert await probe(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", 5) is None


def test_lists_and_next_steps_are_grammatical() -> None:
    assert listed([]) == "none"
    assert listed([1]) == "1"
    assert listed([1, 2, 3]) == "1, 2 and 3"
    assert counted(1, "voter") == "1 voter"
    assert counted(0, "voter") == "0 voters"
    assert named([("t", 1), ("t", 0), ("u", 5)]) == "t-0..1, u-5"
    assert named([("t", number) for number in range(0, 100, 2)]) == "t (50 partitions)"
    many = [(f"t{number:02}", 0) for number in range(20)]
    assert named(many).endswith("t07-0 and 12 more")
    hanging = [(1, False), (2, True), (3, True)]
    assert start_or_restart(hanging) == "start node 1; restart node 2 and node 3, which hang"
    some = [(1, False), (2, True), (3, False)]
    assert start_or_restart(some, needed=3) == start_or_restart(some)
    assert start_or_restart(some) == "start node 1 and node 3; restart node 2, which hangs"
    assert start_or_restart(some, needed=2) == "start or restart 2 of: node 1, node 3, node 2 (node 2 hangs)"
    assert start_or_restart(some, needed=1) == "start node 1 or node 3, or restart node 2, which hangs"
    assert set(BROKERS) == {11, 12, 13}
