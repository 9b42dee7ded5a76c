"""Keys and values of transaction scopes in `__transaction_state`.

Their keys have a version of their own, which tools that read Kafka's formats skip.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from broker.core.coordinator.fields import BadRecord, Reader, int8, int16, int32, int64, string

NO_SEQUENCE: Final = -1
_KEY_VERSION: Final = 10_000
_VALUE_VERSION: Final = 0


class ScopeState(Enum):
    """The state of a scope: its name and its number in records.

    OPEN: producers may begin, and the scope may end.
    ENDING: the end is decided, and some of its producers are not complete yet.
    CLOSING: like ENDING, but once all producers are complete, the scope is deleted.
    """

    OPEN = ("Open", 0)
    ENDING = ("Ending", 1)
    CLOSING = ("Closing", 2)

    @property
    def label(self) -> str:
        return self.value[0]

    @property
    def number(self) -> int:
        return self.value[1]


_BY_NUMBER: Final = {state.number: state for state in ScopeState}


class ScopeValue(msgspec.Struct, frozen=True):
    """The stored state of a scope.

    owner: the program that may use it.  run: the current run.  epoch: the epoch of that run, which rises with each run.
    sequence: the sequence of the last end that was decided; NO_SEQUENCE if there was none.
    winners: the attempts to commit; all other producers that existed at the decision are aborted.  Empty while the
        scope is open.
    updated_ms: ms since the epoch.
    """

    owner: str
    run: str
    epoch: int
    sequence: int
    state: ScopeState
    winners: tuple[str, ...]
    updated_ms: int


def read_scope_key(data: bytes) -> str | None:
    """Return the name of a scope, or None for a key of another type.  Raises: BadRecord."""
    reader = Reader(data)
    if reader.int16() != _KEY_VERSION:
        return None
    name = reader.string()
    reader.end()
    return name


def write_scope_key(name: str) -> bytes:
    """Return the bytes of a key.  Raises: BadRecord: the name is too long."""
    return int16(_KEY_VERSION) + string(name)


def read_scope(data: bytes) -> ScopeValue:
    """Return the state of a scope.  Raises: BadRecord."""
    reader = Reader(data)
    version = reader.int16()
    if version != _VALUE_VERSION:
        raise BadRecord(f"version {version} of a scope is unknown")
    owner, run, epoch, sequence = reader.string(), reader.string(), reader.int64(), reader.int64()
    number = reader.int8()
    state = _BY_NUMBER.get(number)
    if state is None:
        raise BadRecord(f"scope state {number} is unknown")
    winners = tuple([reader.string() for _ in range(reader.count())])
    updated_ms = reader.int64()
    reader.end()
    return ScopeValue(owner, run, epoch, sequence, state, winners, updated_ms)


def write_scope(value: ScopeValue) -> bytes:
    """Return the bytes of the state of a scope.  Raises: BadRecord: a name is too long."""
    parts = [int16(_VALUE_VERSION), string(value.owner), string(value.run), int64(value.epoch), int64(value.sequence)]
    parts += [int8(value.state.number), int32(len(value.winners)), *map(string, value.winners)]
    return b"".join([*parts, int64(value.updated_ms)])
