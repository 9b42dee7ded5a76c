"""The share partitions of all partitions that this broker leads, and the fetches that wait for their records.

The share coordinator may remind a new leader of missing dead letters before a member fetches from that leader.  Then
the share partition is loaded although no session uses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from uuid import UUID

from broker.coordinator.dead_letters import DeadLetters
from broker.coordinator.led_share import LedShare, ShareConfig
from broker.coordinator.limits import CoordinatorLimits
from broker.coordinator.share_states import ShareStates
from broker.core.coordinator.share.states import ShareKey
from broker.core.fetch_session import PartitionKey
from broker.core.partition import LeaderState
from broker.replica.replica import Replica
from broker.replica.table import ReplicaTable
from quorumlog.wire.errors import KafkaCode


class SharePartitions:
    """The share partitions of all partitions that this broker leads."""

    def __init__(
        self,
        table: ReplicaTable,
        states: ShareStates,
        letters: DeadLetters,
        limits: CoordinatorLimits,
        wall_ms: Callable[[], int],
    ) -> None:
        self.config_of: Callable[[str], ShareConfig] = lambda group: ShareConfig()
        self._table = table
        self._states = states
        self._letters = letters
        self._wall_ms = wall_ms
        self._time_lookups = asyncio.Semaphore(limits.share_time_lookups)
        self._group: asyncio.TaskGroup | None = None
        self._led: dict[ShareKey, LedShare] = {}
        self._waiting: dict[PartitionKey, dict[asyncio.Event, None]] = {}
        events = table.context.events
        events.watermark_moved.subscribe(self._on_watermark)
        events.resigned.subscribe(self._on_resigned)

    def __len__(self) -> int:
        return len(self._led)

    def start(self, group: asyncio.TaskGroup) -> None:
        self._group = group

    def close(self) -> None:
        """End all share partitions, and wake all fetches.  Idempotent."""
        self._group = None
        for led in self._led.values():
            led.end()
        self._led.clear()
        for events in self._waiting.values():
            for event in events:
                event.set()

    @property
    def is_closed(self) -> bool:
        return self._group is None

    def configure(self, config_of: Callable[[str], ShareConfig]) -> None:
        """Apply changed configs.  Existing locks keep their deadlines.  config_of: returns the configs of a group."""
        self.config_of = config_of
        known: dict[str, ShareConfig] = {}
        for key, led in self._led.items():
            if key.group not in known:
                known[key.group] = config_of(key.group)
            led.configure(known[key.group])

    async def get(self, key: ShareKey) -> LedShare | KafkaCode:
        """Return a share partition once it is loaded, or the error if this broker cannot serve it."""
        led = self.begin(key)
        if isinstance(led, KafkaCode):
            return led
        code = await led.ready()
        return led if code is KafkaCode.NONE else code

    def begin(self, key: ShareKey) -> LedShare | KafkaCode:
        """Return a share partition for a session, or the error if this broker cannot serve it.

        The state of the share partition may still be loading.
        """
        replica = self._table.find(key.topic_id, key.partition)
        if replica is None:
            known = self._table.context.cluster.partition(key.topic_id, key.partition)
            return KafkaCode.UNKNOWN_TOPIC_OR_PARTITION if known is None else KafkaCode.NOT_LEADER_OR_FOLLOWER
        found = replica.leading(-1)
        if isinstance(found, KafkaCode):
            return found
        if self._group is None:
            return KafkaCode.NOT_LEADER_OR_FOLLOWER
        led = self._led.get(key)
        if led is None or led.has_ended or led.leader is not found.leader or led.lingers:
            led = self._load(key, replica, found.leader, self._group)
        led.use()
        return led

    def remind(self, key: ShareKey) -> None:
        """Load a share partition for its dead letters, if this broker leads the partition and has not loaded it."""
        replica = self._table.find(key.topic_id, key.partition)
        found = KafkaCode.NOT_LEADER_OR_FOLLOWER if replica is None else replica.leading(-1)
        if replica is None or isinstance(found, KafkaCode) or self._group is None:
            return
        led = self._led.get(key)
        if led is None or led.has_ended or led.leader is not found.leader:
            self._load(key, replica, found.leader, self._group)

    def _load(self, key: ShareKey, replica: Replica, leader: LeaderState, group: asyncio.TaskGroup) -> LedShare:
        """Load a share partition, which no session uses yet.  An object that was loaded before is replaced."""
        if (before := self._led.pop(key, None)) is not None:
            before.end()
        begun = self._led[key] = LedShare(
            key,
            replica,
            leader,
            self._states,
            self._letters,
            group,
            self.config_of(key.group),
            self._time_lookups,
            self._wall_ms,
            lambda: self._wake(PartitionKey(key.topic_id, key.partition)),
            lambda: self._drop_idle(begun),
        )
        return begun

    def _drop_idle(self, led: LedShare) -> None:
        if self._led.get(led.key) is led:
            self.drop(led.key)

    def known(self, key: ShareKey) -> LedShare | None:
        """Return a share partition, regardless of whether its state is loaded; None if this broker has none."""
        return self._led.get(key)

    def is_loaded(self, key: ShareKey) -> bool:
        """Return whether `begin` would return a loaded share partition.  Changes of the leadership are ignored."""
        led = self._led.get(key)
        return led is not None and led.loaded is KafkaCode.NONE and not led.lingers

    def drop(self, key: ShareKey) -> None:
        """Drop a share partition, for example because no session uses it.  Its state may be changed from now on."""
        led = self._led.pop(key, None)
        if led is not None:
            led.end()

    def retry_letters(self, keys: Iterable[ShareKey]) -> None:
        """Try again to write the dead letters of share partitions."""
        for key in keys:
            if (led := self._led.get(key)) is not None:
                led.retry_letters()

    # -- waiting for records

    def watch(self, places: Iterable[tuple[UUID, int]], event: asyncio.Event) -> None:
        """Set the event whenever a partition may have records to acquire."""
        for place in places:
            self._waiting.setdefault(PartitionKey(*place), {})[event] = None

    def unwatch(self, places: Iterable[tuple[UUID, int]], event: asyncio.Event) -> None:
        for place in places:
            key = PartitionKey(*place)
            events = self._waiting.get(key)
            if events is not None:
                events.pop(event, None)
                if not events:
                    del self._waiting[key]

    def _wake(self, key: PartitionKey) -> None:
        for event in self._waiting.get(key, ()):
            event.set()

    def _on_watermark(self, replica: Replica) -> None:
        if self._waiting and replica.partition in self._waiting:
            self._wake(replica.partition)

    def _on_resigned(self, key: PartitionKey, leader_epoch: int) -> None:
        for share_key in [each for each in self._led if each[1:] == (key.topic_id, key.partition_index)]:
            self.drop(share_key)
        self._wake(key)
