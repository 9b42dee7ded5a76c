"""The errors that cross rooms.  Refusals that are foreseen are values, not exceptions (see the style of each room)."""

from __future__ import annotations


class QuorumlogError(Exception):
    """Base of all: one line of text, what and why; `next_step` says what to do."""

    exit_status = 1

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step


class ConfigError(QuorumlogError):
    """Configuration, port or data directory is wrong; starting again will not help.  `problems` holds all at once."""

    exit_status = 2

    def __init__(self, *problems: str, next_step: str = "") -> None:
        super().__init__("; ".join(problems), next_step)
        self.problems = problems


class StoreRefusedError(ConfigError):
    """A data directory of another node or cluster, in use, of a newer format, or not writable."""


class FatalError(QuorumlogError):
    """The environment failed (disk full, I/O error): the process must end."""

    exit_status = 7


class CorruptStoreError(FatalError):
    """Damage found on disk: names file, place and cause.  Nothing is repaired or re-created silently."""


class RemoteProtocolError(QuorumlogError):
    """A peer sent something that no correct peer sends: count it, close that connection."""


class ClusterError(QuorumlogError):
    """What a client sees.  `code` is the word of the contract."""

    def __init__(
        self, code: str, message: str, next_step: str = "", *, retriable: bool = False, refresh_metadata: bool = False
    ) -> None:
        super().__init__(message, next_step)
        self.code = code
        self.retriable = retriable
        self.refresh_metadata = refresh_metadata
