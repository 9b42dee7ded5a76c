"""The folders of logs in a data directory, and the facts about these logs, as a start finds them."""

from __future__ import annotations

from broker.log.recovery import Floor
from broker.log.state import (
    CLEAN_EPOCH,
    DAMAGED,
    FOLDER,
    OFFSET_MAX,
    STATE,
    UNSYNCED,
    WATERMARK,
    LogState,
    decode_state,
    durable_before_damage,
    flushed_segment,
    watermark_fact,
)
from broker.log.types import LOGS, LogConfig, LogKey
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.disk import Disk

NEXT_STEP = (
    "restore it, or copy the replica again from its leader: reassign it to another broker and back "
    "(`kctl reassign start`); the remaining files are then set aside"
)


class DirectoryFacts:
    """The facts about the logs of one data directory, read once.

    damaged: the folders in which damage was found, and the end of their durable records (None: unknown).
    """

    def __init__(self, disk: Disk) -> None:
        facts = disk.facts
        notes = facts.load(DAMAGED)
        self.damaged = {name.removeprefix(DAMAGED): durable_before_damage(note) for name, note in notes.items()}
        self._states = {name.removeprefix(STATE): value for name, value in facts.load(STATE).items()}
        self._folders = {name.removeprefix(FOLDER): value for name, value in facts.load(FOLDER).items()}
        self._watermarks = facts.load(WATERMARK)
        self._is_as_stopped = CLEAN_EPOCH in facts.load(CLEAN_EPOCH)
        self._existing = set(disk.list(LOGS))

    def names(self) -> list[str]:
        """Return the names of all folders that exist or have facts, sorted."""
        return sorted({*self._existing, *self._states, *self._folders})

    def state(self, folder: str) -> LogState | None:
        """Return the state of the log in this folder; None if it has no checkpoint.

        Raises: CorruptStoreError: the fact is damaged, or the folder is missing.
        """
        fact = self._states.get(folder)
        state = None if fact is None else decode_state(STATE + folder, fact)
        if folder not in self._existing and (folder in self._folders or (state is not None and state.segments)):
            raise CorruptStoreError(f"{LOGS}/{folder} is missing, although it held a replica", NEXT_STEP)
        return state

    def folder_fact(self, folder: str) -> bytes | None:
        return self._folders.get(folder)

    def config(self, folder: str) -> LogConfig:
        """Return the settings that recovery needs; the others are set when the metadata is known."""
        return LogConfig(write_caching=self._folders.get(folder) == UNSYNCED)

    def flushed_segment(self, folder: str) -> int:
        """Return the newest segment that is known to have been flushed; see `state.flushed_segment`."""
        return flushed_segment(self.folder_fact(folder))

    def floor(self, key: LogKey, folder: str, state: LogState | None) -> Floor:
        """Return the end offset that the log must reach."""
        floors = [Floor(self.committed(key))]
        if self._is_as_stopped and state is not None:
            floors.append(Floor(state.end_offset, "durable at the clean stop, after which nothing was written"))
        if (durable := self.damaged.get(folder)) is not None:
            floors.append(Floor(durable, "durable before damage was found"))
        return max(floors, key=lambda floor: floor.offset)

    def durable(self, key: LogKey, folder: str, state: LogState | None) -> int | None:
        """Return the end of the records that were certainly durable; None if an older release has not recorded it."""
        flushed = self.flushed_segment(folder)
        if flushed == OFFSET_MAX or (folder in self.damaged and self.damaged[folder] is None):
            return None
        return max(self.floor(key, folder, state).offset, flushed)

    def committed(self, key: LogKey) -> int:
        """Return the offset below which everything was durable and committed in this directory."""
        watermark = self._watermarks.get(watermark_fact(key), b"")
        return int(watermark) if watermark.isdigit() else 0
