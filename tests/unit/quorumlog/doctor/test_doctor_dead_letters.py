"""kctl doctor: dead letters of share groups that cannot be written."""

from __future__ import annotations

from tests.unit.quorumlog.doctor.clinic import Clinic, Diagnose


def failing(clinic: Clinic, node_id: int, group: str, topic: str, cause: str, since_ms: int) -> None:
    letters = clinic.described[node_id].dead_letters
    letters.failing_count += 1
    letters.failing.add(group=group, topic=topic, index=0, dead_letter_topic="dlq.x", cause=cause, since_ms=since_ms)


def test_one_finding_lists_unwritable_dead_letters_with_the_oldest_failure_first(
    clinic: Clinic, diagnose: Diagnose
) -> None:
    assert diagnose() == ({}, 0)
    failing(clinic, 11, "mailers", "mails", "dlq.x-0 has no leader", 2_000)
    failing(clinic, 12, "a b", "jobs", "topic dlq.x does not exist", 1_000)
    clinic.described[12].dead_letters.failing_count += 40
    findings, code = diagnose()
    found = findings["DEAD_LETTERS_FAIL"]
    assert (code, found["severity"], found["nodes"]) == (1, "problem", [11, 12])
    assert found["partitions"] == ["jobs-0", "mails-0"]
    assert found["what"] == ("dead letters of 42 share partitions cannot be written; their start offsets do not move")
    assert found["cause"] == (
        'jobs-0 in group "a b": topic dlq.x does not exist; mails-0 in group "mailers": dlq.x-0 has no leader '
        "and 40 more"
    )
    assert "kctl topics create dlq.x --config errors.deadletterqueue.group.enable=true" in found["next"]
    assert found["next"].endswith("kctl configs unset errors.deadletterqueue.topic.name --group 'a b'")
