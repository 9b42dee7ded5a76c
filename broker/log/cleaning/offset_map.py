"""The latest offset of each key, in limited memory.

A key is represented by 128 bits of its hash.  Two of 2^40 keys have the same hash with a probability of 2^-49, and the
hash is cryptographic, so that no client can choose keys that do.
"""

from __future__ import annotations

from hashlib import blake2b

from quorumlog.wire.record_batch import Buffer

ENTRY_SIZE = 256
"""Bytes of memory that one entry takes at most: hash, offset and place, while the table grows to double its size."""
HASH_SIZE = 16


class OffsetMap:
    """A map of at most `entries_max` keys; `put` refuses one more."""

    def __init__(self, memory_max: int) -> None:
        """memory_max: bytes; a map always has room for one key."""
        self.entries_max = max(1, memory_max // ENTRY_SIZE)
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def put(self, key: Buffer, offset: int) -> bool:
        """Note that `key` has a record at `offset`, above all earlier ones; return False if the map is full."""
        digest = blake2b(key, digest_size=HASH_SIZE).digest()
        if digest not in self._offsets and len(self._offsets) >= self.entries_max:
            return False
        self._offsets[digest] = offset
        return True

    def latest(self, key: Buffer) -> int:
        """Return the latest known offset of `key`; -1 if there is none."""
        return self._offsets.get(blake2b(key, digest_size=HASH_SIZE).digest(), -1)
