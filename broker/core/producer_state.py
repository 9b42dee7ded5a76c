"""The state of a log's producers, computed from the log's batch headers and markers.  Pure.

Theory of operation.  A producer numbers its records.  The broker appends a batch only if it continues where the
producer's last batch ended.  So a retry is recognised, and a lost request is detected.  For each producer id the state
has the epoch and the last five batches (a client has at most five in flight).  A repeated batch is answered with the
offsets of the original.

Batches change the state only through `apply`.  It is called for every batch that enters the log, on leader and follower
alike.  It is also called when the log is read after a restart or a truncation.  So a new leader recognises the retry
of a batch that it received as a follower.  Only a leader calls `check` first.

**Forgetting.**  A producer expires after it has been silent for `expiration_ms`, never because retention deleted its
batches.  Silence is measured between calls of `expire`, on a clock that does not jump.  It begins at the first call
that finds all batches of the producer committed, and no transaction of it open.  So a batch that still waits for its
replicas, and that its producer may send again, is always recognised.  A batch, a retry, a restart and a truncation each
end the silence: a process never counts silence that it did not observe.  Each replica counts for itself; a new leader
continues with the silence that it counted as a follower.

A producer without state may be new, or it may have expired.  Sequence 0 is accepted in both cases.  A higher sequence
is accepted only if this log may have dropped a producer's state: records were deleted from its start, or a producer has
expired in this log.  Otherwise earlier records are missing, and the batch is refused.

**Transactions.**  `transactions` holds the open and the aborted transactions.  A marker may raise the epoch of its
producer (KIP-890), which fences every batch of the old epoch.  The last marker of a producer survives compaction, as
its last batches do, so that its epoch can still be computed from the log.

A transactional batch may begin a transaction only if the coordinator has confirmed that the partition is part of it
(`start_verification`).  Otherwise a batch that arrives after the marker of its transaction would begin a transaction
that nobody ends.  A marker that arrives meanwhile makes the confirmation void, unless it raises the epoch to the
batch's epoch.

A client of transaction version 2 gets its next epoch with the decision, before the marker arrives.  Its next batch may
then find the transaction of its former epoch open.  That batch begins another transaction, so the coordinator must
confirm it.  The coordinator confirms only once all markers are written.  The marker of the former transaction has the
new epoch, as the next transaction has.  A delayed copy of this marker must not end the next transaction: see
`check_marker`.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from broker.core.transactions import ABORTED_MAX, Marker, Transactions
from quorumlog.wire.errors import KafkaCode

RECENT_BATCHES = 5
SEQUENCE_MAX = 2**31 - 1
NO_PRODUCER_ID = -1
NO_SEQUENCE = -1

NO_MARKER = -1
NO_TIME = -1
VERIFICATIONS_MAX = 10_000
"""Producers of a partition whose transactions are being verified.  Beyond this number, the oldest verification is
forgotten."""

_FIRST_VERSION = 1  # without transactions
_SNAPSHOT_VERSION = 2
_SNAPSHOT_HEAD = struct.Struct(">BBI")  # version, whether a producer has expired in this log, number of producers
_FIRST_PRODUCER = struct.Struct(">qhqB")  # producer id, epoch, not used, recent batches
_PRODUCER = struct.Struct(">qhiqB")  # producer id, epoch, coordinator epoch, last marker, recent batches
_BATCH = struct.Struct(">iiqq")


class ProducedBatch(Protocol):
    """The fields of a batch header that this module reads; `quorumlog.wire.record_batch.BatchHeader` has them."""

    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def last_sequence(self) -> int: ...
    @property
    def is_control(self) -> bool: ...
    @property
    def is_transactional(self) -> bool: ...
    @property
    def max_timestamp(self) -> int: ...


class RecentBatch(NamedTuple):
    """One of the last batches of a producer."""

    base_sequence: int
    last_sequence: int
    first_offset: int
    end_offset: int


class Accept(NamedTuple):
    """Append the batch."""


class Duplicate(NamedTuple):
    """The batch is in the log already, at these offsets."""

    first_offset: int
    end_offset: int


class Refuse(NamedTuple):
    code: KafkaCode
    reason: str


ACCEPT = Accept()


class Producer:
    """The state of one producer id.

    silent_since_ms: time of the first `expire` that found all its batches committed, and no open transaction; None
        before that.
    coordinator_epoch: the coordinator epoch in its last marker; -1 if there is none.
    last_marker: the offset of its last marker; NO_MARKER if there is none.
    last_timestamp_ms: the newest timestamp in its last batch, or, after a load, in the first batch of its open
        transaction; NO_TIME if neither was read.
    """

    __slots__ = ("coordinator_epoch", "epoch", "last_marker", "last_timestamp_ms", "recent", "silent_since_ms")

    def __init__(self, epoch: int, coordinator_epoch: int = -1, last_marker: int = NO_MARKER) -> None:
        self.epoch = epoch
        self.coordinator_epoch = coordinator_epoch
        self.last_marker = last_marker
        self.last_timestamp_ms = NO_TIME
        self.silent_since_ms: int | None = None
        self.recent: deque[RecentBatch] = deque(maxlen=RECENT_BATCHES)

    @property
    def last_sequence(self) -> int:
        return self.recent[-1].last_sequence if self.recent else NO_SEQUENCE

    @property
    def end_offset(self) -> int:
        """The end offset of its last batch; 0 if there is none."""
        return max(self.recent[-1].end_offset if self.recent else 0, self.last_marker + 1)


class Verification:
    """A question to the coordinator about the transaction of a producer.

    producer_epoch: the epoch of the producer.
    is_confirmed: the coordinator has confirmed that the partition is part of the transaction.
    lowest_sequence: the lowest sequence of the batches that wait for the answer.  The transaction must begin with it.
        If the transaction began with a later batch, the earlier batch would count as a duplicate when it is sent again,
        and would be lost (KIP-890).
    waiting: the number of calls that share the token and wait for an answer.  Callers of `end_verification` maintain
        this count.
    """

    __slots__ = ("is_confirmed", "lowest_sequence", "producer_epoch", "waiting")

    def __init__(self, producer_epoch: int, lowest_sequence: int) -> None:
        self.producer_epoch = producer_epoch
        self.lowest_sequence = lowest_sequence
        self.is_confirmed = False
        self.waiting = 0


class CorruptSnapshotError(ValueError):
    """The bytes are not a producer snapshot of a known version."""


def next_sequence(sequence: int) -> int:
    """Return the sequence that follows; 2^31 - 1 is followed by 0."""
    return 0 if sequence == SEQUENCE_MAX else sequence + 1


class ProducerState:
    """All producers of one log, and their transactions.  has_expired: a producer has expired in this log."""

    __slots__ = ("_producers", "_verifying", "has_expired", "transactions")

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}
        self._verifying: dict[int, Verification] = {}
        self.has_expired = False
        self.transactions = Transactions()

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[tuple[int, Producer]]:
        return iter(sorted(self._producers.items()))

    def get(self, producer_id: int) -> Producer | None:
        """Return the state of a producer; None if the log has none."""
        return self._producers.get(producer_id)

    def expected_sequence(self, producer_id: int, producer_epoch: int) -> int:
        """Return the sequence with which this producer epoch must continue; 0 if the log has none of its batches."""
        producer = self._producers.get(producer_id)
        if producer is None or producer.epoch != producer_epoch or not producer.recent:
            return 0
        return next_sequence(producer.last_sequence)

    def accepts_any_sequence(self, batch: ProducedBatch, log_start_offset: int) -> bool:
        """Return whether `batch` may have any sequence, because the log may have had earlier batches of its producer.

        If so, the log has no batch of this producer epoch, or of a later one.
        """
        producer = self._producers.get(batch.producer_id)
        if producer is not None and (producer.recent or producer.epoch != batch.producer_epoch):
            return False
        return log_start_offset > 0 or self.has_expired

    def check(
        self, batch: ProducedBatch, log_start_offset: int, verification: Verification | None = None
    ) -> Accept | Duplicate | Refuse:
        """Return whether a leader may append a client's `batch`, without changing the state.

        verification: the token that `start_verification` returned, for a batch that may begin a transaction.
        """
        if batch.producer_id == NO_PRODUCER_ID:
            return ACCEPT
        verdict = self._check_sequence(batch, log_start_offset)
        if verdict is not ACCEPT:
            return verdict
        if not batch.is_transactional:
            if batch.producer_id not in self.transactions.open:
                return ACCEPT
            reason = f"producer {batch.producer_id} has an open transaction, and this batch is not part of it"
            return Refuse(KafkaCode.INVALID_TXN_STATE, reason)
        if self.has_open(batch.producer_id, batch.producer_epoch):
            return ACCEPT
        if not self.is_verified(batch.producer_id, batch.producer_epoch, verification):
            reason = (
                f"the coordinator has not confirmed a transaction of producer {batch.producer_id} in this partition"
            )
            return Refuse(KafkaCode.INVALID_TXN_STATE, reason)
        if batch.producer_id in self.transactions.open:
            reason = (
                f"the marker of an earlier transaction of producer {batch.producer_id} is missing in this partition"
            )
            return Refuse(KafkaCode.NOT_ENOUGH_REPLICAS, reason)  # every producer retries after this error
        if verification is not None and batch.base_sequence > verification.lowest_sequence:
            reason = f"sequence {verification.lowest_sequence} of producer {batch.producer_id} must be appended first"
            return Refuse(KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER, reason)
        if self.transactions.aborted_count >= ABORTED_MAX:
            reason = f"{ABORTED_MAX} aborted transactions are in this partition; wait for retention or compaction"
            return Refuse(KafkaCode.POLICY_VIOLATION, reason)
        return ACCEPT

    def check_coordinated(self, producer_id: int, producer_epoch: int) -> Accept | Refuse:
        """Return whether a batch of a coordinator may be appended for a producer; its sequence is not checked."""
        producer = self._producers.get(producer_id)
        if producer is None or producer_epoch >= producer.epoch:
            return ACCEPT
        return _old_epoch(producer_id, producer_epoch, producer.epoch)

    def has_open(self, producer_id: int, producer_epoch: int) -> bool:
        """Return whether a transaction of this producer epoch, or of a later one, is open."""
        producer = self._producers.get(producer_id)
        return producer_id in self.transactions.open and producer is not None and producer.epoch >= producer_epoch

    def check_marker(self, marker: Marker) -> Accept | Duplicate | Refuse:
        """Return whether a coordinator's marker may be appended, or is in the log already."""
        producer_id, producer_epoch = marker.producer
        producer = self._producers.get(producer_id)
        if producer is not None and marker.coordinator_epoch < producer.coordinator_epoch:
            known = producer.coordinator_epoch
            reason = f"a coordinator of epoch {known} has ended a transaction of producer {producer_id} already"
            return Refuse(KafkaCode.TRANSACTION_COORDINATOR_FENCED, reason)
        if marker.raises_epoch and producer is not None and producer.epoch == producer_epoch:
            if producer_id in self.transactions.open or producer.last_marker == NO_MARKER:
                reason = f"producer {producer_id} has begun its next transaction with epoch {producer_epoch} already"
                return Refuse(KafkaCode.INVALID_PRODUCER_EPOCH, reason)
            return Duplicate(producer.last_marker, producer.last_marker + 1)
        return self.check_coordinated(producer_id, producer_epoch)

    def start_verification(self, producer_id: int, producer_epoch: int, sequence: int) -> Verification | None:
        """Return a token with which to verify the transaction of a producer epoch; None if it is open already.

        `check` accepts the token once it is confirmed.  Each marker of the producer makes the token void, except the
        marker that raises the epoch to the token's: this marker ended the previous transaction.  Batches of the same
        producer epoch share a token until one of them is appended.  A token of a later epoch makes the token of an
        earlier epoch void: the earlier producer is fenced, and must not use the coordinator's answer to the later one.

        sequence: the first sequence of the batch.  A shared token keeps the lowest of these.
        Beyond `VERIFICATIONS_MAX` tokens, the oldest one is forgotten.
        """
        if self.has_open(producer_id, producer_epoch):
            return None
        known = self._verifying.get(producer_id)
        if known is not None and known.producer_epoch == producer_epoch:
            known.lowest_sequence = min(known.lowest_sequence, sequence)
            return known
        token = Verification(producer_epoch, sequence)
        if known is None or known.producer_epoch < producer_epoch:
            self._verifying[producer_id] = token
            if len(self._verifying) > VERIFICATIONS_MAX:
                del self._verifying[next(iter(self._verifying))]
        return token

    def is_verified(self, producer_id: int, producer_epoch: int, token: Verification | None) -> bool:
        """Return whether the transaction of a producer epoch is open, or the token is confirmed and not void."""
        if self.has_open(producer_id, producer_epoch):
            return True
        return token is not None and token.is_confirmed and self._verifying.get(producer_id) is token

    def end_verification(self, producer_id: int, token: Verification) -> None:
        """Forget a token."""
        if self._verifying.get(producer_id) is token:
            del self._verifying[producer_id]

    def void_verification(self, producer_id: int, producer_epoch: int) -> None:
        """Forget the token of this producer epoch, or of an earlier one, because its transaction is decided.

        Call this for a marker whose decision has not raised the epoch.  While this log has no batch of the epoch, such
        a marker looks to `apply` like a marker that raises the epoch, which would leave the token valid.
        """
        token = self._verifying.get(producer_id)
        if token is not None and token.producer_epoch <= producer_epoch:
            del self._verifying[producer_id]

    def _check_sequence(self, batch: ProducedBatch, log_start_offset: int) -> Accept | Duplicate | Refuse:
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            return self._check_unknown(batch, log_start_offset)
        if batch.producer_epoch < producer.epoch:
            return _old_epoch(batch.producer_id, batch.producer_epoch, producer.epoch)
        if batch.producer_epoch > producer.epoch:
            if batch.base_sequence == 0:
                return ACCEPT
            return _out_of_order(batch, f"epoch {batch.producer_epoch} is new and starts with sequence 0")
        for recent in producer.recent:
            if recent.base_sequence == batch.base_sequence and recent.last_sequence == batch.last_sequence:
                return Duplicate(recent.first_offset, recent.end_offset)
        if not producer.recent:  # a marker has begun this epoch, or its batches were deleted before the log was read
            return self._check_unknown(batch, log_start_offset)
        if batch.base_sequence == next_sequence(producer.last_sequence):
            return ACCEPT
        if is_before(batch.last_sequence, producer.recent[0].base_sequence):
            reason = f"sequence {batch.base_sequence} of producer {batch.producer_id} is older than its last batches"
            return Refuse(KafkaCode.DUPLICATE_SEQUENCE_NUMBER, reason)
        return _out_of_order(batch, f"the next sequence is {next_sequence(producer.last_sequence)}")

    def _check_unknown(self, batch: ProducedBatch, log_start_offset: int) -> Accept | Refuse:
        if batch.base_sequence == 0 or self.accepts_any_sequence(batch, log_start_offset):
            return ACCEPT
        return _out_of_order(batch, "this partition does not know the producer, which must start with sequence 0")

    def apply(self, batch: ProducedBatch, first_offset: int, end_offset: int, marker: Marker | None = None) -> None:
        """Update the state for `batch`, which is in the log at these offsets, without any check.

        marker: the marker in a control batch; None for any other batch.
        """
        producer_id = batch.producer_id
        if producer_id == NO_PRODUCER_ID:
            return
        producer = self._producers.get(producer_id)
        is_raised = producer is not None and producer.epoch < batch.producer_epoch
        if producer is None:
            producer = self._producers[producer_id] = Producer(batch.producer_epoch)
        elif producer.epoch != batch.producer_epoch:
            before = producer
            producer = Producer(batch.producer_epoch, before.coordinator_epoch, before.last_marker)
            self._producers[producer_id] = producer
        producer.silent_since_ms = None
        producer.last_timestamp_ms = batch.max_timestamp
        if not batch.is_control:
            producer.recent.append(RecentBatch(batch.base_sequence, batch.last_sequence, first_offset, end_offset))
            if batch.is_transactional:
                self.transactions.begin(producer_id, first_offset)
                self._verifying.pop(producer_id, None)
        elif marker is not None:
            producer.coordinator_epoch = max(producer.coordinator_epoch, marker.coordinator_epoch)
            producer.last_marker = first_offset
            self.transactions.end(producer_id, first_offset, is_commit=marker.is_commit)
            token = self._verifying.get(producer_id)
            # A marker that raises the epoch ended a transaction of an earlier epoch.  A batch of the new epoch belongs
            # to the next transaction, which the coordinator confirms once this marker is written.
            if token is not None and not (is_raised and token.producer_epoch == batch.producer_epoch):
                del self._verifying[producer_id]

    def renew(self, producer_id: int) -> None:
        """End the silence of a known producer: it has sent a batch again."""
        self._producers[producer_id].silent_since_ms = None

    def expire(self, now_ms: int, expiration_ms: int, committed_offset: int) -> int:
        """Drop the producers that have been silent for longer than `expiration_ms`; return their number.

        now_ms: time of a clock that does not jump, the same clock at every call.
        committed_offset: end of the committed records; a producer with a batch that ends above it is not silent.
            Neither is a producer with an open transaction.
        """
        silent = []
        for producer_id, producer in self._producers.items():
            if producer.end_offset > committed_offset or producer_id in self.transactions.open:
                producer.silent_since_ms = None
            elif producer.silent_since_ms is None:
                producer.silent_since_ms = now_ms
            elif now_ms - producer.silent_since_ms > expiration_ms:
                silent.append(producer_id)
        for producer_id in silent:
            del self._producers[producer_id]
        self.has_expired = self.has_expired or bool(silent)
        return len(silent)

    def snapshot(self) -> bytes:
        """Return the whole state as bytes; equal states give equal bytes."""
        parts = [_SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, self.has_expired, len(self._producers))]
        for producer_id, producer in self:
            fields = (producer_id, producer.epoch, producer.coordinator_epoch, producer.last_marker)
            parts.append(_PRODUCER.pack(*fields, len(producer.recent)))
            parts.extend(_BATCH.pack(*recent) for recent in producer.recent)
        parts.append(self.transactions.encode())
        return b"".join(parts)

    @classmethod
    def restore(cls, data: bytes) -> ProducerState:
        """Return the state that `snapshot` encoded.

        Raises:
            CorruptSnapshotError: `data` is incomplete, too long, or of an unknown version.
        """
        state = cls()
        try:
            version, has_expired, count = _SNAPSHOT_HEAD.unpack_from(data)
            if version not in (_FIRST_VERSION, _SNAPSHOT_VERSION):
                raise CorruptSnapshotError(f"version {version} of a producer snapshot is unknown")
            state.has_expired = bool(has_expired)
            position = _SNAPSHOT_HEAD.size
            for _ in range(count):
                if version == _FIRST_VERSION:
                    producer_id, epoch, _, batches = _FIRST_PRODUCER.unpack_from(data, position)
                    position += _FIRST_PRODUCER.size
                    producer = Producer(epoch)
                else:
                    producer_id, epoch, coordinator, marker, batches = _PRODUCER.unpack_from(data, position)
                    position += _PRODUCER.size
                    producer = Producer(epoch, coordinator, marker)
                state._producers[producer_id] = producer
                for _ in range(batches):
                    producer.recent.append(RecentBatch(*_BATCH.unpack_from(data, position)))
                    position += _BATCH.size
            if version != _FIRST_VERSION:
                state.transactions, position = Transactions.decode(data, position)
        except struct.error as error:
            raise CorruptSnapshotError(f"the producer snapshot is incomplete: {error}") from error
        if position != len(data):
            raise CorruptSnapshotError(f"the producer snapshot has {len(data) - position} bytes too many")
        return state


def is_before(sequence: int, other: int) -> bool:
    """Return whether `sequence` precedes `other` on the shorter way round the circle of 2^31 numbers."""
    return 0 < (other - sequence) % (SEQUENCE_MAX + 1) <= SEQUENCE_MAX // 2


def _old_epoch(producer_id: int, batch_epoch: int, known_epoch: int) -> Refuse:
    reason = f"producer {producer_id} has epoch {known_epoch}, and this batch has epoch {batch_epoch}"
    return Refuse(KafkaCode.INVALID_PRODUCER_EPOCH, reason)


def _out_of_order(batch: ProducedBatch, expected: str) -> Refuse:
    reason = f"sequence {batch.base_sequence} of producer {batch.producer_id}: {expected}"
    return Refuse(KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER, reason)
