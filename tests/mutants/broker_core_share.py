"""Mutants of broker/core/share."""

from __future__ import annotations

from tests.mutants import Mutant

PARTITION = "broker/core/share/partition.py"
UNIT = "tests/unit/broker/core/share/test_share_partition.py"

MUTANTS = (
    Mutant(
        "a member may acknowledge records of another member",
        PARTITION,
        "return status.state is Delivery.ACQUIRED and not status.save and status.member == member",
        "return status.state is Delivery.ACQUIRED and not status.save",
        (f"{UNIT}::test_acknowledgements_of_strangers_change_nothing",),
    ),
    Mutant(
        "a record is done although its acceptance could not be saved",
        PARTITION,
        "            if is_durable:\n",
        "            if True:\n",
        (f"{UNIT}::test_a_record_whose_acceptance_could_not_be_saved_is_delivered_again_after_its_lock",),
    ),
    Mutant(
        "a lock expires while the acknowledgement is being saved",
        PARTITION,
        "if run.value.state is Delivery.ACQUIRED and not run.value.save and is_meant(run.value)",
        "if run.value.state is Delivery.ACQUIRED and is_meant(run.value)",
        (f"{UNIT}::test_a_lock_does_not_expire_while_the_acknowledgement_is_being_saved",),
    ),
    Mutant(
        "a record is released without end",
        PARTITION,
        "if kind is AckType.RELEASE and count < self.limits.delivery_count_max:",
        "if kind is AckType.RELEASE:",
        (f"{UNIT}::test_a_record_that_was_delivered_too_often_is_archived",),
    ),
    Mutant(
        "records in flight are not bounded",
        PARTITION,
        "            end = min(end, room_end)\n",
        "            end = end + 0\n",
        (f"{UNIT}::test_records_in_flight_are_bounded",),
    ),
    Mutant(
        "the start passes an acknowledgement that is not durable",
        PARTITION,
        "            if run.value.state.is_done:\n                self.start_offset",
        "            if (run.value.next or run.value.state).is_done:\n                self.start_offset",
        (f"{UNIT}::test_changes_during_a_save_wait_for_the_next_one",),
    ),
    Mutant(
        "two saves are in progress at one time",
        PARTITION,
        "if self._in_progress is not None or not self._changes:",
        "if not self._changes:",
        (f"{UNIT}::test_changes_during_a_save_wait_for_the_next_one",),
    ),
)
