"""Groups that have configs of their own: heartbeats, sessions and assignments follow them from the next use on."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from broker.core.coordinator.client import Client
from broker.core.coordinator.consumer.requests import ConsumerLimits
from broker.core.coordinator.share.requests import (
    DescribeShareGroups,
    ShareGroupLimits,
    ShareHeartbeat,
    ShareHeartbeatResponse,
)
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.core.coordinator.consumer.driver import (
    SESSION_MS,
    ConsumerClient,
    described,
    group_of,
    joined,
    limits,
)
from tests.unit.broker.core.coordinator.consumer.test_migration import ClassicClient
from tests.unit.broker.core.coordinator.driver import GROUP, Cluster, Coordinator
from tests.unit.broker.core.coordinator.driver import SESSION_MS as CLASSIC_SESSION_MS

LONG_MS = SESSION_MS + 10_000
BEAT_MS = 7_000


class Own:
    """Configs of single groups, which a test may change.  changes: the differences from the limits of the cluster."""

    def __init__(self) -> None:
        self.changes: dict[str, dict[str, int]] = {}

    def give(self, group: str, **changes: int) -> None:
        self.changes[group] = changes

    def consumer(self, group: str, limits: ConsumerLimits) -> ConsumerLimits:
        return replace(limits, **self.changes.get(group, {}))

    def share(self, group: str, limits: ShareGroupLimits) -> ShareGroupLimits:
        return replace(limits, **self.changes.get(group, {}))


def home_of(own: Own, *, assignment_interval_ms: int = 0) -> Coordinator:
    paced = limits(assignment_interval_ms=assignment_interval_ms)
    return Coordinator(paced, cluster=Cluster(sales=4), configs=own)


def members(home: Coordinator, group: str = GROUP) -> int:
    return len(described(home, group).members)


def assert_expires(home: Coordinator, time_ms: int, count: Callable[[Coordinator], int]) -> None:
    """Check that the last member expires after this time, and not before.  count: returns the number of members."""
    home.pass_time(time_ms - 1)
    assert count(home) == 1
    home.pass_time(1)
    assert count(home) == 0


# -- consumer groups


def test_a_consumer_gets_a_changed_heartbeat_interval_with_its_next_heartbeat() -> None:
    own = Own()
    home = home_of(own)
    client, other = ConsumerClient(home, "m1"), ConsumerClient(home, "m2", group="others")
    joined(home, client)
    joined(home, other)
    assert client.answer.heartbeat_interval_ms == 5_000
    own.give(GROUP, heartbeat_interval_ms=BEAT_MS)
    assert (client.beat(), client.answer.heartbeat_interval_ms) == ("NONE", BEAT_MS)
    assert (other.beat(), other.answer.heartbeat_interval_ms) == ("NONE", 5_000)


def test_a_changed_session_timeout_of_a_group_applies_from_a_consumers_next_heartbeat_on() -> None:
    own = Own()
    home = home_of(own)
    client, other = ConsumerClient(home, "m1"), ConsumerClient(home, "m2", group="others")
    joined(home, client)
    joined(home, other)
    own.give(GROUP, session_timeout_ms=LONG_MS)
    client.beat()
    other.beat()
    home.pass_time(SESSION_MS)
    assert (members(home), members(home, "others")) == (1, 0)
    assert_expires(home, LONG_MS - SESSION_MS, members)


def test_a_new_coordinator_gives_each_consumer_the_session_timeout_of_its_group() -> None:
    own = Own()
    home = home_of(own)
    joined(home, ConsumerClient(home, "m1"))
    own.give(GROUP, session_timeout_ms=LONG_MS)
    after = Coordinator(limits(), home.log, cluster=home.cluster, configs=own)
    assert_expires(after, LONG_MS, members)


def test_a_group_is_reassigned_at_its_own_assignment_interval() -> None:
    own = Own()
    home = home_of(own, assignment_interval_ms=10_000)
    first, second = ConsumerClient(home, "m1"), ConsumerClient(home, "m2")
    own.give(GROUP, assignment_interval_ms=0)
    assert first.join() == "NONE"
    assert second.join() == "NONE"
    group = group_of(home)
    assert group.assignment_epoch == group.epoch
    own.give(GROUP)
    second.leave()
    group = group_of(home)
    assert group.assignment_epoch < group.epoch, "the interval of the cluster has not passed"


def test_a_classic_member_of_a_consumer_group_keeps_its_own_session_timeout() -> None:
    own = Own()
    own.give(GROUP, session_timeout_ms=LONG_MS)
    home = home_of(own)
    classic = ClassicClient(home, "c1")
    joined(home, ConsumerClient(home, "m1"))
    assert classic.join() == "NONE"
    expiries = [member.expires_ms for member in group_of(home).members.values() if member.is_classic]
    assert expiries == [home.now_ms + CLASSIC_SESSION_MS]


# -- share groups


def beat(home: Coordinator, member: str, epoch: int, group: str = "work") -> ShareHeartbeatResponse:
    topics = ("sales",) if epoch == 0 else None
    found = home.ask(ShareHeartbeat(group, member, epoch, Client("app", "/h"), None, topics))
    assert isinstance(found, ShareHeartbeatResponse)
    assert found.error is KafkaCode.NONE
    return found


def share_members(home: Coordinator, group: str = "work") -> int:
    return len(home.ask(DescribeShareGroups((group,))).groups[0].members)


def test_changed_timeouts_of_a_share_group_apply_from_a_members_next_heartbeat_on() -> None:
    own = Own()
    home = home_of(own)
    first, other = beat(home, "a", 0), beat(home, "b", 0, "others")
    assert (first.heartbeat_interval_ms, other.heartbeat_interval_ms) == (5_000, 5_000)
    own.give("work", heartbeat_interval_ms=BEAT_MS, session_timeout_ms=LONG_MS)
    assert beat(home, "a", first.epoch).heartbeat_interval_ms == BEAT_MS
    assert beat(home, "b", other.epoch, "others").heartbeat_interval_ms == 5_000
    home.pass_time(SESSION_MS)
    assert (share_members(home), share_members(home, "others")) == (1, 0)
    assert_expires(home, LONG_MS - SESSION_MS, share_members)


def test_a_new_coordinator_gives_each_share_group_member_the_session_timeout_of_its_group() -> None:
    own = Own()
    home = home_of(own)
    beat(home, "a", 0)
    own.give("work", session_timeout_ms=LONG_MS)
    after = Coordinator(limits(), home.log, cluster=home.cluster, configs=own)
    assert_expires(after, LONG_MS, share_members)
