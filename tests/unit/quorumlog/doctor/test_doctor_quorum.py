"""kctl doctor's findings about the quorum: one finding for each problem, its cause, and the next command."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quorumlog.client.probe import HANGS
from quorumlog.doctor import examine as examination
from quorumlog.errors import ClusterError
from quorumlog.kctl.main import run
from quorumlog.wire.v1 import node_pb2, quorum_pb2
from tests.unit.quorumlog.doctor.clinic import SILENT, Clinic, Diagnose, address, use, voter

# All is well


# The quorum


def test_doctor_reports_for_each_node_why_it_does_not_answer(
    clinic: Clinic, diagnose: Diagnose, capsys: pytest.CaptureFixture[str]
) -> None:
    clinic.silent = {
        1: SILENT,
        2: HANGS,
        3: "no answer to a connection: the machine is down, or this machine cannot reach it",
    }
    findings, code = diagnose()
    assert (code, list(findings)) == (4, ["UNREACHABLE"])
    for why in clinic.silent.values():
        assert why in findings["UNREACHABLE"]["cause"]
    assert run(["doctor"]) == 4
    assert "0 of 3 nodes answer" in capsys.readouterr().out


def test_an_address_of_another_program_is_not_reported_as_hanging(
    clinic: Clinic, diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asked(where: str, timeout_s: float) -> Any:
        raise ClusterError("NOT_A_NODE", f"{where} is not the address of a quorumlog node (404)")

    monkeypatch.setattr(clinic, "describe_quorum_of", asked)
    findings, _ = diagnose("--controllers", address(1))
    assert findings["UNREACHABLE"]["cause"] == f"{address(1)}: the process at this address is not a quorumlog node"


def test_doctor_counts_and_names_the_voters_to_start_if_there_is_no_quorum(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.leader = None
    clinic.silent = {2: SILENT, 3: HANGS}
    clinic.topic("t", (11, 12, 13))
    findings, _ = diagnose()
    assert findings.keys() == {"NO_QUORUM"}
    found = findings["NO_QUORUM"]
    assert (found["severity"], found["nodes"]) == ("critical", [2, 3])
    assert found["cause"].startswith("2 of 3 voters do not answer, 2 must be up: node 2 at h2:9093: connection refused")
    assert found["next"].startswith("1 more must be up: start node 2, or restart node 3, which hangs; if their disks")


def test_doctor_asks_for_only_as_many_voters_as_a_majority_lacks(
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


def test_without_a_leader_brokers_are_probed_at_their_client_ports(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.leader = None
    clinic.silent = {2: SILENT, 3: SILENT, 12: SILENT}
    findings, _ = diagnose("--controllers", address(1))
    assert findings.keys() == {"NO_QUORUM", "BROKER_UNREACHABLE"}
    assert findings["BROKER_UNREACHABLE"]["nodes"] == [12]
    assert f"h12:9092: {SILENT}" in findings["BROKER_UNREACHABLE"]["cause"]


def test_doctor_reports_that_all_voters_answer_but_none_leads(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.leader = None
    findings, _ = diagnose()
    assert findings.keys() == {"NO_LEADER"}
    assert "node 2 knows no leader in epoch 5" in findings["NO_LEADER"]["cause"]
    assert "1@h1:9093, 2@h2:9093, 3@h3:9093" in findings["NO_LEADER"]["next"]


def test_an_election_that_ends_in_time_is_not_a_finding(
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


def test_doctor_reports_a_leader_that_only_doctor_cannot_reach(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.silent = {1: "no answer to a connection: the machine is down, or this machine cannot reach it"}
    findings, _ = diagnose()
    assert findings.keys() == {"LEADER_UNREACHABLE"}
    assert (findings["LEADER_UNREACHABLE"]["severity"], findings["LEADER_UNREACHABLE"]["nodes"]) == ("problem", [1])


def test_doctor_reports_why_a_leader_is_paused(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.paused = True
    clinic.silence_voter(2)
    clinic.statuses[3].last_fetch_ms = 4200
    findings, _ = diagnose()
    assert findings.keys() == {"PAUSED"}
    assert findings["PAUSED"]["cause"] == (
        f"node 2 last fetched 5.0 s ago; at h2:9093: {SILENT}; node 3 last fetched 4.2 s ago; it answers this machine"
    )
    assert findings["PAUSED"]["next"].startswith("start node 2; if their disks are lost")
    clinic.silent.clear()
    findings, _ = diagnose()
    assert "look at the network between the voters" in findings["PAUSED"]["next"]


def test_doctor_asks_for_a_voter_if_the_leader_pauses_before_the_others_count_as_silent(
    clinic: Clinic, diagnose: Diagnose
) -> None:
    clinic.paused = True
    clinic.silence_voter(2)
    clinic.statuses[3].last_fetch_ms = 1200  # more than quorum.fetch.timeout.ms of this cluster
    assert diagnose()[0]["PAUSED"]["next"].startswith("start node 2; if their disks are lost")


@pytest.mark.parametrize(
    ("behind", "cause"), [(40, "it has not applied 40 committed records yet"), (0, "is not committed")]
)
def test_doctor_reports_an_elected_leader_that_does_not_serve_requests(
    clinic: Clinic, diagnose: Diagnose, behind: int, cause: str
) -> None:
    leader = clinic.described[1]
    leader.controller_active = False
    leader.leading_ms = 10_001
    leader.applied_offset = leader.high_watermark - behind
    findings, _ = diagnose()
    assert findings["NOT_SERVING"]["severity"] == "critical"
    assert "elected 10 s ago" in findings["NOT_SERVING"]["what"]
    assert cause in findings["NOT_SERVING"]["cause"]
    assert findings["NOT_SERVING"]["next"].startswith("let another voter lead: kctl transfer-leader --to 2; ")
    assert findings["NOT_SERVING"]["commands"] == ["kctl transfer-leader --to 2"]
    leader.leading_ms = 10_000
    findings, _ = diagnose()
    assert "NOT_SERVING" not in findings, "a new leader has a short time to begin"


def test_doctor_suggests_moving_leadership_only_to_a_voter_that_is_caught_up(
    clinic: Clinic, diagnose: Diagnose
) -> None:
    """The leader refuses to hand over to any other voter."""
    leader = clinic.described[1]
    leader.controller_active, leader.leading_ms = False, 10_001
    clinic.statuses[2].ClearField("last_caught_up_ms")
    clinic.statuses[2].lag = 30
    findings, _ = diagnose()
    assert findings["NOT_SERVING"]["commands"] == ["kctl transfer-leader --to 3"]

    # The voters with the leader's epoch cannot commit its first record before they have the whole log.
    clinic.statuses[3].last_caught_up_ms = 60_000
    findings, _ = diagnose()
    assert findings["NOT_SERVING"]["commands"] == []
    clinic.silence_voter(3)
    findings, _ = diagnose()
    found = findings["NOT_SERVING"]
    assert found["cause"].endswith("no majority of the voters acknowledges it; voter 2 lags by 30 records")
    assert found["next"] == (
        "wait until a majority of the voters has caught up: kctl quorum replication shows how far they are; "
        "or start node 3"
    )
    assert found["commands"] == []

    # If it is committed, the leader itself is the reason.
    leader.applied_offset = leader.high_watermark - 40
    findings, _ = diagnose()
    assert findings["NOT_SERVING"]["next"] == (
        "look at the disk, the load and the log of node 1; if it applies no further records, restart it"
    )
    assert findings["NOT_SERVING"]["commands"] == []


def test_doctor_reports_a_controller_that_does_not_answer(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.controller_error = ClusterError("TIMED_OUT", "h1:9093 did not answer in time", retriable=True)
    findings, _ = diagnose()
    assert findings.keys() == {"CONTROLLER_SILENT"}
    assert findings["CONTROLLER_SILENT"]["cause"] == "h1:9093 did not answer in time"


def test_doctor_reports_a_leader_that_loses_its_majority_during_the_examination(
    clinic: Clinic, diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose_majority(*_: object) -> None:
        clinic.paused = True
        clinic.silence_voter(2)
        clinic.silence_voter(3)
        raise ClusterError("NOT_CONTROLLER", "the controller is paused", retriable=True)

    monkeypatch.setattr(clinic, "call", lose_majority)
    findings, _ = diagnose()
    assert findings.keys() == {"PAUSED"}
    assert findings["PAUSED"]["next"].startswith("start node 2 or node 3")


def test_doctor_continues_with_a_leader_that_is_elected_during_the_examination(
    clinic: Clinic, diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = clinic.call

    async def replace_leader(*_: object) -> None:
        clinic.leader = 2
        clinic.silence_voter(1)
        clinic.described[2].controller_active = True
        monkeypatch.setattr(clinic, "call", ask)
        raise ClusterError("UNAVAILABLE", "connection refused", retriable=True)

    monkeypatch.setattr(clinic, "call", replace_leader)
    findings, _ = diagnose()
    assert findings.keys() == {"VOTER_DOWN"}
    assert clinic.preferred == "h2:9093"


def test_doctor_reports_a_voter_that_is_down(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.silence_voter(3)
    findings, _ = diagnose()
    assert findings.keys() == {"VOTER_DOWN"}
    found = findings["VOTER_DOWN"]
    assert found["what"] == "voter 3 is missing: no further voter may fail"
    assert found["cause"] == f"node 3 at h3:9093: {SILENT}; it last fetched 5.0 s ago"
    assert "start node 3; if its disk is lost" in found["next"]
    assert "kctl add-voter 3@h3:9093 --replace" in found["next"]


def test_doctor_reports_how_many_more_of_five_voters_may_fail(
    monkeypatch: pytest.MonkeyPatch, diagnose: Diagnose
) -> None:
    clinic = Clinic((1, 2, 3, 4, 5))
    use(clinic, monkeypatch)
    clinic.silence_voter(4)
    findings, _ = diagnose()
    assert findings["VOTER_DOWN"]["what"] == "voter 4 is missing: 1 more may fail"


def test_doctor_reports_a_voter_that_has_just_stopped(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.silent[3] = SILENT
    findings, _ = diagnose()
    assert findings.keys() == {"VOTER_UNREACHABLE"}
    assert "has just stopped" in findings["VOTER_UNREACHABLE"]["cause"]


def test_doctor_reports_a_voter_that_is_disconnected_from_the_leader(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.statuses[3].ClearField("last_fetch_ms")
    clinic.views[3] = None
    findings, _ = diagnose()
    assert findings.keys() == {"VOTER_CUT_OFF"}
    assert findings["VOTER_CUT_OFF"]["cause"] == (
        "it answers this machine, but has not fetched from the leader in its epoch; node 3 knows no leader in epoch 5"
    )


def test_doctor_reports_a_voter_that_lags(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.statuses[3].lag = 7
    assert diagnose()[0] == {}, "the voter was caught up a moment ago"
    clinic.statuses[3].last_caught_up_ms = 9000
    clinic.described[3].fsync_p99_us = 45_600
    findings, _ = diagnose()
    assert findings["VOTER_LAGGING"]["what"] == "voter 3 lags by 7 records"
    assert "45.6 ms" in findings["VOTER_LAGGING"]["cause"]


@pytest.mark.parametrize(("count", "word"), [(1, "ONE_VOTER"), (2, "EVEN_VOTERS"), (4, "EVEN_VOTERS"), (5, None)])
def test_doctor_advises_against_a_single_voter_and_even_numbers_of_voters(
    monkeypatch: pytest.MonkeyPatch, diagnose: Diagnose, count: int, word: str | None
) -> None:
    use(Clinic(tuple(range(1, count + 1))), monkeypatch)
    findings, code = diagnose()
    assert (list(findings), code) == ([word] if word else [], 0)


def test_doctor_reports_why_the_target_voter_set_is_not_reached(clinic: Clinic, diagnose: Diagnose) -> None:
    target = quorum_pb2.VoterSet(voters=[voter(1), voter(2), voter(4)])
    clinic.target = quorum_pb2.DescribeQuorumReply(target_voters=target, target_step="add node 4")
    findings, code = diagnose()
    assert (list(findings), code) == (["TARGET_IN_PROGRESS"], 0)
    clinic.target.target_problem = "node 4 does not answer"
    findings, code = diagnose()
    assert (list(findings), code) == (["TARGET_NOT_REACHED"], 1)
    assert (
        findings["TARGET_NOT_REACHED"]["what"] == "the target voters are 1, 2 and 4; the current voters are 1, 2 and 3"
    )
    assert findings["TARGET_NOT_REACHED"]["cause"] == "add node 4: node 4 does not answer"


def test_doctor_reports_nodes_that_have_not_formed_a_cluster(
    clinic: Clinic, diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_doctor_reports_nodes_of_different_clusters_and_generations(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.clusters[3] = "D"
    clinic.generations[12] = 0
    for node_id in (1, 2, 3, 11, 13):
        clinic.generations[node_id] = 1
    findings, _ = diagnose()
    assert findings.keys() == {"DIFFERENT_CLUSTERS", "OLD_GENERATION"}
    assert findings["DIFFERENT_CLUSTERS"]["cause"] == "C: 1, 2, 11, 12 and 13; D: 3"
    assert findings["OLD_GENERATION"]["nodes"] == [12]


def test_doctor_does_not_confuse_nodes_of_two_clusters_that_have_the_same_ids(
    diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ids of most clusters begin with 1, and a list of controllers may name two clusters by mistake."""
    clinic = Clinic(brokers=(11, 12, 13, 101, 102, 111))
    use(clinic, monkeypatch)
    clinic.brokers = [11, 12, 13]
    del clinic.metadata.brokers[3:]
    for theirs, node_id in ((101, 1), (102, 2), (111, 11)):
        clinic.claims[theirs], clinic.clusters[theirs] = node_id, "D"
        clinic.disks[theirs], clinic.generations[theirs] = b"\7" * 16, 1
        clinic.views[theirs] = None
    broker = clinic.described[111]  # its problems are not ours
    broker.directories.add(path="/data", free_bytes=0, total_bytes=10 << 30)
    broker.directories_offline.append("/data2")
    broker.fsync_p99_us = 10_000_000
    broker.applied_offset = 1
    broker.checks[1].ok = False
    broker.compaction.uncleanable_count = 1
    broker.compaction.uncleanable.add(topic="t", index=0, cause="damage")
    broker.compaction.longest_wait_ms = 86_400_000
    broker.dead_letters.failing_count = 1
    broker.dead_letters.failing.add(group="g", topic="t", index=0, dead_letter_topic="d", cause="no leader")
    clinic.strays[111] = [node_pb2.Stray(topic="old", kept=True)]
    mixed = ",".join(map(address, (101, 102, 111, 1, 2, 3)))
    findings, _ = diagnose("--controllers", mixed)
    assert findings.keys() == {"DIFFERENT_CLUSTERS"}
    assert findings["DIFFERENT_CLUSTERS"]["cause"] == "C: 1, 2, 3, 11, 12 and 13; D: 1, 2 and 11"
    clinic.silence_voter(2)
    findings, _ = diagnose("--controllers", mixed)
    assert findings.keys() == {"DIFFERENT_CLUSTERS", "VOTER_DOWN"}
    assert findings["VOTER_DOWN"]["commands"] == [f"kctl add-voter 2@{address(2)} --replace"]


def test_the_slowest_disk_of_the_summary_belongs_to_the_examined_cluster(
    clinic: Clinic, diagnose: Diagnose, capsys: pytest.CaptureFixture[str]
) -> None:
    clinic.clusters[3] = "D"
    clinic.described[3].fsync_p99_us = 10_000_000
    assert diagnose()[0].keys() == {"DIFFERENT_CLUSTERS"}
    run(["doctor", "-o", "json"])
    assert json.loads(capsys.readouterr().out)["looked_at"]["fsync_p99_max_ms"] == 2


def test_doctor_reports_a_voter_that_was_started_in_another_cluster(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.clusters[3], clinic.disks[3], clinic.views[3] = "D", b"\7" * 16, None
    clinic.statuses[3].last_fetch_ms = 5000
    findings, _ = diagnose()
    assert findings.keys() == {"DIFFERENT_CLUSTERS", "VOTER_NEW_DISK"}
    assert findings["VOTER_NEW_DISK"]["next"].startswith("start the node with its old disk")
