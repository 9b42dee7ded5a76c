"""Evidence that the process of a silent broker has ended: its own addresses refuse connections.

Theory of operation.  When a process ends, however it ends, the kernel closes its listening sockets, and refuses whoever
connects to them.  A process that is stopped, swapped out, starved or stuck in a system call keeps its sockets, and the
kernel goes on accepting for it.  A host that is down, or cut off, does not answer at all.  So a refusal identifies
the one case in which waiting for the session timeout is of no use.

A refusal may also come from something between this node and the broker: a name that means another host here, a rule of
a firewall, a port that nobody forwards.  Therefore an address counts only after it has accepted a connection from this
node during the same registration, and it is tried again by the numeric address that accepted.  A broker is taken for
gone when no heartbeat has come for `OVERDUE` intervals and then, `ROUNDS` times in a row and without a heartbeat in
between, every address that counts is refused: its control address and at least one Kafka listener.  Anything else,
be it a connection, a time-out, a reset, an unreachable host or network, is no evidence, and the rounds begin anew.

The evidence is no more than a reason to fence before the session ends.  Fencing is a record; it loses nothing if the
evidence is wrong, and the next heartbeat of the broker unfences it.

Bounds: one task a broker at most, `PROVING_MAX` and `PROBING_MAX` connections at a time, each with a deadline; the time
between the rounds of a silent broker doubles while they find nothing; a session that has ended is not examined.
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
from quorumlog.runtime.logging import get_logger

OVERDUE = 1.25
"""Heartbeat intervals without a heartbeat after which a broker is examined."""

ROUNDS = 3
ROUND_PAUSE_S = 0.1
"""Between two rounds that were refused."""

PROBE_TIMEOUT_S = 0.5
LOOK_AGAIN_S = 0.25
LOOK_AGAIN_MAX_S = 4.0
"""Between two rounds when the first was not refused: doubles up to the latter."""

PROVE_AGAIN_MAX_S = 64.0
"""Until addresses of which too few have accepted are tried again: doubles from 1 s up to this."""

ADDRESSES_MAX = 8
PROVING_MAX = 4
PROBING_MAX = 64

log = get_logger("controller")


class Answer(Enum):
    ACCEPTED = "accepted"
    REFUSED = "refused"
    NONE = "none"
    """A time-out or any other error."""


class Refusals:
    """interval_s: of heartbeats.  control_address: of a node, as this leader knows it (HOST:PORT), or None.

    on_gone: called with the broker id, the session during which its process ended, and the loop time of the last
    heartbeat before the rounds.
    on_failure: told of a broken assertion.  counts: connections tried, by answer.
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
        self._job = background.job("examination of silent brokers", self._step)
        background.on_stop(self._stop)

    def heard(self, broker: BrokerImage, session: Session) -> None:
        """An unfenced broker has sent a heartbeat."""
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

    # Which addresses count

    async def _prove(self, broker: BrokerImage, session: Session) -> None:
        """Connect to each address of the broker; those count from now on if control plane and a listener accept."""
        try:
            wanted = self._addresses(broker)
            found = [await self._accepting(where) for where in wanted]
            if len(wanted) > 1 and found[0] is not None and any(found[1:]):
                session.accepted = tuple([each for each in found if each is not None])
        finally:
            session.prove_at = _now() + session.prove_again_s
            session.prove_again_s = min(2 * session.prove_again_s, PROVE_AGAIN_MAX_S)
            self._job.wake(self._overdue_s)

    def _addresses(self, broker: BrokerImage) -> list[Socket]:
        """The control address and then the Kafka listeners; nothing when the control address is not known."""
        control = self._control_address(broker.broker_id)
        try:
            target = None if control is None else parse_target(control)
        except ValueError:  # nobody checks what a node says of itself in its fetches
            target = None
        if target is None:
            return []
        listeners = [(endpoint.host, endpoint.port) for endpoint in broker.endpoints]
        return [(target.host, target.port), *listeners][:ADDRESSES_MAX]

    async def _accepting(self, where: Socket) -> Socket | None:
        """The numeric address that accepted a connection."""
        async with self._proving:
            answer, peer = await _connect(where)
        self._counts[answer.value] += 1
        return peer

    # Who is silent

    def _step(self) -> float | None:
        """Begin to examine everybody who is overdue; return when the next one may be."""
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
        """Try to connect until the broker is heard from, its session ends or its process is found to be gone."""
        heard_at, refused, pause_s = session.last_contact, 0, LOOK_AGAIN_S

        def is_silent() -> bool:
            return self._sessions.get(broker_id) is session and session.last_contact == heard_at

        while is_silent():
            if await self._all_refuse(session.accepted):
                refused += 1
                if refused == ROUNDS:
                    if is_silent():  # a heartbeat may have come during the last round
                        self._on_gone(broker_id, session, heard_at)
                    return
                await asyncio.sleep(ROUND_PAUSE_S)  # nothing tells that a listener is back
            else:
                refused = 0
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LOOK_AGAIN_MAX_S)

    async def _all_refuse(self, addresses: tuple[Socket, ...]) -> bool:
        for where in addresses:
            async with self._probing:
                answer, _ = await _connect(where)
            self._counts[answer.value] += 1
            if answer is not Answer.REFUSED:
                return False
        return True


async def _connect(where: Socket) -> tuple[Answer, Socket | None]:
    """Open a connection and close it at once; what came of it, and the numeric address of who accepted."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, *where)
    except ConnectionRefusedError:
        return Answer.REFUSED, None
    except (OSError, TimeoutError, ValueError):  # ValueError: a name that cannot be one
        return Answer.NONE, None
    peer = transport.get_extra_info("peername")
    transport.close()
    return Answer.ACCEPTED, None if peer is None else (peer[0], peer[1])


def _now() -> float:
    return asyncio.get_running_loop().time()
