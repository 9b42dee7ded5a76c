"""One cleaning job: notes the latest offset of each key in the dirty part, and writes replacements for segments.

A job is a generator that yields after each piece of work, so that the caller can limit the speed and end the job.  It
has in memory a chunk of a segment, the inflated records of one batch, the replacement's next bytes, and the offset map.
If the map is full before the dirty part ends, the job cleans up to that point, and the next job continues there.

Replacements are made from the oldest segment on, and the caller swaps each one in before the job continues.  So older
records of a key are removed before its tombstone gets the horizon at which it may be removed itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from typing import Protocol

import msgspec
from crc32c import crc32c

from broker.core.cleaning import SegmentSpan, group_segments
from broker.core.producer_state import RECENT_BATCHES
from broker.log.cleaning.filter import BatchFilter
from broker.log.cleaning.offset_map import OffsetMap
from broker.log.cleaning.records import UncleanableError, open_body
from broker.log.cleaning.transactions import AbortedRecords, Endings
from broker.log.segment import segment_path
from quorumlog.wire.record_batch import HEADER_SIZE, BatchHeader, BatchRefusal, check_batches, parse_header

CHUNK = 1 << 20
"""Bytes of a segment that are read at once, unless a single batch is larger."""
WRITE_SIZE = 1 << 20
"""Bytes of a replacement that are collected before they are written."""
REPLACEMENT_SIZE_MAX = 2**31 - 1
"""Bytes of a replacement.  The log cannot be cleaned if one would be larger: positions in an index have 32 bits."""


class File(Protocol):
    """The part of `DiskFile` that a job needs."""

    @property
    def size(self) -> int: ...
    def append(self, data: bytes | memoryview) -> int: ...
    def pread(self, position: int, size: int) -> bytes: ...


class Files(Protocol):
    """The part of `Disk` that a job needs."""

    def open(self, path: str, create: bool = False) -> File: ...
    def remove(self, path: str) -> None: ...


class CleanJob(msgspec.Struct, frozen=True):
    """Everything that a worker must know about a log.

    folder: path of the log's folder below the data directory.
    segments: all sealed segments that may be cleaned, in order: base offset, end offset, size.
    dirty_start, limit: the first offset of the dirty part, and its end.
    protected: base offsets of the last batches, and of the last marker, of each producer.
    open_producers: producers that have batches from `limit` on, which a truncation may remove.
    aborted: aborted transactions with records in the segments: producer id, first offset, offset of the marker.
    wall_ms: the current time; tombstones and markers whose delete horizon is not later are removed.
    segment_size_max: bytes of the segments that are replaced together.
    batch_size_max: bytes of one batch, at least `CHUNK`.  inflated_max: bytes of its records, decompressed.  A log with
        a larger batch is uncleanable.
    map_memory: bytes of the offset map.
    """

    folder: str
    segments: list[tuple[int, int, int]]
    dirty_start: int
    limit: int
    protected: list[int]
    open_producers: list[int]
    wall_ms: int
    delete_retention_ms: int
    segment_size_max: int
    batch_size_max: int
    inflated_max: int
    map_memory: int
    aborted: list[tuple[int, int, int]] = []


class Work(msgspec.Struct, frozen=True, tag=True):
    """Some work was done.  size: bytes that were read or written."""

    size: int


class Replacement(msgspec.Struct, frozen=True, tag=True):
    """A file at `path` is complete, but may not be durable.  It replaces the segments with these base offsets."""

    path: str
    base_offsets: list[int]
    end_offset: int
    size: int


class Finished(msgspec.Struct, frozen=True, tag=True):
    """The job is done.  cleaned_offset: end of the clean part.  keys: entries of the offset map."""

    cleaned_offset: int
    keys: int


class SourceChangedError(Exception):
    """A segment is missing or has another size, because the log was truncated, or segments were deleted."""


def cleaned_path(folder: str, base_offset: int) -> str:
    """Return the path of a replacement that is being written."""
    return segment_path(folder, base_offset, "cleaned")


def run_job(job: CleanJob, files: Files) -> Generator[Work | Replacement, None, Finished]:
    """Clean a log.  The caller takes over or deletes the file of a `Replacement` before it resumes the generator.

    Raises:
        UncleanableError: the contents of a batch do not permit the cleaning.
        SourceChangedError: try again later.
    """
    latest = OffsetMap(job.map_memory)
    recent = _RecentBatches(job)
    aborted = AbortedRecords(job.aborted)
    clean_end = yield from _note_latest(job, files, latest, recent, aborted)
    endings = Endings(aborted)
    spans = [SegmentSpan(*one, -1) for one in job.segments if one[0] < clean_end]
    for group in group_segments(spans, job.segment_size_max):
        yield from _replace(job, files, group, latest, recent, endings, clean_end)
    return Finished(clean_end, len(latest))


class _RecentBatches:
    """The last batches of the open producers in the dirty part.

    If a truncation removes the batches of such a producer from `limit` on, these are its last batches again.  If there
    are fewer than `RECENT_BATCHES`, all its batches in the clean part stay; earlier cleanings have left only few there.
    """

    def __init__(self, job: CleanJob) -> None:
        self._batches: dict[int, deque[int]] = {one: deque(maxlen=RECENT_BATCHES) for one in job.open_producers}
        self._markers: dict[int, int] = {}

    def note(self, header: BatchHeader) -> None:
        if (batches := self._batches.get(header.producer_id)) is None:
            return
        if header.is_control:
            self._markers[header.producer_id] = header.base_offset
        else:
            batches.append(header.base_offset)

    def offsets(self) -> Iterator[int]:
        yield from (offset for batches in self._batches.values() for offset in batches)
        yield from self._markers.values()

    def with_few(self) -> Iterator[int]:
        return (one for one, batches in self._batches.items() if len(batches) < RECENT_BATCHES)


def _note_latest(
    job: CleanJob, files: Files, latest: OffsetMap, recent: _RecentBatches, aborted: AbortedRecords
) -> Generator[Work, None, int]:
    """Fill the map from the dirty part; return the offset below which it knows every key."""
    for base_offset, end_offset, size in job.segments:
        if end_offset <= job.dirty_start:
            continue
        for batch, header in _batches(job, files, base_offset, size):
            yield Work(len(batch))
            if header.end_offset <= job.dirty_start:
                continue
            recent.note(header)
            if header.is_control or not header.record_count or aborted.contains(header):
                continue
            full_at = latest.note(open_body(batch, header, job.inflated_max), header, job.dirty_start)
            if full_at is not None:
                return full_at
    return job.limit


def _replace(
    job: CleanJob,
    files: Files,
    group: tuple[SegmentSpan, ...],
    latest: OffsetMap,
    recent: _RecentBatches,
    endings: Endings,
    clean_end: int,
) -> Generator[Work | Replacement, None, None]:
    """Write the replacement of a group.

    If the group has only one segment, and the replacement is equal to that segment, delete the replacement.
    """
    path = cleaned_path(job.folder, group[0].base_offset)
    files.remove(path)
    output = files.open(path, create=True)
    filtered = BatchFilter(
        latest,
        clean_end,
        frozenset((*job.protected, *recent.offsets())),
        frozenset(recent.with_few()),
        job.dirty_start,
        endings,
        wall_ms=job.wall_ms,
        delete_retention_ms=job.delete_retention_ms,
        inflated_max=job.inflated_max,
    )
    collected = bytearray()
    read_crc = written_crc = 0
    for segment in group:
        for batch, header in _batches(job, files, segment.base_offset, segment.size):
            read_crc = crc32c(batch, read_crc)
            collected += filtered.take(batch, header)
            if len(collected) >= WRITE_SIZE:
                written_crc = _write(output, collected, written_crc)
            yield Work(2 * len(batch))
    collected += filtered.end()
    written_crc = _write(output, collected, written_crc)
    if len(group) == 1 and output.size == group[0].size and written_crc == read_crc:
        files.remove(path)
        return
    yield Replacement(path, [one.base_offset for one in group], group[-1].end_offset, output.size)


def _write(output: File, collected: bytearray, crc: int) -> int:
    if output.size + len(collected) > REPLACEMENT_SIZE_MAX:
        raise UncleanableError(f"a replacement would have more than {REPLACEMENT_SIZE_MAX} bytes; lower segment.bytes")
    data = bytes(collected)
    collected.clear()
    output.append(data)
    return crc32c(data, crc)


def _batches(job: CleanJob, files: Files, base_offset: int, size: int) -> Iterator[tuple[bytes, BatchHeader]]:
    """Yield each batch of a segment, after its checksum was compared."""
    path = segment_path(job.folder, base_offset, "log")
    try:
        file = files.open(path)
    except FileNotFoundError as error:
        raise SourceChangedError(f"{path} is missing") from error
    if file.size != size:
        raise SourceChangedError(f"{path} has {file.size} bytes instead of {size}")
    chunk, start, position = b"", 0, 0
    while position < size:
        if position + HEADER_SIZE > start + len(chunk):
            chunk, start = file.pread(position, CHUNK), position
        if position + HEADER_SIZE > start + len(chunk):
            raise SourceChangedError(f"{path} ends at position {start + len(chunk)} instead of {size}")
        header = parse_header(chunk, position - start)
        batch_size = header.size
        if batch_size > max(job.batch_size_max, CHUNK):
            raise UncleanableError(
                f"the batch at offset {header.base_offset} has {batch_size} bytes, more than {job.batch_size_max}"
            )
        if position + batch_size > start + len(chunk):
            chunk, start = file.pread(position, max(CHUNK, batch_size)), position
        batch = chunk[position - start : position - start + max(batch_size, HEADER_SIZE)]
        checked = check_batches(batch)
        if isinstance(checked, BatchRefusal):
            raise UncleanableError(f"{path} at position {position}: {checked.reason}")
        yield batch, header
        position += batch_size
