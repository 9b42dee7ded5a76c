"""Groups, with and without members, that change between the classic and the newer protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from broker.core.coordinator import group_requests as g
from broker.core.coordinator.client import Client
from broker.core.coordinator.consumer.group import ConsumerGroup
from broker.core.coordinator.fields import int16, int32, string
from broker.core.coordinator.group import Group
from broker.core.coordinator.subscription import read_assignment, write_assignment
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.core.coordinator.consumer.driver import (
    REBALANCE_MS,
    SESSION_MS,
    ConsumerClient,
    Named,
    coordinator,
    described,
    go_on,
    group_of,
    joined,
    limits,
)
from tests.unit.broker.core.coordinator.driver import DELAY_MS, GROUP, LIMITS, Coordinator, subscription


def cooperative(owned: Named, *topics: str) -> bytes:
    """Return the metadata of a cooperative consumer that keeps its partitions while it joins."""
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(owned):
        by_topic.setdefault(topic, []).append(index)
    parts = [string(topic) + int32(len(indexes)) + b"".join(map(int32, indexes)) for topic, indexes in by_topic.items()]
    names = int32(len(topics)) + b"".join(map(string, topics))
    return int16(1) + names + int32(-1) + int32(len(parts)) + b"".join(parts)


class ClassicClient:
    """A cooperative consumer of the classic protocol.  has: the partitions that it uses."""

    def __init__(
        self,
        home: Coordinator,
        client_id: str,
        topics: tuple[str, ...] = ("sales",),
        *,
        instance_id: str | None = None,
        protocols: Sequence[str] = ("sticky",),
    ) -> None:
        self.home = home
        self.client_id = client_id
        self.topics = topics
        self.instance_id = instance_id
        self.protocols = protocols
        self.member_id = ""
        self.generation = -1
        self.has: Named = set()
        self.joined = g.JoinGroupResponse(KafkaCode.NONE, "")

    def request(self) -> g.JoinGroup:
        metadata = cooperative(self.has, *self.topics)
        return g.JoinGroup(
            GROUP,
            self.member_id,
            self.instance_id,
            Client(self.client_id, "/h"),
            "consumer",
            tuple(g.MemberProtocol(name, metadata) for name in self.protocols),
            10_000,
            REBALANCE_MS,
        )

    def send_join(self) -> int:
        call = self.home.send(self.request())
        answer = self.home.answers.get(call)
        if answer is not None and answer.error.name == "MEMBER_ID_REQUIRED":
            self.member_id = answer.member_id
            return self.send_join()
        return call

    def take_join(self, call: int) -> str:
        joined = self.home.answers[call]
        assert isinstance(joined, g.JoinGroupResponse)
        self.joined = joined
        if joined.error.name == "NONE":
            self.member_id, self.generation = joined.member_id, joined.generation
        return joined.error.name

    def join(self) -> str:
        return self.take_join(self.send_join())

    def sync(self, assignments: Mapping[str, Named] | None = None) -> str:
        sent = tuple(
            g.MemberAssignment(member, write_assignment(by_topic(has))) for member, has in (assignments or {}).items()
        )
        response = self.home.ask(
            g.SyncGroup(GROUP, self.member_id, self.instance_id, self.generation, assignments=sent)
        )
        if response.error.name == "NONE":
            assignment = read_assignment(response.assignment)
            assert assignment is not None
            self.has = {(topic, index) for topic, indexes in assignment.partitions.items() for index in indexes}
        return str(response.error.name)

    def beat(self) -> str:
        request = g.Heartbeat(GROUP, self.member_id, self.instance_id, self.generation)
        return str(self.home.ask(request).error.name)

    def go_on(self) -> None:
        """Do what a consumer does: send a heartbeat, and join again if the group rebalances."""
        if self.beat() != "NONE":
            assert self.join() == "NONE", self.joined
            assert self.sync() in ("NONE", "REBALANCE_IN_PROGRESS")

    def leave(self) -> str:
        (left,) = self.home.ask(g.LeaveGroup(GROUP, (g.LeavingMember(self.member_id),))).members
        return str(left.error.name)

    def commit(self, offset: int) -> str:
        offsets = (g.OffsetToCommit("sales", 0, offset),)
        request = g.OffsetCommit(GROUP, self.member_id, self.instance_id, self.generation, offsets)
        return str(self.home.ask(request).results[0].error.name)


def by_topic(partitions: Named) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        found.setdefault(topic, []).append(index)
    return found


def sales(*partitions: int) -> Named:
    return {("sales", partition) for partition in partitions}


def classic_group(home: Coordinator, *clients: ClassicClient) -> None:
    """Let clients form a stable classic group in which each has its share of four partitions."""
    calls = [client.send_join() for client in clients]
    home.pass_time(DELAY_MS * (len(clients) + 1))
    for client, call in zip(clients, calls, strict=True):
        assert client.take_join(call) == "NONE"
    shares = {client.member_id: sales(*range(place, 4, len(clients))) for place, client in enumerate(clients)}
    leader = next(client for client in clients if client.joined.leader == client.member_id)
    assert leader.sync(shares) == "NONE"
    for client in clients:
        assert client.sync() == "NONE"
    assert home.state() == "Stable"


def go_on_together(home: Coordinator, *clients: ClassicClient | ConsumerClient, rounds: int = 6) -> None:
    for _ in range(rounds):
        for client in clients:
            if isinstance(client, ClassicClient):
                client.go_on()
            else:
                assert client.beat() == "NONE", client.answer
    assert described(home).state == "Stable"


# -- empty groups


def test_an_empty_classic_group_becomes_a_consumer_group() -> None:
    home = coordinator(sales=4)
    old = ClassicClient(home, "old")
    classic_group(home, old)
    old.commit(5)
    old.leave()
    client = ConsumerClient(home, "new")
    assert client.join() == "NONE"
    assert client.has == sales(0, 1, 2, 3)
    assert home.offsets() == {("sales", 0): 5}
    assert described(home.reload()) == described(home)


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_refused_join_leaves_the_classic_group_as_it_is(is_empty: bool) -> None:
    small = g.GroupLimits(batch_max_bytes=20_000, name_max_bytes=1_000, initial_rebalance_delay_ms=0)
    home = coordinator(small, sales=4, huge=3_000)
    old = ClassicClient(home, "old")
    classic_group(home, old)
    if is_empty:
        old.leave()
    before, records = home.describe(), len(home.log)
    assert ConsumerClient(home, "new", ("huge",)).join() == "GROUP_MAX_SIZE_REACHED"
    assert (home.describe(), len(home.log)) == (before, records)
    assert home.reload().describe() == before


def test_an_empty_consumer_group_becomes_a_classic_group() -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "new")
    joined(home, client)
    client.commit(5)
    client.leave()
    classic_group(home, ClassicClient(home, "old"))
    assert home.offsets() == {("sales", 0): 5}
    assert home.reload().describe() == home.describe()


def test_an_unfinished_classic_join_keeps_the_offsets_of_an_empty_consumer_group() -> None:
    """Offsets may be older than the retention time.  They expire only after the group has been empty for that time."""
    home = coordinator(sales=4)
    client = ConsumerClient(home, "new")
    joined(home, client)
    client.commit(5)
    home.wall_ms += 2 * LIMITS.offsets_retention_ms
    client.leave()
    old = ClassicClient(home, "old")
    required = home.ask(old.request())
    assert required.error.name == "MEMBER_ID_REQUIRED"
    home.pass_time(LIMITS.offsets_retention_ms // 2)
    assert home.offsets() == {("sales", 0): 5}
    assert home.reload().offsets() == {("sales", 0): 5}
    home.pass_time(LIMITS.offsets_retention_ms)
    assert home.offsets() == {}
    assert home.machine._groups == {}


@pytest.mark.parametrize("becomes_a_consumer_group", [True, False])
@pytest.mark.parametrize("is_empty", [True, False])
def test_a_group_that_changed_its_protocol_leaves_no_record_when_it_is_deleted(
    becomes_a_consumer_group: bool, is_empty: bool
) -> None:
    """Compaction removes tombstones, so a record of the old kind without a replacement would restore the group."""
    home = coordinator(sales=4)
    old, new = ClassicClient(home, "old"), ConsumerClient(home, "new")
    if becomes_a_consumer_group:
        classic_group(home, old)
        if is_empty:
            old.leave()
        assert new.join() == "NONE"
    else:
        joined(home, new)
        if not is_empty:
            assert old.join() == "NONE"
        new.leave()
        if is_empty:
            classic_group(home, old)
    for client in (old, new):
        client.leave()
    assert home.delete(GROUP) == ["NONE"]
    newest = {record.key: record.value for record in home.log}
    assert set(newest.values()) == {None}


# -- upgrades


def test_a_classic_group_with_members_becomes_a_consumer_group_and_keeps_its_members() -> None:
    home = coordinator(sales=4)
    first, second = ClassicClient(home, "a"), ClassicClient(home, "b")
    classic_group(home, first, second)
    generation = first.generation
    new = ConsumerClient(home, "new")
    assert new.join() == "NONE"
    assert new.has == set()
    assert new.epoch == generation + 1
    assert first.commit(7) == "NONE", "the generation stays valid until the member joins again"
    assert first.beat() == "REBALANCE_IN_PROGRESS"
    go_on_together(home, first, second, new)
    assert first.has | second.has | new.has == sales(0, 1, 2, 3)
    assert sorted(map(len, (first.has, second.has, new.has))) == [1, 1, 2]
    assert [member.is_classic for member in described(home).members].count(True) == 2
    assert described(home.reload()) == described(home)


def test_a_partition_moves_only_after_its_classic_owner_rejoined_without_the_partition() -> None:
    home = coordinator(sales=4)
    old = ClassicClient(home, "a")
    classic_group(home, old)
    new = ConsumerClient(home, "new")
    new.join()
    old.join()
    assert old.generation < new.epoch, "the classic member has not given partitions up yet"
    new.beat()
    assert new.has == set()
    assert old.sync() == "NONE"
    assert len(old.has) == 2
    assert old.beat() == "REBALANCE_IN_PROGRESS"
    new.beat()
    assert new.has == set()
    old.join()
    new.beat()
    assert len(new.has) == 2
    assert not new.has & old.has


def test_an_upgrade_answers_waiting_joins_with_rebalance_in_progress() -> None:
    home = coordinator(sales=4)
    first, second = ClassicClient(home, "a"), ClassicClient(home, "b")
    classic_group(home, first)
    call = second.send_join()
    assert home.waits(call)
    new = ConsumerClient(home, "new")
    assert new.join() == "NONE"
    assert home.answers[call].error.name == "REBALANCE_IN_PROGRESS"
    go_on_together(home, first, second, new)


def test_a_group_can_be_upgraded_before_its_first_generation_is_complete() -> None:
    home = coordinator(sales=4)
    first = ClassicClient(home, "a")
    call = first.send_join()
    new = ConsumerClient(home, "new")
    assert new.join() == "NONE"
    assert home.answers[call].error.name == "REBALANCE_IN_PROGRESS"
    go_on_together(home, first, new)
    assert (len(first.has), len(new.has)) == (2, 2)


def test_a_group_with_members_stays_classic_if_the_policy_forbids_upgrades() -> None:
    home = coordinator(limits(may_upgrade=False), sales=4)
    old = ClassicClient(home, "a")
    classic_group(home, old)
    records = len(home.log)
    new = ConsumerClient(home, "new")
    assert new.join() == "GROUP_ID_NOT_FOUND"
    assert len(home.log) == records
    assert old.beat() == "NONE"
    old.leave()
    assert new.join() == "NONE"


def test_a_group_whose_protocol_type_is_not_consumer_stays_classic() -> None:
    home = coordinator(sales=4)
    calls = home.send(
        g.JoinGroup(GROUP, "", "i", Client("c", "/h"), "connect", (g.MemberProtocol("p", b""),), 10_000, REBALANCE_MS)
    )
    home.pass_time(DELAY_MS * 2)
    assert home.answers[calls].error.name == "NONE"
    new = ConsumerClient(home, "new")
    assert new.join() == "GROUP_ID_NOT_FOUND"
    assert "not a group of consumers" in (new.answer.message or "")


def test_a_group_whose_assignor_stores_user_data_stays_classic() -> None:
    home = coordinator(sales=4)
    old = ClassicClient(home, "a")
    old.take_join(_after_delay(home, old.send_join()))
    data = write_assignment({})[:-4] + int32(1) + b"x"
    home.ask(
        g.SyncGroup(GROUP, old.member_id, None, old.generation, assignments=(g.MemberAssignment(old.member_id, data),))
    )
    assert ConsumerClient(home, "new").join() == "GROUP_ID_NOT_FOUND"
    assert home.state() == "Stable"


def _after_delay(home: Coordinator, call: int) -> int:
    home.pass_time(DELAY_MS * 2)
    return call


def test_a_partition_that_a_faulty_assignor_gave_to_two_members_has_one_owner_after_an_upgrade() -> None:
    home = coordinator(sales=4)
    first, second = ClassicClient(home, "a"), ClassicClient(home, "b")
    calls = [client.send_join() for client in (first, second)]
    home.pass_time(DELAY_MS * 3)
    for client, call in zip((first, second), calls, strict=True):
        client.take_join(call)
    leader = first if first.joined.leader == first.member_id else second
    leader.sync({first.member_id: sales(0, 1), second.member_id: sales(1, 2)})
    new = ConsumerClient(home, "new")
    assert new.join() == "NONE"
    go_on_together(home, first, second, new)
    assert len(first.has) + len(second.has) + len(new.has) == 4


# -- classic members of a consumer group


def test_a_classic_member_joins_a_consumer_group_at_once() -> None:
    home = coordinator(sales=4)
    new, old = ConsumerClient(home, "new"), ClassicClient(home, "a")
    joined(home, new)
    assert old.join() == "NONE"
    assert (old.joined.leader, old.joined.protocol_type, old.joined.protocol) == ("", "consumer", "sticky")
    assert old.generation == 2
    assert old.sync() == "NONE"
    assert old.has == set()
    go_on_together(home, new, old)
    assert (len(new.has), len(old.has)) == (2, 2)


def test_an_eager_classic_member_gives_up_all_its_partitions_when_it_rejoins() -> None:
    home = coordinator(sales=4)
    new, old = ConsumerClient(home, "new"), ClassicClient(home, "a")
    joined(home, new)
    old.join()
    go_on_together(home, new, old)
    old.has = set()
    third = ConsumerClient(home, "third")
    third.join()
    old.join()
    assert old.generation == group_of(home).epoch


def test_requests_of_classic_members_with_a_wrong_generation_or_member_id_are_refused() -> None:
    home = coordinator(sales=4)
    new, old = ConsumerClient(home, "new"), ClassicClient(home, "a")
    joined(home, new)
    old.join()
    old.generation += 1
    assert old.beat() == "ILLEGAL_GENERATION"
    assert old.sync() == "ILLEGAL_GENERATION"
    assert old.commit(5) == "ILLEGAL_GENERATION"
    old.generation -= 1
    old.member_id = "new"
    assert (old.beat(), old.sync(), old.leave()) == ("UNKNOWN_MEMBER_ID",) * 3
    old.member_id = "nobody"
    assert (old.beat(), old.sync(), old.leave(), old.join()) == ("UNKNOWN_MEMBER_ID",) * 4


def test_classic_members_must_share_an_assignor() -> None:
    home = coordinator(sales=4)
    joined(home, ConsumerClient(home, "new"))
    assert ClassicClient(home, "a", protocols=("sticky", "range")).join() == "NONE"
    assert ClassicClient(home, "b", protocols=("range",)).join() == "NONE"
    assert ClassicClient(home, "c", protocols=("sticky",)).join() == "INCONSISTENT_GROUP_PROTOCOL"


def test_a_join_whose_metadata_is_not_a_subscription_is_refused() -> None:
    home = coordinator(sales=4)
    joined(home, ConsumerClient(home, "new"))
    protocols = (g.MemberProtocol("range", b"\xff"),)
    join = g.JoinGroup(GROUP, "", None, Client("c", "/h"), "consumer", protocols, 10_000, REBALANCE_MS)
    assert home.ask(join).error.name == "INCONSISTENT_GROUP_PROTOCOL"


def test_a_join_whose_metadata_is_too_large_for_a_step_is_refused() -> None:
    home = coordinator(sales=4)
    joined(home, ConsumerClient(home, "new"))
    protocols = (g.MemberProtocol("range", subscription("sales") + bytes(130_000)),)
    join = g.JoinGroup(GROUP, "", None, Client("c", "/h"), "consumer", protocols, 10_000, REBALANCE_MS)
    assert home.ask(join).error.name == "GROUP_MAX_SIZE_REACHED"


def test_a_classic_consumer_with_the_first_version_of_subscriptions_can_join() -> None:
    home = coordinator(sales=4)
    new = ConsumerClient(home, "new")
    joined(home, new)
    protocols = (g.MemberProtocol("range", subscription("sales")),)
    join = g.JoinGroup(GROUP, "", None, Client("c", "/h"), "consumer", protocols, 10_000, REBALANCE_MS)
    assert home.ask(join).error.name == "NONE"


def test_a_classic_member_that_never_sends_sync_group_is_removed() -> None:
    home = coordinator(sales=4)
    new, old = ConsumerClient(home, "new"), ClassicClient(home, "a")
    joined(home, new)
    old.join()
    for _ in range(REBALANCE_MS // 5_000):
        assert old.beat() in ("NONE", "REBALANCE_IN_PROGRESS")
        new.beat()
        home.pass_time(5_000)
    assert old.beat() == "UNKNOWN_MEMBER_ID"


def test_a_classic_member_that_does_not_join_again_is_removed() -> None:
    home = coordinator(sales=4)
    new, old, third = ConsumerClient(home, "new"), ClassicClient(home, "a"), ConsumerClient(home, "third")
    joined(home, new)
    old.join()
    go_on_together(home, new, old)
    third.join()
    for _ in range(REBALANCE_MS // 5_000):
        assert old.beat() == "REBALANCE_IN_PROGRESS"
        new.beat()
        third.beat()
        home.pass_time(5_000)
    assert old.beat() == "UNKNOWN_MEMBER_ID"


def test_a_classic_member_has_its_own_session_timeout() -> None:
    home = coordinator(sales=4)
    new, old = ConsumerClient(home, "new"), ClassicClient(home, "a")
    joined(home, new)
    old.join()
    go_on_together(home, new, old)
    home.pass_time(9_999)
    assert len(described(home).members) == 2
    home.pass_time(1)
    assert len(described(home).members) == 1


# -- downgrades


def test_a_group_becomes_classic_when_its_last_member_of_the_newer_protocol_leaves() -> None:
    home = coordinator(sales=4)
    new, first, second = ConsumerClient(home, "new"), ClassicClient(home, "a"), ClassicClient(home, "b")
    joined(home, new)
    first.join()
    second.join()
    go_on_together(home, new, first, second)
    first.commit(5)
    new.leave()
    assert isinstance(home.machine._groups[GROUP], Group)
    assert home.state() == "PreparingRebalance"
    assert first.beat() == "REBALANCE_IN_PROGRESS"
    calls = [first.send_join(), second.send_join()]
    assert [client.take_join(call) for client, call in zip((first, second), calls, strict=True)] == ["NONE"] * 2
    assert first.joined.leader in (first.member_id, second.member_id)
    assert home.offsets() == {("sales", 0): 5}


def test_a_new_coordinator_loads_a_downgraded_group_as_a_stable_classic_group() -> None:
    home = coordinator(sales=4)
    new, first = ConsumerClient(home, "new"), ClassicClient(home, "a")
    joined(home, new)
    first.join()
    go_on_together(home, new, first)
    new.leave()
    after = home.reload()
    assert after.state() == "Stable"
    assert [member.member_id for member in after.describe().members] == [first.member_id]
    last = {record.key: record.value for record in home.log}
    assert sum(value is not None for value in last.values()) == 1, "only the record of the classic group is left"


def test_a_group_becomes_classic_when_the_session_of_its_last_member_of_the_newer_protocol_ends() -> None:
    home = coordinator(sales=4)
    new, old = ConsumerClient(home, "new"), ClassicClient(home, "a")
    joined(home, new)
    old.join()
    go_on_together(home, new, old)
    for _ in range(SESSION_MS // 5_000):
        home.pass_time(5_000)
        old.beat()
    assert isinstance(home.machine._groups[GROUP], Group)


def test_a_consumer_group_does_not_become_classic_if_the_policy_forbids_downgrades() -> None:
    home = coordinator(limits(may_downgrade=False), sales=4)
    new, old = ConsumerClient(home, "new"), ClassicClient(home, "a")
    joined(home, new)
    old.join()
    go_on_together(home, new, old)
    new.leave()
    assert isinstance(home.machine._groups[GROUP], ConsumerGroup)
    go_on_together(home, old)
    assert old.has == sales(0, 1, 2, 3)


def test_a_static_member_changes_its_protocol_and_keeps_its_partitions() -> None:
    home = coordinator(sales=4)
    other, new = ConsumerClient(home, "other"), ConsumerClient(home, "new", instance_id="i")
    joined(home, other, new)
    had = new.has
    old = ClassicClient(home, "a", instance_id="i")
    assert old.join() == "NONE"
    assert old.sync() == "NONE"
    assert old.has == had
    assert new.beat() == "FENCED_INSTANCE_ID"
    again = ConsumerClient(home, "again", instance_id="i")
    assert again.join() == "NONE"
    assert again.has == had
    assert old.beat() == "FENCED_INSTANCE_ID"


def test_a_rolling_downgrade_of_static_members_ends_in_a_classic_group() -> None:
    home = coordinator(sales=4)
    news = [ConsumerClient(home, f"new{index}", instance_id=f"i{index}") for index in range(2)]
    joined(home, *news)
    olds = [ClassicClient(home, f"old{index}", instance_id=f"i{index}") for index in range(2)]
    for old in olds:
        assert old.join() == "NONE"
    assert isinstance(home.machine._groups[GROUP], Group)
    assert home.state() == "PreparingRebalance"


def test_a_rolling_upgrade_distributes_all_partitions_over_the_new_members() -> None:
    home = coordinator(sales=4)
    olds = [ClassicClient(home, "a"), ClassicClient(home, "b")]
    classic_group(home, *olds)
    news = [ConsumerClient(home, "n1"), ConsumerClient(home, "n2")]
    news[0].join()
    go_on_together(home, *olds, news[0])
    olds[0].leave()
    news[1].join()
    go_on_together(home, olds[1], *news)
    olds[1].leave()
    go_on(*news)
    assert [len(new.has) for new in news] == [2, 2]
    assert news[0].has | news[1].has == sales(0, 1, 2, 3)
    assert described(home).state == "Stable"
