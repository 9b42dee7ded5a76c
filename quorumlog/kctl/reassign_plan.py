"""Plans of reassignments: their JSON form, which Kafka's own tool uses as well, and their generation.

A generated plan moves few replicas, although not always the fewest possible.  First, each partition keeps its replicas
on the wanted brokers, except replicas that would give a broker more than its share or spread the partition worse over
the racks.  Each missing replica goes to the rack with the fewest replicas of the partition, and there to the least
loaded broker.  Then single replicas are moved until the load is even.  A spread over racks has priority over an even
load.  Finally the order of the replicas is changed so that leaders are spread evenly.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError
from quorumlog.words import counted, is_unicode

ID_MAX = 2**31 - 1
NAME_MAX = 249
PATH_MAX = 4096
ANYWHERE = "any"
"""Stands for a data directory in a plan: the broker chooses one, or leaves the replica in its current directory."""
REPLICAS_MAX = 32_767
PLAN_PARTITIONS_MAX = 100_000
PLAN_SIZE_MAX = 64 << 20
FORM = '{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}, …]}'
_MAKE = "`kctl reassign generate` generates one"
_NUMBER = f"(0 to {ID_MAX}, without quotes)"
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Move:
    """One partition of a plan; the first replica is the preferred leader.

    directories: for each replica, a data directory of its broker, or ANYWHERE; empty: ANYWHERE for all.
    """

    topic: str
    partition: int
    replicas: tuple[int, ...]
    directories: tuple[str, ...] = ()


# The JSON form


def parse(text: str, name: str = "the plan", *, may_be_empty: bool = False) -> list[Move]:
    """Parse a plan in the form of FORM, or the output of `kctl reassign generate -o json`.

    name: the plan's name in error messages.  may_be_empty: accept a plan without partitions.

    Raises:
        ClusterError: INVALID_PLAN, with the position and the problem.
    """
    try:
        return _parsed(_json(text), may_be_empty)
    except ValueError as error:
        raise ClusterError(
            ApiError.INVALID_PLAN, f"{name} is not a plan: {error}", f"expected: {FORM}; {_MAKE}"
        ) from None


def _json(text: str) -> Any:
    """Raises: ValueError."""
    if not text.strip():
        raise ValueError("it is empty")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON at line {error.lineno}, column {error.colno}") from None
    except (ValueError, RecursionError):
        raise ValueError("not readable as JSON: nested too deeply, or a number is too long") from None


def _parsed(document: Any, may_be_empty: bool) -> list[Move]:
    """Raises: ValueError."""
    if isinstance(document, dict) and "plan" in document:
        document = document["plan"]
    _require(isinstance(document, dict), "it is not an object with `partitions`")
    _known(document, ("version", "partitions"), "the plan")
    version = document.get("version", 1)
    _require(_is_int(version) and version == 1, f"version {_show(version)}; this program supports 1")
    rows = document.get("partitions")
    _require("partitions" in document, "it has no `partitions`")
    _require(isinstance(rows, list), "`partitions` is not a list")
    _require(bool(rows) or may_be_empty, "it names no partitions")
    _require(
        len(rows) <= PLAN_PARTITIONS_MAX,
        f"it names {counted(len(rows), 'partition')}; the limit is {PLAN_PARTITIONS_MAX}",
    )
    moves = [_move(row, number) for number, row in enumerate(rows)]
    twice = [key for key, count in Counter((move.topic, move.partition) for move in moves).items() if count > 1]
    _require(not twice, f"it names {'-'.join(map(str, twice[0])) if twice else ''} more than once")
    return moves


def _move(row: Any, number: int) -> Move:
    where = f"partitions[{number}]"
    _require(isinstance(row, dict), f"{where} is not an object")
    _known(row, ("topic", "partition", "replicas", "log_dirs"), where)
    missing = [key for key in ("topic", "partition", "replicas") if key not in row]
    _require(not missing, f"{where} has no `{missing[0] if missing else ''}`")
    topic, partition, replicas = row["topic"], row["partition"], row["replicas"]
    is_name = isinstance(topic, str) and 0 < len(topic) <= NAME_MAX and is_unicode(topic)
    _require(is_name, f"{where}.topic {_show(topic)} is not a topic name")
    _require(_is_id(partition), f"{where}.partition {_show(partition)} is not a partition number {_NUMBER}")
    is_list = isinstance(replicas, list) and bool(replicas)
    _require(is_list, f"{where}.replicas {_show(replicas)} is not a list of brokers, like [1, 2]")
    _require(len(replicas) <= REPLICAS_MAX, f"{where}.replicas names {len(replicas)} brokers")
    strange = [broker for broker in replicas if not _is_id(broker)]
    _require(not strange, f"{where}.replicas: {_show(strange[0]) if strange else ''} is not a broker id {_NUMBER}")
    twice = [broker for broker, count in Counter(replicas).items() if count > 1]
    _require(not twice, f"{where}.replicas: broker {twice[0] if twice else ''} is named twice")
    return Move(topic, partition, tuple(replicas), _directories(row.get("log_dirs", []), len(replicas), where))


def _directories(given: Any, count: int, where: str) -> tuple[str, ...]:
    """Return the data directories of a row; empty if it names none."""
    is_list = isinstance(given, list) and len(given) in (0, count)
    _require(is_list, f'{where}.log_dirs {_show(given)} is not a list with a directory, or "any", for each replica')
    strange = [each for each in given if not (isinstance(each, str) and 0 < len(each) <= PATH_MAX and is_unicode(each))]
    _require(not strange, f"{where}.log_dirs: {_show(strange[0]) if strange else ''} is not a path")
    return () if all(each == ANYWHERE for each in given) else tuple(given)


def document(moves: Iterable[Move]) -> dict[str, Any]:
    """Return the JSON form of a plan."""
    return {
        "version": 1,
        "partitions": [
            {"topic": move.topic, "partition": move.partition, "replicas": list(move.replicas)}
            | ({"log_dirs": list(move.directories)} if move.directories else {})
            for move in moves
        ],
    }


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= ID_MAX


def _known(found: dict[str, Any], keys: Sequence[str], where: str) -> None:
    unknown = [key for key in found if key not in keys]
    _require(not unknown, f"{where} has an unknown key, {_show(unknown[0]) if unknown else ''}")


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


def _show(value: object) -> str:
    try:
        text = json.dumps(value)
    except RecursionError:
        return "…"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


# Generating a plan


def propose(
    current: Sequence[Move], brokers: Mapping[int, str | None], replication_factor: int | None = None
) -> list[Move]:
    """Return a plan that spreads the partitions evenly over these brokers, with few moves.

    brokers: the rack of each broker, by id.  replication_factor: None keeps each partition's number of replicas.

    Raises:
        ClusterError: INVALID_REPLICATION_FACTOR: more replicas than brokers.
    """
    factors = [replication_factor or len(move.replicas) for move in current]
    most = max(factors, default=0)
    if most > len(brokers):
        raise ClusterError(
            ApiError.INVALID_REPLICATION_FACTOR,
            f"{counted(most, 'replica')} {'is' if most == 1 else 'are'} wanted on {counted(len(brokers), 'broker')}",
            "name more brokers, or ask for fewer replicas (--replication-factor)",
        )
    spread = _Spread(current, brokers, factors)
    spread.keep()
    spread.fill()
    spread.even_out()
    spread.order()
    return [Move(move.topic, move.partition, tuple(row)) for move, row in zip(current, spread.rows, strict=True)]


class _Spread:
    """Computes a plan: for each partition, a row with the brokers of its replicas."""

    def __init__(self, current: Sequence[Move], brokers: Mapping[int, str | None], factors: Sequence[int]) -> None:
        self.current = current
        self.racks = brokers
        self.factors = factors
        self.rows: list[list[int]] = [[] for _ in current]
        self.load = dict.fromkeys(sorted(brokers), 0)
        self.leads = dict.fromkeys(sorted(brokers), 0)

    def keep(self) -> None:
        share = -(-sum(self.factors) // len(self.load)) if self.load else 0
        for row, move, factor in zip(self.rows, self.current, self.factors, strict=True):
            for broker in move.replicas:
                fits = broker in self.load and len(row) < factor and self.load[broker] < share
                if fits and self._crowding(row, broker) == self._least_crowding(row):
                    self._add(row, broker)

    def fill(self) -> None:
        for row, move, factor in zip(self.rows, self.current, self.factors, strict=True):
            while len(row) < factor:
                free = [broker for broker in self.load if broker not in row]
                self._add(row, min(free, key=lambda each: self._wish(row, move, each)))

    def _wish(self, row: Sequence[int], move: Move, broker: int) -> tuple[int, int, bool, int]:
        return self._crowding(row, broker), self.load[broker], broker not in move.replicas, broker

    def even_out(self) -> None:
        """Move replicas to brokers with at least two fewer, unless a partition's spread over racks suffers."""
        progress = True
        while progress:
            progress = False
            for row in self.rows:
                for place, high in enumerate(row):
                    others = row[:place] + row[place + 1 :]
                    free = [
                        each
                        for each in self.load
                        if each not in row
                        and self.load[each] <= self.load[high] - 2
                        and self._crowding(others, each) <= self._crowding(others, high)
                    ]
                    if free:
                        low = min(free, key=lambda each: (self.load[each], each))
                        row[place] = low
                        self.load[high] -= 1
                        self.load[low] += 1
                        progress = True

    def order(self) -> None:
        """Order the replicas of each partition: current replicas before new ones.  Then spread leaders evenly."""
        for row, move in zip(self.rows, self.current, strict=True):
            kept = [broker for broker in move.replicas if broker in row]
            row[:] = kept + [broker for broker in row if broker not in kept]
            if row:
                self.leads[row[0]] += 1
        progress = True
        while progress:
            progress = False
            for row in self.rows:
                place = min(range(len(row)), key=lambda at: (self.leads[row[at]], at)) if row else 0
                if row and self.leads[row[place]] <= self.leads[row[0]] - 2:
                    self.leads[row[0]] -= 1
                    self.leads[row[place]] += 1
                    row.insert(0, row.pop(place))
                    progress = True

    def _crowding(self, row: Sequence[int], broker: int) -> int:
        """Return the number of brokers in the row that are in the rack of `broker`.

        Brokers without a rack count as one rack.
        """
        rack = self.racks[broker]
        return sum(self.racks[each] == rack for each in row)

    def _least_crowding(self, row: Sequence[int]) -> int:
        free = [each for each in self.load if each not in row]
        return min((self._crowding(row, each) for each in free), default=0)

    def _add(self, row: list[int], broker: int) -> None:
        row.append(broker)
        self.load[broker] += 1


def moved(current: Sequence[Move], planned: Sequence[Move]) -> tuple[int, int]:
    """Return the number of replicas to copy, and the number of partitions whose replicas or their order change."""
    pairs = list(zip(current, planned, strict=True))
    copied = sum(len(set(new.replicas) - set(old.replicas)) for old, new in pairs)
    return copied, sum(old.replicas != new.replicas for old, new in pairs)
