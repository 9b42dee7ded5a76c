"""The life cycle of a broker: the requests that it sends, and their times."""

from __future__ import annotations

from broker.core.lifecycle import BACKOFF_MIN_MS, DRAINING_SILENCE_MS, Beat, End, Lifecycle, Register, Stage, Wait


def registered(now_ms: int = 0, epoch: int = 7) -> Lifecycle:
    core = Lifecycle(interval_ms=1_000, now_ms=now_ms)
    core.on_registered(epoch, now_ms)
    return core


def running(now_ms: int = 0) -> Lifecycle:
    core = registered(now_ms)
    core.on_applied(8, now_ms)
    core.on_beat(False, False, 0, now_ms)
    return core


def test_a_broker_registers_at_once_and_retries_until_it_is_accepted() -> None:
    core = Lifecycle(interval_ms=1_000, now_ms=0)
    assert core.next_action(0) == Register()
    waits = []
    now = 0
    for _ in range(8):
        core.on_no_reply(now)
        action = core.next_action(now)
        assert isinstance(action, Wait)
        waits.append(action.until_ms - now)
        now = action.until_ms
        assert core.next_action(now) == Register()
    assert waits[0] == BACKOFF_MIN_MS
    assert waits == sorted(waits)
    assert waits[-1] == 1_000, "the longest wait is the heartbeat interval"


def test_a_broker_sends_a_heartbeat_at_once_and_then_each_interval() -> None:
    core = registered(10)
    assert core.next_action(10) == Beat(want_shutdown=False)
    core.on_beat(True, False, 0, 12)
    assert core.stage is Stage.FENCED
    assert core.next_action(12) == Wait(1_012)
    assert core.next_action(1_012) == Beat(want_shutdown=False)


def test_a_heartbeat_follows_at_once_when_the_registration_is_applied() -> None:
    core = registered()
    core.on_beat(True, False, 0, 0)
    core.on_applied(7, 100)
    core.on_applied(8, 200)
    assert core.next_action(200) == Beat(want_shutdown=False)
    core.on_beat(False, False, 0, 201)
    assert core.stage is Stage.RUNNING
    core.on_applied(9, 300)
    assert core.next_action(300) == Wait(1_201), "a running broker has nothing new to report"


def test_a_fenced_broker_acknowledges_its_fencing_at_once() -> None:
    core = running()
    core.on_beat(True, False, 0, 1_000)
    assert core.stage is Stage.FENCED
    core.on_applied(20, 1_100)
    assert core.next_action(1_100) == Beat(want_shutdown=False)


def test_a_broker_with_a_stale_epoch_registers_again() -> None:
    core = running()
    core.on_stale(500)
    assert core.next_action(500) == Register()
    assert core.fenced
    core.on_registered(30, 600)
    core.on_applied(25, 650)
    core.on_beat(True, False, 0, 660)
    core.on_applied(31, 700)
    assert core.next_action(700) == Beat(want_shutdown=False)


def test_a_stopping_broker_repeats_its_shutdown_request_until_the_controller_releases_it() -> None:
    core = running()
    core.stop(deadline_ms=5_000, now_ms=100)
    assert core.next_action(100) == Beat(want_shutdown=True)
    core.on_beat(False, False, 3, 110)
    assert core.leaders_left == 3
    action = core.next_action(110)
    assert isinstance(action, Wait)
    assert action.until_ms < 110 + 1_000, "more often than an interval"
    assert core.next_action(action.until_ms) == Beat(want_shutdown=True)
    core.on_beat(False, True, 0, action.until_ms)
    assert core.next_action(action.until_ms) == End(released=True)


def test_stopping_ends_at_the_deadline_without_a_controller() -> None:
    core = running()
    core.stop(deadline_ms=1_000, now_ms=0)
    now = 0
    while not isinstance(action := core.next_action(now), End):
        if isinstance(action, Wait):
            assert action.until_ms <= 1_000
            now = action.until_ms
        else:
            core.on_no_reply(now)
    assert action == End(released=False)
    assert now == 1_000


def test_stopping_does_not_wait_for_a_controller_that_never_answers() -> None:
    core = running()
    core.stop(deadline_ms=10 * DRAINING_SILENCE_MS, now_ms=0)
    core.on_beat(False, False, 1, 500)
    core.on_no_reply(DRAINING_SILENCE_MS)
    assert not isinstance(core.next_action(DRAINING_SILENCE_MS), End)
    core.on_no_reply(500 + DRAINING_SILENCE_MS)
    assert core.next_action(500 + DRAINING_SILENCE_MS) == End(released=False)


def test_a_second_stop_does_not_move_the_deadline() -> None:
    core = running()
    core.stop(deadline_ms=1_000, now_ms=0)
    core.stop(deadline_ms=9_000, now_ms=500)
    assert core.next_action(1_000) == End(released=False)


def test_a_broker_that_never_registered_stops_at_once() -> None:
    core = Lifecycle(interval_ms=1_000, now_ms=0)
    core.stop(deadline_ms=5_000, now_ms=10)
    assert core.next_action(10) == End(released=True)


def test_a_broker_that_loses_its_registration_while_stopping_stops_at_once() -> None:
    core = running()
    core.stop(deadline_ms=5_000, now_ms=10)
    core.on_stale(20)
    assert core.next_action(20) == End(released=True)


def test_a_broker_whose_registration_is_accepted_after_the_stop_keeps_draining() -> None:
    core = Lifecycle(interval_ms=1_000, now_ms=0)
    core.stop(deadline_ms=5_000, now_ms=10)  # the registration was sent before
    core.on_registered(7, 20)
    assert core.stage is Stage.DRAINING
    assert core.next_action(20) == Beat(want_shutdown=True)
