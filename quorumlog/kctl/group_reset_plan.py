"""Plans a reset of a group's offsets from its target, the committed offsets and the ranges of the logs.  Pure.

An offset outside a log would make the consumer apply `auto.offset.reset`, against the operator's intention.  So each
offset is moved into the range of its log, with a note.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple

from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError
from quorumlog.words import is_unicode

Partition = tuple[str, int]
"""Topic and index."""

OFFSET_MAX: Final = 2**63 - 1
ROWS_MAX: Final = 1_000_000
"""The largest number of rows in a file of offsets.  A file with more rows is refused."""

_DURATION = re.compile(
    r"P(?:(?P<days>\d{1,9})D)?(?:T(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,9}(?:\.\d{1,9})?)S)?)?",
    re.ASCII | re.IGNORECASE,
)
_SHORT = re.compile(r"(?:\d{1,9}[dhms])+", re.ASCII)


class Kind(StrEnum):
    """The way to find the new offset of a partition."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    SHIFT = "shift"
    TIME = "time"
    FILE = "file"


class Target(NamedTuple):
    """The goal of a reset.

    value: the offset, the number of offsets to shift by, or the time in ms since 1970, depending on `kind`; other kinds
    do not use it.
    """

    kind: Kind
    value: int = 0


class LogRange(NamedTuple):
    """The offsets of a partition's log.

    start: the log start offset.  end: the high watermark.  at_time: the offset of the first record that is not older
    than the target's time; -1 if there is none, or the target is not a time.
    """

    start: int
    end: int
    at_time: int = -1


class Move(NamedTuple):
    """The offset of a partition before and after; before is None if none was committed.

    lag_before: None if it is unknown.  note: the reason why `after` differs from the target; None if it does not.
    """

    topic: str
    partition: int
    before: int | None
    after: int
    log_start: int
    log_end: int
    lag_before: int | None
    note: str | None

    @property
    def lag_after(self) -> int:
        return self.log_end - self.after

    @property
    def is_change(self) -> bool:
        """Return whether the move changes something.

        A reset of a share group to its current start is a change if the group has accepted records after that start:
        they are delivered again, and the lag grows.
        """
        return (self.before, self.lag_before) != (self.after, self.lag_after)


def moves(
    target: Target,
    ranges: Mapping[Partition, LogRange],
    committed: Mapping[Partition, int],
    offsets: Mapping[Partition, int],
    share_lags: Mapping[Partition, int | None] | None = None,
) -> list[Move]:
    """Return the move of each partition in `ranges`, ascending.

    committed: the committed offsets; for a share group, its start offsets.
    offsets: the offsets from a file, for Kind.FILE.
    share_lags: the lags that the coordinator of a share group reports; None for other groups.

    Raises:
        ClusterError: OFFSET_NOT_COMMITTED: a partition without an offset cannot be shifted.
    """
    if target.kind is Kind.SHIFT:
        bare = sorted(key for key in ranges if key not in committed)
        if bare:
            shown = ", ".join(f"{topic}-{index}" for topic, index in bare[:5])
            raise ClusterError(
                ApiError.OFFSET_NOT_COMMITTED,
                f"{shown}{' and others' if len(bare) > 5 else ''}: there is no committed offset to shift",
                "name the other partitions, or use --to-offset",
            )
    found = []
    for key, log in sorted(ranges.items()):
        wanted, note = _wanted(target, key, log, committed, offsets)
        after = min(max(wanted, log.start), log.end)
        if wanted < log.start:
            note = f"{wanted} is before the log start"
        elif wanted > log.end:
            note = f"{wanted} is after the log end"
        before = committed.get(key)
        lag = None if before is None else max(log.end - before, 0)
        if share_lags is not None:
            lag = share_lags.get(key)
        found.append(Move(*key, before, after, log.start, log.end, lag, note))
    return found


def _wanted(
    target: Target,
    key: Partition,
    log: LogRange,
    committed: Mapping[Partition, int],
    offsets: Mapping[Partition, int],
) -> tuple[int, str | None]:
    match target.kind:
        case Kind.EARLIEST:
            return log.start, None
        case Kind.LATEST:
            return log.end, None
        case Kind.OFFSET:
            return target.value, None
        case Kind.SHIFT:
            return committed[key] + target.value, None
        case Kind.TIME:
            return (log.end, "no record is as new as that") if log.at_time < 0 else (log.at_time, None)
        case Kind.FILE:
            return offsets[key], None


# -- times


def parse_datetime(text: str) -> int:
    """Return ms since 1970 of an ISO 8601 date, or date and time.  A time without a UTC offset is in UTC.

    Raises:
        ValueError: the text has another form or is before 1970; the message is for people.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not like 2026-05-01T12:00:00Z or 2026-05-01T12:00:00.000+02:00") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    at_ms = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    if at_ms < 0:
        raise ValueError(f"{text!r} is before 1970")
    return at_ms


def parse_duration(text: str) -> int:
    """Return the ms of a duration such as `PT1H30M` (ISO 8601, which Kafka's tool accepts) or `1h30m`.

    Raises:
        ValueError: the text has another form; the message is for people.
        OverflowError: the duration is too long.
    """
    given = text
    if _SHORT.fullmatch(text):
        days = "".join(re.findall(r"\d+d", text))
        rest = "".join(re.findall(r"\d+[hms]", text))
        text = f"P{days}" + (f"T{rest}" if rest else "")
    found = _DURATION.fullmatch(text)
    if found is None or not any(found.groups()):
        raise ValueError(f"{given!r} is not like 90s, 1h30m, 2d, or PT1H30M")
    parts = {name: float(value) for name, value in found.groupdict().items() if value is not None}
    return round(timedelta(**parts) / timedelta(milliseconds=1))


# -- files


def parse_file(text: str, group: str) -> dict[Partition, int]:
    """Return the offsets of a file by partition.

    The file is CSV or JSON.  CSV has `topic,partition,offset` or `group,topic,partition,offset` in each line, as
    Kafka's tool exports it.  JSON is the output of `kctl groups lag GROUP -o json` or of `kctl groups reset-offsets -o
    json`.  Rows of other groups are left out.

    Raises:
        ValueError: the text is not such a file, or contains no offset of the group; the message is for people.
    """
    rows = _json_rows(text) if text.lstrip()[:1] in ("[", "{") else _csv_rows(text)
    offsets: dict[Partition, int] = {}
    for number, row in enumerate(rows, 1):
        if number > ROWS_MAX:
            raise ValueError(f"it has more than {ROWS_MAX} rows")
        if row is None or row[0] not in (None, group):
            continue
        _, topic, partition, offset = row
        if not topic or not is_unicode(topic) or not 0 <= partition < 2**31 or not 0 <= offset <= OFFSET_MAX:
            raise ValueError(f"row {number}: {topic!r}, {partition}, {offset} are not a topic, partition and offset")
        if offsets.setdefault((topic, partition), offset) != offset:
            raise ValueError(f"row {number}: {topic}-{partition} has two different offsets")
    if not offsets:
        raise ValueError(f"it has no offset of group {group}")
    return offsets


Row = tuple[str | None, str, int, int]


def _csv_rows(text: str) -> Iterable[Row | None]:
    lines = csv.reader(io.StringIO(text))
    try:
        for number, fields in enumerate(lines, 1):
            yield _csv_row(fields, number)
    except csv.Error as error:
        raise ValueError(f"line {lines.line_num} is not CSV: {error}") from None


def _csv_row(fields: list[str], number: int) -> Row | None:
    if not fields or fields[-1].strip().lower() in ("offset", "new-offset"):  # empty, or the names of the columns
        return None
    *group, topic, partition, offset = [each.strip() for each in fields] if len(fields) >= 3 else ["", "", ""]
    if len(fields) not in (3, 4) or not _is_number(partition) or not _is_number(offset):
        raise ValueError(f"line {number} is not topic,partition,offset or group,topic,partition,offset")
    return (group[0] if group else None), topic, int(partition), int(offset)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 19


def _json_rows(text: str) -> Iterable[Row | None]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("it is not valid JSON") from None
    group = None
    if isinstance(document, dict):
        group, document = document.get("group"), document.get("partitions")
    if not isinstance(document, list):
        raise ValueError("it has no list of partitions")
    for number, item in enumerate(document, 1):
        if not isinstance(item, dict):
            raise ValueError(f"row {number} is not an object")
        yield _json_row(item, group, number)


def _json_row(item: dict[str, Any], group: Any, number: int) -> Row | None:
    names = [name for name in ("offset", "after", "committed_offset", "start_offset") if name in item]
    if not names:
        raise ValueError(f"row {number} has no offset, after, committed_offset, or start_offset")
    offset = next((item[name] for name in names if item[name] is not None), None)
    if offset is None:  # no offset was committed for this partition
        return None
    topic, partition, owner = item.get("topic"), item.get("partition"), item.get("group", group)
    if not (isinstance(topic, str) and isinstance(partition, int) and isinstance(offset, int)) or isinstance(
        partition, bool
    ):
        raise ValueError(f"row {number} has no topic, partition and offset")
    if owner is not None and not isinstance(owner, str):
        raise ValueError(f"row {number} has a group that is not text")
    return owner, topic, partition, offset
