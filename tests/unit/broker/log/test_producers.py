"""The producers of a log: expiry, and their state after truncations and restarts."""

from __future__ import annotations

from broker.log import LogConfig
from tests.unit.broker.log.rig import KEY, OTHER, Rig, append, stopped_at


async def test_idle_producers_are_removed_after_the_expiration_time(rig: Rig) -> None:
    log = rig.create(LogConfig(producer_expiration_ms=1_000))
    append(log, [b"a"], now_ms=0, producer=(5, 0, 0))
    await rig.settle(log)
    await rig.logs.maintain(stopped_at(10_000), 0)  # the idle time begins now
    assert log.producers.get(5) is not None
    await rig.logs.maintain(stopped_at(11_000), 0)
    assert log.producers.get(5) is not None
    await rig.logs.maintain(stopped_at(11_001), 0)
    assert log.producers.get(5) is None
    await rig.restart(clean=True)
    assert append(rig.log, [b"b"], producer=(5, 0, 1)).first_offset == 1


async def test_the_idle_time_of_a_producer_begins_when_maintenance_reaches_its_log(rig: Rig) -> None:
    """A round of maintenance may take long, because a disk hangs."""
    config = LogConfig(producer_expiration_ms=1_000)
    for key in (KEY, OTHER):
        append(rig.create(config, key), [b"a"], producer=(5, 0, 0))
        await rig.settle(rig.logs.logs[key])
    readings = iter([0, 0, 2_000])
    await rig.logs.maintain(lambda: next(readings), 0)  # the second log is reached two seconds later
    await rig.logs.maintain(stopped_at(2_900), 0)
    assert [len(log.producers) for log in rig.logs.logs.values()] == [0, 1]


async def test_a_retry_of_an_uncommitted_batch_is_recognised_after_any_time(rig: Rig) -> None:
    log = rig.create(LogConfig(producer_expiration_ms=1_000))
    append(log, [b"a"], producer=(5, 0, 0))
    await rig.settle(log)
    append(log, [b"b"], producer=(5, 0, 1))
    for now_ms in (0, 10_000, 20_000):
        await rig.logs.maintain(stopped_at(now_ms), 0)
    assert append(log, [b"b"], producer=(5, 0, 1)) == (1, 2, True)


async def test_a_retry_restarts_the_idle_time_of_its_producer(rig: Rig) -> None:
    log = rig.create(LogConfig(producer_expiration_ms=1_000))
    append(log, [b"a"], producer=(5, 0, 0))
    await rig.settle(log)
    await rig.logs.maintain(stopped_at(0), 0)
    assert append(log, [b"a"], producer=(5, 0, 0)) == (0, 1, True)
    await rig.logs.maintain(stopped_at(5_000), 0)
    assert append(log, [b"a"], producer=(5, 0, 0)) == (0, 1, True)


async def test_producers_read_after_a_truncation_or_a_restart_have_no_idle_time(rig: Rig) -> None:
    """The timestamps of the records do not matter."""
    log = rig.create(LogConfig(producer_expiration_ms=1_000))
    append(log, [b"a"], producer=(5, 0, 0), timestamps=[1])
    await rig.settle(log)
    await rig.logs.maintain(stopped_at(50_000), 50_000)
    append(log, [b"b"])
    log.truncate_to(1)
    assert len(log.producers) == 1
    await rig.logs.maintain(stopped_at(60_000), 60_000)
    assert log.producers.get(5) is not None
    for clean in (True, False):
        await rig.restart(clean=clean)
        assert len(rig.log.producers) == 1
        await rig.logs.maintain(stopped_at(10**12), 10**12)
        assert append(rig.log, [b"a"], producer=(5, 0, 0)) == (0, 1, True)
