"""Reading the end of a log after a stop that was not clean: what is good stays, a torn tail goes, damage is refused.

From the recovery point on every batch is read and checked.  The first bad one is a *torn tail* when nothing good comes
after it: a crash cut the last appends short, which nobody was told of.  When a good batch follows, what was good has
become bad: the middle is *damaged*, and cutting there would silently drop records that were acknowledged.  A file that
ends below its recovery point is damaged, too, and so is whatever would be cut off of what is known to have been durable
and committed: that tells a flipped bit in the very last batch from an append that was cut short.

With write.caching, nothing is synced in the order of its appends.  A good batch after a bad one shows nothing then, and
the log is cut at the first bad batch, unless that was durable and committed.

All are generators that yield between chunks, so that whoever drives them can let other work on.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from broker.log.index import SegmentIndex
from broker.log.segment import Segment
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.disk import DiskFile
from quorumlog.wire.record_batch import (
    CRC_START,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    BatchHeader,
    parse_header,
)

CHUNK = 1 << 20
OFFSET_JUMP_MAX = 1 << 31  # a later batch of the same segment is never further away


class TornTail(NamedTuple):
    """What was cut off.  `end_offset`: where the log ends now."""

    path: str
    position: int
    size: int
    end_offset: int
    reason: str


class Start(NamedTuple):
    """Where a walk begins: what is before `position` is good and durable; `epoch` is that of the batch before.

    committed: what is below this offset is known to have been durable; nothing of it is a torn tail.
    unsynced: the log has write.caching, so what follows may have reached the disk in any order.
    """

    position: int
    offset: int
    epoch: int
    index_interval: int
    committed: int = 0
    unsynced: bool = False


class RecoveredSegment(NamedTuple):
    """epochs: (epoch, offset) of the batches at which the epoch changed."""

    torn: TornTail | None
    epochs: list[tuple[int, int]]


class Walked(NamedTuple):
    """Headers of the good batches with their positions, and why the walk ended before the end of the file."""

    batches: list[tuple[int, BatchHeader]]
    end: int
    end_offset: int
    problem: str | None


def walk_file(file: DiskFile, position: int, offset: int, epoch: int) -> Generator[None, None, Walked]:
    """Check batch after batch from `position` on, where the batch with `offset` must begin.

    epoch: leader epoch of the batch before; they never fall.
    """
    batches: list[tuple[int, BatchHeader]] = []
    chunk, start = b"", position
    problem = None
    while position < file.size:
        if position + HEADER_SIZE > start + len(chunk):
            yield
            chunk, start = file.pread(position, CHUNK), position
        header, problem = _judge_header(chunk, position - start, file.size - position)
        if header is None:
            break
        if position + header.size > start + len(chunk):
            yield
            chunk, start = file.pread(position, CHUNK), position
        problem = yield from _judge_body(file, header, chunk, position, start)
        if problem is None and header.base_offset != offset:
            problem = f"offset {header.base_offset} where {offset} must come"
        if problem is None and header.leader_epoch < epoch:
            problem = f"leader epoch {header.leader_epoch} after {epoch}"
        if problem is not None:
            break
        batches.append((position, header))
        position, offset, epoch = position + header.size, header.end_offset, header.leader_epoch
    return Walked(batches, position, offset, problem)


def recover_segment(
    segment: Segment, file: DiskFile, index: SegmentIndex, start: Start, later: Sequence[DiskFile]
) -> Generator[None, None, RecoveredSegment]:
    """Bring `segment`, whose `file` is known to be good up to `start`, up to date with that file.

    later: the files of the segments that follow.  When something good is in them, the tail cannot be torn.

    Raises:
        CorruptStoreError: damaged.
    """
    if file.size < start.position:
        raise CorruptStoreError(f"{segment.path} has {file.size} bytes, {start.position} were durable")
    segment.adopt(file, index)
    walked = yield from walk_file(file, start.position, start.offset, start.epoch)
    epochs: list[tuple[int, int]] = []
    epoch = start.epoch
    for at, header in walked.batches:
        segment.note(at, header, index, start.index_interval)
        if header.leader_epoch != epoch:
            epoch = header.leader_epoch
            epochs.append((epoch, header.base_offset))
    segment.trust_from(start.position)
    if walked.problem is None:
        return RecoveredSegment(None, epochs)
    where = f"{segment.path} at position {walked.end}, offset {walked.end_offset}: {walked.problem}"
    if walked.end_offset < start.committed:
        raise CorruptStoreError(f"{where}, but all below offset {start.committed} was durable and committed")
    for one, position in () if start.unsynced else [(file, walked.end), *((one, 0) for one in later)]:
        good = yield from find_batch(one, position, walked.end_offset)
        if good is not None:
            raise CorruptStoreError(f"{where}, but a good batch follows in {one.path} at position {good}")
    torn = TornTail(segment.path, walked.end, file.size - walked.end, walked.end_offset, walked.problem)
    file.truncate(walked.end)
    return RecoveredSegment(torn, epochs)


def find_batch(file: DiskFile, position: int, offset: int) -> Generator[None, None, int | None]:
    """Position of the first good batch at or after `position` with an offset from `offset` on.

    Looks for the bytes that such a header has for certain: the upper bytes of its base offset, and the format's number.
    """
    prefixes = {(offset + step).to_bytes(8, "big")[:3] for step in (0, OFFSET_JUMP_MAX)}
    alternatives = b"|".join(re.escape(prefix) for prefix in sorted(prefixes))
    pattern = re.compile(b"(?=(?:" + alternatives + b").{13}" + re.escape(bytes([MAGIC])) + b")", re.DOTALL)
    while position < file.size:
        yield
        chunk = file.pread(position, CHUNK + HEADER_SIZE)
        for match in pattern.finditer(chunk, 0, min(len(chunk), CHUNK + HEADER_SIZE)):
            at = match.start()
            if at >= CHUNK:
                break
            header, _ = _judge_header(chunk, at, file.size - position - at)
            if header is None or not offset <= header.base_offset <= offset + OFFSET_JUMP_MAX:
                continue
            if (yield from _judge_body(file, header, chunk, position + at, position)) is None:
                return position + at
        position += CHUNK
    return None


def _judge_header(chunk: bytes, at: int, available: int) -> tuple[BatchHeader | None, str | None]:
    if at + HEADER_SIZE > len(chunk):
        return None, f"cut off {len(chunk) - at} bytes into a batch header"
    header = parse_header(chunk, at)
    if header.magic != MAGIC:
        return None, f"message format {header.magic}"
    if header.batch_length < HEADER_SIZE - LENGTH_END:
        return None, f"batch length {header.batch_length}"
    if header.size > available:
        return None, f"batch of {header.size} bytes, {available} are left"
    if header.last_offset_delta < 0 or header.leader_epoch < 0:
        return None, f"last offset delta {header.last_offset_delta}, leader epoch {header.leader_epoch}"
    return header, None


def _judge_body(
    file: DiskFile, header: BatchHeader, chunk: bytes, position: int, chunk_start: int
) -> Generator[None, None, str | None]:
    """The checksum, piece by piece: a length that lies must not make us allocate it."""
    at, end = position + CRC_START, position + header.size
    crc = 0
    while at < end:
        if not chunk_start <= at < chunk_start + len(chunk):
            yield
            chunk, chunk_start = file.pread(at, min(CHUNK, end - at)), at
        piece = memoryview(chunk)[at - chunk_start : min(len(chunk), end - chunk_start)]
        if not piece:
            return "cut off"
        crc = crc32c(piece, crc)
        at += len(piece)
    if crc != header.crc:
        return f"checksum {crc:08x}, the header says {header.crc:08x}"
    return None
