"""The `Controller` service of every process.

The service handles a request if the controller of this node is active.  Otherwise it forwards the request to the
leader.

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

from metadata.control.brokers import allocate_producer_ids
from metadata.control.decision import Decision, with_end
from metadata.control.errors import OK, Outcome
from metadata.control.partitions import alter_partition, assign_directories
from metadata.control.preferred import Preferred, least_burdened, set_preferred
from metadata.control.topics import CreatedTopic, DeletedTopic, create_topics, delete_topics
from metadata.controller import admin, configs, convert, elections, features, reassignments, voters
from metadata.controller.active import NOT_CONTROLLER, OUTCOME_UNKNOWN, TIMED_OUT, ActiveController
from metadata.controller.describe import describe_brokers, describe_topics
from metadata.controller.ports import Node
from metadata.image import ClusterImage
from metadata.image.topic_configs import COMPRESSION_TYPE
from quorum.core.events import VoterChangeError
from quorum.ports import UnreachableError
from quorumlog.errors import RemoteProtocolError
from quorumlog.wire import rpcs
from quorumlog.wire.compression import unavailable_codecs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.rpcs import AnyRpc, ReplyT, RequestT, Rpc, Sender, header_of, result_of
from quorumlog.wire.v1 import controller_pb2 as pb

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

Handle = Callable[["ControllerService", RequestT, float], Awaitable[ReplyT | Outcome]]
"""Answers a request on the active controller, within a number of milliseconds.  Raises RemoteProtocolError if the
request is malformed; `ControllerService.handle` turns the error into a refusal."""
Describe = Callable[["ControllerService", RequestT, ClusterImage], Awaitable[ReplyT | Outcome]]
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

    async def handle(service: ControllerService, request: RequestT, timeout_ms: float) -> ReplyT | Outcome:
        image = await service.controller.committed_image(timeout_ms)
        return image if isinstance(image, Outcome) else await describe(service, request, image)

    return _Method(rpc, handle, describe)


def _by_image(
    describe: Callable[[ClusterImage, RequestT], Awaitable[ReplyT | Outcome]],
) -> Describe[RequestT, ReplyT]:
    """Adapt a read of another module, which needs only the image."""
    return lambda service, request, image: describe(image, request)


def _by_controller(
    handle: Callable[[ActiveController, RequestT, float], Awaitable[ReplyT | Outcome]],
) -> Handle[RequestT, ReplyT]:
    """Adapt a handler of another module, which needs only the active controller."""
    return lambda service, request, timeout_ms: handle(service.controller, request, timeout_ms)


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
                answered = await method.handle(self, request, remaining_ms)
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
        answer: Message | Outcome = await describe(self, request, image)
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

    # Handlers of the methods

    async def _register(self, request: pb.RegisterBrokerRequest, timeout_ms: float) -> pb.RegisterBrokerReply | Outcome:
        early_topics = convert.early_topics(request)
        answer = await self.controller.register(convert.registration(request), early_topics, timeout_ms)
        return answer if isinstance(answer, Outcome) else convert.registered(answer)

    async def _heartbeat(
        self, request: pb.BrokerHeartbeatRequest, timeout_ms: float
    ) -> pb.BrokerHeartbeatReply | Outcome:
        answer = await self.controller.heartbeat(
            convert.heartbeat(request), request.received_offset, request.pending_changes, timeout_ms
        )
        return answer if isinstance(answer, Outcome) else convert.heartbeat_answer(answer)

    async def _alter_partition(
        self, request: pb.AlterPartitionRequest, timeout_ms: float
    ) -> pb.AlterPartitionReply | Outcome:
        changes = convert.isr_changes(request)
        answer = await self.controller.execute(
            lambda image: alter_partition(image, request.broker_id, request.broker_epoch, changes), timeout_ms
        )
        return answer if isinstance(answer, Outcome) else convert.altered(answer)

    async def _assign_directories(
        self, request: pb.AssignDirectoriesRequest, timeout_ms: float
    ) -> pb.AssignDirectoriesReply | Outcome:
        items = convert.assignments(request)
        answer: Outcome = await self.controller.execute(
            lambda image: assign_directories(image, request.broker_id, request.broker_epoch, items), timeout_ms
        )
        return convert.assigned(answer)

    async def _allocate(
        self, request: pb.AllocateProducerIdsRequest, timeout_ms: float
    ) -> pb.AllocateProducerIdsReply | Outcome:
        answer = await self.controller.execute(
            lambda image: allocate_producer_ids(image, request.broker_id, request.broker_epoch), timeout_ms
        )
        return answer if isinstance(answer, Outcome) else convert.allocated(answer)

    async def _create_topics(
        self, request: pb.CreateTopicsRequest, timeout_ms: float
    ) -> pb.CreateTopicsReply | Outcome:
        topics = convert.new_topics(request)
        unavailable = unavailable_codecs(
            {value for each in topics for key, value in each.configs if key == COMPRESSION_TYPE}
        )

        def decide(image: ClusterImage) -> Decision[tuple[tuple[CreatedTopic, ...], int]]:
            decision = create_topics(
                image,
                topics,
                self.controller.new_id,
                validate_only=request.header.validate_only,
                has_one_voter=len(self._node.voter_ids) == 1,
                unavailable=unavailable,
            )
            return with_end(image, decision)

        answer = await self.controller.execute(decide, timeout_ms)
        return answer if isinstance(answer, Outcome) else convert.created(answer[0], OK, answer[1])

    async def _delete_topics(
        self, request: pb.DeleteTopicsRequest, timeout_ms: float
    ) -> pb.DeleteTopicsReply | Outcome:
        names, topic_ids = convert.topics_to_delete(request)

        def decide(image: ClusterImage) -> Decision[tuple[tuple[DeletedTopic, ...], int]]:
            decision = delete_topics(image, names, topic_ids, validate_only=request.header.validate_only)
            return with_end(image, decision)

        answer = await self.controller.execute(decide, timeout_ms)
        return answer if isinstance(answer, Outcome) else convert.deleted(answer[0], OK, answer[1])

    async def _describe_topics(
        self, request: pb.DescribeTopicsRequest, image: ClusterImage
    ) -> pb.DescribeTopicsReply | Outcome:
        return await describe_topics(image, request.names)

    async def _describe_brokers(
        self, request: pb.DescribeBrokersRequest, image: ClusterImage
    ) -> pb.DescribeBrokersReply | Outcome:
        sessions = [(broker_id, self.controller.session(broker_id)) for broker_id in image.brokers]
        return describe_brokers(image, self._node.cluster_id or "", sessions)

    async def _change_voters(
        self, request: pb.ChangeVotersRequest, timeout_ms: float
    ) -> pb.ChangeVotersReply | Outcome:
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        dry_run = request.header.validate_only
        result = await self._node.change_voters(voters.change(request), dry_run=dry_run, timeout_ms=int(timeout_ms))
        if not result.changed and not result.offset and result.error not in voters.UNSETTLED:
            return await self._confirmed(voters.changed(result), deadline)
        return voters.changed(result)

    async def _transfer_leader(
        self, request: pb.TransferLeaderRequest, timeout_ms: float
    ) -> pb.TransferLeaderReply | Outcome:
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        to = request.to if request.HasField("to") else None
        known = to is None or to in self._node.voter_ids
        if to == self._node.node_id or (request.header.validate_only and known):
            return await self._confirmed(pb.TransferLeaderReply(result=convert.result(OK)), deadline)
        if not known:
            unknown = Outcome(
                ApiError.VOTER_NOT_FOUND, f"node {to} is not a voter", "see `kctl quorum status` for the voters"
            )
            return await self._confirmed(rpcs.TRANSFER_LEADER.reply_of(convert.result(unknown)), deadline)
        answer = await self._node.transfer_leader(to, int(timeout_ms))
        if answer.error is VoterChangeError.NONE or answer.error in voters.UNSETTLED:
            return voters.transferred(answer)
        return await self._confirmed(voters.transferred(answer), deadline)

    async def _confirmed(self, reply: ReplyT, deadline: float) -> ReplyT | Outcome:
        """Return `reply` once it is proven that this node still led at the call, else the reason for the missing proof.

        Only for a reply without an append: the commit of an append is itself the proof.
        """
        left_ms = max((deadline - asyncio.get_running_loop().time()) * 1000, 1)
        return await self.controller.confirm(left_ms) or reply

    async def _set_preferred(
        self, request: pb.SetPreferredControllersRequest, timeout_ms: float
    ) -> pb.SetPreferredControllersReply | Outcome:
        def decide(image: ClusterImage) -> Decision[tuple[Preferred, int]]:
            voter_ids = self._node.voter_ids
            wanted = least_burdened(image, voter_ids) if request.auto else tuple(request.node_ids)
            decision = set_preferred(image, wanted, voter_ids, validate_only=request.header.validate_only)
            return with_end(image, decision)

        answer = await self.controller.execute(decide, timeout_ms)
        if isinstance(answer, Outcome):
            return answer
        preferred, offset = answer
        return pb.SetPreferredControllersReply(
            result=convert.result(preferred.outcome),
            changed=preferred.changed,
            offset=offset,
            node_ids=preferred.node_ids,
        )

    async def _describe_preferred(
        self, request: pb.DescribePreferredControllersRequest, image: ClusterImage
    ) -> pb.DescribePreferredControllersReply | Outcome:
        return pb.DescribePreferredControllersReply(
            result=convert.result(OK), offset=image.end_offset, node_ids=image.preferred_controllers
        )


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
        _change(rpcs.REGISTER_BROKER, ControllerService._register),
        _change(rpcs.BROKER_HEARTBEAT, ControllerService._heartbeat),
        _change(rpcs.ALTER_PARTITION, ControllerService._alter_partition),
        _change(rpcs.ASSIGN_DIRECTORIES, ControllerService._assign_directories),
        _change(rpcs.ALLOCATE_PRODUCER_IDS, ControllerService._allocate),
        _change(rpcs.CREATE_TOPICS, ControllerService._create_topics),
        _change(rpcs.DELETE_TOPICS, ControllerService._delete_topics),
        _read(rpcs.DESCRIBE_TOPICS, ControllerService._describe_topics),
        _read(rpcs.DESCRIBE_BROKERS, ControllerService._describe_brokers),
        _change(rpcs.ADD_PARTITIONS, _by_controller(admin.add_partitions)),
        _change(rpcs.REMOVE_PARTITIONS, _by_controller(admin.remove_partitions)),
        _change(rpcs.UNREGISTER_BROKER, _by_controller(admin.unregister_broker)),
        _change(rpcs.ALTER_CONFIGS, _by_controller(configs.alter_configs)),
        _read(rpcs.DESCRIBE_CONFIGS, _by_image(configs.describe_configs)),
        _change(rpcs.ELECT_LEADERS, _by_controller(elections.elect_leaders)),
        _change(rpcs.ALTER_REASSIGNMENTS, _by_controller(reassignments.alter_reassignments)),
        _read(rpcs.LIST_REASSIGNMENTS, _by_image(reassignments.describe_reassignments)),
        _change(rpcs.CHANGE_VOTERS, ControllerService._change_voters),
        # A leader that cannot become the active controller must be able to hand over.
        _change(rpcs.TRANSFER_LEADER, ControllerService._transfer_leader, needs_controller=False),
        _change(rpcs.SET_PREFERRED_CONTROLLERS, ControllerService._set_preferred),
        _read(rpcs.DESCRIBE_PREFERRED_CONTROLLERS, ControllerService._describe_preferred),
        _read(rpcs.DESCRIBE_FEATURES, _by_image(features.describe_features)),
        _change(rpcs.UPGRADE_FEATURE, _by_controller(features.upgrade_feature)),
    )
}
"""Every RPC of the service."""
