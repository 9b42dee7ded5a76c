"""Any requests, in any order: each is answered once or waits, nothing raises, and the records can be loaded."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.core.coordinator import group_requests as g
from broker.core.coordinator.client import Client
from tests.unit.broker.core.coordinator.driver import Coordinator, subscription

LIMITS = g.GroupLimits(
    session_timeout_min_ms=1,
    session_timeout_max_ms=2**31 - 1,
    initial_rebalance_delay_ms=0,
    members_max=3,
    batch_max_bytes=10_000,
    groups_max=3,
    offsets_max=5,
    protocols_max=3,
    member_max_bytes=2_000,
    offsets_retention_ms=1_000,
    expiry_interval_ms=700,
)
INT32 = (-(2**31), -1, 0, 1, 2, 1_000, 2**31 - 1)
INT64 = (-(2**63), -1, 0, 1, 10**6, 2**63 - 1)


class Long(str):
    """A long text that does not fill the report of a failure."""

    def __repr__(self) -> str:
        return f"Long({self[0]!r} * {len(self)})"


groups = st.sampled_from(["a"] * 8 + ["b", "", Long("c" * 40_000), "d", "ü\n"])
instances = st.sampled_from([None] * 6 + ["i", "j", "", Long("k" * 2_000)])
texts = st.sampled_from(["", "x", "consumer", "range", Long("y" * 1_024), Long("z" * 40_000), "\0"])
topics = st.sampled_from(["t", "u", "", Long("v" * 40_000)])
metadata = st.sampled_from([b"", subscription("t"), subscription("u")[:-3], b"\0\0\x7f\xff\xff\xff", bytes(1_500)])
kinds = st.sampled_from(["consumer"] * 8) | texts
usual = st.sampled_from([(g.MemberProtocol("range", subscription("t")),)])
protocols = usual | usual | st.lists(st.builds(g.MemberProtocol, texts, metadata), max_size=4).map(tuple)
partitions = st.sampled_from((0, 1, 9, 10, -1, 2**31 - 1))
ids = st.integers(0, 5)
"""Which of the member ids that were given out; beyond them, none."""
generations = st.sampled_from([None] * 4 + list(INT32))
"""None: the one that the member joined."""
times_ms = st.sampled_from([1_000, 5_000] * 5 + list(INT32))
places = st.lists(st.builds(g.TopicPartitions, topics, st.lists(partitions, max_size=3).map(tuple)), max_size=3)
members = st.tuples(groups, ids, instances, generations)
requests = st.one_of(
    st.builds(
        lambda group, member, instance, kind, offered, session, rebalance, needs, skips: (
            lambda world: g.JoinGroup(
                group,
                world.member(member),
                instance,
                Client(kind, "/h"),
                kind,
                offered,
                session,
                rebalance,
                needs,
                skips,
            )
        ),
        *(groups, ids, instances, kinds, protocols, times_ms, times_ms, st.booleans(), st.booleans()),
    ),
    st.builds(
        lambda who, kind, protocol, shares: (
            lambda world: g.SyncGroup(
                *(who[0], world.member(who[1]), who[2], world.generation(who), kind, protocol),
                tuple(g.MemberAssignment(world.member(member), share) for member, share in shares),
            )
        ),
        *(members, st.none() | texts, st.none() | texts, st.lists(st.tuples(ids, metadata), max_size=3)),
    ),
    members.map(lambda who: lambda world: g.Heartbeat(who[0], world.member(who[1]), who[2], world.generation(who))),
    st.builds(
        lambda group, leaving: (
            lambda world: g.LeaveGroup(
                group, tuple(g.LeavingMember(world.member(each), i, why) for each, i, why in leaving)
            )
        ),
        *(groups, st.lists(st.tuples(ids, instances, texts), max_size=3)),
    ),
    st.builds(
        lambda who, offsets, retention: (
            lambda world: g.OffsetCommit(
                who[0], world.member(who[1]), who[2], world.generation(who), tuple(offsets), retention
            )
        ),
        members,
        st.lists(
            st.builds(g.OffsetToCommit, topics, partitions, st.sampled_from(INT64), st.sampled_from(INT32), texts),
            max_size=4,
        ),
        st.sampled_from(INT64),
    ),
    st.lists(st.builds(g.GroupToFetch, groups, st.none() | places.map(tuple)), max_size=3).map(
        lambda fetches: lambda world: g.OffsetFetch(tuple(fetches), True)
    ),
    st.builds(lambda group, where: lambda world: g.OffsetDelete(group, tuple(where)), groups, places),
    st.lists(groups, max_size=3).map(lambda names: lambda world: g.DescribeGroups(tuple(names))),
    st.frozensets(texts).map(lambda states: lambda world: g.ListGroups(states, states)),
    st.lists(groups, max_size=3).map(lambda names: lambda world: g.DeleteGroups(tuple(names))),
)
known = st.integers(0, 2)
"""Members that behave, so that garbage meets groups in every state."""
proper = st.one_of(
    known.map(lambda index: lambda world: world.proper_join(index)),
    known.map(lambda index: lambda world: world.proper_sync(index)),
)
events = st.one_of(requests, proper, st.sampled_from([0, 1, 500, 3_000, 400_000]))


class World:
    """The member ids that the coordinator gave out, the newest first, and the generations that they joined."""

    def __init__(self) -> None:
        self.coordinator = Coordinator(LIMITS)
        self.waiting: set[int] = set()
        self.joined: dict[str, int] = {}

    def member(self, index: int) -> str:
        known = list(reversed(self.joined))
        return known[index] if index < len(known) else ("" if index % 2 else "stranger")

    def generation(self, who: tuple[str, int, str | None, int | None]) -> int:
        return self.joined.get(self.member(who[1]), -1) if who[3] is None else who[3]

    def proper_join(self, index: int) -> g.JoinGroup:
        member_id = self.member(index)
        member_id = member_id if member_id in self.joined else ""
        offered = (g.MemberProtocol("range", subscription("t")),)
        return g.JoinGroup("a", member_id, None, Client("x", "/h"), "consumer", offered, 5_000, 5_000, False)

    def proper_sync(self, index: int) -> g.SyncGroup:
        who = ("a", index, None, None)
        shares = tuple(g.MemberAssignment(each, b"mine") for each in self.joined)
        return g.SyncGroup("a", self.member(index), None, self.generation(who), assignments=shares)

    def send(self, request_of: Any) -> None:
        self.waiting.add(self.coordinator.send(request_of(self)))

    def look(self) -> None:
        """Take the answers that have arrived."""
        for call in sorted(self.waiting & self.coordinator.answers.keys()):
            answer = self.coordinator.answers[call]
            if isinstance(answer, g.JoinGroupResponse) and answer.member_id:
                self.joined.pop(answer.member_id, None)
                self.joined[answer.member_id] = answer.generation
        self.waiting -= self.coordinator.answers.keys()
        assert self.waiting == self.coordinator.machine._parked.keys()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(events, max_size=60), st.lists(ids, max_size=3))
def test_any_request_is_answered_or_waits(happening: list[Any], hung_up: list[int]) -> None:
    world = World()
    for event in happening:
        if isinstance(event, int):
            world.coordinator.pass_time(event)
        else:
            world.send(event)
        world.look()
        if hung_up and hung_up[0] < len(world.waiting):
            call = sorted(world.waiting)[hung_up.pop(0)]
            world.coordinator.hang_up(call)
            world.waiting.discard(call)
    after = world.coordinator.reload(LIMITS)
    for group in ("a", "b", "", "d", "ü\n"):
        assert after.offsets(group) == world.coordinator.offsets(group)
