"""The pure core of a group member: joins, assignments, revocations, heartbeats, and refusals of every kind."""

from __future__ import annotations

from typing import TypeVar

import pytest

from quorumlog.client import membership as m
from quorumlog.client.group_protocol import (
    NO_GENERATION,
    Subscription,
    assigned_partitions,
    decode_subscription,
    encode_subscription,
)
from quorumlog.client.membership import Membership, Phase
from quorumlog.client.messages import TopicPartition
from quorumlog.errors import ClusterError

T = TypeVar("T")
HEARTBEAT_S = 3.0
SESSION_S = 10.0


def partitions(*indexes: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition("t", index) for index in indexes)


def refused(code: str, retriable: bool = False) -> ClusterError:
    return ClusterError(code, code.lower(), retriable=retriable)


class Member:
    """Drives one core; each method returns the effects."""

    def __init__(self, *assignors: str, instance_id: str | None = None) -> None:
        self.core = Membership(
            assignors or ("range",), heartbeat_s=HEARTBEAT_S, session_s=SESSION_S, instance_id=instance_id
        )
        self.now = 100.0
        self.round = 0

    def step(self, event: m.Event) -> list[m.Effect]:
        effects = self.core.step(event, self.now)
        self.round = max([self.round, *(effect.round for effect in effects if isinstance(effect, m.Join))])
        return effects

    def subscribe(self, topic: str = "t", count: int = 4) -> list[m.Effect]:
        return self.step(m.Subscribe(frozenset((topic,)), {topic: count}))

    def joined(self, generation: int = 1, assignor: str = "range", **fields: object) -> list[m.Effect]:
        return self.step(m.Joined(self.round, None, "me", generation, assignor, **fields))  # type: ignore[arg-type]

    def synced(self, *indexes: int) -> list[m.Effect]:
        return self.step(m.Synced(self.round, None, partitions(*indexes)))

    def settle(self, *indexes: int, generation: int = 1) -> list[m.Effect]:
        """Join a generation as a follower, and get partitions."""
        self.joined(generation)
        return self.synced(*indexes)

    def beaten(self, error: ClusterError | None = None) -> list[m.Effect]:
        return self.step(m.Beaten(self.core.generation, error))

    def tick(self) -> list[m.Effect]:
        assert self.core.deadline is not None
        self.now = self.core.deadline
        return self.step(m.Tick())


def stable(*assignors: str) -> Member:
    member = Member(*assignors)
    member.subscribe()
    assert member.settle(0, 1) == [m.Assign(partitions(0, 1))]
    return member


def only(effects: list[m.Effect], kind: type[T]) -> T:
    (effect,) = effects
    assert isinstance(effect, kind), effects
    return effect


def test_a_follower_joins_syncs_and_gets_its_partitions() -> None:
    member = Member()
    join = only(member.subscribe(), m.Join)
    assert join.member_id == ""
    ((name, metadata),) = join.protocols
    assert (name, decode_subscription(metadata, "range")) == ("range", Subscription(frozenset("t")))
    assert member.step(m.Joined(join.round, refused("MEMBER_ID_REQUIRED"), "me"))[0] == m.Join(
        join.round + 1, "me", join.protocols
    )
    assert member.joined(7) == [m.Sync(member.round, "me", 7, "range")]
    assert member.synced(2, 3) == [m.Assign(partitions(2, 3))]
    assert (member.core.phase, member.core.owned) == (Phase.STABLE, partitions(2, 3))


def test_the_leader_assigns_partitions_to_all_members() -> None:
    member = Member("roundrobin")
    member.subscribe()
    wish = encode_subscription(Subscription(frozenset("t")), "roundrobin")
    garbage = m.JoinedMember("broken", None, b"\x00")
    everyone = (m.JoinedMember("me", None, wish), m.JoinedMember("you", None, wish), garbage)
    count = only(member.joined(1, "roundrobin", is_leader=True, members=everyone), m.Count)
    assert count.topics == {"t"}
    sync = only(member.step(m.Counted(count.round, {"t": 3})), m.Sync)
    assert {name: assigned_partitions(data) for name, data in sync.assignments} == {
        "me": (("t", (0, 2)),), "you": (("t", (1,)),), "broken": (),
    }  # fmt: skip


def test_only_the_leader_asks_for_a_rebalance_when_partitions_are_added() -> None:
    follower = stable()
    assert follower.subscribe(count=5) == []
    leader = Member()
    leader.subscribe()
    wish = encode_subscription(Subscription(frozenset("t")), "range")
    leader.joined(1, is_leader=True, members=(m.JoinedMember("me", None, wish),))
    leader.step(m.Counted(leader.round, {"t": 4}))
    leader.synced(0, 1, 2, 3)
    assert leader.subscribe(count=4) == []
    assert only(leader.subscribe(count=5), m.Revoke).partitions == partitions(0, 1, 2, 3)


@pytest.mark.parametrize("counted", [{"t": 5}, {"t": 3}, {}])
def test_partitions_that_the_leader_counts_itself_cause_no_further_rebalance(counted: dict[str, int]) -> None:
    """The partitions changed after the leader's last look-up.  Its next look-up comes long after this rebalance."""
    leader = Member()
    leader.subscribe(count=4)
    wish = encode_subscription(Subscription(frozenset("t")), "range")
    leader.joined(1, is_leader=True, members=(m.JoinedMember("me", None, wish),))
    leader.step(m.Counted(leader.round, counted))
    assert leader.synced(0) == [m.Assign(partitions(0))]
    assert leader.subscribe(count=counted.get("t", 0)) == []


def test_the_leader_asks_for_a_rebalance_when_a_topic_of_another_member_gets_partitions() -> None:
    leader = Member()
    leader.subscribe()
    mine, other = (encode_subscription(Subscription(frozenset(topic)), "range") for topic in "tu")
    members = (m.JoinedMember("me", None, mine), m.JoinedMember("you", None, other))
    leader.joined(1, is_leader=True, members=members)
    assert leader.core.others_topics() == {"u"}
    leader.step(m.Counted(leader.round, {"t": 4}))
    leader.synced(0, 1, 2, 3)
    assert leader.subscribe(count=4) == [], "the other topic was not looked up"
    assert leader.step(m.Subscribe(frozenset("t"), {"t": 4, "u": 0}, frozenset("u"))) == []
    revoke = only(leader.step(m.Subscribe(frozenset("t"), {"t": 4, "u": 1}, frozenset("u"))), m.Revoke)
    assert revoke.partitions == partitions(0, 1, 2, 3)


def test_a_changed_subscription_causes_a_rebalance() -> None:
    assert only(stable().subscribe("u"), m.Revoke).partitions == partitions(0, 1)


def test_an_eager_member_revokes_all_partitions_before_it_joins() -> None:
    member = stable()
    revoke = only(member.beaten(refused("REBALANCE_IN_PROGRESS")), m.Revoke)
    assert (revoke.partitions, revoke.is_lost) == (partitions(0, 1), False)
    assert isinstance(member.tick()[0], m.Heartbeat), "heartbeats continue while the user finishes"
    assert member.beaten(refused("REBALANCE_IN_PROGRESS")) == []
    assert member.step(m.Revoked(revoke.number - 1)) == [], "the end of an earlier revocation"
    join = only(member.step(m.Revoked(revoke.number)), m.Join)
    assert decode_subscription(join.protocols[0][1], "range") == Subscription(frozenset("t"), frozenset(), 1)


def test_a_cooperative_member_keeps_its_partitions_and_joins_twice() -> None:
    member = stable("cooperative-sticky")
    join = only(member.beaten(refused("REBALANCE_IN_PROGRESS")), m.Join)
    wish = decode_subscription(join.protocols[0][1], "cooperative-sticky")
    assert wish == Subscription(frozenset("t"), partitions(0, 1), 1)
    member.joined(2, "cooperative-sticky")
    revoke = only(member.synced(0), m.Revoke)
    assert revoke.partitions == partitions(1)
    assigned, again = member.step(m.Revoked(revoke.number))
    assert assigned == m.Assign(frozenset())
    assert isinstance(again, m.Join)
    assert member.core.owned == partitions(0)
    member.joined(3, "cooperative-sticky")
    assert member.synced(0, 3) == [m.Assign(partitions(3))]


def test_a_sticky_member_reports_its_revoked_partitions_when_it_joins() -> None:
    member = stable("sticky")
    revoke = only(member.beaten(refused("REBALANCE_IN_PROGRESS")), m.Revoke)
    join = only(member.step(m.Revoked(revoke.number)), m.Join)
    ((_, metadata),) = join.protocols
    assert decode_subscription(metadata, "sticky") == Subscription(frozenset("t"), partitions(0, 1), 1)
    others = decode_subscription(metadata, "range")
    assert others is not None
    assert others.owned == frozenset(), "the member no longer owns the revoked partitions"


def test_a_sticky_group_moves_no_partition_when_a_member_joins_with_a_lower_id() -> None:
    leader = stable("sticky")
    revoke = only(leader.beaten(refused("REBALANCE_IN_PROGRESS")), m.Revoke)
    ((_, mine),) = only(leader.step(m.Revoked(revoke.number)), m.Join).protocols
    wish = encode_subscription(Subscription(frozenset("t")), "sticky")
    everyone = (m.JoinedMember("me", None, mine), m.JoinedMember("a new one", None, wish))
    count = only(leader.joined(2, "sticky", is_leader=True, members=everyone), m.Count)
    sync = only(leader.step(m.Counted(count.round, {"t": 4})), m.Sync)
    assert {name: assigned_partitions(data) for name, data in sync.assignments} == {
        "me": (("t", (0, 1)),), "a new one": (("t", (2, 3)),),
    }  # fmt: skip


def test_one_eager_assignor_makes_all_rebalances_eager() -> None:
    member = stable("cooperative-sticky", "range")
    assert isinstance(member.beaten(refused("REBALANCE_IN_PROGRESS"))[0], m.Revoke)


@pytest.mark.parametrize("code", ["UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION"])
def test_a_member_that_the_coordinator_does_not_know_loses_its_partitions(code: str) -> None:
    for is_commit in (False, True):
        member = stable("cooperative-sticky")
        refuse = m.Refused(1, code) if is_commit else m.Beaten(1, refused(code))
        lost, join = member.step(refuse)
        assert isinstance(lost, m.Revoke)
        assert (lost.partitions, lost.is_lost) == (partitions(0, 1), True)
        assert isinstance(join, m.Join)
        assert join.member_id == ("" if code == "UNKNOWN_MEMBER_ID" else "me")
        wish = decode_subscription(join.protocols[0][1], "cooperative-sticky")
        assert wish == Subscription(frozenset("t"), frozenset(), NO_GENERATION)


def test_a_member_that_lost_its_partitions_ignores_the_end_of_an_earlier_revocation() -> None:
    member = stable()
    revoke = only(member.beaten(refused("REBALANCE_IN_PROGRESS")), m.Revoke)
    member.tick()
    lost, join = member.beaten(refused("UNKNOWN_MEMBER_ID"))
    assert isinstance(lost, m.Revoke)
    assert lost.is_lost
    assert isinstance(join, m.Join)
    assert member.step(m.Revoked(revoke.number)) == []


def test_a_refusal_of_an_earlier_generation_is_ignored() -> None:
    member = stable()
    assert member.step(m.Refused(0, "ILLEGAL_GENERATION")) == []
    assert member.step(m.Beaten(0, refused("UNKNOWN_MEMBER_ID"))) == []


@pytest.mark.parametrize("code", ["NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "BROKER_UNAVAILABLE", "TIMED_OUT"])
def test_a_coordinator_that_moved_is_looked_up_and_asked_again(code: str) -> None:
    member = Member()
    member.subscribe()
    assert member.step(m.Joined(member.round, refused(code, True))) == [m.FindCoordinator()]
    assert member.core.deadline == pytest.approx(member.now + m.RETRY_FIRST_S)
    assert isinstance(only(member.tick(), m.Join), m.Join)
    member = stable()
    member.tick()
    assert member.beaten(refused(code, True)) == [m.FindCoordinator()]
    assert member.core.owned == partitions(0, 1), "the partitions stay"
    assert isinstance(member.tick()[0], m.Heartbeat)


def test_a_coordinator_that_loads_is_asked_again() -> None:
    member = Member()
    member.subscribe()
    assert member.step(m.Joined(member.round, refused("COORDINATOR_LOAD_IN_PROGRESS", True))) == []
    assert isinstance(only(member.tick(), m.Join), m.Join)


def test_retry_pauses_grow_up_to_their_limit_and_start_over_after_success() -> None:
    member = Member()
    member.subscribe()
    pauses = []
    for _ in range(6):
        member.step(m.Joined(member.round, refused("NOT_COORDINATOR", True)))
        assert member.core.deadline is not None
        pauses.append(round(member.core.deadline - member.now, 3))
        member.tick()
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    member.settle(0)
    member.beaten(refused("UNKNOWN_MEMBER_ID"))
    member.step(m.Joined(member.round, refused("NOT_COORDINATOR", True)))
    assert member.core.deadline == pytest.approx(member.now + m.RETRY_FIRST_S)


def test_heartbeats_are_regular_and_a_coordinator_that_does_not_answer_is_looked_up_again() -> None:
    member = stable()
    assert member.core.deadline == member.now + HEARTBEAT_S
    assert member.tick() == [m.Heartbeat("me", 1)]
    assert member.core.deadline == member.now + SESSION_S
    assert member.tick() == [m.FindCoordinator(), m.Heartbeat("me", 1)]
    member.beaten()
    assert isinstance(member.tick()[0], m.Heartbeat)


@pytest.mark.parametrize("code", ["FENCED_INSTANCE_ID", "GROUP_AUTHORIZATION_FAILED", "INVALID_SESSION_TIMEOUT"])
def test_a_final_refusal_ends_the_membership(code: str) -> None:
    member = Member()
    member.subscribe()
    assert only(member.step(m.Joined(member.round, refused(code))), m.Fail).error.code == code
    member = stable()
    lost, failed = member.beaten(refused(code))
    assert isinstance(lost, m.Revoke)
    assert lost.is_lost
    assert isinstance(failed, m.Fail)
    assert (member.core.phase, member.core.deadline) == (Phase.ENDED, None)
    assert member.subscribe("u") == []


def test_a_member_leaves_the_group_when_its_user_stalls_and_rejoins_afterwards() -> None:
    member = stable()
    leave, lost = member.step(m.Stalled())
    assert leave == m.Leave("me")
    assert isinstance(lost, m.Revoke)
    assert lost.is_lost
    assert member.core.deadline is None
    assert member.beaten(refused("UNKNOWN_MEMBER_ID")) == []
    assert only(member.step(m.Active()), m.Join).member_id == ""


def test_an_assignment_that_cannot_be_read_is_an_error() -> None:
    member = Member()
    member.subscribe()
    member.joined()
    assert only(member.step(m.Synced(member.round, None, None)), m.Fail).error.code == "INCONSISTENT_GROUP_PROTOCOL"


def test_answers_to_an_earlier_round_are_ignored() -> None:
    member = Member()
    member.subscribe()
    first = member.round
    member.step(m.Joined(first, refused("NOT_COORDINATOR", True)))
    member.tick()
    assert member.step(m.Joined(first, None, "me", 1, "range")) == []
    assert member.core.phase is Phase.JOINING


def test_a_rebalance_during_sync_makes_the_member_join_again() -> None:
    member = Member()
    member.subscribe()
    member.joined()
    assert member.step(m.Synced(member.round, refused("REBALANCE_IN_PROGRESS"))) == []
    assert isinstance(only(member.tick(), m.Join), m.Join)


@pytest.mark.parametrize(("instance_id", "effects"), [(None, [m.Leave("me")]), ("static", [])])
def test_only_dynamic_members_send_leave_group_at_the_end(instance_id: str | None, effects: list[m.Effect]) -> None:
    member = Member(instance_id=instance_id)
    member.subscribe()
    member.settle(0)
    assert member.step(m.End()) == effects
    assert member.step(m.Tick()) == []


def test_a_topic_that_is_found_while_the_member_joins_causes_another_rebalance() -> None:
    """The JoinGroup request did not name the topic, so without another rebalance no member would read it."""
    member = Member()
    member.subscribe()
    assert member.step(m.Subscribe(frozenset("tu"), {"t": 4, "u": 1})) == []
    member.joined(1)
    assert isinstance(member.synced(0, 1)[-1], m.Revoke)
    join = only(member.step(m.Revoked(member.core._revocations)), m.Join)
    wish = decode_subscription(join.protocols[0][1], "range")
    assert wish is not None
    assert wish.topics == frozenset("tu")
