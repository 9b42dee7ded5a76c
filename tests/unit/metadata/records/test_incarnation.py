"""Incarnation ids: they order the processes of a broker with the same directories."""

from __future__ import annotations

from uuid import RFC_4122, UUID, uuid4

import pytest

from metadata.records.incarnation import STARTS_MAX, incarnation_id, is_earlier


@pytest.mark.parametrize("random", [UUID(int=0, version=4), UUID(int=(1 << 128) - 1, version=4), uuid4()])
@pytest.mark.parametrize("start", [1, 2, 0xFFFF_FFFF, STARTS_MAX])
def test_an_incarnation_id_is_a_uuid_of_version_8(start: int, random: UUID) -> None:
    made = incarnation_id(start, random)
    assert (made.version, made.variant) == (8, RFC_4122)
    assert made.int >> 80 == start
    assert made.int & (1 << 76) - 1 == random.int & (1 << 76) - 1, "the other bits are the random ones"


def test_processes_are_ordered_by_their_start() -> None:
    first, second = incarnation_id(1, uuid4()), incarnation_id(2, uuid4())
    assert is_earlier(first, second)
    assert not is_earlier(second, first)
    assert not is_earlier(first, incarnation_id(1, uuid4()))


def test_incarnation_ids_without_a_start_number_have_no_order() -> None:
    numbered, random = incarnation_id(1 << 40, uuid4()), UUID(int=0, version=4)
    assert not is_earlier(random, numbered)
    assert not is_earlier(random, UUID(int=(1 << 128) - 1, version=4))
    assert not is_earlier(numbered, UUID(int=(1 << 128) - 1, version=4))


@pytest.mark.parametrize("start", [0, -1, STARTS_MAX + 1])
def test_a_start_number_out_of_range_fails_an_assertion(start: int) -> None:
    with pytest.raises(AssertionError):
        incarnation_id(start, uuid4())
