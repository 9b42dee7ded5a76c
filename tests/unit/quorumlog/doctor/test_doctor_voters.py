"""kctl doctor: voters that lost their disks, and hanging brokers that a new leader does not know."""

from __future__ import annotations

import pytest

from quorumlog.client.probe import HANGS
from quorumlog.kctl.main import run
from quorumlog.runtime.clock import Sources
from quorumlog.wire.v1 import quorum_pb2
from tests.unit.quorumlog.doctor.clinic import SILENT, Clinic, Diagnose, address, use, voter


def test_doctor_reports_a_voter_that_restarted_with_another_disk(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.statuses[3].last_fetch_ms = 9000
    clinic.disks[3] = b"\7" * 16
    findings, _ = diagnose()
    assert findings.keys() == {"VOTER_NEW_DISK"}
    found = findings["VOTER_NEW_DISK"]
    assert found["what"] == "voter 3 is missing: no further voter may fail"
    assert "with another disk than the voter's" in found["cause"]
    assert found["commands"] == ["kctl add-voter 3@h3:9093 --replace"]


def test_doctor_reports_a_new_disk_before_the_leader_misses_fetches_from_the_old_disk(
    clinic: Clinic, diagnose: Diagnose, capsys: pytest.CaptureFixture[str]
) -> None:
    clinic.disks[3] = b"\7" * 16  # the old disk last fetched 100 ms ago
    assert diagnose()[0].keys() == {"VOTER_NEW_DISK"}
    assert run(["doctor"]) == 1
    assert "2 of 3 voters;" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("voters", "command"),
    [
        ((1,), ["kctl alter-quorum --target 1@h1:9093,11@h11:9093,12@h12:9093 --wait"]),
        ((1, 2), ["kctl add-voter 11@h11:9093 --wait"]),
        ((1, 2, 3, 4), ["kctl add-voter 11@h11:9093 --wait"]),
    ],
)
def test_doctor_proposes_running_brokers_as_voters(
    monkeypatch: pytest.MonkeyPatch, diagnose: Diagnose, voters: tuple[int, ...], command: list[str]
) -> None:
    use(Clinic(voters=voters), monkeypatch)
    (finding,) = diagnose()[0].values()
    assert finding["commands"] == command


@pytest.mark.parametrize(("voters", "target"), [((1,), (1, 5, 6)), ((1, 2), (1, 2, 5))])
def test_doctor_proposes_no_voter_change_while_another_change_is_in_progress(
    monkeypatch: pytest.MonkeyPatch, diagnose: Diagnose, voters: tuple[int, ...], target: tuple[int, ...]
) -> None:
    """`kctl alter-quorum --target` with other nodes would replace the operator's target."""
    clinic = Clinic(voters=voters)
    use(clinic, monkeypatch)
    wanted = quorum_pb2.VoterSet(voters=[voter(each) for each in target])
    clinic.target = quorum_pb2.DescribeQuorumReply(target_voters=wanted, target_step="add node 5")
    assert diagnose()[0].keys() == {"TARGET_IN_PROGRESS"}


def test_doctor_proposes_removing_one_of_four_voters_if_there_is_no_other_node(
    monkeypatch: pytest.MonkeyPatch, diagnose: Diagnose
) -> None:
    clinic = Clinic(voters=(1, 2, 3, 4), brokers=())
    use(clinic, monkeypatch)
    assert diagnose()[0]["EVEN_VOTERS"]["commands"] == ["kctl remove-voter 4"]
    clinic.silent = {3: SILENT}
    assert diagnose()[0]["EVEN_VOTERS"]["commands"] == ["kctl remove-voter 3"], "prefer a voter that is down"
    clinic.silent, clinic.statuses[2].last_fetch_ms = {}, 9000
    assert diagnose()[0]["EVEN_VOTERS"]["commands"] == ["kctl remove-voter 2"], (
        "or a voter that does not fetch from the leader"
    )
    clinic.disks[3] = b"\7" * 16
    assert diagnose()[0]["EVEN_VOTERS"]["commands"] == ["kctl remove-voter 3"], "or a voter without its old disk"
    use(Clinic(voters=(1, 2), brokers=()), monkeypatch)
    found = diagnose()[0]["EVEN_VOTERS"]
    assert found["commands"] == []
    assert found["next"].startswith("start another node")


@pytest.mark.parametrize(
    ("ahead_ms", "told"),
    [
        (5_000, None),
        (-5_000, None),
        (5_001, "node 13 is 5 s ahead"),
        (-5_001, "node 13 is 5 s behind"),
        (-7_500_000, "node 13 is 2 hours behind"),
    ],
)
def test_doctor_reports_a_clock_that_differs_by_more_than_5_seconds(
    clinic: Clinic, diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch, ahead_ms: int, told: str | None
) -> None:
    now_ms = Sources.real().wall_ms()
    monkeypatch.setattr(Sources, "real", lambda: Sources.seeded(0, lambda: now_ms))
    for described in clinic.described.values():
        described.wall_ms = now_ms
    clinic.described[13].wall_ms = now_ms + ahead_ms
    findings, code = diagnose()
    assert findings.keys() == ({"CLOCKS"} if told else set())
    if told:
        assert (findings["CLOCKS"]["cause"], findings["CLOCKS"]["nodes"], code) == (told, [13], 1)


@pytest.mark.parametrize(("ahead_ms", "told"), [(-60_000, "node 2 is 60 s behind"), (60_000, "node 2 is 60 s ahead")])
def test_the_local_clock_decides_which_of_two_nodes_has_a_wrong_clock(
    diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch, ahead_ms: int, told: str
) -> None:
    clinic = Clinic(voters=(1, 2), brokers=())
    use(clinic, monkeypatch)
    now_ms = Sources.real().wall_ms()
    monkeypatch.setattr(Sources, "real", lambda: Sources.seeded(0, lambda: now_ms))
    clinic.described[1].wall_ms, clinic.described[2].wall_ms = now_ms, now_ms + ahead_ms
    found = diagnose()[0]["CLOCKS"]
    assert (found["cause"], found["nodes"]) == (told, [2])


def test_a_wrong_local_clock_is_not_a_finding(clinic: Clinic, diagnose: Diagnose) -> None:
    for described in clinic.described.values():
        described.wall_ms = 1_000
    assert diagnose() == ({}, 0)


def test_doctor_reports_no_quorum_if_voters_restarted_with_empty_disks(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.leader = None
    clinic.disks = {1: b"\7" * 16, 2: b"\7" * 16}
    findings, _ = diagnose()
    assert findings.keys() == {"NO_QUORUM"}
    found = findings["NO_QUORUM"]
    assert found["nodes"] == [1, 2]
    assert found["cause"] == (
        "2 of 3 voters cannot vote, 2 must be up: node 1 at h1:9093: it answers with another disk than the voter's; "
        "node 2 at h2:9093: it answers with another disk than the voter's"
    )
    assert found["next"] == (
        "1 more must be up with its old disk: node 1 or node 2; if the disks are lost permanently: docs/recovery.md"
    )
    clinic.disks, clinic.silent = {2: b"\7" * 16}, {1: SILENT}
    found = diagnose()[0]["NO_QUORUM"]
    assert f"node 1 at h1:9093: {SILENT}; node 2 at h2:9093: it answers with another disk" in found["cause"]
    assert found["next"].startswith("1 more must be up with its old disk: node 1 or node 2; if the disks are lost")


def test_doctor_reports_a_paused_leader_whose_voters_have_empty_disks(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.paused = True
    clinic.disks = {2: b"\7" * 16, 3: b"\7" * 16}
    for node_id in (2, 3):
        clinic.statuses[node_id].last_fetch_ms = 5000
    found = diagnose()[0]["PAUSED"]
    assert "node 2 last fetched 5.0 s ago; it answers with another disk than the voter's" in found["cause"]
    assert found["next"].startswith("1 more must be up with its old disk: node 2 or node 3; if the disks are lost")


def test_an_address_that_may_belong_to_a_broker_is_not_reported_as_unknown(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.brokers = [11, 12]  # 13 does not fetch from this leader, so no node knows its control address
    clinic.silent = {13: HANGS}
    assert diagnose("--controllers", f"{address(1)},{address(13)}")[0].keys() == set()
    del clinic.metadata.brokers[2]
    assert diagnose("--controllers", f"{address(1)},{address(13)}")[0].keys() == {"UNKNOWN_ADDRESS"}


def test_doctor_sends_controller_requests_to_the_leader_that_it_found(clinic: Clinic, diagnose: Diagnose) -> None:
    assert diagnose("--controllers", address(3)) == ({}, 0)
    assert clinic.preferred == address(1)


def test_doctor_reports_two_nodes_with_the_same_id(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch) -> None:
    clinic = Clinic(brokers=(11, 12, 13, 112))
    use(clinic, monkeypatch)
    del clinic.metadata.brokers[3]
    clinic.claims[112] = 12
    assert diagnose() == ({}, 0), "a single node at two addresses"
    clinic.disks[112] = b"\7" * 16
    findings, _ = diagnose()
    assert findings.keys() == {"SAME_ID"}
    assert findings["SAME_ID"]["what"] == "2 nodes claim to be node 12: at h112:9093 and h12:9093"
    assert findings["SAME_ID"]["nodes"] == [12]


def test_doctor_reports_that_new_brokers_know_no_metadata_without_a_leader(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.leader = None
    clinic.silent = dict.fromkeys((1, 2, 3), SILENT)
    clinic.metadata.Clear()
    clinic.metadata.result.error = "NONE"
    findings, _ = diagnose("--controllers", address(11))
    assert findings.keys() == {"NO_QUORUM", "METADATA_UNREADABLE"}
    assert findings["METADATA_UNREADABLE"]["cause"].endswith("only a leader knows which records are committed")
