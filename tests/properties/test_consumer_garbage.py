"""Any requests of both protocols to the same groups, and any bytes into the records of consumer groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.core.coordinator.client import Client
from broker.core.coordinator.consumer import records as r
from broker.core.coordinator.consumer.partitions import Partitions
from broker.core.coordinator.consumer.records import Kind
from broker.core.coordinator.consumer.requests import ConsumerHeartbeat, ConsumerHeartbeatResponse
from broker.core.coordinator.fields import BadRecord
from tests.properties import test_group_garbage as classic
from tests.unit.broker.core.coordinator.consumer.test_consumer_records import KEYS, READERS, VALUES
from tests.unit.broker.core.coordinator.driver import Cluster, Coordinator, topic_id

UNKNOWN = UUID(int=5)
WRITERS: dict[Kind, Callable[[Any], bytes]] = {
    Kind.GROUP: r.write_group,
    Kind.MEMBER: r.write_member,
    Kind.TARGET: r.write_target,
    Kind.TARGET_MEMBER: r.write_target_member,
    Kind.CURRENT: r.write_current,
    Kind.REGEX: r.write_regex,
}

topic_ids = st.sampled_from([topic_id("t"), topic_id("u"), UNKNOWN])
owned: st.SearchStrategy[Partitions | None] = st.one_of(
    st.none(), st.just({}), st.dictionaries(topic_ids, st.frozensets(classic.partitions, min_size=1), max_size=3)
)
names = st.none() | st.lists(classic.topics, max_size=3).map(tuple)
regexes = st.sampled_from([None, None, "", "t", ".*", "(", classic.Long("r" * 2_000)])
assignors = st.sampled_from([None, None, "uniform", "range", "mine", ""])
epochs = st.sampled_from([None] * 6 + [0, 0, -1, -2, -3, 1, 2, 2**31 - 1, -(2**31)])
"""None: the current epoch of the member."""
members = st.sampled_from(["m1", "m2", "m3", "m4", "", classic.Long("m" * 40_000)])
heartbeats = st.builds(
    lambda group, member, epoch, instance, rack, timeout, topics, regex, assignor, owns, old: (
        lambda world: ConsumerHeartbeat(
            group,
            member,
            world.epochs.get(member, 0) if epoch is None else epoch,
            Client("c", "/h"),
            instance,
            rack,
            timeout,
            topics,
            regex,
            assignor,
            owns,
            old,
        )
    ),
    *(st.sampled_from(["a"] * 8 + ["b", ""]), members, epochs, classic.instances, st.none() | classic.texts),
    *(st.sampled_from([-1, 5_000, 5_000, 0, -2, 2**31 - 1]), names, regexes, assignors, owned, st.booleans()),
)
joins = members.map(
    lambda member: (
        lambda _: ConsumerHeartbeat("a", member, 0, Client("c", "/h"), None, None, 5_000, ("t",), None, None, {})
    )
)
cooperative = st.integers(0, 2).map(lambda index: lambda world: world.proper_join(index))
changes = st.tuples(st.sampled_from("tu"), st.integers(0, 4))
events = st.one_of(
    heartbeats, heartbeats, joins, cooperative, classic.requests, changes, st.sampled_from([1, 500, 3_000, 60_000])
)


class World(classic.World):
    """epochs: of the members of the newer protocol."""

    def __init__(self) -> None:
        super().__init__()
        self.coordinator = Coordinator(classic.LIMITS, cluster=Cluster(t=3, u=2))
        self.epochs: dict[str, int] = {}

    def send(self, request_of: Any) -> None:
        request = request_of(self)
        before = len(self.coordinator.log)
        call = self.coordinator.send(request)
        size = sum(len(record.key) + len(record.value or b"") for record in self.coordinator.log[before:])
        assert size <= classic.LIMITS.batch_max_bytes, f"{size} bytes in one step"
        answer = self.coordinator.answers.get(call)
        if isinstance(answer, ConsumerHeartbeatResponse):
            self.epochs[request.member_id] = max(answer.epoch, 0)
        else:
            assert not isinstance(request, ConsumerHeartbeat), "it is answered at once"
        self.waiting.add(call)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(events, max_size=60))
def test_any_request_of_both_protocols_is_answered_and_the_log_can_be_loaded(happening: list[Any]) -> None:
    world = World()
    for event in happening:
        if isinstance(event, int):
            world.coordinator.pass_time(event)
        elif isinstance(event, tuple):
            topic, count = event
            if count or topic in world.coordinator.cluster.partitions:
                world.coordinator.change_topics(**{topic: count})
        else:
            world.send(event)
        world.look()
    world.coordinator.reload(classic.LIMITS).machine.check()


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Return good bytes with some of them changed, missing or added."""
    data = bytearray(draw(whole))
    for _ in range(draw(st.integers(0, 3))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))]) if draw(st.booleans()) else bytes(data)


values = st.sampled_from([bytes.fromhex(data) for data, *_ in VALUES])
keys = st.sampled_from([bytes.fromhex(data) for data, _ in KEYS])


@given(st.sampled_from(sorted(READERS)), st.binary(max_size=60) | damaged(values))
def test_arbitrary_bytes_are_a_valid_record_value_or_are_refused(kind: Kind, data: bytes) -> None:
    try:
        value = READERS[kind](data)
    except BadRecord:
        return
    assert READERS[kind](WRITERS[kind](value)) == value


@given(st.binary(max_size=60) | damaged(keys))
def test_arbitrary_bytes_are_a_valid_record_key_or_are_refused(data: bytes) -> None:
    try:
        key = r.read_key(data)
    except BadRecord:
        return
    assert key is None or r.write_key(key) == data
