"""Dead letters of share groups: their contents, their topics and partitions, and failures of their writes."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from broker.coordinator import dead_letters
from broker.coordinator.limits import CoordinatorLimits
from broker.core.coordinator.share.states import (
    ShareState,
)
from broker.core.share.partition import AckType, Delivery, StateBatch
from broker.kafka.api import ProduceResult
from metadata.control.features import upgrade_feature
from metadata.records import METADATA_VERSION, ConfigScope
from quorumlog.client.record_codec import NewRecord, build_batch
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import Codec
from tests.unit.broker.coordinator.dead_letter_rig import (
    ADMITS,
    CONTROL,
    LETTERS,
    LIMITS,
    Place,
    bare,
    place,
    serving,
)
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.replica.rig import TOPIC, Rig

__all__ = ["bare", "place"]  # fixtures


# -- letters


async def test_a_rejected_record_gets_a_dead_letter_without_its_key_and_value(place: Place) -> None:
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
async def test_a_dead_letter_copies_its_record_if_the_group_enables_copies(place: Place, codec: Codec) -> None:
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


async def test_a_record_that_was_delivered_too_often_gets_a_dead_letter(place: Place) -> None:
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


async def test_an_accepted_record_and_a_gap_get_no_dead_letter(place: Place) -> None:
    await place.create_letters()
    await place.write(make_batch((b"a", b"b")))
    await place.fetch()
    assert await place.acknowledge(0, 2, AckType.ACCEPT, AckType.GAP) is KafkaCode.NONE
    await place.settled(2)
    assert place.batches == []


async def test_offsets_without_records_get_no_dead_letter(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_an_unreadable_batch_gets_a_dead_letter_for_each_of_its_offsets(
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


async def test_dead_letters_of_many_records_are_written_as_one_batch(place: Place) -> None:
    await place.create_letters()
    await place.write(*[make_batch((b"v",) * 50) for _ in range(10)])
    await place.fetch()
    await place.reject(0, 500)
    await place.settled(500)
    assert place.letters() == list(range(500))
    assert place.produces == 1


async def test_batches_of_dead_letters_stay_within_max_message_bytes_of_their_topic(place: Place) -> None:
    await place.create_letters(max_message_bytes="1000")
    await place.write(make_batch((b"v",) * 20))
    await place.fetch()
    await place.reject(0, 20)
    await place.settled(20)
    assert place.letters() == list(range(20))
    assert place.produces > 4
    assert all(len(batch) <= 1_000 for _, batch in place.batches)


async def test_dead_letters_of_one_source_partition_go_to_one_partition_of_the_dead_letter_topic(place: Place) -> None:
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


async def test_a_failed_write_of_a_dead_letter_is_repeated(place: Place) -> None:
    await place.create_letters()
    place.codes = [KafkaCode.NOT_ENOUGH_REPLICAS, KafkaCode.NOT_LEADER_OR_FOLLOWER, KafkaCode.REQUEST_TIMED_OUT]
    await place.write(make_batch((b"a",)))
    await place.fetch()
    await place.reject(0, 1)
    await place.settled(1)
    assert place.letters() == [0]
    assert place.produces == 4


async def test_a_dead_letter_whose_write_has_an_unknown_outcome_is_written_again(place: Place) -> None:
    await place.create_letters()
    place.codes = [KafkaCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
    await place.write(make_batch((b"a",)))
    await place.fetch()
    await place.reject(0, 1)
    await place.settled(1)
    assert place.letters() == [0, 0]


async def test_dead_letters_wait_until_their_topic_exists_and_admits_them(place: Place) -> None:
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


async def test_dead_letters_are_not_sent_to_an_unregistered_leader_or_a_topic_without_the_required_prefix(
    place: Place,
) -> None:
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


async def test_creating_the_missing_topic_retries_dead_letters_before_the_retry_pause_ends(
    rig: Rig, bare: Place
) -> None:
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


async def test_a_dead_letter_that_is_too_large_does_not_delay_other_dead_letters(place: Place) -> None:
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


async def test_a_slow_write_of_a_dead_letter_delays_neither_fetches_nor_acknowledgements(place: Place) -> None:
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


async def test_an_unanswered_write_of_a_dead_letter_is_repeated_after_its_deadline(rig: Rig, bare: Place) -> None:
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


async def test_a_missing_dead_letter_topic_is_created_only_if_the_cluster_permits_automatic_creation(
    place: Place,
) -> None:
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


async def test_a_failed_creation_of_a_dead_letter_topic_does_not_block_the_creation_of_another_topic(rig: Rig) -> None:
    upgrade = lambda image: upgrade_feature(image, METADATA_VERSION, None, validate_only=False)  # noqa: E731
    assert rig.cluster.execute(upgrade).outcome.ok
    await rig.create((1,))
    async with serving(rig, limits=replace(LIMITS, share_letter_creations_max=1)) as place:
        await place.give(ConfigScope.CLUSTER, "", errors_deadletterqueue_auto_create_topics_enable="true")
        await place.write(make_batch((b"a",)))
        await place.give_group(errors_deadletterqueue_topic_name="dlq.wrong")
        await place.fetch()
        await place.reject(0, 1)
        await place.until(lambda: "controller" in place.cause)
        await place.give_group(errors_deadletterqueue_topic_name=LETTERS)
        await place.until(lambda: LETTERS in [each.name for each in place.created])


# -- dead letters that are not needed, or no longer


async def test_a_group_without_a_dead_letter_topic_starts_no_task_for_dead_letters(bare: Place) -> None:
    await bare.write(make_batch((b"a",)))
    led = await bare.led()
    await bare.fetch()
    await bare.reject(0, 1)
    await bare.settled(1)
    assert led._letter_task is None
    assert bare.produces == 0


async def test_records_are_archived_without_dead_letters_once_the_group_has_no_dead_letter_topic(place: Place) -> None:
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


async def test_records_below_the_log_start_get_no_dead_letter(place: Place) -> None:
    await place.write(make_batch((b"a",)), make_batch((b"b",)), make_batch((b"c",)))
    await place.fetch()
    await place.reject(0, 3)
    await place.until(lambda: place.cause)
    place.rig.replicas.start_delete(TOPIC, 0, 2, 1_000)
    assert place.rig.log.start_offset == 2
    await place.create_letters()
    await place.settled(3)
    assert place.letters() == [2]


async def test_dead_letters_of_deleted_records_no_longer_wait_for_their_topic(place: Place) -> None:
    await place.write(make_batch((b"a",)), make_batch((b"b",)))
    await place.fetch()
    await place.reject(0, 1)
    await place.until(lambda: place.cause)
    place.rig.replicas.start_delete(TOPIC, 0, 1, 1_000)
    await place.until(lambda: not place.shares.letters.failing)


async def test_dead_letters_of_a_deleted_group_are_not_written(place: Place) -> None:
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


async def test_a_deleted_group_with_missing_dead_letters_leaves_no_share_partition_loaded(place: Place) -> None:
    await place.write(make_batch((b"a",)))
    await place.fetch()
    await place.reject(0, 1)
    await place.until(lambda: place.cause)
    (await place.led()).release("m", is_used=False)
    place.state = None
    await place.until(lambda: len(place.shares.partitions) == 0)


# -- leaders


async def test_a_new_leader_writes_the_dead_letter_that_a_failed_leader_did_not_write(rig: Rig, place: Place) -> None:
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


async def test_a_leader_that_fails_between_a_dead_letter_and_its_save_causes_a_second_dead_letter(
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


async def test_no_dead_letter_is_written_before_the_archiving_state_is_durable(place: Place) -> None:
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


async def test_a_share_partition_without_sessions_stays_loaded_until_its_dead_letters_are_written(place: Place) -> None:
    await place.write(make_batch((b"a", b"b")))
    led = await place.led()
    await place.fetch()
    await place.reject(0, 1)
    await place.until(lambda: place.cause)
    led.release("m", is_used=False)
    await asyncio.sleep(0.02)
    assert place.shares.partitions.known(place.key) is led
    await place.create_letters()
    await place.settled(1)
    await place.until(lambda: place.shares.partitions.known(place.key) is None)


async def test_a_session_that_begins_after_a_reset_reads_the_new_state_despite_missing_dead_letters(
    place: Place,
) -> None:
    await place.write(make_batch((b"a", b"b")))
    led = await place.led()
    await place.fetch()
    await place.reject(0, 2)
    await place.until(lambda: place.cause)
    led.release("m", is_used=False)
    place.state = ShareState(0, 4, 0, 1)
    assert await place.fetch() == [(1, 2)]
    assert led.has_ended
