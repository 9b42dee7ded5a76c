"""The collector is as it was after a load, and what was loaded is out of its way."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from quorumlog.runtime import garbage
from quorumlog.runtime.garbage import made_to_last, short_pauses


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


@pytest.mark.parametrize(("took_s", "permanent"), [(0.019, False), (0.021, True)])
def test_a_long_full_collection_walks_what_it_leaves_for_the_last_time(
    monkeypatch: pytest.MonkeyPatch, took_s: float, permanent: bool
) -> None:
    times = iter((10.0, 10.0 + took_s))
    monkeypatch.setattr(garbage, "elapsed_s", lambda: next(times))
    before, made = gc.get_freeze_count(), [[number] for number in range(1000)]
    with short_pauses():
        gc.collect(0)
        gc.collect(1)
        gc.collect()
    walked = {id(one) for one in gc.get_objects()}
    assert (gc.get_freeze_count() > before) is permanent
    assert (not walked & {id(one) for one in made}) is permanent


def test_the_collector_is_watched_no_longer_than_that() -> None:
    before = list(gc.callbacks)
    with short_pauses():
        assert len(gc.callbacks) == len(before) + 1
    assert gc.callbacks == before
