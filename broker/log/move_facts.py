"""The facts of moves between data directories, and the handling of interrupted moves at a start.

A replica moves from its directory, the *source*, to another one, the *target*.  The *future* is its copy there, until
step 5 makes it the log.  A move has these steps; a crash between any two of them loses nothing:

1. The source gets the fact `moving/<folder>`, with the target's id.  A start begins the copy again.
2. The broker copies the log to the folder `futures/<folder>` of the target, and makes the copy durable.  A start
   deletes the copy.
3. The target gets the fact `future/<folder>`, with the facts that the log will have there.  A start deletes both.
4. The source's fact `moving/<folder>` records that the move is decided.  The same transaction deletes the source's
   facts about the log, and makes its folder a stray, whose fact names the target.  From here on the future counts: a
   start does steps 5 and 6.
5. The target's folder is renamed to `logs/<folder>`; then the target gets the facts of the log instead of
   `future/<folder>`.
6. The source's folder is moved to the strays, and its fact `moving/<folder>` is deleted.

Between the end of step 2 and the end of step 5, a record is acknowledged only if it is durable in both directories (see
`move`).  If the source is offline at a start, the future stays as it is, because only the source knows whether the
move was decided.  A folder that was already renamed also proves the decision.

The metadata may name the source until the broker has reported the target.  Until then, the stray in the source is not
deleted.  It shows where the log is, if the target is offline or missing at a start (`LogManager.moved_away`).  Also
until then, the facts of the log in the target name the source (`LogState.moved_from`).  If the source has failed, the
report must state that the replica left it with all records.

If the target fails after step 4, the move is undone: one transaction gives the source its facts about the log again,
and the fact `undone/<move>`.  The target may have renamed the folder by then, and may even have the facts of the log.
The metadata may name the target because of an earlier move.  But later records are only in the source.  So the next
start at which both directories work sets the copy in the target aside, and then deletes the fact.  The fact
`copied/<folder>` in the target names the move that made the copy.  A start deletes that fact, because it uses the copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar
from uuid import UUID

import msgspec

from broker.log.state import state_fact, watermark_fact
from broker.log.types import LOGS, LogKey, parse_folder_name
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.disk import Disk
from quorumlog.runtime.logging import get_logger

FUTURES = "futures"
"""The folder of a data directory that holds the copies of logs that move there."""
MOVING = "moving/"
FUTURE = "future/"
COPIED = "copied/"
UNDONE = "undone/"

logger = get_logger("log")

_Fact = TypeVar("_Fact", "MoveFact", "FutureFact", "UndoneMove")


class MoveFact(msgspec.Struct, frozen=True):
    """The fact of a move in the source."""

    target: UUID
    is_decided: bool = False


class FutureFact(msgspec.Struct, frozen=True):
    """The fact of a complete copy in the target.  facts: the facts that the log will have in the target."""

    source: UUID
    facts: dict[str, bytes]


class UndoneMove(msgspec.Struct, frozen=True):
    """The fact, in the source, that a decision was undone.

    move: identifies the move.  undone_ms: wall time of the decision.
    """

    move: str
    folder: str
    target: UUID
    undone_ms: int


class FoundMove(NamedTuple):
    """A move that a start finds in its source."""

    key: LogKey
    folder: str
    fact: MoveFact


def moving_fact(folder: str) -> str:
    """Return the key of the fact about a move, in its source.  folder: only its name."""
    return MOVING + folder


def future_fact(folder: str) -> str:
    """Return the key of the fact about a complete copy, in its target.  folder: only its name."""
    return FUTURE + folder


def copied_fact(folder: str) -> str:
    """Return the key of the fact that names the move which made a copy, in its target."""
    return COPIED + folder


def undone_fact(move: str) -> str:
    """Return the key of the fact that a move was undone, in its source."""
    return UNDONE + move


def future_path(folder: str) -> str:
    return f"{FUTURES}/{folder}"


def encode_fact(fact: MoveFact | FutureFact | UndoneMove) -> bytes:
    return msgspec.json.encode(fact)


def found_moves(disk: Disk) -> Iterator[FoundMove]:
    """Yield the moves whose source is this directory.

    Raises: CorruptStoreError: a fact is damaged.
    """
    for name, value in disk.facts.load(MOVING).items():
        folder = name.removeprefix(MOVING)
        if (identity := parse_folder_name(folder)) is not None:
            yield FoundMove(identity[0], folder, _decode(name, value, MoveFact))


async def settle_futures(target: Disk, source_of: Callable[[UUID], Disk | None]) -> set[str]:
    """Finish the moves to this directory that were decided, and delete the other futures; return the finished folders.

    source_of: returns the directory with this id; None if it is offline.  Raises LookupError if this broker has no such
        directory.

    Raises:
        CorruptStoreError: a fact is damaged.
        DiskError: this directory failed.
    """
    complete = {
        name.removeprefix(FUTURE): _decode(name, value, FutureFact) for name, value in target.facts.load(FUTURE).items()
    }
    finished = set()
    for folder in sorted({*target.list(FUTURES), *complete}):
        fact = complete.get(folder)
        is_decided = False if fact is None else _is_decided(target, folder, fact, source_of)
        if is_decided is None:
            logger.warning("a replica may have moved, but its former directory is offline", folder=folder, kept=FUTURES)
        elif fact is not None and is_decided:
            await finish_future(target, folder, fact)
            finished.add(folder)
            logger.info("move of a replica finished", directory_id=target.directory_id, folder=folder)
        else:
            await discard_future(target, folder)
    return finished


def undone_moves(source: Disk) -> list[UndoneMove]:
    """Return the moves from this directory that were undone.

    Raises: CorruptStoreError: a fact is damaged.
    """
    return [_decode(name, value, UndoneMove) for name, value in source.facts.load(UNDONE).items()]


def is_copy_of(target: Disk, undone: UndoneMove) -> bool:
    """Return whether the target has the copy that this move made, and no start has used the copy since.

    Raises: CorruptStoreError: a fact is damaged.
    """
    folder, future = undone.folder, future_fact(undone.folder)
    if not target.exists(f"{LOGS}/{folder}"):
        return False
    facts = target.facts.load(copied_fact(folder))
    if not target.exists(future_path(folder)) and (value := target.facts.load(future).get(future)) is not None:
        facts = _decode(future, value, FutureFact).facts  # the folder was renamed, but has no facts yet
    return facts.get(copied_fact(folder)) == undone.move.encode()


def _is_decided(target: Disk, folder: str, fact: FutureFact, source_of: Callable[[UUID], Disk | None]) -> bool | None:
    """Return whether the move was decided; None if only the source knows, and it is offline."""
    has_log = target.exists(f"{LOGS}/{folder}")
    if has_log and not target.exists(future_path(folder)):
        return True
    if has_log or state_fact(folder) in target.facts.load(state_fact(folder)):
        # A move begins only if the target has no such log.  So this log was created after the decision, while the
        # source was offline: the replica had been removed from the broker, and was assigned to it again.
        return False
    try:
        source = source_of(fact.source)
    except LookupError:
        return False  # the broker has registered without that directory, so the replica starts over
    if source is None:
        return None
    value = source.facts.load(moving_fact(folder)).get(moving_fact(folder))
    if value is None:
        return False
    move = _decode(moving_fact(folder), value, MoveFact)
    return move.is_decided and move.target == target.directory_id


async def finish_future(target: Disk, folder: str, fact: FutureFact) -> None:
    """Make the future the log of the target; durable on return.

    Raises: DiskError.
    """
    if target.exists(future_path(folder)):
        target.rename(future_path(folder), f"{LOGS}/{folder}")
    await target.flush((), (f"{LOGS}/{folder}", LOGS, FUTURES))
    await target.facts.commit({**fact.facts, future_fact(folder): None})


async def discard_future(target: Disk, folder: str) -> None:
    """Delete a future without open files, and its fact.

    Raises: DiskError.
    """
    # Delete the fact first.  Without the fact, a folder that was deleted in part is not treated as a complete copy.
    await target.facts.commit({future_fact(folder): None})
    if target.exists(future_path(folder)):
        await asyncio.get_running_loop().run_in_executor(None, target.remove_tree, future_path(folder))


def facts_after(key: LogKey, folder: str) -> dict[str, bytes | None]:
    """Return the facts to change in the source once the move is finished."""
    # The watermark may have been saved once more after the decision.
    return {moving_fact(folder): None, watermark_fact(key): None}


def _decode(key: str, value: bytes, kind: type[_Fact]) -> _Fact:
    """Return the fact.

    Raises: CorruptStoreError: it is damaged.
    """
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.DecodeError as error:
        raise CorruptStoreError(f"fact {key} is damaged: {error}") from error
