"""Evidence that the process of a broker without heartbeats has ended: its own addresses refuse connections.

Theory of operation.  When a process ends for any reason, the kernel closes its listening sockets and refuses
connections to them.  A process that is suspended, swapped out, starved or blocked in a system call keeps its sockets,
and the kernel continues to accept connections for it.  A host that is down or disconnected does not answer at all.  So
a refusal identifies the one case in which waiting for the session timeout is useless.

A refusal may also have another cause between this node and the broker: a name that resolves to another host on this
node, a firewall rule, or a port that is not forwarded.  Therefore an address counts only after it has accepted a
connection from this node during the same registration, and later attempts use the numeric address that accepted.  If no
heartbeat has come for `OVERDUE` intervals, this node tries to connect in rounds.  The process counts as ended if every
address that counts (the control address and at least one Kafka listener) refuses in `ROUNDS` successive rounds, without
a heartbeat in between.  Any other result (a connection, a timeout, a reset, an unreachable host or network) is not
evidence, and the rounds start over.

The evidence is only a reason to fence before the session ends.  Fencing is a record.  If the evidence is wrong, nothing
is lost, and the broker's next heartbeat unfences it.

Limits: at most one task per broker, and `PROVING_MAX` and `PROBING_MAX` connections at a time, each with a deadline.
The time between the rounds of a broker without heartbeats doubles while the rounds find nothing.  After its session has
ended, a broker is not examined.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import Any

from metadata.controller.background import Background
from metadata.controller.sessions import Session, Sessions, Socket
from metadata.image import BrokerImage
from quorumlog.runtime.addresses import parse_target
from quorumlog.runtime.backoff import Backoff
from quorumlog.runtime.logging import get_logger

OVERDUE = 1.25
"""Number of missed heartbeat intervals after which a broker is examined."""

ROUNDS = 3
ROUND_PAUSE_S = 0.1
"""Time between two rounds that were refused."""

PROBE_TIMEOUT_S = 0.5
LOOK_AGAIN_S = 0.25
LOOK_AGAIN_MAX_S = 4.0
"""Time between two rounds if the first was not refused.  It doubles from LOOK_AGAIN_S up to LOOK_AGAIN_MAX_S."""

ADDRESSES_MAX = 8
PROVING_MAX = 4
PROBING_MAX = 64

logger = get_logger("controller")


class Answer(Enum):
    """The result of an attempt to connect; the values are those of the metric's label."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    NONE = "none"
    """A timeout or any other error."""


class Refusals:
    """The examination of brokers whose heartbeat is overdue.

    interval_s: interval of heartbeats.  control_address: returns a node's control address (HOST:PORT), or None if
    unknown.
    on_gone: called with the broker id, the session during which its process ended, and the loop time of the last
    heartbeat before the rounds.
    on_failure: called with a broken assertion.  counts: number of connection attempts, by answer; increased by this
    object.
    """

    def __init__(
        self,
        background: Background,
        sessions: Sessions,
        interval_s: float,
        control_address: Callable[[int], str | None],
        on_gone: Callable[[int, Session, float], None],
        on_failure: Callable[[BaseException], None],
        counts: Counter[str],
    ) -> None:
        self._sessions = sessions
        self._overdue_s = OVERDUE * interval_s
        self._control_address = control_address
        self._on_gone = on_gone
        self._on_failure = on_failure
        self._counts = counts
        self._tasks: set[asyncio.Task[None]] = set()
        self._proving = asyncio.Semaphore(PROVING_MAX)
        self._probing = asyncio.Semaphore(PROBING_MAX)
        self._job = background.job("examination of brokers without heartbeats", self._step)
        background.on_stop(self._stop)

    def heard(self, broker: BrokerImage, session: Session) -> None:
        """Process a heartbeat of an unfenced broker."""
        if not self._job.is_set:
            self._job.wake(self._overdue_s)
        if not session.accepted and not session.has_task and _now() >= session.prove_at:
            self._begin(session, self._prove(broker, session))

    def _stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def _begin(self, session: Session, work: Coroutine[Any, Any, None]) -> None:
        session.has_task = True
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            session.has_task = False
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._on_failure(error)

        task.add_done_callback(ended)

    # Addresses that count

    async def _prove(self, broker: BrokerImage, session: Session) -> None:
        """Connect to each address of the broker; the addresses count if the control address and a listener accept."""
        try:
            wanted = self._addresses(broker)
            found = [await self._accepting(where) for where in wanted]
            if len(wanted) > 1 and found[0] is not None and any(found[1:]):
                session.accepted = tuple([each for each in found if each is not None])
        finally:
            session.prove_at = _now() + session.prove_again.next_s()
            self._job.wake(self._overdue_s)

    def _addresses(self, broker: BrokerImage) -> list[Socket]:
        """Return the control address and the Kafka listeners; empty if the control address is unknown."""
        control = self._control_address(broker.broker_id)
        try:
            target = None if control is None else parse_target(control)
        except ValueError:  # addresses in fetches are not validated
            target = None
        if target is None:
            return []
        listeners = [(endpoint.host, endpoint.port) for endpoint in broker.endpoints]
        return [(target.host, target.port), *listeners][:ADDRESSES_MAX]

    async def _accepting(self, where: Socket) -> Socket | None:
        """Return the numeric address that accepted a connection."""
        async with self._proving:
            answer, peer = await _connect(where)
        self._counts[answer.value] += 1
        return peer

    # Examination of brokers without heartbeats

    def _step(self) -> float | None:
        """Start to examine the overdue brokers; return the seconds until the next broker is overdue, or None."""
        now = _now()
        next_s: float | None = None
        for broker_id, session in self._sessions.items():
            if not session.accepted or session.has_task:
                continue
            left_s = session.last_contact + self._overdue_s - now
            if left_s <= 0:
                self._begin(session, self._examine(broker_id, session))
            elif next_s is None or left_s < next_s:
                next_s = left_s
        return next_s

    async def _examine(self, broker_id: int, session: Session) -> None:
        """Try to connect until the broker sends a heartbeat, its session ends, or its process counts as ended."""
        heard_at, refused, backoff = session.last_contact, 0, Backoff(LOOK_AGAIN_S, LOOK_AGAIN_MAX_S)

        def is_silent() -> bool:
            return self._sessions.get(broker_id) is session and session.last_contact == heard_at

        while is_silent():
            if await self._all_refuse(session.accepted):
                refused += 1
                if refused == ROUNDS:
                    if is_silent():  # a heartbeat may have come during the last round
                        self._on_gone(broker_id, session, heard_at)
                    return
                await asyncio.sleep(ROUND_PAUSE_S)  # there is no event for a listener that is open again
            else:
                refused = 0
                await asyncio.sleep(backoff.next_s())

    async def _all_refuse(self, addresses: tuple[Socket, ...]) -> bool:
        for where in addresses:
            async with self._probing:
                answer, _ = await _connect(where)
            self._counts[answer.value] += 1
            if answer is not Answer.REFUSED:
                return False
        return True


async def _connect(where: Socket) -> tuple[Answer, Socket | None]:
    """Open a connection and close it immediately; return the result, and the numeric address that accepted."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, *where)
    except ConnectionRefusedError:
        return Answer.REFUSED, None
    except (OSError, TimeoutError, ValueError):  # ValueError: an invalid host name
        return Answer.NONE, None
    peer = transport.get_extra_info("peername")
    transport.close()
    return Answer.ACCEPTED, None if peer is None else (peer[0], peer[1])


def _now() -> float:
    return asyncio.get_running_loop().time()
