"""The clients of the comparisons: a record that was not acknowledged fails the measurement."""

from __future__ import annotations

import pytest

from bench.clusters import KAFKA, OURS, Cluster
from bench.confluent import flush, producer


@pytest.mark.parametrize("name", [OURS, KAFKA])
def test_a_record_that_is_not_acknowledged_in_time_fails_the_measurement(name: str) -> None:
    """The queue of the client is empty afterwards, as if the record was acknowledged."""
    sender = producer(Cluster(name, "127.0.0.1:1", {}, 0.0), 0, message_timeout_ms=100)
    sender.produce("topic", b"value")
    with pytest.raises(RuntimeError, match=r"a record of topic was not acknowledged: .*timed out"):
        flush(sender, "topic")
