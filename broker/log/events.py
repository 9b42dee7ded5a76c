"""The events of a broker's logs."""

from __future__ import annotations

from uuid import UUID

from broker.core.events import Event
from broker.log.types import LogKey
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.disk import DiskError


class LogEvents:
    """The events of all logs.  Subscribe before `LogManager.open`.

    directory_failed: (directory id, error): the data directory is offline from now on.  Reported once per directory.
    log_moved: (key): a log is in another directory now, and is used there as before.
    log_failed: (key, error): a log that was in use is damaged; `LogManager.failures` contains it now.
    """

    def __init__(self) -> None:
        self.directory_failed: Event[[UUID, DiskError]] = Event()
        self.log_moved: Event[[LogKey]] = Event()
        self.log_failed: Event[[LogKey, CorruptStoreError]] = Event()
