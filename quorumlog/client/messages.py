"""The values that users pass to the clients and get from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import index
from typing import Final, NamedTuple

from quorumlog.client.records import OFFSET_MAX, Headers
from quorumlog.errors import ConfigError
from quorumlog.words import is_unicode

TIMESTAMP_MAX_MS = 2**63 - 1
INT16_MAX: Final = 2**15 - 1
INT32_MAX: Final = 2**31 - 1
"""The highest numbers in the signed fields of 16 and 32 bits of a request."""
TIMEOUT_MAX_S: Final = INT32_MAX / 1000
"""The longest timeout that requests can name (24 days): an int32 of ms."""


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class RecordMetadata(NamedTuple):
    """The place of a record that was delivered.

    offset: -1 without acknowledgements, or if the broker no longer knows it.
    timestamp_ms: the producer's, or the leader's if the topic has `message.timestamp.type=LogAppendTime`.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class NewRecord(NamedTuple):
    """A record to send.  value None: a tombstone, which deletes its key in a compacted topic.

    partition: None if the producer chooses it.  timestamp_ms: None means the time of `send`.
    """

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


HeadersLike = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]


def timeout_problem(name: str, timeout_s: float) -> str | None:
    """Return the reason why a timeout cannot be part of a request; None if it can."""
    if 0 < timeout_s <= TIMEOUT_MAX_S:
        return None
    return f"{name} is {timeout_s}, not above 0 and at most {TIMEOUT_MAX_S}"


def text_problem(what: str, text: object) -> str | None:
    """Return the reason why a text cannot be part of a request; None if it can.  what: the meaning of the text."""
    if not isinstance(text, str):
        return f"{what} is {text!r}, not a str"
    return None if is_unicode(text) else f"{what} is not valid text: {text!r}"


def client_id_problem(client_id: object) -> str | None:
    """Return the reason why a request cannot have a client id; None if it can."""
    if problem := text_problem("client_id", client_id):
        return problem
    size = len(str(client_id).encode())
    return None if size <= INT16_MAX else f"client_id has {size} bytes, not up to {INT16_MAX}"


def check_texts(what: str, texts: Iterable[object]) -> None:
    """Check texts before they become parts of requests.  what: their meaning, such as "topic".

    Raises:
        ConfigError: some texts are not valid; the error lists all of these.
    """
    problems = [problem for text in dict.fromkeys(texts) if (problem := text_problem(what, text)) is not None]
    if problems:
        raise ConfigError(*problems)


def check_partitions(partitions: Iterable[tuple[str, int]]) -> None:
    """Check the topics of partitions.  Raises: ConfigError: some are not valid text."""
    check_texts("topic", (topic for topic, _ in partitions))


def as_bytes(what: str, data: object) -> bytes | None:
    """Return a key or value as bytes.  Raises: TypeError."""
    if data is None or isinstance(data, bytes):
        return data
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    hint = "; encode it first, for example with .encode()" if isinstance(data, str) else ""
    raise TypeError(f"the {what} of a record is bytes or None, not {type(data).__name__}{hint}")


def as_timestamp_ms(time: object) -> int:
    """Return the timestamp of a record as an int.  Raises: TypeError; ValueError: it is out of range."""
    try:
        time_ms = index(time)  # type: ignore[arg-type]  # it raises TypeError for others, and accepts ints of numpy
    except TypeError:
        hint = "; round it first" if isinstance(time, float) else ""
        raise TypeError(f"timestamp_ms is an int, not {type(time).__name__}{hint}") from None
    if not 0 <= time_ms <= TIMESTAMP_MAX_MS:
        raise ValueError(f"timestamp_ms is {time_ms}, not a time since 1970")
    return time_ms


def as_offset(offset: object) -> int:
    """Return an offset as an int.  Raises: TypeError; ValueError: it is out of range."""
    try:
        number = index(offset)  # type: ignore[arg-type]  # as in `as_timestamp_ms`
    except TypeError:
        raise TypeError(f"offset {offset!r} is not an int") from None
    if number < 0:
        raise ValueError(f"offset {number} is below 0")
    if number > OFFSET_MAX:
        raise ValueError(f"offset {number} is above {OFFSET_MAX}, the highest one")
    return number


def as_headers(headers: HeadersLike) -> Headers:
    """Return headers as pairs, in their order.  Raises: TypeError; ValueError: a name is not valid text."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    made = []
    for name, value in pairs:
        if not isinstance(name, str):
            raise TypeError(f"the name of a header is a str, not {type(name).__name__}")
        if problem := text_problem("the name of a header", name):
            raise ValueError(problem)
        made.append((name, as_bytes("header", value)))
    return tuple(made)
