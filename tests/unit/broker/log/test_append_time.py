"""Records that get the time of their append, and limits for the timestamps of producers."""

from __future__ import annotations

import pytest

from broker.log import LogConfig, Refused
from broker.log.produced import Produced, check_inflated, check_produced
from broker.log.types import Appended, TimestampOffset
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import HEADER_SIZE, TIMESTAMP_TYPE_FLAG, Codec, check_batches
from tests.unit.broker.log.rig import Rig, batches_of

NOW_MS = 1_700_000_000_000
APPENDED_MS = NOW_MS + 5


def batch(codec: Codec, *ages_ms: int) -> bytes:
    return bytes(build_batch([NewRecord(b"k", b"v" * 50, NOW_MS - age) for age in ages_ms], codec))


@pytest.mark.parametrize("codec", list(Codec))
async def test_appended_records_get_the_time_of_the_append(rig: Rig, codec: Codec) -> None:
    log = rig.create()
    own, given = batch(codec, 3_000, 1_000), batch(codec, 2_000, 4_000)
    assert log.append_as_leader(own, 0, 0) == Appended(0, 2)
    assert log.append_as_leader(given, 0, 0, append_time_ms=APPENDED_MS) == Appended(2, 4)
    kept, stamped = batches_of(log)
    assert kept[HEADER_SIZE:] == own[HEADER_SIZE:]
    assert stamped[HEADER_SIZE:] == given[HEADER_SIZE:]
    headers = check_batches(stamped)  # this also checks the checksum
    assert isinstance(headers, list), headers
    assert (headers[0].max_timestamp, headers[0].base_offset) == (APPENDED_MS, 2)
    assert headers[0].attributes == int(codec) | TIMESTAMP_TYPE_FLAG


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
async def test_a_record_is_found_by_the_time_of_its_append(rig: Rig, codec: Codec) -> None:
    log = rig.create()
    log.append_as_leader(batch(codec, 0, 0), 0, 0, append_time_ms=APPENDED_MS)
    log.append_as_leader(batch(codec, 0, -100), 0, 0, append_time_ms=APPENDED_MS + 10)
    log.advance_high_watermark(4)
    assert await log.offset_for_timestamp(NOW_MS, 4) == TimestampOffset(APPENDED_MS, 0, 0)
    assert await log.offset_for_timestamp(APPENDED_MS + 1, 4) == TimestampOffset(APPENDED_MS + 10, 2, 0)
    assert await log.offset_for_timestamp(APPENDED_MS + 11, 4) is None
    assert await log.max_timestamp_offset(4) == TimestampOffset(APPENDED_MS + 10, 2, 0)


async def test_a_follower_copies_the_append_time_of_the_leader(rig: Rig) -> None:
    log = rig.create()
    log.append_as_leader(batch(Codec.NONE, 1), 0, 0, append_time_ms=APPENDED_MS)
    copied = batches_of(log)[0]
    log.truncate_to(0)
    log.append_as_follower(copied, 0, 0)
    assert batches_of(log) == [copied]


def checked(data: bytes, config: LogConfig) -> Produced | Refused:
    found = check_produced(data, config, NOW_MS)
    return check_inflated(found, 1 << 20) if isinstance(found, Produced) and config.opens_compressed else found


AGED = LogConfig(timestamp_age_max_ms=1_000, compressed_records_checked=False)
AHEAD = LogConfig(timestamp_ahead_max_ms=1_000, compressed_records_checked=False)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize(
    ("config", "ages_ms", "wanted"),
    [
        (AGED, (0, 1_000, -(10**9)), None),
        (AGED, (0, 1_001), "the timestamp is too old"),
        (AHEAD, (10**9, -1_000), None),
        (AHEAD, (0, -1_001), "the timestamp is too far in the future"),
        (AGED, (0, NOW_MS + 1), None),  # -1: no timestamp
    ],
)
def test_a_timestamp_beyond_the_limit_is_refused(
    codec: Codec, config: LogConfig, ages_ms: tuple[int, ...], wanted: str | None
) -> None:
    found = checked(batch(codec, *ages_ms), config)
    if wanted is None:
        assert isinstance(found, Produced), found
    else:
        assert isinstance(found, Refused)
        assert (found.code, [tuple(each) for each in found.record_errors]) == (
            KafkaCode.INVALID_TIMESTAMP,
            [(1, wanted)],
        )


def test_timestamp_limits_do_not_apply_to_append_times() -> None:
    config = LogConfig(append_time=True, timestamp_age_max_ms=0, timestamp_ahead_max_ms=0)
    assert isinstance(checked(batch(Codec.NONE, 5_000, -5_000), config), Produced)


def test_the_widest_timestamp_limits_do_not_overflow() -> None:
    config = LogConfig(timestamp_age_max_ms=2**63 - 2, timestamp_ahead_max_ms=2**63 - 2)
    assert isinstance(checked(batch(Codec.NONE, NOW_MS, -NOW_MS), config), Produced)
