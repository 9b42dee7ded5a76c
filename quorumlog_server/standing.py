"""Keeps in the quorum directory whether this disk was a voter, for nodes that join and leave automatically.

The log does not hold this fact for long: its beginning is deleted, and with it the record that removed a voter.
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
_NEXT_STEP = 'write {"standing": "voter"} into it: the node then becomes a voter only by kctl add-voter'


class Standing(Enum):
    """NEW: never a voter.  VOTER: a voter, or removed by an operator.  LEAVING: the node has asked to be removed."""

    NEW = "new"
    VOTER = "voter"
    LEAVING = "leaving"


class StandingStore(Protocol):
    """Stores the standing, which outlives the process, and is lost with the quorum's log."""

    async def load(self) -> Standing:
        """Return the stored standing, or NEW if none was ever stored."""
        ...

    async def save(self, standing: Standing) -> None:
        """Store the standing, durably on return."""
        ...


class FileStanding:
    """Stores the standing in a file of the quorum directory.

    The mark beside the directory records that the file exists, so a missing file is noticed.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._path = os.path.join(directory, FILE)

    async def load(self) -> Standing:
        """Return the stored standing, or NEW if none was ever stored.

        Raises:
            CorruptStoreError: the file is damaged or missing.
            FatalError: the disk fails.
        """
        return await asyncio.get_running_loop().run_in_executor(None, self._load)

    async def save(self, standing: Standing) -> None:
        """Store the standing, durably on return.

        Raises:
            FatalError: the disk fails.
        """
        await asyncio.get_running_loop().run_in_executor(None, self._save, standing)

    def _load(self) -> Standing:
        try:
            with open(self._path, "rb") as file:
                standing = Standing(json.loads(file.read())["standing"])
            note_file(self._directory, FILE)  # a process may have crashed between writing the file and noting it
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
    """Stores the standing in memory, for a quorum store without a directory."""

    def __init__(self) -> None:
        self.standing = Standing.NEW

    async def load(self) -> Standing:
        return self.standing

    async def save(self, standing: Standing) -> None:
        self.standing = standing
