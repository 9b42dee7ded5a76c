"""The clients of the comparisons: a record that was not acknowledged fails the measurement."""

from __future__ import annotations

import pytest

from bench.clusters import KAFKA, OURS, Cluster
from bench.confluent import BYTES_A_POLL, RECORDS_A_POLL, VALUES, at_most, flush, producer, values_of


@pytest.mark.parametrize("name", [OURS, KAFKA])
def test_a_record_that_is_not_acknowledged_in_time_fails_the_measurement(name: str) -> None:
    """The queue of the client is empty afterwards, as if the record was acknowledged."""
    sender = producer(Cluster(name, "127.0.0.1:1", {}, 0.0), 0, message_timeout_ms=100)
    sender.produce("topic", b"value")
    with pytest.raises(RuntimeError, match=r"a record of topic was not acknowledged: .*timed out"):
        flush(sender, "topic")


def test_values_have_their_size_and_differ() -> None:
    values = values_of(100)
    assert len(set(values)) == VALUES
    assert {len(value) for value in values} == {100}


def test_large_records_are_fewer_so_that_their_bytes_have_a_bound() -> None:
    assert at_most(RECORDS_A_POLL, 10_000) == RECORDS_A_POLL
    assert at_most(RECORDS_A_POLL, 1_000_000) == BYTES_A_POLL // 1_000_000
    assert at_most(RECORDS_A_POLL, BYTES_A_POLL + 1) == 1
