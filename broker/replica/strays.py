"""Strays: logs on disk whose replica was deleted or moved to another broker, according to the metadata."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.log import LogKey, LogManager
from broker.replica.table import ReplicaTable
from broker.replica.watermarks import Watermarks
from quorumlog.runtime.disk import Disk, DiskError
from quorumlog.runtime.logging import get_logger
from quorumlog.runtime.turns import Turn

logger = get_logger("broker")

GENERATION = "broker/generation"
"""Fact: the generation of the quorum when the directory was last searched for strays."""


class Strays:
    """Sets strays aside once after a start, and deletes them later.

    If the quorum was rebuilt by hand since a data directory was last used, the metadata may lack replicas that
    existed.  Then every stray is kept until an operator deletes it.

    are_known: strays were set aside, so old ones may be deleted.
    """

    def __init__(
        self,
        table: ReplicaTable,
        disks: Sequence[Disk],
        watermarks: Watermarks,
        generation: Callable[[], int],
        wall_ms: Callable[[], int],
    ) -> None:
        self._table = table
        self._logs: LogManager = table.context.logs
        self._disks = tuple(disks)
        self._watermarks = watermarks
        self._generation = generation
        self._wall_ms = wall_ms
        self.are_known = False

    async def set_aside(self) -> None:
        """Set aside every log that belongs to no hosted replica.  The table must be complete.

        If a directory fails meanwhile, it goes offline, and the work continues in the other directories.
        """
        generation = self._generation()
        keep = bool(self._rebuilt(generation))
        for _ in range(len(self._disks) + 1):  # each directory fails at most once
            try:
                await self._try_to_set_aside(generation, keep)
            except DiskError as error:
                logger.error("strays not set aside", cause=str(error))
                continue
            self.are_known = True
            return

    async def _try_to_set_aside(self, generation: int, keep: bool) -> None:
        """Raises: DiskError: a directory has failed, and is offline now."""
        known = {replica.key for replica in self._table}
        logs = self._logs
        strays = sorted(key for key in (*logs.logs, *logs.failures) if key not in known)
        if keep:
            await logs.keep_strays()
        if strays:
            self._log_strays(strays, rebuilt=keep)
            for key in strays:
                self._watermarks.forget(key)
            await logs.set_aside(strays, self._wall_ms(), keep=keep)
        await logs.set_doubles_aside(self._wall_ms(), keep=keep)
        for disk in self._rebuilt(generation):
            try:
                await disk.facts.commit({GENERATION: b"%d" % generation})
            except DiskError as error:
                logs.disk_failed(disk.directory_id, error)
                raise

    def _rebuilt(self, generation: int) -> list[Disk]:
        """Return the working directories that were last searched for strays before the quorum was rebuilt."""
        working = [disk for disk in self._disks if disk.directory_id not in self._logs.failed_disks]
        return [disk for disk in working if _fact_number(disk, GENERATION) < generation]

    async def delete_old(self, now_ms: int) -> None:
        """Delete the strays that are old enough; see `LogManager.delete_strays`.

        now_ms: time of the loop's clock.

        Raises:
            DiskError: a directory failed.
        """
        if not self.are_known:
            return
        context, turn = self._table.context, Turn()
        unreported = set()
        for replica in list(self._table):
            await turn.passed()
            log, own = self._logs.get(replica.key), replica.image.replica(context.broker_id)
            if log is None or own is None or log.directory_id != own.directory_id:
                unreported.add(replica.key)
        await self._logs.delete_strays(now_ms, context.limits.strays_kept_ms, unreported)

    def _log_strays(self, strays: list[LogKey], rebuilt: bool) -> None:
        if not rebuilt:
            logger.warning("strays set aside", count=len(strays))
            return
        topics = {found.topic for key in strays if (found := self._logs.get(key)) is not None}
        logger.error(
            "replicas that the rebuilt quorum does not know were set aside, and are kept",
            count=len(strays),
            topics=",".join(sorted(topics)[:20]),
            next="examine them; `kctl brokers purge-strays` deletes them",
        )


def _fact_number(disk: Disk, name: str) -> int:
    value = disk.facts.load(name).get(name, b"")
    return int(value) if value.isdigit() else 0
