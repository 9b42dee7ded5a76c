"""The garbage collector after a load: the same settings, and loaded objects are no longer traversed."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from quorumlog.runtime import garbage
from quorumlog.runtime.garbage import keep_loaded, made_to_last, short_pauses


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    gc.enable()


def test_loaded_objects_are_no_longer_traversed() -> None:
    with made_to_last():
        assert not gc.isenabled()
        made = [[number] for number in range(1000)]
    assert gc.isenabled()
    walked = {id(one) for one in gc.get_objects()}
    assert not walked & {id(one) for one in made}


def test_objects_from_before_the_server_is_ready_are_no_longer_traversed() -> None:
    made = [[number] for number in range(1000)]
    keep_loaded()
    walked = {id(one) for one in gc.get_objects()}
    assert not walked & {id(one) for one in made}


def test_the_collector_is_enabled_again_after_a_failure() -> None:
    before = gc.get_freeze_count()
    with pytest.raises(ValueError, match="damaged"), made_to_last():
        raise ValueError("damaged")
    assert gc.isenabled()
    assert gc.get_freeze_count() <= before, "an object from before may be freed meanwhile, but none is added"


def test_a_disabled_collector_stays_disabled() -> None:
    gc.disable()
    with made_to_last():
        pass
    assert not gc.isenabled()


@pytest.mark.parametrize(("took_s", "permanent"), [(0.019, False), (0.021, True)])
def test_survivors_of_a_long_full_collection_become_permanent(
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


def test_short_pauses_removes_its_collector_callback_at_the_end() -> None:
    before = list(gc.callbacks)
    with short_pauses():
        assert len(gc.callbacks) == len(before) + 1
    assert gc.callbacks == before
