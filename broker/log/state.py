"""The state of a log in the facts of its directory, so that a start reads no file of an idle log.

The state is written at checkpoints.  After a clean stop it is complete; after any other stop it names the point from
which recovery reads.  It begins with its checksum, because a wrong digit would hide records, or append over others.
States of releases that wrote no checksum are accepted; those releases ignore the checksum.

After an unclean stop, two smaller facts distinguish lost data from data that never existed.  `folder/<folder>` is
written once, before anything in a new folder is acknowledged: the folder must exist.  `watermark/<log>`, written every
few seconds, is a watermark below which everything was durable here: the log must reach it.
"""

from __future__ import annotations

import re

import msgspec
from crc32c import crc32c

from broker.log.types import LogKey
from quorumlog.errors import CorruptStoreError

STATE_VERSION = 1
FOLDER = "folder/"
WATERMARK = "watermark/"


class SegmentState(msgspec.Struct, frozen=True, array_like=True):
    base_offset: int
    end_offset: int
    size: int
    newest_timestamp: int


class RecoveryPoint(msgspec.Struct, frozen=True):
    """The point from which recovery reads.  Everything before it is durable, committed and checked.

    offset: base offset of the batch at `position` of the segment that begins at `segment`, or of the next batch there.
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
    """

    version: int
    start_offset: int
    end_offset: int
    high_watermark: int
    recovery: RecoveryPoint
    segments: list[SegmentState]
    epochs: list[tuple[int, int]]
    producerless_offset: int


UNSYNCED = b"write.caching"
"""Value of a folder's fact if appends to its log may become durable in any order; otherwise the value is empty."""


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
    """Return the fact that holds `state`: JSON, with the CRC-32C of the same JSON without checksum in front."""
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
        raise CorruptStoreError(f"fact {key} has version {state.version}, this program knows {STATE_VERSION}")
    return state


def epochs_before(offset: int, epoch: int) -> list[tuple[int, int]]:
    """Return the epochs of a log that begins at `offset`: that of the record before, unless it is -1.

    Where that epoch began does not matter, as long as it is before the log's start.
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
