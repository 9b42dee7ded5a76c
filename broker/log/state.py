"""The state of a log in the facts of its directory (rows of `facts.db`), so that a start reads no file of an idle log.

The state is written at checkpoints.  After a clean stop it is complete; after any other stop it names the point from
which recovery reads.  The state begins with its checksum, because a wrong digit could hide records, or let appends
overwrite others.  States of releases that wrote no checksum are accepted; those releases ignore the checksum.

After an unclean stop, two smaller facts distinguish lost data from data that never existed.  `folder/<folder>` is
written before the first record of a new folder or of a new segment is acknowledged as durable.  It proves that the
folder must exist, and that a flush has completed since that segment began.  `watermark/<log>`, written every few
seconds, is a watermark below which everything was durable in this directory: the log must reach it.
"""

from __future__ import annotations

import re
from uuid import UUID

import msgspec
from crc32c import crc32c

from broker.log.types import LogKey
from quorumlog.errors import CorruptStoreError

STATE_VERSION = 1
STATE = "log/"
FOLDER = "folder/"
WATERMARK = "watermark/"
DAMAGED = "damaged/"
CLEAN_EPOCH = "broker/clean_epoch"
"""Fact: the broker epoch under which this directory was closed cleanly, written by `broker.server.marks`.

It is removed before a record is written.  Until then, every log must reach the end offset in its state.
"""
STARTS = "broker/starts"
"""Fact: the number of the last start with this directory, written by `broker.server.marks`."""


class SegmentState(msgspec.Struct, frozen=True, array_like=True):
    """A segment in the state of its log.  size: bytes.  newest_timestamp: ms; -1 if no record has one."""

    base_offset: int
    end_offset: int
    size: int
    newest_timestamp: int


class RecoveryPoint(msgspec.Struct, frozen=True):
    """The point from which recovery reads.  Everything before it is durable, committed and checked.

    segment, position: the segment with this base offset, and a position in it.
    offset: base offset of the batch at that position, or of the next batch to be written there.
    newest_timestamp: newest timestamp of the batches before it in that segment.
    """

    offset: int
    segment: int
    position: int
    newest_timestamp: int


class LogState(msgspec.Struct, frozen=True):
    """The state of a log at a checkpoint.

    segments, end_offset: the values at the checkpoint; they are exact after a clean stop.
    producerless_offset: an offset at which the log had no state of any producer; -1: no such offset is known.
    cleaned_offset: end of the part that was compacted.
    swapping: base offsets of the segments whose compacted replacement is being swapped in; see `cleaning.swap`.
    compacted_end: end of the last segment that compaction has replaced.
    moved_from: the directories that the log has left with all records, oldest first, if the controller's metadata may
        still name them.  Releases that do not know the field ignore it.
    """

    version: int
    start_offset: int
    end_offset: int
    high_watermark: int
    recovery: RecoveryPoint
    segments: list[SegmentState]
    epochs: list[tuple[int, int]]
    producerless_offset: int
    cleaned_offset: int = 0
    swapping: list[int] = []
    compacted_end: int = 0
    moved_from: list[UUID] = []


UNSYNCED = b"write.caching"
"""Value of a folder's fact if appends to its log may become durable in any order, and no flush is waited for.

It becomes durable before an unflushed record is acknowledged, and stays until all such records are flushed.

Otherwise the value is the base offset of the log's newest segment when a flush completed (`flushed_segment`).  Older
releases wrote an empty value instead, and read every value except `UNSYNCED` as an empty one.
"""
OFFSET_MAX = 2**63 - 1


def flushed_segment(fact: bytes | None) -> int:
    """Return the base offset of the newest segment that is known to have been flushed, with everything before it.

    fact: the folder's fact.  Without one, and with write.caching, the result is -1: later segments may have become
        durable before earlier ones.  With the empty value of an older release, every segment counts as flushed.
    """
    if fact is None or fact == UNSYNCED:
        return -1
    return int(fact) if fact.isdigit() else OFFSET_MAX


_DURABLE = re.compile(rb"durable to (\d+): ")


def damage_note(problem: str, durable: int | None) -> bytes:
    """Return the fact that a folder is damaged.  durable: the end of the records that were durable; None: unknown."""
    return (problem if durable is None else f"durable to {durable}: {problem}").encode()


def durable_before_damage(note: bytes) -> int | None:
    """Return the end of the records that were durable when the damage was found; None in notes of older releases."""
    match = _DURABLE.match(note)
    return None if match is None else int(match[1])


def state_fact(path: str) -> str:
    """Return the key of the fact that holds a log's state.  path: the folder's path, or only its name."""
    return STATE + path.rpartition("/")[2]


def folder_fact(path: str) -> str:
    """Return the key of the fact that a log's folder exists.  path: the folder's path, or only its name."""
    return FOLDER + path.rpartition("/")[2]


def watermark_fact(key: LogKey) -> str:
    """Return the key of the fact that holds a log's watermark."""
    return f"{WATERMARK}{key.topic_id.hex}/{key.index}/{key.created}"


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(LogState)


_CHECKSUM = re.compile(rb'\{"checksum":"([0-9a-f]{8})",')


def encode_state(state: LogState) -> bytes:
    """Return the fact that holds `state`: JSON that begins with the CRC-32C of the same JSON without checksum."""
    body = _encoder.encode(state)
    return b'{"checksum":"%08x",' % crc32c(body) + body[1:]


def decode_state(key: str, data: bytes) -> LogState:
    """Return the state in the fact `key`.

    Raises: CorruptStoreError: damaged, or not a state of this version.
    """
    if (match := _CHECKSUM.match(data)) is not None and crc32c(b"{" + data[match.end() :]) != int(match[1], 16):
        raise CorruptStoreError(f"fact {key} is damaged: its checksum does not match")
    try:
        state = _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise CorruptStoreError(f"fact {key} is damaged: {error}") from error
    if state.version != STATE_VERSION:
        raise CorruptStoreError(f"fact {key} has version {state.version}; this program knows version {STATE_VERSION}")
    return state


def epochs_before(offset: int, epoch: int) -> list[tuple[int, int]]:
    """Return the epochs of a log that begins at `offset`.  epoch: of the record before `offset`; -1 if unknown.

    The exact offset at which that epoch began does not matter, as long as it is before the log's start.
    """
    return [(epoch, offset - 1)] if epoch >= 0 else []


def empty_state(start_offset: int = 0, epoch: int = -1) -> LogState:
    """Return the state of an empty log that begins at `start_offset`, after a record of `epoch` (-1: unknown)."""
    recovery = RecoveryPoint(offset=start_offset, segment=start_offset, position=0, newest_timestamp=-1)
    return LogState(
        version=STATE_VERSION,
        start_offset=start_offset,
        end_offset=start_offset,
        high_watermark=start_offset,
        recovery=recovery,
        segments=[],
        epochs=epochs_before(start_offset, epoch),
        producerless_offset=start_offset,
    )
