"""Records of `__consumer_offsets`: Kafka's format in all versions, and the refusal of damaged records."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from broker.core.coordinator import records as r
from broker.core.coordinator.fields import BadRecord

MEMBER = r.MemberValue("m", None, "c", "/h", 5, 6, b"s", b"")
GROUP = r.GroupValue("consumer", 7, "range", "m", 9, (MEMBER,))
HEAD = b"\0\x08consumer" + b"\0\0\0\x07" + b"\0\x05range" + b"\0\x01m"
TAIL = b"\0\0\0\x06" + b"\0\0\0\x01s" + b"\0\0\0\0"
TIME = b"\0\0\0\0\0\0\0\x09"
ONE = b"\0\0\0\x01"
GROUPS = {
    0: b"\0\0" + HEAD + ONE + b"\0\x01m\0\x01c\0\x02/h" + TAIL,
    1: b"\0\x01" + HEAD + ONE + b"\0\x01m\0\x01c\0\x02/h\0\0\0\x05" + TAIL,
    2: b"\0\x02" + HEAD + TIME + ONE + b"\0\x01m\0\x01c\0\x02/h\0\0\0\x05" + TAIL,
    3: b"\0\x03" + HEAD + TIME + ONE + b"\0\x01m\xff\xff\0\x01c\0\x02/h\0\0\0\x05" + TAIL,
    4: b"\0\x04\x09consumer\0\0\0\x07\x06range\x02m"
    + TIME
    + b"\x02\x02m\0\x02c\x03/h\0\0\0\x05\0\0\0\x06\x02s\x01\0\0",
}
AT = b"\0\0\0\0\0\0\0\x2a"
TOPIC = UUID(int=5)
OFFSETS = {
    0: b"\0\0" + AT + b"\0\x01x" + TIME,
    1: b"\0\x01" + AT + b"\0\x01x" + TIME + AT,
    2: b"\0\x02" + AT + b"\0\x01x" + TIME,
    3: b"\0\x03" + AT + b"\0\0\0\x03\0\x01x" + TIME,
    4: b"\0\x04" + AT + b"\0\0\0\x03\x02x" + TIME + b"\x02\0\x10" + TOPIC.bytes + b"\x01\x02ab",
}


@pytest.mark.parametrize("version", GROUPS)
def test_each_version_of_a_group_is_read(version: int) -> None:
    group = r.read_group(GROUPS[version])
    assert (group.protocol_type, group.generation, group.protocol, group.leader) == ("consumer", 7, "range", "m")
    assert group.state_ms == (9 if version >= 2 else r.NO_TIME)
    (member,) = group.members
    assert (member.rebalance_timeout_ms, member.session_timeout_ms) == (5 if version >= 1 else 6, 6)
    assert (member.client_host, member.subscription, member.assignment) == ("/h", b"s", b"")


@pytest.mark.parametrize("version", OFFSETS)
def test_each_version_of_an_offset_is_read(version: int) -> None:
    epoch, expire_ms = (3 if version >= 3 else -1), (42 if version == 1 else r.NO_TIME)
    assert r.read_offset(OFFSETS[version]) == r.OffsetValue(
        42, epoch, "x", 9, expire_ms, TOPIC if version == 4 else None
    )


def test_values_are_written_in_kafkas_format() -> None:
    assert r.write_group(GROUP) == GROUPS[3]
    assert r.write_offset(r.OffsetValue(42, 3, "x", 9)) == OFFSETS[3]
    assert r.write_offset(r.OffsetValue(42, -1, "x", 9, 42)) == OFFSETS[1]


def test_keys_are_read_and_written_in_kafkas_format() -> None:
    offset, group = r.OffsetKey("g", "t", 2), r.GroupKey("g")
    assert r.write_key(offset) == b"\0\x01\0\x01g\0\x01t\0\0\0\x02"
    assert r.write_key(group) == b"\0\x02\0\x01g"
    assert r.read_key(b"\0\0\0\x01g\0\x01t\0\0\0\x02") == offset == r.read_key(r.write_key(offset))
    assert r.read_key(r.write_key(group)) == group


def test_a_key_of_an_unknown_type_is_not_decoded() -> None:
    assert r.read_key(b"\0\x03anything") is None


@pytest.mark.parametrize("data", [*GROUPS.values()])
def test_a_truncated_or_overlong_group_record_is_refused(data: bytes) -> None:
    for bad in (*(data[:size] for size in range(len(data))), data + b"\0"):
        with pytest.raises(BadRecord):
            r.read_group(bad)


@pytest.mark.parametrize("other", [MEMBER, replace(MEMBER, member_id="n", instance_id="i")])
def test_a_group_record_with_two_members_of_the_same_member_or_instance_id_is_refused(other: r.MemberValue) -> None:
    first = replace(MEMBER, instance_id="i")
    with pytest.raises(BadRecord, match="same id"):
        r.read_group(r.write_group(replace(GROUP, members=(first, other))))


def test_an_offset_record_of_an_unknown_version_is_refused() -> None:
    with pytest.raises(BadRecord, match="version 5"):
        r.read_offset(b"\0\x05" + OFFSETS[3][2:])


def test_a_group_name_that_does_not_fit_into_a_key_is_refused() -> None:
    with pytest.raises(BadRecord, match="32768"):
        r.write_key(r.GroupKey("g" * 32768))


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_read_or_refused_with_bad_record(data: bytes) -> None:
    for read in (r.read_key, r.read_offset, r.read_group):
        try:
            read(data)
        except BadRecord:
            continue
