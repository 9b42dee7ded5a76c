"""Reads and writes message headers, decodes messages, and converts nested mappings to messages of `kio`.

A schema is identified by (api key, version).  Importing every schema takes 0.9 s and 32 MB, so each is imported at its
first use (about 5 ms) and kept.  The writer takes nested mappings, and fills in fields that the caller does not set.
A mapping may name fields of any version, so that it serves all versions.

`kio` represents a message as a frozen dataclass. Times are `timedelta` and `datetime` (`milliseconds` converts them),
and an all-zero UUID is None. This package uses its schemas and its writer, but has its own reader (`decoding`).
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import datetime, timedelta
from enum import IntEnum
from functools import cache
from typing import Any, Final
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_writer

from quorumlog.errors import RemoteProtocolError
from quorumlog.wire.kafka import private, private_scopes, private_shares, private_transactions
from quorumlog.wire.kafka.buffer import ELEMENTS_MAX, REQUEST_ELEMENTS_MAX, Reader
from quorumlog.wire.kafka.decoding import EPOCH, FieldShape, default_of, entity_reader

FRAME_SIZE: Final = struct.Struct(">i")
"""Every frame begins with the size of the rest."""
_REQUEST_HEADER: Final = struct.Struct(">hhi")
_RESPONSE_HEADER: Final = struct.Struct(">ii")


class Api(IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
    EXPLAIN_GROUPS = private.EXPLAIN_GROUPS
    INIT_SCOPE = private_scopes.INIT_SCOPE
    INIT_SCOPE_PRODUCER = private_scopes.INIT_SCOPE_PRODUCER
    END_SCOPE = private_scopes.END_SCOPE
    ABORT_SCOPE = private_scopes.ABORT_SCOPE
    DESCRIBE_SCOPES = private_scopes.DESCRIBE_SCOPES
    FIND_OUTCOME = private_transactions.FIND_OUTCOME
    WRITE_DEAD_LETTERS = private_shares.WRITE_DEAD_LETTERS


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """The header of a request.  body: the position in the frame at which the request itself begins."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: int


# --- schemas -------------------------------------------------------------------------------------------------------


def has_schema(api_key: int, version: int) -> bool:
    if api_key in private.NAMES:
        return (api_key, version) in private.SCHEMAS
    name = api_key_map.get(api_key)
    return name is not None and version in schema_name_map[name]


def api_name(api_key: int) -> str:
    """Return the protocol's name of a request, even if brokers do not serve it."""
    return api_key_map.get(api_key) or private.NAMES.get(api_key, "unknown")


@cache
def request_schema(api_key: int, version: int) -> Any:
    """Return the class of a request, for which `has_schema` must be true."""
    if api_key in private.NAMES:
        return private.SCHEMAS[api_key, version][0]
    return load_request_schema(api_key, version)


@cache
def response_schema(api_key: int, version: int) -> Any:
    if api_key in private.NAMES:
        return private.SCHEMAS[api_key, version][1]
    return load_response_schema(api_key, version)


@cache
def request_is_flexible(api_key: int, version: int) -> bool:
    """Return whether the request and its header have compact lengths and tagged fields."""
    return bool(request_schema(api_key, version).__flexible__)


@cache
def response_header_is_flexible(api_key: int, version: int) -> bool:
    """Return whether the header of the response has tagged fields.

    False for every version of ApiVersions, because the reader of that response cannot know the version yet.
    """
    if api_key == Api.API_VERSIONS:
        return False
    return int(response_schema(api_key, version).__header_schema__.__version__) >= 1


# --- reading -------------------------------------------------------------------------------------------------------


def parse_request_header(frame: memoryview) -> RequestHeader:
    """Parse the header of a request, whose frame is given without its size.

    Raises: RemoteProtocolError.  An unknown api key or version is not an error here: the header is then read in its
    oldest form, so that the caller can name the request.
    """
    reader = Reader(frame, elements_max=REQUEST_ELEMENTS_MAX)
    api_key, version, correlation_id = reader.unpack(_REQUEST_HEADER)
    client_id = reader.nullable_string(flexible=False)
    if has_schema(api_key, version) and request_is_flexible(api_key, version):
        reader.skip_tags()
    return RequestHeader(api_key, version, correlation_id, client_id, reader.position)


def decode(
    schema: Any, frame: memoryview, position: int, *, elements_max: int = ELEMENTS_MAX, whole: bool = True
) -> Any:
    """Decode one message of `schema` at `position`.  If `whole`, the message must extend to the end of the frame.

    Raises: RemoteProtocolError.
    """
    reader = Reader(frame, position, elements_max)
    try:
        message = entity_reader(schema)(reader)
    except (RemoteProtocolError, ValueError, OverflowError) as cause:
        raise RemoteProtocolError(f"malformed {schema.__name__} v{schema.__version__}: {cause}") from cause
    if whole and reader.left():
        left = reader.left()
        raise RemoteProtocolError(f"malformed {schema.__name__} v{schema.__version__}: {left} bytes after its end")
    return message


def decode_request(header: RequestHeader, frame: memoryview) -> Any:
    """Decode a client's request.  Bytes after its end are ignored: librdkafka sends three when it lists topics."""
    schema = request_schema(header.api_key, header.api_version)
    return decode(schema, frame, header.body, elements_max=REQUEST_ELEMENTS_MAX, whole=False)


def parse_response_header(api_key: int, version: int, frame: memoryview) -> tuple[int, int]:
    """Return the correlation id, and the position of the response itself."""
    reader = Reader(frame)
    correlation_id = reader.int32()
    if response_header_is_flexible(api_key, version):
        reader.skip_tags()
    return correlation_id, reader.position


def milliseconds(value: timedelta | datetime | None) -> int:
    """Convert a duration or a time back to ms; None is -1."""
    if value is None:
        return -1
    if isinstance(value, timedelta):
        return round(value / timedelta(milliseconds=1))
    return round((value - EPOCH) / timedelta(milliseconds=1))


# --- writing -------------------------------------------------------------------------------------------------------


def _converter(kafka_type: str | None, nullable: bool) -> Callable[[Any], Any] | None:
    match kafka_type:
        case "error_code":
            return ErrorCode
        case "timedelta_i32" | "timedelta_i64":
            return lambda value: timedelta(milliseconds=value)
        case "datetime_i64":
            return lambda value: None if value == -1 and nullable else EPOCH + timedelta(milliseconds=value)
        case "uuid":
            return lambda value: None if value == UUID(int=0) else value
        case _:
            return None


@cache
def _plan(schema: Any) -> tuple[tuple[str, Any, bool, Any, Callable[[Any], Any] | None], ...]:
    """Return for each field: name, class of its entities or None, whether it is an array, default, conversion."""
    plan = []
    for field in fields(schema):
        shape = FieldShape(field)
        default = default_of(field, shape)
        plan.append((field.name, shape.entity, shape.is_array, default, _converter(shape.kafka_type, shape.nullable)))
    return tuple(plan)


def make(schema: Any, values: Mapping[str, Any]) -> Any:
    """Build a message of `schema` from nested mappings and lists, with numbers for error codes and times.

    Fields that this version lacks are omitted; fields that `values` does not name get their defaults.
    """
    arguments = {}
    for name, entity, is_array, default, convert in _plan(schema):
        value = values.get(name, MISSING)
        if value is MISSING:
            arguments[name] = default
        elif value is None:
            arguments[name] = None
        elif entity is not None:
            arguments[name] = tuple(make(entity, item) for item in value) if is_array else make(entity, value)
        elif is_array:
            arguments[name] = tuple(value)
        else:
            arguments[name] = value if convert is None else convert(value)
    return schema(**arguments)


def encode(message: Any) -> bytes:
    """Return the message alone, without header or size."""
    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    return out.getvalue()


def encode_response_body(api_key: int, version: int, values: Mapping[str, Any]) -> bytes:
    return encode(make(response_schema(api_key, version), values))


def response_prefix(correlation_id: int, size: int, flexible_header: bool) -> bytes:
    """Return the frame size and response header for a response of `size` bytes."""
    if flexible_header:
        return _RESPONSE_HEADER.pack(size + 5, correlation_id) + b"\0"
    return _RESPONSE_HEADER.pack(size + 4, correlation_id)


def request_prefix(api_key: int, version: int, correlation_id: int, client_id: str, size: int) -> bytes:
    """Return the frame size and request header for a request of `size` bytes."""
    name = client_id.encode()
    tags = b"\0" if request_is_flexible(api_key, version) else b""
    header = _REQUEST_HEADER.pack(api_key, version, correlation_id) + struct.pack(">h", len(name)) + name + tags
    return FRAME_SIZE.pack(len(header) + size) + header


def request(api_key: int, version: int, values: Mapping[str, Any]) -> Any:
    """Make a request from nested mappings, as `make` does."""
    return make(request_schema(api_key, version), values)
