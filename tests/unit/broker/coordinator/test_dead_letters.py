"""Dead letters of share groups: which are written, where, and what happens if that fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from msgspec.structs import replace

from broker.coordinator import dead_letters
from broker.coordinator.groups import GroupCoordinators
from broker.coordinator.limits import CoordinatorLimits
from broker.coordinator.links import BrokerLinks
from broker.coordinator.share_partitions import Fetched, LedShare
from broker.coordinator.share_reminders import ShareReminders
from broker.coordinator.shares import ShareGroups
from broker.core.coordinator.machine import Record
from broker.core.coordinator.share.state_machine import ShareStateMachine
from broker.core.coordinator.share.states import (
    InitializeState,
    ReadState,
    ShareKey,
    ShareState,
    ShareStateLimits,
    StateRequest,
    StateResponse,
    SummarizeState,
    WriteState,
    merged,
    write_key,
    write_snapshot,
)
from broker.core.share.partition import Acknowledgement, AckType, Delivery, StateBatch
from broker.kafka.api import ProduceResult
from metadata.control.configs import Changes, Resource, alter_configs
from metadata.control.features import upgrade_feature
from metadata.image.internal_topics import SHARE_GROUP_STATE
from metadata.records import METADATA_VERSION, ConfigScope
from quorumlog.client.record_codec import NewRecord, build_batch, read_batch
from quorumlog.client.records import open_batches
from quorumlog.errors import ClusterError
from quorumlog.runtime.clock import Sources
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.record_batch import Codec
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.replica.rig import TOPIC, Rig

NOW_MS = 1_700_000_000_000
WAIT_S = 10
GROUP, LETTERS = "work", "dlq.t"
ADMITS = ("errors.deadletterqueue.group.enable", "true")
LIMITS = CoordinatorLimits(share_letter_retry_min_ms=1, share_letter_retry_max_ms=2)
CONTROL = 0x30
Headers = dict[str, bytes | None]


class Place:
    """Share groups on broker 1, which leads partition 0 of the source; a fake share coordinator, and a fake Produce.

    state: what the share coordinator has stored; None: it was deleted.  batches: those that were appended, each with
    its partition.  codes: the answers to the next produces; then all succeed.  is_slow: produces are not answered.
    """

    def __init__(self, rig: Rig, start: int = 0, limits: CoordinatorLimits = LIMITS) -> None:
        self.rig = rig
        self.state: ShareState | None = ShareState(0, 3, 0, start)
        self.fails_to_save = False
        self.batches: list[tuple[tuple[str, int], bytes]] = []
        self.codes: list[KafkaCode] = []
        self.produces = 0
        self.pending: list[asyncio.Future[ProduceResult]] = []
        self.is_slow = False
        self.created: list[pb.NewTopic] = []
        nothing = cast(Any, None)
        groups = cast(GroupCoordinators, cast(Any, _Groups()))
        self.shares = ShareGroups(
            rig.role.table,
            groups,
            self._call,
            nothing,
            lambda broker_id: None,
            Sources(lambda: NOW_MS, Random(1)),
            self._produce,
            limits,
        )
        self.shares.states.ask = self._ask  # type: ignore[method-assign]

    async def _ask(self, request: StateRequest) -> StateResponse:
        await asyncio.sleep(0)
        match request:
            case ReadState() if self.state is not None:
                return StateResponse(KafkaCode.NONE, state=self.state)
            case SummarizeState():
                return StateResponse(KafkaCode.NONE, state=self.state)
            case WriteState() if self.state is not None and request.state_epoch == self.state.state_epoch:
                if self.fails_to_save:
                    return StateResponse(KafkaCode.COORDINATOR_NOT_AVAILABLE)
                changed = merged(self.state.start_offset, self.state.batches, request.start_offset, request.batches)
                self.state = ShareState(0, self.state.state_epoch, request.leader_epoch, *changed)
                return StateResponse(KafkaCode.NONE)
        assert not isinstance(request, InitializeState)
        return StateResponse(KafkaCode.FENCED_STATE_EPOCH)

    async def _call(self, method: Any, request: Any, timeout_ms: int) -> Any:
        assert method is rpcs.CREATE_TOPICS
        self.created += request.topics
        raise ClusterError(ApiError.BROKER_UNAVAILABLE, "there is no controller", retriable=True)

    def _produce(
        self, topic: str, index: int, batches: memoryview, acks: int, timeout_ms: int
    ) -> asyncio.Future[ProduceResult]:
        assert acks == -1
        assert timeout_ms > 0
        self.produces += 1
        future: asyncio.Future[ProduceResult] = asyncio.get_running_loop().create_future()
        code = self.codes.pop(0) if self.codes else KafkaCode.NONE
        if code in (KafkaCode.NONE, KafkaCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            self.batches.append(((topic, index), bytes(batches)))
        if self.is_slow:
            self.pending.append(future)
        else:
            future.set_result(ProduceResult(code, error_message="" if code is KafkaCode.NONE else "the reason"))
        return future

    # -- metadata

    async def give(self, scope: ConfigScope, name: str, **values: str | None) -> None:
        """Set configs; the names have `_` in place of `.`."""
        named = tuple((key.replace("_", "."), value) for key, value in values.items())
        changes = [Changes(Resource(scope, name), named)]
        await self.learn(lambda: self.rig.cluster.execute(lambda image, again: alter_configs(image, changes)))

    async def give_group(self, **values: str | None) -> None:
        await self.give(ConfigScope.GROUP, GROUP, **values)

    async def learn(self, change: Callable[[], Any]) -> None:
        old = self.rig.cluster.image
        change()
        new = self.rig.cluster.image
        assert new is not old, "nothing has changed"
        self.shares.on_batch(old, new, None, old.end_offset, new.end_offset, 0)
        await self.rig.learn()

    async def create_letters(self, *rows: tuple[int, ...], admits: bool = True, **configs: str) -> None:
        chosen = [(key.replace("_", "."), value) for key, value in configs.items()]
        pairs = tuple([ADMITS, *chosen] if admits else chosen)
        await self.learn(lambda: self.rig.cluster.create(LETTERS, *(rows or ((1,),)), configs=pairs))

    # -- records

    async def write(self, *batches: bytes | bytearray) -> None:
        for batch in batches:
            self.rig.replicas.start_produce(TOPIC, 0, memoryview(bytearray(batch)), -1, 60_000)
        await self.rig.role.logs.flush_all([self.rig.log])

    async def led(self) -> LedShare:
        async with asyncio.timeout(WAIT_S):
            found = await self.shares.partitions.get(self.key)
        assert isinstance(found, LedShare), found
        return found

    @property
    def key(self) -> ShareKey:
        return ShareKey(GROUP, self.rig.hosted().topic_id, 0)

    async def fetch(self) -> list[tuple[int, int]]:
        found = await (await self.led()).fetch("m", 1 << 20, 1_000, is_exact=False)
        assert isinstance(found, Fetched), found
        return [(each.first, each.end) for each in found.acquired]

    async def acknowledge(self, first: int, end: int, *kinds: AckType) -> KafkaCode:
        led = await self.led()
        return await led.acknowledge("m", [Acknowledgement(first, end, kinds)])

    async def reject(self, first: int, end: int) -> None:
        assert await self.acknowledge(first, end, AckType.REJECT) is KafkaCode.NONE

    # -- results

    def letters(self) -> list[int]:
        """Return the offsets of which letters were written, in their order."""
        return [int(headers[dead_letters.OFFSET] or b"") for _, _, headers in self.contents()]

    def contents(self) -> list[tuple[bytes | None, bytes | None, Headers]]:
        """Return key, value and headers of all letters."""
        found = []
        for (topic, index), batch in self.batches:
            for opened in open_batches(batch):
                for each in read_batch(opened, topic, index, 0, 1 << 40):
                    assert each.timestamp_ms == NOW_MS
                    found.append((each.key, each.value, dict(each.headers)))
        return found

    @property
    def stored(self) -> tuple[int, tuple[StateBatch, ...]]:
        assert self.state is not None
        return self.state.start_offset, self.state.batches

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    @property
    def cause(self) -> str:
        found = self.shares.letters.failing.get(self.key)
        return "" if found is None else found.cause

    async def settled(self, start: int) -> None:
        """Wait until the start is stored, and no letter is missing."""
        await self.until(lambda: self.stored[0] == start)
        await self.until(lambda: not self.shares.letters.failing)


class _Groups:
    on_share_effect: Any = None


@asynccontextmanager
async def serving(rig: Rig, **settings: Any) -> AsyncIterator[Place]:
    place = Place(rig, **settings)
    async with asyncio.TaskGroup() as tasks:
        place.shares.start(tasks, rig.cluster.image)
        try:
            yield place
        finally:
            await place.shares.close()


@pytest.fixture
async def bare(rig: Rig) -> AsyncIterator[Place]:
    """The source exists, and the group has no dead-letter topic."""
    upgrade = lambda image, again: upgrade_feature(image, METADATA_VERSION, None, validate_only=False)  # noqa: E731
    assert rig.cluster.execute(upgrade).outcome.ok
    await rig.create((1,))
    async with serving(rig) as place:
        yield place


@pytest.fixture
async def place(bare: Place) -> Place:
    """The group has a dead-letter topic, which does not exist yet."""
    await bare.give_group(errors_deadletterqueue_topic_name=LETTERS)
    return bare


# -- letters


async def test_a_rejected_record_gets_a_letter_without_its_contents(place: Place) -> None:
    await place.create_letters()
    await place.write(make_batch((b"a", b"b", b"c")))
    assert await place.fetch() == [(0, 3)]
    await place.reject(1, 2)
    assert await place.acknowledge(0, 1, AckType.ACCEPT) is KafkaCode.NONE
    await place.settled(2)
    [(key, value, headers)] = place.contents()
    assert (key, value) == (None, None)
    assert headers == {
        "__dlq.errors.topic": TOPIC.encode(),
        "__dlq.errors.partition": b"0",
        "__dlq.errors.offset": b"1",
        "__dlq.errors.group": b"work",
        "__dlq.errors.delivery.count": b"1",
        "__dlq.errors.message": b"a member of the group rejected the record",
    }
    assert [where for where, _ in place.batches] == [(LETTERS, 0)]
    assert place.shares.letters.written == 1


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD, Codec.GZIP])
async def test_a_letter_has_the_contents_of_its_record_if_the_group_wants_that(place: Place, codec: Codec) -> None:
    await place.give_group(errors_deadletterqueue_copy_record_enable="true")
    await place.create_letters()
    rows: list[NewRecord] = [
        (5, b"k%d" % n, None if n == 1 else b"v%d" % n, (("trace", b"t"), ("empty", None))) for n in range(3)
    ]
    await place.write(build_batch(rows, codec))
    await place.fetch()
    await place.reject(0, 3)
    await place.settled(3)
    assert [(key, value) for key, value, _ in place.contents()] == [(b"k0", b"v0"), (b"k1", None), (b"k2", b"v2")]
    first = place.contents()[0][2]
    assert (first["trace"], first["empty"], first[dead_letters.OFFSET]) == (b"t", None, b"0")


async def test_a_record_that_was_delivered_too_often_gets_a_letter(place: Place) -> None:
    await place.create_letters()
    await place.give_group(share_delivery_count_limit="2")
    await place.write(make_batch((b"a",)))
    for _ in range(2):
        assert await place.fetch() == [(0, 1)]
        assert await place.acknowledge(0, 1, AckType.RELEASE) is KafkaCode.NONE
    await place.settled(1)
    [(_, _, headers)] = place.contents()
    assert headers[dead_letters.MESSAGE] == b"the record was delivered 2 times, the limit of the group"
    assert headers[dead_letters.DELIVERY_COUNT] == b"2"


async def test_an_accepted_record_and_a_gap_get_no_letter(place: Place) -> None:
    await place.create_letters()
    await place.write(make_batch((b"a", b"b")))
    await place.fetch()
    assert await place.acknowledge(0, 2, AckType.ACCEPT, AckType.GAP) is KafkaCode.NONE
    await place.settled(2)
    assert place.batches == []


async def test_offsets_without_records_get_no_letter(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole range can expire, and compaction may have removed some of its records."""
    await place.create_letters()
    await place.write(make_batch((b"a",)), make_batch((b"b", b"c", b"d")), make_batch((b"e",)))
    await place.fetch()
    sparse = make_batch((b"b",), base_offset=1, last_offset_delta=2)
    control = make_batch((b"e",), base_offset=4, attributes=CONTROL)

    def read(offset: int, max_bytes: int, up_to_offset: int) -> bytes:
        assert (offset, up_to_offset) == (0, 5)
        return make_batch((b"a",)) + sparse + control

    monkeypatch.setattr(place.rig.log, "read", read)
    await place.reject(0, 5)
    await place.settled(5)
    assert place.letters() == [0, 1]


async def test_a_batch_that_nobody_can_read_gets_letters_for_all_its_offsets(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.create_letters()
    await place.give_group(errors_deadletterqueue_copy_record_enable="true")
    await place.write(make_batch((b"a", b"b")), make_batch((b"c",)))
    await place.fetch()
    damaged = make_batch((b"a", b"b"), attributes=1, compress=lambda body: b"not gzip")

    def read(offset: int, max_bytes: int, up_to_offset: int) -> bytes:
        return damaged + make_batch((b"c",), base_offset=2)

    monkeypatch.setattr(place.rig.log, "read", read)
    await place.reject(0, 3)
    await place.settled(3)
    assert place.letters() == [0, 1, 2]
    assert [value for _, value, _ in place.contents()] == [None, None, b"c"]


async def test_letters_of_many_records_are_few_batches(place: Place) -> None:
    await place.create_letters()
    await place.write(*[make_batch((b"v",) * 50) for _ in range(10)])
    await place.fetch()
    await place.reject(0, 500)
    await place.settled(500)
    assert place.letters() == list(range(500))
    assert place.produces == 1


async def test_letters_do_not_exceed_the_size_of_a_batch_in_their_topic(place: Place) -> None:
    await place.create_letters(max_message_bytes="1000")
    await place.write(make_batch((b"v",) * 20))
    await place.fetch()
    await place.reject(0, 20)
    await place.settled(20)
    assert place.letters() == list(range(20))
    assert place.produces > 4
    assert all(len(batch) <= 1_000 for _, batch in place.batches)


async def test_a_partition_has_its_letters_in_one_partition(place: Place) -> None:
    await place.create_letters((1,), (1,), (1,))
    await place.write(make_batch((b"v",)))
    await place.fetch()
    await place.reject(0, 1)
    await place.settled(1)
    image = place.rig.cluster.image
    topic = image.topic(LETTERS)
    assert topic is not None
    chosen = [place.shares.letters._partition(topic, source, 1_000) for source in range(5)]
    assert [each if isinstance(each, str) else each.partition for each in chosen] == [0, 1, 2, 0, 1]
    without = tuple(replace(each, leader=-1) for each in topic.partitions if each is not None)
    found = place.shares.letters._partition(replace(topic, partitions=without), 4, 1_000)
    assert found == f"{LETTERS}-1 has no leader"


# -- failures


async def test_a_failed_write_is_repeated(place: Place) -> None:
    await place.create_letters()
    place.codes = [KafkaCode.NOT_ENOUGH_REPLICAS, KafkaCode.NOT_LEADER_OR_FOLLOWER, KafkaCode.REQUEST_TIMED_OUT]
    await place.write(make_batch((b"a",)))
    await place.fetch()
    await place.reject(0, 1)
    await place.settled(1)
    assert place.letters() == [0]
    assert place.produces == 4


async def test_a_write_with_an_unknown_outcome_is_repeated(place: Place) -> None:
    await place.create_letters()
    place.codes = [KafkaCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
    await place.write(make_batch((b"a",)))
    await place.fetch()
    await place.reject(0, 1)
    await place.settled(1)
    assert place.letters() == [0, 0]


async def test_letters_wait_for_their_topic(place: Place) -> None:
    await place.write(make_batch((b"a",)))
    await place.fetch()
    await place.reject(0, 1)
    await place.until(lambda: place.cause)
    assert place.cause == f"topic {LETTERS} does not exist"
    assert place.stored == (0, (StateBatch(0, 1, Delivery.ARCHIVING, 1),))
    await place.create_letters(admits=False)
    await place.until(lambda: "admit" in place.cause)
    assert place.cause == f"topic {LETTERS} does not admit dead letters (errors.deadletterqueue.group.enable is false)"
    await place.give(ConfigScope.TOPIC, LETTERS, errors_deadletterqueue_group_enable="true")
    await place.settled(1)
    assert place.letters() == [0]


async def test_a_change_of_the_prefix_stops_letters_and_another_broker_is_awaited(place: Place) -> None:
    await place.create_letters((2,))
    await place.write(make_batch((b"a",)))
    await place.fetch()
    await place.reject(0, 1)
    await place.until(lambda: place.cause)
    assert place.cause == f"{LETTERS}-0: broker 2 is not registered"
    await place.give(ConfigScope.CLUSTER, "", errors_deadletterqueue_topic_name_prefix="x")
    await place.until(lambda: "prefix" in place.cause)
    assert "must begin with 'x'" in place.cause
    assert place.produces == 0


async def test_a_failure_that_is_removed_is_noticed_before_the_pause_ends(rig: Rig, bare: Place) -> None:
    limits = CoordinatorLimits(share_letter_retry_min_ms=1, share_letter_retry_max_ms=3_600_000)
    async with serving(rig, limits=limits) as place:
        await place.give_group(errors_deadletterqueue_topic_name=LETTERS)
        await place.write(make_batch((b"a",)))
        await place.fetch()
        await place.reject(0, 1)
        await place.until(lambda: place.cause)
        await asyncio.sleep(0.1)  # the pauses are long by now
        await place.create_letters()
        await place.settled(1)


async def test_a_letter_that_is_too_large_does_not_delay_the_others(place: Place) -> None:
    await place.give_group(errors_deadletterqueue_copy_record_enable="true")
    await place.create_letters(max_message_bytes="2000")
    await place.write(make_batch((b"a", b"b" * 3_000, b"c")))
    await place.fetch()
    await place.reject(0, 3)
    await place.until(lambda: place.cause)
    assert place.cause == f"the letter of offset 1 exceeds max.message.bytes (2000) of {LETTERS}"
    assert place.letters() == [0, 2]
    start, batches = place.stored
    assert (start, batches[0]) == (1, StateBatch(1, 2, Delivery.ARCHIVING, 1))
    await place.give(ConfigScope.TOPIC, LETTERS, max_message_bytes="10000")
    await place.settled(3)
    assert place.letters() == [0, 2, 1]


async def test_a_slow_write_delays_neither_members_nor_saves(place: Place) -> None:
    await place.create_letters()
    place.is_slow = True
    await place.write(make_batch((b"a",)), make_batch((b"b",)))
    await place.fetch()
    await place.reject(0, 1)
    await place.until(lambda: place.pending)
    assert await place.acknowledge(1, 2, AckType.ACCEPT) is KafkaCode.NONE
    await place.write(make_batch((b"c",)))
    assert await place.fetch() == [(2, 3)]
    assert place.stored[0] == 0
    place.is_slow = False
    place.pending[0].set_result(ProduceResult(KafkaCode.NONE))
    await place.settled(2)
    assert place.letters() == [0]


async def test_a_write_without_an_answer_has_a_deadline(rig: Rig, bare: Place) -> None:
    limits = CoordinatorLimits(share_letter_retry_min_ms=1, share_letter_retry_max_ms=2, share_letter_answer_ms=20)
    async with serving(rig, limits=limits) as place:
        await place.give_group(errors_deadletterqueue_topic_name=LETTERS)
        await place.create_letters()
        place.is_slow = True
        await place.write(make_batch((b"a",)))
        await place.fetch()
        await place.reject(0, 1)
        await place.until(lambda: place.cause)
        assert place.cause == f"{LETTERS}-0: no answer in time"
        place.is_slow = False
        await place.settled(1)


async def test_a_missing_topic_is_created_only_if_the_cluster_permits_that(place: Place) -> None:
    await place.write(make_batch((b"a",)))
    await place.fetch()
    await place.reject(0, 1)
    await place.until(lambda: place.cause)
    assert place.created == []
    await place.give(ConfigScope.CLUSTER, "", errors_deadletterqueue_auto_create_topics_enable="true")
    await place.until(lambda: "controller" in place.cause)
    [wanted, *_] = place.created
    assert (wanted.name, wanted.partitions, wanted.replication_factor) == (LETTERS, -1, -1)
    assert [(each.key, each.value) for each in wanted.configs] == [ADMITS]
    await place.create_letters()
    await place.settled(1)


# -- the end of letters


async def test_records_are_archived_without_letters_once_the_group_has_no_topic(place: Place) -> None:
    await place.write(make_batch((b"a", b"b")))
    await place.fetch()
    await place.reject(0, 1)
    await place.until(lambda: place.cause)
    await place.give_group(errors_deadletterqueue_topic_name=None)
    await place.settled(1)
    assert place.batches == []
    await place.reject(1, 2)
    await place.settled(2)
    assert place.batches == []


async def test_records_that_retention_has_deleted_get_no_letter(place: Place) -> None:
    await place.write(make_batch((b"a",)), make_batch((b"b",)), make_batch((b"c",)))
    await place.fetch()
    await place.reject(0, 3)
    await place.until(lambda: place.cause)
    place.rig.replicas.start_delete(TOPIC, 0, 2, 1_000)
    assert place.rig.log.start_offset == 2
    await place.create_letters()
    await place.settled(3)
    assert place.letters() == [2]


async def test_letters_of_deleted_records_do_not_wait_for_their_topic(place: Place) -> None:
    await place.write(make_batch((b"a",)), make_batch((b"b",)))
    await place.fetch()
    await place.reject(0, 1)
    await place.until(lambda: place.cause)
    place.rig.replicas.start_delete(TOPIC, 0, 1, 1_000)
    await place.until(lambda: not place.shares.letters.failing)


async def test_letters_of_a_deleted_group_are_no_longer_tried(place: Place) -> None:
    await place.write(make_batch((b"a",)))
    await place.fetch()
    await place.reject(0, 1)
    await place.until(lambda: place.cause)
    led = await place.led()
    place.state = None
    await place.until(lambda: led.has_ended)
    await place.until(lambda: not place.shares.letters.failing)
    await place.create_letters()
    await asyncio.sleep(0.02)
    assert place.batches == []


# -- leaders


async def test_a_leader_that_fails_before_the_letter_leaves_it_to_its_successor(rig: Rig, place: Place) -> None:
    await place.write(make_batch((b"a", b"b")))
    await place.fetch()
    await place.reject(0, 1)
    await place.until(lambda: place.cause)
    await place.shares.close()
    async with serving(rig) as after:
        after.state = place.state
        await after.create_letters()
        assert await after.fetch() == [(1, 2)], "the record is not delivered again"
        await after.settled(1)
        assert after.letters() == [0]
        assert after.contents()[0][2][dead_letters.MESSAGE] == b"a member of the group rejected the record"


async def test_a_leader_that_fails_between_the_letter_and_its_save_causes_a_second_letter(
    rig: Rig, place: Place
) -> None:
    await place.write(make_batch((b"a",)))
    await place.fetch()
    await place.reject(0, 1)
    place.fails_to_save = True
    await place.create_letters()
    await place.until(lambda: place.batches)
    assert place.stored == (0, (StateBatch(0, 1, Delivery.ARCHIVING, 1),))
    await asyncio.sleep(0.02)
    assert place.letters() == [0], "the save is repeated, the letter is not"
    await place.shares.close()
    async with serving(rig) as after:
        await after.give_group(errors_deadletterqueue_copy_record_enable="true")
        after.state = place.state
        assert await after.fetch() == []
        await after.settled(1)
        assert after.letters() == [0]


async def test_no_letter_exists_before_archiving_is_durable(place: Place) -> None:
    await place.create_letters()
    await place.write(make_batch((b"a",)))
    await place.fetch()
    place.fails_to_save = True
    assert await place.acknowledge(0, 1, AckType.REJECT) is KafkaCode.COORDINATOR_NOT_AVAILABLE
    await asyncio.sleep(0.02)
    assert place.produces == 0
    place.fails_to_save = False
    await place.reject(0, 1)
    await place.settled(1)
    assert place.letters() == [0]


async def test_a_share_partition_without_sessions_is_kept_until_its_letters_are_written(place: Place) -> None:
    await place.write(make_batch((b"a", b"b")))
    led = await place.led()
    await place.fetch()
    await place.reject(0, 1)
    await place.until(lambda: place.cause)
    led.release("m", is_unused=True)
    await asyncio.sleep(0.02)
    assert place.shares.partitions.known(place.key) is led
    await place.create_letters()
    await place.settled(1)
    await place.until(lambda: place.shares.partitions.known(place.key) is None)


async def test_a_session_after_a_pause_reads_a_state_that_was_reset_meanwhile(place: Place) -> None:
    await place.write(make_batch((b"a", b"b")))
    led = await place.led()
    await place.fetch()
    await place.reject(0, 2)
    await place.until(lambda: place.cause)
    led.release("m", is_unused=True)
    place.state = ShareState(0, 4, 0, 1)
    assert await place.fetch() == [(1, 2)]
    assert led.has_ended


# -- reminders


def left_over(offset: int = 0) -> ShareState:
    """Return a state that an earlier leader left, with a letter that is missing."""
    return ShareState(0, 3, 0, offset, (StateBatch(offset, offset + 1, Delivery.ARCHIVING, 1),))


async def test_a_reminded_leader_writes_letters_that_no_member_asks_for(place: Place) -> None:
    await place.create_letters()
    await place.write(make_batch((b"a", b"b")))
    place.state = left_over()
    place.shares.write_dead_letters([place.key])
    await place.settled(1)
    assert place.letters() == [0]
    await place.until(lambda: not len(place.shares.partitions))
    assert await place.fetch() == [(1, 2)]


async def test_a_reminder_loads_nothing_that_is_loaded_or_led_elsewhere(place: Place) -> None:
    await place.write(make_batch((b"a", b"b")))
    led = await place.led()
    strangers = [place.key._replace(partition=7), place.key._replace(topic_id=UUID(int=7))]
    place.shares.write_dead_letters([place.key, *strangers])
    assert place.shares.partitions.known(place.key) is led
    assert len(place.shares.partitions) == 1
    assert await place.fetch() == [(0, 2)]


async def test_a_reminder_of_letters_that_cannot_be_written_does_not_disturb_their_task(place: Place) -> None:
    await place.write(make_batch((b"a",)))
    place.state = left_over()
    place.shares.write_dead_letters([place.key])
    led = place.shares.partitions.known(place.key)
    await place.until(lambda: place.cause)
    place.shares.write_dead_letters([place.key])
    assert place.shares.partitions.known(place.key) is led
    await place.create_letters()
    await place.settled(1)
    assert place.letters() == [0]


async def test_a_reminder_that_comes_too_late_leaves_nothing_loaded(place: Place) -> None:
    place.shares.write_dead_letters([place.key])
    assert len(place.shares.partitions) == 1
    await place.until(lambda: not len(place.shares.partitions))
    place.state = None
    place.shares.write_dead_letters([place.key])
    await place.until(lambda: not len(place.shares.partitions))


async def test_a_member_that_fetches_during_a_reminded_load_uses_it(place: Place) -> None:
    await place.write(make_batch((b"a", b"b")))
    place.shares.write_dead_letters([place.key])
    led = place.shares.partitions.known(place.key)
    assert await place.led() is led
    await asyncio.sleep(0.01)
    assert place.shares.partitions.known(place.key) is led


async def test_a_session_that_ends_during_the_load_leaves_nothing_loaded(place: Place) -> None:
    loading = asyncio.create_task(place.led())
    await place.until(lambda: len(place.shares.partitions))
    led = place.shares.partitions.known(place.key)
    assert led is not None
    led.release("m", is_unused=True)
    await loading
    await place.until(lambda: not len(place.shares.partitions))


async def test_a_reminder_has_a_limit(rig: Rig, bare: Place) -> None:
    await bare.shares.close()
    async with serving(rig, limits=replace(LIMITS, share_reminders_max=2)) as place:
        place.shares.write_dead_letters([place.key._replace(group=f"g{number}") for number in range(3)])
        assert len(place.shares.partitions) == 2


async def test_letters_that_an_earlier_leader_left_are_written_although_no_member_fetches(
    rig: Rig, bare: Place
) -> None:
    """Broker 1 also coordinates the states, for real."""
    await bare.give_group(errors_deadletterqueue_topic_name=LETTERS)
    await bare.create_letters()
    await bare.write(make_batch((b"a", b"b")))
    await bare.shares.close()
    async with serving(rig, limits=replace(LIMITS, share_reminder_interval_ms=1)) as place:
        del place.shares.states.ask  # the fake one
        await place.learn(lambda: rig.cluster.create(SHARE_GROUP_STATE, (1,)))

        async def ask(request: StateRequest) -> StateResponse:
            found = await place.shares.states.ask(request)
            assert found.error is KafkaCode.NONE, found
            return found

        await ask(InitializeState(place.key, 1, 0))
        await ask(WriteState(place.key, 1, -1, 0, (StateBatch(0, 1, Delivery.ARCHIVING, 1),)))
        await place.until(lambda: place.batches)
        assert place.letters() == [0]
        await place.until(lambda: not len(place.shares.partitions))
        state = (await ask(SummarizeState(place.key))).state
        assert state is not None
        assert (state.start_offset, state.batches) == (1, ())


class _Coordinator:
    """A share coordinator with one state of each key."""

    def __init__(self, *keys: ShareKey) -> None:
        self.machine = ShareStateMachine(ShareStateLimits(), lambda: NOW_MS)
        for number, key in enumerate(keys):
            self.machine.replay(Record(write_key(key), write_snapshot(replace(left_over(), snapshot_epoch=number))))


async def test_a_share_coordinator_reminds_itself_and_other_brokers(
    rig: Rig, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partition 0 is led here, the other topic by broker 2, and the third topic does not exist."""
    await place.learn(lambda: rig.cluster.create("elsewhere", (2,), (2,)))
    there = rig.cluster.image.topic_ids["elsewhere"]
    keys = [place.key, ShareKey("g", there, 0), ShareKey("g", there, 1), ShareKey("g", UUID(int=9), 0)]
    loading: Any = SimpleNamespace(machine=None)
    shell: Any = [loading, _Coordinator(*keys[:2]), _Coordinator(*keys[2:])]
    own: list[ShareKey] = []
    sent: list[tuple[int, Any]] = []

    async def ask(self: object, broker_id: int, api: Api, version: int, values: Any, timeout_s: float) -> None:
        assert (api, version) == (Api.WRITE_DEAD_LETTERS, 0)
        sent.append((broker_id, values["share_partitions"]))
        raise ClusterError(ApiError.BROKER_UNAVAILABLE, "no answer", retriable=True)

    monkeypatch.setattr(BrokerLinks, "ask", ask)
    limits = replace(LIMITS, share_reminder_interval_ms=1)
    reminders = ShareReminders(shell, rig.role.table.context.cluster, lambda broker_id: None, own.extend, limits)
    await reminders.look()
    assert (own, sent) == ([], [])
    running = asyncio.create_task(reminders.run())
    await place.until(lambda: len(sent) >= 2)
    running.cancel()
    await reminders.close()
    named = [{"group_id": "g", "topic_id": there, "partition": index} for index in range(2)]
    assert (own[:2], sent[:2]) == ([place.key] * 2, [(2, named)] * 2), "a lost reminder is repeated"


async def test_a_group_without_a_dead_letter_topic_has_no_task_for_letters(bare: Place) -> None:
    await bare.write(make_batch((b"a",)))
    led = await bare.led()
    await bare.fetch()
    await bare.reject(0, 1)
    await bare.settled(1)
    assert led._letter_task is None
    assert bare.produces == 0
