"""Checks SQLite's write-ahead log before SQLite opens it.

Theory of operation.  SQLite recovers a write-ahead log by reading it up to the first frame whose checksum does not
match.  It treats that frame as a write that a crash interrupted.  A flipped bit looks the same to SQLite, which then
undoes everything committed from there on, votes included.  Its integrity check passes (measured).  But an interrupted
write is the *last* thing in the file.  So this module reads the frames before SQLite does.  If an intact commit follows
a damaged frame, durable data has been damaged, and the store refuses to start.

Checksums are cumulative: each frame's checksum covers all frames before it.  Beyond a damaged frame, the walk resumes
the chain from the checksum that the previous frame *states*.  A frame that continues this checksum, and carries the
log's own salts, was written after that frame.  Frames with other salts are leftovers from before the log was last
rewound.

One case is ambiguous: damage within the very last transaction, with its commit frame intact.  Either a power cut made
the disk keep the later pages of an unsynced transaction and lose the earlier ones, or the transaction was synced and
acknowledged and then damaged.  A refusal costs one replica; a wrong guess could cost an acknowledged write.  So the
store refuses to start.
"""

from __future__ import annotations

import os
import struct
import sys
from typing import BinaryIO, NamedTuple

from quorumlog.errors import CorruptStoreError

PAGE_SIZE = 4096
"""Bytes in a page of the databases that `schema.create_database` makes."""

_MAGIC_LITTLE = 0x377F0682
_MAGIC_BIG = 0x377F0683
_HEADER = struct.Struct(">8I")  # magic, version, page size, checkpoint, salt 1, salt 2, checksum 1, checksum 2
_FRAME = struct.Struct(">6I")  # page, database size (0: no commit), salt 1, salt 2, checksum 1, checksum 2
_PAGE_SIZES = frozenset(1 << bits for bits in range(9, 17))

_Sums = tuple[int, int]


class WalSummary(NamedTuple):
    """The contents of a write-ahead log that passed the check."""

    frames: int  # intact frames
    commits: int  # commit frames among them
    torn: bool  # whether an interrupted write or a leftover follows them


class _Frame(NamedTuple):
    page: int
    database_pages: int
    salts: tuple[int, int]
    sums: _Sums
    checked: bytes  # the bytes that the checksum covers

    @property
    def is_commit(self) -> bool:
        return self.database_pages != 0


def _add(sums: _Sums, data: bytes, order: str) -> _Sums:
    """Return SQLite's running checksum, continued over `data`, whose length is a multiple of 8."""
    first, second = sums
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for even, odd in zip(words, words, strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second


def check_wal(path: str, in_use: bool = False) -> WalSummary:
    """Check the write-ahead log at `path`, and return a summary.  Unless `in_use`, a missing file counts as empty.

    in_use: the last process that had it open did not close it.  Every opening begins with a synced write, SQLite never
    shortens the file while it is open, and SQLite syncs a new header before the first frame after it.  So the file must
    hold an intact header, and at least the header of a frame.

    Raises:
        CorruptStoreError: an intact commit follows a damaged frame; or the file was in use, and is missing, has no
            intact header, or is too short for the header of a frame.  The error names the file and the damage.
        OSError: the file cannot be read.
    """
    if not os.path.exists(path):
        if in_use:
            raise _lost(f"{path} is missing")
        return WalSummary(0, 0, False)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if in_use and size < _HEADER.size + _FRAME.size:
            raise _lost(f"{path} has {size} bytes")
        walk = _Walk(path, file)
        summary = walk.run()
        if in_use and not walk.has_header:
            raise _lost(f"{path}: the header is damaged")
        return summary


def _lost(damage: str) -> CorruptStoreError:
    return CorruptStoreError(
        f"{damage} although the directory was in use: the last writes are lost",
        next_step="restore it, or replace this disk; do not delete the file",
    )


class _Walk:
    def __init__(self, path: str, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        # The header overwrites these values.  If the header is damaged, the page size and byte order are those that
        # this store writes, and no salts are known.
        self._page_size = PAGE_SIZE
        self._order = "<" if sys.byteorder == "little" else ">"
        self._salts: tuple[int, int] | None = None

    @property
    def has_header(self) -> bool:
        """Return whether `run` has found an intact header."""
        return self._salts is not None

    def run(self) -> WalSummary:
        if self._size < _HEADER.size:
            return WalSummary(0, 0, self._size > 0)
        sums = self._read_header()
        frames = commits = 0
        if sums is not None:
            while (frame := self._read(frames)) is not None and self._fits(frame, sums):
                sums = frame.sums
                frames += 1
                commits += frame.is_commit
        later = self._intact_commit_after(frames, sums)
        if later is not None:
            place = "the header" if sums is None else f"frame {frames + 1} (at byte {self._position(frames)})"
            raise CorruptStoreError(
                f"{self._path}: {place} is damaged, and a commit after it (frame {later + 1}) is intact: "
                f"durable data has been damaged",
                next_step="replace this disk, or restore the directory from before the damage; do not delete the file",
            )
        return WalSummary(frames, commits, self._size > self._position(frames))

    def _read_header(self) -> _Sums | None:
        """Return the checksum that the first frame continues; None if the header is damaged."""
        data = self._file.read(_HEADER.size)
        magic, _, page_size, _, salt_1, salt_2, sum_1, sum_2 = _HEADER.unpack(data)
        order = {_MAGIC_LITTLE: "<", _MAGIC_BIG: ">"}.get(magic)
        if order is None or page_size not in _PAGE_SIZES or _add((0, 0), data[:24], order) != (sum_1, sum_2):
            return None
        self._page_size, self._order, self._salts = page_size, order, (salt_1, salt_2)
        return sum_1, sum_2

    def _position(self, index: int) -> int:
        return _HEADER.size + index * (_FRAME.size + self._page_size)

    def _read(self, index: int) -> _Frame | None:
        """Return frame number `index` (from 0), or None if no whole frame is left in the file."""
        self._file.seek(self._position(index))
        data = self._file.read(_FRAME.size + self._page_size)
        if len(data) < _FRAME.size + self._page_size:
            return None
        page, database_pages, salt_1, salt_2, sum_1, sum_2 = _FRAME.unpack_from(data)
        checked = data[:8] + data[_FRAME.size :]
        return _Frame(page, database_pages, (salt_1, salt_2), (sum_1, sum_2), checked)

    def _fits(self, frame: _Frame, previous: _Sums) -> bool:
        if self._salts is not None and frame.salts != self._salts:
            return False
        return frame.page != 0 and _add(previous, frame.checked, self._order) == frame.sums

    def _intact_commit_after(self, index: int, sums: _Sums | None) -> int | None:
        """Return the index of the first intact commit after the frame at `index`, or None if no commit follows it.

        sums: the checksum that the frame at `index` does not continue; None if the header is damaged.
        """
        previous = self._read(index)
        if previous is None:
            return None
        seeds = [previous.sums]
        if sums is not None:  # the frame's own checksum field may be the damaged part
            seeds.append(_add(sums, previous.checked, self._order))
        while (frame := self._read(index := index + 1)) is not None:
            if frame.is_commit and any(self._fits(frame, seed) for seed in seeds):
                return index
            seeds = [frame.sums]
        return None
