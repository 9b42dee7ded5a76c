"""Reads of the metadata that need no active controller.

An active controller confirms a read: its answer contains every change that was acknowledged before the read.  Without a
controller, every node can still report the metadata that it has applied, with the offset.  `read` prefers a controller
and waits for it briefly; `read_anywhere` asks the nodes immediately.  `result.unconfirmed` in the reply is True if no
active controller has confirmed it.

Offsets can be compared only within one generation of the quorum.  A voter that `quorum-node recover` left behind may
still run, and may have applied more than the rebuilt quorum has.  So answers are ordered by generation, then by offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError
from quorumlog.wire.rpcs import ReplyT, RequestT, Rpc, header_of

CONFIRM_S: Final = 1.2
"""How long to wait for an active controller before other nodes are asked as well."""
GRACE_S: Final = 0.3
"""Time limit of the other nodes after the first answer."""
NODES_MAX: Final = 32
"""Maximum number of nodes that are asked."""
TOPICS_AT_ONCE: Final = 256
"""Number of topics in one request if one answer cannot hold all topics."""

T = TypeVar("T")


class Caller(Protocol):
    """Sends RPCs to the active controller, as `ControllerClient.call` does."""

    async def call(self, rpc: Rpc[RequestT, ReplyT], request: RequestT, timeout_s: float) -> ReplyT: ...


class Client(Caller, Protocol):
    """The part of `ControllerClient` that reads use."""

    @property
    def addresses(self) -> list[str]: ...

    async def call_node(
        self, address: str, rpc: Rpc[RequestT, ReplyT], request: RequestT, timeout_s: float
    ) -> ReplyT: ...


async def read(client: Client, rpc: Rpc[RequestT, ReplyT], request: RequestT, timeout_s: float) -> ReplyT:
    """Return the answer of the active controller; if none answers soon, the best answer of the nodes.

    Raises:
        ClusterError: refused, or no node answered within `timeout_s`.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    confirmed = asyncio.ensure_future(client.call(rpc, request, timeout_s))
    tasks = {confirmed}
    try:
        await asyncio.wait(tasks, timeout=min(CONFIRM_S, timeout_s / 2))
        if _is_settled(confirmed):
            return confirmed.result()
        left_s = max(deadline - loop.time(), 0.0)
        unconfirmed = asyncio.ensure_future(read_anywhere(client, rpc, request, left_s))
        tasks.add(unconfirmed)
        waiting = set(tasks)
        while waiting:
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in (confirmed, unconfirmed):
                if _is_settled(task):
                    return task.result()
        return confirmed.result()  # raises, since neither a controller nor another node answered
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def read_anywhere(client: Client, rpc: Rpc[RequestT, ReplyT], request: RequestT, timeout_s: float) -> ReplyT:
    """Ask up to NODES_MAX known nodes at the same time; return the best answer.

    The best answer is a confirmed one, else one of the newest generation, and among these the one with the highest
    offset.  After the first answer, the other nodes have `GRACE_S` left.

    Raises:
        ClusterError: no node answered with success; if a refusal was not retriable, this refusal.
    """
    copy = type(request)()
    copy.CopyFrom(request)
    header_of(copy).unconfirmed = True
    tasks = {
        asyncio.ensure_future(client.call_node(address, rpc, copy, timeout_s))
        for address in client.addresses[:NODES_MAX]
    }
    try:
        waiting = set(tasks)
        while waiting and not any(map(_has_answer, tasks)):
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if waiting:
            await asyncio.wait(waiting, timeout=GRACE_S)
        answers = [task.result() for task in tasks if _has_answer(task)]
        if answers:
            return max(answers, key=_rank)
        raise _worst(task.exception() for task in tasks if task.done())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _rank(reply: Any) -> tuple[bool, int, int]:
    """Return a key that is greater for the better answer."""
    return not reply.result.unconfirmed, reply.result.generation, reply.offset


def _has_answer(task: asyncio.Future[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _is_settled(task: asyncio.Future[Any]) -> bool:
    """Return whether the call ended with an answer, or with an error that other nodes would give as well."""
    if not task.done():
        return False
    error = task.exception()
    return not (isinstance(error, ClusterError) and error.retriable)


def _worst(errors: Iterable[BaseException | None]) -> BaseException:
    found = [error for error in errors if error is not None]
    return min(found, key=lambda error: isinstance(error, ClusterError) and error.retriable)


async def in_parts(names: Sequence[str], size: int, ask: Callable[[Sequence[str]], Awaitable[Iterable[T]]]) -> list[T]:
    """Return the answers about topics, from several requests.

    size: the number of topics in one request; it is halved while an answer would be too large (POLICY_VIOLATION).

    Raises:
        ClusterError: an error of `ask`; POLICY_VIOLATION: the answer about a single topic is too large.
    """
    found: list[T] = []
    while names:
        try:
            found += await ask(names[:size])
        except ClusterError as error:
            size = min(size, len(names))
            if error.code != ApiError.POLICY_VIOLATION or size == 1:
                raise
            size //= 2
            continue
        names = names[size:]
    return found
