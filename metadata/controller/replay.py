"""The committed image of this process, and those who follow it.

Every process has one: `QuorumNode` gives it each committed batch once, in order.  It decodes (refusing whatever it does
not understand, which ends the process), applies, and tells the subscribers.  On the active controller the batch was
decided and applied here already; what that made is taken over, so that a commit costs next to nothing there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from metadata.codec import decode
from metadata.image import ClusterImage
from metadata.records import Record
from metadata.snapshot import ImageLoader, chunks
from quorum.core.types import Batch, LeaderChange
from quorum.waiters import OffsetWaiters

Subscriber = Callable[[ClusterImage, ClusterImage, Sequence[Record] | None, int, int, int], None]
"""callback(old, new, records, base_offset, end_offset, timestamp_ms); `records` is empty for a control batch, and None
when a snapshot took the place of the batches between `old` and `new`: anything may have changed."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A batch that this process appended itself, with what it makes of the image that it was decided on."""

    base_offset: int
    epoch: int
    payload: bytes
    records: tuple[Record, ...]
    after: ClusterImage


class Controller(Protocol):
    """What the replay tells the controller of this process."""

    def prepared(self, batch: Batch) -> Prepared | None:
        """Give up what was kept of a batch that is committed now."""
        ...

    def leader_change_applied(self, epoch: int) -> None: ...

    def leadership(self, epoch: int, leader_id: int | None, leader_address: str | None, is_leader: bool) -> None: ...


class MetadataReplay:
    """A `quorum.node.StateMachine`.  `image` is what is committed and applied."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        self.timestamp_ms = 0
        self._controller: Controller | None = None
        self._subscribers: list[Subscriber] = []
        self._waiters = OffsetWaiters()

    def attach(self, controller: Controller) -> None:
        """Name the controller of this process; before the node runs."""
        assert self._controller is None, "a process has one controller"
        self._controller = controller

    def subscribe(self, callback: Subscriber) -> Callable[[], None]:
        """Call `callback` after each batch, in the order of subscription; the result ends that."""
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    def apply(self, batch: Batch) -> None:
        """Take a committed batch.

        Raises:
            CorruptStoreError: a record that this release does not understand.
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
            subscriber(old, self.image, records, batch.base_offset, batch.end_offset, batch.timestamp_ms)
        self._waiters.complete(self.image.end_offset)
        if isinstance(batch.control, LeaderChange) and self._controller is not None:
            self._controller.leader_change_applied(batch.epoch)

    def snapshot(self) -> Iterator[bytes]:
        """The image as it is now, in chunks; to be run through while newer batches are applied."""
        return chunks(self.image)

    def loader(self, source: str) -> ImageLoader:
        """Takes the chunks of a snapshot; what its `finish` gives goes to `load_snapshot`."""
        return ImageLoader(source)

    def load_snapshot(self, image: ClusterImage) -> None:
        """Go on from an image that was loaded.  Never on an active controller: a leader loads no snapshot."""
        old = self.image
        assert image.end_offset >= old.end_offset, f"snapshot at {image.end_offset} after {old.end_offset}"
        self.image = image
        for subscriber in tuple(self._subscribers):
            subscriber(old, image, None, old.end_offset, image.end_offset, self.timestamp_ms)
        self._waiters.complete(self.image.end_offset)

    def leadership(self, epoch: int, leader_id: int | None, leader_address: str | None, is_leader: bool) -> None:
        """Pass on who leads."""
        if self._controller is not None:
            self._controller.leadership(epoch, leader_id, leader_address, is_leader)

    async def wait_for(self, offset: int) -> None:
        """Wait until everything below `offset` is applied here.  The caller sets the deadline."""
        if self.image.end_offset < offset:
            await self._waiters.wait(offset)
