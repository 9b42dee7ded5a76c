"""kctl doctor's findings about brokers, partitions and reassignments."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quorumlog.client.probe import HANGS
from quorumlog.doctor.diagnosis import diagnose as conclude
from quorumlog.doctor.examine import examine
from tests.unit.quorumlog.doctor.clinic import SILENT, Clinic, Diagnose, address, use

# All is well


# Brokers and partitions


def test_each_consequence_of_a_fenced_broker_is_one_finding(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.topic("t", (11, 12, 13), (12, 13, 11), (13, 11, 12), min_insync_replicas="2")
    clinic.topic("alone", (12,), (13,))
    clinic.fence(12)
    findings, _ = diagnose()
    assert findings.keys() == {"OFFLINE", "FENCED", "UNDER_REPLICATED", "REPLICATION_FACTOR_1"}
    assert len(_all(clinic)) == 4
    assert findings["FENCED"]["cause"] == f"it sends no heartbeats; node 12 at h12:9093: {SILENT}"
    assert findings["FENCED"]["next"].endswith(
        "permanently: start another broker first (2 are up, 3 are needed); doctor then says how to replace it"
    )
    offline = findings["OFFLINE"]
    assert (offline["what"], offline["partitions"]) == ("1 partition without a leader: alone-0", ["alone-0"])
    assert offline["commands"] == [], "the broker may return with the records"
    assert offline["last_resort"] == [
        "kctl reassign generate --topic alone --drain 12 | kctl reassign start --plan -",
        "kctl elect-leaders --unclean --topic alone",
    ]
    under = findings["UNDER_REPLICATED"]
    assert under["what"] == "3 partitions whose replica on broker 12 is not in sync: t-0..2"
    assert "start another broker first, 2 are up, 3 are needed" in under["next"]


def test_without_a_spare_broker_doctor_suggests_empty_directories_for_the_lost_broker(
    clinic: Clinic, diagnose: Diagnose
) -> None:
    clinic.topic("t", (11, 12, 13))
    clinic.fence(12)
    findings, _ = diagnose()
    assert findings["FENCED"]["next"].endswith(
        "if it is lost permanently: start broker 12 with empty data directories, and it copies its replicas from the "
        "others; or start another broker (2 are up, 3 are needed), and doctor says how to replace this one"
    )


def test_with_a_spare_broker_doctor_gives_the_commands_to_move_replicas(
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


def test_doctor_reports_why_a_running_broker_is_fenced(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.fence(12, None)
    clinic.described[12].checks.add(name="broker", ok=False, detail="fenced, broker epoch 7")
    findings, _ = diagnose()
    assert findings["FENCED"]["cause"] == "it runs; broker: fenced, broker epoch 7"
    clinic.fence(12, HANGS)
    assert "restart broker 12, which hangs" in diagnose()[0]["FENCED"]["next"]


def test_doctor_reports_brokers_that_stop_do_not_answer_or_are_not_registered(
    clinic: Clinic, diagnose: Diagnose
) -> None:
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


def test_doctor_names_all_brokers_that_may_lead_an_offline_partition(clinic: Clinic, diagnose: Diagnose) -> None:
    (first, second) = clinic.topic("t", (11, 12, 13), (11, 12))
    clinic.fence(11)
    clinic.fence(12)
    first.leader, first.isr[:], first.elr[:] = -1, [], [11, 12]
    second.leader, second.isr[:] = -1, []
    findings = [f for f in _all(clinic) if f.finding == "OFFLINE"]
    nobody, waiting = findings
    assert nobody.partitions == ("t-1",)
    assert nobody.cause.startswith("no replica is known to hold all acknowledged records")
    assert nobody.last_resort == ("kctl elect-leaders --unclean --topic t --partition 1",), "t-0 may keep its records"
    assert waiting.cause.startswith("only broker 11 and broker 12 may lead: broker 11 is fenced (connection refused")
    assert waiting.next.startswith(
        "start one of broker 11 and broker 12; if all of them are lost permanently: give up the records"
    )
    first.isr[:], first.elr[:] = [12], [11]
    assert _all(clinic)[1].cause.startswith("only broker 11 and broker 12 may lead"), (
        "members of the ELR may lead as well as members of the ISR"
    )


def test_commands_of_last_resort_spare_records_that_another_broker_holds(clinic: Clinic) -> None:
    """Brokers 11 and 12 are down.  If only 11 is lost permanently, the records that only 12 holds must be kept."""
    clinic.topic("t", (11, 13), (12, 13), (11, 13))
    clinic.topic("whole", (11, 13), (11, 13))
    clinic.topic("alone", (11,), (12,))
    for topic in clinic.metadata.topics:
        for partition in topic.partitions:
            partition.leader, partition.isr[:] = -1, [partition.replicas[0].broker_id]
    for broker_id in (11, 12):
        clinic.fence(broker_id)
    found = {(each.nodes, each.partitions): each.last_resort for each in _all(clinic) if each.finding == "OFFLINE"}
    elect = "kctl elect-leaders --unclean --topic"
    drain = "kctl reassign generate --topic alone --drain {} | kctl reassign start --plan -"
    assert found == {
        ((11,), ("alone-0",)): (drain.format(11), f"{elect} alone --partition 0"),
        ((12,), ("alone-1",)): (drain.format(12), f"{elect} alone --partition 1"),
        ((11,), ("t-0", "t-2", "whole-0", "whole-1")): (
            f"{elect} t --partition 0", f"{elect} t --partition 2", f"{elect} whole",
        ),
        ((12,), ("t-1",)): (f"{elect} t --partition 1",),
    }  # fmt: skip


def _all(clinic: Clinic) -> list[Any]:
    """Return all findings; several findings may have the same word."""
    return list(conclude(asyncio.run(examine(clinic.client, map(address, clinic.voters), 10.0))).findings)


def test_a_partition_below_min_isr_is_critical_and_reported_once(clinic: Clinic, diagnose: Diagnose) -> None:
    clinic.topic("t", (11, 12, 13), (12, 11, 13), min_insync_replicas="2")
    clinic.fence(12)
    clinic.fence(13)
    findings, _ = diagnose()
    assert findings["BELOW_MIN_ISR"]["severity"] == "critical"
    assert findings["BELOW_MIN_ISR"]["partitions"] == ["t-0", "t-1"]
    assert findings["BELOW_MIN_ISR"]["next"].startswith("start broker 12 and broker 13; the missing records")
    assert "UNDER_REPLICATED" not in findings


def test_min_isr_of_the_topic_overrides_min_isr_of_the_cluster(clinic: Clinic, diagnose: Diagnose) -> None:
    (partition,) = clinic.topic("t", (11, 12, 13))
    partition.isr[:] = [11]
    assert "BELOW_MIN_ISR" not in diagnose()[0]
    clinic.metadata.configs.add(scope=1, key="min.insync.replicas", value="2")
    assert "BELOW_MIN_ISR" in diagnose()[0]
    clinic.metadata.topics[0].configs.add(key="min.insync.replicas", value="1")
    assert "BELOW_MIN_ISR" not in diagnose()[0]


@pytest.mark.parametrize(("later", "said"), [(40, ", and got none in the last seconds"), (60, "")])
def test_doctor_reports_by_how_many_records_a_replica_lags(
    clinic: Clinic, diagnose: Diagnose, later: int, said: str
) -> None:
    (partition,) = clinic.topic("t", (11, 12, 13))
    partition.isr[:] = [11, 13]
    clinic.replica(11, "t", 0, 90, state="leader")
    clinic.replica(12, "t", 0, 40, later, state="follower")
    findings, _ = diagnose()
    assert findings["UNDER_REPLICATED"]["cause"] == f"broker 12 is up, but behind: by 50 records in t-0{said}"
    assert findings["UNDER_REPLICATED"]["next"].startswith("kctl explain t-0")


def test_doctor_reports_a_failed_directory_as_the_cause_of_under_replication(
    clinic: Clinic, diagnose: Diagnose
) -> None:
    (partition,) = clinic.topic("t", (11, 12, 13))
    partition.isr[:] = [11, 13]
    partition.replica_states[1] = "offline"
    assert "its data directory is offline" in diagnose()[0]["UNDER_REPLICATED"]["cause"]
    clinic.replica(12, "t", 0, 0, state="offline", problem="/disk2: Input/output error")
    assert "/disk2: Input/output error" in diagnose()[0]["UNDER_REPLICATED"]["cause"]


def test_a_lost_replica_is_reported_with_the_problem_that_its_broker_found(clinic: Clinic, diagnose: Diagnose) -> None:
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
    assert findings["OFFLINE"]["cause"].startswith("no replica is known to hold all acknowledged records")


def test_a_sole_replica_that_returned_without_its_records_is_reported_as_lost(
    clinic: Clinic, diagnose: Diagnose
) -> None:
    (partition,) = clinic.topic("t", (12,))
    partition.leader, partition.isr[:] = -1, []
    found = diagnose()[0]["OFFLINE"]
    assert found["what"] == "1 partition lost with the only replica, on broker 12: t-0"
    assert found["cause"].startswith("broker 12 once registered without its records: with another disk")
    assert found["next"].startswith(
        "if its old disk still exists, stop broker 12 and start it with that disk; then, or "
    )
    assert (found["nodes"], found["commands"]) == ([12], [])
    assert found["last_resort"] == ["kctl elect-leaders --unclean --topic t"]


def test_doctor_suggests_repairing_the_disk_of_a_sole_replica(clinic: Clinic, diagnose: Diagnose) -> None:
    """The broker is up, and the disk of the failed directory may still have the records."""
    (partition,) = clinic.topic("t", (12,))
    partition.leader, partition.replica_states[:] = -1, ["offline"]
    clinic.described[12].directories_offline.append("/disk2")
    findings, _ = diagnose()
    offline = findings["OFFLINE"]
    assert offline["cause"] == (
        "only broker 12 may lead: broker 12 is up, but cannot serve t-0: its data directory is offline"
    )
    assert offline["next"].startswith(
        "repair the disk of broker 12, and restart that broker; its log has the error; if "
    )
    assert offline["commands"] == []
    assert findings["DIRECTORY_OFFLINE"]["cause"].endswith("; no other replica serves t-0")


def test_doctor_suggests_starting_one_broker_or_repairing_the_disk_of_another(
    clinic: Clinic, diagnose: Diagnose
) -> None:
    (partition,) = clinic.topic("t", (11, 12, 13))
    partition.leader, partition.isr[:], partition.elr[:] = -1, [11], [12]
    partition.replica_states[:] = ["offline", "offline", "online"]
    clinic.fence(11)
    found = diagnose()[0]["OFFLINE"]
    assert found["next"].startswith("start broker 11, or repair the disk of broker 12, and restart that broker; ")


def test_doctor_expects_an_election_if_an_eligible_broker_is_up(clinic: Clinic, diagnose: Diagnose) -> None:
    (partition,) = clinic.topic("t", (12,))
    partition.leader = -1
    found = diagnose()[0]["OFFLINE"]
    assert found["next"].startswith("an election should follow at once; run doctor again; if ")


def test_doctor_gives_the_command_to_move_a_lost_replica_to_a_spare_broker(
    monkeypatch: pytest.MonkeyPatch, diagnose: Diagnose
) -> None:
    clinic = Clinic(brokers=(11, 12, 13, 14))
    use(clinic, monkeypatch)
    (partition,) = clinic.topic("t", (11, 12, 13))
    clinic.lose(partition, 12)
    assert diagnose()[0]["LOST_REPLICA"]["commands"] == [
        "kctl reassign generate --topic t --drain 12 | kctl reassign start --plan - --wait"
    ]


def test_doctor_does_not_drop_a_lost_replica_while_no_broker_can_hold_a_new_copy(
    clinic: Clinic, diagnose: Diagnose
) -> None:
    for name, row in (("three", (11, 12, 13)), ("two", (11, 12))):
        (partition,) = clinic.topic(name, row)
        clinic.lose(partition, 12)
    clinic.fence(12)
    found = diagnose()[0]["LOST_REPLICA"]
    assert found["commands"] == [
        "kctl reassign generate --topic two --drain 12 | kctl reassign start --plan - --wait",
    ]
    assert "; start another broker, or use broker 12 again, before three can be repaired; docs/" in found["next"]


def test_doctor_does_not_drop_a_lost_replica_while_another_broker_is_down(clinic: Clinic, diagnose: Diagnose) -> None:
    (partition,) = clinic.topic("t", (11, 12, 13))
    clinic.lose(partition, 12)
    clinic.fence(13)
    found = diagnose()[0]["LOST_REPLICA"]
    assert found["commands"] == []
    assert found["next"].startswith("start another broker before t can be repaired; docs/")


def test_topics_keep_their_replication_factors_when_lost_replicas_are_copied_again(
    clinic: Clinic, diagnose: Diagnose
) -> None:
    for name, row in (("three", (11, 12, 13)), ("two", (11, 12))):
        (partition,) = clinic.topic(name, row)
        clinic.lose(partition, 12)
    found = diagnose()[0]["LOST_REPLICA"]
    start = "| kctl reassign start --plan - --wait"
    assert found["commands"] == [
        f"kctl reassign generate --topic two --drain 12 {start}",
        f"kctl reassign generate --topic three --drain 12 --replication-factor 2 {start}",
        f"kctl reassign generate --topic three --replication-factor 3 {start}",
    ]
    assert found["next"].startswith("copy it to another broker, or drop it, then copy it again: kctl reassign")


def test_the_number_of_topics_in_a_command_is_limited(clinic: Clinic, diagnose: Diagnose) -> None:
    for number in range(50):
        clinic.topic(f"t{number:02}", (11,))
    (command,) = diagnose()[0]["REPLICATION_FACTOR_1"]["commands"]
    assert command.count("--topic") == 20
    assert "--topic t19 --replication-factor" in command


# Reassignments


def moving(clinic: Clinic, *, target: int = 13) -> Any:
    """Move t-0 from 11, 12 to 11 and `target`, which has half of the records."""
    (partition,) = clinic.topic("t", (11, 12, target))
    partition.isr[:] = [11, 12]
    partition.adding[:], partition.removing[:] = [target], [12]
    clinic.replica(11, "t", 0, 90, state="leader")
    return partition


def test_a_reassignment_that_makes_progress_is_not_a_finding(clinic: Clinic, diagnose: Diagnose) -> None:
    moving(clinic)
    clinic.replica(13, "t", 0, 40, 50, state="follower")
    assert diagnose() == ({}, 0)


def test_doctor_reports_a_reassignment_without_progress(clinic: Clinic, diagnose: Diagnose) -> None:
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
        "resolve that, and it continues automatically; or go back: kctl reassign cancel --topic t"
    )


def test_the_commands_that_replace_a_lost_broker_also_replace_reassignments_to_it(
    diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller refuses another target for a reassignment in progress, and with it the whole plan."""
    clinic = Clinic(brokers=(11, 12, 13, 14))
    use(clinic, monkeypatch)
    moving(clinic)
    clinic.topic("u", (11, 13))
    clinic.topic("v", (11, 12))
    clinic.fence(13)
    findings, _ = diagnose()
    assert findings["FENCED"]["commands"] == [
        "kctl reassign generate --drain 13 | kctl reassign start --plan - --replace --wait",
        "kctl brokers unregister 13",
    ]
    assert findings["UNDER_REPLICATED"]["commands"] == [
        "kctl reassign generate --topic u | kctl reassign start --plan - --wait"
    ]


def test_topics_that_are_being_reassigned_get_no_advice_to_reassign_them(clinic: Clinic, diagnose: Diagnose) -> None:
    (partition,) = clinic.topic("alone", (11, 12))
    partition.adding[:], partition.removing[:] = [12], [11]
    clinic.topic("tight", (11, 12), min_insync_replicas="2")[0].adding[:] = [12]
    assert diagnose() == ({}, 0)


def test_doctor_cancels_only_the_stuck_reassignments_of_a_topic(clinic: Clinic, diagnose: Diagnose) -> None:
    stuck, going, settled = clinic.topic("t", (11, 12, 13), (11, 12, 14), (11, 12))
    for partition, target in ((stuck, 13), (going, 14)):
        partition.isr[:] = [11, 12]
        partition.adding[:], partition.removing[:] = [target], [12]
    assert not settled.adding
    clinic.topic("u", (11, 12, 13))
    clinic.metadata.topics[1].partitions[0].CopyFrom(stuck)
    clinic.fence(13)
    clinic.replica(14, "t", 1, 40, 50, state="follower")
    found = diagnose()[0]["REASSIGNMENT_STUCK"]
    assert found["partitions"] == ["t-0", "u-0"]
    assert found["commands"] == ["kctl reassign cancel --topic t --partition 0", "kctl reassign cancel --topic u"]
    assert found["next"].endswith("or go back: " + "; ".join(found["commands"]))


def test_doctor_reports_a_reassignment_to_a_fenced_broker_as_stuck(clinic: Clinic, diagnose: Diagnose) -> None:
    moving(clinic)
    clinic.fence(13)
    findings, _ = diagnose()
    assert findings["REASSIGNMENT_STUCK"]["cause"] == f"the target: broker 13 is fenced ({SILENT})"
    assert "UNDER_REPLICATED" not in findings


def test_doctor_reports_a_reassignment_that_lacks_a_leader_or_in_sync_replicas(
    clinic: Clinic, diagnose: Diagnose
) -> None:
    partition = moving(clinic)
    partition.leader = -1
    assert diagnose()[0]["REASSIGNMENT_STUCK"]["cause"] == "it has no leader to copy from"
    partition.leader = 12
    partition.isr[:] = [12, 13]
    clinic.metadata.topics[0].configs.add(key="min.insync.replicas", value="2")
    assert "the old replicas cannot be removed" in diagnose()[0]["REASSIGNMENT_STUCK"]["cause"]


def test_doctor_suggests_recreating_partitions_only_if_enough_brokers_are_up(
    diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kctl reassign generate` refuses to place two replicas on one broker."""
    for brokers, commands in (((11, 12, 13), 0), ((11, 12, 13, 14), 2)):
        clinic = Clinic(brokers=brokers)
        use(clinic, monkeypatch)
        (partition,) = clinic.topic("t", (11, 12))
        clinic.fence(11)
        clinic.fence(12)
        partition.leader, partition.isr[:] = -1, [11, 12]
        found = diagnose()[0]["OFFLINE"]
        assert len(found["last_resort"]) == commands
        step = "if all of them are lost permanently: the records are lost, because they had all replicas; "
        lack = "start another broker (1 is up, 2 are needed), then run doctor again"
        assert f"{step}{lack if not commands else 'these commands recreate'}" in found["next"]


# Topics whose partitions have different replication factors


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Clinic:
    """A cluster with five brokers."""
    clinic = Clinic(brokers=(11, 12, 13, 14, 15))
    use(clinic, monkeypatch)
    return clinic


def test_advice_to_add_replicas_removes_none_of_other_partitions(large: Clinic, diagnose: Diagnose) -> None:
    large.topic("alone", (11,))
    large.topic("mixed", (11,), (11, 12, 13, 14))
    large.topic("tight", (11, 12), (11, 12, 13, 14, 15), min_insync_replicas="2")
    generate, start = "kctl reassign generate --topic", "| kctl reassign start --plan - --wait"
    findings, _ = diagnose()
    assert findings["REPLICATION_FACTOR_1"]["commands"] == [
        f"{generate} alone --replication-factor 3 {start}",
        f"{generate} mixed --replication-factor 4 {start}",
    ]
    assert findings["MIN_ISR_IS_ALL"]["commands"] == [f"{generate} tight --replication-factor 5 {start}"]
    for broker_id in (14, 15):
        large.metadata.configs.add(scope=3, resource=str(broker_id), key="cordoned", value="true")
    findings, _ = diagnose()
    found = findings["REPLICATION_FACTOR_1"]
    assert found["commands"] == [f"{generate} alone --replication-factor 3 {start}"]
    assert found["next"].endswith("; start another broker before mixed can have more replicas")
    assert findings["MIN_ISR_IS_ALL"]["next"].startswith("start another broker, and use 5 replicas")


def test_a_topic_gets_one_value_of_min_insync_replicas_although_its_partitions_differ(
    clinic: Clinic, diagnose: Diagnose
) -> None:
    clinic.topic("t", (11, 12), (11, 12, 13), min_insync_replicas="3")
    found = diagnose()[0]["MIN_ISR_IS_ALL"]
    assert (found["partitions"], len(_all(clinic))) == (["t-0", "t-1"], 1)
    assert found["commands"] == ["kctl configs set min.insync.replicas=1 --topic t"]


def test_commands_that_move_whole_topics_need_brokers_for_all_their_partitions(
    large: Clinic, diagnose: Diagnose
) -> None:
    """Otherwise `kctl reassign generate` would refuse them."""
    large.topic("t", (11, 12), (11, 13, 14))
    (alone, _) = large.topic("alone", (12,), (12, 11, 13))
    large.fence(12)
    alone.leader, alone.isr[:] = -1, [12]
    findings, _ = diagnose()
    assert len(findings["UNDER_REPLICATED"]["commands"]) == 1
    assert len(findings["OFFLINE"]["last_resort"]) == 2
    for broker_id in (14, 15):
        large.metadata.configs.add(scope=3, resource=str(broker_id), key="cordoned", value="true")
    findings, _ = diagnose()
    assert findings["UNDER_REPLICATED"]["commands"] == []
    assert findings["UNDER_REPLICATED"]["next"].endswith("start another broker first, 2 are up, 3 are needed")
    assert findings["OFFLINE"]["last_resort"] == []
    assert findings["OFFLINE"]["next"].endswith("start another broker (2 are up, 3 are needed), then run doctor again")


def test_a_lost_replica_is_not_dropped_if_other_partitions_have_another_replication_factor(
    clinic: Clinic, diagnose: Diagnose
) -> None:
    (partition, _) = clinic.topic("t", (11, 12, 13), (11, 12))
    clinic.lose(partition, 12)
    found = diagnose()[0]["LOST_REPLICA"]
    assert found["commands"] == []
    assert found["next"].startswith("start another broker before t can be repaired; docs/")
