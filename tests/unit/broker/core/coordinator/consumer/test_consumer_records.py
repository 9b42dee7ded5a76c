"""Records of consumer groups: the bytes of each are those of Apache Kafka 4.4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from broker.core.coordinator.consumer import records as r
from broker.core.coordinator.consumer.records import ConsumerKey, Kind, MemberState
from broker.core.coordinator.fields import BadRecord
from broker.core.coordinator.group_requests import MemberProtocol

TOPIC = UUID(int=(1 << 64) + 2)
TOPIC_HEX = "00000000000000010000000000000002"

VALUES: list[tuple[str, Callable[[bytes], Any], Callable[[Any], bytes], Any]] = [
    ("00000000000700", r.read_group, r.write_group, r.GroupValue(7)),
    ("0000000000070100080000000000000063", r.read_group, r.write_group, r.GroupValue(7, 99)),
    (
        "000000000263032f68030261026200000493e00000",
        r.read_member,
        r.write_member,
        r.MemberValue(None, None, "c", "/h", ("a", "b"), None, 300_000, None),
    ),
    (
        "0000026902720263032f680104782e2a000493e00672616e676500",
        r.read_member,
        r.write_member,
        r.MemberValue("i", "r", "c", "/h", (), "x.*", 300_000, "range"),
    ),
    (
        "000000000263032f6802026101000493e000010011010000afc8020672616e67650301020000",
        r.read_member,
        r.write_member,
        r.MemberValue(
            None,
            None,
            "c",
            "/h",
            ("a",),
            "",
            300_000,
            None,
            r.ClassicValue(45_000, (MemberProtocol("range", b"\1\2"),)),
        ),
    ),
    ("00000000000700", r.read_target, r.write_target, 7),
    (
        f"000002{TOPIC_HEX}0300000000000000010000",
        r.read_target_member,
        r.write_target_member,
        {TOPIC: frozenset({0, 1})},
    ),
    (
        f"000000000007000000060102{TOPIC_HEX}030000000000000001000100",
        r.read_current,
        r.write_current,
        r.CurrentValue(7, 6, MemberState.UNREVOKED, {TOPIC: frozenset({0, 1})}),
    ),
    ("00000302610262000000000000000c000000000000006300", r.read_regex, r.write_regex, r.RegexValue(("a", "b"), 12, 99)),
]

READERS: dict[Kind, Callable[[bytes], Any]] = {
    Kind.GROUP: r.read_group,
    Kind.MEMBER: r.read_member,
    Kind.TARGET: r.read_target,
    Kind.TARGET_MEMBER: r.read_target_member,
    Kind.CURRENT: r.read_current,
    Kind.REGEX: r.read_regex,
}

KEYS = [
    ("0003000167", ConsumerKey(Kind.GROUP, "g")),
    ("0004000167", ConsumerKey(Kind.PARTITION_METADATA, "g")),
    ("000500016700016d", ConsumerKey(Kind.MEMBER, "g", "m")),
    ("0006000167", ConsumerKey(Kind.TARGET, "g")),
    ("000700016700016d", ConsumerKey(Kind.TARGET_MEMBER, "g", "m")),
    ("000800016700016d", ConsumerKey(Kind.CURRENT, "g", "m")),
    ("00100001670003782e2a", ConsumerKey(Kind.REGEX, "g", "x.*")),
]


@pytest.mark.parametrize(("data", "read", "write", "value"), VALUES)
def test_values_are_read_and_written_in_kafkas_format(data: str, read: Any, write: Any, value: Any) -> None:
    assert write(value).hex() == data
    assert read(bytes.fromhex(data)) == value


@pytest.mark.parametrize(("data", "key"), KEYS)
def test_keys_are_read_and_written_in_kafkas_format(data: str, key: ConsumerKey) -> None:
    assert r.write_key(key).hex() == data
    assert r.read_key(bytes.fromhex(data)) == key


@pytest.mark.parametrize(("data", "read", "_write", "_value"), VALUES)
def test_a_truncated_or_overlong_value_is_refused(data: str, read: Any, _write: Any, _value: Any) -> None:
    whole = bytes.fromhex(data)
    for bad in (*(whole[:size] for size in range(len(whole))), whole + b"\0"):
        with pytest.raises(BadRecord):
            read(bad)


@pytest.mark.parametrize(("data", "key"), KEYS)
def test_a_truncated_or_overlong_key_is_refused(data: str, key: ConsumerKey) -> None:
    whole = bytes.fromhex(data)
    for bad in (*(whole[:size] for size in range(len(whole))), whole + b"\0"):
        with pytest.raises(BadRecord):
            r.read_key(bad)


@pytest.mark.parametrize("kind", sorted(READERS))
def test_a_value_of_another_version_is_refused(kind: Kind) -> None:
    with pytest.raises(BadRecord, match="version 1"):
        READERS[kind](b"\0\1" + bytes(40))


def test_tagged_fields_of_later_releases_are_skipped() -> None:
    # Of Kafka 4.4: the epoch at which each partition was assigned, and the creation time of the group.
    epochs = f"00000000000700000006020 2{TOPIC_HEX}0300000000000000010100090300000005000000060100".replace(" ", "")
    assert r.read_current(bytes.fromhex(epochs)).assigned == {TOPIC: frozenset({0, 1})}
    assert r.read_group(bytes.fromhex("000000000007010108") + bytes(8)) == r.GroupValue(7)


def test_a_partition_that_is_both_assigned_and_revoked_is_refused() -> None:
    place = f"02{TOPIC_HEX}020000000100"
    with pytest.raises(BadRecord, match="at the same time"):
        r.read_current(bytes.fromhex(f"0000000000070000000601{place}{place}00"))


def test_an_unknown_state_of_a_member_is_refused() -> None:
    with pytest.raises(BadRecord, match="state 3"):
        r.read_current(bytes.fromhex("0000000000070000000603010100"))


def test_a_target_assignment_that_names_a_topic_twice_is_refused() -> None:
    topic = f"{TOPIC_HEX}020000000100"
    with pytest.raises(BadRecord, match="twice"):
        r.read_target_member(bytes.fromhex(f"000003{topic}{topic}00"))


def test_a_key_of_another_type_is_not_decoded() -> None:
    assert r.read_key(b"\0\x09anything") is None
