"""The `Controller` service of every process.

The service handles a request if the controller of this node is active.  Otherwise it forwards the request to the
leader.  The handlers are functions of other modules, and `METHODS` lists them.

Every call ends shortly before the caller's timeout (`header.timeout_ms`), so that the caller gets a named outcome
instead of its own timeout.  While no leader is known, or this node has won an election but its controller is not active
yet, a call waits for an active controller within its deadline.  Only a transfer of leadership needs no active
controller: any leader of the quorum executes it.  So a leader can hand over even if its controller cannot become
active, for example because it cannot read its log.  A forwarded request is not forwarded again: a node that knows
another leader answers NOT_CONTROLLER, and the caller looks for the new leader itself.  If the leader
is replaced meanwhile, this node sends the request to the new leader, but only if the request is a read or was certainly
not sent.

A read with `unconfirmed` in its header needs no controller: this node answers it from the metadata that it has applied.
The reply is marked as unconfirmed, and contains the offset, the generation of the quorum and the epoch.

The number of requests in progress is limited.  Heartbeats and the other requests of brokers have limits of their own,
so that administrators' requests cannot displace them.  Administrators' requests cannot delay them either: only one such
request begins in each turn of the loop, so that brokers' requests, timers and elections run between any two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import Any, NamedTuple, Protocol

from google.protobuf.message import Message

from metadata.control.errors import Outcome
from metadata.controller import (
    admin,
    brokers,
    configs,
    convert,
    elections,
    features,
    preferred,
    reassignments,
    topics,
    voters,
)
from metadata.controller.active import NOT_CONTROLLER, OUTCOME_UNKNOWN, TIMED_OUT, ActiveController
from metadata.controller.ports import Node
from metadata.image import ClusterImage
from quorum.ports import UnreachableError
from quorumlog.errors import RemoteProtocolError
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.rpcs import AnyRpc, ReplyT, RequestT, Rpc, Sender, header_of, result_of

DEFAULT_TIMEOUT_MS = 30_000
TIMEOUT_MAX_MS = 600_000
PAUSED = Outcome(
    ApiError.NOT_CONTROLLER,
    "the controller is paused: no majority of the voters fetches from it; nothing was changed",
    "start the voters that are down, see `kctl quorum status`",
)
NO_TURN = Outcome(
    ApiError.REQUEST_TIMED_OUT, "the controller was busy with earlier requests; nothing was changed", "retry"
)
NOTHING_APPLIED = Outcome(
    ApiError.NOT_CONTROLLER,
    "this node has just started and has not applied any metadata yet",
    "ask another node, or retry once a controller is active",
)
REPLACED_GRACE_MS = 500
"""Time to wait for the answer of a leader that has been replaced."""


class Caller(Protocol):
    """The part of `Transport` that forwards requests."""

    async def call(self, address: str, rpc: Rpc[RequestT, ReplyT], request: RequestT, timeout_ms: int) -> ReplyT: ...


class Load(Enum):
    """The kinds of requests.  All requests of one kind share a limit."""

    ADMINISTRATION = auto()
    BROKERS = auto()
    HEARTBEATS = auto()


IN_PROGRESS_MAX = {Load.ADMINISTRATION: 1_000, Load.BROKERS: 10_000, Load.HEARTBEATS: 10_000}
"""Maximum number of requests of each kind in progress; further requests are refused with OVERLOADED."""

Handle = Callable[[ActiveController, RequestT, float], Awaitable[ReplyT | Outcome]]
"""Answers a request on the active controller, within a number of milliseconds.  Raises RemoteProtocolError if the
request is malformed; `ControllerService.handle` turns the error into a refusal."""
Describe = Callable[[ActiveController, RequestT, ClusterImage], Awaitable[ReplyT | Outcome]]
"""Answers a read from an image.  Raises the same error as `Handle`."""


class _Method(NamedTuple):
    rpc: AnyRpc
    handle: Handle[Any, Any]
    describe: Describe[Any, Any] | None = None
    """None for a change."""
    needs_controller: bool = True
    """Whether only an active controller answers.  Otherwise any leader of the quorum does."""


def _change(rpc: Rpc[RequestT, ReplyT], handle: Handle[RequestT, ReplyT], *, needs_controller: bool = True) -> _Method:
    assert not rpc.reads_only, rpc
    return _Method(rpc, handle, needs_controller=needs_controller)


def _read(rpc: Rpc[RequestT, ReplyT], describe: Describe[RequestT, ReplyT]) -> _Method:
    """Return a method for a read, which the active controller answers from its `committed_image`."""
    assert rpc.reads_only, rpc

    async def handle(controller: ActiveController, request: RequestT, timeout_ms: float) -> ReplyT | Outcome:
        image = await controller.committed_image(timeout_ms)
        return image if isinstance(image, Outcome) else await describe(controller, request, image)

    return _Method(rpc, handle, describe)


def _by_image(
    describe: Callable[[ClusterImage, RequestT], Awaitable[ReplyT | Outcome]],
) -> Describe[RequestT, ReplyT]:
    """Adapt a read that needs only the image."""
    return lambda controller, request, image: describe(image, request)


class ControllerService:
    """`handle` serves the transport; `call` serves this process's own broker role."""

    def __init__(self, node: Node, controller: ActiveController, transport: Caller) -> None:
        self._node = node
        self.controller = controller
        self._transport = transport
        self._in_progress = dict.fromkeys(Load, 0)
        self._bulk = asyncio.Lock()

    async def call(self, rpc: Rpc[RequestT, ReplyT], request: RequestT, timeout_ms: int) -> ReplyT:
        """Fill in the header of a request, send the request to the active controller, and return the reply.

        timeout_ms: see the module's docstring; 0: DEFAULT_TIMEOUT_MS.
        The reply's `result` contains the outcome; nothing is raised.
        """
        header = header_of(request)
        header.cluster_id = self._node.cluster_id or ""
        header.timeout_ms = timeout_ms
        header.forwarded = False
        reply = await self.handle(rpc, request)
        assert isinstance(reply, rpc.reply), f"{type(reply).__name__} as the reply to {rpc}"
        return reply

    async def handle(self, rpc: AnyRpc, request: Message) -> Message:
        """Answer a request of the service within its deadline.

        Raises:
            RemoteProtocolError: not an RPC of this service, or another RPC's request.
        """
        method = METHODS.get(rpc)
        if method is None or not isinstance(request, rpc.request):
            raise RemoteProtocolError(f"{type(request).__name__} for the method {rpc.name!a}")
        load = _load(rpc)
        limit = IN_PROGRESS_MAX[load]
        if self._in_progress[load] >= limit:
            text = f"{limit} requests are in progress on this node"
            return _refused(rpc, Outcome(ApiError.OVERLOADED, text, "retry later"))
        self._in_progress[load] += 1
        try:
            answer = await self._route(method, request)
        except RemoteProtocolError as error:
            word = ApiError.INVALID_REGISTRATION if rpc is rpcs.REGISTER_BROKER else ApiError.INVALID_REQUEST
            answer = Outcome(word, error.message)
        finally:
            self._in_progress[load] -= 1
        return _refused(rpc, answer) if isinstance(answer, Outcome) else answer

    async def _route(self, method: _Method, request: Message) -> Message | Outcome:
        header = header_of(request)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _allowed_ms(header.timeout_ms) / 1000
        while True:
            cluster_id = self._node.cluster_id
            if header.cluster_id and cluster_id is not None and header.cluster_id != cluster_id:
                text = f"this is cluster {cluster_id}; the request is for {header.cluster_id[:60]!a}"
                return Outcome(ApiError.INCONSISTENT_CLUSTER_ID, text)
            if header.unconfirmed and method.describe is not None:
                return await self._unconfirmed(method.describe, request)
            if method.rpc.sender is Sender.CLIENT and self.controller.active:
                try:
                    async with asyncio.timeout_at(deadline):
                        await self._turn()
                except TimeoutError:
                    return NO_TURN
            remaining_ms = (deadline - loop.time()) * 1000
            if remaining_ms <= 0:
                return TIMED_OUT if self.controller.active else NOT_CONTROLLER
            leader_id, address = self._node.leader_id, self._node.leader_address
            if self.controller.active or (leader_id == self._node.node_id and not method.needs_controller):
                answered = await method.handle(self.controller, request, remaining_ms)
                return PAUSED if answered == NOT_CONTROLLER and self._node.paused else answered
            if leader_id is not None and leader_id != self._node.node_id:
                if header.forwarded:
                    return NOT_CONTROLLER
                if address is not None:
                    answer = await self._forward(method.rpc, request, address, remaining_ms)
                    if answer is None:
                        continue
                    return answer
            try:
                async with asyncio.timeout_at(deadline):
                    await self.controller.changed()
            except TimeoutError:
                return NOT_CONTROLLER

    async def _unconfirmed(self, describe: Describe[Any, Any], request: Message) -> Message | Outcome:
        """Answer a read from the metadata that this node has applied, and mark the answer as unconfirmed."""
        image = self.controller.applied_image
        if not image.end_offset:
            return NOTHING_APPLIED
        answer: Message | Outcome = await describe(self.controller, request, image)
        if not isinstance(answer, Outcome):
            result = result_of(answer)
            result.unconfirmed = True
            result.generation, result.epoch = self._node.generation, self._node.epoch
        return answer

    async def _turn(self) -> None:
        """Wait for the turn of an administrator's request.

        The caller then decides the request before its next await, and so before any other task runs.
        """
        await self._bulk.acquire()
        asyncio.get_running_loop().call_soon(self._bulk.release)

    async def _forward(
        self, rpc: Rpc[RequestT, ReplyT], request: RequestT, address: str, timeout_ms: float
    ) -> ReplyT | Outcome | None:
        """Return the answer of the leader at `address`; None if the request may be sent to a newer leader."""
        copy = rpc.request()
        copy.CopyFrom(request)
        header = header_of(copy)
        header.forwarded = True
        header.timeout_ms = max(1, int(timeout_ms))
        call = asyncio.ensure_future(self._transport.call(address, rpc, copy, header.timeout_ms))
        try:
            await self._answered_or_replaced(call, address)
            if not call.done():
                return None if rpc.reads_only else OUTCOME_UNKNOWN
            return call.result()
        except UnreachableError as error:
            if not rpc.reads_only and error.was_sent:
                return OUTCOME_UNKNOWN
            is_replaced = self._node.leader_id is not None and self._node.leader_address != address
            return None if is_replaced else NOT_CONTROLLER
        finally:
            call.cancel()

    async def _answered_or_replaced(self, call: asyncio.Future[ReplyT], address: str) -> None:
        """Wait for the leader's answer.  Once another node leads, wait only REPLACED_GRACE_MS, since the former leader
        may hang and never answer."""
        while not call.done() and (self._node.leader_id is None or self._node.leader_address == address):
            changed = asyncio.ensure_future(self.controller.changed())
            awaited: set[asyncio.Future[Any]] = {call, changed}
            try:
                await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
        if not call.done():
            await asyncio.wait({call}, timeout=REPLACED_GRACE_MS / 1000)


def _allowed_ms(asked_ms: int) -> float:
    """Return the time limit: the caller's timeout, less a tenth (at most half a second) for sending the answer."""
    wanted = min(asked_ms or DEFAULT_TIMEOUT_MS, TIMEOUT_MAX_MS)
    return wanted - min(wanted / 10, 500)


def _load(rpc: AnyRpc) -> Load:
    if rpc is rpcs.BROKER_HEARTBEAT:
        return Load.HEARTBEATS
    return Load.BROKERS if rpc.sender is Sender.BROKER else Load.ADMINISTRATION


def _refused(rpc: AnyRpc, outcome: Outcome) -> Message:
    reply: Message = rpc.reply_of(convert.result(outcome))
    return reply


METHODS: dict[AnyRpc, _Method] = {
    method.rpc: method
    for method in (
        _change(rpcs.REGISTER_BROKER, brokers.register_broker),
        _change(rpcs.BROKER_HEARTBEAT, brokers.broker_heartbeat),
        _change(rpcs.ALTER_PARTITION, brokers.alter_partition),
        _change(rpcs.ASSIGN_DIRECTORIES, brokers.assign_directories),
        _change(rpcs.ALLOCATE_PRODUCER_IDS, brokers.allocate_producer_ids),
        _change(rpcs.CREATE_TOPICS, topics.create_topics),
        _change(rpcs.DELETE_TOPICS, topics.delete_topics),
        _read(rpcs.DESCRIBE_TOPICS, _by_image(topics.describe_topics)),
        _read(rpcs.DESCRIBE_BROKERS, brokers.describe_brokers),
        _change(rpcs.ADD_PARTITIONS, admin.add_partitions),
        _change(rpcs.REMOVE_PARTITIONS, admin.remove_partitions),
        _change(rpcs.UNREGISTER_BROKER, admin.unregister_broker),
        _change(rpcs.ALTER_CONFIGS, configs.alter_configs),
        _read(rpcs.DESCRIBE_CONFIGS, _by_image(configs.describe_configs)),
        _change(rpcs.ELECT_LEADERS, elections.elect_leaders),
        _change(rpcs.ALTER_REASSIGNMENTS, reassignments.alter_reassignments),
        _read(rpcs.LIST_REASSIGNMENTS, _by_image(reassignments.describe_reassignments)),
        _change(rpcs.CHANGE_VOTERS, voters.change_voters),
        # A leader that cannot become the active controller must be able to hand over.
        _change(rpcs.TRANSFER_LEADER, voters.transfer_leader, needs_controller=False),
        _change(rpcs.SET_PREFERRED_CONTROLLERS, preferred.set_preferred_controllers),
        _read(rpcs.DESCRIBE_PREFERRED_CONTROLLERS, _by_image(preferred.describe_preferred_controllers)),
        _read(rpcs.DESCRIBE_FEATURES, _by_image(features.describe_features)),
        _change(rpcs.UPGRADE_FEATURE, features.upgrade_feature),
    )
}
"""Every RPC of the service."""
