"""The latest offset of each key, in limited memory, and the records of a batch that survive a cleaning.

Compiled code opens the records (`native/key_offsets.h`).  A key is represented by 128 bits of SipHash with a secret of
this map.  The probability that any two of 2^40 keys have the same hash is 2^-49.  Clients cannot choose such keys,
because they do not know the secret.
"""

from __future__ import annotations

import secrets
from enum import IntEnum
from typing import Final, NamedTuple

from broker.log.cleaning.records import bad_batch
from quorumlog.wire._record_scan import KeyOffsets
from quorumlog.wire.record_batch import BatchHeader, Buffer

ENTRY_SIZE: Final = 96
"""Bytes of memory that one entry takes at most: hash and offset, while the table grows to double its size."""
_SECRET_SIZE: Final = 16


class Problem(IntEnum):
    """The results of opening records: the same numbers as `enum keys_problem`."""

    NONE = 0
    RECORD_LENGTH = 1
    CUT_OFF = 2
    OFFSET_DELTA = 3
    BATCH_REST = 4
    FULL = 5


PROBLEM_TEXTS: Final = {
    Problem.RECORD_LENGTH: "record {} with a length of zero, or past the end of the batch",
    Problem.CUT_OFF: "record {} that is cut off",
    Problem.OFFSET_DELTA: "record {} whose offset is not between those of its neighbours",
    Problem.BATCH_REST: "bytes after its last record",
}


class Survivors(NamedTuple):
    """The records of a batch that survive.

    records: their bytes.
    newest_delta: the greatest of their timestamp deltas; undefined if there are none.
    has_tombstone: whether a tombstone below the clean end is among them.
    """

    number: int
    records: Buffer
    newest_delta: int
    has_tombstone: bool


class OffsetMap:
    """A map of at most `entries_max` keys."""

    def __init__(self, memory_max: int) -> None:
        """memory_max: bytes; a map always has room for one key."""
        self.entries_max = max(1, memory_max // ENTRY_SIZE)
        self._keys = KeyOffsets(self.entries_max, secrets.token_bytes(_SECRET_SIZE))

    def __len__(self) -> int:
        return len(self._keys)

    def note(self, body: Buffer, header: BatchHeader, first_offset: int) -> int | None:
        """Note the keys of a batch, from the record at `first_offset` on.  Batches must be noted in log order.

        Return the offset of the first record whose key has no room in the map, or None.

        Raises:
            UncleanableError: the records are malformed.
        """
        problem, record = self._keys.note(
            body, header.record_count, header.base_offset, header.last_offset_delta, first_offset
        )
        if problem == Problem.FULL:
            return header.base_offset + record
        _check(header, problem, record)
        return None

    def survivors(self, body: Buffer, header: BatchHeader, clean_end: int, *, removes_tombstones: bool) -> Survivors:
        """Find the records of a batch that survive.

        A record at or above `clean_end` survives.  A lower one survives if it has a key, the map has no later offset
        of the key, and it is not a tombstone that is removed.

        Raises:
            UncleanableError: the records are malformed.
        """
        problem, record, count, newest_delta, has_tombstone, records = self._keys.select(
            body, header.record_count, header.base_offset, header.last_offset_delta, clean_end, removes_tombstones
        )
        _check(header, problem, record)
        return Survivors(count, body if records is None else records, newest_delta, has_tombstone)


def _check(header: BatchHeader, problem: int, record: int) -> None:
    if problem:
        raise bad_batch(header, f"has {PROBLEM_TEXTS[Problem(problem)].format(record)}")
