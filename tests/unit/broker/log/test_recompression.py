"""Batches of a topic with a codec of its own (`compression.type`) are recompressed, and otherwise stay as they are."""

from __future__ import annotations

from itertools import product

import pytest

from broker.kafka.limits import KafkaLimits
from broker.log import LogConfig, Refused, recompression
from broker.log.produced import Produced, check_produced, inflated_size_max
from broker.log.recompression import needs_recompression, recompress
from broker.log.types import Appended
from broker.replica.limits import ReplicaLimits
from quorumlog.client.kafka import FRAME_MAX_BYTES
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.wire.compression import Recompression, decompress
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import (
    CODEC_MASK,
    HEADER_SIZE,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Codec,
    check_batches,
    parse_header,
    seal,
)
from quorumlog.wire.record_framing import Problem
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.log.rig import Rig, batches_of
from tests.unit.quorumlog.wire.framing import BadBody, bad_bodies, body_of, record, sealed

PAIRS = [pair for pair in product(Codec, Codec) if pair[0] is not pair[1]]
RECORDS = [NewRecord(b"k%d" % index, b"value " * 20, 1_000 + 7 * (index % 3), (("h", b"x"),)) for index in range(50)]
OF_CODEC_AND_SIZE = {"crc", "batch_length", "attributes"}


def batch(codec: Codec, *, producer: tuple[int, int, int] = (-1, -1, -1), flags: int = 0) -> bytes:
    built = build_batch(RECORDS, codec)
    identity = dict(zip(("producer_id", "producer_epoch", "base_sequence"), producer, strict=True))
    header = parse_header(built)
    seal(built, header._replace(attributes=header.attributes | flags, **identity))
    return bytes(built)


def recompressed(data: bytes, target: Recompression, config: LogConfig | None = None) -> Produced | Refused:
    config = LogConfig() if config is None else config
    produced = check_produced(data, config)
    assert isinstance(produced, Produced), produced
    return recompress(produced, target, inflated_size_max(produced, config), config.message_size_max)


def good(outcome: Produced | Refused) -> Produced:
    assert isinstance(outcome, Produced), outcome
    assert check_batches(outcome.data) == outcome.headers, "form and checksum"
    return outcome


def refused(outcome: Produced | Refused) -> Refused:
    assert isinstance(outcome, Refused), outcome
    return outcome


def body(data: bytes | bytearray | memoryview, header: BatchHeader, position: int = 0) -> bytes:
    return bytes(decompress(header.codec, memoryview(data)[position + HEADER_SIZE : position + header.size]))


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=lambda codec: codec.name)
def test_recompression_changes_only_codec_length_and_checksum_of_a_batch(source: Codec, target: Codec) -> None:
    data = batch(source, producer=(7, 3, 2**31 - 2), flags=TRANSACTIONAL_FLAG)
    before = parse_header(data)
    outcome = good(recompressed(data, Recompression(target)))
    (after,) = outcome.headers
    changed = {name for name in before._fields if getattr(before, name) != getattr(after, name)}
    assert changed == OF_CODEC_AND_SIZE
    assert (after.codec, after.attributes & ~CODEC_MASK) == (target, before.attributes & ~CODEC_MASK)
    assert body(outcome.data, after) == body(data, before)
    assert outcome.max_timestamps == [before.max_timestamp]


@pytest.mark.parametrize("target", Codec, ids=lambda codec: codec.name)
async def test_recompressed_batches_of_several_codecs_keep_their_order_and_offsets(rig: Rig, target: Codec) -> None:
    batches = [make_batch([b"%d-%d" % (number, each) for each in range(3)]) for number in range(5)]
    data = b"".join(
        bytes(sealed(batches[codec][HEADER_SIZE:], 3, codec, base_timestamp=1_000 + codec, max_timestamp=1_000 + codec))
        for codec in Codec
    )
    outcome = good(recompressed(data, Recompression(target)))
    log = rig.create()
    assert log.append_as_leader(outcome, 0, 0) == Appended(0, 15)
    stored = batches_of(log)
    headers = [parse_header(each) for each in stored]
    assert [header.base_offset for header in headers] == [0, 3, 6, 9, 12]
    assert [header.base_timestamp for header in headers] == [1_000, 1_001, 1_002, 1_003, 1_004]
    assert {header.codec for header in headers} == {target}
    assert [body(*pair) for pair in zip(stored, headers, strict=True)] == [each[HEADER_SIZE:] for each in batches]
    assert all(isinstance(check_batches(each), list) for each in stored)


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name)
def test_a_batch_that_already_has_the_codec_is_unchanged(codec: Codec) -> None:
    own, other = batch(codec), batch(Codec.GZIP if codec is Codec.NONE else Codec.NONE)
    assert not needs_recompression(good(check_produced(own, LogConfig())), Recompression(codec, 1))
    assert needs_recompression(good(check_produced(own + other, LogConfig())), Recompression(codec, 1))
    outcome = good(recompressed(own + other, Recompression(codec, 1)))
    assert bytes(outcome.data[: len(own)]) == own


async def test_a_retry_of_an_idempotent_batch_is_recognized_after_recompression(rig: Rig) -> None:
    log = rig.create()
    first, second = (batch(Codec.NONE, producer=(5, 0, sequence)) for sequence in (0, 50))
    target = Recompression(Codec.ZSTD, 3)
    assert log.append_as_leader(good(recompressed(first, target)), 0, 0) == Appended(0, 50)
    assert log.append_as_leader(good(recompressed(second, target)), 0, 0) == Appended(50, 100)
    retries = [
        recompressed(first, target),
        recompressed(first, Recompression(Codec.GZIP)),
        check_produced(first, LogConfig()),
    ]
    for retry in retries:
        assert log.append_as_leader(good(retry), 0, 0) == Appended(0, 50, duplicate=True)
    assert log.end_offset == 100


async def test_recompressed_records_get_the_time_of_the_append(rig: Rig) -> None:
    log = rig.create()
    log.append_as_leader(
        good(recompressed(batch(Codec.GZIP), Recompression(Codec.LZ4, 9))), 0, 0, append_time_ms=99_000
    )
    (stored,) = batches_of(log)
    (header,) = good(Produced(stored, check_batches(stored), [])).headers  # type: ignore[arg-type]  # a refusal fails
    assert (header.codec, header.max_timestamp) == (Codec.LZ4, 99_000)


@pytest.mark.parametrize("target", [Codec.NONE, Codec.GZIP], ids=lambda codec: codec.name)
def test_a_batch_that_is_too_large_in_the_new_codec_is_refused(target: Codec) -> None:
    source = Codec.ZSTD if target is Codec.NONE else Codec.NONE
    data = batch(source) if target is Codec.NONE else sealed(body_of(record(0)), 1)  # gzip enlarges a tiny batch
    size = len(good(recompressed(data, Recompression(target))).data)
    assert size > len(data)
    exact = LogConfig(message_size_max=size)
    assert len(good(recompressed(data, Recompression(target), exact)).data) == size
    refusal = refused(recompressed(data, Recompression(target), LogConfig(message_size_max=size - 1)))
    assert refusal.code == KafkaCode.MESSAGE_TOO_LARGE
    assert f"batch of {size} bytes" in refusal.reason
    assert "compression.type" in refusal.reason


def test_a_batch_that_followers_could_not_receive_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """`max.message.bytes` may be larger than all requests and replies."""
    fetched_max = recompression.BATCH_SIZE_MAX + ReplicaLimits().fetcher_response_bytes
    assert KafkaLimits().frame_max_bytes <= recompression.BATCH_SIZE_MAX, "other batches are accepted in any codec"
    assert fetched_max < FRAME_MAX_BYTES - (1 << 20), "a reply must also have room for its header"
    data = batch(Codec.NONE)
    config = LogConfig(message_size_max=2**31 - 1)
    monkeypatch.setattr(recompression, "BATCH_SIZE_MAX", len(data))
    good(recompressed(batch(Codec.ZSTD), Recompression(Codec.NONE), config))
    monkeypatch.setattr(recompression, "BATCH_SIZE_MAX", len(data) - 1)
    refusal = refused(recompressed(batch(Codec.ZSTD), Recompression(Codec.NONE), config))
    assert refusal.code == KafkaCode.MESSAGE_TOO_LARGE
    assert refusal.reason.endswith(f"the limit is {len(data) - 1}")


@pytest.mark.parametrize("source", list(Codec)[1:], ids=lambda codec: codec.name)
def test_a_decompression_bomb_is_refused(source: Codec) -> None:
    data = make_batch([bytes(100_000)])
    bomb = good(check_produced(sealed(data[HEADER_SIZE:], 1, source), LogConfig()))
    assert refused(recompress(bomb, Recompression(Codec.NONE), 100_000, 2**31)).code == KafkaCode.MESSAGE_TOO_LARGE
    good(recompress(bomb, Recompression(Codec.NONE), 101_000, 2**31))


@pytest.mark.parametrize("bad", [bad for bad in bad_bodies() if bad.body], ids=lambda bad: bad.name)
def test_recompression_refuses_invalid_records_and_names_their_index(bad: BadBody) -> None:
    refusal = refused(recompressed(sealed(bad.body, bad.record_count, Codec.GZIP), Recompression(Codec.ZSTD)))
    assert refusal.code == KafkaCode.INVALID_RECORD
    assert [error.record for error in refusal.record_errors] == (
        [] if bad.problem is Problem.BATCH_REST else [bad.record]
    )


def test_a_body_that_does_not_match_its_codec_is_refused() -> None:
    rubbish = make_batch([b"v"], attributes=Codec.ZSTD, compress=lambda _: b"\x00rubbish that no codec writes")
    assert refused(recompressed(rubbish, Recompression(Codec.NONE))).code == KafkaCode.INVALID_RECORD


def test_a_record_without_key_is_refused_in_a_compacted_topic() -> None:
    refusal = refused(
        recompressed(make_batch(attributes=Codec.GZIP), Recompression(Codec.LZ4), LogConfig(compacts=True))
    )
    assert refusal.code == KafkaCode.INVALID_RECORD


def test_a_wrong_max_timestamp_is_corrected() -> None:
    wrong = sealed(body_of(record(0)), 1, Codec.GZIP, base_timestamp=1_000, max_timestamp=5_000)
    outcome = good(recompressed(wrong, Recompression(Codec.SNAPPY)))
    assert (outcome.headers[0].max_timestamp, outcome.max_timestamps) == (1_000, [1_000])
    plain = sealed(body_of(record(0)), 1, base_timestamp=1_000, max_timestamp=5_000)
    assert good(recompressed(plain, Recompression(Codec.SNAPPY))).headers[0].max_timestamp == 1_000


@pytest.mark.parametrize(
    ("codec", "levels"), [(Codec.GZIP, (1, -1, 9)), (Codec.LZ4, (1, 9, 17)), (Codec.ZSTD, (-131_072, 0, 3, 22))]
)
def test_a_higher_compression_level_makes_a_smaller_batch(codec: Codec, levels: tuple[int, ...]) -> None:
    """levels: in ascending order of effort; gzip's -1 means 6."""
    records = [NewRecord(None, b"%d %x" % (index * index, index ^ 0xA5A5), 1_000) for index in range(2_000)]
    data = bytes(build_batch(records))
    outcomes = [good(recompressed(data, Recompression(codec, level))) for level in levels]
    assert {body(each.data, each.headers[0]) for each in outcomes} == {data[HEADER_SIZE:]}
    assert len(outcomes[-1].data) < len(outcomes[0].data)
