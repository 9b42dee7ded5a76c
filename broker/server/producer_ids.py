"""Producer ids that this broker may give out.

The controller allocates them in blocks.  `ProducerIdPool.run` asks for a block as soon as this broker is registered,
and for the next one whenever fewer than `low_water` ids are left.  So a broker serves about that many new producers or
more while no controller is active.  The reserve is soft state: ids that are left when the process ends are never used.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from broker.kafka.api import ProducerIdResult
from quorumlog.runtime.backoff import Backoff
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.rpcs import ControllerCall
from quorumlog.wire.v1 import controller_pb2 as pb

RETRY_MIN_S = 0.05
RETRY_MAX_S = 1.0


class ProducerIdPool:
    """The reserve of one broker.  Holds at most `low_water` ids and one block.

    epoch: returns the epoch of the broker; -1 while the broker is not registered.
    timeout_ms: the longest wait of one request to the controller, and of one call of `take`.
    """

    def __init__(
        self, broker_id: int, epoch: Callable[[], int], call: ControllerCall, *, low_water: int, timeout_ms: int
    ) -> None:
        self._broker_id = broker_id
        self._epoch = epoch
        self._call = call
        self._low_water = low_water
        self._timeout_ms = timeout_ms
        self._blocks: deque[range] = deque()
        self._low = asyncio.Event()
        self._arrived = asyncio.Event()

    def left(self) -> int:
        """Number of ids in reserve."""
        return sum(map(len, self._blocks))

    def refill(self) -> None:
        """Make `run` ask for blocks until at least `low_water` ids are left."""
        self._low.set()

    async def run(self) -> None:
        """Keep the reserve filled, until cancelled."""
        while True:
            await self._low.wait()
            self._low.clear()
            backoff = Backoff(RETRY_MIN_S, RETRY_MAX_S)
            while self.left() < self._low_water:
                if await self._fetch():
                    backoff.reset()
                    continue
                await asyncio.sleep(backoff.next_s())  # no controller is active, or this broker is registering

    async def take(self) -> int | None:
        """Return an id that no other producer has; None when the reserve is empty and no block arrives in time."""
        deadline = asyncio.get_running_loop().time() + self._timeout_ms / 1000
        while not self._blocks:
            self._arrived.clear()
            self.refill()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._arrived.wait()
            except TimeoutError:
                return None
        block = self._blocks[0]
        if len(block) == 1:
            self._blocks.popleft()
        else:
            self._blocks[0] = block[1:]
        if self.left() < self._low_water:
            self.refill()
        return block[0]

    async def next(self) -> ProducerIdResult:
        """Return the result of `take` in the form that the Kafka listener uses."""
        producer_id = await self.take()
        if producer_id is None:
            return ProducerIdResult(int(KafkaCode.COORDINATOR_LOAD_IN_PROGRESS))
        return ProducerIdResult(int(KafkaCode.NONE), producer_id, 0)

    async def _fetch(self) -> bool:
        """Ask the controller for one block; return whether it arrived."""
        broker_epoch = self._epoch()
        if broker_epoch < 0:
            return False
        request = pb.AllocateProducerIdsRequest(broker_id=self._broker_id, broker_epoch=broker_epoch)
        reply = await self._call(rpcs.ALLOCATE_PRODUCER_IDS, request, self._timeout_ms)
        if reply.result.error != ApiError.NONE or reply.count <= 0:
            return False
        self._blocks.append(range(reply.first_producer_id, reply.first_producer_id + reply.count))
        self._arrived.set()
        return True
