from __future__ import annotations

import asyncio
from itertools import accumulate
from typing import Any

import pytest

from broker.log import Appended, LogConfig, Refused
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import iter_headers
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.log.rig import KEY, SMALL, Rig, append, batches_of, fill


def code_of(outcome: Appended | Refused) -> int:
    assert isinstance(outcome, Refused), outcome
    return outcome.code


async def test_a_leader_sets_the_offsets_and_the_leader_epoch_of_appended_batches(rig: Rig) -> None:
    log = rig.create()
    sent = make_batch([b"a", b"b"]) + make_batch([b"c"])
    assert log.append_as_leader(sent, 4, 0) == Appended(0, 3)
    assert log.append_as_leader(memoryview(sent), 4, 0) == Appended(3, 6)
    headers = [header for _, header in iter_headers(log.read(0, 10_000, 6))]
    assert [(one.base_offset, one.leader_epoch, one.record_count) for one in headers] == [
        (0, 4, 2),
        (2, 4, 1),
        (3, 4, 2),
        (5, 4, 1),
    ]
    assert sent == make_batch([b"a", b"b"]) + make_batch([b"c"])  # the bytes of the caller are unchanged


async def test_a_refused_append_changes_nothing(rig: Rig) -> None:
    log = rig.create(LogConfig(message_size_max=200))
    append(log, [b"a"])
    assert code_of(log.append_as_leader(make_batch(crc=1), 0, 0)) == KafkaCode.CORRUPT_MESSAGE
    assert (
        code_of(log.append_as_leader(make_batch() + make_batch(magic=1), 0, 0))
        == KafkaCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    )
    assert code_of(log.append_as_leader(make_batch([b"x" * 300]), 0, 0)) == KafkaCode.MESSAGE_TOO_LARGE
    assert code_of(log.append_as_leader(make_batch(producer=(5, 0, 9)), 0, 0)) == KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code_of(log.append_as_leader(b"", 0, 0)) == KafkaCode.INVALID_RECORD
    assert log.end_offset == 1
    assert len(batches_of(log)) == 1


async def test_a_retry_gets_the_offsets_of_the_first_attempt(rig: Rig) -> None:
    log = rig.create()
    first = append(log, [b"a", b"b"], producer=(5, 0, 0))
    append(log, [b"c"], producer=(5, 0, 2))
    again = append(log, [b"a", b"b"], producer=(5, 0, 0))
    assert again == Appended(first.first_offset, first.end_offset, duplicate=True)
    assert log.end_offset == 3


async def test_a_follower_appends_batches_unchanged(rig: Rig) -> None:
    log = rig.create()
    one = make_batch([b"a", b"b"], base_offset=0, leader_epoch=2, producer=(5, 0, 40))  # its sequence is not checked
    two = make_batch([b"c"], base_offset=2, leader_epoch=3)
    assert log.append_as_follower(one + two, 3, 0) == Appended(0, 3)
    assert log.read(0, 10_000, 3) == one + two
    assert log.epochs.entries == ((2, 0), (3, 2))
    assert log.append_as_follower(b"", 3, 0) == Appended(3, 3)
    retry = log.append_as_leader(make_batch([b"a", b"b"], producer=(5, 0, 40)), 4, 0)
    assert retry == Appended(0, 2, duplicate=True)


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (make_batch(base_offset=4, leader_epoch=1), KafkaCode.CORRUPT_MESSAGE),
        (make_batch(base_offset=2, leader_epoch=1), KafkaCode.CORRUPT_MESSAGE),
        (make_batch(base_offset=3, leader_epoch=0), KafkaCode.CORRUPT_MESSAGE),
        (make_batch(base_offset=3, leader_epoch=9), KafkaCode.UNKNOWN_LEADER_EPOCH),
        (make_batch(base_offset=3, leader_epoch=1, crc=0), KafkaCode.CORRUPT_MESSAGE),
        (make_batch(base_offset=3, leader_epoch=1)[:-1], KafkaCode.CORRUPT_MESSAGE),
        (
            make_batch(base_offset=3, leader_epoch=1) + make_batch(base_offset=5, leader_epoch=1),
            KafkaCode.CORRUPT_MESSAGE,
        ),
    ],
)
async def test_a_follower_appends_only_batches_that_continue_its_log(rig: Rig, batch: bytes, code: KafkaCode) -> None:
    log = rig.create()
    append(log, [b"a", b"b", b"c"], epoch=1)
    assert code_of(log.append_as_follower(batch, 2, 0)) == code
    assert log.end_offset == 3
    assert len(batches_of(log)) == 1


async def test_a_follower_in_an_epoch_without_records_appends_older_batches(rig: Rig) -> None:
    log = rig.create()
    append(log, [b"a"], epoch=1)
    log.begin_epoch(5)
    assert log.epochs.latest == 5
    assert log.append_as_follower(make_batch(base_offset=1, leader_epoch=2), 6, 0) == Appended(1, 2)
    assert log.epochs.entries == ((1, 0), (2, 1))


async def test_a_read_returns_whole_batches_within_its_limit(rig: Rig) -> None:
    log = rig.create(LogConfig(index_interval=100))
    batches = fill(log, 50)
    ends, offset = [], 0
    for batch in batches:
        offset += int.from_bytes(batch[23:27], "big") + 1
        ends.append(offset)
    assert log.end_offset == offset
    everything = log.read(0, 1 << 20, offset)
    assert everything == b"".join(batches)
    assert log.read(0, 1, offset) == batches[0]  # the first batch is always whole
    assert log.read(ends[0], len(batches[1]) + len(batches[2]) + 1, offset) == batches[1] + batches[2]
    assert log.read(ends[10] - 1, 1, offset) == batches[10]  # from the middle of a batch: the whole batch
    assert log.read(0, 1 << 20, ends[3]) == b"".join(batches[:4])
    assert log.read(0, 1 << 20, ends[3] + 1) == b"".join(batches[: 5 if ends[3] + 1 == ends[4] else 4])
    assert log.read(ends[3], 1 << 20, ends[3]) == b""
    assert log.read(offset, 1 << 20, offset) == b""


async def test_the_size_from_an_offset_on_counts_whole_batches(rig: Rig) -> None:
    log = rig.create()
    assert log.size_from(0) == 0
    batches = fill(log, 60)
    assert len(log.segments) > 1
    ends = list(accumulate(1 + number % 3 for number in range(60)))
    for number, end in enumerate(ends):
        assert log.size_from(end - 1) == sum(map(len, batches[number:]))
        assert log.size_from(end) == sum(map(len, batches[number + 1 :]))
    assert log.size_from(log.end_offset + 5) == 0
    assert log.size_from(0) == log.size
    await rig.restart(clean=True)
    assert [rig.log.size_from(end) for end in ends[::7]] == [sum(map(len, batches[at + 1 :])) for at in range(60)[::7]]


async def test_segments_roll_by_size_and_by_age(rig: Rig) -> None:
    log = rig.create(LogConfig(segment_size_max=300, segment_age_max_ms=1_000))
    for number in range(10):
        append(log, [b"x" * 20], now_ms=0)
        assert all(segment.size <= 300 for segment in log.segments), number
    by_size = len(log.segments)
    assert by_size == 4
    append(log, [b"x"], now_ms=999)
    append(log, [b"x"], now_ms=1_500)
    assert len(log.segments) == by_size + 1
    append(log, [b"x" * 1_000], now_ms=1_500)  # a batch that is larger than a segment gets a segment of its own
    assert log.segments[-1].size > 1_000
    assert len(batches_of(log)) == 13
    assert [int(path.stem) for path in rig.files(log)] == [segment.base_offset for segment in log.segments]


async def test_a_truncation_keeps_the_whole_batches_below_its_offset(rig: Rig) -> None:
    for offset in range(42):
        key = type(KEY)(KEY.topic_id, offset, 1)
        log = rig.create(key=key)
        for number in range(20):
            append(log, [b"%d" % number, b"-"], epoch=number // 4, producer=(5, 0, 2 * number))
        before = batches_of(log)
        log.truncate_to(offset)
        kept = min(offset // 2, 20)
        assert batches_of(log) == before[:kept]
        assert log.end_offset == 2 * kept
        assert log.epochs.latest == (kept - 1) // 4 if kept else log.epochs.latest == -1
        producer = log.producers.get(5)
        assert (producer.last_sequence if producer else -1) == 2 * kept - 1
        append(log, [b"new"], epoch=9)
        assert len(batches_of(log)) == kept + 1


async def test_committed_records_are_never_truncated(rig: Rig) -> None:
    log = rig.create()
    fill(log, 10)
    await rig.settle(log)
    await rig.logs.checkpoint([log])
    floor = log.truncation_floor
    assert floor == log.high_watermark == log.end_offset
    with pytest.raises(AssertionError, match="below"):
        log.truncate_to(floor - 1)
    await rig.logs.lower_truncation_floor(log, 5)
    log.truncate_to(5)
    assert log.end_offset <= 5
    end_offset = log.end_offset
    await rig.restart(clean=False)
    assert rig.log.end_offset == end_offset


async def test_a_flush_of_records_that_were_truncated_meanwhile_does_not_raise_the_flushed_offset(rig: Rig) -> None:
    log = rig.create()
    append(log, [b"a"])
    append(log, [b"b"])
    ticket = log.durability.take_ticket()
    log.truncate_to(1)
    append(log, [b"B"], epoch=1)
    log.durability.flush_done(ticket)
    assert log.flushed_offset == 0
    await rig.logs.flush_all([log])
    assert log.flushed_offset == 2


async def test_a_wait_for_a_flush_ends_if_its_records_are_truncated(rig: Rig) -> None:
    log = rig.create()
    append(log, [b"a"])
    await rig.logs.flush_all([log])
    append(log, [b"b"])
    waiting = asyncio.ensure_future(rig.logs.flush_all([log]))
    await asyncio.sleep(0)
    log.truncate_to(1)
    await waiting
    assert log.flushed_offset == log.end_offset == 1


async def test_many_waiters_share_few_flushes(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    flushes = 0
    original = rig.disk.flush

    async def counted(*arguments: Any) -> None:
        nonlocal flushes
        flushes += 1
        await original(*arguments)

    monkeypatch.setattr(rig.disk, "flush", counted)
    logs = [rig.create(key=type(KEY)(KEY.topic_id, number, 1)) for number in range(30)]
    seen: list[int] = []
    logs[0].durability.on_flushed = lambda: seen.append(logs[0].flushed_offset)

    async def write(number: int) -> None:
        log = logs[number % len(logs)]
        appended = append(log, [b"x"])
        await rig.logs.flush_all([log])
        assert log.flushed_offset >= appended.end_offset

    await asyncio.gather(*(write(number) for number in range(300)))
    assert 1 <= flushes <= 3
    assert seen == sorted(set(seen))
    assert seen[-1] == logs[0].end_offset == 10


async def test_the_high_watermark_and_the_log_start_offset_never_move_back(rig: Rig) -> None:
    log = rig.create()
    fill(log, 10)
    log.advance_high_watermark(8)
    log.advance_high_watermark(3)
    assert log.high_watermark == 8
    log.advance_start_offset(4)
    log.advance_start_offset(2)
    assert log.start_offset == 4
    log.advance_start_offset(100)
    assert log.start_offset == 8
    log.advance_high_watermark(1_000)
    assert log.high_watermark == log.end_offset


async def test_a_changed_segment_size_applies_to_the_next_append(rig: Rig) -> None:
    log = rig.create()
    log.config = LogConfig()
    fill(log, 50)
    assert len(log.segments) == 1
    log.config = SMALL
    append(log, [b"x"])
    assert len(log.segments) == 2
