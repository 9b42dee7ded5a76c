"""The errors that cross packages.  Expected refusals are values, not exceptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class QuorumlogError(Exception):
    """Base class: a message of one line with the problem and its cause; `next_step` is the remedy."""

    exit_status = 1

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep all fields in a pickle.

        A process pool sends the error of a worker as a pickle.  By default, the pickle of an exception calls the class
        with the message alone, which fails for classes with other arguments, and breaks the whole pool.
        """
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[QuorumlogError], args: tuple[Any, ...], fields: Mapping[str, Any]) -> QuorumlogError:
    error = kind.__new__(kind, *args)  # sets `args`
    error.__dict__.update(fields)
    return error


class ConfigError(QuorumlogError):
    """Configuration, port or data directory is invalid; a restart does not help.  `problems` lists every problem."""

    exit_status = 2

    def __init__(self, *problems: str, next_step: str = "") -> None:
        super().__init__("; ".join(problems), next_step)
        self.problems = problems


class StoreRefusedError(ConfigError):
    """The data directory belongs to another node or cluster, is in use, has another format, or is not writable."""


READ_ONLY_STEP = "check the disk (Linux makes the file system of a failing disk read-only), or make it writable"
"""The remedy for a directory in a read-only file system."""


class FatalError(QuorumlogError):
    """The environment failed (disk full, I/O error): the process must end."""

    exit_status = 7


class CorruptStoreError(FatalError):
    """Damage on disk; the message names the file and the cause, and the position if it is known.

    Nothing is repaired silently.
    """


class RemoteProtocolError(QuorumlogError):
    """A peer violated the protocol: log it and close that connection."""


class ClusterError(QuorumlogError):
    """An error as clients see it.  `code` is the name of an `ApiError` or of a `KafkaCode`."""

    def __init__(
        self, code: str, message: str, next_step: str = "", *, retriable: bool = False, refresh_metadata: bool = False
    ) -> None:
        super().__init__(message, next_step)
        self.code = code
        self.retriable = retriable
        self.refresh_metadata = refresh_metadata

    def again(self) -> ClusterError:
        """Return a copy to raise, if this object is kept for later callers.

        Each raise of one object would add to its traceback, which keeps the frames of all these callers in memory.
        """
        copy = ClusterError(
            self.code, self.message, self.next_step, retriable=self.retriable, refresh_metadata=self.refresh_metadata
        )
        if self.__cause__ is not None:
            copy.__cause__ = self.__cause__
        return copy
