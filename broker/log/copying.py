"""Copies the files of a log to another directory, piece by piece, while the log changes.

A segment changes in four ways: it grows; it is truncated, which `Segment.truncations` counts; it is replaced by a
compacted one, which is another object; or it is deleted.  So the bytes that were copied stay correct as long as the log
still has the same object with the same count.  All other copies are deleted, and made again if necessary.

The bytes are not interpreted.  The log checks them at their first read, like all bytes that it has not written itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from broker.log.directory import LogDirectory
from broker.log.move_facts import FUTURES, discard_future, future_path
from broker.log.partition_log import PartitionLog
from broker.log.segment import Segment, segment_path
from broker.log.types import LOGS
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.disk import DiskFile

PIECE = 1 << 20
"""Bytes that are copied at a time.  A copy has one such piece in memory, or one index or producer snapshot."""
FLUSH_BYTES = 16 << 20
"""Copied bytes after which the copy is flushed, so that the flushes of other logs never wait for more bytes."""


@dataclass(slots=True)
class _CopiedSegment:
    """size: bytes that were copied.  has_index: the index is complete and was copied."""

    segment: Segment
    truncations: int
    size: int = 0
    has_index: bool = False


class LogCopy:
    """The *future* of a log: its copy in another directory.  Coroutines report a failed directory and raise DiskError.

    size: bytes of the segments that were copied.
    end_offset: end of the records that were copied, or an offset before it in the same segment.
    """

    def __init__(self, log: PartitionLog, source: LogDirectory, target: LogDirectory) -> None:
        self.log = log
        self.source = source
        self.target = target
        self.folder = log.folder_name
        self.end_offset = log.start_offset
        self.unflushed_bytes = 0
        self._path = future_path(self.folder)
        self._segments: dict[int, _CopiedSegment] = {}
        self._snapshots: set[str] = set()
        self._generation = log.durability.generation
        self._files: dict[str, DiskFile] = {}
        self._unflushed: dict[str, DiskFile] = {}

    @property
    def size(self) -> int:
        return sum(copied.size for copied in self._segments.values())

    @property
    def missing(self) -> int:
        """Bytes of the segments that are not copied yet."""
        return max(0, self.log.size - self.size)

    async def begin(self) -> bool:
        """Create an empty future.  Return False if the target has a log of this name, which must be set aside first."""
        disk = self.target.disk
        with self.target.reported():
            if disk.exists(f"{LOGS}/{self.folder}"):
                return False
            await discard_future(disk, self.folder)
            disk.make_dir(self._path)
        return True

    async def discard(self) -> None:
        """Delete the future."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        with self.target.reported():
            await discard_future(self.target.disk, self.folder)

    # -- copying

    def ends(self) -> dict[int, int]:
        """Return the current size of each segment, by base offset."""
        return {segment.base_offset: segment.size for segment in self.log.segments}

    async def step(self, ends: Mapping[int, int]) -> bool:
        """Copy the next piece.  Return False if everything is copied.

        ends: an earlier result of `ends`.  Later bytes are not copied, because the log may grow as fast as the copy.
        """
        self._drop_changed()
        for segment in list(self.log.segments):
            if segment.base_offset not in ends:
                continue
            copied = self._copied(segment)
            end = min(segment.size, ends[segment.base_offset])
            if copied.size < end:
                await self._copy_piece(copied, min(PIECE, end - copied.size))
                return True
            if not copied.has_index and segment is not self.log.segments[-1]:
                await self._copy_index(copied)
                return True
        return False

    def _copied(self, segment: Segment) -> _CopiedSegment:
        """Return the copy of a segment, whose file is created by the first call."""
        copied = self._segments.get(segment.base_offset)
        if copied is None:
            copied = self._segments[segment.base_offset] = _CopiedSegment(segment, segment.truncations)
            with self.target.reported():
                self._wrote(self._open(segment.base_offset, "log"), 0)
        return copied

    def _is_current(self, copied: _CopiedSegment) -> bool:
        segment = copied.segment
        return copied.truncations == segment.truncations and any(one is segment for one in self.log.segments)

    def _drop_changed(self) -> None:
        """Delete the copies of segments that were truncated, replaced or deleted."""
        if self._generation != self.log.durability.generation:
            self._generation = self.log.durability.generation
            self._drop_snapshots()
        present = {id(segment): segment.truncations for segment in self.log.segments}
        for base_offset, copied in list(self._segments.items()):
            if present.get(id(copied.segment)) != copied.truncations:
                self._drop(base_offset)

    def _drop(self, base_offset: int) -> None:
        del self._segments[base_offset]
        self.end_offset = min(self.end_offset, base_offset)
        self._remove(segment_path(self._path, base_offset, "log"))
        self._remove(segment_path(self._path, base_offset, "index"))

    async def _copy_piece(self, copied: _CopiedSegment, size: int) -> None:
        segment = copied.segment
        file = self._open(segment.base_offset, "log")
        if file.size != copied.size:  # a write timed out, but its thread completed it later
            self._drop(segment.base_offset)
            return
        with self.source.reported():
            data = await self.source.disk.read(segment.file, copied.size, size)
        if not self._is_current(copied):
            return  # the file may have been replaced before the read
        if len(data) != size:
            raise CorruptStoreError(f"{segment.path} ends at position {copied.size + len(data)}")
        with self.target.reported():
            await self.target.disk.write(file, data)
        copied.size += size
        self._wrote(file, size)
        if self._is_current(copied):
            self.end_offset = max(self.end_offset, segment.offset_before(copied.size))

    async def _copy_index(self, copied: _CopiedSegment) -> None:
        await self._copy_small(segment_path(self.log.folder, copied.segment.base_offset, "index"))
        copied.has_index = True

    async def _copy_small(self, path: str) -> None:
        """Copy a file beside the segments as a whole, if it exists."""
        data = self._read_small(path)
        with self.target.reported():
            file = self._renew(path)
            await self.target.disk.write(file, data)
        self._wrote(file, len(data))

    def _read_small(self, path: str) -> bytes:
        disk = self.source.disk
        with self.source.reported():
            if not disk.exists(path):
                return b""
            file = disk.open(path)
            data = file.pread(0, file.size)
            file.close()
        return data

    def _renew(self, path: str) -> DiskFile:
        """Return the empty copy of a file beside the segments."""
        name = path.rpartition("/")[2]
        self._remove(f"{self._path}/{name}")
        return self._open_name(name)

    async def copy_state(self) -> None:
        """Copy the producer snapshots that exist, and the index of the active segment.

        Without them, the next start would read much of the log.
        """
        folder = self.log.folder
        with self.source.reported():
            names = {name for name in self.source.disk.list(folder) if name.endswith(".producers")}
        for name in sorted(self._snapshots - names):
            self._remove(f"{self._path}/{name}")
        self._snapshots &= names
        for name in sorted(names - self._snapshots):
            await self._copy_small(f"{folder}/{name}")
            self._snapshots.add(name)
        if self.log.segments:
            await self._copy_small(segment_path(folder, self.log.segments[-1].base_offset, "index"))

    def _drop_snapshots(self) -> None:
        for name in sorted(self._snapshots):
            self._remove(f"{self._path}/{name}")
        self._snapshots.clear()

    async def flush(self) -> None:
        """Make everything that was copied durable."""
        files = list(self._unflushed.values())
        with self.target.reported():
            await self.target.disk.flush(files, (self._path, FUTURES))
        self._unflushed.clear()
        self.unflushed_bytes = 0
        for file in files:
            self._files.pop(file.path, None)
            file.close()

    # -- after the decision

    def renamed(self) -> None:
        """Note that the future is in the folder of the log now."""
        self._path = self.log.folder
        self._files.clear()  # the rename has closed them
        self._unflushed.clear()

    def copy_rest(self) -> list[DiskFile]:
        """Copy everything that is missing, without waiting; return the files that are not flushed."""
        for segment in self.log.segments:
            copied = self._copied(segment)
            if copied.size < segment.size:
                file = self._open(segment.base_offset, "log")
                assert file.size == copied.size, f"{file.path} has {file.size} bytes instead of {copied.size}"
                with self.source.reported():
                    data = segment.file.pread(copied.size, segment.size - copied.size)
                with self.target.reported():
                    file.append(data)
                copied.size += len(data)
                self._wrote(file, len(data))
            if not copied.has_index and segment is not self.log.segments[-1]:
                path = segment_path(self.log.folder, segment.base_offset, "index")
                data = self._read_small(path)
                with self.target.reported():
                    index = self._renew(path)
                    index.append(data)
                self._wrote(index, len(data))
        if self.log.segments:
            self._drop_discarded_index(self.log.segments[-1])
        return list(self._unflushed.values())

    def _drop_discarded_index(self, active: Segment) -> None:
        """Delete the copy of an index that an append has discarded since (`Segment.discard_stale_index`)."""
        with self.source.reported():
            is_discarded = not self.source.disk.exists(segment_path(self.log.folder, active.base_offset, "index"))
        if is_discarded:
            self._remove(segment_path(self._path, active.base_offset, "index"))

    # -- files of the future

    def _open(self, base_offset: int, kind: str) -> DiskFile:
        return self._open_name(segment_path("", base_offset, kind)[1:])

    def _open_name(self, name: str) -> DiskFile:
        path = f"{self._path}/{name}"
        if (file := self._files.get(path)) is None:
            with self.target.reported():
                file = self._files[path] = self.target.disk.open(path, create=True)
        return file

    def _remove(self, path: str) -> None:
        self._unflushed.pop(path, None)
        if (file := self._files.pop(path, None)) is not None:
            file.close()
        with self.target.reported():
            self.target.disk.remove(path)

    def _wrote(self, file: DiskFile, size: int) -> None:
        self._unflushed[file.path] = file
        self.unflushed_bytes += size
