"""The committed image of this process, and its subscribers.

Every process has one replay: `QuorumNode` passes each committed batch to it once, in order.  The replay decodes the
batch (an unknown record ends the process), applies it, and calls the subscribers.  The active controller has already
decided and applied the batch itself; its result is reused, so that a commit costs almost nothing there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from metadata.codec import decode
from metadata.image import ClusterImage
from metadata.records import Record
from metadata.snapshot import ImageLoader, chunks
from quorum.core.types import Batch, LeaderChange
from quorum.waiters import OffsetWaiters

Subscriber = Callable[[ClusterImage, ClusterImage, Sequence[Record] | None], None]
"""callback(old, new, records).  `records` is empty for a control batch, and None if a snapshot replaced the batches
between `old` and `new`, so that anything may have changed."""


class Prepared(msgspec.Struct, frozen=True):
    """A batch that this process appended itself.  after: the image that includes it."""

    base_offset: int
    epoch: int
    payload: bytes
    records: tuple[Record, ...]
    after: ClusterImage


class Controller(Protocol):
    """The replay's interface to the controller of this process."""

    def prepared(self, batch: Batch) -> Prepared | None:
        """Return and drop the result that was prepared for a committed batch; None if no result was prepared."""
        ...

    def leader_change_applied(self, epoch: int) -> None: ...

    def leadership(self, epoch: int, leader_id: int | None, is_leader: bool) -> None: ...


class MetadataReplay:
    """A `quorum.applier.StateMachine`.  image: the committed and applied metadata.

    timestamp_ms: the wall time of the last applied batch, in ms since 1970; 0 if no batch was applied yet.
    """

    def __init__(self) -> None:
        self.image = ClusterImage()
        self.timestamp_ms = 0
        self._controller: Controller | None = None
        self._subscribers: list[Subscriber] = []
        self._waiters = OffsetWaiters()

    def attach(self, controller: Controller) -> None:
        """Set the controller of this process, before the node runs."""
        assert self._controller is None, "a process has one controller"
        self._controller = controller

    def subscribe(self, callback: Subscriber) -> Callable[[], None]:
        """Call `callback` after each batch, in the order of subscription; the result ends the subscription."""
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    def apply(self, batch: Batch) -> None:
        """Apply a committed batch.

        Raises:
            CorruptStoreError: a record that this release does not support.
        """
        old = self.image
        records: Sequence[Record] = ()
        if batch.control is not None:
            self.image = old.advance(batch.end_offset, batch.epoch)
        else:
            prepared = None if self._controller is None else self._controller.prepared(batch)
            if prepared is not None:
                records, self.image = prepared.records, prepared.after
            else:
                records = decode(batch.payload, batch.base_offset)
                assert len(records) == batch.count, f"batch at {batch.base_offset}: {len(records)} of {batch.count}"
                self.image = old.apply(batch.base_offset, records, batch.epoch)
        assert self.image.end_offset == batch.end_offset, f"{self.image.end_offset} is not {batch.end_offset}"
        self.timestamp_ms = batch.timestamp_ms
        for subscriber in tuple(self._subscribers):
            subscriber(old, self.image, records)
        self._waiters.complete(self.image.end_offset)
        if isinstance(batch.control, LeaderChange) and self._controller is not None:
            self._controller.leader_change_applied(batch.epoch)

    def snapshot(self) -> Iterator[bytes]:
        """Yield the current image in chunks, while newer batches are applied."""
        return chunks(self.image)

    def loader(self, source: str) -> ImageLoader:
        """Return the receiver of a snapshot's chunks; pass the result of its `finish` to `load_snapshot`."""
        return ImageLoader(source)

    def load_snapshot(self, image: ClusterImage) -> None:
        """Continue from a loaded image.  Never on an active controller, because a leader loads no snapshot."""
        old = self.image
        assert image.end_offset >= old.end_offset, f"snapshot at {image.end_offset} after {old.end_offset}"
        self.image = image
        for subscriber in tuple(self._subscribers):
            subscriber(old, image, None)
        self._waiters.complete(self.image.end_offset)

    def leadership(self, epoch: int, leader_id: int | None, is_leader: bool) -> None:
        """Pass on a change of the leader."""
        if self._controller is not None:
            self._controller.leadership(epoch, leader_id, is_leader)

    async def wait_for(self, offset: int) -> None:
        """Wait until everything below `offset` is applied on this node.  The caller sets the deadline."""
        if self.image.end_offset < offset:
            await self._waiters.wait(offset)
