"""Reading messages of `kio`'s schemas from untrusted bytes.

Theory of operation.  The fast reader of `kio` (0.6.5) trusts every array length: for a 20-byte request that announces
four billion topics, it allocates the memory, and the process aborts.  So this module uses only the schemas of `kio`.
Each entity is compiled once into a chain of small functions over `Reader`.  Every length is compared with the remaining
bytes.  The number of all elements of a message is limited as well, because as Python objects, elements of one byte take
fifty times their size.  Adjacent numbers are read as one struct.

The results equal those of `kio`: its dataclasses, `timedelta` and `datetime`, and None for an all-zero UUID.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final, get_args, get_origin

from kio.schema.errors import ErrorCode

from quorumlog.errors import RemoteProtocolError
from quorumlog.wire.kafka.buffer import Reader

Read = Callable[[Reader], Any]

EPOCH: Final = datetime.fromtimestamp(0, UTC)

_DURATION_MAX_MS: Final = timedelta.max.days * 86_400_000
"""A longer duration is read as this one, which exceeds every limit."""

_NUMBERS: Final = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float64": "d",
    "bool": "?",
    "error_code": "h",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
}
_CONVERSIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "error_code": ErrorCode,
    "timedelta_i32": lambda value: timedelta(milliseconds=value),
    "timedelta_i64": lambda value: timedelta(milliseconds=max(-_DURATION_MAX_MS, min(value, _DURATION_MAX_MS))),
    "datetime_i64": lambda value: None if value == -1 else EPOCH + timedelta(milliseconds=value),
}


class FieldShape:
    """The type annotation of a `kio` field."""

    __slots__ = ("entity", "is_array", "kafka_type", "nullable", "tag")

    def __init__(self, field: Any) -> None:
        kinds = get_args(field.type) if get_origin(field.type) is not tuple else (field.type,)
        kinds = tuple(kind for kind in (kinds or (field.type,)) if kind is not type(None))
        inner = kinds[0]
        self.nullable = type(None) in get_args(field.type)
        self.is_array = get_origin(inner) is tuple
        if self.is_array:
            inner = get_args(inner)[0]
        self.entity = inner if hasattr(inner, "__dataclass_fields__") else None
        self.kafka_type: str | None = field.metadata.get("kafka_type")
        self.tag: int | None = field.metadata.get("tag")


def default_of(field: Field[Any], shape: FieldShape) -> Any:
    """Return the value of a field that a message does not contain."""
    if field.default is not MISSING:
        return field.default
    if shape.is_array:
        return None if shape.nullable else ()
    if shape.nullable or shape.kafka_type == "uuid":
        return None
    if shape.entity is not None:
        return shape.entity(**{each.name: default_of(each, FieldShape(each)) for each in fields(shape.entity)})
    match shape.kafka_type:
        case "string":
            return ""
        case "bytes" | "records":
            return b""
        case "bool":
            return False
        case "error_code":
            return ErrorCode.none
        case "timedelta_i32" | "timedelta_i64":
            return timedelta()
        case "datetime_i64":
            return EPOCH
        case _:
            return 0


def _least_size(shape: FieldShape, flexible: bool) -> int:
    """Return the minimum size of the field."""
    if shape.is_array or shape.kafka_type in ("bytes", "records"):
        return 1 if flexible else 4
    if shape.entity is not None and shape.nullable:
        return 1
    return _least_element_size(shape, flexible)


def _least_element_size(shape: FieldShape, flexible: bool) -> int:
    if shape.entity is not None:
        return _least_entity_size(shape.entity)
    if shape.kafka_type == "string":
        return 1 if flexible else 2
    if shape.kafka_type == "uuid":
        return 16
    return struct.calcsize(">" + _NUMBERS[shape.kafka_type or ""])


@cache
def _least_entity_size(schema: Any) -> int:
    flexible = bool(schema.__flexible__)
    shapes = [FieldShape(field) for field in fields(schema)]
    size = sum(_least_size(shape, flexible) for shape in shapes if shape.tag is None)
    return size + (1 if flexible else 0)


def _reader_of_one(shape: FieldShape, flexible: bool, nullable: bool) -> Read:
    """Return a function that reads the field's value, or one element if it is an array."""
    if shape.entity is not None:
        return entity_reader(shape.entity)
    match shape.kafka_type:
        case "string":
            return lambda reader: reader.nullable_string(flexible) if nullable else reader.string(flexible)
        case "bytes" | "records":
            return lambda reader: _bytes(reader, flexible, nullable)
        case "uuid":
            return _uuid
    layout = struct.Struct(">" + _NUMBERS[shape.kafka_type or ""])
    convert = _CONVERSIONS.get(shape.kafka_type or "")
    if convert is None:
        return lambda reader: reader.unpack(layout)[0]
    return lambda reader: convert(reader.unpack(layout)[0])


def _uuid(reader: Reader) -> Any:
    value = reader.uuid()
    return value if value.int else None


def _bytes(reader: Reader, flexible: bool, nullable: bool) -> bytes | None:
    value = reader.nullable_bytes(flexible)
    if value is None and not nullable:
        raise RemoteProtocolError(f"null bytes at {reader.position} where a value is required")
    return None if value is None else bytes(value)


def _nullable_entity_reader(schema: Any) -> Read:
    """Return a reader of an entity that may be null.  The byte before the entity is negative for null (KIP-893)."""
    read_entity = entity_reader(schema)
    return lambda reader: None if reader.int8() < 0 else read_entity(reader)


def _field_reader(shape: FieldShape, flexible: bool) -> Read:
    if not shape.is_array:
        if shape.entity is not None and shape.nullable and shape.tag is None:
            return _nullable_entity_reader(shape.entity)
        return _reader_of_one(shape, flexible, shape.nullable)
    element = _reader_of_one(shape, flexible, nullable=False)
    size = _least_element_size(shape, flexible)
    nullable = shape.nullable

    def read(reader: Reader) -> tuple[Any, ...] | None:
        number = reader.nullable_count(flexible, size)
        if number is None:
            if not nullable:
                raise RemoteProtocolError(f"null array at {reader.position} where one is required")
            return None
        return tuple([element(reader) for _ in range(number)])

    return read


@cache
def entity_reader(schema: Any) -> Read:
    """Return a reader of entities of `schema` (a `kio` class), which raises RemoteProtocolError or ValueError."""
    flexible = bool(schema.__flexible__)
    steps: list[tuple[tuple[str, ...], Read, bool]] = []
    """Names of fields, their reader, and whether it returns several values."""
    tagged: dict[int, tuple[str, Read]] = {}
    defaults: dict[str, Any] = {}
    names: list[str] = []
    formats = ""
    conversions: list[Callable[[Any], Any] | None] = []

    def end_numbers() -> None:
        nonlocal names, formats, conversions
        if names:
            steps.append((tuple(names), _numbers_reader(formats, conversions), True))
        names, formats, conversions = [], "", []

    for field in fields(schema):
        shape = FieldShape(field)
        if shape.tag is not None:
            tagged[shape.tag] = (field.name, _field_reader(shape, flexible))
            defaults[field.name] = default_of(field, shape)
        elif shape.entity is None and not shape.is_array and shape.kafka_type in _NUMBERS:
            names.append(field.name)
            formats += _NUMBERS[shape.kafka_type]
            conversions.append(_CONVERSIONS.get(shape.kafka_type))
        else:
            end_numbers()
            steps.append(((field.name,), _field_reader(shape, flexible), False))
    end_numbers()

    def read(reader: Reader) -> Any:
        values: dict[str, Any] = dict(defaults)
        for step_names, step, is_many in steps:
            if is_many:
                values.update(zip(step_names, step(reader), strict=True))
            else:
                values[step_names[0]] = step(reader)
        if flexible:
            for tag, data in reader.tags().items():
                if tag in tagged:
                    inner = Reader(data, elements_max=reader.elements_left)
                    name, read_tag = tagged[tag]
                    values[name] = read_tag(inner)
                    if inner.left():
                        raise RemoteProtocolError(f"tagged field {name} has {inner.left()} bytes too many")
        return schema(**values)

    return read


def _numbers_reader(formats: str, conversions: list[Callable[[Any], Any] | None]) -> Read:
    layout = struct.Struct(">" + formats)
    if not any(conversions):
        return lambda reader: reader.unpack(layout)

    def read(reader: Reader) -> list[Any]:
        return [
            value if convert is None else convert(value)
            for value, convert in zip(reader.unpack(layout), conversions, strict=True)
        ]

    return read
