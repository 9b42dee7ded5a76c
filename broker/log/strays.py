"""The strays of a data directory: folders of logs that were set aside, until they are deleted.

A folder is set aside by a rename from `logs/<folder>` to `strays/<name>`.  The fact `stray/<name>` records the time,
and whether the folder was renamed.  It is written before the rename, so that the next start sets the folder aside if a
crash prevented that.  A *move* is always the move of a log to another data directory (`move_facts`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

import msgspec

from broker.log.move_facts import moving_fact
from broker.log.state import DAMAGED, folder_fact, state_fact, watermark_fact
from broker.log.types import LOGS, LogKey, parse_folder_name
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.disk import Disk
from quorumlog.runtime.logging import get_logger
from quorumlog.runtime.turns import Turn

STRAYS = "strays"
STRAY = "stray/"
NAMES_LOGGED_MAX = 5

logger = get_logger("log")


class StrayState(msgspec.Struct, frozen=True):
    """The fact of a stray.  set_aside_ms: wall time, for people.  is_kept: deleted only by `purge`.

    is_set_aside: the folder is among the strays.  continues_in: the directory to which the log moved, if it did.
    """

    folder: str
    set_aside_ms: int
    is_set_aside: bool = msgspec.field(name="is_moved")  # its name in the facts
    is_kept: bool = False
    continues_in: UUID | None = None


class Stray(NamedTuple):
    """A folder that was set aside.  name: its name among the strays; folder: its name before."""

    directory_id: UUID
    name: str
    folder: str
    set_aside_ms: int
    is_kept: bool


class StrayFolders:
    """The strays of one data directory.  Every coroutine raises DiskError if the directory fails."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._known: dict[str, StrayState] = {}
        self._first_seen_ms: dict[str, int] = {}  # by `delete_old`
        self._deleting = asyncio.Lock()  # both maintenance and operators delete strays

    def all(self) -> list[Stray]:
        """Return the strays that still exist."""
        return [
            Stray(self._disk.directory_id, name, stray.folder, stray.set_aside_ms, stray.is_kept)
            for name, stray in sorted(self._known.items())
        ]

    def continued(self) -> Iterator[tuple[str, UUID]]:
        """Yield the folders of logs that moved to another directory, and that directory, in the order of the moves."""
        for stray in sorted(self._known.values(), key=lambda each: each.set_aside_ms):
            if stray.continues_in is not None:
                yield stray.folder, stray.continues_in

    async def load(self) -> None:
        """Load the strays, and set the folders aside whose intent was written before a crash.

        Raises: CorruptStoreError: a fact is damaged.
        """
        disk = self._disk
        known = {key.removeprefix(STRAY): _decode(key, value) for key, value in disk.facts.load(STRAY).items()}
        self._known = {name: stray for name, stray in known.items() if stray.is_set_aside}
        changes: dict[str, bytes | None] = {}
        pending = []
        for name, stray in known.items():
            if stray.is_set_aside:
                continue
            if disk.exists(f"{STRAYS}/{name}"):
                renamed = self._known[name] = msgspec.structs.replace(stray, is_set_aside=True)
                changes[STRAY + name] = msgspec.json.encode(renamed)
            else:
                changes[STRAY + name] = None
                pending.append(stray)
        if changes:
            await self.finish(await self._intend(pending, changes))

    async def intend(self, folders: Sequence[str], wall_ms: int, keep: bool) -> dict[str, StrayState]:
        """Write the intent to set these folders of logs aside, and delete their facts; durable on return.

        Return the names and states of the strays, for `finish`.  With `keep`, only `purge` deletes them.
        """
        # A log that is set aside no longer moves, so the fact of its move is deleted.  `plan` keeps that fact.
        changes: dict[str, bytes | None] = dict.fromkeys(map(moving_fact, folders))
        strays = [StrayState(folder, wall_ms, is_set_aside=False, is_kept=keep) for folder in folders]
        return await self._intend(strays, changes)

    async def _intend(self, strays: list[StrayState], changes: dict[str, bytes | None]) -> dict[str, StrayState]:
        named = await self._name(strays, changes)
        await self._disk.facts.commit(changes)
        return named

    async def plan(
        self, folder: str, continues_in: UUID, wall_ms: int, changes: dict[str, bytes | None]
    ) -> dict[str, StrayState]:
        """Add to `changes` the intent to set a folder aside, because its log continues in another directory.

        Return the name and state of the stray, for `finish` or `give_up`.
        """
        return await self._name([StrayState(folder, wall_ms, is_set_aside=False, continues_in=continues_in)], changes)

    def give_up(self, named: dict[str, StrayState]) -> dict[str, bytes | None]:
        """Forget an intent; return the facts to change."""
        for name in named:
            del self._known[name]
        return dict.fromkeys(STRAY + name for name in named)

    async def _name(self, strays: list[StrayState], changes: dict[str, bytes | None]) -> dict[str, StrayState]:
        disk, known = self._disk, self._known
        named: dict[str, StrayState] = {}
        turn = Turn()
        for stray in strays:
            await turn.passed()
            number = 0
            while (name := f"{stray.folder}.{stray.set_aside_ms}.{number}") in known or disk.exists(f"{STRAYS}/{name}"):
                number += 1
            known[name] = stray
            named[name] = msgspec.structs.replace(stray, is_set_aside=True)
            changes[STRAY + name] = msgspec.json.encode(stray)
            changes[state_fact(stray.folder)] = changes[folder_fact(stray.folder)] = None
            changes[DAMAGED + stray.folder] = None
            if (identity := parse_folder_name(stray.folder)) is not None:
                changes[watermark_fact(identity[0])] = None
        return named

    async def finish(self, named: dict[str, StrayState]) -> None:
        """Set the folders aside whose intent is durable, and write that this is done."""
        disk, known = self._disk, self._known
        turn = Turn()
        renamed = []
        for name, stray in named.items():
            await turn.passed()
            if disk.exists(f"{LOGS}/{stray.folder}"):
                disk.rename(f"{LOGS}/{stray.folder}", f"{STRAYS}/{name}")
                renamed.append(stray.folder)
        self._log_many("logs set aside", renamed)
        await disk.flush((), (LOGS, STRAYS))
        await disk.facts.commit({STRAY + name: msgspec.json.encode(stray) for name, stray in named.items()})
        known.update(named)  # from now on these strays may be deleted

    async def keep(self, changing: asyncio.Lock) -> None:
        """Exempt all current strays from `delete_old`; durable on return.

        changing: guards the other changes of strays.  Without it, this call could write a stray again that a move has
            finished or given up meanwhile.
        """
        async with self._deleting, changing:  # in this order: a deletion may take long, and must not delay changes
            kept = {name: msgspec.structs.replace(stray, is_kept=True) for name, stray in self._known.items()}
            if kept:
                facts: dict[str, bytes | None] = {STRAY + name: msgspec.json.encode(kept[name]) for name in kept}
                await self._disk.facts.commit(facts)
                self._known.update(kept)

    async def delete_old(self, now_ms: int, kept_ms: int, unreported: Collection[LogKey] = ()) -> int:
        """Delete strays that an earlier call saw at least `kept_ms` ago, unless they are exempt; return their number.

        now_ms: time of the loop's clock.  unreported: logs whose current directory may be known only from their strays.
        """

        def is_due(name: str, stray: StrayState) -> bool:
            if stray.is_kept or now_ms - self._first_seen_ms.setdefault(name, now_ms) < kept_ms:
                return False
            identity = None if stray.continues_in is None else parse_folder_name(stray.folder)
            return identity is None or identity[0] not in unreported

        return await self._delete(is_due)

    async def purge(self) -> int:
        """Delete all strays; return their number."""
        return await self._delete(lambda *_: True)

    async def _delete(self, is_due: Callable[[str, StrayState], bool]) -> int:
        loop = asyncio.get_running_loop()
        async with self._deleting:
            due = [name for name, stray in self._known.items() if stray.is_set_aside and is_due(name, stray)]
            for name in due:
                await loop.run_in_executor(None, self._disk.remove_tree, f"{STRAYS}/{name}")
            self._log_many("strays deleted", due)
            if due:
                await self._disk.sync_dir(STRAYS)
                await self._disk.facts.commit(dict.fromkeys(STRAY + name for name in due))
            for name in due:
                del self._known[name]
                self._first_seen_ms.pop(name, None)
            return len(due)

    def _log_many(self, event: str, names: list[str]) -> None:
        """Log one line, however many names there are; a topic may have thousands of partitions."""
        if names:
            shown = ",".join(sorted(names)[:NAMES_LOGGED_MAX])
            logger.info(event, directory_id=self._disk.directory_id, count=len(names), first=shown)


def _decode(key: str, fact: bytes) -> StrayState:
    """Return the state in the fact of a stray.

    Raises: CorruptStoreError: the fact is not a stray's state.
    """
    try:
        return msgspec.json.decode(fact, type=StrayState)
    except msgspec.DecodeError as error:
        raise CorruptStoreError(f"fact {key} is damaged: {error}") from error
