"""The history of the metadata: records by offset, images at an offset, and the chain of a partition's changes.

A node answers from its own log and snapshots, so its history begins where they begin, and every answer contains that
offset.  Reads do not block the node's other work: they proceed in pieces, and one large request at a time.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from metadata.codec import decode
from metadata.control.explain import Entry
from metadata.image import ClusterImage
from metadata.records import NO_OFFSET, Partition, PartitionChange, Record
from quorum.core.types import Batch
from quorumlog.runtime.turns import Turn

READ_BYTES = 1 << 20
CHAIN_MAX = 1_000
"""Maximum number of changes in a chain.  `kctl explain` names this number."""
_DECODED_MAX = 8
_IMAGES_MAX = 2


class Log(Protocol):
    """The part of `quorum.node.QuorumNode` that this module reads."""

    @property
    def log_start(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    async def read_committed(self, start: int, max_bytes: int) -> tuple[Batch, ...]: ...

    async def state_below(self, offset: int) -> tuple[int, Any] | None: ...


class NotRetainedError(Exception):
    """The requested offset is below the start of this node's history, or was deleted during the read."""


class Chain(NamedTuple):
    """complete: whether the chain reaches back to the partition's creation."""

    entries: list[Entry]
    batches: list[Batch]  # of each entry
    complete: bool


class History:
    """The history of one node's log.  The last images that were built are cached."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._busy = asyncio.Lock()
        self._images: OrderedDict[int, tuple[ClusterImage, int]] = OrderedDict()

    @property
    def begins(self) -> int:
        """The lowest offset whose record is still in the log."""
        return self._log.log_start

    async def image_at(self, offset: int) -> tuple[ClusterImage, int]:
        """Return the image of everything below `offset`, and the wall time (ms since 1970) of its last batch.

        The time is 0 if it is not known.  An offset inside a batch gives the image at the start of that batch, because
        a batch is applied as a whole.

        Raises:
            NotRetainedError: the necessary records and snapshots are no longer retained.
        """
        async with self._busy:
            known = self._images.get(offset)
            if known is None:
                known = self._images[offset] = await self._build(offset)
                while len(self._images) > _IMAGES_MAX:
                    self._images.popitem(last=False)
            if offset < self._log.log_start:  # only the log has the voters; it may begin after an image
                raise NotRetainedError
            return known

    async def _build(self, offset: int) -> tuple[ClusterImage, int]:
        found = await self._log.state_below(offset)
        if found is not None:
            image: ClusterImage = found[1]
        elif self._log.log_start == 0:
            image = ClusterImage()
        else:
            raise NotRetainedError
        timestamp_ms, turn = 0, Turn()
        while image.end_offset < offset:
            batches = await self._log.read_committed(image.end_offset, READ_BYTES)
            if not batches or batches[0].base_offset != image.end_offset:
                raise NotRetainedError
            for batch in batches:
                if batch.end_offset > offset:
                    return image, timestamp_ms
                if batch.control is not None:
                    image = image.advance(batch.end_offset, batch.epoch)
                else:
                    image = image.apply(batch.base_offset, decode(batch.payload, batch.base_offset), batch.epoch)
                timestamp_ms = batch.timestamp_ms
                await turn.passed()
        return image, timestamp_ms

    async def chain(self, image: ClusterImage, topic_id: UUID, index: int, max_changes: int) -> Chain:
        """Return the latest changes of a partition of `image`, ascending, each with its cause, as far as retained."""
        partition = image.partition(topic_id, index)
        assert partition is not None, f"partition {index} of {topic_id} is not in the image"
        reader, turn = _Reader(self._log), Turn()
        entries: list[Entry] = []
        batches: list[Batch] = []
        offset = partition.last_offset
        async with self._busy:
            while offset != NO_OFFSET and len(entries) < min(max_changes, CHAIN_MAX):
                found = await reader.record(offset)
                if found is None:
                    break
                batch, record = found
                assert isinstance(record, Partition | PartitionChange), f"offset {offset} holds {type(record).__name__}"
                assert record.index == index, f"offset {offset} concerns partition {record.index}, not {index}"
                cause = None
                if isinstance(record, PartitionChange) and record.cause_offset != NO_OFFSET:
                    caused = await reader.record(record.cause_offset)
                    cause = None if caused is None else caused[1]
                entries.append(Entry(offset, record, cause))
                batches.append(batch)
                offset = NO_OFFSET if isinstance(record, Partition) else record.previous_offset
                await turn.passed()
        return Chain(entries[::-1], batches[::-1], bool(entries) and isinstance(entries[-1].record, Partition))


class _Reader:
    """Reads records by offset, and caches the last decoded batches, which often contain neighbours."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._decoded: OrderedDict[int, tuple[Batch, list[Record]]] = OrderedDict()

    async def record(self, offset: int) -> tuple[Batch, Record] | None:
        """Return the record at `offset` and its batch; None if it is no longer retained or is a control record."""
        for batch, records in self._decoded.values():
            if batch.base_offset <= offset < batch.end_offset:
                return batch, records[offset - batch.base_offset]
        batches = await self._log.read_committed(offset, 1)
        if not batches or batches[0].control is not None:
            return None
        batch = batches[0]
        records = decode(batch.payload, batch.base_offset)
        self._decoded[batch.base_offset] = (batch, records)
        if len(self._decoded) > _DECODED_MAX:
            self._decoded.popitem(last=False)
        return batch, records[offset - batch.base_offset]
