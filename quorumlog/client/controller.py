"""A client of the control plane: any node accepts a request and forwards it to the active controller.

`call` tries each address in turn, with a back-off after each round, until it has an answer or its deadline passes.  A
change is sent again only if the first attempt certainly had no effect: no connection to the node was made, or the node
answered with a retriable refusal.  If a connection breaks, or the deadline passes, after a change was sent, its outcome
is unknown.  The error is then OUTCOME_UNKNOWN, and the caller must check before retrying.

A node may hang while its connection stays open.  So a change is sent at once only to a node that has answered within
the last second.  Any other node is first asked to describe the quorum, which changes nothing.  If it does not answer,
the next node is tried.  A node that has not answered is avoided for a while: it is asked only if no other node answers.
A node that knows no leader would hold a change until its deadline.  So it gets the change only if no other node of the
round knows a leader.

If no node answers, a call normally waits until its deadline, because nodes may be restarting.  With `refused_s`, it
ends sooner if nothing listens at any address: the addresses are then probably wrong, or no node was started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from random import Random
from typing import NamedTuple, TypeVar

import grpc
import grpc.aio

from quorumlog.client.probe import Silence, why_silent
from quorumlog.errors import ClusterError
from quorumlog.runtime.backoff import Backoff
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.grpc import connect, make_channel, method_of
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.rpcs import ReplyT, RequestT, Rpc, Service, header_of, result_of
from quorumlog.wire.v1 import controller_pb2, quorum_pb2

T = TypeVar("T")

_SILENT = (ApiError.UNAVAILABLE, ApiError.TIMED_OUT)
_GIVE_ADDRESS = (
    "give the control address of a running node in --controllers or KCTL_CONTROLLERS (its port is 9093 by default)"
)
_NOTHING_DONE = (ApiError.INVALID_REQUEST, ApiError.UNSUPPORTED_VERSION, ApiError.NOT_A_NODE)

CONNECT_TIMEOUT_S = 2.0
READ_ATTEMPT_TIMEOUT_S = 5.0
ASK_TIMEOUT_MIN_S = 1.0
PROBE_S = 1.0
"""Time limit of each of the two steps that examine an address that does not answer."""
SHOWN_MAX = 5
"""Maximum number of addresses that are examined if none answers, and that the error names."""
ANSWER_FRESH_S = 1.0
"""A change is sent without a check to a node that answered this recently."""
LOOK_TIMEOUT_S = 1.0
"""Time limit of the check before a change is sent.  It is doubled in each further round."""
AVOID_S = 30.0
BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 0.25
"""Longest pause between two rounds.  A new leader exists within 3 s, so longer pauses would only delay a call."""
NOTICE_S = 1.5
"""A call that has waited this long for its first connection reports this, once for each client."""


class _Look(NamedTuple):
    """The result of the check before a change is sent.

    silence: the reason why the node does not answer; None if it answers.  is_leaderless: the node knows no leader.
    """

    silence: ClusterError | None = None
    is_leaderless: bool = False


class ControllerClient:
    """Calls nodes by their control addresses; use it in `async with`, which closes its connections.

    addresses: at least one, as HOST:PORT.  random: draws the pauses between retries; None: the system's random device.
    refused_s: a call fails once all addresses have refused connections for this long and no node has answered before;
    None: it waits until its deadline.  on_wait: called at most once, with the reason, if a call waits for its first
    connection for NOTICE_S.
    """

    def __init__(
        self,
        addresses: Iterable[str],
        random: Random | None = None,
        *,
        refused_s: float | None = None,
        on_wait: Callable[[str], None] | None = None,
    ) -> None:
        self._addresses = list(dict.fromkeys(addresses))
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._silences: dict[str, Silence] = {}
        """The reasons why addresses do not answer, as far as they were examined."""
        self._answered_at: dict[str, float] = {}
        self._avoided_until: dict[str, float] = {}
        self._random = random or Sources.real().random
        self._is_closed = False
        self._refused_s = refused_s
        self._on_wait = on_wait
        self._has_answered = False
        """Whether any node has answered: the addresses are then right, and refusals mean that nodes restart."""
        assert self._addresses, "no address to call"

    async def __aenter__(self) -> ControllerClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection.  Calls in progress fail with CLIENT_CLOSED; a change may have taken effect."""
        self._is_closed = True
        channels = list(self._channels.values())
        self._channels.clear()
        for channel in channels:
            await channel.close()

    async def call(self, rpc: Rpc[RequestT, ReplyT], request: RequestT, timeout_s: float) -> ReplyT:
        """Send an RPC of the `Controller` service and return its reply, whose own `result` is success.

        The caller must check the results of single items in the reply, such as topics.

        Raises:
            ClusterError: refused (with the code of the refusal), or UNAVAILABLE, TIMED_OUT, OUTCOME_UNKNOWN; or
                NOT_A_NODE: an address is not the control address of a node.
        """
        assert rpc.service is Service.CONTROLLER, rpc
        deadline = _now() + timeout_s
        reason: ClusterError | None = None
        attempts = _Attempts(self, deadline)
        while (address := await attempts.next()) is not None:
            if not rpc.reads_only:
                look = await self._look_first(address, attempts.look_timeout_s)
                reason = look.silence or reason
                if look.silence is not None or (look.is_leaderless and attempts.put_off(address)):
                    continue
            channel = self._channel(address)
            request_with_deadline = _with_timeout(request, deadline)
            ask = method_of(channel, rpc)
            limit = max(deadline - _now(), 0.001)
            try:
                limit = min(limit, READ_ATTEMPT_TIMEOUT_S) if rpc.reads_only else limit
                reply = await self._unless_closed(ask(request_with_deadline, timeout=limit))
            except grpc.aio.AioRpcError as error:
                reason = await self._meaning(error, address, deadline)
                if reason.code in _SILENT:
                    self._avoid(address)
                if not rpc.reads_only and reason.code not in _NOTHING_DONE:
                    raise ClusterError(
                        ApiError.OUTCOME_UNKNOWN,
                        f"{address} accepted the request, then: {reason.message}",
                        "check whether it took effect before you retry",
                        retriable=True,
                    ) from error
                if not reason.retriable:
                    raise reason from error
                continue
            self.prefer(address)
            attempts.answered()
            result = result_of(reply)
            if result.error in (ApiError.NONE, ""):
                return reply
            nobody = f"no active controller answered within {round(timeout_s, 2):g} s; {address}: "
            reason = _refusal(result, nobody if result.error == ApiError.NOT_CONTROLLER else "")
            if not result.retriable or result.error == ApiError.OUTCOME_UNKNOWN:
                raise reason
        raise reason or self._no_answer()

    async def _look_first(self, address: str, timeout_s: float) -> _Look:
        """Ask a node for its view of the quorum before a change is sent to it."""
        if _now() - self._answered_at.get(address, -ANSWER_FRESH_S) < ANSWER_FRESH_S:
            return _Look()
        try:
            described = await self._describe(self._channel(address), _now() + timeout_s)
        except grpc.aio.AioRpcError as error:
            reason = _from_rpc(error, address)
            if reason.code in _SILENT:
                self._avoid(address)
                return _Look(silence=reason)
            return _Look()
        return _Look(is_leaderless=not described.known.HasField("leader_id"))

    @property
    def addresses(self) -> list[str]:
        """Return the known control addresses, in the order in which they are tried."""
        return list(self._addresses)

    async def call_node(self, address: str, rpc: Rpc[RequestT, ReplyT], request: RequestT, timeout_s: float) -> ReplyT:
        """Send a read of the `Controller` service to one node, once, and return its reply, whose `result` is success.

        Changes must not be sent this way: if the answer were lost, the outcome would be unknown.

        Raises:
            ClusterError: refused, or UNAVAILABLE, TIMED_OUT.
        """
        assert rpc.service is Service.CONTROLLER, rpc
        assert rpc.reads_only, rpc
        return await self._ask_once(address, rpc, request, timeout_s)

    async def ask_any(self, rpc: Rpc[RequestT, ReplyT], request: RequestT, timeout_s: float) -> ReplyT:
        """Send an RPC of the `Node` service to one node after the other until one answers with success in its `result`.

        Raises:
            ClusterError: refused, or no node answered.
        """
        assert rpc.service is Service.NODE, rpc
        deadline = _now() + timeout_s
        reason: ClusterError | None = None
        attempts = _Attempts(self, deadline)
        while (address := await attempts.next()) is not None:
            # A node that hangs must leave time for the others, but a large request needs some time.
            left = deadline - _now()
            try:
                limit = _now() + max(left / 2, min(left, ASK_TIMEOUT_MIN_S))
                reply = await self._ask(address, rpc, request, limit)
            except ClusterError as error:
                if not error.retriable:
                    raise
                reason = error
                self._avoid(address)
                continue
            self.prefer(address)
            return reply
        raise reason or self._no_answer()

    async def ask_node(self, address: str, rpc: Rpc[RequestT, ReplyT], request: RequestT, timeout_s: float) -> ReplyT:
        """Send an RPC of the `Node` service to one node, once, and return its reply, whose `result` is success.

        Raises:
            ClusterError: refused, or UNAVAILABLE, TIMED_OUT.
        """
        assert rpc.service is Service.NODE, rpc
        return await self._ask_once(address, rpc, request, timeout_s)

    async def _ask_once(self, address: str, rpc: Rpc[RequestT, ReplyT], request: RequestT, timeout_s: float) -> ReplyT:
        deadline = _now() + timeout_s
        if not await connect(self._channel(address), min(timeout_s, CONNECT_TIMEOUT_S)):
            raise ClusterError(ApiError.UNAVAILABLE, f"no answer from {address}", retriable=True)
        return await self._ask(address, rpc, request, deadline)

    async def _ask(self, address: str, rpc: Rpc[RequestT, ReplyT], request: RequestT, deadline: float) -> ReplyT:
        ask = method_of(self._channel(address), rpc)
        limit = max(deadline - _now(), 0.001)
        try:
            reply = await self._unless_closed(ask(_with_timeout(request, deadline), timeout=limit))
        except grpc.aio.AioRpcError as error:
            raise await self._meaning(error, address, deadline) from error
        result = result_of(reply)
        if result.error not in (ApiError.NONE, ""):
            raise _refusal(result)
        return reply

    def learn(self, addresses: Iterable[str]) -> None:
        """Add further nodes of the cluster, to be tried after the known ones."""
        self._addresses += [address for address in dict.fromkeys(addresses) if address not in self._addresses]

    async def describe_quorum_of(self, address: str, timeout_s: float) -> quorum_pb2.DescribeQuorumReply:
        """Return the node's description of the quorum.

        Raises:
            ClusterError: the node does not answer, or is not a quorumlog node.
        """
        deadline = _now() + timeout_s
        if not await connect(self._channel(address), min(timeout_s, CONNECT_TIMEOUT_S)):
            raise ClusterError(ApiError.UNAVAILABLE, f"no answer from {address}", retriable=True)
        try:
            return await self._describe(self._channel(address), deadline)
        except grpc.aio.AioRpcError as error:
            raise _from_describe(error, address) from error

    async def describe_quorum(self, timeout_s: float) -> quorum_pb2.DescribeQuorumReply:
        """Return the leader's description of the quorum, or the newest description if the leader does not answer.

        A node that knows no leader may be disconnected, or may have been left behind when the quorum was rebuilt.  So
        all other nodes are asked as well, unless the leader itself has answered.

        Raises:
            ClusterError: no node answered.
        """
        deadline = _now() + timeout_s
        reason: ClusterError | None = None
        attempts, tried = _Attempts(self, deadline), set[str]()
        while (address := await attempts.next()) is not None:
            tried.add(address)
            try:
                reply = await self._describe(self._channel(address), deadline)
            except grpc.aio.AioRpcError as error:
                reason = _from_describe(error, address)
                if not reason.retriable:
                    raise reason from error
                self._avoid(address)
                continue
            reply = await self._ask_leader(reply, deadline)
            others = [] if _leads(reply) else await self._describe_all(tried, deadline)
            best, address = max([(reply, address), *others], key=lambda found: _freshness(found[0]))
            self.prefer(address)
            return best
        raise reason or self._no_answer()

    async def _describe_all(
        self, but: Collection[str], deadline: float
    ) -> list[tuple[quorum_pb2.DescribeQuorumReply, str]]:
        """Return the descriptions of the other nodes that answer soon, with their addresses."""

        async def ask(address: str) -> tuple[quorum_pb2.DescribeQuorumReply, str] | None:
            limit_s = max(0.0, min(deadline - _now(), CONNECT_TIMEOUT_S))
            try:
                return await self.describe_quorum_of(address, limit_s), address
            except ClusterError:
                return None

        found = await asyncio.gather(*(ask(address) for address in self._addresses if address not in but))
        return [one for one in found if one is not None]

    def _no_answer(self) -> ClusterError:
        shown = self._addresses[:SHOWN_MAX]
        if not self._silences:
            text = f"no answer from {', '.join(shown)}"
        else:
            why = "; ".join(
                f"{address}: {self._silences[address].text}" for address in shown if address in self._silences
            )
            text = f"no node answers: {why}"
        if len(self._addresses) > SHOWN_MAX:
            text += ", …"
        if self._silences and all(silence.is_other_port for silence in self._silences.values()):
            return ClusterError(ApiError.NOT_A_NODE, text, _GIVE_ADDRESS)
        return ClusterError(
            ApiError.UNAVAILABLE,
            text,
            f"start a node there, or {_GIVE_ADDRESS}",
            retriable=True,
        )

    async def find_out_why(self, limit_s: float) -> None:
        """Store the reasons why the first SHOWN_MAX addresses do not answer, after none has accepted a connection.

        Raises:
            ClusterError: NOT_A_NODE: all addresses speak another protocol, so waiting does not help.
        """
        addresses = self._addresses[:SHOWN_MAX]
        found = await asyncio.gather(*(why_silent(address, min(limit_s / 2, PROBE_S)) for address in addresses))
        self._silences = dict(zip(addresses, found, strict=True))
        if len(found) == len(self._addresses) and all(silence.is_other_port for silence in found):
            raise self._no_answer()

    @property
    def _is_refused(self) -> bool:
        """Return whether all addresses refused a connection when they were last examined."""
        return all(each in self._silences and self._silences[each].is_refused for each in self._addresses)

    def _report_wait(self) -> None:
        if self._on_wait is not None and not self._has_answered:
            self._on_wait(self._no_answer().message)
            self._on_wait = None

    async def _meaning(self, error: grpc.aio.AioRpcError, address: str, deadline: float) -> ClusterError:
        """Return the error for a failed call.

        If the address does not support the request, an older node may run there, or another program.  DescribeQuorum,
        which every version of quorumlog supports, distinguishes the two.
        """
        reason = _from_rpc(error, address)
        if reason.code == ApiError.UNSUPPORTED_VERSION:
            try:
                await self._describe(self._channel(address), deadline)
            except grpc.aio.AioRpcError as second:
                if second.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return _not_a_node(second, address)
        return reason

    async def _ask_leader(
        self, reply: quorum_pb2.DescribeQuorumReply, deadline: float
    ) -> quorum_pb2.DescribeQuorumReply:
        known = reply.known
        if not known.HasField("leader_id") or known.leader_id == reply.answered_by.node_id or not known.leader_address:
            return reply
        channel = self._channel(known.leader_address)
        if not await connect(channel, min(CONNECT_TIMEOUT_S, deadline - _now())):
            return reply
        try:
            answer = await self._describe(channel, deadline)
        except grpc.aio.AioRpcError:
            return reply
        return answer if answer.known.epoch >= known.epoch else reply

    async def _describe(self, channel: grpc.aio.Channel, deadline: float) -> quorum_pb2.DescribeQuorumReply:
        ask = method_of(channel, rpcs.DESCRIBE_QUORUM)
        limit = min(max(deadline - _now(), 0.001), READ_ATTEMPT_TIMEOUT_S)
        return await self._unless_closed(ask(quorum_pb2.DescribeQuorumRequest(correlation_id=1), timeout=limit))

    async def _unless_closed(self, answer: Awaitable[T]) -> T:
        """Await an answer.  If `close` cancels the wait, raise an error, because the caller's task is not cancelled.

        Raises: ClusterError: CLIENT_CLOSED.
        """
        try:
            return await answer
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._is_closed or task is None or task.cancelling():
                raise
            raise _closed() from None

    def prefer(self, address: str) -> None:
        """Ask this node first, since it has answered.  An unavailable node in its place would delay each call."""
        self._has_answered = True
        self._answered_at[address] = _now()
        self._avoided_until.pop(address, None)
        self._addresses = [address, *(other for other in self._addresses if other != address)]

    def _avoid(self, address: str) -> None:
        """Ask this node last, since it has not answered.  For AVOID_S, ask it only if no other node answers."""
        self._avoided_until[address] = _now() + AVOID_S
        self._answered_at.pop(address, None)
        self._addresses.remove(address)
        self._addresses.append(address)

    def _is_avoided(self, address: str) -> bool:
        return _now() < self._avoided_until.get(address, 0.0)

    def _channel(self, address: str) -> grpc.aio.Channel:
        if self._is_closed:
            raise _closed()
        if address not in self._channels:
            self._channels[address] = make_channel(address)
        return self._channels[address]


class _Attempts:
    """Finds the next address to try, in rounds, until the deadline.  Only addresses that accept a connection count."""

    def __init__(self, client: ControllerClient, deadline: float) -> None:
        self._client = client
        self._deadline = deadline
        self._backoff = Backoff(BACKOFF_FIRST_S, BACKOFF_MAX_S, client._random)
        self._waiting: list[str] = []
        self._avoided: list[str] = []
        self._put_off: set[str] = set()
        self._is_silent = True
        """True until an address accepts a connection."""
        self._began_at = _now()
        self._examine_at = self._began_at
        """The next time at which the reasons of the silence are examined."""
        self._refused_since: float | None = None
        self._look_timeout_s = LOOK_TIMEOUT_S
        self._begin_round()

    @property
    def look_timeout_s(self) -> float:
        """Return the time limit, in seconds, for a node of this round to show that it answers."""
        return max(min(self._look_timeout_s, self._deadline - _now()), 0.001)

    def _begin_round(self) -> None:
        addresses = self._client._addresses
        self._waiting = [address for address in addresses if not self._client._is_avoided(address)]
        self._avoided = [address for address in addresses if self._client._is_avoided(address)]

    async def next(self) -> str | None:
        """Return the next address that accepts a connection; None when the time is up.

        Raises:
            ClusterError: NOT_A_NODE; see `ControllerClient.find_out_why`.  UNAVAILABLE: nothing listens at any address;
                see `refused_s` of `ControllerClient`.
        """
        notice_s = self._began_at + NOTICE_S - _now()
        notice = asyncio.get_running_loop().call_later(notice_s, self._client._report_wait)
        try:
            return await self._next()
        finally:
            notice.cancel()

    async def _next(self) -> str | None:
        while (limit := self._deadline - _now()) > 0:
            if not self._waiting:
                self._waiting, self._avoided = self._avoided, []
            if not self._waiting:
                if self._is_silent and _now() >= self._examine_at:
                    await self._examine(limit)
                    limit = max(self._deadline - _now(), 0.0)
                await asyncio.sleep(min(self._backoff.next_s(), limit))  # no event signals that a node has restarted
                self._look_timeout_s *= 2
                self._begin_round()
                continue
            address = self._waiting.pop(0)
            if await connect(self._client._channel(address), min(limit, CONNECT_TIMEOUT_S)):
                self._is_silent = False
                return address
        return None

    async def _examine(self, limit_s: float) -> None:
        """Find out why no address accepts a connection, and give up if all have refused it for `refused_s`.

        Raises:
            ClusterError: NOT_A_NODE or UNAVAILABLE, as in `next`.
        """
        client = self._client
        await client.find_out_why(limit_s)
        if client._refused_s is None or client._has_answered:
            self._examine_at = self._deadline
            return
        self._examine_at = _now() + client._refused_s
        if not client._is_refused:
            self._refused_since = None
        elif self._refused_since is None:
            self._refused_since = _now()
        else:
            raise client._no_answer()

    def put_off(self, address: str) -> bool:
        """Try this address again after the others of the round, and return True.

        False: the address was put off before in this call, or no other address is left in the round.
        """
        if address in self._put_off or not self._waiting:
            return False
        self._put_off.add(address)
        self._waiting.append(address)
        return True

    def answered(self) -> None:
        """Note that a node of this round has answered.  Avoided nodes are then not asked in this round."""
        self._avoided.clear()


def _leads(reply: quorum_pb2.DescribeQuorumReply) -> bool:
    """Return whether the node reports that it leads."""
    return reply.known.HasField("leader_id") and reply.known.leader_id == reply.answered_by.node_id


def _freshness(reply: quorum_pb2.DescribeQuorumReply) -> tuple[int, int, bool, int]:
    """Return a key that is greater for a node with newer knowledge."""
    return reply.known.generation, reply.known.epoch, _leads(reply), reply.high_watermark


def _with_timeout(request: RequestT, deadline: float) -> RequestT:
    """Return a copy of `request` with the remaining time for the nodes."""
    copy = type(request)()
    copy.CopyFrom(request)
    header_of(copy).timeout_ms = max(1, int((deadline - _now()) * 1000))
    return copy


def _refusal(result: controller_pb2.Result, before: str = "") -> ClusterError:
    text = before + (result.message or result.error)
    return ClusterError(result.error, text, result.next, retriable=result.retriable)


def _from_rpc(error: grpc.aio.AioRpcError, address: str) -> ClusterError:
    """Return the error of a failed call in words for the user."""
    details = (error.details() or "").strip() or error.code().name
    match error.code():
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return ClusterError(ApiError.TIMED_OUT, f"{address} did not answer in time", retriable=True)
        case grpc.StatusCode.UNIMPLEMENTED:
            return ClusterError(
                ApiError.UNSUPPORTED_VERSION, f"{address} does not support this request", "upgrade that node"
            )
        case grpc.StatusCode.INVALID_ARGUMENT:
            return ClusterError(ApiError.INVALID_REQUEST, f"{address}: {details}")
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED | grpc.StatusCode.RESOURCE_EXHAUSTED:
            return ClusterError(ApiError.UNAVAILABLE, f"{address}: {details}", retriable=True)
    return ClusterError(ApiError.UNKNOWN_SERVER_ERROR, f"{address}: {error.code().name}: {details}")


def _from_describe(error: grpc.aio.AioRpcError, address: str) -> ClusterError:
    is_ours = error.code() is not grpc.StatusCode.UNIMPLEMENTED
    return _from_rpc(error, address) if is_ours else _not_a_node(error, address)


def _not_a_node(error: grpc.aio.AioRpcError, address: str) -> ClusterError:
    text = f"{address} is not the address of a quorumlog node ({(error.details() or '').strip() or error.code().name})"
    return ClusterError(ApiError.NOT_A_NODE, text, _GIVE_ADDRESS)


def _closed() -> ClusterError:
    return ClusterError(ApiError.CLIENT_CLOSED, "the client was closed", "check changes before you repeat them")


def _now() -> float:
    return asyncio.get_running_loop().time()
