"""Requests that only the leader of a partition can answer, asked until it does or the time is up.

Theory of operation.  A leader dies, moves, or has not heard yet that it leads: none of that is an error to who reads
or writes a partition, it is a reason to look the leader up again and to ask again.  `PartitionCalls.call` does so with
a growing pause until a deadline, and then says what the last answer was.  What may be asked again is the caller's
concern: a fetch always, a batch because the broker recognises its sequence number.

A leader that hangs keeps its connections open, and answers nothing, until it goes on or is killed.  So who has waited
for longer than an answer should take looks, now and then, whether others say that somebody else leads by now; then the
question is put to that one, and what the old leader may still answer is not heard.

A topic that nobody knows is given a few seconds only: it may just have been created, but it may as well be misspelt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from quorumlog.client.kafka import KafkaConnection, error_word
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError

PAUSE_MIN_S = 0.05
PAUSE_MAX_S = 0.5
UNKNOWN_TOPIC_TIMEOUT_S = 10.0
LOOK_AFTER_S = 1.0
"""How long an answer may be late before others are asked who leads; as long again until they are asked again."""

Reply = TypeVar("Reply")


class Leaders(Protocol):
    """What is needed of `kafka.Cluster`."""

    async def leader(self, topic: str, index: int, timeout_s: float) -> KafkaConnection:
        """An open connection to the partition's leader; raises ClusterError."""

    async def leader_lost(self, topic: str, index: int, connection: KafkaConnection) -> None:
        """The connection failed, or its broker is not the leader: look it up before the next answer."""

    async def has_moved(self, topic: str, index: int, connection: KafkaConnection) -> bool:
        """Whether others, asked now, say that the partition is led by another broker than this connection's.

        Raises nothing; False while nobody else can say.
        """


def refusal(code: int, topic: str, index: int, what: str) -> ClusterError:
    """A broker's error code as what a client sees."""
    name, retriable = error_word(code)
    message = f"{topic}-{index}: {what} was answered with {name}"
    return ClusterError(name, message, retriable=retriable, refresh_metadata=retriable)


class PartitionCalls:
    """Asks leaders.  Bound to one loop, as the connections are.

    retry_pause_max_s: what the pause between two tries grows to.
    """

    def __init__(self, leaders: Leaders, retry_pause_max_s: float = PAUSE_MAX_S) -> None:
        self._leaders = leaders
        self._pause_max_s = retry_pause_max_s

    async def call(
        self,
        topic: str,
        index: int,
        timeout_s: float,
        attempt: Callable[[KafkaConnection, float], Coroutine[Any, Any, Reply]],
        wait_s: float = 0.0,
    ) -> Reply:
        """`attempt(connection, seconds left)`, again while it raises a retriable ClusterError.

        wait_s: how long a leader may hold its answer back by what it is asked.

        Raises:
            ClusterError: what `attempt` raised if that is not retriable; else TIMED_OUT, with the last error as cause.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        unknown_since: float | None = None
        pause_s = min(PAUSE_MIN_S, self._pause_max_s)
        while True:
            left_s = deadline - loop.time()
            connection: KafkaConnection | None = None
            try:
                connection = await self._leaders.leader(topic, index, max(left_s, PAUSE_MIN_S))
                asked = asyncio.ensure_future(attempt(connection, max(left_s, PAUSE_MIN_S)))
                return await self._answer(topic, index, connection, asked, wait_s)
            except ClusterError as error:
                if not error.retriable:
                    raise
                now = loop.time()
                unknown = error.code in (ApiError.UNKNOWN_TOPIC_OR_PARTITION, ApiError.UNKNOWN_TOPIC_ID)
                unknown_since = (unknown_since or now) if unknown else None
                if unknown_since is not None and now - unknown_since > UNKNOWN_TOPIC_TIMEOUT_S:
                    raise ClusterError(
                        error.code, f"{topic}-{index} does not exist", "kctl topics list", retriable=False
                    ) from error
                if now + pause_s >= deadline:
                    after = f"{round(timeout_s, 2):g} s"
                    raise ClusterError(
                        ApiError.TIMED_OUT,
                        f"{topic}-{index}: given up after {after}; the last answer was: {error.message}",
                        "kctl topics describe " + topic,
                        retriable=True,
                    ) from error
                if error.refresh_metadata and connection is not None:
                    await self._leaders.leader_lost(topic, index, connection)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, self._pause_max_s)

    async def _answer(
        self, topic: str, index: int, connection: KafkaConnection, asked: asyncio.Future[Reply], wait_s: float
    ) -> Reply:
        """What was asked, unless it is not answered while somebody else leads by now."""
        look: asyncio.Future[bool] | None = None
        try:
            await asyncio.wait({asked}, timeout=wait_s + LOOK_AFTER_S)
            while not asked.done():
                look = asyncio.ensure_future(self._leaders.has_moved(topic, index, connection))
                await asyncio.wait((asked, look), return_when=asyncio.FIRST_COMPLETED)
                if asked.done():
                    break
                if look.result():
                    raise ClusterError(
                        ApiError.NOT_LEADER_OR_FOLLOWER,
                        f"{topic}-{index}: {connection.peer} does not answer, and leads no more",
                        retriable=True,
                    )
                await asyncio.wait({asked}, timeout=LOOK_AFTER_S)
            return asked.result()
        finally:
            asked.cancel()
            if look is not None:
                look.cancel()
