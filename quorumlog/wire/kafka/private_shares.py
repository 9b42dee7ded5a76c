"""A private request (see `private`) of brokers about share groups.

    WriteDeadLetters    write the missing dead letters of share partitions

A share coordinator sends it to the leaders of the partitions.  A leader alone does not know which groups have records
that wait for dead letters.
"""

# No `from __future__ import annotations`: the readers look at the types of fields.
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32, i32Timedelta

WRITE_DEAD_LETTERS: Final = 10_030

NAMES: Final = {WRITE_DEAD_LETTERS: "write_dead_letters"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePartition:
    """One partition in one share group."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(WRITE_DEAD_LETTERS)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    group_id: str = field(metadata={"kafka_type": "string"})
    topic_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    partition: i32 = field(metadata={"kafka_type": "int32"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteDeadLettersRequest:
    """share_partitions: the broker ignores partitions that it does not lead, or that it has already loaded."""

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(WRITE_DEAD_LETTERS)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    share_partitions: tuple[SharePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteDeadLettersResponse:
    """The answer, before any letter is written.  error_code: always 0."""

    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(WRITE_DEAD_LETTERS)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})


SCHEMAS: Final[dict[tuple[int, int], tuple[Any, Any]]] = {
    (WRITE_DEAD_LETTERS, 0): (WriteDeadLettersRequest, WriteDeadLettersResponse),
}
"""Request and response by key and version."""
