"""The metadata as it was: records by offset, images at an offset, a partition's chain of changes.

What is asked of any node is answered from its own log and snapshots, so history begins where they begin, and every
answer says where that is.  It is read beside the node's work: a piece at a time, one large question at once.
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

READ_BYTES = 1 << 20
SLICE_S = 0.01
MAX_CHAIN = 1_000
_DECODED_MAX = 8
_IMAGES_MAX = 2


class Log(Protocol):
    """The part of `quorum.node.QuorumNode` that is read here."""

    @property
    def log_start(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    async def read_committed(self, start: int, max_bytes: int) -> tuple[Batch, ...]: ...

    async def state_below(self, offset: int) -> tuple[int, Any] | None: ...


class GoneError(Exception):
    """What was asked for is below the start of the history that this node has, or was dropped while it was read."""


class Chain(NamedTuple):
    """`complete`: it goes back to the partition's creation."""

    entries: list[Entry]
    batches: list[Batch]  # of each entry
    complete: bool


class History:
    def __init__(self, log: Log) -> None:
        self._log = log
        self._busy = asyncio.Lock()
        self._images: OrderedDict[int, tuple[ClusterImage, int]] = OrderedDict()

    @property
    def begins(self) -> int:
        """Lowest offset whose record is still in the log."""
        return self._log.log_start

    async def image_at(self, offset: int) -> tuple[ClusterImage, int]:
        """The image of everything below `offset`, and the wall clock (ms since 1970) of its last batch, 0 if not known.

        The image of a batch's inside is that of its beginning: nobody ever saw half a batch.

        Raises:
            GoneError: nothing that is kept leads there.
        """
        async with self._busy:
            known = self._images.get(offset)
            if known is None:
                known = self._images[offset] = await self._build(offset)
                while len(self._images) > _IMAGES_MAX:
                    self._images.popitem(last=False)
            return known

    async def _build(self, offset: int) -> tuple[ClusterImage, int]:
        found = await self._log.state_below(offset)
        if found is not None:
            image: ClusterImage = found[1]
        elif self._log.log_start == 0:
            image = ClusterImage()
        else:
            raise GoneError
        loop = asyncio.get_running_loop()
        timestamp_ms, slice_end = 0, loop.time() + SLICE_S
        while image.end_offset < offset:
            batches = await self._log.read_committed(image.end_offset, READ_BYTES)
            if not batches or batches[0].base_offset != image.end_offset:
                raise GoneError
            for batch in batches:
                if batch.end_offset > offset:
                    return image, timestamp_ms
                if batch.control is not None:
                    image = image.advance(batch.end_offset, batch.epoch)
                else:
                    image = image.apply(batch.base_offset, decode(batch.payload, batch.base_offset), batch.epoch)
                timestamp_ms = batch.timestamp_ms
                if loop.time() > slice_end:
                    await asyncio.sleep(0)
                    slice_end = loop.time() + SLICE_S
        return image, timestamp_ms

    async def chain(self, image: ClusterImage, topic_id: UUID, index: int, max_changes: int) -> Chain:
        """The latest changes of a partition of `image`, ascending, each with its cause, as far back as is kept."""
        partition = image.partition(topic_id, index)
        assert partition is not None, f"partition {index} of {topic_id} is not in the image"
        reader = _Reader(self._log)
        entries: list[Entry] = []
        batches: list[Batch] = []
        offset = partition.last_offset
        async with self._busy:
            while offset != NO_OFFSET and len(entries) < min(max_changes, MAX_CHAIN):
                found = await reader.record(offset)
                if found is None:
                    break
                batch, record = found
                assert isinstance(record, Partition | PartitionChange), f"offset {offset} holds {type(record).__name__}"
                assert record.index == index, f"offset {offset} is about partition {record.index}, not {index}"
                cause = None
                if isinstance(record, PartitionChange) and record.cause_offset != NO_OFFSET:
                    caused = await reader.record(record.cause_offset)
                    cause = None if caused is None else caused[1]
                entries.append(Entry(offset, record, cause))
                batches.append(batch)
                offset = NO_OFFSET if isinstance(record, Partition) else record.previous_offset
                await asyncio.sleep(0)
        return Chain(entries[::-1], batches[::-1], bool(entries) and isinstance(entries[-1].record, Partition))


class _Reader:
    """Records by offset; neighbours are often in the same batch, so the last few stay decoded."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._decoded: OrderedDict[int, tuple[Batch, list[Record]]] = OrderedDict()

    async def record(self, offset: int) -> tuple[Batch, Record] | None:
        """The record at `offset` and its batch; None when that is not kept or is a control record."""
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
