"""The partition of a key: Java's hash of a string without its sign, as Kafka's clients and tools compute it."""

from __future__ import annotations

import pytest

from broker.core.coordinator.placement import partition_of


@pytest.mark.parametrize(
    ("key", "java_hash"),
    [
        ("", 0),
        ("a", 97),
        ("abc", 96_354),
        ("polygenelubricants", -(2**31)),
        ("\N{GRINNING FACE}", 1_772_899),
        ("caf\u00e9", 3_045_921),
    ],
)
def test_a_key_is_placed_by_javas_string_hash_without_its_sign(key: str, java_hash: int) -> None:
    assert partition_of(key, 2**31) == java_hash & 0x7FFFFFFF
    assert partition_of(key, 50) == (java_hash & 0x7FFFFFFF) % 50
