"""The outcome of a transaction that is still open in a partition, although it may have ended.

A partition can lose a marker: an unclean election drops records that the former leader had committed.  By then, the
coordinator no longer knows the partitions of the transaction, so it does not write the marker again.  Instead, the
leader of the partition asks for the outcome.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.core.coordinator.transaction_records import (
    EPOCH_MAX,
    EPOCH_RISES,
    NO_ID,
    Partition,
    TransactionState,
    TransactionValue,
)
from broker.core.coordinator.transaction_requests import FindOutcome, Outcome


def outcome_among(values: Iterable[TransactionValue], request: FindOutcome) -> Outcome:
    """Return the outcome of a transaction according to the transactional ids of one partition."""
    producer_id, epoch = request.producer
    for value in values:
        if value.producer_id == producer_id:
            return _outcome(value, epoch, request.partition)
        if value.previous_id == producer_id and value.previous_id != NO_ID:
            is_last = epoch == EPOCH_MAX and value.producer_epoch == 0
            is_committed = is_last and value.state is TransactionState.COMPLETE_COMMIT
            return Outcome.COMMITTED if is_committed else Outcome.ABORTED
    return Outcome.UNKNOWN


def _outcome(value: TransactionValue, epoch: int, partition: Partition) -> Outcome:
    # An open transaction has no batch of an earlier epoch.  A decided one may have some, if the decision raised the
    # epoch.
    is_open = value.state is TransactionState.ONGOING and value.producer_epoch == epoch
    if (is_open or value.state.is_preparing) and partition in value.partitions:
        return Outcome.OPEN
    # An end of a newer client raises the epoch.  So a state with the next epoch belongs to this transaction.
    is_known = value.client_version >= EPOCH_RISES and value.producer_epoch == epoch + 1
    if is_known and value.state is TransactionState.COMPLETE_COMMIT:
        return Outcome.COMMITTED
    return Outcome.ABORTED
