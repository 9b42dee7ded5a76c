"""The soft state of heartbeats."""

from __future__ import annotations

import pytest

from metadata.controller.sessions import Sessions
from metadata.records import BrokerChange
from tests.unit.metadata.builders import Cluster


def never_paused() -> float:
    return 0.0


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.start(1, 2, 3)
    return made


def test_unfenced_brokers_begin_with_a_fresh_session(cluster: Cluster) -> None:
    cluster.fence(2)
    sessions = Sessions(cluster.image, 6.0, 100.0, never_paused)
    assert sessions.get(2) is None
    assert sessions.first_to_expire() == (106.0, 1)
    assert sessions.live(3, 105.9)
    assert not sessions.live(3, 106.0)
    assert not sessions.live(2, 100.0)


def test_a_heartbeat_extends_only_the_session_of_its_broker(cluster: Cluster) -> None:
    sessions = Sessions(cluster.image, 6.0, 100.0, never_paused)
    sessions.touch(1, cluster.epoch(1), 103.0)
    assert sessions.first_to_expire() == (106.0, 2)
    sessions.drop(2)
    sessions.drop(3)
    assert sessions.first_to_expire() == (109.0, 1)
    sessions.drop(1)
    assert sessions.first_to_expire() is None


def test_another_incarnation_starts_a_new_session(cluster: Cluster) -> None:
    sessions = Sessions(cluster.image, 6.0, 100.0, never_paused)
    sessions.touch(1, 5, 101.0).applied_offset = 50
    assert sessions.touch(1, 5, 102.0).applied_offset == 50
    assert sessions.touch(1, 60, 103.0).applied_offset == -1


def test_others_applied_is_the_lowest_applied_offset_of_the_other_unfenced_brokers(cluster: Cluster) -> None:
    sessions = Sessions(cluster.image, 6.0, 100.0, never_paused)
    assert sessions.others_applied(cluster.image, 1) == -1  # no heartbeat has reached this controller
    sessions.touch(2, cluster.epoch(2), 101.0).applied_offset = 7
    sessions.touch(3, cluster.epoch(3), 101.0).applied_offset = 9
    assert sessions.others_applied(cluster.image, 1) == 7
    assert sessions.others_applied(cluster.image, 2) == -1
    cluster.apply([BrokerChange(2, cluster.epoch(2), fenced=True)])
    assert sessions.others_applied(cluster.image, 1) == 9  # a fenced broker serves no client
    cluster.apply([BrokerChange(3, cluster.epoch(3), fenced=True)])
    assert sessions.others_applied(cluster.image, 1) == cluster.image.end_offset


def test_a_renewal_gives_every_session_the_full_timeout(cluster: Cluster) -> None:
    sessions = Sessions(cluster.image, 6.0, 100.0, never_paused)
    sessions.renew(160.0)
    assert sessions.first_to_expire() == (166.0, 1)


def test_no_session_ends_earlier_than_one_timeout_after_a_pause(cluster: Cluster) -> None:
    sessions = Sessions(cluster.image, 6.0, 100.0, lambda: 150.0)
    assert sessions.first_to_expire() == (156.0, 1)
    assert sessions.live(1, 155.9)
    assert not sessions.live(1, 156.0)
    sessions.touch(1, cluster.epoch(1), 151.0)
    assert sessions.first_to_expire() == (156.0, 2)
    assert sessions.live(1, 156.9)
