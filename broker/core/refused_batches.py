"""Remembers the batches that a leader refused temporarily, to explain the gaps that they leave.  Pure.

Theory of operation.  A client may send five batches of a partition before the first is answered.  The leader may refuse
one of them temporarily, and be ready again when it checks the next one.  Then the sequences have a gap between the
batches.  Nothing is lost: the client will send the refused batch again, with the same sequence.
OUT_OF_ORDER_SEQUENCE_NUMBER would say that records are lost.  After this error, librdkafka starts a new producer epoch
and sends all batches again that were not acknowledged.  One of these batches may be in the log already, because it only
timed out while it waited for the replicas.  Under the new epoch it is not recognised, and is appended twice.

The log may have no batch of the producer epoch.  If it has deleted records or expired producers, it then accepts any
sequence, because it may have had earlier batches.  Assume that the leader refuses the first batch temporarily, and
then appends the second one.  When the first one is sent again, it counts as a duplicate: it is acknowledged, and lost.

So a leader refuses the batches behind such a gap with the error that made the gap.  All clients then send the batches
again in their order, under the same epoch.

A refusal is forgotten once its batch, or a later one, is appended.  Otherwise it would block a producer that the log no
longer knows.  A refusal is always ignored after `REMEMBERED_MS`.  A client sends no further batch once it knows the
refusal, so only batches that were in transit at that time can be behind the gap.  A gap that lasts for longer is an
error of the client, which then gets OUT_OF_ORDER_SEQUENCE_NUMBER.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from broker.core.producer_state import NO_PRODUCER_ID, ProducedBatch, is_before
from quorumlog.wire.errors import KafkaCode

REMEMBERED_MS = 30_000
"""The default `request.timeout.ms` of the Java client and of librdkafka."""
REMEMBERED_MAX = 10_000
"""Maximum number of producer epochs with refusals on a broker; up to 1 KB each.  An epoch with refusals in several
partitions counts in each.  Beyond this number, the one whose last refusal is the oldest is forgotten."""
SEQUENCES_MAX = 5
"""Refusals of one producer epoch in one partition: as many batches as a client has in flight.  Beyond this number, the
oldest refusal is forgotten."""

PASSING = frozenset(
    {
        KafkaCode.CONCURRENT_TRANSACTIONS,
        KafkaCode.KAFKA_STORAGE_ERROR,
        KafkaCode.NOT_ENOUGH_REPLICAS,
        KafkaCode.NOT_LEADER_OR_FOLLOWER,
        KafkaCode.REQUEST_TIMED_OUT,
        KafkaCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Errors of Produce after which a client sends the same batch again."""


class _Producer(NamedTuple):
    topic: str
    partition: int
    producer_id: int
    producer_epoch: int


class _Refusal(NamedTuple):
    sequence: int
    code: KafkaCode
    refused_ms: int


class RefusedBatches:
    """The refusals of all partitions of a broker, in the order of the last refusal of each producer epoch."""

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: OrderedDict[_Producer, tuple[_Refusal, ...]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of refusals that are remembered."""
        return sum(map(len, self._refused.values()))

    def note(self, topic: str, index: int, batch: ProducedBatch, code: int, now_ms: int) -> None:
        """Remember that `batch` was answered with `code`, if the client sends the same batch again after this error."""
        if batch.producer_id == NO_PRODUCER_ID or code not in PASSING:
            return
        producer = _Producer(topic, index, batch.producer_id, batch.producer_epoch)
        known = self._refused.pop(producer, ())
        kept = [refusal for refusal in known if refusal.sequence != batch.base_sequence]
        refusal = _Refusal(batch.base_sequence, KafkaCode(code), now_ms)
        self._refused[producer] = (*kept[-SEQUENCES_MAX + 1 :], refusal)
        if len(self._refused) > REMEMBERED_MAX:
            self._refused.popitem(last=False)

    def appended(self, topic: str, index: int, batch: ProducedBatch) -> None:
        """Forget the refusals of `batch` and of earlier ones, because the log has `batch` now."""
        if not self._refused:
            return  # almost always
        producer = _Producer(topic, index, batch.producer_id, batch.producer_epoch)
        if (known := self._refused.get(producer)) is None:
            return
        if kept := tuple(refusal for refusal in known if is_before(batch.base_sequence, refusal.sequence)):
            self._refused[producer] = kept
        else:
            del self._refused[producer]

    def cause(self, topic: str, index: int, batch: ProducedBatch, missing: int, now_ms: int) -> KafkaCode | None:
        """Return the error with which the batch before `batch` was refused; None if this broker did not refuse it.

        missing: the sequence with which the producer of `batch` must continue.
        """
        found = self._recent(topic, index, batch, now_ms)
        return next((refusal.code for refusal in found if refusal.sequence == missing), None)

    def earlier(self, topic: str, index: int, batch: ProducedBatch, now_ms: int) -> tuple[int, KafkaCode] | None:
        """Return the refusal of a batch before `batch`, as its sequence and error; None if no such batch was refused.

        Use this if the log has no batch of the producer epoch.
        """
        found = self._recent(topic, index, batch, now_ms)
        return next(((one.sequence, one.code) for one in found if is_before(one.sequence, batch.base_sequence)), None)

    def _recent(self, topic: str, index: int, batch: ProducedBatch, now_ms: int) -> Iterator[_Refusal]:
        known = self._refused.get(_Producer(topic, index, batch.producer_id, batch.producer_epoch), ())
        return (refusal for refusal in known if now_ms - refusal.refused_ms <= REMEMBERED_MS)
