"""One segment: a file of batches from `base_offset` on, and its index.

The last segment of a log is its *active* segment, and only this one grows.  Files are opened and read when needed:
the log's state or recovery supplies `size`, `end_offset` and `newest_timestamp`.

**Finding a batch.**  The index names an earlier batch, at most one interval away.  From there, headers are read one by
one.  Nearly all fetches are at the end of a log.  They find their batch in a short list of the last batches instead.

**Checked bytes.**  Bytes that this process appended or recovered are known to be good.  All other bytes are checked,
including checksums, at their first read.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from broker.log.index import IndexEntry, SegmentIndex
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.disk import Disk, DiskFile
from quorumlog.runtime.logging import get_logger
from quorumlog.wire.record_batch import (
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    NO_TIMESTAMP,
    BatchHeader,
    BatchRefusal,
    check_batches,
    parse_header,
)

RECENT_BATCHES = 64
WALK_CHUNK = 8192
READ_CHUNK = 1 << 20

logger = get_logger("log")


def segment_path(folder: str, base_offset: int, kind: str) -> str:
    """Return the path of a segment's file.  kind: log, index or producers."""
    return f"{folder}/{base_offset:020d}.{kind}"


class Segment:
    """One segment of a log, which opens its files when they are first needed.

    Every method that reads or changes a file may raise DiskError.
    """

    def __init__(
        self, disk: Disk, folder: str, base_offset: int, *, end_offset: int, size: int, newest_timestamp: int
    ) -> None:
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.size = size
        self.newest_timestamp = newest_timestamp
        self.first_append_ms: int | None = None  # by this process, on a clock that does not jump
        self.last_append_ms: int | None = None
        self.truncations = 0
        self.is_frozen = False  # a replacement is being swapped in; the log continues in another segment
        self._disk = disk
        self._folder = folder
        self._file: DiskFile | None = None
        self._index: SegmentIndex | None = None
        self._recent_offsets = array("q")
        self._recent_positions = array("q")
        self._appended_from = size  # bytes from here on were appended or recovered by this process
        self._checked = (0, 0)  # bytes in this range were read and found good

    @classmethod
    def create(cls, disk: Disk, folder: str, base_offset: int) -> Segment:
        """Return a new segment with an empty file, not yet durable."""
        segment = cls(disk, folder, base_offset, end_offset=base_offset, size=0, newest_timestamp=NO_TIMESTAMP)
        segment._file = disk.open(segment.path, create=True)
        if segment._file.size:  # left over from a creation that a crash interrupted
            segment._file.truncate(0)
        segment._index = SegmentIndex(base_offset)
        disk.remove(segment_path(folder, base_offset, "index"))
        return segment

    @property
    def path(self) -> str:
        return segment_path(self._folder, self.base_offset, "log")

    @property
    def index_path(self) -> str:
        return segment_path(self._folder, self.base_offset, "index")

    @property
    def file(self) -> DiskFile:
        """The segment's file.  The first use opens it and compares its size with the known one.

        Raises:
            CorruptStoreError: the file is missing, or has another size.
        """
        if self._file is None:
            try:
                file = self._disk.open(self.path)
            except FileNotFoundError as error:
                raise CorruptStoreError(f"{self.path} is missing") from error
            if file.size != self.size:
                raise CorruptStoreError(f"{self.path} has {file.size} bytes instead of {self.size}")
            self._file = file
        return self._file

    @property
    def index(self) -> SegmentIndex:
        """The index.  The first use loads it from its file, or from the batch headers.

        Raises: CorruptStoreError, DiskError.
        """
        if self._index is None:
            self._index = self._load_index()
        return self._index

    @property
    def loaded_index_size(self) -> int:
        return 0 if self._index is None else self._index.memory_size

    # -- writing

    def append(self, data: bytes | bytearray | memoryview, headers: Sequence[BatchHeader], index_interval: int) -> None:
        """Append `data`, which holds exactly the batches of `headers` and continues where this segment ends."""
        file, index = self.file, self.index
        position = file.append(data if isinstance(data, bytes) else memoryview(data))
        assert position == self.size, f"{self.path}: appended at {position}, expected {self.size}"
        for header in headers:
            self.note(position, header, index, index_interval)
            position += header.size
        assert position == file.size, f"{self.path}: ends at {file.size}, expected {position}"

    def note(self, position: int, header: BatchHeader, index: SegmentIndex, index_interval: int) -> None:
        """Record a good batch at `position`, which is the end so far."""
        if position - index.last_position() >= index_interval:
            index.add(header.base_offset, position, self.newest_timestamp)
        if len(self._recent_offsets) >= 2 * RECENT_BATCHES:
            del self._recent_offsets[:RECENT_BATCHES], self._recent_positions[:RECENT_BATCHES]
        self._recent_offsets.append(header.base_offset)
        self._recent_positions.append(position)
        self.newest_timestamp = max(self.newest_timestamp, header.max_timestamp)
        self.end_offset = header.end_offset
        self.size = position + header.size

    def adopt(self, file: DiskFile, index: SegmentIndex) -> None:
        """Use the `file` and `index` of recovery."""
        self._file, self._index = file, index

    def trust_from(self, position: int) -> None:
        """Note that everything from `position` on has been checked."""
        self._appended_from = position

    def truncate(self, position: int, end_offset: int) -> None:
        """Truncate before the batch at `position`, whose base offset is `end_offset`."""
        index = self.index
        newest = NO_TIMESTAMP if position == 0 else self.newest_before(position)
        self.file.truncate(position)
        index.truncate(position)
        if index.persisted > len(index):
            index.persisted = -1
        keep = bisect_right(self._recent_positions, position - 1)
        del self._recent_offsets[keep:], self._recent_positions[keep:]
        self.size, self.end_offset, self.newest_timestamp = position, end_offset, newest
        self.truncations += 1
        self._appended_from = min(self._appended_from, position)
        self._checked = (min(self._checked[0], position), min(self._checked[1], position))

    def persist_index(self) -> DiskFile | None:
        """Bring the index file up to date.  Return it, to be flushed and closed, if anything was written."""
        if self._index is None:
            return None
        if self._index.persisted <= 0:
            self._disk.remove(self.index_path)
            self._index.persisted = 0
        if not (chunk := self._index.take_chunk()):
            return None
        file = self._disk.open(self.index_path, create=True)
        file.append(chunk)
        return file

    def discard_stale_index(self) -> bool:
        """Delete the index file if it may have entries of lost batches.  Return whether it was deleted.

        Call it before an append.  New batches may take the place of the lost ones, at the same positions and with the
        same offsets.  Then only the timestamps of an entry would be wrong, and no reader could notice that.
        """
        if self.index.persisted >= 0:
            return False
        self._disk.remove(self.index_path)
        self.index.persisted = 0
        return True

    def unload_index(self) -> None:
        """Free the memory of the index if its file is complete.  Only for a segment that no longer grows."""
        if self._index is not None and self._index.persisted == len(self._index):
            self._index = None

    def forget_index(self) -> None:
        """Drop the index; it is loaded again, from its file or the batch headers, when it is needed."""
        self._index = None

    def remove(self) -> None:
        """Delete the files."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._disk.remove(self.path)
        self._disk.remove(self.index_path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def move_to(self, disk: Disk) -> None:
        """Use the copy of the files on another disk, under the same paths.  The bytes of the copy are checked again."""
        self.close()
        self._disk = disk
        if self._index is not None and self._index.persisted == 0:
            self._index.persisted = -1  # the copy may contain a file that the source has discarded since
        self._appended_from, self._checked = self.size, (0, 0)

    # -- finding

    def offset_before(self, position: int) -> int:
        """Return the base offset of a batch at or before `position`, without a read; at the end, the end offset.

        If the index is in memory, this batch is near `position`.  Otherwise it is the first batch.
        """
        if position >= self.size:
            return self.end_offset
        return self.base_offset if self._index is None else self._index.by_position(position).offset

    def position_of(self, offset: int) -> int:
        """Return the position of the first batch that ends above `offset`; the size, if none does.

        Raises:
            CorruptStoreError: there is no batch where one must be.
        """
        if offset >= self.end_offset:
            return self.size
        at = bisect_right(self._recent_offsets, offset) - 1
        if at >= 0:
            return self._recent_positions[at]
        for position, header in self.walk(self._entry(lambda index: index.by_offset(offset)).position):
            if header.end_offset > offset:
                return position
        raise CorruptStoreError(f"{self.path} holds no batch with offset {offset}")

    def boundary_before(self, limit: int, floor: int) -> int:
        """Return the last batch end in positions `floor` to `limit`.  `floor` is a batch end itself."""
        if limit >= self.size:
            return self.size
        at = bisect_right(self._recent_positions, limit) - 1
        if at >= 0:
            return max(floor, self._recent_positions[at])
        start = max(floor, self._entry(lambda index: index.by_position(limit)).position)
        boundary = start
        for position, header in self.walk(start):
            if position + header.size > limit:
                break
            boundary = position + header.size
        return boundary

    def walk(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of each batch from the one at `position` on, without reading bodies.

        Checksums are not compared.  Instead, each batch must end at the offset at which the next one begins.

        Raises:
            CorruptStoreError: there is no batch where one must be, or one with other offsets.
        """
        chunk, chunk_start = b"", position
        before: tuple[int, BatchHeader] | None = None
        while position < self.size:
            if position + HEADER_SIZE > chunk_start + len(chunk):
                chunk, chunk_start = self.file.pread(position, WALK_CHUNK), position
            header = self._parse(chunk, position - chunk_start, position)
            if before is not None:
                self._check_end(*before, header.base_offset)
                yield before
            before = position, header
            position += header.size
        if before is not None:
            self._check_end(*before, self.end_offset)
            yield before

    def _check_end(self, position: int, header: BatchHeader, following: int) -> None:
        if header.end_offset != following:
            problem = f"ends at offset {header.end_offset}, but {following} follows"
            raise CorruptStoreError(f"{self.path} at position {position}: {problem}")

    def newest_before(self, position: int) -> int:
        """Return the newest timestamp of the batches before the one at `position`."""
        entry = self._entry(lambda index: index.by_position(position))
        newest = entry.newest_before
        for at, header in self.walk(entry.position):
            if at >= position:
                break
            newest = max(newest, header.max_timestamp)
        return newest

    def position_by_timestamp(self, timestamp: int) -> int:
        """Return the position of a batch before which everything is older than `timestamp`."""
        return self._entry(lambda index: index.by_timestamp(timestamp)).position

    def header_at(self, position: int) -> BatchHeader:
        """Return the header of the batch at `position`, without a check of its checksum.

        Raises: CorruptStoreError, DiskError.
        """
        return self._parse(self.file.pread(position, HEADER_SIZE), 0, position)

    def _parse(self, chunk: bytes, at: int, position: int) -> BatchHeader:
        if at + HEADER_SIZE > len(chunk):
            raise CorruptStoreError(f"{self.path} at position {position}: cut off inside a batch header")
        header = parse_header(chunk, at)
        if (
            header.magic != MAGIC
            or not HEADER_SIZE - LENGTH_END <= header.batch_length <= self.size - position - LENGTH_END
        ):
            raise CorruptStoreError(f"{self.path} at position {position}: no batch header")
        return header

    # -- reading

    def read(self, start: int, end: int, epoch_of: Callable[[int], int]) -> bytes:
        """Return the bytes of whole batches from position `start` to `end`.

        epoch_of: the leader epoch of the record at an offset, -1 if unknown.

        Raises:
            CorruptStoreError: the file is too short, or bytes that this process had not checked before are damaged.
        """
        data = self.file.pread(start, end - start)
        if len(data) != end - start:
            raise CorruptStoreError(f"{self.path} ends at position {start + len(data)} instead of {self.size}")
        low, high = self._checked
        if start < self._appended_from and not (low <= start and end <= high):
            self._check(data, start, epoch_of)
            adjacent = start <= high and low <= end
            self._checked = (min(start, low), max(end, high)) if adjacent and high > low else (start, end)
        return data

    def batches(self, position: int, epoch_of: Callable[[int], int]) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield the header and the bytes of each batch from the one at `position` on, checked as by `read`."""
        while position < self.size:
            first_end = position + self.header_at(position).size
            end = self.boundary_before(max(first_end, position + READ_CHUNK), first_end)
            data = memoryview(self.read(position, end, epoch_of))
            position, at = end, 0
            while at < len(data):
                header = parse_header(data, at)
                yield header, data[at : at + header.size]
                at += header.size

    def checked_header_at(self, position: int, epoch_of: Callable[[int], int]) -> BatchHeader:
        """Return the header of the batch at `position`, checked as by `read`.  Only this batch is read."""
        return parse_header(self.read(position, position + self.header_at(position).size, epoch_of))

    def _check(self, data: bytes, start: int, epoch_of: Callable[[int], int]) -> None:
        """Check batches that were read at `start`: checksums, and offsets and epochs, which checksums do not cover."""
        headers = check_batches(data)
        if isinstance(headers, BatchRefusal):
            raise CorruptStoreError(f"{self.path} at position {start + headers.position}: {headers.reason}")
        end = start + len(data)
        offset = self.header_at(end).base_offset if end < self.size else self.end_offset
        for header in reversed(headers):
            end -= header.size
            problem = None
            if header.end_offset != offset:
                problem = f"ends at offset {header.end_offset}, but {offset} follows"
            elif epoch_of(header.base_offset) not in (-1, header.leader_epoch):
                problem = f"leader epoch {header.leader_epoch} instead of {epoch_of(header.base_offset)}"
            if problem is not None:
                raise CorruptStoreError(f"{self.path} at position {end}: {problem}")
            offset = header.base_offset

    # -- the index

    def _entry(self, find: Callable[[SegmentIndex], IndexEntry]) -> IndexEntry:
        """Return the entry that `find` finds; rebuild the index first if the entry is wrong."""
        entry = find(self.index)
        if not self._begins_batch(entry):
            self._index = self._rebuild_index(entry)
            entry = find(self._index)
        return entry

    def _begins_batch(self, entry: IndexEntry) -> bool:
        data = self.file.pread(entry.position, HEADER_SIZE)
        if len(data) < HEADER_SIZE:
            return entry.position == 0
        header = parse_header(data)
        return header.magic == MAGIC and header.base_offset == entry.offset

    def _load_index(self) -> SegmentIndex:
        """Load the index from its file, and complete it from the batch headers that the file does not cover."""
        data = b""
        if self._disk.exists(self.index_path):
            file = self._disk.open(self.index_path)
            data = file.pread(0, file.size)
            file.close()
        index = SegmentIndex.load(self.base_offset, data, self.size)
        last = index.by_position(self.size)
        if not self._begins_batch(last):
            return self._rebuild_index(last)
        self._complete(index)
        return index

    def _rebuild_index(self, wrong: IndexEntry) -> SegmentIndex:
        logger.warning("index rebuilt", file=self.index_path, position=wrong.position, offset=wrong.offset)
        index = SegmentIndex(self.base_offset)
        index.persisted = -1
        self._complete(index)
        return index

    def _complete(self, index: SegmentIndex) -> None:
        entry = index.by_position(self.size)
        newest, last = entry.newest_before, entry.position
        for position, header in self.walk(entry.position):
            if position - last >= WALK_CHUNK // 2:
                index.add(header.base_offset, position, newest)
                last = position
            newest = max(newest, header.max_timestamp)
