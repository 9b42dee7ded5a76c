"""Groups of the newer protocol: joining, moving partitions, epochs, refusals, administrators and the log."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.coordinator import group_requests as g
from broker.core.coordinator.consumer.requests import ConsumerLimits
from broker.core.coordinator.machine import Record
from tests.unit.broker.core.coordinator.consumer.driver import (
    REBALANCE_MS,
    ConsumerClient,
    coordinator,
    described,
    go_on,
    group_of,
    joined,
    limits,
    sales,
)
from tests.unit.broker.core.coordinator.driver import GROUP, Coordinator

# -- joining, and moving partitions


def test_the_first_member_gets_all_partitions_with_its_first_heartbeat() -> None:
    home = coordinator(sales=3)
    client = ConsumerClient(home, "m1")
    assert client.join() == "NONE"
    assert client.has == sales(0, 1, 2)
    assert client.epoch == 1
    assert client.answer.heartbeat_interval_ms == 5_000
    assert described(home).state == "Stable"


def test_a_partition_moves_only_after_its_owner_gave_it_up() -> None:
    home = coordinator(sales=4)
    first, second = ConsumerClient(home, "m1"), ConsumerClient(home, "m2")
    joined(home, first)
    second.join()
    assert second.has == set()
    assert second.epoch == 2
    first.silent_beat()
    assert first.has == sales(0, 1)
    assert first.epoch == 1, "the epoch stays until the partitions are given up"
    second.beat()
    assert second.has == set(), "the first member has not confirmed that it gave them up"
    first.beat()
    assert first.epoch == 2
    second.beat()
    assert second.has == sales(2, 3)
    assert described(home).state == "Stable"


def test_a_heartbeat_that_changes_nothing_has_no_assignment_and_no_record() -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1")
    joined(home, client)
    records = len(home.log)
    assert client.silent_beat() == "NONE"
    assert client.answer.assignment is None
    assert len(home.log) == records


def test_a_full_heartbeat_is_answered_with_the_assignment() -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1")
    joined(home, client)
    client.beat(topics=("sales",), rebalance_timeout_ms=REBALANCE_MS)
    assert client.answer.assignment is not None


def test_a_member_that_leaves_frees_its_partitions_at_once() -> None:
    home = coordinator(sales=4)
    first, second = ConsumerClient(home, "m1"), ConsumerClient(home, "m2")
    joined(home, first, second)
    assert first.leave() == "NONE"
    assert first.answer.epoch == -1
    second.beat()
    assert second.has == sales(0, 1, 2, 3)


def test_a_member_that_changes_its_subscription_gets_the_partitions_of_the_new_topic() -> None:
    home = coordinator(sales=2, other=2)
    client = ConsumerClient(home, "m1")
    joined(home, client)
    client.subscribe("other")
    assert client.has == set()
    client.beat()
    assert client.has == {("other", 0), ("other", 1)}


def test_the_epoch_of_an_empty_group_continues_when_a_member_joins_again() -> None:
    home = coordinator(sales=2)
    client = ConsumerClient(home, "m1")
    joined(home, client)
    client.leave()
    assert described(home).state == "Empty"
    client.join()
    assert client.epoch == 3


def test_a_group_uses_the_assignor_that_all_its_members_name() -> None:
    home = coordinator(sales=4, other=4)
    both = ("sales", "other")
    clients = [ConsumerClient(home, f"m{index}", both, assignor="range") for index in range(2)]
    joined(home, *clients)
    assert described(home).assignor == "range"
    assert [client.has for client in clients] == [
        {("sales", 0), ("sales", 1), ("other", 0), ("other", 1)},
        {("sales", 2), ("sales", 3), ("other", 2), ("other", 3)},
    ]


def test_a_group_uses_the_assignor_that_most_of_its_members_name() -> None:
    home = coordinator(sales=2, other=2)
    both = ("sales", "other")
    used = []
    clients = []
    for number, assignor in enumerate(("uniform", "range", "range", None), 1):  # among equals: the first in the config
        clients.append(ConsumerClient(home, f"m{number}", both, assignor=assignor))
        assert clients[-1].join() == "NONE"
        go_on(*clients)
        used.append(described(home).assignor)
    assert used == ["uniform", "uniform", "range", "range"]
    assert [len(client.has) for client in clients] == [2, 2, 0, 0]
    clients[2].leave()
    go_on(*clients[:2], clients[3])
    assert described(home).assignor == "uniform"
    assert sorted(len(client.has) for client in (*clients[:2], clients[3])) == [1, 1, 2]


def test_a_member_without_topics_gets_no_partitions() -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1", ())
    joined(home, client)
    assert client.has == set()
    assert client.epoch == 1


# -- epochs


def test_a_heartbeat_with_the_previous_epoch_is_accepted_after_a_lost_answer() -> None:
    home = coordinator(sales=4)
    first, second = ConsumerClient(home, "m1"), ConsumerClient(home, "m2")
    joined(home, first)
    second.join()
    first.silent_beat()
    before = first.epoch
    first.beat()
    first.epoch = before
    assert first.beat() == "NONE"
    assert first.epoch == 2


@pytest.mark.parametrize("offset", [-2, 1])
def test_a_heartbeat_with_an_older_or_a_future_epoch_is_fenced(offset: int) -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1")
    joined(home, client)
    for topic in ("sales", "other", "sales"):
        client.subscribe(topic)
        client.beat()
    client.epoch += offset
    assert client.beat() == "FENCED_MEMBER_EPOCH"
    assert "must join again" in (client.answer.message or "")
    client.epoch = 0
    assert client.join() == "NONE"
    assert client.has == sales(0, 1, 2, 3)


def test_a_heartbeat_with_the_previous_epoch_is_fenced_if_it_names_other_or_no_partitions() -> None:
    home = coordinator(sales=4)
    first, second = ConsumerClient(home, "m1"), ConsumerClient(home, "m2")
    joined(home, first)
    owned = first.owned
    second.join()
    first.silent_beat()
    before = first.epoch
    first.beat()
    first.epoch = before
    assert first.beat(owned=owned) == "FENCED_MEMBER_EPOCH"
    assert first.silent_beat() == "FENCED_MEMBER_EPOCH"


def test_requests_of_an_unknown_member_are_refused() -> None:
    home = coordinator(sales=4)
    joined(home, ConsumerClient(home, "m1"))
    stranger = ConsumerClient(home, "m2")
    stranger.epoch = 1
    assert stranger.beat() == "UNKNOWN_MEMBER_ID"
    assert stranger.leave() == "UNKNOWN_MEMBER_ID"


def test_a_heartbeat_for_a_missing_group_makes_no_group() -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1")
    client.epoch = 3
    assert client.beat() == "GROUP_ID_NOT_FOUND"
    assert home.machine._groups == {}
    assert home.log == []


# -- requests that are refused


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group": ""}, "INVALID_REQUEST"),
        ({"group": "g" * 1_025}, "INVALID_GROUP_ID"),
        ({"group": "g" * 40_000}, "INVALID_GROUP_ID"),
        ({"member_id": ""}, "INVALID_REQUEST"),
        ({"instance_id": " "}, "INVALID_REQUEST"),
        ({"rack_id": ""}, "INVALID_REQUEST"),
        ({"rebalance_timeout_ms": -1}, "INVALID_REQUEST"),
        ({"rebalance_timeout_ms": -2}, "INVALID_REQUEST"),
        ({"owned": None}, "INVALID_REQUEST"),
        ({"topics": None}, "INVALID_REQUEST"),
        ({"epoch": -3}, "INVALID_REQUEST"),
        ({"epoch": -2}, "INVALID_REQUEST"),
        ({"member_id": "m" * 1_025}, "INVALID_REQUEST"),
        ({"topics": tuple(map(str, range(10_001)))}, "INVALID_REQUEST"),
        ({"topics": tuple(f"{index:01000}" for index in range(126))}, "INVALID_REQUEST"),
        ({"assignor": "mine"}, "UNSUPPORTED_ASSIGNOR"),
        ({"regex": "("}, "INVALID_REGULAR_EXPRESSION"),
    ],
)
def test_an_invalid_join_is_refused_and_creates_no_group(fields: dict[str, Any], error: str) -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1")
    assert client.join(**fields) == error
    assert client.answer.message
    assert home.log == []
    assert home.machine._groups == {}


def test_a_group_at_its_maximum_size_refuses_new_members() -> None:
    home = coordinator(limits(members_max=2), sales=4)
    joined(home, ConsumerClient(home, "m1"), ConsumerClient(home, "m2"))
    records = len(home.log)
    late = ConsumerClient(home, "m3")
    assert late.join() == "GROUP_MAX_SIZE_REACHED"
    assert len(home.log) == records


def test_a_group_refuses_new_members_when_its_targets_would_exceed_a_batch() -> None:
    small = g.GroupLimits(batch_max_bytes=10_000, name_max_bytes=1_000)
    home = coordinator(small, sales=10)
    errors = [ConsumerClient(home, f"member-{index}").join() for index in range(100)]
    assert errors[0] == "NONE"
    assert errors[-1] == "GROUP_MAX_SIZE_REACHED"
    assert len(group_of(home).members) == errors.count("NONE")


def test_the_size_limit_of_targets_counts_the_bytes_of_member_ids() -> None:
    no_wait = ConsumerLimits(assignment_interval_ms=0)
    home = coordinator(g.GroupLimits(batch_max_bytes=10_000, name_max_bytes=1_000, consumer=no_wait), sales=10)
    clients = [ConsumerClient(home, "\u20ac" * 330 + str(index)) for index in range(10)]
    accepted = [client for client in clients if client.join() == "NONE"]
    assert 1 < len(accepted) < 10
    home.change_topics(sales=30)  # changes the target of each member
    go_on(*accepted)
    assert described(home).state == "Stable"
    assert len({place for client in accepted for place in client.has}) == 30


def test_the_size_limit_of_targets_counts_the_id_of_the_joining_member() -> None:
    no_wait = ConsumerLimits(assignment_interval_ms=0)
    home = coordinator(g.GroupLimits(batch_max_bytes=10_000, name_max_bytes=1_000, consumer=no_wait), sales=850)
    assert ConsumerClient(home, "m" * 1_000).join() == "GROUP_MAX_SIZE_REACHED"
    first = ConsumerClient(home, "m1")
    assert first.join() == "NONE"
    assert ConsumerClient(home, "m" * 1_000).join() == "GROUP_MAX_SIZE_REACHED"
    assert described(home).state == "Stable"
    assert len(first.has) == 850


def test_a_long_member_id_does_not_enlarge_the_estimated_targets_of_other_members() -> None:
    no_wait = ConsumerLimits(assignment_interval_ms=0)
    home = coordinator(g.GroupLimits(batch_max_bytes=10_000, name_max_bytes=1_000, consumer=no_wait), sales=10)
    clients = [ConsumerClient(home, member_id) for member_id in ("m" * 1_000, *(f"m{index}" for index in range(15)))]
    assert [client.join() for client in clients] == ["NONE"] * 16
    go_on(*clients)
    assert described(home).state == "Stable"


def test_the_coordinator_generates_a_missing_member_id_in_the_first_request_version() -> None:
    home = coordinator(sales=4)
    old = ConsumerClient(home, "")
    assert old.join(may_lack_id=True) == "NONE"
    assert old.answer.member_id
    assert old.has == sales(0, 1, 2, 3)


# -- administrators


def test_groups_are_listed_by_type_and_state() -> None:
    home = coordinator(sales=4)
    joined(home, ConsumerClient(home, "m1"))
    home.commit(g.OffsetToCommit("sales", 0, 5), group="simple")

    def listed(**filters: frozenset[str]) -> list[tuple[str, ...]]:
        return [tuple(group) for group in home.ask(g.ListGroups(**filters)).groups]

    assert listed(types=frozenset({"Consumer"})) == [(GROUP, "consumer", "Stable", "consumer")]
    assert listed(types=frozenset({"classic"})) == [("simple", "", "Empty", "classic")]
    assert [name for name, *_ in listed(states=frozenset({"stable"}))] == [GROUP]
    assert len(listed()) == 2


def test_a_group_is_described_only_by_the_request_of_its_own_type() -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1", rebalance := ("sales",))
    joined(home, client)
    description = described(home)
    (member,) = description.members
    assert (description.epoch, description.assignment_epoch, description.assignor) == (1, 1, "uniform")
    assert (member.epoch, member.client_id, member.topics, member.is_classic) == (1, "m1", rebalance, False)
    assert [(each.topic, each.partitions) for each in member.assignment] == [("sales", (0, 1, 2, 3))]
    assert member.assignment == member.target
    classic = home.describe()
    assert (classic.error.name, classic.state) == ("GROUP_ID_NOT_FOUND", "Dead")
    assert "not a classic group" in (classic.error_message or "")
    home.commit(g.OffsetToCommit("sales", 0, 5), group="simple")
    assert described(home, "simple").error.name == "GROUP_ID_NOT_FOUND"


def test_a_group_is_deleted_only_when_empty_and_leaves_only_tombstones() -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1", (), regex="sal.*")
    joined(home, client)
    client.commit(5)
    assert home.delete(GROUP) == ["NON_EMPTY_GROUP"]
    client.leave()
    assert home.delete(GROUP) == ["NONE"]
    last = {record.key: record.value for record in home.log}
    assert set(last.values()) == {None}
    assert client.join() == "NONE"


def test_a_deletion_in_progress_refuses_members() -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1")
    joined(home, client)
    client.leave()
    for start in range(10):
        home.commit(*[g.OffsetToCommit(f"topic-{index}", start, 5) for index in range(300)])
    assert home.waits(home.send(g.DeleteGroups((GROUP,))))
    assert client.join() == "COORDINATOR_NOT_AVAILABLE"
    assert described(home).error.name == "GROUP_ID_NOT_FOUND"


# -- the log


def test_a_compacted_log_gives_the_same_group() -> None:
    home = coordinator(sales=4)
    clients = [ConsumerClient(home, f"m{index}", instance_id=f"i{index}") for index in range(3)]
    joined(home, *clients)
    clients[0].leave()
    clients[1].subscribe("sales", "other")
    go_on(*clients[1:])
    last = {record.key: position for position, record in enumerate(home.log)}
    compacted = [record for position, record in enumerate(home.log) if last[record.key] == position and record.value]
    after = Coordinator(records=compacted, cluster=home.cluster)
    assert described(after) == described(home)


def test_partition_metadata_records_of_older_releases_are_skipped() -> None:
    home = coordinator(sales=4)
    home.machine.replay(Record(b"\0\4\0\6orders", b"\0\0 whatever"))
    assert home.machine._groups == {}
    assert home.machine.unknown_records == 0
