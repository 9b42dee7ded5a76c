"""Requests of our own on the Kafka port.  Their keys are 10,000 and more, which Kafka does not use.

A broker lists them in ApiVersions, and clients of Kafka ignore keys that they do not know.  The classes have the form
of `kio`'s classes, so that the same readers and writers serve them.  A version that was released never changes: every
change needs a new version.
"""

# No `from __future__ import annotations`: the readers look at the types of fields.
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from kio.schema.errors import ErrorCode
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32, i32Timedelta, i64

from quorumlog.wire.kafka import private_scopes, private_shares, private_transactions

EXPLAIN_GROUPS: Final = 10_001
"""Asks the coordinator of groups why their last rebalances happened."""

NAMES: Final = {
    EXPLAIN_GROUPS: "explain_groups",
    **private_scopes.NAMES,
    **private_shares.NAMES,
    **private_transactions.NAMES,
}

_STRING: Final = {"kafka_type": "string"}
_INT32: Final = {"kafka_type": "int32"}
_INT64: Final = {"kafka_type": "int64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainGroupsRequest:
    """Explain groups.  A group that is named twice is explained once."""

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(EXPLAIN_GROUPS)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    group_ids: tuple[str, ...] = field(metadata=_STRING, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedMember:
    """All names of a member.  at: in `last_joined`, the wall-clock time of its join in ms; elsewhere -1."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(EXPLAIN_GROUPS)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    member_id: str = field(metadata=_STRING)
    group_instance_id: str | None = field(metadata=_STRING, default=None)
    client_id: str = field(metadata=_STRING)
    client_host: str = field(metadata=_STRING)
    at: i64 = field(metadata=_INT64, default=i64(-1))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedRebalance:
    """A rebalance.

    started: wall-clock time in ms.  duration: ms, or -1 while it is in progress.
    generation: the generation that it made, or will make.  members: the number of members of that generation.
    interrupted: another rebalance began before this one ended.
    caused_by: the member that caused it, or none.
    """

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(EXPLAIN_GROUPS)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    started: i64 = field(metadata=_INT64)
    duration: i64 = field(metadata=_INT64)
    generation: i32 = field(metadata=_INT32)
    members: i32 = field(metadata=_INT32)
    interrupted: bool = field(metadata={"kafka_type": "bool"})
    reason: str = field(metadata=_STRING)
    cause: str = field(metadata=_STRING)
    caused_by: tuple[ExplainedMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedGroup:
    """A group.  Times are in ms, by the coordinator's wall clock.

    loaded: the time at which the coordinator loaded the group; it knows no earlier rebalances.  now: the time of the
    answer.  empty_since: the time since which the group counts as empty; -1 if it has members, or the time is unknown.
    last_joined: at most one member.  awaited: members from which the rebalance in progress waits for a request.
    """

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(EXPLAIN_GROUPS)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata=_STRING, default=None)
    group_id: str = field(metadata=_STRING)
    group_type: str = field(metadata=_STRING)
    group_state: str = field(metadata=_STRING)
    generation: i32 = field(metadata=_INT32)
    member_count: i32 = field(metadata=_INT32)
    loaded: i64 = field(metadata=_INT64)
    now: i64 = field(metadata=_INT64)
    empty_since: i64 = field(metadata=_INT64, default=i64(-1))
    last_joined: tuple[ExplainedMember, ...]
    awaited: tuple[ExplainedMember, ...]
    rebalances: tuple[ExplainedRebalance, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainGroupsResponse:
    """groups: in the order of the request, each once."""

    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(EXPLAIN_GROUPS)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    groups: tuple[ExplainedGroup, ...]


SCHEMAS: Final[dict[tuple[int, int], tuple[Any, Any]]] = {
    (EXPLAIN_GROUPS, 0): (ExplainGroupsRequest, ExplainGroupsResponse),
    **private_scopes.SCHEMAS,
    **private_shares.SCHEMAS,
    **private_transactions.SCHEMAS,
}
"""Request and response by key and version."""
