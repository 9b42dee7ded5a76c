"""Any batches in any codec: recompression keeps every record, and refuses each damaged body that the check refuses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.log import LogConfig, Refused
from broker.log.produced import INFLATED_FLOOR, Produced, check_inflated, check_produced
from broker.log.recompression import recompress
from quorumlog.client.records import NewRecord, build_batch, decode_batches
from quorumlog.wire.compression import Recompression
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import HEADER_SIZE, Codec, check_batches, parse_header, patch, seal

small = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(tuple)
records = st.lists(st.builds(NewRecord, small, small, st.integers(0, 2**41), headers), min_size=1, max_size=20)
sent = st.lists(st.tuples(records, st.sampled_from(Codec)), min_size=1, max_size=4)
targets = st.sampled_from(
    [Recompression(codec) for codec in Codec]
    + [Recompression(Codec.GZIP, 9), Recompression(Codec.LZ4, 12), Recompression(Codec.ZSTD, -5)]
)


def changed(data: bytes, target: Recompression, size_max: int = 1 << 20) -> Produced | Refused:
    produced = check_produced(data, LogConfig())
    return recompress(produced, target, INFLATED_FLOOR, size_max) if isinstance(produced, Produced) else produced


@given(sent, targets)
def test_recompression_keeps_records_offsets_and_times(
    sent: list[tuple[list[NewRecord], Codec]], target: Recompression
) -> None:
    data, offset = bytearray(), 0
    for each, codec in sent:
        batch = build_batch(each, codec)
        patch(batch, offset, 0)
        offset += len(each)
        data += batch
    outcome = changed(bytes(data), target)
    assert isinstance(outcome, Produced), outcome
    assert check_batches(outcome.data) == outcome.headers
    assert {header.codec for header in outcome.headers} == {target.codec}
    assert list(decode_batches(outcome.data)) == list(decode_batches(data))
    again = changed(bytes(outcome.data), target)
    assert isinstance(again, Produced)
    assert again.data == outcome.data


@given(records, st.sampled_from(list(Codec)[1:]), st.data(), targets)
def test_recompression_refuses_a_damaged_body_like_the_check(
    sent: list[NewRecord], codec: Codec, draw: st.DataObject, target: Recompression
) -> None:
    batch = build_batch(sent, codec)
    position = draw.draw(st.integers(HEADER_SIZE, len(batch) - 1))
    batch[position] ^= draw.draw(st.integers(1, 255))
    seal(batch, parse_header(batch))
    produced = check_produced(bytes(batch), LogConfig())
    assert isinstance(produced, Produced), produced
    checked, outcome = check_inflated(produced, INFLATED_FLOOR), changed(bytes(batch), target)
    if isinstance(checked, Refused):
        assert outcome == checked
        assert outcome.code in (KafkaCode.INVALID_RECORD, KafkaCode.INVALID_TIMESTAMP, KafkaCode.MESSAGE_TOO_LARGE)
    else:  # the damage is in the contents of a record, or in a part that the codec does not check
        assert isinstance(outcome, Produced)
        assert list(decode_batches(outcome.data)) == list(decode_batches(batch))
