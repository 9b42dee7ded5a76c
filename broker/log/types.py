"""The small types of the log's interface."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

import msgspec

from broker.core.cleaning import CleaningPolicy
from quorumlog.wire.compression import Recompression
from quorumlog.wire.record_batch import RecordError

LOGS = "logs"
"""The folder of a data directory that holds the folders of its logs."""

_FOLDER = re.compile(
    r"(?P<topic>[A-Za-z0-9._-]*)-(?P<index>\d{1,10})\.(?P<topic_id>[0-9a-f]{32})\.(?P<created>\d{1,19})"
)
_TOPIC_SHOWN_MAX = 120  # a folder name has at most 255 bytes; the topic in it is for people only
_DAY_MS = 86_400_000
NO_LAG = CleaningPolicy()
SEGMENT_SIZE_LIMIT = 2**31 - 1  # positions in an index have 32 bits


@dataclass(frozen=True, slots=True, order=True)
class LogKey:
    """The permanent identity of one replica.  created: offset of its Partition record.

    topic_id: the id with which the topic was created, even if it has another one now.
    """

    topic_id: UUID
    index: int
    created: int


def folder_name(key: LogKey, topic: str) -> str:
    """Return the folder of a replica: the topic's name, for people, followed by the whole identity."""
    name = f"{topic[:_TOPIC_SHOWN_MAX]}-{key.index}.{key.topic_id.hex}.{key.created}"
    assert _FOLDER.fullmatch(name), f"{name!r} is not a folder name"  # topic names were checked at their creation
    return name


def parse_folder_name(name: str) -> tuple[LogKey, str] | None:
    """Return the identity and the topic's name (perhaps shortened) in a folder's name; None for any other folder."""
    if (match := _FOLDER.fullmatch(name)) is None:
        return None
    return LogKey(UUID(match["topic_id"]), int(match["index"]), int(match["created"])), match["topic"]


class LogConfig(msgspec.Struct, frozen=True):
    """The settings of one topic.  -1: no limit."""

    segment_size_max: int = 1 << 30
    segment_age_max_ms: int = 7 * _DAY_MS
    retention_ms: int = 7 * _DAY_MS
    retention_size: int = -1
    message_size_max: int = 1_048_588
    write_caching: bool = False
    compressed_records_checked: bool = True  # by the leader, before it appends them
    producer_expiration_ms: int = _DAY_MS
    index_interval: int = 4096  # bytes of log for each index entry
    deletes: bool = True  # cleanup.policy contains delete: retention deletes old segments
    compacts: bool = False  # cleanup.policy contains compact
    delete_retention_ms: int = _DAY_MS
    compaction: CleaningPolicy = NO_LAG
    append_time: bool = False  # records get the time at which the leader appends them, in place of their own
    timestamp_age_max_ms: int = -1  # a record that claims to be older is refused, unless it gets the append time
    timestamp_ahead_max_ms: int = -1  # a record from further in the future is refused, unless it gets the append time
    recompression: Recompression | None = None  # the codec of all batches; None: batches keep their codec

    @property
    def opens_compressed(self) -> bool:
        """Return whether a leader decompresses compressed batches, to check their records."""
        return self.compressed_records_checked or self.compacts or self.bounds_timestamps

    @property
    def bounds_timestamps(self) -> bool:
        return not self.append_time and (self.timestamp_age_max_ms >= 0 or self.timestamp_ahead_max_ms >= 0)

    def __post_init__(self) -> None:
        assert 0 < self.segment_size_max <= SEGMENT_SIZE_LIMIT, self.segment_size_max
        assert self.index_interval > 0, self.index_interval


class Appended(NamedTuple):
    """The offsets of the batches.

    duplicate: nothing was appended, because the log already held the batches.  They may not be committed yet.
    """

    first_offset: int
    end_offset: int
    duplicate: bool = False


class Refused(NamedTuple):
    """A refusal: nothing was appended.

    code: a Kafka error code.
    record_errors: the invalid records, if the refusal is about single records.
    """

    code: int
    reason: str
    record_errors: tuple[RecordError, ...] = ()


class TimestampOffset(NamedTuple):
    """The timestamp (ms), the offset and the leader epoch of a record."""

    timestamp: int
    offset: int
    leader_epoch: int
