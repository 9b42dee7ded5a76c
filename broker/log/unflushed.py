"""The data that a log has written and the next flush makes durable."""

from __future__ import annotations

from typing import NamedTuple

from quorumlog.runtime.disk import DiskFile


class UnflushedFiles(NamedTuple):
    """The work of one flush.

    folder_changed: files were created, deleted or truncated in the log's folder.
    parent_changed: the log's folder itself was created.
    folders_first: files were deleted, and that must be durable before later appends.
    close: files that get no more data, to be closed after the flush.
    """

    files: tuple[DiskFile, ...]
    close: tuple[DiskFile, ...]
    folder_changed: bool
    parent_changed: bool
    folders_first: bool


class Unflushed:
    """Collects the unflushed files of one log until `take`."""

    __slots__ = ("_close", "_files", "_folder_changed", "_folders_first", "_parent_changed")

    def __init__(self) -> None:
        self._files: dict[str, DiskFile] = {}
        self._close: dict[str, DiskFile] = {}
        self._folder_changed = False
        self._parent_changed = False
        self._folders_first = False

    def __bool__(self) -> bool:
        """Whether a flush has something to do; a created parent comes with a file."""
        return bool(self._files) or self._folder_changed

    def __contains__(self, path: str) -> bool:
        """Whether this file has unflushed data."""
        return path in self._files

    def add(self, file: DiskFile) -> None:
        """Add a file that was written or truncated."""
        self._files[file.path] = file

    def add_last(self, file: DiskFile) -> None:
        """Add a file that was created and written, and gets no more data."""
        self._files[file.path] = self._close[file.path] = file
        self._folder_changed = True

    def remove(self, *paths: str) -> None:
        """Remove deleted files."""
        for path in paths:
            self._files.pop(path, None)
            self._close.pop(path, None)
        self._folder_changed = True

    def folder_created(self) -> None:
        self._parent_changed = True

    def folder_changed(self) -> None:
        """Note that a file was created in the log's folder."""
        self._folder_changed = True

    def folder_first(self) -> None:
        """Require that the deletions so far are durable before later appends."""
        self._folders_first = True

    def take(self) -> UnflushedFiles:
        """Return everything collected, and start again with nothing."""
        taken = UnflushedFiles(
            tuple(self._files.values()),
            tuple(self._close.values()),
            self._folder_changed,
            self._parent_changed,
            self._folders_first,
        )
        self._files, self._close = {}, {}
        self._folder_changed = self._parent_changed = self._folders_first = False
        return taken
