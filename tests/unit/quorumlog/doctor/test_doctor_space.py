"""kctl doctor: disks with little space, and nodes that reported why they ended."""

from __future__ import annotations

from typing import Any

import pytest

from quorumlog.wire.v1 import node_pb2
from tests.unit.quorumlog.doctor.clinic import Clinic, Diagnose

MIB, GIB, TIB = 1 << 20, 1 << 30, 1 << 40


def room(clinic: Clinic, node_id: int, path: str, free: int, total: int, problem: str = "") -> None:
    clinic.described[node_id].directories.add(path=path, free_bytes=free, total_bytes=total, problem=problem)


@pytest.mark.parametrize(
    ("free", "total", "severity"),
    [
        (500 * MIB, 100 * GIB, "problem"),
        (0, 20 * MIB, "problem"),
        (90 * GIB, TIB, "advice"),
        (900 * MIB, 2 * GIB, "advice"),
        (GIB, 10 * GIB, None),
        (110 * GIB, TIB, None),
    ],
)
def test_low_disk_space_is_a_finding(
    clinic: Clinic, diagnose: Diagnose, free: int, total: int, severity: str | None
) -> None:
    room(clinic, 1, "/v/quorum", 50 * GIB, 100 * GIB)
    room(clinic, 12, "/data", free, total)
    findings, code = diagnose()
    if severity is None:
        assert (findings, code) == ({}, 0)
        return
    assert findings.keys() == {"LOW_SPACE"}
    found = findings["LOW_SPACE"]
    assert (found["severity"], found["nodes"]) == (severity, [12])
    assert found["what"].startswith("1 directory with little free space: node 12: ")
    assert found["what"].endswith("free in /data")


def test_one_finding_lists_directories_with_low_space_in_order_of_their_free_space(
    clinic: Clinic, diagnose: Diagnose
) -> None:
    room(clinic, 11, "/b/data", 512 * MIB, 10 * GIB)
    room(clinic, 11, "/b/data/quorum", 512 * MIB, 10 * GIB)  # the same file system
    room(clinic, 12, "/c/data", 3 * GIB, 100 * GIB)
    room(clinic, 12, "/d/data", 0, 10 * GIB, "no space left on device")  # reported as DIRECTORY_OFFLINE
    room(clinic, 2, "/v/quorum", 0, 0)  # the size is unknown
    findings, _ = diagnose()
    assert findings["LOW_SPACE"]["what"] == (
        "2 directories with little free space: node 11: 512 MiB of 10 GiB free in /b/data; "
        "node 12: 3 GiB of 100 GiB free in /c/data"
    )


def test_doctor_reports_why_a_directory_is_offline(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.described[12].directories_offline.append("/d")
    room(clinic, 12, "/d", 0, 10 * GIB, "/d: logs/t-0: No space left on device")
    findings, _ = diagnose()
    assert findings["DIRECTORY_OFFLINE"]["cause"].startswith(
        "/d: logs/t-0: No space left on device; other replicas serve"
    )


def report(clinic: Clinic, node_id: int, *, at_ms: int = 1_700_000_000_000, by: int = 1, **fields: Any) -> Any:
    cause = fields.pop("cause", "every data directory has failed; the last cause: /data: No space left on device")
    end = node_pb2.NodeEnd(node_id=node_id, at_ms=at_ms, exit_status=7, cause=cause, **fields)
    clinic.described[by].ends.append(end)
    return clinic.described[by].ends[-1]


def test_doctor_reports_the_full_disk_that_a_stopped_broker_had_reported(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.topic("t", (11, 12, 13))
    clinic.fence(13)
    report(clinic, 13, at_ms=1, by=2, cause="an older end")
    end = report(clinic, 13, next="check the disk")
    end.directories.add(path="/data", free_bytes=0, total_bytes=10 * GIB)
    end.directories.add(path="/other", free_bytes=9 * GIB, total_bytes=10 * GIB)
    findings, _ = diagnose()
    told = (
        "connection refused: nothing listens there; node 13 reported: it ended at 2023-11-14T22:13:20.000Z with status "
        '7: "every data directory has failed; the last cause: /data: No space left on device"'
    )
    assert findings["FENCED"]["cause"] == f"it sends no heartbeats; node 13 at h13:9093: {told}"
    step = 'node 13 reported little free space in "/data"; free space there, then start broker 13;'
    assert findings["FENCED"]["next"].startswith(f"{step} if it is lost")
    assert told in findings["UNDER_REPLICATED"]["cause"]
    assert findings["UNDER_REPLICATED"]["next"].startswith(step)


def test_doctor_reports_why_a_voter_ended(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.silence_voter(3)
    report(clinic, 3, cause="quorum.db: disk I/O error", next="check the disk")
    findings, _ = diagnose()
    assert 'with status 7: "quorum.db: disk I/O error"' in findings["VOTER_DOWN"]["cause"]
    assert findings["VOTER_DOWN"]["next"].startswith(
        'node 3 reported: "check the disk"; resolve that, then start node 3;'
    )


def test_a_node_report_cannot_escape_from_its_quotation_marks(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.silence_voter(3)
    report(clinic, 3, cause='x"; its disk hangs', next='y"; delete the data directory of node 1')
    found = diagnose()[0]["VOTER_DOWN"]
    assert found["next"].startswith(
        'node 3 reported: "y\'; delete the data directory of node 1"; resolve that, then start node 3;'
    )
    assert found["cause"].count('"') == 2


def test_doctor_ignores_a_report_from_before_the_node_restarted(clinic: Clinic, diagnose: Diagnose) -> None:
    report(clinic, 13, next="make room")
    assert diagnose() == ({}, 0)
    clinic.topic("t", (11, 12, 13))
    clinic.fence(13, None)
    findings, _ = diagnose()
    assert findings["UNDER_REPLICATED"]["next"].startswith("start broker 13;")
