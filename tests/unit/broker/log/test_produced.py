"""The checks of produced records before an append."""

from __future__ import annotations

import random
from functools import partial

import lz4.frame
import pytest

from broker.log import LogConfig, PartitionLog, Refused
from broker.log.produced import (
    INFLATED_FLOOR,
    INFLATED_RATIO_MAX,
    Produced,
    check_inflated,
    check_produced,
    inflated_size_max,
)
from broker.log.records import INFLATED_MAX
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import Codec, check_batches, parse_header
from quorumlog.wire.record_framing import Problem
from tests.unit.broker.log.batches import make_batch, varint
from tests.unit.broker.log.rig import Rig
from tests.unit.quorumlog.wire.framing import BadBody, bad_bodies, body_of, record, sealed

COMPRESSING = list(Codec)[1:]
SMALL_COUNTS = [bad for bad in bad_bodies() if bad.body]


def produced(data: bytes) -> Produced:
    checked = check_produced(data, LogConfig())
    assert isinstance(checked, Produced), checked
    return checked


def refused(outcome: object) -> Refused:
    assert isinstance(outcome, Refused), outcome
    return outcome


def inflated(data: bytes) -> Produced | Refused:
    batches = produced(data)
    return check_inflated(batches, inflated_size_max(batches, LogConfig()))


@pytest.fixture
async def log(rig: Rig) -> PartitionLog:
    return rig.create()


@pytest.mark.parametrize("bad", bad_bodies(), ids=lambda bad: bad.name)
def test_bad_records_without_compression_are_refused(bad: BadBody) -> None:
    refusal = refused(check_produced(sealed(bad.body, bad.record_count), LogConfig()))
    assert refusal.code == KafkaCode.INVALID_RECORD


@pytest.mark.parametrize("codec", COMPRESSING, ids=lambda codec: codec.name)
@pytest.mark.parametrize("bad", SMALL_COUNTS, ids=lambda bad: bad.name)
def test_bad_records_with_compression_are_refused_once_inflated(bad: BadBody, codec: Codec) -> None:
    refusal = refused(inflated(sealed(bad.body, bad.record_count, codec)))
    assert refusal.code == KafkaCode.INVALID_RECORD
    blamed = [] if bad.problem is Problem.BATCH_REST else [bad.record]
    assert [error.record for error in refusal.record_errors] == blamed


def test_second_batch_of_a_produce_is_checked_too() -> None:
    good, bad = body_of(record(0)), body_of(record(1))
    refusal = refused(check_produced(sealed(good, 1) + sealed(bad, 1), LogConfig()))
    assert refusal.code == KafkaCode.INVALID_RECORD
    refusal = refused(inflated(sealed(good, 1, Codec.GZIP) + sealed(good, 1) + sealed(bad, 1, Codec.LZ4)))
    assert refusal.code == KafkaCode.INVALID_RECORD


@pytest.mark.parametrize("codec", COMPRESSING, ids=lambda codec: codec.name)
def test_a_body_that_does_not_match_its_codec_is_refused(codec: Codec) -> None:
    rubbish = make_batch([b"v"], attributes=codec, compress=lambda _: b"\x00rubbish that no codec writes")
    assert refused(inflated(rubbish)).code == KafkaCode.INVALID_RECORD


def test_an_lz4_batch_that_java_clients_cannot_read_is_refused() -> None:
    values = [random.Random(1).randbytes(1_000)] * 200
    linked = make_batch(values, attributes=Codec.LZ4, compress=partial(lz4.frame.compress, block_linked=True))
    refusal = refused(inflated(linked))
    assert refusal.code == KafkaCode.INVALID_RECORD
    assert "depend on each other" in refusal.reason
    separate = make_batch(values, attributes=Codec.LZ4, compress=partial(lz4.frame.compress, block_linked=False))
    assert isinstance(inflated(separate), Produced)


@pytest.mark.parametrize("codec", COMPRESSING, ids=lambda codec: codec.name)
def test_batch_that_inflates_too_far_is_refused_as_too_large(codec: Codec) -> None:
    value = bytes(INFLATED_FLOOR)
    body = body_of(record(0, value=varint(len(value)) + value))
    batches = produced(sealed(body, 1, codec))
    limit = inflated_size_max(batches, LogConfig())
    assert limit == max(INFLATED_FLOOR, min(INFLATED_MAX, INFLATED_RATIO_MAX * batches.compressed_size))
    assert isinstance(check_inflated(batches, len(body)), Produced)
    assert refused(check_inflated(batches, len(body) - 1)).code == KafkaCode.MESSAGE_TOO_LARGE


def test_batches_of_one_produce_share_the_limit_of_the_inflated_size() -> None:
    one = sealed(body_of(record(0, value=varint(1_000) + bytes(1_000))), 1, Codec.ZSTD)
    batches = produced(one * 3)
    assert isinstance(check_inflated(batches, 3 * 1_020), Produced)
    assert refused(check_inflated(batches, 2 * 1_020)).code == KafkaCode.MESSAGE_TOO_LARGE


def test_the_inflated_size_of_a_produce_is_limited() -> None:
    tiny = produced(make_batch([b"v"], attributes=1))
    assert inflated_size_max(tiny, LogConfig()) == INFLATED_FLOOR
    noise = random.Random(1).randbytes(100_000)
    large = produced(make_batch([noise], attributes=1))
    assert inflated_size_max(large, LogConfig()) == INFLATED_MAX
    assert inflated_size_max(large, LogConfig(message_size_max=INFLATED_MAX + 1)) == INFLATED_MAX + 1
    assert produced(make_batch([b"v"])).compressed_size == 0


async def test_a_wrong_max_timestamp_is_corrected_together_with_the_checksum(log: PartitionLog) -> None:
    data = make_batch([b"a", b"b", b"c"], timestamps=[5, 9, 7], max_timestamp=10**12)
    log.append_as_leader(make_batch([b"before"]), 1, 0)
    log.append_as_leader(data, 1, 0)
    stored = log.read(1, 10_000, log.end_offset)
    headers = check_batches(stored)
    assert isinstance(headers, list), headers
    (header,) = headers
    assert (header.max_timestamp, header.base_offset, header.leader_epoch) == (9, 1, 1)
    assert stored[61:] == data[61:]


async def test_max_timestamp_of_a_compressed_batch_is_corrected_once_inflated(log: PartitionLog) -> None:
    checked = inflated(make_batch([b"a"], attributes=1, timestamps=[5], max_timestamp=10**12))
    assert isinstance(checked, Produced)
    log.append_as_leader(checked, 0, 0)
    assert parse_header(log.read(0, 10_000, 1)).max_timestamp == 5


async def test_follower_appends_acknowledged_batches_without_checking_their_records(log: PartitionLog) -> None:
    old = bytearray(sealed(body_of(record(5), record(9)), 2))
    old[12:16] = (0).to_bytes(4, "big")
    assert not isinstance(log.append_as_follower(bytes(old), 0, 0), Refused)
    assert log.end_offset == 2
    assert log.read(0, 10_000, 2) == bytes(old)


async def test_refused_batch_consumes_no_sequence(log: PartitionLog) -> None:
    def bad(sequence: int) -> bytes:
        return sealed(body_of(record(1), record(0)), 2, producer=(7, 0, sequence))

    def good(sequence: int) -> bytes:
        return sealed(body_of(record(0), record(1)), 2, producer=(7, 0, sequence))

    assert refused(log.append_as_leader(bad(0), 0, 0)).code == KafkaCode.INVALID_RECORD
    assert not isinstance(log.append_as_leader(good(0), 0, 0), Refused)
    assert refused(log.append_as_leader(bad(2), 0, 0)).code == KafkaCode.INVALID_RECORD
    assert log.end_offset == 2
    assert not isinstance(log.append_as_leader(good(2), 0, 0), Refused)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_record_without_a_key_is_refused_in_a_compacted_topic(codec: Codec) -> None:
    config = LogConfig(compacts=True)
    keyed, plain = NewRecord(b"k", b"v", timestamp_ms=1), NewRecord(None, b"v", timestamp_ms=1)
    for records, wanted in (([keyed], None), ([keyed, plain], 1)):
        checked = check_produced(build_batch(records, codec), config)
        if isinstance(checked, Produced):
            checked = check_inflated(checked, 1 << 20)
        if wanted is None:
            assert isinstance(checked, Produced)
        else:
            refusal = refused(checked)
            assert refusal.code == KafkaCode.INVALID_RECORD
            assert refusal.reason == "record 1: the topic is compacted, and the record has no key"
            assert [error.record for error in refusal.record_errors] == [wanted]
