"""A private request (see `private`) of brokers about transactions.

    FindOutcome         find the outcome of a transaction that is still open in a partition

The leader of the partition sends it to all brokers that coordinate transactions.  A log contains the producer id but
not the transactional id, so the leader does not know which of these brokers is the coordinator.
"""

# No `from __future__ import annotations`: the readers look at the types of fields.
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from kio.schema.errors import ErrorCode
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.static.constants import EntityType
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64

FIND_OUTCOME: Final = 10_020

NAMES: Final = {FIND_OUTCOME: "find_outcome"}

_INT32: Final = {"kafka_type": "int32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FindOutcomeRequest:
    """producer_epoch: the epoch in the batches of the transaction.  topic, partition: where the transaction is open."""

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(FIND_OUTCOME)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    producer_id: i64 = field(metadata={"kafka_type": "int64"})
    producer_epoch: i16 = field(metadata={"kafka_type": "int16"})
    topic: str = field(metadata={"kafka_type": "string"})
    partition: i32 = field(metadata=_INT32)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatedOutcome:
    """The answer of the coordinator of one partition of `__transaction_state`.

    outcome: 0 if the partition does not know the producer; 1 if the coordinator will end the transaction; 2 if the
    transaction was committed; 3 if it was aborted, or if the coordinator no longer knows its outcome.
    """

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(FIND_OUTCOME)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    partition: i32 = field(metadata=_INT32)
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    outcome: i8 = field(metadata={"kafka_type": "int8"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FindOutcomeResponse:
    """coordinators: one for each partition of `__transaction_state` that the broker leads.  error_code: always 0."""

    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(FIND_OUTCOME)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    coordinators: tuple[CoordinatedOutcome, ...]


SCHEMAS: Final[dict[tuple[int, int], tuple[Any, Any]]] = {
    (FIND_OUTCOME, 0): (FindOutcomeRequest, FindOutcomeResponse),
}
"""Request and response by key and version."""
