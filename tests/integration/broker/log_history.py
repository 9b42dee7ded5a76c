"""The observations of clients of a log, and a check whether a single log explains all of them.

The check is a black box. It uses only the requests and answers of all clients, with their times on one clock.  An
operation without an answer may have taken effect at any time after its request, or never.  It finds the anomalies that
are known from other logs: records that are lost, duplicated, at two offsets, in another order than they were sent, or
that no client has sent; readers that skip records; and answers that are older than an earlier answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

Place = tuple[int, int]
"""Partition and offset."""

UNKNOWN = -1
"""The offset of a record that is acknowledged without one."""


class Sent(NamedTuple):
    """number: the producer sends them in this order."""

    producer: str
    partition: int
    number: int

    @property
    def value(self) -> bytes:
        return f"{self.producer}/{self.partition}/{self.number}".encode()


class Acknowledged(NamedTuple):
    sent: Sent
    offset: int
    """Or UNKNOWN."""
    at: float


class Read(NamedTuple):
    partition: int
    offset: int
    value: bytes


class Latest(NamedTuple):
    """The end of a partition, as reported to a client."""

    partition: int
    offset: int
    asked_at: float
    answered_at: float


@dataclass
class History:
    sent: set[Sent] = field(default_factory=set)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    read: dict[str, list[Read]] = field(default_factory=dict)
    """By reader, in the order of its reads."""
    latest: list[Latest] = field(default_factory=list)
    final: list[Read] = field(default_factory=list)
    """All records, read after all operations have ended."""

    @property
    def reads(self) -> Iterator[Read]:
        yield from self.final
        for found in self.read.values():
            yield from found


def anomalies(history: History) -> list[str]:
    """Return the observations that no single log can explain."""
    return [*_places(history), *_lost(history), *_order(history), *_skipped(history), *_stale(history)]


def _places(history: History) -> Iterator[str]:
    known = {sent.value: sent for sent in history.sent}
    at: dict[Place, bytes] = {}
    of: dict[bytes, Place] = {}
    told = [
        Read(one.sent.partition, one.offset, one.sent.value) for one in history.acknowledged if one.offset != UNKNOWN
    ]
    for read in (*history.reads, *told):
        place = read.partition, read.offset
        if read.value not in known or known[read.value].partition != read.partition:
            yield f"nobody sent {read.value!r} to partition {read.partition}"
        if at.setdefault(place, read.value) != read.value:
            yield f"two records at {place}: {at[place]!r} and {read.value!r}"
        if of.setdefault(read.value, place) != place:
            yield f"{read.value!r} exists twice: at {of[read.value]} and {place}"


def _lost(history: History) -> Iterator[str]:
    there = {read.value for read in history.final}
    for one in history.acknowledged:
        if one.sent.value not in there:
            yield f"lost: {one.sent.value!r}, acknowledged at offset {one.offset}"
    for reader, reads in history.read.items():
        for read in reads:
            if read.value not in there:
                yield f"vanished: {read.value!r}, which {reader} had read at {read.partition, read.offset}"


def _order(history: History) -> Iterator[str]:
    known = {sent.value: sent for sent in history.sent}
    last: dict[tuple[str, int], Sent] = {}
    for read in sorted(history.final):
        sent = known.get(read.value)
        if sent is None:
            continue
        before = last.get((sent.producer, sent.partition))
        if before is not None and before.number > sent.number:
            yield f"{before.value!r} comes before {sent.value!r}, which was sent first"
        last[sent.producer, sent.partition] = sent


def _skipped(history: History) -> Iterator[str]:
    for reader, reads in history.read.items():
        expected: dict[int, int] = defaultdict(int)
        for read in reads:
            if read.offset != expected[read.partition]:
                yield f"{reader} reads offset {read.offset} of {read.partition} where {expected[read.partition]} is due"
            expected[read.partition] = read.offset + 1


def _stale(history: History) -> Iterator[str]:
    """A request that begins after an end was reported to any client is not answered with a lower end."""
    partitions = {one.partition for one in history.latest}
    for partition in sorted(partitions):
        facts = [(one.at, one.offset + 1) for one in history.acknowledged if one.sent.partition == partition]
        facts += [(one.answered_at, one.offset) for one in history.latest if one.partition == partition]
        facts.sort()
        floor, done = 0, 0
        for one in sorted((each for each in history.latest if each.partition == partition), key=_asked_at):
            while done < len(facts) and facts[done][0] < one.asked_at:
                floor = max(floor, facts[done][1])
                done += 1
            if one.offset < floor:
                yield f"stale: the end of {partition} is said to be {one.offset}, after somebody knew of {floor}"


def _asked_at(latest: Latest) -> float:
    return latest.asked_at


def shown(found: Iterable[str]) -> str:
    lines = list(found)
    return "\n".join([f"{len(lines)} anomalies", *lines[:20]])
