"""What clients of a log have seen, and whether one log could have shown them all that.

Black box: only what was sent, acknowledged, read and told, with the times at which it was asked and answered, by any
client on one clock.  An operation whose answer never came may have happened or not, at any time after it was asked.
Looked for are the anomalies that were found in logs elsewhere: records that are lost, doubled, at two places, in
another order than they were sent in, or that nobody has sent; readers that skip some; and news that is older than what
somebody had been told before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

Place = tuple[int, int]
"""Partition and offset."""


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
    at: float


class Read(NamedTuple):
    partition: int
    offset: int
    value: bytes


class Latest(NamedTuple):
    """The end of a partition, as somebody was told."""

    partition: int
    offset: int
    asked_at: float
    answered_at: float


@dataclass
class History:
    sent: set[Sent] = field(default_factory=set)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    read: dict[str, list[Read]] = field(default_factory=dict)
    """By reader, in the order in which it read."""
    latest: list[Latest] = field(default_factory=list)
    final: list[Read] = field(default_factory=list)
    """Everything, read once nothing happens any more."""

    @property
    def reads(self) -> Iterator[Read]:
        yield from self.final
        for found in self.read.values():
            yield from found


def anomalies(history: History) -> list[str]:
    """What no single log can explain; empty if there is nothing."""
    return [*_places(history), *_lost(history), *_order(history), *_skipped(history), *_stale(history)]


def _places(history: History) -> Iterator[str]:
    known = {sent.value: sent for sent in history.sent}
    at: dict[Place, bytes] = {}
    of: dict[bytes, Place] = {}
    told = [Read(one.sent.partition, one.offset, one.sent.value) for one in history.acknowledged if one.offset >= 0]
    for read in (*history.reads, *told):
        place = read.partition, read.offset
        if read.value not in known or known[read.value].partition != read.partition:
            yield f"nobody sent {read.value!r} to partition {read.partition}"
        if at.setdefault(place, read.value) != read.value:
            yield f"two records at {place}: {at[place]!r} and {read.value!r}"
        if of.setdefault(read.value, place) != place:
            yield f"{read.value!r} is there twice: at {of[read.value]} and {place}"


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
    """Whoever asks after something was told to anybody hears of an end that is not below that."""
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
