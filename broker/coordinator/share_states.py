"""The share coordinators of this broker, and requests to the share coordinators of other brokers.

A leader of a partition reads and writes the states of share groups through `ask`.  This is a direct call if this broker
is the share coordinator, and a request of the Kafka protocol otherwise.  A repeated write changes nothing, so every
request may be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from broker.coordinator.creation import TopicCreation
from broker.coordinator.limits import CoordinatorLimits
from broker.coordinator.links import BrokerLinks
from broker.coordinator.shell import NO_PARTITION, CoordinatorShell
from broker.core.coordinator.share.state_machine import ShareStateMachine
from broker.core.coordinator.share.states import (
    DeleteState,
    InitializeState,
    ReadState,
    ShareState,
    ShareStateLimits,
    StateRequest,
    StateResponse,
    SummarizeState,
    WriteState,
    size_of,
)
from broker.core.share.partition import Delivery, StateBatch
from broker.replica.table import ReplicaTable
from metadata.image.internal_topics import SHARE_GROUP_STATE
from quorumlog.errors import ClusterError
from quorumlog.runtime.clock import Sources
from quorumlog.wire.errors import KafkaCode, kafka_code
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.rpcs import ControllerCall

UNAVAILABLE: Final = frozenset(
    {
        KafkaCode.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaCode.COORDINATOR_NOT_AVAILABLE,
        KafkaCode.NOT_COORDINATOR,
    }
)
"""Errors of a request that no share coordinator has answered.  The outcome of a change is then unknown."""
_APIS: Final[dict[type[Any], tuple[Api, int]]] = {
    ReadState: (Api.READ_SHARE_GROUP_STATE, 0),
    WriteState: (Api.WRITE_SHARE_GROUP_STATE, 0),
    InitializeState: (Api.INITIALIZE_SHARE_GROUP_STATE, 0),
    DeleteState: (Api.DELETE_SHARE_GROUP_STATE, 0),
    SummarizeState: (Api.READ_SHARE_GROUP_STATE_SUMMARY, 1),
}
"""The API of the Kafka protocol, and its version, for each request."""
_STORED: Final = frozenset(int(each) for each in Delivery if each is not Delivery.ACQUIRED)
_RETRY_MS: Final = 1_000
"""Extra time for a second request, on another connection, after a broker has not answered the first one.

The second request ends before its own timeout.  If its connection is lost as well, the next `ask` drops it, and repeats
its request on a third one.  A shorter timeout for the second request would be worse: a single slow commit would close a
connection that works, and fail the other requests on it."""
_PARALLEL: Final = 50
"""Maximum number of requests of one `ask_all` that are in flight at a time.  The others wait."""


class ShareStates:
    """The share coordinators of this broker, and clients of the share coordinators of other brokers.

    resolve: returns the address of a broker's inter-broker listener; None while it is not registered.
    """

    def __init__(
        self,
        table: ReplicaTable,
        call: ControllerCall,
        wait_applied: Callable[[int], Awaitable[object]],
        resolve: Callable[[int], tuple[str, int] | None],
        sources: Sources,
        limits: CoordinatorLimits | None = None,
    ) -> None:
        self._limits = limits or CoordinatorLimits()
        self._cluster = table.context.cluster
        self._links = BrokerLinks(resolve)
        self._creation = TopicCreation(SHARE_GROUP_STATE, self._cluster, call, wait_applied, self._limits)
        self.shell: CoordinatorShell[ShareStateMachine] = CoordinatorShell(
            SHARE_GROUP_STATE,
            table,
            lambda: ShareStateMachine(ShareStateLimits(), sources.wall_ms),
            sources.wall_ms,
            self._limits,
        )

    def start(self, group: asyncio.TaskGroup) -> None:
        """Coordinate from now on; the tasks belong to `group`."""
        self._creation.start(group)
        self.shell.start(group)

    async def close(self) -> None:
        """Refuse all calls, and end all tasks.  Idempotent."""
        await self._creation.close()
        await self.shell.close()
        await self._links.close()

    async def prepare(self) -> str:
        """Create `__share_group_state` if it is missing; see `TopicCreation.ensure`."""
        return await self._creation.ensure()

    def call(self, request: StateRequest) -> asyncio.Future[Any]:
        """Begin a call at the share coordinator on this broker; see `CoordinatorShell.call`."""
        partition = self.shell.partition(request.key.text)
        return self.shell.request(partition, request, size_of(request), is_read=isinstance(request, SummarizeState))

    # -- the share coordinator of any broker

    async def ask_all(self, requests: Sequence[StateRequest]) -> list[StateResponse]:
        """Send several requests, and return the responses in their order."""
        slots = asyncio.Semaphore(_PARALLEL)

        async def one(request: StateRequest) -> StateResponse:
            async with slots:
                return await self.ask(request)

        return list(await asyncio.gather(*map(one, requests)))

    async def ask(self, request: StateRequest) -> StateResponse:
        """Send a request to the share coordinator.  While no broker has this role or answers, repeat the request.

        One request to another broker takes at most `share_state_timeout_ms`.  All requests together take at most
        `_RETRY_MS` longer than one request.

        After an error in `UNAVAILABLE`, the outcome of a change is unknown.
        """
        last = StateResponse(KafkaCode.COORDINATOR_NOT_AVAILABLE)
        try:
            async with asyncio.timeout((self._limits.share_state_timeout_ms + _RETRY_MS) / 1000):
                while True:
                    last = await self._ask_once(request)
                    if last.error not in UNAVAILABLE:
                        return last
                    await asyncio.sleep(self._limits.share_state_retry_ms / 1000)
        except TimeoutError:
            return last

    async def _ask_once(self, request: StateRequest) -> StateResponse:
        problem = await self._creation.ensure()
        partition = self.shell.partition(request.key.text)
        state = None if partition == NO_PARTITION else self._cluster.partition(SHARE_GROUP_STATE, partition)
        if state is None or state.leader < 0:
            return StateResponse(KafkaCode.COORDINATOR_NOT_AVAILABLE, problem or "the share coordinator has no leader")
        if state.leader == self._cluster.broker_id:
            found = await self.call(request)
            return StateResponse(found) if isinstance(found, KafkaCode) else found
        api, version = _APIS[type(request)]
        values = {"group_id": request.key.group, "topics": [_topic(request)]}
        timeout_s = self._limits.share_state_timeout_ms / 1000
        try:
            reply = await self._links.ask(state.leader, api, version, values, timeout_s)
        except ClusterError as error:
            return StateResponse(KafkaCode.COORDINATOR_NOT_AVAILABLE, error.message)
        results: Iterable[Any] = [each for topic in reply.results for each in topic.partitions]
        for each in results:
            return _response(request, each)
        return StateResponse(KafkaCode.COORDINATOR_NOT_AVAILABLE, "the share coordinator gave no answer")


def _topic(request: StateRequest) -> dict[str, Any]:
    values: dict[str, Any] = {"partition": request.key.partition}
    match request:
        case ReadState() | SummarizeState():
            values |= {"leader_epoch": request.leader_epoch}
        case InitializeState():
            values |= {"state_epoch": request.state_epoch, "start_offset": request.start_offset}
        case WriteState():
            values |= {
                "state_epoch": request.state_epoch,
                "leader_epoch": request.leader_epoch,
                "start_offset": request.start_offset,
                "state_batches": [
                    {
                        "first_offset": each.first,
                        "last_offset": each.end - 1,
                        "delivery_state": int(each.state),
                        "delivery_count": each.deliveries,
                    }
                    for each in request.batches
                ],
            }
        case DeleteState():
            pass
    return {"topic_id": request.key.topic_id, "partitions": [values]}


def _response(request: StateRequest, result: Any) -> StateResponse:
    """Convert the result for one partition in a reply."""
    error = kafka_code(int(result.error_code))
    state = None
    if error is KafkaCode.NONE and isinstance(request, ReadState):
        unknown = {int(each.delivery_state) for each in result.state_batches} - _STORED
        if unknown:
            message = f"the state {min(unknown)} of a record is unknown; upgrade this broker as well"
            return StateResponse(KafkaCode.UNKNOWN_SERVER_ERROR, message)
    if error is KafkaCode.NONE and isinstance(request, ReadState):
        batches = tuple(
            StateBatch(each.first_offset, each.last_offset + 1, Delivery(each.delivery_state), each.delivery_count)
            for each in result.state_batches
        )
        state = ShareState(0, result.state_epoch, request.leader_epoch, result.start_offset, batches)
    elif error is KafkaCode.NONE and isinstance(request, SummarizeState) and result.state_epoch >= 0:
        done = result.delivery_complete_count
        # A summary has no batches, so one batch represents all offsets whose delivery is complete.
        batches = (StateBatch(result.start_offset + 1, result.start_offset + 1 + done, Delivery.ARCHIVED, 0),)
        state = ShareState(0, result.state_epoch, result.leader_epoch, result.start_offset, batches if done > 0 else ())
    return StateResponse(error, result.error_message, state)
