"""Two facts of every data directory: the number of its last start, and the broker epoch of its last clean stop.

starts       the number of the last start, which orders the processes of a broker (`metadata.records.incarnation`)
clean epoch  the broker epoch under which the directory was closed; removed before anything is written again
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

from broker.log.state import CLEAN_EPOCH, STARTS
from metadata.records.incarnation import STARTS_MAX
from quorumlog.runtime.disk import Disk, DiskError


class ProcessMarks:
    """The marks in the data directories of this process.

    has_failed: returns whether a directory has failed; failed directories are left out.
    on_failure: called with the directory and the error if a write fails.
    """

    def __init__(
        self,
        disks: Sequence[Disk],
        has_failed: Callable[[UUID], bool],
        on_failure: Callable[[UUID, DiskError], None],
    ) -> None:
        self._disks = disks
        self._has_failed = has_failed
        self._on_failure = on_failure
        self._has_begun = False

    async def count_start(self) -> int:
        """Return the number of this start, which is durable in every working directory.

        A directory that was restored from a backup may have an old number, so the highest one counts.  A new directory
        has no records, so it gets the mark of the clean stop as well.  Otherwise, if this process ended before it
        registered, the next start would find directories that do not agree (`clean_epoch`).
        """
        found = [disk.facts.load(STARTS).get(STARTS, b"") for disk in self._working()]
        start = max((int(each) for each in found if each.isdigit()), default=0) % STARTS_MAX + 1
        number, epoch = b"%d" % start, self.clean_epoch()
        for disk in self._working():
            is_marked = epoch >= 0 and self._is_new(disk)
            await self._commit(disk, {STARTS: number, CLEAN_EPOCH: b"%d" % epoch} if is_marked else {STARTS: number})
        return start

    def clean_epoch(self) -> int:
        """Return the broker epoch of the last clean stop; -1 if it is unknown or records may have been written since.

        The mark is valid until the next registration, because nothing is written before that.  While it is valid,
        `broker.log` treats a log that has lost records as damaged, and takes it offline.

        All directories with records must agree.  A failed directory is left out: heartbeats report it, and the mark
        does not cover its replicas.  A new directory has no records.
        """
        in_use = [disk for disk in self._working() if not self._is_new(disk)]
        marks = {disk.facts.load(CLEAN_EPOCH).get(CLEAN_EPOCH, b"") for disk in in_use}
        mark = marks.pop() if len(marks) == 1 else b""
        return int(mark) if mark.isdigit() else -1

    @staticmethod
    def _is_new(disk: Disk) -> bool:
        return not disk.facts.load(STARTS) and not disk.facts.load(CLEAN_EPOCH)

    async def begin(self) -> None:
        """Remove the mark of the clean stop, once.  From now on, records may be written."""
        if self._has_begun:
            return
        if any(disk.facts.load(CLEAN_EPOCH) for disk in self._working()):
            for disk in self._working():
                await self._commit(disk, {CLEAN_EPOCH: None})
        self._has_begun = True

    async def leave_clean(self, broker_epoch: int) -> None:
        """Mark that everything written under this epoch is durable.

        Raises: DiskError.
        """
        for disk in self._disks:
            await disk.facts.commit({CLEAN_EPOCH: b"%d" % broker_epoch})

    def _working(self) -> list[Disk]:
        return [disk for disk in self._disks if not self._has_failed(disk.directory_id)]

    async def _commit(self, disk: Disk, facts: dict[str, bytes | None]) -> None:
        try:
            await disk.facts.commit(facts)
        except DiskError as error:
            self._on_failure(disk.directory_id, error)
