"""Keys get the same partitions as with Kafka's own clients."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_murmur2

from quorumlog.client.partitioner import murmur2, partition_of


def test_murmur2_returns_known_hashes() -> None:
    assert murmur2(b"21") == -973932308 & 0xFFFFFFFF  # from Kafka's own test
    assert murmur2(b"foobar") == -790332482 & 0xFFFFFFFF
    assert murmur2(b"a-little-bit-long-string") == -985981536 & 0xFFFFFFFF


@given(st.binary(max_size=64))
def test_partitions_equal_those_of_kafka_python(key: bytes) -> None:
    assert murmur2(key) == kafka_murmur2(key) & 0xFFFFFFFF
    assert partition_of(key, 7) == (kafka_murmur2(key) & 0x7FFFFFFF) % 7
