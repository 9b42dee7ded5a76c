"""Snapshots as files beside the database.  All methods block; call them off the event loop.

A snapshot is written under a temporary name, checked in full, synced and then renamed.  A file with a snapshot's name
is therefore complete or damaged, never half written.  The next open keeps the newest unfinished file if it ends above
the log, because it is a download, which is resumed.  It removes all other unfinished files, and logs that.

A damaged snapshot is renamed, so that nothing uses it.  The latest few of these are kept for examination.
"""

from __future__ import annotations

import os
import re

from quorum.codec import MalformedError
from quorum.core.types import LogEnd
from quorum.ports import BadSnapshotError, SnapshotMissingError
from quorum.snapshot_file import SnapshotInfo, SnapshotParser, snapshot_name
from quorum.store.directory import sync_directory
from quorumlog.runtime.logging import get_logger

_NAME = re.compile(r"(\d{20})-(\d{10})\.snapshot")
_PART = ".part"
_DAMAGED = ".damaged"
DAMAGED_KEPT = 3
_READ_BYTES = 1 << 20
_HEADER_BYTES = 64 << 10

logger = get_logger("quorum")


class SnapshotFiles:
    """The snapshot files of one quorum directory.  For the methods, see `quorum.ports.QuorumStore`."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        # Ends of the snapshots that this process is taking.  A download in another thread must not remove their files.
        self._taking: set[LogEnd] = set()
        self._damaged: set[LogEnd] = set()  # ends of snapshots with a damaged header, reported and not set aside yet

    def path(self, end: LogEnd) -> str:
        return os.path.join(self._directory, snapshot_name(end))

    def _part(self, end: LogEnd) -> str:
        return self.path(end) + _PART

    def clean(self, log_end: int) -> None:
        """Remove unfinished files, except the newest one if it is a download: it ends above `log_end`."""
        parts = self._parts()
        for end in parts[:-1] if parts and parts[-1].offset > log_end else parts:
            logger.warning("unfinished snapshot removed", file=self._part(end))
            os.unlink(self._part(end))

    def _parts(self) -> list[LogEnd]:
        """Return the ends of the unfinished files, in ascending order."""
        names = [name.removesuffix(_PART) for name in os.listdir(self._directory) if name.endswith(_PART)]
        matches = [match for name in names if (match := _NAME.fullmatch(name)) is not None]
        return sorted((LogEnd(int(match[2]), int(match[1])) for match in matches), key=lambda end: end.offset)

    def all(self) -> tuple[SnapshotInfo, ...]:
        """Return the snapshots in ascending order.  A snapshot with a damaged header is logged, once, and left out."""
        found: list[SnapshotInfo] = []
        for name in sorted(os.listdir(self._directory)):
            match = _NAME.fullmatch(name)
            if match is None:
                continue
            end = LogEnd(int(match[2]), int(match[1]))
            try:
                found.append(self._look(self.path(end), end))
            except FileNotFoundError:  # another thread has deleted it or set it aside since `listdir`
                continue
            except MalformedError as error:
                if end not in self._damaged:
                    logger.error("snapshot not used: damaged", directory=self._directory, file=name, cause=str(error))
                self._damaged.add(end)
        return tuple(sorted(found, key=lambda info: info.end.offset))

    def _look(self, path: str, end: LogEnd) -> SnapshotInfo:
        parser = SnapshotParser()
        with open(path, "rb") as file:
            for _ in parser.feed(file.read(_HEADER_BYTES)):
                break
            size = os.fstat(file.fileno()).st_size
        if parser.header is None or parser.header.base.end != end:
            raise MalformedError("its header is missing, or of another snapshot")
        return SnapshotInfo(parser.header, size)

    def begin(self, end: LogEnd, resume: bool) -> int:
        """Begin or resume the unfinished file of a snapshot, and return its size so far.

        With `resume`, a durable snapshot with this end counts as a complete download.  Files of other downloads are
        removed, because only one download is in progress at a time.
        """
        if resume:
            self._taking.discard(end)
            for other in self._parts():
                if other != end and other not in self._taking:
                    _remove(self._part(other))
        else:
            self._taking.add(end)
            _remove(self._part(end))  # a download may have left this file, a second name of a durable snapshot
        if resume and os.path.exists(self.path(end)) and not os.path.exists(self._part(end)):
            os.link(self.path(end), self._part(end))
        with open(self._part(end), "ab") as file:
            return os.fstat(file.fileno()).st_size

    def extend(self, end: LogEnd, position: int, data: bytes) -> None:
        with open(self._part(end), "ab") as file:
            size = os.fstat(file.fileno()).st_size
            assert size == position, f"{len(data)} bytes at {position} of a snapshot of {size} bytes so far"
            file.write(data)
            file.flush()
            # Sync each piece: one large sync at the end would delay the syncs of the log, on the same disk.
            os.fdatasync(file.fileno())

    def finish(self, end: LogEnd) -> SnapshotInfo:
        try:
            return self._finish(end)
        finally:
            self._taking.discard(end)  # only now: until the file is renamed, a download could remove it

    def _finish(self, end: LogEnd) -> SnapshotInfo:
        path = self._part(end)
        parser = SnapshotParser()
        try:
            with open(path, "rb+") as file:
                while data := file.read(_READ_BYTES):
                    for _ in parser.feed(data):
                        pass  # only checked
                header = parser.finish()
                if header.base.end != end:
                    raise MalformedError(f"it ends at {header.base.end}, not {end}")
                size = file.tell()
                os.fsync(file.fileno())
        except MalformedError as error:
            if os.path.exists(self.path(end)) and os.path.samefile(path, self.path(end)):
                # A durable snapshot was resumed, and the bytes that another leader sent have damaged this shared file.
                os.unlink(self.path(end))
            raise BadSnapshotError(f"{self._move_aside(path, end)}: {error}") from error
        os.replace(path, self.path(end))
        if os.path.exists(path):  # both names were links to one file; then rename(2) does nothing
            os.unlink(path)
        sync_directory(self._directory)
        self._set_damaged_aside()
        return SnapshotInfo(header, size)

    def _set_damaged_aside(self) -> None:
        """Set aside the snapshots with a damaged header, now that another snapshot is durable and may replace them."""
        damaged, self._damaged = self._damaged, set()
        for end in sorted(damaged):
            try:
                self._look(self.path(end), end)  # an intact snapshot may have replaced it since
            except FileNotFoundError:
                continue
            except MalformedError:
                self.set_aside(end)

    def set_aside(self, end: LogEnd) -> None:
        if os.path.exists(self.path(end)):
            logger.warning("damaged snapshot set aside", file=self._move_aside(self.path(end), end))

    def _move_aside(self, path: str, end: LogEnd) -> str:
        """Rename a file so that nothing uses it, and return its new path."""
        target = self.path(end) + _DAMAGED
        os.replace(path, target)
        damaged = sorted(name for name in os.listdir(self._directory) if name.endswith(_DAMAGED))
        for name in damaged[:-DAMAGED_KEPT]:
            _remove(os.path.join(self._directory, name))
        sync_directory(self._directory)
        return target

    def read(self, end: LogEnd, position: int, max_bytes: int) -> tuple[int, bytes]:
        try:
            with open(self.path(end), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                return size, os.pread(file.fileno(), max_bytes, position) if position < size else b""
        except FileNotFoundError:
            raise SnapshotMissingError(f"{self.path(end)} does not exist") from None

    def delete(self, end: LogEnd) -> None:
        _remove(self.path(end))
        sync_directory(self._directory)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
