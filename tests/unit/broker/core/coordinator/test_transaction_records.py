"""Records of `__transaction_state`: Kafka's format in both versions, and the refusal of damaged records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.coordinator.fields import BadRecord
from broker.core.coordinator.transaction_records import (
    TransactionState,
    TransactionValue,
    read_transaction,
    read_transaction_key,
    write_transaction,
    write_transaction_key,
)

INT64 = st.integers(-(2**63), 2**63 - 1)
VALUES = st.builds(
    TransactionValue,
    INT64,
    st.integers(0, 2**15 - 1),
    st.integers(0, 2**31 - 1),
    st.sampled_from([state for state in TransactionState if state is not TransactionState.EMPTY]),
    st.sets(st.tuples(st.text(max_size=5), st.integers(0, 99)), max_size=5).map(lambda found: tuple(sorted(found))),
    INT64,
    INT64,
    st.integers(0, 2),
    INT64,
    INT64,
)


@given(VALUES, st.text(max_size=20))
def test_a_state_is_read_as_it_was_written(value: TransactionValue, name: str) -> None:
    assert read_transaction(write_transaction(value)) == value
    assert read_transaction_key(write_transaction_key(name)) == name


def test_a_transaction_record_in_state_empty_is_read_as_it_was_written() -> None:
    value = TransactionValue(1, 2, 3, TransactionState.EMPTY, (), 4, 5)
    assert read_transaction(write_transaction(value)) == value


def test_transaction_records_are_written_in_kafkas_format() -> None:
    value = TransactionValue(1, 2, 3, TransactionState.ONGOING, (("t", 0), ("t", 4)), 5, 6)
    text = "0000 0000000000000001 0002 00000003 01 00000001 0001 74 00000002 00000000 00000004"
    assert write_transaction(value) == bytes.fromhex(text + "0000000000000005 0000000000000006")
    assert write_transaction_key("id") == bytes.fromhex("0000 0002 6964")


def test_the_flexible_version_is_read() -> None:
    text = "0001 0000000000000001 0002 00000003 01 02 02 74 02 00000004 00 0000000000000005 0000000000000006"
    tags = "01 00 08 0000000000000009"
    wanted = TransactionValue(1, 2, 3, TransactionState.ONGOING, (("t", 4),), 5, 6, previous_id=9)
    assert read_transaction(bytes.fromhex(text + tags)) == wanted
    assert write_transaction(wanted) == bytes.fromhex(text + tags)


def test_a_tagged_field_of_the_wrong_size_is_refused() -> None:
    text = "0001 0000000000000001 0002 00000003 01 01 0000000000000005 0000000000000006"
    with pytest.raises(BadRecord, match="tag 2 has 1 bytes"):
        read_transaction(bytes.fromhex(text + "01 02 01 09"))


def test_a_key_of_another_type_is_not_decoded() -> None:
    assert read_transaction_key(b"\0\7anything") is None


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_read_or_refused_with_bad_record(data: bytes) -> None:
    for read in (read_transaction, read_transaction_key):
        try:
            read(data)
        except BadRecord:
            continue


@given(VALUES, st.data())
def test_a_truncated_or_overlong_value_is_refused(value: TransactionValue, draw: st.DataObject) -> None:
    data = write_transaction(value)
    with pytest.raises(BadRecord):
        read_transaction(data[: draw.draw(st.integers(0, len(data) - 1))])
    with pytest.raises(BadRecord):
        read_transaction(data + b"\0")


@pytest.mark.parametrize("state", [7, 127])
def test_an_unknown_state_is_refused(state: int) -> None:
    data = bytearray(write_transaction(TransactionValue(1, 2, 3, TransactionState.DEAD, (), 4, 5)))
    data[16] = state
    with pytest.raises(BadRecord, match="unknown"):
        read_transaction(bytes(data))
