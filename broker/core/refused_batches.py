"""Remembers the batches that a leader refused for the moment, to explain the gaps that they leave.  Pure.

Theory of operation.  A client may send five batches of a partition before the first is answered.  If the leader refuses
one of them for the moment and is ready again when it checks the next one, a sequence is missing in between.  Nothing is
lost: the client will send the refused batch again, with the same sequence.  OUT_OF_ORDER_SEQUENCE_NUMBER would say that
records are lost.  librdkafka then starts a new producer epoch and sends all batches again that were not acknowledged.
Among them may be a batch that is in the log already and timed out while it waited for the replicas.  Under the new
epoch nobody recognises it, so it is in the log twice.

So a leader refuses the batches behind such a gap with the error that made the gap.  All clients then send the batches
again in their order, under the same epoch.

A client sends no further batch once it knows the refusal.  So only batches that were on their way at that time can be
behind the gap, and a refusal is forgotten after `REMEMBERED_MS`.  A gap that lasts for longer is an error of the
client, and it gets OUT_OF_ORDER_SEQUENCE_NUMBER.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from broker.core.producer_state import NO_PRODUCER_ID, ProducedBatch
from quorumlog.wire.errors import KafkaCode

REMEMBERED_MS = 30_000
"""The default `request.timeout.ms` of all clients."""
REMEMBERED_MAX = 10_000
"""Refusals of a whole broker, some 200 bytes each.  Beyond it, the oldest one is forgotten."""

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


class _Key(NamedTuple):
    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    sequence: int


class RefusedBatches:
    """The refusals of all partitions of a broker.  The oldest refusal comes first."""

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: OrderedDict[_Key, tuple[KafkaCode, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._refused)

    def note(self, topic: str, index: int, batch: ProducedBatch, code: int, now_ms: int) -> None:
        """Remember that `batch` was answered with `code`, unless the client cannot send it again."""
        if batch.producer_id == NO_PRODUCER_ID or code not in PASSING:
            return
        key = _Key(topic, index, batch.producer_id, batch.producer_epoch, batch.base_sequence)
        self._refused[key] = KafkaCode(code), now_ms
        self._refused.move_to_end(key)
        if len(self._refused) > REMEMBERED_MAX:
            self._refused.popitem(last=False)

    def cause(self, topic: str, index: int, batch: ProducedBatch, missing: int, now_ms: int) -> KafkaCode | None:
        """Return the error with which the batch before `batch` was refused; None if this broker did not refuse it.

        missing: the sequence that the producer of `batch` must continue with.
        """
        key = _Key(topic, index, batch.producer_id, batch.producer_epoch, missing)
        code, refused_ms = self._refused.get(key, (None, 0))
        return code if now_ms - refused_ms <= REMEMBERED_MS else None
