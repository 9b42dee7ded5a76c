"""The collector is as it was after a load, and what was loaded is out of its way."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from quorumlog.runtime.garbage import made_to_last


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    gc.enable()
    gc.unfreeze()


def test_what_was_made_is_not_walked_any_more() -> None:
    with made_to_last():
        assert not gc.isenabled()
        made = [[number] for number in range(1000)]
    assert gc.isenabled()
    walked = {id(one) for one in gc.get_objects()}
    assert not walked & {id(one) for one in made}


def test_it_is_on_again_after_a_failure_and_nothing_is_permanent() -> None:
    before = gc.get_freeze_count()
    with pytest.raises(ValueError, match="damaged"), made_to_last():
        raise ValueError("damaged")
    assert (gc.isenabled(), gc.get_freeze_count()) == (True, before)


def test_where_it_is_off_it_stays_off() -> None:
    gc.disable()
    with made_to_last():
        pass
    assert not gc.isenabled()
