"""The private requests (see `private`) of transaction scopes.

A scope is a name under which many producers write, and one record decides about all of them.

    InitScope           begin a run of a scope, which fences earlier runs
    InitScopeProducer   begin as a producer of the scope, with a transactional id of its own
    EndScope            commit the winners, abort all other producers, and store the sequence
    AbortScope          abort all producers, and delete the scope if `close` is set
    DescribeScopes      return the state of scopes

All requests go to the coordinator of the scope, which FindCoordinator finds by `scope_names.coordinator_key`.  Like any
other producer, a producer of a scope adds its partitions with AddPartitionsToTxn, writes with Produce, and may abort
its transaction with EndTxn.

Errors, in addition to those of every coordinator:

    INVALID_REQUEST              a name, a sequence or a list is malformed
    POLICY_VIOLATION             a limit of the coordinator is reached
    RESOURCE_NOT_FOUND           there is no such scope
    DUPLICATE_RESOURCE           the scope belongs to another owner
    PRODUCER_FENCED              a later run of the scope has begun
    INVALID_PRODUCER_EPOCH       the scope has never had this epoch
    INVALID_TXN_STATE            a winner is not a producer of the scope now: it was aborted, or replaced
    INVALID_TRANSACTION_TIMEOUT  the timeout is not in the range that the cluster permits
    CONCURRENT_TRANSACTIONS      the previous end is not complete; retriable
"""

# No `from __future__ import annotations`: the readers look at the types of fields.
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from kio.schema.errors import ErrorCode
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32, i32Timedelta, i64

INIT_SCOPE: Final = 10_002
INIT_SCOPE_PRODUCER: Final = 10_003
END_SCOPE: Final = 10_004
ABORT_SCOPE: Final = 10_005
DESCRIBE_SCOPES: Final = 10_006

NAMES: Final = {
    INIT_SCOPE: "init_scope",
    INIT_SCOPE_PRODUCER: "init_scope_producer",
    END_SCOPE: "end_scope",
    ABORT_SCOPE: "abort_scope",
    DESCRIBE_SCOPES: "describe_scopes",
}

_STRING: Final = {"kafka_type": "string"}
_BOOL: Final = {"kafka_type": "bool"}
_INT16: Final = {"kafka_type": "int16"}
_INT32: Final = {"kafka_type": "int32"}
_INT64: Final = {"kafka_type": "int64"}
_ERROR: Final = {"kafka_type": "error_code"}
_DURATION: Final = {"kafka_type": "timedelta_i32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class InitScopeRequest:
    """Begin a run of a scope.

    owner: the owner of the scope, which its first run stores; other owners are refused.
    run: the name of this run.  A new run fences the current one, and the producers of all earlier runs are aborted.  A
    request that repeats the current run changes nothing, and gets the same answer.  A request with an earlier run is
    refused: it is a late duplicate, or its driver must end.
    reset: take the scope over from any owner, and delete its sequence.
    """

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(INIT_SCOPE)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    scope: str = field(metadata=_STRING)
    owner: str = field(metadata=_STRING)
    run: str = field(metadata=_STRING)
    reset: bool = field(metadata=_BOOL, default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class InitScopeResponse:
    """last_sequence: the sequence of the last end; -1 if there was none.

    owner: the current owner; also in the refusals DUPLICATE_RESOURCE and PRODUCER_FENCED, but empty in others.
    """

    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(INIT_SCOPE)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata=_DURATION)
    error_code: ErrorCode = field(metadata=_ERROR)
    error_message: str | None = field(metadata=_STRING, default=None)
    scope_epoch: i64 = field(metadata=_INT64, default=i64(-1))
    last_sequence: i64 = field(metadata=_INT64, default=i64(-1))
    owner: str = field(metadata=_STRING, default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class InitScopeProducerRequest:
    """Begin as a producer of a scope.

    attempt: a name that is unique among the producers of the scope.  An earlier producer with this name is fenced.
    transaction_timeout: the producer is aborted this long after its first partition was added, unless the scope ended.
    """

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(INIT_SCOPE_PRODUCER)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    scope: str = field(metadata=_STRING)
    scope_epoch: i64 = field(metadata=_INT64)
    attempt: str = field(metadata=_STRING)
    transaction_timeout: i32Timedelta = field(metadata=_DURATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class InitScopeProducerResponse:
    """The transactional id, producer id and epoch to write with."""

    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(INIT_SCOPE_PRODUCER)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata=_DURATION)
    error_code: ErrorCode = field(metadata=_ERROR)
    error_message: str | None = field(metadata=_STRING, default=None)
    transactional_id: str = field(metadata=_STRING, default="")
    producer_id: i64 = field(metadata=_INT64, default=i64(-1))
    producer_epoch: i16 = field(metadata=_INT16, default=i16(-1))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeWinner:
    """A producer to commit, with the id and epoch that InitScopeProducer returned."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(END_SCOPE)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    attempt: str = field(metadata=_STRING)
    producer_id: i64 = field(metadata=_INT64)
    producer_epoch: i16 = field(metadata=_INT16)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndScopeRequest:
    """Commit the winners, abort all other producers of the scope, and store the sequence, in one decision.

    sequence: not negative.  If it is not greater than the stored sequence, nothing changes, and the answer is success.
    """

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(END_SCOPE)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    scope: str = field(metadata=_STRING)
    scope_epoch: i64 = field(metadata=_INT64)
    sequence: i64 = field(metadata=_INT64)
    winners: tuple[ScopeWinner, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndScopeResponse:
    """changed: whether this request made the decision.  last_sequence: the stored sequence."""

    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(END_SCOPE)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata=_DURATION)
    error_code: ErrorCode = field(metadata=_ERROR)
    error_message: str | None = field(metadata=_STRING, default=None)
    changed: bool = field(metadata=_BOOL, default=False)
    last_sequence: i64 = field(metadata=_INT64, default=i64(-1))


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortScopeRequest:
    """Abort all producers of a scope, and keep its sequence.  close: also delete the scope, with its sequence."""

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(ABORT_SCOPE)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    scope: str = field(metadata=_STRING)
    scope_epoch: i64 = field(metadata=_INT64)
    close: bool = field(metadata=_BOOL, default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortScopeResponse:
    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(ABORT_SCOPE)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata=_DURATION)
    error_code: ErrorCode = field(metadata=_ERROR)
    error_message: str | None = field(metadata=_STRING, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeScopesRequest:
    """Describe scopes.  A scope that is named twice is described once."""

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(DESCRIBE_SCOPES)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    scopes: tuple[str, ...] = field(metadata=_STRING, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedProducer:
    """A producer whose transaction is not complete.

    started: the wall-clock time in ms at which its first partition was added; -1 if no partition was added.
    partitions: the number of partitions in its transaction.
    """

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(DESCRIBE_SCOPES)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    attempt: str = field(metadata=_STRING)
    producer_id: i64 = field(metadata=_INT64)
    producer_epoch: i16 = field(metadata=_INT16)
    producer_state: str = field(metadata=_STRING)
    started: i64 = field(metadata=_INT64, default=i64(-1))
    partitions: i32 = field(metadata=_INT32, default=i32(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedScope:
    """A scope.  scope_state: Open, Ending or Closing.  updated: the wall-clock time of its last change in ms."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(DESCRIBE_SCOPES)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    error_code: ErrorCode = field(metadata=_ERROR)
    error_message: str | None = field(metadata=_STRING, default=None)
    scope: str = field(metadata=_STRING)
    owner: str = field(metadata=_STRING, default="")
    run: str = field(metadata=_STRING, default="")
    scope_epoch: i64 = field(metadata=_INT64, default=i64(-1))
    scope_state: str = field(metadata=_STRING, default="")
    last_sequence: i64 = field(metadata=_INT64, default=i64(-1))
    updated: i64 = field(metadata=_INT64, default=i64(-1))
    producers: tuple[DescribedProducer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeScopesResponse:
    """scopes: in the order of the request, each once."""

    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(DESCRIBE_SCOPES)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata=_DURATION)
    scopes: tuple[DescribedScope, ...]


SCHEMAS: Final[dict[tuple[int, int], tuple[Any, Any]]] = {
    (INIT_SCOPE, 0): (InitScopeRequest, InitScopeResponse),
    (INIT_SCOPE_PRODUCER, 0): (InitScopeProducerRequest, InitScopeProducerResponse),
    (END_SCOPE, 0): (EndScopeRequest, EndScopeResponse),
    (ABORT_SCOPE, 0): (AbortScopeRequest, AbortScopeResponse),
    (DESCRIBE_SCOPES, 0): (DescribeScopesRequest, DescribeScopesResponse),
}
"""Request and response by key and version."""
