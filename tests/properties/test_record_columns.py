"""The extension's functions over columns: equal to plain Python, and no wrong argument changes anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumlog.client.partitioner import partition_of
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.wire._record_scan import (
    assign_groups,
    count_headers,
    decode_columns,
    encode_columns,
    order_by_group,
)
from quorumlog.wire.record_batch import HEADER_SIZE

OWN_TIMES = -(2**63)
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1

short = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=5), short), max_size=3).map(tuple)
records = st.lists(st.builds(NewRecord, short, short, st.integers(-1, 2**50), headers), min_size=1, max_size=9)


def body_of(content: list[NewRecord]) -> bytes:
    return bytes(build_batch(content)[HEADER_SIZE:])


def spans_of(body: bytes, count: int, **fields: int) -> Any:
    span = {
        "start": 0,
        "end": len(body),
        "offset": 0,
        "time": 0,
        "append": OWN_TIMES,
        "count": count,
        "last": count - 1,
    }
    return np.array([list({**span, **fields}.values())], np.int64)


def column(values: int, size: int) -> Any:
    return np.zeros(values + 1, np.int32), np.zeros(size, np.uint8), np.zeros(values, np.uint8)


class Arguments:
    """Good arguments of every function, for two records with three headers; tests make one of them wrong."""

    def __init__(self) -> None:
        pairs = (("a", b"1"), ("b", None), ("c", b""))
        self.body = body_of([NewRecord(b"key", b"value", 5, pairs[:2]), NewRecord(None, b"v", 6, pairs[2:])])
        self.size = len(self.body)

    def decode(self) -> dict[str, Any]:
        return {
            "data": self.body,
            "spans": spans_of(self.body, 2),
            "first": 0,
            "end": 100,
            "offsets": np.zeros(2, np.int64),
            "timestamps": np.zeros(2, np.int64),
            "types": np.zeros(2, np.int32),
            **self._column("key", 2, self.size),
            **self._column("value", 2, self.size),
            "header_ends": np.zeros(3, np.int32),
            **self._column("header_key", 3, self.size),
            **self._column("header_value", 3, self.size),
        }

    def encode(self) -> dict[str, Any]:
        return {
            "order": np.array([1, 0], np.int64),
            "first": 0,
            "end": 2,
            "timestamps": np.array([5, 6], np.int64),
            "key_offsets": np.array([0, 3, 3], np.int32),
            "key_data": np.frombuffer(b"key", np.uint8),
            "key_valid": np.array([1], np.uint8),
            "value_offsets": np.array([0, 5, 6], np.int32),
            "value_data": np.frombuffer(b"valuev", np.uint8),
            "value_valid": np.array([3], np.uint8),
            "header_ends": np.array([0, 2, 3], np.int32),
            "header_valid": np.array([3], np.uint8),
            "header_key_offsets": np.array([0, 1, 2, 3], np.int32),
            "header_key_data": np.frombuffer(b"abc", np.uint8),
            "header_value_offsets": np.array([0, 1, 1, 1], np.int32),
            "header_value_data": np.frombuffer(b"1", np.uint8),
            "header_value_valid": np.array([5], np.uint8),
            "out": np.zeros(100, np.uint8),
            "position": 3,
        }

    def assign(self) -> dict[str, Any]:
        return {
            "first_groups": np.array([0, 2], np.int64),
            "counts": np.array([2, 3], np.int64),
            "sticky": np.array([1, 2], np.int64),
            "topics": np.array([0, 1], np.int32),
            "partitions": np.array([1, 0], np.int32),
            "partition_valid": np.array([1], np.uint8),
            "key_offsets": np.array([0, 3, 3], np.int32),
            "key_data": np.frombuffer(b"key", np.uint8),
            "key_valid": np.array([1], np.uint8),
            "groups": np.zeros(2, np.int32),
            "group_sizes": np.zeros(5, np.int64),
        }

    def order(self) -> dict[str, Any]:
        return {
            "groups": np.array([1, 0, 1], np.int32),
            "starts": np.array([0, 1], np.int64),
            "order": np.zeros(3, np.int64),
        }

    @staticmethod
    def _column(name: str, values: int, size: int) -> dict[str, Any]:
        return dict(zip((f"{name}_offsets", f"{name}_data", f"{name}_valid"), column(values, size), strict=True))


def call_decode(a: dict[str, Any]) -> Any:
    key, value, header_key, header_value = (
        tuple(a[f"{name}_{part}"] for part in ("offsets", "data", "valid"))
        for name in ("key", "value", "header_key", "header_value")
    )
    columns = (a["offsets"], a["timestamps"], a["types"])
    wanted: Any = (key, value, (a["header_ends"], header_key, header_value))
    return decode_columns(a["data"], a["spans"], a["first"], a["end"], columns, *wanted)


def call_encode(a: dict[str, Any]) -> Any:
    key, value = (tuple(a[f"{name}_{part}"] for part in ("offsets", "data", "valid")) for name in ("key", "value"))
    header_key = a["header_key_offsets"], a["header_key_data"], None
    header_value = a["header_value_offsets"], a["header_value_data"], a["header_value_valid"]
    given: tuple[Any, Any, Any] = (key, value, (a["header_ends"], a["header_valid"], header_key, header_value))
    return encode_columns(a["order"], a["first"], a["end"], a["timestamps"], *given, a["out"], a["position"])


def call_assign(a: dict[str, Any]) -> Any:
    key = a["key_offsets"], a["key_data"], a["key_valid"]
    topics = a["first_groups"], a["counts"], a["sticky"]
    partitions = a["partitions"], a["partition_valid"]
    return assign_groups(topics, a["topics"], partitions, key, a["groups"], a["group_sizes"])


def call_order(a: dict[str, Any]) -> Any:
    return order_by_group(a["groups"], a["starts"], a["order"])


CALLS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "decode": call_decode,
    "encode": call_encode,
    "assign": call_assign,
    "order": call_order,
}
OUTPUTS = {
    "decode": ("offsets", "timestamps", "types", "key_offsets", "key_data", "value_valid", "header_ends"),
    "encode": ("out",),
    "assign": ("groups", "group_sizes"),
    "order": ("order",),
}


def arrays_of(function: str) -> list[str]:
    return [name for name, value in getattr(Arguments(), function)().items() if isinstance(value, np.ndarray)]


def refused(function: str, name: str, value: Any) -> None:
    """Check that the call with this wrong argument is refused, and changes no output."""
    arguments = getattr(Arguments(), function)()
    arguments[name] = value
    before = {output: arguments[output].tobytes() for output in OUTPUTS[function]}
    with pytest.raises((ValueError, BufferError)):
        CALLS[function](arguments)
    assert before == {output: arguments[output].tobytes() for output in OUTPUTS[function]}


ARRAYS = [(function, name) for function in CALLS for name in arrays_of(function)]


@pytest.mark.parametrize("function", CALLS)
def test_good_arguments_are_accepted(function: str) -> None:
    arguments = getattr(Arguments(), function)()
    result = CALLS[function](arguments)
    expected = {"decode": (2, None), "encode": (2, 3 + Arguments().size), "assign": -1, "order": None}
    assert result == expected[function]


@pytest.mark.parametrize(("function", "name"), ARRAYS)
def test_arrays_of_another_type_or_shape_are_refused_and_change_nothing(function: str, name: str) -> None:
    good = getattr(Arguments(), function)()[name]
    refused(function, name, good.astype(np.float32))
    refused(function, name, good.astype(np.int16))
    refused(function, name, good.astype(good.dtype.newbyteorder() if good.itemsize > 1 else np.int8))
    refused(function, name, good.reshape(*good.shape, 1))
    if len(good) > 1:
        refused(function, name, np.repeat(good, 2, axis=0)[::2])
    if good.itemsize > 1:
        shifted = np.zeros(good.nbytes + 1, np.uint8)[1:]
        refused(function, name, shifted.view(good.dtype).reshape(good.shape))


TOO_SHORT = [
    one
    for one in ARRAYS
    if one
    not in {  # too short for their offsets, which is found later, or without a length of their own
        ("decode", "spans"),
        ("encode", "out"),
        ("assign", "groups"),
        ("assign", "first_groups"),
        ("order", "groups"),
        ("encode", "timestamps"),
    }
]


@pytest.mark.parametrize(("function", "name"), TOO_SHORT)
def test_arrays_that_are_too_short_are_refused(function: str, name: str) -> None:
    good = getattr(Arguments(), function)()[name]
    arguments = getattr(Arguments(), function)()
    arguments[name] = good[:-1]
    with pytest.raises(ValueError, match=r"values|outside|headers"):
        CALLS[function](arguments)


@pytest.mark.parametrize(("function", "name"), [(function, name) for function in CALLS for name in OUTPUTS[function]])
def test_outputs_that_are_read_only_or_share_memory_are_refused(function: str, name: str) -> None:
    frozen = getattr(Arguments(), function)()[name]
    frozen.setflags(write=False)
    refused(function, name, frozen)
    for other in arrays_of(function):
        arguments = getattr(Arguments(), function)()
        output, array = arguments[name], arguments[other]
        if other == name or output.dtype != array.dtype or array.ndim > 1:
            continue
        shared = np.zeros(len(output) + len(array), output.dtype)
        shared[: len(array)] = array
        arguments.update({name: shared[: len(output)], other: shared[: len(array)]})
        with pytest.raises(ValueError, match="shares memory"):
            CALLS[function](arguments)


@pytest.mark.parametrize(
    ("field", "value"),
    [(0, -1), (0, 99), (1, 999), (1, -1), (1, INT64_MAX), (0, -(2**63)), (5, -1), (5, INT64_MAX), (5, 2**32)],
)
def test_spans_outside_the_data_are_refused(field: int, value: int) -> None:
    spans = spans_of(Arguments().body, 2)
    spans[0, field] = value
    refused("decode", "spans", spans)
    with pytest.raises(ValueError, match="span"):
        count_headers(Arguments().body, spans)


def test_spans_with_another_number_of_fields_or_too_many_bytes_are_refused() -> None:
    body = Arguments().body
    refused("decode", "spans", spans_of(body, 2)[:, :6].copy())
    huge = np.zeros(2**20, np.uint8).data
    many = np.repeat(spans_of(bytes(huge), 0), 2**11, axis=0)
    with pytest.raises(ValueError, match="more bytes or records"):
        count_headers(huge, many)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("order", [1, 2]),
        ("order", [-1, 0]),
        ("key_offsets", [0, 4, 4]),
        ("key_offsets", [-1, 3, 3]),
        ("value_offsets", [0, 5, 4]),
        ("value_offsets", [INT32_MAX, -INT32_MAX, 0]),
        ("header_ends", [0, 2, 4]),
        ("header_ends", [-1, 2, 3]),
        ("header_ends", [0, 3, 2]),
        ("header_key_offsets", [0, 1, 2, 4]),
        ("header_value_offsets", [0, 2, 2, 2]),
        ("header_value_offsets", [0, 1, 1]),
    ],
)
def test_rows_and_offsets_outside_their_arrays_are_refused(name: str, value: list[int]) -> None:
    arguments = Arguments().encode()
    arguments[name] = np.array(value, arguments[name].dtype)
    with pytest.raises(ValueError, match=r"outside|headers"):
        call_encode(arguments)


@pytest.mark.parametrize(("first", "end", "position"), [(0, 0, 0), (-1, 1, 0), (0, 3, 0), (1, 0, 0), (0, 1, -1)])
def test_ranges_of_rows_that_do_not_exist_are_refused(first: int, end: int, position: int) -> None:
    arguments = Arguments().encode()
    arguments.update(first=first, end=end, position=position)
    with pytest.raises(ValueError, match=r"range|values"):
        call_encode(arguments)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("counts", [2, 0]),
        ("counts", [2, 4]),
        ("counts", [2, INT64_MAX]),
        ("first_groups", [0, 3]),
        ("first_groups", [-1, 2]),
        ("first_groups", [0, INT64_MAX]),
        ("sticky", [2, 0]),
        ("sticky", [-1, 0]),
        ("topics", [0, 2]),
        ("topics", [-1, 0]),
        ("key_offsets", [0, 4, 4]),
        ("key_offsets", [-1, 0, 0]),
    ],
)
def test_topics_and_keys_outside_their_arrays_are_refused_and_change_nothing(name: str, value: list[int]) -> None:
    refused("assign", name, np.array(value, Arguments().assign()[name].dtype))


@pytest.mark.parametrize(
    ("name", "value"), [("groups", [0, 2, 0]), ("groups", [-1, 0, 0]), ("starts", [0, 3]), ("starts", [-1, 1])]
)
def test_groups_outside_their_arrays_are_refused(name: str, value: list[int]) -> None:
    arguments = Arguments().order()
    arguments[name] = np.array(value, arguments[name].dtype)
    with pytest.raises(ValueError, match="outside"):
        call_order(arguments)


def test_more_headers_than_fit_into_the_output_are_refused() -> None:
    arguments = Arguments().decode()
    for name in ("header_key", "header_value"):
        arguments[f"{name}_offsets"], arguments[f"{name}_data"], arguments[f"{name}_valid"] = column(
            2, Arguments().size
        )
    with pytest.raises(ValueError, match="more headers than fit"):
        call_decode(arguments)


@pytest.mark.parametrize("missing", [0, 1])
def test_headers_without_an_array_for_keys_or_values_are_refused(missing: int) -> None:
    body = body_of([NewRecord(None, b"v", 0)])
    columns = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int32)
    pair: list[Any] = [column(0, len(body)), column(0, len(body))]
    pair[missing] = None
    with pytest.raises(ValueError, match="as many keys as values"):
        decode_columns(body, spans_of(body, 1), 0, 9, columns, None, None, (np.zeros(2, np.int32), *pair))


def test_sums_of_offsets_and_of_timestamps_wrap_around() -> None:
    body = body_of([NewRecord(None, b"v", 0), NewRecord(None, b"v", 2**50)])
    offsets, timestamps, types = np.zeros(2, np.int64), np.zeros(2, np.int64), np.zeros(2, np.int32)
    spans = spans_of(body, 2, offset=INT64_MAX, time=INT64_MAX)
    columns = offsets, timestamps, types
    assert decode_columns(body, spans, -(2**63), INT64_MAX, columns, None, None, None) == (1, None)
    assert offsets[0] == -(2**63)
    assert timestamps[0] == -(2**63), "the sum is negative, and its microseconds are the lowest ones"


@given(records, st.data())
@settings(deadline=None)
def test_malformed_record_is_located_by_its_span_and_start(content: list[NewRecord], data: st.DataObject) -> None:
    bodies = [body_of([one]) for one in content]
    broken = data.draw(st.integers(0, len(bodies) - 1))
    body = bytearray(bodies[broken])
    body[0 if body[0] < 0x80 else 1] = 0x7F  # a negative length, or one that is no length of this record
    bodies[broken] = bytes(body)
    starts = np.cumsum([0, *map(len, bodies)])
    spans = np.concatenate(
        [spans_of(body, 1, start=int(at), end=int(at) + len(body)) for at, body in zip(starts, bodies, strict=False)]
    )
    everything = b"".join(bodies)
    columns = np.zeros(len(bodies), np.int64), np.zeros(len(bodies), np.int64), np.zeros(len(bodies), np.int32)
    _, malformed = decode_columns(everything, spans, 0, 1, columns, None, None, None)
    assert malformed is not None
    assert malformed[0] == broken
    assert malformed[1] >= starts[broken]


keys = st.lists(st.none() | st.binary(max_size=20), min_size=1, max_size=20)


@given(keys, st.lists(st.integers(1, 9), min_size=1, max_size=3), st.data())
@settings(deadline=None)
def test_each_row_goes_to_its_explicit_partition_or_that_of_its_key_or_the_sticky_one(
    keys: list[bytes | None], counts: list[int], data: st.DataObject
) -> None:
    topics = [data.draw(st.integers(0, len(counts) - 1)) for _ in keys]
    sticky = [data.draw(st.integers(0, count - 1)) for count in counts]
    own = [data.draw(st.none() | st.integers(0, counts[topic] - 1)) for topic in topics]
    firsts = [sum(counts[:topic]) for topic in range(len(counts))]

    def expected(row: int) -> int:
        key, topic, named = keys[row], topics[row], own[row]
        if named is None:
            named = sticky[topic] if key is None else partition_of(key, counts[topic])
        return firsts[topic] + named

    def bitmap(values: list[Any]) -> Any:
        return np.packbits([value is not None for value in values], bitorder="little")

    offsets = np.cumsum([0, *(len(key or b"") for key in keys)], dtype=np.int32)
    key_column = offsets, np.frombuffer(b"".join(key or b"" for key in keys), np.uint8).copy(), bitmap(keys)
    groups, sizes = np.zeros(len(keys), np.int32), np.zeros(sum(counts), np.int64)
    table = np.array(firsts, np.int64), np.array(counts, np.int64), np.array(sticky, np.int64)
    partitions = np.array([named or 0 for named in own], np.int32), bitmap(own)
    assert assign_groups(table, np.array(topics, np.int32), partitions, key_column, groups, sizes) == -1
    assert groups.tolist() == [expected(row) for row in range(len(keys))]
    assert sizes.tolist() == np.bincount(groups, minlength=sum(counts)).tolist()
    order, starts = np.zeros(len(keys), np.int64), np.cumsum([0, *sizes[:-1]], dtype=np.int64)
    order_by_group(groups, starts, order)
    assert order.tolist() == sorted(range(len(keys)), key=lambda row: int(groups[row]))


def test_first_row_with_an_unknown_partition_is_returned() -> None:
    for unknown in (2, -1, INT32_MAX, -(2**31)):
        arguments = Arguments().assign()
        arguments["partitions"][0] = unknown
        assert call_assign(arguments) == 0


def test_record_that_does_not_fit_reports_its_size() -> None:
    arguments = Arguments().encode()
    arguments["out"] = np.zeros(3 + Arguments().size, np.uint8)
    assert call_encode(arguments) == (2, 3 + Arguments().size)
    arguments["out"] = np.zeros(2 + Arguments().size, np.uint8)
    following, position = call_encode(arguments)
    assert following == 1
    for size in (0, 3, position - 1):
        arguments["out"] = np.zeros(size, np.uint8)
        assert call_encode(arguments) == (0, position - 3)
