"""The data directories of replicas, for `kctl brokers moves` and for plans with `log_dirs`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from quorumlog.errors import ClusterError
from quorumlog.kctl.context import Context, wait_until
from quorumlog.kctl.data import broker_addresses
from quorumlog.kctl.reads import Reads
from quorumlog.kctl.reassign_plan import ANYWHERE, Move
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.words import Key, counted

if TYPE_CHECKING:
    from quorumlog.client.log_dirs import DataDirectory, LogDirClient

SHOWN_MAX = 5
_REMEMBERED = (KafkaCode.REPLICA_NOT_AVAILABLE, KafkaCode.UNKNOWN_TOPIC_OR_PARTITION)
"""Answers about a replica that the broker does not host yet.  The broker remembers the directory nevertheless.  The
second code means that the broker has not learned of the topic yet."""

Wanted = Mapping[int, Mapping[Key, str]]
"""The path of the directory in which each replica should be, by broker and partition."""


class Place(NamedTuple):
    """The data directory of a replica.

    path: None if the broker does not have the replica.  moving_to: the directory to which the replica moves; None if it
    does not move.  size, copied: the bytes of the replica, and of its copy in `moving_to`.
    """

    path: str | None = None
    size: int = 0
    moving_to: str | None = None
    copied: int = 0


class Difference(NamedTuple):
    """A replica that is not in its planned directory, or moves away from it.

    place: the current place.  wanted: the path of the planned directory.
    """

    broker: int
    place: Place
    wanted: str

    @property
    def state(self) -> str:
        """Return in_progress or different; see `state_of`."""
        return state_of(self.place, self.wanted)

    def __str__(self) -> str:
        path, moving_to = self.place.path, self.place.moving_to
        if moving_to is not None:
            instead = "" if moving_to == self.wanted else f", not to {self.wanted}"
            return f"broker {self.broker} moves it from {path} to {moving_to}{instead}"
        where = "does not have it" if path is None else f"has it in {path}"
        return f"broker {self.broker} {where}, not in {self.wanted}"

    def document(self) -> dict[str, Any]:
        """Return the JSON."""
        place = self.place
        return {
            "broker": self.broker,
            "directory": place.path,
            "moving_to": place.moving_to,
            "wanted": self.wanted,
            "state": self.state,
        }


@asynccontextmanager
async def open_log_dirs(context: Context) -> AsyncIterator[LogDirClient]:
    """Yield a client for the data directories of brokers, and close it afterwards.

    Any node may report the brokers, so no active controller is needed.

    Raises:
        ClusterError: no node answers, or no broker is registered.
    """
    from quorumlog.client.cluster import Cluster
    from quorumlog.client.log_dirs import LogDirClient

    async with context.client() as client:
        addresses = await broker_addresses(Reads(context, client))
    async with Cluster(addresses, client_id="kctl") as cluster:
        yield LogDirClient(cluster)


def places(directories: Iterable[DataDirectory]) -> dict[Key, Place]:
    """Return the places of a broker's replicas."""
    found: dict[Key, Place] = {}
    for directory in directories:
        for each in directory.replicas:
            key = (each.topic, each.partition)
            place = found.get(key, Place())
            if each.is_future:
                found[key] = place._replace(moving_to=directory.path, copied=each.size)
            else:
                found[key] = place._replace(path=directory.path, size=each.size)
    return found


async def moves_of(log_dirs: LogDirClient, broker_id: int, timeout_s: float) -> list[dict[str, Any]]:
    """Return the JSON of each replica that moves to another directory of this broker.

    Raises:
        ClusterError: the broker does not answer in time.
    """
    found = places(await log_dirs.describe(broker_id, timeout_s))
    return [
        {
            "broker": broker_id,
            "topic": topic,
            "partition": index,
            "from": place.path,
            "to": place.moving_to,
            "bytes_left": max(0, place.size - place.copied),
        }
        for (topic, index), place in sorted(found.items())
        if place.moving_to is not None
    ]


# Plans


def wanted_in(plan: Iterable[Move]) -> Wanted:
    """Return the directories that a plan names, without a trailing slash, because brokers use no trailing slashes."""
    wanted: dict[int, dict[Key, str]] = {}
    for move in plan:
        for broker, path in zip(move.replicas, move.directories, strict=False):
            if path != ANYWHERE:
                wanted.setdefault(broker, {})[move.topic, move.partition] = path.rstrip("/") or path
    return wanted


class PlannedDirectories:
    """The directories of a plan, compared with the directories of the brokers.

    Every method except `rows` raises ClusterError if a broker does not answer.  `look`, `differences` and `wait` also
    raise it if a planned directory does not exist or is offline.
    """

    def __init__(self, context: Context, log_dirs: LogDirClient, wanted: Wanted) -> None:
        self._context = context
        self._log_dirs = log_dirs
        self._wanted = wanted

    async def look(self) -> dict[int, dict[Key, Place]]:
        """Return the places of all replicas of the plan's brokers, after checking the planned directories."""
        brokers = sorted(self._wanted)
        answers = await asyncio.gather(*(self._log_dirs.describe(each, self._context.left_s) for each in brokers))
        for broker, directories in zip(brokers, answers, strict=True):
            self._check(broker, directories)
        return {broker: places(directories) for broker, directories in zip(brokers, answers, strict=True)}

    def _check(self, broker: int, directories: Sequence[DataDirectory]) -> None:
        known = {each.path: each for each in directories}
        for (topic, index), path in self._wanted[broker].items():
            found = known.get(path)
            if found is None:
                text = f"{topic}-{index}: broker {broker} has no data directory {path!a}"
                raise ClusterError(ApiError.LOG_DIR_NOT_FOUND, text, f"name one of {', '.join(sorted(known))}, or any")
            if found.is_failed:
                text = f"{topic}-{index}: the data directory {path!a} of broker {broker} is offline"
                raise ClusterError(ApiError.KAFKA_STORAGE_ERROR, text, f"kctl brokers describe {broker}")

    async def request(self, before: Mapping[int, Mapping[Key, Place]]) -> None:
        """Ask the brokers to move their replicas to the planned directories.

        A broker remembers the directory of a replica that it does not host yet.  before: the result of `look`.

        Raises:
            ClusterError: a broker refuses a directory, or does not answer.
        """
        for broker, paths in sorted(self._wanted.items()):
            codes = await self._log_dirs.move(broker, paths, self._context.left_s)
            for (topic, index), code in codes.items():
                is_new = before[broker].get((topic, index), Place()).path is None
                if code is KafkaCode.NONE or (code in _REMEMBERED and is_new):
                    continue
                text = f"{topic}-{index}: broker {broker} refuses the directory: {code.name}"
                raise ClusterError(code.name, text, "kctl brokers moves", retriable=True)

    def rows(self, now: Mapping[int, Mapping[Key, Place]]) -> list[dict[str, Any]]:
        """Return the JSON of each replica.

        changed: the replica is neither in its planned directory nor moving to it.
        """
        return [
            {
                "broker": broker,
                "topic": topic,
                "partition": index,
                "directory": path,
                "changed": state_of(now[broker].get((topic, index), Place()), path) == "different",
            }
            for broker, paths in sorted(self._wanted.items())
            for (topic, index), path in sorted(paths.items())
        ]

    async def differences(self) -> dict[Key, list[Difference]]:
        """Return the replicas that are not in their planned directories, by partition and in the order of brokers."""
        now = await self.look()
        found: dict[Key, list[Difference]] = {}
        for broker, paths in sorted(self._wanted.items()):
            for key, path in paths.items():
                one = Difference(broker, now[broker].get(key, Place()), path)
                if one.state != "complete":
                    found.setdefault(key, []).append(one)
        return found

    async def wait(self) -> None:
        """Wait until all replicas are in the planned directories, at most for the command's time.

        Raises:
            ClusterError: TIMED_OUT; VERIFICATION_FAILED: a move was cancelled or given up.
        """

        async def has_ended() -> bool:
            found = await self.differences()
            return "in_progress" not in map(worst_state, found.values())

        await wait_until(has_ended, self._context.left_s, "all replicas were in the planned directories")
        lost = sorted(key for key, found in (await self.differences()).items() if worst_state(found) == "different")
        if lost:
            names = ", ".join(f"{topic}-{index}" for topic, index in lost[:SHOWN_MAX])
            text = f"not in the planned directories: {names}; a move was cancelled or given up"
            raise ClusterError(ApiError.VERIFICATION_FAILED, text, "look for `replica not moved` in the broker's log")


def worst_state(found: Iterable[Difference]) -> str:
    """Return `different` if one of the replicas is neither in its planned directory nor moving to it."""
    return "different" if any(each.state == "different" for each in found) else "in_progress"


def state_of(place: Place, path: str) -> str:
    """Return complete (the replica is in `path`), in_progress (it moves to `path`) or different."""
    if place.moving_to is not None:
        return "in_progress" if place.moving_to == path else "different"
    return "complete" if place.path == path else "different"


def summary(rows: Sequence[dict[str, Any]], dry_run: bool) -> str:
    """Return one line on the replicas whose directory a request changes."""
    count = sum(row["changed"] for row in rows)
    if not count:
        return "all replicas are in the planned directories, or are moving to them"
    verb = "would move" if dry_run else "moves" if count == 1 else "move"
    return f"{counted(count, 'replica')} {verb} to the planned directory (kctl brokers moves)"
