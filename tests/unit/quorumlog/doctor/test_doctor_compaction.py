"""kctl doctor: logs that cannot be compacted, and brokers whose compaction is behind."""

from __future__ import annotations

from quorumlog.doctor.compaction import BEHIND_MS
from tests.unit.quorumlog.doctor.clinic import Clinic, Diagnose


def uncleanable(clinic: Clinic, node_id: int, topic: str, cause: str, *, is_final: bool) -> None:
    compaction = clinic.described[node_id].compaction
    compaction.uncleanable_count += 1
    compaction.uncleanable.add(topic=topic, index=0, cause=cause, is_final=is_final)


def test_one_finding_lists_all_uncleanable_logs_with_permanent_causes_first(clinic: Clinic, diagnose: Diagnose) -> None:
    uncleanable(clinic, 11, "a", "the worker process sent no report for 120 s", is_final=False)
    uncleanable(clinic, 12, "b", "the batch at offset 7 belongs to a transaction", is_final=True)
    clinic.described[12].compaction.uncleanable_count += 40
    findings, code = diagnose()
    found = findings["UNCLEANABLE"]
    assert (code, found["severity"], found["nodes"], found["partitions"]) == (1, "problem", [11, 12], ["a-0", "b-0"])
    assert found["what"] == "42 replicas of compacted topics cannot be compacted"
    assert found["cause"] == (
        "b-0 on node 12: the batch at offset 7 belongs to a transaction; "
        "a-0 on node 11: the worker process sent no report for 120 s and 40 more"
    )


def test_a_temporary_compaction_failure_is_only_advice(clinic: Clinic, diagnose: Diagnose) -> None:
    uncleanable(clinic, 11, "a", "the worker process sent no report for 120 s", is_final=False)
    findings, code = diagnose()
    assert (code, findings["UNCLEANABLE"]["severity"]) == (0, "advice")
    assert "try again every 30 s" in findings["UNCLEANABLE"]["next"]


def test_compaction_is_behind_if_a_log_waits_for_more_than_an_hour(clinic: Clinic, diagnose: Diagnose) -> None:
    compaction = clinic.described[12].compaction
    compaction.due, compaction.dirty_bytes, compaction.longest_wait_ms = 3, 5 << 20, BEHIND_MS
    assert diagnose() == ({}, 0)
    compaction.longest_wait_ms += 60_000
    findings, code = diagnose()
    assert (code, findings.keys()) == (0, {"COMPACTION_BEHIND"})
    assert findings["COMPACTION_BEHIND"]["cause"] == "node 12: 3 logs due, 5 MiB, the first for 61 minutes"
