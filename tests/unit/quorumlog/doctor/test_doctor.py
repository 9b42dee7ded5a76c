"""kctl doctor against clusters that are ill in every way that it knows: one finding, its cause, the next command."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from quorumlog.client.probe import HANGS, probe
from quorumlog.doctor import examine as examination
from quorumlog.doctor.diagnosis import diagnose as conclude
from quorumlog.doctor.examine import examine
from quorumlog.doctor.steps import start_or_restart
from quorumlog.errors import ClusterError
from quorumlog.kctl.main import run
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import node_pb2, quorum_pb2
from quorumlog.words import counted, listed, named
from tests.unit.quorumlog.doctor.clinic import BROKERS, SILENT, Clinic, Diagnose, address, use, voter

# All is well


def test_a_healthy_cluster_in_two_lines(
    clinic: Clinic, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncio, "sleep", None)  # nothing is looked at twice
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


@pytest.mark.parametrize("given", [address(1), address(2), address(11), f"nowhere:1,{address(13)}"])
def test_one_address_that_answers_is_enough(clinic: Clinic, diagnose: Diagnose, given: str) -> None:
    findings, _ = diagnose("--controllers", given)
    assert findings.keys() == ({"UNKNOWN_ADDRESS"} if "nowhere" in given else set())
    assert {node for node, rpc in clinic.asked if rpc == rpcs.DESCRIBE_NODE} == {1, 2, 3, 11, 12, 13}


def test_advice_is_no_illness(clinic: Clinic, diagnose: Diagnose, capsys: pytest.CaptureFixture[str]) -> None:
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
        "start another broker, and have 3 replicas (doctor then gives the command); or, if one replica may "
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


# The quorum


def test_nobody_answers(clinic: Clinic, diagnose: Diagnose, capsys: pytest.CaptureFixture[str]) -> None:
    clinic.silent = {1: SILENT, 2: HANGS, 3: "no answer to a connection: the machine is down, or cut off from here"}
    findings, code = diagnose()
    assert (code, list(findings)) == (4, ["UNREACHABLE"])
    for why in clinic.silent.values():
        assert why in findings["UNREACHABLE"]["cause"]
    assert run(["doctor"]) == 4
    assert "0 of 3 nodes answer" in capsys.readouterr().out


def test_what_is_no_node_is_not_said_to_hang(
    clinic: Clinic, diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asked(where: str, timeout_s: float) -> Any:
        raise ClusterError("NOT_A_NODE", f"{where} is not the address of a quorumlog node (404)")

    monkeypatch.setattr(clinic, "describe_quorum_of", asked)
    findings, _ = diagnose("--controllers", address(1))
    assert findings["UNREACHABLE"]["cause"] == f"{address(1)}: the process there is not a quorumlog node"


def test_no_quorum_is_arithmetic_and_names_who_must_come_back(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.leader = None
    clinic.silent = {2: SILENT, 3: HANGS}
    clinic.topic("t", (11, 12, 13))
    findings, _ = diagnose()
    assert findings.keys() == {"NO_QUORUM"}
    found = findings["NO_QUORUM"]
    assert (found["severity"], found["nodes"]) == ("critical", [2, 3])
    assert found["cause"].startswith("2 of 3 voters do not answer, 2 must be up: node 2 at h2:9093: connection refused")
    assert found["next"].startswith("1 more must be up: start node 2, or restart node 3, which hangs; if their disks")


def test_only_as_many_voters_are_asked_back_as_a_majority_lacks(
    clinic: Clinic, diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch
) -> None:
    clinic.paused = True
    clinic.silence_voter(2)
    clinic.silence_voter(3)
    assert diagnose()[0]["PAUSED"]["next"].startswith("start node 2 or node 3; if their disks are lost")
    five = Clinic(voters=(1, 2, 3, 4, 5))
    five.leader = None
    use(five, monkeypatch)
    for silent, step in (
        ((3, 4, 5), "1 more must be up: start node 3, node 4 or node 5; "),
        ((2, 3, 4, 5), "2 more must be up: start 2 of: node 2, node 3, node 4, node 5; "),
    ):
        five.silent = dict.fromkeys(silent, SILENT)
        assert diagnose()[0]["NO_QUORUM"]["next"].startswith(step)


def test_without_a_leader_brokers_are_looked_for_at_their_clients_ports(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.leader = None
    clinic.silent = {2: SILENT, 3: SILENT, 12: SILENT}
    findings, _ = diagnose("--controllers", address(1))
    assert findings.keys() == {"NO_QUORUM", "BROKER_UNREACHABLE"}
    assert findings["BROKER_UNREACHABLE"]["nodes"] == [12]
    assert f"h12:9092: {SILENT}" in findings["BROKER_UNREACHABLE"]["cause"]


def test_all_voters_answer_and_none_leads(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.leader = None
    findings, _ = diagnose()
    assert findings.keys() == {"NO_LEADER"}
    assert "node 2 knows no leader in epoch 5" in findings["NO_LEADER"]["cause"]
    assert "1@h1:9093, 2@h2:9093, 3@h3:9093" in findings["NO_LEADER"]["next"]


def test_an_election_that_ends_in_time_is_no_finding(
    clinic: Clinic, diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "ELECTION_S", 30)
    clinic.leader = None
    ask, asked = clinic.describe_quorum_of, 0

    async def elected_later(where: str, timeout_s: float) -> Any:
        nonlocal asked
        asked += 1
        clinic.leader = 1 if asked > 8 else None
        return await ask(where, timeout_s)

    monkeypatch.setattr(clinic, "describe_quorum_of", elected_later)
    findings, code = diagnose()
    assert (findings, code) == ({}, 0)


def test_a_leader_that_only_doctor_cannot_reach(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.silent = {1: "no answer to a connection: the machine is down, or cut off from here"}
    findings, _ = diagnose()
    assert findings.keys() == {"LEADER_UNREACHABLE"}
    assert (findings["LEADER_UNREACHABLE"]["severity"], findings["LEADER_UNREACHABLE"]["nodes"]) == ("problem", [1])


def test_a_paused_leader(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.paused = True
    clinic.silence_voter(2)
    clinic.statuses[3].last_fetch_ms = 4200
    findings, _ = diagnose()
    assert findings.keys() == {"PAUSED"}
    assert findings["PAUSED"]["cause"] == (
        f"node 2 last fetched 5.0 s ago; at h2:9093: {SILENT}; node 3 last fetched 4.2 s ago; it answers here"
    )
    assert findings["PAUSED"]["next"].startswith("start node 2; if their disks are lost")
    clinic.silent.clear()
    findings, _ = diagnose()
    assert "look at the network between the voters" in findings["PAUSED"]["next"]


@pytest.mark.parametrize(
    ("behind", "cause"), [(40, "it has not applied 40 committed records yet"), (0, "is not committed")]
)
def test_elected_but_not_serving(clinic: Clinic, diagnose: Diagnose, behind: int, cause: str) -> None:
    leader = clinic.described[1]
    leader.controller_active = False
    leader.leading_ms = 10_001
    leader.applied_offset = leader.high_watermark - behind
    findings, _ = diagnose()
    assert findings["NOT_SERVING"]["severity"] == "critical"
    assert "elected 10 s ago" in findings["NOT_SERVING"]["what"]
    assert cause in findings["NOT_SERVING"]["cause"]
    assert "kctl transfer-leader --to 2" in findings["NOT_SERVING"]["next"]
    leader.leading_ms = 10_000
    findings, _ = diagnose()
    assert "NOT_SERVING" not in findings, "it has a little time"


def test_a_controller_that_answers_nobody(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.controller_error = ClusterError("TIMED_OUT", "h1:9093 did not answer in time", retriable=True)
    findings, _ = diagnose()
    assert findings.keys() == {"CONTROLLER_SILENT"}
    assert findings["CONTROLLER_SILENT"]["cause"] == "h1:9093 did not answer in time"


def test_a_voter_is_down(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.silence_voter(3)
    findings, _ = diagnose()
    assert findings.keys() == {"VOTER_DOWN"}
    found = findings["VOTER_DOWN"]
    assert found["what"] == "voter 3 is missing: no further voter may fail"
    assert found["cause"] == f"node 3 at h3:9093: {SILENT}; it last fetched 5.0 s ago"
    assert "start node 3; if its disk is lost" in found["next"]
    assert "kctl add-voter 3@h3:9093 --replace" in found["next"]


def test_one_of_five_voters_is_down(monkeypatch: pytest.MonkeyPatch, diagnose: Diagnose) -> None:
    clinic = Clinic((1, 2, 3, 4, 5))
    use(clinic, monkeypatch)
    clinic.silence_voter(4)
    findings, _ = diagnose()
    assert findings["VOTER_DOWN"]["what"] == "voter 4 is missing: 1 more may fail"


def test_a_voter_that_has_just_stopped(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.silent[3] = SILENT
    findings, _ = diagnose()
    assert findings.keys() == {"VOTER_UNREACHABLE"}
    assert "has just stopped" in findings["VOTER_UNREACHABLE"]["cause"]


def test_a_voter_that_is_cut_off_from_the_leader(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.statuses[3].ClearField("last_fetch_ms")
    clinic.views[3] = None
    findings, _ = diagnose()
    assert findings.keys() == {"VOTER_CUT_OFF"}
    assert findings["VOTER_CUT_OFF"]["cause"] == (
        "it answers here, but has not fetched from the leader in its epoch; node 3 knows no leader in epoch 5"
    )


def test_a_voter_that_lags(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.statuses[3].lag = 7
    assert diagnose()[0] == {}, "a moment ago it did not"
    clinic.statuses[3].last_caught_up_ms = 9000
    clinic.described[3].fsync_p99_us = 45_600
    findings, _ = diagnose()
    assert findings["VOTER_LAGGING"]["what"] == "voter 3 lags by 7 records"
    assert "45.6 ms" in findings["VOTER_LAGGING"]["cause"]


@pytest.mark.parametrize(("count", "word"), [(1, "ONE_VOTER"), (2, "EVEN_VOTERS"), (4, "EVEN_VOTERS"), (5, None)])
def test_how_many_voters(monkeypatch: pytest.MonkeyPatch, diagnose: Diagnose, count: int, word: str | None) -> None:
    use(Clinic(tuple(range(1, count + 1))), monkeypatch)
    findings, code = diagnose()
    assert (list(findings), code) == ([word] if word else [], 0)


def test_a_target_that_is_not_reached(clinic: Clinic, diagnose: Diagnose) -> None:
    target = quorum_pb2.VoterSet(voters=[voter(1), voter(2), voter(4)])
    clinic.target = quorum_pb2.DescribeQuorumReply(target_voters=target, target_step="add node 4")
    findings, code = diagnose()
    assert (list(findings), code) == (["TARGET_IN_PROGRESS"], 0)
    clinic.target.target_problem = "node 4 does not answer"
    findings, code = diagnose()
    assert (list(findings), code) == (["TARGET_NOT_REACHED"], 1)
    assert findings["TARGET_NOT_REACHED"]["what"] == "the voters are to be 1, 2 and 4, and are 1, 2 and 3"
    assert findings["TARGET_NOT_REACHED"]["cause"] == "add node 4: node 4 does not answer"


def test_nodes_that_are_no_cluster_yet(clinic: Clinic, diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch) -> None:
    clinic.leader = None
    clinic.voters = []
    clinic.described[1].checks[0].MergeFrom(node_pb2.CheckResult(detail="has not met its cluster yet; asks h2:9093"))
    clinic.described[1].checks[0].ok = False
    clinic.metadata.Clear()
    clinic.metadata.result.error = "NONE"
    clinic.silent = dict.fromkeys((2, 3, 11, 12, 13), SILENT)
    findings, _ = diagnose()
    assert list(findings) == ["NO_CLUSTER"]
    assert findings["NO_CLUSTER"]["severity"] == "critical"
    assert "asks h2:9093" in findings["NO_CLUSTER"]["cause"]


def test_nodes_of_different_clusters_and_generations(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.clusters[3] = "D"
    clinic.generations[12] = 0
    for node_id in (1, 2, 3, 11, 13):
        clinic.generations[node_id] = 1
    findings, _ = diagnose()
    assert findings.keys() == {"DIFFERENT_CLUSTERS", "OLD_GENERATION"}
    assert findings["DIFFERENT_CLUSTERS"]["cause"] == "C: 1, 2, 11, 12 and 13; D: 3"
    assert findings["OLD_GENERATION"]["nodes"] == [12]


# Nodes


@pytest.mark.parametrize(("node_id", "step"), [(1, "meanwhile: kctl transfer-leader --to 2"), (12, "iostat -x 1")])
def test_a_slow_disk(clinic: Clinic, diagnose: Diagnose, node_id: int, step: str) -> None:
    clinic.described[node_id].fsync_p99_us = 271_234
    findings, _ = diagnose()
    assert list(findings) == ["SLOW_DISK"]
    assert findings["SLOW_DISK"]["what"] == (
        f"the disk of node {node_id} is slow: it takes 271 ms to make a write durable (p99)"
    )
    assert findings["SLOW_DISK"]["next"].endswith(step)
    clinic.described[node_id].fsync_p99_us = 99_999
    assert diagnose()[0] == {}


def test_a_broker_that_does_not_apply_the_metadata(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.described[12].applied_offset = 60
    later = node_pb2.DescribeNodeReply()
    later.CopyFrom(clinic.described[12])
    clinic.later[12] = later
    later.applied_offset = 100
    assert diagnose()[0] == {}, "it was on its way"
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


def test_a_broker_that_does_not_carry_changes_out(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.heard = [{12: 50}, {12: 20}]
    assert diagnose()[0] == {}, "it gets on"
    clinic.heard = [{12: 50}, {12: 50}]
    findings, _ = diagnose()
    assert findings["CHANGES_PENDING"]["what"] == "broker 12 has 50 pending changes"


def test_a_node_that_is_not_ready(clinic: Clinic, diagnose: Diagnose) -> None:
    check = clinic.described[13].checks[1]
    check.ok, check.detail = False, "knows no leader in epoch 5"
    findings, _ = diagnose()
    assert findings["NOT_READY"]["cause"] == "leader: knows no leader in epoch 5"


def test_a_directory_that_failed_and_strays_that_are_kept(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.described[11].directories_offline.append("/disk2")
    clinic.strays[12] = [node_pb2.Stray(topic="old", kept=True), node_pb2.Stray(topic="older")]
    findings, _ = diagnose()
    assert findings["DIRECTORY_OFFLINE"]["what"] == "broker 11 no longer uses /disk2"
    assert findings["STRAYS"]["what"].startswith("broker 12 keeps 1 replica that")
    assert findings["STRAYS"]["severity"] == "advice"


# Brokers and partitions


def test_a_dead_broker_is_one_cause_with_its_consequences(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.topic("t", (11, 12, 13), (12, 13, 11), (13, 11, 12), min_insync_replicas="2")
    clinic.topic("alone", (12,), (13,))
    clinic.fence(12)
    findings, _ = diagnose()
    assert findings.keys() == {"OFFLINE", "FENCED", "UNDER_REPLICATED", "REPLICATION_FACTOR_1"}
    assert len(_all(clinic)) == 4
    assert findings["FENCED"]["cause"] == f"it sends no heartbeats; node 12 at h12:9093: {SILENT}"
    assert findings["FENCED"]["next"].endswith(
        "for good: start another broker first (2 are up, 3 are needed); doctor then says how to replace it"
    )
    offline = findings["OFFLINE"]
    assert (offline["what"], offline["partitions"]) == ("1 partition without a leader: alone-0", ["alone-0"])
    assert offline["commands"] == [
        "kctl reassign generate --topic alone --drain 12 | kctl reassign start --plan -",
        "kctl elect-leaders --unclean --topic alone",
    ]
    under = findings["UNDER_REPLICATED"]
    assert under["what"] == "3 partitions whose replica on broker 12 is not in sync: t-0..2"
    assert "start another broker first, 2 are up, 3 are needed" in under["next"]


def test_with_brokers_to_spare_the_commands_that_move_are_given(
    monkeypatch: pytest.MonkeyPatch, diagnose: Diagnose
) -> None:
    clinic = Clinic(brokers=(11, 12, 13, 14))
    use(clinic, monkeypatch)
    clinic.topic("t", (11, 12, 13))
    clinic.fence(12)
    clinic.topic("u", (12, 14))
    clinic.metadata.topics[1].partitions[0].isr[:] = [14]
    clinic.metadata.topics[1].partitions[0].leader = 14
    findings, _ = diagnose()
    assert findings["UNDER_REPLICATED"]["commands"] == [
        "kctl reassign generate --topic t --topic u | kctl reassign start --plan - --wait"
    ]
    assert findings["FENCED"]["commands"] == [
        "kctl reassign generate --drain 12 | kctl reassign start --plan - --wait", "kctl brokers unregister 12",
    ]  # fmt: skip
    clinic.topic("alone", (12,))
    clinic.metadata.topics[2].partitions[0].leader = -1
    assert diagnose()[0]["FENCED"]["next"].endswith("first resolve OFFLINE: 1 partition without a leader")


def test_a_broker_that_runs_but_is_fenced(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.fence(12, None)
    clinic.described[12].checks.add(name="broker", ok=False, detail="fenced, broker epoch 7")
    findings, _ = diagnose()
    assert findings["FENCED"]["cause"] == "it runs; broker: fenced, broker epoch 7"
    clinic.fence(12, HANGS)
    assert "restart broker 12, which hangs" in diagnose()[0]["FENCED"]["next"]


def test_brokers_in_other_states(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.metadata.brokers[0].state = "controlled_shutdown"
    clinic.silent[12] = SILENT
    del clinic.metadata.brokers[2]
    findings, _ = diagnose()
    assert findings.keys() == {"SHUTTING_DOWN", "BROKER_UNREACHABLE", "NOT_REGISTERED"}
    assert (findings["SHUTTING_DOWN"]["nodes"], findings["BROKER_UNREACHABLE"]["nodes"]) == ([11], [12])
    assert findings["NOT_REGISTERED"]["nodes"] == [13]
    clinic.brokers.clear()
    del clinic.metadata.brokers[:]
    assert list(diagnose()[0]) == ["NO_BROKERS"]


def test_a_partition_that_waits_for_one_of_several(clinic: Clinic, diagnose: Diagnose) -> None:
    (first, second) = clinic.topic("t", (11, 12, 13), (11, 12))
    clinic.fence(11)
    clinic.fence(12)
    first.leader, first.isr[:], first.elr[:] = -1, [], [11, 12]
    second.leader, second.isr[:] = -1, []
    findings = [f for f in _all(clinic) if f.finding == "OFFLINE"]
    nobody, waiting = findings
    assert nobody.partitions == ("t-1",)
    assert nobody.cause == "no replica is known to hold all acknowledged records"
    assert nobody.commands == ("kctl elect-leaders --unclean --topic t",)
    assert waiting.cause.startswith("only broker 11 and broker 12 may lead: broker 11 is fenced (connection refused")
    assert waiting.next.startswith(
        "start one of broker 11 and broker 12; only if that is lost for good: give up the records"
    )
    first.isr[:], first.elr[:] = [12], [11]
    assert _all(clinic)[1].cause.startswith("only broker 11 and broker 12 may lead"), "eligible beside the last in sync"


def _all(clinic: Clinic) -> list[Any]:
    """Return every finding; a word may occur more than once."""
    return list(conclude(asyncio.run(examine(clinic, map(address, clinic.voters), 10.0))).findings)


def test_below_the_minimum_is_critical_and_said_once(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.topic("t", (11, 12, 13), (12, 11, 13), min_insync_replicas="2")
    clinic.fence(12)
    clinic.fence(13)
    findings, _ = diagnose()
    assert findings["BELOW_MIN_ISR"]["severity"] == "critical"
    assert findings["BELOW_MIN_ISR"]["partitions"] == ["t-0", "t-1"]
    assert findings["BELOW_MIN_ISR"]["next"].startswith("start broker 12 and broker 13; the missing records")
    assert "UNDER_REPLICATED" not in findings


def test_the_minimum_is_the_topics_else_the_clusters(clinic: Clinic, diagnose: Diagnose) -> None:
    (partition,) = clinic.topic("t", (11, 12, 13))
    partition.isr[:] = [11]
    assert "BELOW_MIN_ISR" not in diagnose()[0]
    clinic.metadata.configs.add(scope=1, key="min.insync.replicas", value="2")
    assert "BELOW_MIN_ISR" in diagnose()[0]
    clinic.metadata.topics[0].configs.add(key="min.insync.replicas", value="1")
    assert "BELOW_MIN_ISR" not in diagnose()[0]


@pytest.mark.parametrize(("later", "said"), [(40, ", and got none in the last seconds"), (60, "")])
def test_a_replica_that_does_not_keep_up(clinic: Clinic, diagnose: Diagnose, later: int, said: str) -> None:
    (partition,) = clinic.topic("t", (11, 12, 13))
    partition.isr[:] = [11, 13]
    clinic.replica(11, "t", 0, 90, state="leader")
    clinic.replica(12, "t", 0, 40, later, state="follower")
    findings, _ = diagnose()
    assert findings["UNDER_REPLICATED"]["cause"] == f"broker 12 is up, but behind: by 50 records in t-0{said}"
    assert findings["UNDER_REPLICATED"]["next"].startswith("kctl explain t-0")


def test_a_replica_on_a_failed_directory(clinic: Clinic, diagnose: Diagnose) -> None:
    (partition,) = clinic.topic("t", (11, 12, 13))
    partition.isr[:] = [11, 13]
    partition.replica_states[1] = "offline"
    assert "its data directory is offline" in diagnose()[0]["UNDER_REPLICATED"]["cause"]
    clinic.replica(12, "t", 0, 0, state="offline", problem="/disk2: Input/output error")
    assert "/disk2: Input/output error" in diagnose()[0]["UNDER_REPLICATED"]["cause"]


def test_a_lost_replica_is_named_with_what_its_broker_found(clinic: Clinic, diagnose: Diagnose) -> None:
    (partition,) = clinic.topic("t", (11, 12, 13))
    clinic.lose(partition, 12)
    clinic.replica(12, "t", 0, 0, state="offline", problem="a batch at 7 is damaged")
    findings, _ = diagnose()
    assert findings.keys() == {"LOST_REPLICA"}
    assert findings["LOST_REPLICA"]["what"] == "broker 12 has lost 1 replica: t-0"
    assert findings["LOST_REPLICA"]["cause"] == "a batch at 7 is damaged"
    assert findings["LOST_REPLICA"]["commands"] == [
        "kctl reassign generate --topic t --drain 12 --replication-factor 2 | kctl reassign start --plan - --wait",
        "kctl reassign generate --topic t --replication-factor 3 | kctl reassign start --plan - --wait",
    ]
    partition.isr[:], partition.leader = [], -1
    findings, _ = diagnose()
    assert findings["LOST_REPLICA"]["next"].startswith("no leader has a copy")
    assert findings["OFFLINE"]["cause"] == "no replica is known to hold all acknowledged records"


def test_a_sole_replica_that_returned_without_its_records_is_reported_as_lost(
    clinic: Clinic, diagnose: Diagnose
) -> None:
    (partition,) = clinic.topic("t", (12,))
    partition.leader, partition.isr[:] = -1, []
    found = diagnose()[0]["OFFLINE"]
    assert found["what"] == "1 partition lost with the only replica, on broker 12: t-0"
    assert found["cause"].startswith("broker 12 has returned without its records: with another disk")
    assert (found["nodes"], found["commands"]) == ([12], ["kctl elect-leaders --unclean --topic t"])


def test_a_lost_replica_goes_to_a_broker_to_spare(monkeypatch: pytest.MonkeyPatch, diagnose: Diagnose) -> None:
    clinic = Clinic(brokers=(11, 12, 13, 14))
    use(clinic, monkeypatch)
    (partition,) = clinic.topic("t", (11, 12, 13))
    clinic.lose(partition, 12)
    assert diagnose()[0]["LOST_REPLICA"]["commands"] == [
        "kctl reassign generate --topic t --drain 12 | kctl reassign start --plan - --wait"
    ]


def test_one_step_names_no_more_topics_than_a_command_line_should_have(clinic: Clinic, diagnose: Diagnose) -> None:
    for number in range(50):
        clinic.topic(f"t{number:02}", (11,))
    (command,) = diagnose()[0]["REPLICATION_FACTOR_1"]["commands"]
    assert command.count("--topic") == 20
    assert "--topic t19 --replication-factor" in command


# Reassignments


def moving(clinic: Clinic, *, target: int = 13) -> Any:
    """t-0 goes from 11, 12 to 11 and `target`, which has half of it."""
    (partition,) = clinic.topic("t", (11, 12, target))
    partition.isr[:] = [11, 12]
    partition.adding[:], partition.removing[:] = [target], [12]
    clinic.replica(11, "t", 0, 90, state="leader")
    return partition


def test_a_reassignment_that_gets_on_is_no_finding(clinic: Clinic, diagnose: Diagnose) -> None:
    moving(clinic)
    clinic.replica(13, "t", 0, 40, 50, state="follower")
    assert diagnose() == ({}, 0)


def test_a_reassignment_that_does_not_get_on(clinic: Clinic, diagnose: Diagnose) -> None:
    moving(clinic)
    clinic.replica(13, "t", 0, 40, 40, state="follower")
    clinic.metadata.configs.add(scope=1, key="reassignment.throttle.bytes.per.second", value="10")
    findings, _ = diagnose()
    found = findings["REASSIGNMENT_STUCK"]
    assert found["cause"] == "broker 13 copied nothing in the last seconds; the throttle is 10 bytes/s"
    assert found["next"].startswith("remove the throttle: kctl reassign start --throttle none; or go back: kctl")
    assert found["commands"] == ["kctl reassign start --throttle none"]
    assert "kctl reassign cancel --topic t" in found["next"]
    del clinic.metadata.configs[:]
    clinic.asked.clear()
    found = diagnose()[0]["REASSIGNMENT_STUCK"]
    assert found["cause"] == "broker 13 copied nothing in the last seconds"
    assert found["next"].startswith(
        "resolve that, and it continues by itself; or go back: kctl reassign cancel --topic t"
    )


def test_a_reassignment_to_a_dead_broker(clinic: Clinic, diagnose: Diagnose) -> None:
    moving(clinic)
    clinic.fence(13)
    findings, _ = diagnose()
    assert findings["REASSIGNMENT_STUCK"]["cause"] == f"the target: broker 13 is fenced ({SILENT})"
    assert "UNDER_REPLICATED" not in findings


def test_a_reassignment_without_a_leader_or_with_too_few_in_sync(clinic: Clinic, diagnose: Diagnose) -> None:
    partition = moving(clinic)
    partition.leader = -1
    assert diagnose()[0]["REASSIGNMENT_STUCK"]["cause"] == "it has no leader to copy from"
    partition.leader = 12
    partition.isr[:] = [12, 13]
    clinic.metadata.topics[0].configs.add(key="min.insync.replicas", value="2")
    assert "the old replicas cannot be removed" in diagnose()[0]["REASSIGNMENT_STUCK"]["cause"]


# How it looks


def test_more_partitions_than_one_answer_holds(clinic: Clinic, diagnose: Diagnose) -> None:
    for number in range(20):
        clinic.topic(f"t{number:02}", *[(11, 12, 13)] * (number % 3 + 1))
    clinic.topic("ill", (11, 12, 13), (12, 13, 11), (13, 11, 12))
    clinic.metadata.topics[-1].partitions[2].isr[:] = [13, 12]
    clinic.partitions_max = 3
    findings, _ = diagnose()
    assert findings["UNDER_REPLICATED"]["partitions"] == ["ill-2"]


def test_metadata_that_nobody_can_tell(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.topic("t", (11,), (12,))
    clinic.partitions_max = 1
    findings, _ = diagnose()
    assert findings["METADATA_UNREADABLE"]["cause"].endswith(": too many")


def test_what_is_urgent_comes_first_and_advice_waits(clinic: Clinic, capsys: pytest.CaptureFixture[str]) -> None:
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


async def test_a_hundred_silent_nodes_take_as_long_as_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
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
    observed = await examine(clinic, [address(1)], 10.0)
    assert len(observed.nodes) == 103
    assert most == examination.AT_ONCE_MAX


async def test_why_nobody_answers_at_an_address() -> None:
    async def hang(host: str, port: int) -> Any:
        await asyncio.Event().wait()

    async def refuse(host: str, port: int) -> Any:
        raise ConnectionRefusedError

    async def unknown(host: str, port: int) -> Any:
        raise OSError(-2, "Name or service not known")

    assert await probe("h:1", 0.01, hang) == "no answer to a connection: the machine is down, or cut off from here"
    assert await probe("h:1", 1, refuse) == SILENT
    assert await probe("h:1", 1, unknown) == "cannot be reached: Name or service not known"
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        assert await probe(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", 5) is None


def test_words() -> None:
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
