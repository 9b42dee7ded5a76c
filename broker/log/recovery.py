"""Recovery of a log's end after an unclean stop: keeps good batches, removes a torn tail, refuses damage.

Every batch from the recovery point on is read and checked.  The first bad one is a *torn tail* if no good batch
follows: a crash interrupted the last appends, which were never acknowledged.  If a good batch follows, the bad one was
good before: the log is *damaged*, and a truncation there would silently drop acknowledged records.  A file that ends
below its recovery point is also damaged.  A log is damaged as well if a truncation would remove records that are known
to have been durable and committed.  The same holds for records that a clean stop made durable, if nothing was written
later.  This distinguishes a flipped bit in the very last batch from an interrupted append.

One flush makes several files durable, in any order.  So a good batch in a later segment is proof only if a flush of
that segment has completed, according to the fact of the folder (`state.flushed_segment`).

With write.caching, appends become durable in any order.  The same is true of a folder that has no fact yet.  A good
batch after a bad one then proves nothing.  The log is truncated at the first bad batch, unless that batch was durable
and committed.

All functions here that read files are generators.  They yield after a chunk or `TURN_BATCHES` batches, so that the
caller can run other work.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
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
TURN_BATCHES = 256
"""Batches after which the walk lets other work run."""
OFFSET_JUMP_MAX = 1 << 31  # a later batch of the same segment is never further away


class DamagedLogError(CorruptStoreError):
    """A bad batch is no torn tail, because a good one follows.  durable: offset below which everything was durable."""

    def __init__(self, problem: str, durable: int) -> None:
        super().__init__(problem)
        self.durable = durable


class TornTail(NamedTuple):
    """The tail that was removed.  end_offset: the new end of the log."""

    path: str
    position: int
    size: int
    end_offset: int
    reason: str


class Floor(NamedTuple):
    """An end offset that the log must reach, because everything below it was durable.  proof: for error messages."""

    offset: int
    proof: str = "durable and committed"


class Start(NamedTuple):
    """The start of a walk.  Everything before `position` is good and durable.  epoch: of the batch before `position`.

    floor: no batch below it is a torn tail.
    unsynced: nothing waited for a flush of the log, so later batches may have reached the disk in any order.
    """

    position: int
    offset: int
    epoch: int
    index_interval: int
    floor: Floor = Floor(0)
    unsynced: bool = False


class RecoveredSegment(NamedTuple):
    """The result for one segment.  epochs: (epoch, offset) of the batches at which the epoch changed."""

    torn: TornTail | None
    epochs: list[tuple[int, int]]


class Walked(NamedTuple):
    """The end of the good batches.  epoch: of the last one.  problem: why the walk ended before the end of the file."""

    end: int
    end_offset: int
    epoch: int
    problem: str | None


def walk_file(
    file: DiskFile,
    position: int,
    offset: int,
    epoch: int,
    visit: Callable[[int, BatchHeader], None] | None = None,
) -> Generator[None, None, Walked]:
    """Check batch after batch from `position` on, where the batch with `offset` must begin.

    epoch: leader epoch of the batch before; epochs never decrease.
    visit: called with the position and the header of each good batch.  A file may have millions of batches, so none is
        kept.
    """
    since_turn = 0
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
            problem = f"offset {header.base_offset} instead of {offset}"
        if problem is None and header.leader_epoch < epoch:
            problem = f"leader epoch {header.leader_epoch} after {epoch}"
        if problem is not None:
            break
        if visit is not None:
            visit(position, header)
        since_turn += 1
        if since_turn >= TURN_BATCHES:  # a chunk may hold many thousands of small batches
            yield
            since_turn = 0
        position, offset, epoch = position + header.size, header.end_offset, header.leader_epoch
    return Walked(position, offset, epoch, problem)


def recover_segment(
    segment: Segment, file: DiskFile, index: SegmentIndex, start: Start, later: Sequence[DiskFile]
) -> Generator[None, None, RecoveredSegment]:
    """Bring `segment` up to date with `file`, which is known to be good up to `start`.

    later: the files of later segments that were flushed.  If they hold a good batch, the tail cannot be torn.

    Raises:
        CorruptStoreError: the segment is damaged.
    """
    if file.size < start.position:
        raise CorruptStoreError(f"{segment.path} has {file.size} bytes, but {start.position} bytes were durable")
    segment.adopt(file, index)
    epochs: list[tuple[int, int]] = []
    epoch = start.epoch

    def visit(position: int, header: BatchHeader) -> None:
        nonlocal epoch
        segment.note(position, header, index, start.index_interval)
        if header.leader_epoch != epoch:
            epoch = header.leader_epoch
            epochs.append((epoch, header.base_offset))

    walked = yield from walk_file(file, start.position, start.offset, start.epoch, visit)
    segment.trust_from(start.position)
    if walked.problem is None:
        return RecoveredSegment(None, epochs)
    where = f"{segment.path} at position {walked.end}, offset {walked.end_offset}: {walked.problem}"
    floor = start.floor
    if walked.end_offset < floor.offset:
        raise CorruptStoreError(f"{where}, but all records below offset {floor.offset} were {floor.proof}")
    for one, position in () if start.unsynced else [(file, walked.end), *((one, 0) for one in later)]:
        good = yield from find_batch(one, position, walked.end_offset)
        if good is not None:
            problem = f"{where}, but a good batch follows in {one.path} at position {good}"
            raise DamagedLogError(problem, parse_header(one.pread(good, HEADER_SIZE)).base_offset + 1)
    torn = TornTail(segment.path, walked.end, file.size - walked.end, walked.end_offset, walked.problem)
    file.truncate(walked.end)
    return RecoveredSegment(torn, epochs)


def find_batch(file: DiskFile, position: int, offset: int) -> Generator[None, None, int | None]:
    """Return the position of the first good batch at or after `position` with at least `offset`; None if none exists.

    Search for the bytes that every such header has: the upper bytes of its base offset, and the number of the format.
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
        return None, f"batch of {header.size} bytes, but only {available} are left"
    if header.last_offset_delta < 0 or header.leader_epoch < 0:
        return None, f"last offset delta {header.last_offset_delta}, leader epoch {header.leader_epoch}"
    return header, None


def _judge_body(
    file: DiskFile, header: BatchHeader, chunk: bytes, position: int, chunk_start: int
) -> Generator[None, None, str | None]:
    """Check the checksum piece by piece, so that a wrong length does not allocate memory; return the problem."""
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
