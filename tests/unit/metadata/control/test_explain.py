"""The explanation of the changes of a partition, in sentences for operators."""

from __future__ import annotations

from uuid import UUID

import pytest

from metadata.control.configs import Changes, Resource, alter_configs
from metadata.control.explain import Entry, cause_offset, explain, now_text, reason_word, replica_state
from metadata.control.partitions_count import remove_partitions
from metadata.control.reassign import Wanted, alter_reassignments
from metadata.records import (
    LOST,
    NO_OFFSET,
    BrokerChange,
    ConfigScope,
    Partition,
    PartitionChange,
    Reason,
    Record,
    RegisterBroker,
    Replica,
    UnregisterBroker,
)
from tests.unit.metadata.builders import Cluster, directory
from tests.unit.metadata.control.test_election import Case


def chain(cluster: Cluster, topic: str = "t", index: int = 0) -> list[Entry]:
    """Return the chain that `History.chain` finds in a log without control records."""
    found = cluster.image.topic(topic)
    assert found is not None
    partition = found.partition(index)
    assert partition is not None
    entries: list[Entry] = []
    offset = partition.last_offset
    while offset != NO_OFFSET:
        record = cluster.log[offset]
        assert isinstance(record, Partition | PartitionChange)
        cause = cause_offset(record)
        entries.append(Entry(offset, record, None if cause == NO_OFFSET else cluster.log[cause]))
        offset = NO_OFFSET if isinstance(record, Partition) else record.previous_offset
    return entries[::-1]


def told(cluster: Cluster, topic: str = "t", index: int = 0) -> list[tuple[str, str]]:
    entries = chain(cluster, topic, index)
    return list(zip([reason_word(entry.record) for entry in entries], explain(entries), strict=True))


def now(cluster: Cluster, topic: str = "t", index: int = 0) -> str:
    found = cluster.image.topic(topic)
    assert found is not None
    partition = found.partition(index)
    assert partition is not None
    return now_text(cluster.image, found, partition)


def test_a_series_of_failures_is_explained_in_order() -> None:
    case = Case()
    case.fence(1)
    case.fence(2)
    assert now(case.cluster) == (
        "t-0: leader 3 in leader epoch 2; replicas 1, 2, 3; in sync 3; 2 may lead as well. Writes with acks=all are"
        " refused: 1 in sync, min.insync.replicas is 2. Not in sync: 1 (is fenced), 2 (is fenced)"
    )
    case.fence(3)
    assert now(case.cluster) == (
        "t-0: no leader in leader epoch 3; replicas 1, 2, 3; in sync 3; 2 may lead as well. Reads and writes fail"
        " until one of these can lead: 3 (is fenced), 2 (is fenced)"
    )
    case.back(2)
    case.back(1)
    case.join(2, 1)
    log = case.cluster.log
    fences = [at for at, record in enumerate(log) if isinstance(record, BrokerChange) and record.fenced]
    (unfenced,) = [
        cause_offset(entry.record) for entry in chain(case.cluster) if reason_word(entry.record) == "broker_unfenced"
    ]
    assert told(case.cluster) == [
        ("created", "created with replicas 1, 2, 3; leader 1 in leader epoch 0; in sync 1, 2, 3"),
        (
            "broker_fenced",
            "leader 2 in leader epoch 1 (was 1); in sync 2, 3 (was 1, 2, 3), because broker 1 was fenced: it sent"
            f" no heartbeat in time, or requested the fencing (offset {fences[0]})",
        ),
        (
            "broker_fenced",
            "leader 3 in leader epoch 2 (was 2); in sync 3 (was 2, 3); 2 may lead as well, because broker 2 was fenced:"
            f" it sent no heartbeat in time, or requested the fencing (offset {fences[1]})",
        ),
        (
            "broker_fenced",
            "no leader in leader epoch 3 (was 3), because broker 3 was fenced: it sent no heartbeat in time,"
            f" or requested the fencing (offset {fences[2]})",
        ),
        (
            "broker_unfenced",
            "leader 2 in leader epoch 4 (was none); in sync 2 (was 3); 3 may lead as well, because broker 2 was"
            f" unfenced and may lead (offset {unfenced})",
        ),
        (
            "isr_expand",
            "in sync 1, 2 (was 2); no other replica may lead any more, because the leader found that a follower has"
            " caught up",
        ),
    ]
    assert now(case.cluster) == (
        "t-0: leader 2 in leader epoch 4; replicas 1, 2, 3; in sync 1, 2. Not in sync: 3 (is fenced)"
    )


def test_an_incomplete_chain_explains_only_what_it_contains() -> None:
    case = Case()
    case.fence(1)
    case.fence(2)
    late = explain(chain(case.cluster)[2:])
    assert late[0].startswith("leader 3; in sync 3; 2 may lead as well, because broker 2 was fenced")
    nameless = [Entry(entry.offset, entry.record) for entry in chain(case.cluster)]
    causes = [entry.record.cause_offset for entry in nameless[1:] if isinstance(entry.record, PartitionChange)]
    assert [text.partition(", because ")[2] for text in explain(nameless)[1:]] == [
        f"a broker was fenced (offset {offset})" for offset in causes
    ]


def test_the_start_and_the_cancellation_of_a_reassignment_are_explained() -> None:
    cluster = Cluster()
    cluster.start(1, 2, 3, 4)
    topic = cluster.create("t", (1, 2))
    cluster.apply(alter_reassignments(cluster.image, [Wanted("t", 0, (3, 2))]).records)
    assert now(cluster).endswith("replicas 3, 2, 1; in sync 2, 1; adding 3; removing 1. Not in sync: 3 (catches up)")
    partition = cluster.partition(topic)
    assert [replica_state(cluster.image, partition, each) for each in partition.replicas] == ["new", "online", "online"]
    cluster.apply(alter_reassignments(cluster.image, [Wanted("t", 0)]).records)
    texts = told(cluster)
    assert texts[1] == (
        "reassignment",
        "replicas 3, 2, 1 (were 1, 2); adding 3; removing 1, because a reassignment was started",
    )
    assert texts[2][0] == "reassignment_cancelled"
    assert "replicas 2, 1 (were 3, 2, 1)" in texts[2][1]
    assert texts[2][1].endswith("because the reassignment was cancelled")


def test_a_topic_that_continues_under_another_id_is_explained() -> None:
    cluster = Cluster()
    cluster.start(1, 2)
    cluster.create("t", (1, 2), (2, 1))
    cluster.apply(remove_partitions(cluster.image, "t", 1, cluster.new_id).records)
    assert "it continues under another id" in now(cluster)
    cluster.beat(1, want_fence=True)
    assert [text for _, text in told(cluster)][1].startswith(
        "the topic's highest partitions were removed, and it continues under another id; leader 2 in leader epoch 1"
    )
    cluster.beat(2, want_fence=True)
    assert not told(cluster)[2][1].startswith("the topic"), "the renewal is mentioned only once"


def test_a_config_change_is_named_as_the_cause_of_a_partition_change() -> None:
    case = Case()
    case.fence(1, 2)
    change = Changes(Resource(ConfigScope.TOPIC, "t"), (("min.insync.replicas", "1"),))
    case.cluster.apply(alter_configs(case.cluster.image, [change]).records)
    reason, text = told(case.cluster)[-1]
    assert reason == "config_changed"
    assert text.startswith(
        "no other replica may lead any more, because the config min.insync.replicas was set to 1 (offset "
    )
    assert "refused" not in now(case.cluster)


def test_the_state_of_a_replica_that_does_not_serve_is_explained() -> None:
    case = Case()
    case.report(3, LOST)
    assert now(case.cluster).endswith("in sync 1, 2. Not in sync: 3 (has a damaged or missing replica)")
    case.cluster.beat(2, want_shutdown=True, others_applied=0)
    assert "2 (is shutting down)" in now(case.cluster)
    case.fence(2)
    case.fence(1)
    assert now(case.cluster).endswith("until one of these can lead: 1 (is fenced), 2 (is fenced)")
    case.report(1, LOST)
    assert now(case.cluster).endswith("until this one can lead: 2 (is fenced)")
    case.report(2, LOST)
    assert now(case.cluster).endswith("so only an unclean election can help")


def test_the_state_of_each_replica_is_online_offline_or_non_existent() -> None:
    cluster = Cluster()
    cluster.start(1, 2)
    topic = cluster.create("t", (1, 2))
    partition = cluster.partition(topic)

    def states(*replicas: Replica) -> list[str]:
        return [replica_state(cluster.image, partition, replica) for replica in replicas]

    here = Replica(1, directory(1))
    assert states(here, Replica(1, UUID(int=99)), Replica(1, LOST), Replica(1), Replica(9)) == [
        "online",
        "offline",
        "offline",
        "online",
        "non-existent",
    ]
    cluster.beat(1, want_fence=True)
    assert states(here) == ["offline"]


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_is_explained_and_names_the_broker_if_the_cause_is_known(reason: Reason) -> None:
    change = PartitionChange(UUID(int=1), 0, reason, 7, 3, leader=2)
    (without,) = explain([Entry(9, change)])
    assert without.endswith(" (offset 7)")
    assert ", because " in without
    causes: list[Record] = [
        BrokerChange(5, 1, fenced=True),
        BrokerChange(5, 1, fenced=False),
        BrokerChange(5, 1, in_controlled_shutdown=True),
        BrokerChange(5, 1, directories_offline=(UUID(int=4),)),
        RegisterBroker(5, UUID(int=2), (), ()),
        UnregisterBroker(5, 1),
    ]
    for cause in causes:
        (text,) = explain([Entry(9, change, cause)])
        assert text.endswith(" (offset 7)")
    matching = {
        Reason.BROKER_FENCED: causes[0],
        Reason.BROKER_UNFENCED: causes[1],
        Reason.CONTROLLED_SHUTDOWN: causes[2],
        Reason.DIRECTORY_OFFLINE: causes[3],
        Reason.NEW_INCARNATION: causes[4],
        Reason.UNREGISTERED: causes[5],
    }
    if reason in matching:
        assert "broker 5" in explain([Entry(9, change, matching[reason])])[0]


@pytest.mark.parametrize(
    ("previous_epoch", "stop"),
    [(6, "restarted after a clean stop,"), (NO_OFFSET, "restarted without a clean stop before,")],
)
def test_a_restart_is_explained_with_the_kind_of_the_stop_before_it(previous_epoch: int, stop: str) -> None:
    change = PartitionChange(UUID(int=1), 0, Reason.NEW_INCARNATION, 7, 3, leader=2)
    (text,) = explain([Entry(9, change, RegisterBroker(5, UUID(int=2), (), (), previous_broker_epoch=previous_epoch))])
    assert f"broker 5 {stop}" in text
