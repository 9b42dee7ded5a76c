"""Requests that only the leader of a partition can answer, with retries until it answers or the time is up.

Theory of operation.  A leader may fail, move, or not know yet that it leads.  For a client these are not errors, but
reasons to look up the leader and to retry.  `PartitionCalls.call` does so with growing pauses until a deadline, and
then reports the last answer.  The caller must make sure that a retry is safe.  A fetch can always be retried.  A batch
can be retried because the broker recognises its sequence number.

A leader that hangs keeps its connections open and answers nothing until it resumes or is killed.  So when an answer is
late, other brokers are asked at intervals whether another broker leads now.  If so, the request is sent to that broker,
and a later answer of the old leader is ignored.

If the topic is unknown, the request is retried for UNKNOWN_TOPIC_TIMEOUT_S only: the topic may just have been created,
but its name may also be misspelt.  If the deadline comes earlier, a topic that was unknown during the last half of the
time counts as missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Protocol, TypeVar

from quorumlog.client.kafka import KafkaConnection, error_word
from quorumlog.errors import ClusterError
from quorumlog.runtime.backoff import Backoff
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.words import about

PAUSE_MIN_S = 0.05
PAUSE_MAX_S = 0.5
UNKNOWN_TOPIC_TIMEOUT_S = 10.0
LOOK_AFTER_S = 1.0
"""If an answer is later than this, other brokers are asked for the leader, and again at this interval."""

Reply = TypeVar("Reply")


class Leaders(Protocol):
    """The part of `Cluster` that is used here."""

    random: Random
    """Draws the pauses between retries."""

    async def leader(self, topic: str, index: int, timeout_s: float) -> KafkaConnection:
        """Return an open connection to the partition's leader; raises ClusterError."""

    async def leader_lost(self, topic: str, index: int, connection: KafkaConnection) -> None:
        """Note that the connection failed, or that its broker is not the leader.  The next call looks the leader up."""

    async def has_moved(self, topic: str, index: int, connection: KafkaConnection) -> bool:
        """Ask other brokers now; return whether they name a leader other than the broker of this connection.

        Raises nothing; False if no other broker answers.
        """


def refusal(code: int, topic: str, index: int, what: str, cause: str | None = None) -> ClusterError:
    """Return the ClusterError for a broker's error code.

    what: the request, in words.  cause: the broker's explanation; None or empty if there is none.
    """
    name, retriable = error_word(code)
    message = f"{topic}-{index}: {what} was answered with {name}{f' ({cause})' if cause else ''}"
    known = ApiError.named(name)
    next_step = "" if known is None else known.next_step
    return ClusterError(name, message, next_step, retriable=retriable, refresh_metadata=retriable)


class PartitionCalls:
    """Sends requests to leaders.  Bound to one loop, as its connections are.

    retry_pause_max_s: the maximum of the growing pause between retries.
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
        """Return the result of `attempt(connection, seconds left)`, with retries after retriable ClusterErrors.

        wait_s: how long the request permits the leader to delay its answer.

        Raises:
            ClusterError: a final error of `attempt`, or TIMED_OUT with the last error as its cause.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        unknown_since: float | None = None
        backoff = Backoff(PAUSE_MIN_S, self._pause_max_s, self._leaders.random)
        while True:
            connection: KafkaConnection | None = None
            try:
                connection = await self._leaders.leader(topic, index, max(deadline - loop.time(), PAUSE_MIN_S))
                left_s = max(deadline - loop.time(), PAUSE_MIN_S)
                asked = asyncio.ensure_future(attempt(connection, left_s))
                return await answer_of_leader(self._leaders, topic, index, connection, asked, wait_s)
            except ClusterError as error:
                if not error.retriable:
                    raise
                now = loop.time()
                unknown = error.code in (ApiError.UNKNOWN_TOPIC_OR_PARTITION, ApiError.UNKNOWN_TOPIC_ID)
                unknown_since = (unknown_since or now) if unknown else None
                pause_s = backoff.next_s()
                is_last = now + pause_s >= deadline
                if unknown_since is not None:
                    has_lasted = now - unknown_since > UNKNOWN_TOPIC_TIMEOUT_S
                    if has_lasted or (is_last and deadline - unknown_since >= timeout_s / 2):
                        raise ClusterError(
                            error.code, f"{topic}-{index} does not exist", "kctl topics list", retriable=False
                        ) from error
                if is_last:
                    after = f"{round(timeout_s, 2):g} s"
                    is_leaderless = error.code == KafkaCode.LEADER_NOT_AVAILABLE.name
                    raise ClusterError(
                        ApiError.TIMED_OUT,
                        f"{topic}-{index}: given up after {after}; the last answer was: {error.message}",
                        about("kctl explain", f"{topic}-{index}")
                        if is_leaderless
                        else about("kctl topics describe", topic),
                        retriable=True,
                    ) from error
                if error.refresh_metadata and connection is not None:
                    await self._leaders.leader_lost(topic, index, connection)
            await asyncio.sleep(pause_s)


async def answer_of_leader(
    leaders: Leaders, topic: str, index: int, connection: KafkaConnection, asked: asyncio.Future[Reply], wait_s: float
) -> Reply:
    """Return the answer, or raise a retriable ClusterError if another broker has become the partition's leader.

    `asked` is cancelled in the latter case, and if this call is cancelled.  wait_s: how long the request permits the
    leader to delay its answer.
    """
    look: asyncio.Future[bool] | None = None
    try:
        await asyncio.wait({asked}, timeout=wait_s + LOOK_AFTER_S)
        while not asked.done():
            look = asyncio.ensure_future(leaders.has_moved(topic, index, connection))
            await asyncio.wait((asked, look), return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                break
            if look.result():
                raise ClusterError(
                    ApiError.NOT_LEADER_OR_FOLLOWER,
                    f"{topic}-{index}: {connection.peer} does not answer, and no longer leads",
                    retriable=True,
                )
            await asyncio.wait({asked}, timeout=LOOK_AFTER_S)
        return asked.result()
    finally:
        asked.cancel()
        if look is not None:
            look.cancel()
