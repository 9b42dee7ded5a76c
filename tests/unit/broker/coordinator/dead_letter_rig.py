"""Share groups with dead letters on the broker of a `Rig`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast

import pytest

from broker.coordinator import dead_letters
from broker.coordinator.groups import GroupCoordinators
from broker.coordinator.led_share import Fetched, LedShare
from broker.coordinator.limits import CoordinatorLimits
from broker.coordinator.shares import ShareGroups
from broker.core.coordinator.share.states import (
    InitializeState,
    ReadState,
    ShareKey,
    ShareState,
    StateRequest,
    StateResponse,
    SummarizeState,
    WriteState,
    merged,
)
from broker.core.share.partition import Acknowledgement, AckType, StateBatch
from broker.kafka.api import ProduceResult
from metadata.control.configs import Changes, Resource, alter_configs
from metadata.control.features import upgrade_feature
from metadata.records import METADATA_VERSION, ConfigScope
from quorumlog.client.record_codec import read_batch
from quorumlog.client.records import open_batches
from quorumlog.errors import ClusterError
from quorumlog.runtime.clock import Sources
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.unit.broker.replica.rig import TOPIC, Rig

NOW_MS = 1_700_000_000_000
WAIT_S = 10
GROUP, LETTERS = "work", "dlq.t"
ADMITS = ("errors.deadletterqueue.group.enable", "true")
LIMITS = CoordinatorLimits(share_letter_retry_min_ms=1, share_letter_retry_max_ms=2)
CONTROL = 0x30
Headers = dict[str, bytes | None]


class Place:
    """Share groups on broker 1, which leads partition 0 of the source; a fake share coordinator, and a fake Produce.

    state: the state that the share coordinator has stored; None: it was deleted.  batches: the appended batches, each
    with its partition.  codes: the answers to the next produces; then all succeed.  is_slow: produces are not answered.
    """

    def __init__(self, rig: Rig, start: int = 0, limits: CoordinatorLimits = LIMITS) -> None:
        self.rig = rig
        self.state: ShareState | None = ShareState(0, 3, 0, start)
        self.fails_to_save = False
        self.batches: list[tuple[tuple[str, int], bytes]] = []
        self.codes: list[KafkaCode] = []
        self.produces = 0
        self.pending: list[asyncio.Future[ProduceResult]] = []
        self.is_slow = False
        self.created: list[pb.NewTopic] = []
        nothing = cast(Any, None)
        groups = cast(GroupCoordinators, cast(Any, _Groups()))
        self.shares = ShareGroups(
            rig.role.table,
            groups,
            self._call,
            nothing,
            lambda broker_id: None,
            Sources(lambda: NOW_MS, Random(1)),
            self._produce,
            limits,
        )
        self.shares.states.ask = self._ask  # type: ignore[method-assign]

    async def _ask(self, request: StateRequest) -> StateResponse:
        await asyncio.sleep(0)
        match request:
            case ReadState() if self.state is not None:
                return StateResponse(KafkaCode.NONE, state=self.state)
            case SummarizeState():
                return StateResponse(KafkaCode.NONE, state=self.state)
            case WriteState() if self.state is not None and request.state_epoch == self.state.state_epoch:
                if self.fails_to_save:
                    return StateResponse(KafkaCode.COORDINATOR_NOT_AVAILABLE)
                changed = merged(self.state.start_offset, self.state.batches, request.start_offset, request.batches)
                self.state = ShareState(0, self.state.state_epoch, request.leader_epoch, *changed)
                return StateResponse(KafkaCode.NONE)
        assert not isinstance(request, InitializeState)
        return StateResponse(KafkaCode.FENCED_STATE_EPOCH)

    async def _call(self, method: Any, request: Any, timeout_ms: int) -> Any:
        assert method is rpcs.CREATE_TOPICS
        self.created += request.topics
        raise ClusterError(ApiError.BROKER_UNAVAILABLE, "there is no controller", retriable=True)

    def _produce(
        self, topic: str, index: int, batches: memoryview, acks: int, timeout_ms: int
    ) -> asyncio.Future[ProduceResult]:
        assert acks == -1
        assert timeout_ms > 0
        self.produces += 1
        future: asyncio.Future[ProduceResult] = asyncio.get_running_loop().create_future()
        code = self.codes.pop(0) if self.codes else KafkaCode.NONE
        if code in (KafkaCode.NONE, KafkaCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            self.batches.append(((topic, index), bytes(batches)))
        if self.is_slow:
            self.pending.append(future)
        else:
            future.set_result(ProduceResult(code, error_message="" if code is KafkaCode.NONE else "the reason"))
        return future

    # -- metadata

    async def give(self, scope: ConfigScope, name: str, **values: str | None) -> None:
        """Set configs; the names have `_` in place of `.`."""
        named = tuple((key.replace("_", "."), value) for key, value in values.items())
        changes = [Changes(Resource(scope, name), named)]
        await self.learn(lambda: self.rig.cluster.execute(lambda image: alter_configs(image, changes)))

    async def give_group(self, **values: str | None) -> None:
        await self.give(ConfigScope.GROUP, GROUP, **values)

    async def learn(self, change: Callable[[], Any]) -> None:
        old = self.rig.cluster.image
        change()
        new = self.rig.cluster.image
        assert new is not old, "nothing has changed"
        self.shares.on_batch(old, new, None)
        await self.rig.learn()

    async def create_letters(self, *rows: tuple[int, ...], admits: bool = True, **configs: str) -> None:
        chosen = [(key.replace("_", "."), value) for key, value in configs.items()]
        pairs = tuple([ADMITS, *chosen] if admits else chosen)
        await self.learn(lambda: self.rig.cluster.create(LETTERS, *(rows or ((1,),)), configs=pairs))

    # -- records

    async def write(self, *batches: bytes | bytearray) -> None:
        for batch in batches:
            self.rig.replicas.start_produce(TOPIC, 0, memoryview(bytearray(batch)), -1, 60_000)
        await self.rig.role.logs.flush_all([self.rig.log])

    async def led(self) -> LedShare:
        async with asyncio.timeout(WAIT_S):
            found = await self.shares.partitions.get(self.key)
        assert isinstance(found, LedShare), found
        return found

    @property
    def key(self) -> ShareKey:
        return ShareKey(GROUP, self.rig.hosted().topic_id, 0)

    async def fetch(self) -> list[tuple[int, int]]:
        found = await (await self.led()).fetch("m", 1 << 20, 1_000, is_exact=False)
        assert isinstance(found, Fetched), found
        return [(each.first, each.end) for each in found.acquired]

    async def acknowledge(self, first: int, end: int, *kinds: AckType) -> KafkaCode:
        led = await self.led()
        return await led.acknowledge("m", [Acknowledgement(first, end, kinds)])

    async def reject(self, first: int, end: int) -> None:
        assert await self.acknowledge(first, end, AckType.REJECT) is KafkaCode.NONE

    # -- results

    def letters(self) -> list[int]:
        """Return the offsets of the records whose letters were written, in the order of the letters."""
        return [int(headers[dead_letters.OFFSET] or b"") for _, _, headers in self.contents()]

    def contents(self) -> list[tuple[bytes | None, bytes | None, Headers]]:
        """Return key, value and headers of all letters."""
        found = []
        for (topic, index), batch in self.batches:
            for opened in open_batches(batch):
                for each in read_batch(opened, topic, index, 0, 1 << 40):
                    assert each.timestamp_ms == NOW_MS
                    found.append((each.key, each.value, dict(each.headers)))
        return found

    @property
    def stored(self) -> tuple[int, tuple[StateBatch, ...]]:
        assert self.state is not None
        return self.state.start_offset, self.state.batches

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    @property
    def cause(self) -> str:
        found = self.shares.letters.failing.get(self.key)
        return "" if found is None else found.cause

    async def settled(self, start: int) -> None:
        """Wait until the start is stored, and no letter is missing."""
        await self.until(lambda: self.stored[0] == start)
        await self.until(lambda: not self.shares.letters.failing)


class _Groups:
    on_share_effect: Any = None


@asynccontextmanager
async def serving(rig: Rig, **settings: Any) -> AsyncIterator[Place]:
    place = Place(rig, **settings)
    async with asyncio.TaskGroup() as tasks:
        place.shares.start(tasks, rig.cluster.image)
        try:
            yield place
        finally:
            await place.shares.close()


@pytest.fixture
async def bare(rig: Rig) -> AsyncIterator[Place]:
    """The source exists, and the group has no dead-letter topic."""
    upgrade = lambda image: upgrade_feature(image, METADATA_VERSION, None, validate_only=False)  # noqa: E731
    assert rig.cluster.execute(upgrade).outcome.ok
    await rig.create((1,))
    async with serving(rig) as place:
        yield place


@pytest.fixture
async def place(bare: Place) -> Place:
    """The group has a dead-letter topic, which does not exist yet."""
    await bare.give_group(errors_deadletterqueue_topic_name=LETTERS)
    return bare
