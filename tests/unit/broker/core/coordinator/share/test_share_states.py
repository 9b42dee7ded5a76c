"""The share coordinator: states of share partitions, and the requests that may change them."""

from __future__ import annotations

from uuid import UUID

import pytest
from msgspec.structs import replace

from broker.core.coordinator.fields import BadRecord, int8, int16, int32, int64, tagged, uvarint
from broker.core.coordinator.machine import Record, Step
from broker.core.coordinator.share.state_machine import ShareStateMachine
from broker.core.coordinator.share.states import (
    INT32_MAX,
    NO_START,
    OFFSET_MAX,
    DeleteState,
    InitializeState,
    ReadState,
    ShareKey,
    ShareState,
    ShareStateLimits,
    StateRequest,
    StateResponse,
    SummarizeState,
    WriteState,
    merged,
    write_snapshot,
)
from broker.core.share.partition import Delivery, StateBatch
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.core.coordinator.replays import replay_log

KEY = ShareKey("work", UUID(int=7), 3)
ACCEPTED, AVAILABLE = Delivery.ACKNOWLEDGED, Delivery.AVAILABLE
ARCHIVING, ARCHIVED = Delivery.ARCHIVING, Delivery.ARCHIVED


class Driver:
    """A machine with the log that it has written."""

    def __init__(self, limits: ShareStateLimits | None = None) -> None:
        self.limits = limits or ShareStateLimits()
        self.machine = ShareStateMachine(self.limits, lambda: 1_000)
        self.log: list[Record] = []

    def ask(self, request: StateRequest) -> StateResponse:
        step: Step = self.machine.request(1, request, 0)
        self.log += step.records
        found = step.answers[0].response
        assert isinstance(found, StateResponse)
        return found

    def error(self, request: StateRequest) -> KafkaCode:
        before = len(self.log)
        error = self.ask(request).error
        assert error is KafkaCode.NONE or len(self.log) == before, "a refusal writes nothing"
        return error

    def state(self) -> ShareState:
        found = self.ask(SummarizeState(KEY)).state
        assert found is not None
        return found

    def fail_over(self) -> None:
        """Continue with a new machine that has replayed what compaction keeps: the last record of each key."""
        kept = {record.key: record for record in self.log}
        self.machine = ShareStateMachine(self.limits, lambda: 1_000)
        replay_log(self.machine, kept.values())


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    assert driver.error(InitializeState(KEY, 1, 10)) is KafkaCode.NONE
    return driver


def test_a_reset_that_arrives_again_does_not_undo_deliveries(driver: Driver) -> None:
    reset = InitializeState(KEY, 2, 20)
    assert driver.error(reset) is KafkaCode.NONE
    driver.ask(WriteState(KEY, 2, 5, 25, (StateBatch(26, 28, ACCEPTED, 1),)))
    before = driver.state()
    assert driver.error(reset) is KafkaCode.NONE
    assert driver.state() == before
    assert driver.error(InitializeState(KEY, 3, 20)) is KafkaCode.NONE
    assert (driver.state().start_offset, driver.state().batches) == (20, ())


def test_states_with_missing_dead_letters_are_known_before_and_after_a_failover(driver: Driver) -> None:
    driver.ask(WriteState(KEY, 1, 5, 10, (StateBatch(10, 11, AVAILABLE, 1), StateBatch(12, 15, ARCHIVED, 1))))
    assert not driver.machine.archiving
    driver.ask(WriteState(KEY, 1, 5, 10, (StateBatch(11, 12, ARCHIVING, 1),)))
    assert driver.machine.archiving == {KEY: driver.state()}
    driver.fail_over()
    assert driver.machine.archiving == {KEY: driver.state()}
    driver.ask(WriteState(KEY, 1, 6, 10, (StateBatch(10, 11, ACCEPTED, 1),)))
    assert driver.machine.archiving == {KEY: driver.state()}, "the newest state"
    driver.ask(WriteState(KEY, 1, 6, 10, (StateBatch(11, 12, ARCHIVED, 1),)))
    assert not driver.machine.archiving


@pytest.mark.parametrize("end", [DeleteState(KEY), InitializeState(KEY, 2, 20)])
def test_a_deleted_or_reset_state_has_no_missing_dead_letters(driver: Driver, end: StateRequest) -> None:
    driver.ask(WriteState(KEY, 1, 5, 10, (StateBatch(11, 12, ARCHIVING, 1),)))
    assert driver.error(end) is KafkaCode.NONE
    assert not driver.machine.archiving
    driver.fail_over()
    assert not driver.machine.archiving


def test_the_text_of_a_share_key_has_kafkas_format() -> None:
    assert KEY.text == "work:AAAAAAAAAAAAAAAAAAAABw:3"


def test_writes_are_merged_and_survive_a_failover(driver: Driver) -> None:
    driver.ask(WriteState(KEY, 1, 5, 10, (StateBatch(12, 15, ACCEPTED, 1),)))
    driver.ask(WriteState(KEY, 1, 5, NO_START, (StateBatch(14, 17, AVAILABLE, 2),)))
    driver.fail_over()
    assert (driver.state().leader_epoch, driver.state().start_offset) == (5, 10)
    assert driver.state().batches == (StateBatch(12, 15, ACCEPTED, 1), StateBatch(15, 17, AVAILABLE, 2))
    assert driver.state().done_count == 3


def test_the_start_offset_moves_past_acknowledged_records_and_never_back(driver: Driver) -> None:
    driver.ask(WriteState(KEY, 1, 5, 10, (StateBatch(10, 20, ACCEPTED, 1),)))
    assert (driver.state().start_offset, driver.state().batches) == (20, ())
    driver.ask(WriteState(KEY, 1, 5, 10, (StateBatch(15, 22, AVAILABLE, 1),)))
    assert (driver.state().start_offset, driver.state().batches) == (20, (StateBatch(20, 22, AVAILABLE, 1),))


def test_a_deposed_leader_can_neither_read_nor_write(driver: Driver) -> None:
    assert driver.ask(ReadState(KEY, 6)).error is KafkaCode.NONE
    driver.fail_over()
    assert driver.error(WriteState(KEY, 1, 5, 10, ())) is KafkaCode.FENCED_LEADER_EPOCH
    assert driver.error(ReadState(KEY, 5)) is KafkaCode.FENCED_LEADER_EPOCH
    assert driver.error(WriteState(KEY, 1, 6, 11, ())) is KafkaCode.NONE


def test_a_leader_with_an_earlier_state_epoch_is_fenced(driver: Driver) -> None:
    assert driver.error(InitializeState(KEY, 2, 0)) is KafkaCode.NONE
    assert driver.error(WriteState(KEY, 1, 9, 50, ())) is KafkaCode.FENCED_STATE_EPOCH
    assert driver.error(InitializeState(KEY, 1, 50)) is KafkaCode.FENCED_STATE_EPOCH
    assert driver.state().start_offset == 0


def test_a_leader_with_the_state_of_a_deleted_group_is_fenced(driver: Driver) -> None:
    """The group was created again, and its epochs count from the beginning."""
    driver.ask(InitializeState(KEY, 7, 10))
    assert driver.ask(ReadState(KEY, 5)).error is KafkaCode.NONE
    driver.ask(DeleteState(KEY))
    driver.ask(InitializeState(KEY, 2, NO_START))
    assert driver.error(WriteState(KEY, 7, 5, 50, ())) is KafkaCode.FENCED_STATE_EPOCH
    assert driver.state().start_offset == NO_START


def test_a_share_partition_must_be_initialized() -> None:
    driver = Driver()
    assert driver.error(ReadState(KEY, 1)) is KafkaCode.INVALID_REQUEST
    assert driver.error(WriteState(KEY, 1, 1, 0, ())) is KafkaCode.INVALID_REQUEST
    assert driver.ask(SummarizeState(KEY)) == StateResponse(KafkaCode.NONE)


def test_a_deleted_state_is_no_longer_known(driver: Driver) -> None:
    assert driver.error(DeleteState(KEY)) is KafkaCode.NONE
    driver.fail_over()
    assert len(driver.machine) == 0
    assert driver.error(DeleteState(KEY)) is KafkaCode.NONE


@pytest.mark.parametrize(
    "request_",
    [
        WriteState(KEY, 1, 5, -2, ()),
        WriteState(KEY, 1, 5, 10, (StateBatch(5, 5, ACCEPTED, 1),)),
        WriteState(KEY, 1, 5, 10, (StateBatch(-1, 5, ACCEPTED, 1),)),
        WriteState(KEY, 1, 5, 10, (StateBatch(10, OFFSET_MAX + 1, ACCEPTED, 1),)),
        WriteState(KEY, 1, 5, 10, (StateBatch(11, 12 + INT32_MAX, ACCEPTED, 1),)),
        WriteState(KEY, 1, 5, 10, tuple(StateBatch(2 * at, 2 * at + 1, AVAILABLE, 1) for at in range(5, 20))),
        InitializeState(KEY, 1, -2),
        InitializeState(ShareKey("", KEY.topic_id, 0), 1, 0),
        InitializeState(ShareKey("g", KEY.topic_id, -1), 1, 0),
    ],
)
def test_invalid_requests_change_nothing(request_: StateRequest) -> None:
    driver = Driver(ShareStateLimits(batches_max=10))
    driver.ask(InitializeState(KEY, 1, 10))
    before = driver.state()
    assert driver.error(request_) is KafkaCode.INVALID_REQUEST
    assert driver.state() == before


def test_the_number_of_share_partition_states_is_bounded() -> None:
    driver = Driver(ShareStateLimits(states_max=1))
    assert driver.error(InitializeState(KEY, 1, 0)) is KafkaCode.NONE
    assert driver.error(InitializeState(KEY._replace(partition=4), 1, 0)) is KafkaCode.POLICY_VIOLATION


def test_a_repeated_read_of_one_leader_writes_nothing(driver: Driver) -> None:
    driver.ask(ReadState(KEY, 6))
    before = len(driver.log)
    driver.ask(ReadState(KEY, 6))
    assert len(driver.log) == before


def test_the_largest_batch_and_the_largest_offset_fit_into_a_record(driver: Driver) -> None:
    assert driver.error(WriteState(KEY, 1, 5, 10, (StateBatch(11, 11 + INT32_MAX, ACCEPTED, 1),))) is KafkaCode.NONE
    assert driver.error(WriteState(KEY, 1, 5, 10, (StateBatch(10, OFFSET_MAX, ACCEPTED, 1),))) is KafkaCode.NONE
    driver.fail_over()
    assert driver.state().start_offset == OFFSET_MAX


def test_the_snapshot_epoch_wraps_to_zero_after_its_maximum(driver: Driver) -> None:
    last = driver.log[-1]
    driver.machine.replay(Record(last.key, write_snapshot(replace(driver.state(), snapshot_epoch=INT32_MAX))))
    assert driver.error(WriteState(KEY, 1, 5, 11, ())) is KafkaCode.NONE
    driver.fail_over()
    assert (driver.state().snapshot_epoch, driver.state().start_offset) == (0, 11)


def test_share_update_records_of_kafka_are_read(driver: Driver) -> None:
    key = int16(1) + int16(4) + b"work" + KEY.topic_id.bytes + int32(KEY.partition)
    batch = int64(12) + int64(13) + int8(2) + int16(1) + tagged({})
    value = int16(0) + int32(1) + int32(8) + int64(11) + uvarint(2) + batch + tagged({0: int32(2)})
    driver.machine.replay(Record(key, value))
    assert driver.state().leader_epoch == 8
    assert (driver.state().start_offset, driver.state().batches) == (11, (StateBatch(12, 14, ACCEPTED, 1),))


def test_damaged_records_are_refused(driver: Driver) -> None:
    record = driver.log[0]
    assert record.value is not None
    for size in range(1, len(record.value)):
        with pytest.raises(BadRecord):
            driver.machine.replay(Record(record.key, record.value[:size]))
    driver.machine.replay(Record(int16(9) + b"?", b""))
    assert driver.machine.unknown_records == 1


def test_merging_keeps_a_durable_save_whose_answer_was_lost() -> None:
    """A leader that got no answer to a durable save sends its earlier start offset again."""
    start, batches = merged(0, (), 0, (StateBatch(0, 10, ACCEPTED, 1),))
    assert merged(start, batches, 0, (StateBatch(0, 5, AVAILABLE, 1),)) == (10, ())


def test_a_release_that_arrives_late_does_not_undo_an_acceptance(driver: Driver) -> None:
    driver.ask(WriteState(KEY, 1, 5, 10, (StateBatch(12, 14, ACCEPTED, 2),)))
    driver.ask(WriteState(KEY, 1, 5, 10, (StateBatch(11, 15, AVAILABLE, 1),)))
    assert driver.state().batches == (
        StateBatch(11, 12, AVAILABLE, 1),
        StateBatch(12, 14, ACCEPTED, 2),
        StateBatch(14, 15, AVAILABLE, 1),
    )


def test_a_release_that_arrives_late_does_not_undo_a_dead_letter(driver: Driver) -> None:
    driver.ask(WriteState(KEY, 1, 5, 10, (StateBatch(10, 13, ARCHIVING, 5),)))
    driver.ask(WriteState(KEY, 1, 5, 10, (StateBatch(10, 14, AVAILABLE, 1),)))
    driver.fail_over()
    expected = (StateBatch(10, 13, ARCHIVING, 5), StateBatch(13, 14, AVAILABLE, 1))
    assert (driver.state().start_offset, driver.state().batches) == (10, expected)
    assert driver.state().done_count == 0, "the record counts as lag until its dead letter is written"
    driver.ask(WriteState(KEY, 1, 5, 10, (StateBatch(10, 11, ARCHIVED, 5), StateBatch(12, 13, ACCEPTED, 5))))
    driver.ask(WriteState(KEY, 1, 5, 10, (StateBatch(12, 13, ARCHIVING, 5),)))
    after = (StateBatch(11, 12, ARCHIVING, 5), StateBatch(12, 13, ACCEPTED, 5), StateBatch(13, 14, AVAILABLE, 1))
    assert (driver.state().start_offset, driver.state().batches) == (11, after)


def test_a_repeated_initialization_keeps_the_state(driver: Driver) -> None:
    driver.ask(WriteState(KEY, 1, 5, 10, (StateBatch(12, 14, ACCEPTED, 1),)))
    before = driver.state()
    assert driver.error(InitializeState(KEY, 3, NO_START)) is KafkaCode.NONE
    assert driver.state() == before
