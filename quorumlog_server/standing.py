"""What a disk remembers of its place in the quorum: a word beside the log, for nodes that join and leave by themselves.

The log cannot say it for ever: its beginning, and with it the record that took a voter out, is forgotten after a while.
"""

from __future__ import annotations

import asyncio
import json
import os
from enum import Enum
from typing import Protocol

from quorum.store.directory import note_file, noted_files, refusal, sync_directory
from quorumlog.errors import CorruptStoreError

FILE = "standing.json"
_NEXT_STEP = 'write {"standing": "voter"} into it: the node then joins only when it is added'


class Standing(Enum):
    """NEW: never a voter.  VOTER: it is one, or was until somebody took it out.  LEAVING: it takes itself out."""

    NEW = "new"
    VOTER = "voter"
    LEAVING = "leaving"


class StandingStore(Protocol):
    """Where the word is kept.  Survives the process, and goes with the quorum's log."""

    async def load(self) -> Standing: ...

    async def save(self, standing: Standing) -> None:
        """Durable on return."""
        ...


class FileStanding:
    """In a file of the quorum directory: whoever moves that away has another disk.

    The mark beside the directory remembers that the file exists, so a missing one is noticed.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._path = os.path.join(directory, FILE)

    async def load(self) -> Standing:
        """
        Raises:
            CorruptStoreError: not what was written.
            FatalError: the disk fails.
        """
        return await asyncio.get_running_loop().run_in_executor(None, self._load)

    async def save(self, standing: Standing) -> None:
        """
        Raises:
            FatalError: the disk fails.
        """
        await asyncio.get_running_loop().run_in_executor(None, self._save, standing)

    def _load(self) -> Standing:
        try:
            with open(self._path, "rb") as file:
                standing = Standing(json.loads(file.read())["standing"])
            note_file(self._directory, FILE)  # a crash may have come before it was noted
            return standing
        except FileNotFoundError as error:
            if FILE in noted_files(self._directory):
                raise CorruptStoreError(f"{self._path} is missing, although it existed before", _NEXT_STEP) from error
            return Standing.NEW
        except OSError as error:
            raise refusal(self._path, error) from error
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptStoreError(f"{self._path} is damaged: {error!r}", _NEXT_STEP) from error

    def _save(self, standing: Standing) -> None:
        try:
            with open(self._path + ".new", "w", encoding="utf-8") as file:
                file.write(json.dumps({"standing": standing.value}) + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.rename(self._path + ".new", self._path)
            sync_directory(self._directory)
            note_file(self._directory, FILE)
        except OSError as error:
            raise refusal(self._path, error) from error


class MemoryStanding:
    """For a store without a directory: kept as long as the object is."""

    def __init__(self) -> None:
        self.standing = Standing.NEW

    async def load(self) -> Standing:
        return self.standing

    async def save(self, standing: Standing) -> None:
        self.standing = standing
