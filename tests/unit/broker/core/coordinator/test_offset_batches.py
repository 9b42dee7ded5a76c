"""The compiled replay of committed offsets: its arguments, and callbacks that interfere."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from broker.core.coordinator.fields import BadRecord
from broker.core.coordinator.records import OffsetKey, OffsetValue, write_key, write_offset
from quorumlog.wire._record_scan import apply_offsets
from tests.unit.broker.core.coordinator.driver import Coordinator, topic_id
from tests.unit.broker.core.coordinator.replays import logged

VALUE = write_offset(OffsetValue(3, 1, "", 9, topic_id=UUID(int=1)))
OTHER = write_offset(OffsetValue(4, 1, "ü", 9, topic_id=topic_id("sales")))


def key(group: str = "a", partition: int = 0) -> bytes:
    return write_key(OffsetKey(group, "sales", partition))


def unexpected(record: object) -> None:
    raise AssertionError(record)


@pytest.mark.parametrize(
    "arguments",
    [
        (tuple(logged([(key(), VALUE)])), {}, unexpected),
        ([(0, key(), VALUE)], {}, unexpected),
        ([None], {}, unexpected),
        (logged([(key(), VALUE)]), [], unexpected),
        (logged([(key(), VALUE)]), {b"a": []}, unexpected),
        (logged([(key(), OTHER)]), {}, None),
    ],
)
def test_wrong_types_are_refused(arguments: Any) -> None:
    with pytest.raises(TypeError):
        apply_offsets(*arguments)


def test_the_callback_may_change_the_groups() -> None:
    groups: dict[bytes, dict[bytes, bytes]] = {}
    records = logged([(key(), VALUE), (key(), OTHER), (key(partition=1), VALUE)])

    def forget(record: object) -> None:
        assert groups.pop(b"a") == {b"\0\5sales\0\0\0\0": VALUE}

    assert apply_offsets(records, groups, forget) == 2
    assert groups == {b"a": {b"\0\5sales\0\0\0\1": VALUE}}


def test_the_callback_may_shorten_the_list() -> None:
    groups: dict[bytes, dict[bytes, bytes]] = {}
    records = logged([(key(), OTHER), (key(), VALUE)])
    assert apply_offsets(records, groups, lambda record: records.clear()) == 0
    assert groups == {}


def test_an_error_of_the_callback_ends_the_replay() -> None:
    groups: dict[bytes, dict[bytes, bytes]] = {}

    def fail(record: object) -> None:
        raise LookupError("no")

    with pytest.raises(LookupError, match="no"):
        apply_offsets(logged([(key("b"), VALUE), (key(), OTHER), (key(), VALUE)]), groups, fail)
    assert list(groups) == [b"b"]


@pytest.mark.parametrize("name", [b"a", b"sales"], ids=["group", "topic"])
def test_a_name_that_is_not_utf_8_is_refused(name: bytes) -> None:
    bad = key().replace(name, b"\xff" * len(name))
    with pytest.raises(BadRecord, match="offset 1: the name of a group or topic is not UTF-8"):
        Coordinator().machine.replay_batch(logged([(key(), VALUE), (bad, VALUE)]), None)


def test_a_tombstone_of_a_group_without_offsets_changes_nothing() -> None:
    groups: dict[bytes, dict[bytes, bytes]] = {}
    assert apply_offsets(logged([(key(), None), (key(), VALUE), (key(), None), (key(), None)]), groups, unexpected) == 0
    assert groups == {}
