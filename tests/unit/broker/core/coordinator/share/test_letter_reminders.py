"""Share coordinators remind leaders of dead letters that no leader has written."""

from __future__ import annotations

from uuid import UUID

from broker.core.coordinator.share.reminders import NO_LEADER, LetterReminders
from broker.core.coordinator.share.states import ShareKey, ShareState
from broker.core.share.partition import Delivery, StateBatch

BATCH = (StateBatch(0, 1, Delivery.ARCHIVING, 1),)


def key(index: int) -> ShareKey:
    return ShareKey("work", UUID(int=7), index)


class Driver:
    """leaders: by partition; broker 1 leads the others.  epochs: the snapshot epochs of the states."""

    def __init__(self, batch_max: int = 10) -> None:
        self.core = LetterReminders(batch_max)
        self.leaders: dict[int, int] = {}
        self.epochs: dict[int, int] = {}

    def look(self) -> dict[int, list[int]]:
        archiving = {key(index): ShareState(epoch, 1, 1, 0, BATCH) for index, epoch in self.epochs.items()}
        due = self.core.look(archiving, lambda each: self.leaders.get(each.partition, 1))
        return {leader: [each.partition for each in keys] for leader, keys in due.items()}


def test_a_leader_is_reminded_of_a_state_that_did_not_change_between_two_looks() -> None:
    driver = Driver()
    driver.epochs, driver.leaders = {0: 5, 1: 5}, {1: 2}
    assert driver.look() == {}
    assert driver.look() == {1: [0], 2: [1]}


def test_a_leader_that_changes_the_state_is_not_reminded() -> None:
    driver = Driver()
    for epoch in range(5):
        driver.epochs = {0: epoch}
        assert driver.look() == {}, "the leader has loaded the state, and writes the letters itself"
    assert driver.look() == {1: [0]}


def test_a_reminder_is_repeated_until_the_state_changes() -> None:
    driver = Driver()
    driver.epochs = {0: 5}
    assert [driver.look() for _ in range(3)] == [{}, {1: [0]}, {1: [0]}]
    driver.epochs = {0: 6}
    assert driver.look() == {}
    driver.epochs = {}
    assert driver.look() == {}
    driver.epochs = {0: 6}
    assert driver.look() == {}, "the letters have been missing only since this look"


def test_a_reminder_waits_until_the_partition_has_a_leader() -> None:
    driver = Driver()
    driver.epochs, driver.leaders = {0: 5}, {0: NO_LEADER}
    assert [driver.look() for _ in range(3)] == [{}, {}, {}]
    driver.leaders = {0: 2}
    assert driver.look() == {2: [0]}


def test_reminders_above_the_batch_limit_rotate_through_all_share_partitions() -> None:
    driver = Driver(batch_max=2)
    driver.epochs, driver.leaders = dict.fromkeys(range(5), 1), {4: 2}
    assert driver.look() == {}
    assert driver.look() == {1: [0, 1], 2: [4]}
    assert driver.look() == {1: [2, 3], 2: [4]}
    driver.epochs[5] = 1
    assert driver.look() == {1: [0, 1], 2: [4]}
    assert driver.look() == {1: [2, 3], 2: [4]}
    assert driver.look() == {1: [5, 0], 2: [4]}, "a new share partition precedes repeated reminders"
