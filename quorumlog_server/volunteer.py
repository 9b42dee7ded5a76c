"""Joining the voters, and leaving them, without an operator: for orchestrators that start and stop nodes.

Theory of operation.  `quorum.auto.join`: a node that is caught up asks the active controller to be added, as an
operator would with `kctl add-voter`, and with the same checks.  It asks one request at a time; after a refusal it
waits, twice as long at each further one, by chance a little less, so that many newcomers do not ask in step.

It asks only for a disk that was never a voter, or that left by itself.  **A voter that was taken out stays out**, also
after a restart and after the log has forgotten its removal: with nothing to tell it from a newcomer, a running node
that an operator has just removed would be back within seconds (KAFKA-19850).  So the disk keeps a word of its own,
`Standing`.  And a node never takes another disk's place: that a voter's disk is gone for good, and not merely away, is
for somebody to say (`kctl add-voter --replace`).

`quorum.leave.on.shutdown`: a voter that is asked to stop asks first to be taken out.  The voters that stay must have a
live majority, and there must be any: else the controller refuses, and the node stops as the voter that it is.  The word
LEAVING is durable before the request is sent: whatever becomes of the request, the node may come back by itself.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Protocol
from uuid import UUID

from quorum.core.core import RaftCore
from quorumlog.runtime.logging import get_logger
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.rpcs import ControllerCall
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog_server.standing import Standing, StandingStore

ASK_TIMEOUT_MS = 30_000
"""Of a request to be added; the controller waits meanwhile until the newcomer has caught up."""
LOOK_S = 5.0
"""A node looks at its standing at least this often: that time has passed is no event."""
WAIT_FIRST_S = 1.0
WAIT_MAX_S = 60.0
LEAVE_RETRY_S = 0.2
LEAVE_PASSING = frozenset(
    {ApiError.CHANGE_PENDING, ApiError.NOT_COMMITTED_YET, ApiError.NOT_CONTROLLER, ApiError.OVERLOADED, ApiError.PAUSED}
)
"""Refusals of a removal whose reason may pass within a second."""

_log = get_logger("quorum")


class Node(Protocol):
    """The part of `QuorumNode` that this looks at."""

    @property
    def core(self) -> RaftCore: ...

    @property
    def node_id(self) -> int: ...

    @property
    def directory_id(self) -> UUID: ...

    @property
    def address(self) -> str: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def leader_id(self) -> int | None: ...

    def is_caught_up(self) -> bool: ...

    async def changed(self) -> None: ...


class Volunteer:
    """Of one node.  `run` joins and stays until it is cancelled; `leave` once, at the end."""

    def __init__(self, node: Node, call: ControllerCall, standing: StandingStore, random: Random) -> None:
        self._node = node
        self._call = call
        self._store = standing
        self._saving = asyncio.Lock()  # or the word of before might be the last one to be written
        self._random = random
        self._leaving = False
        self._asking: asyncio.Future[pb.ChangeVotersReply] | None = None
        self._refusals = 0
        self._ask_at = 0.0
        self._said = ""

    async def _save(self, standing: Standing) -> None:
        async with self._saving:
            await self._store.save(standing)

    @property
    def is_voter(self) -> bool:
        """Whether the committed voter set has this disk."""
        core, end = self._node.core, self._node.high_watermark
        if not core.met or end <= core.log.start:
            return False
        return core.key in core.history.in_force_below(end)[0].voters

    # Joining

    async def run(self) -> None:
        """Ask to be added whenever that is due."""
        standing = await self._store.load()
        loop = asyncio.get_running_loop()
        while True:
            if self.is_voter and not self._leaving and standing is not Standing.VOTER:
                await self._save(Standing.VOTER)
                standing = Standing.VOTER
            wait_s = LOOK_S
            if self._may_ask(standing):
                wait_s = self._ask_at - loop.time()
                if wait_s <= 0:
                    await self._ask()
                    continue
            try:
                async with asyncio.timeout(min(wait_s, LOOK_S)):
                    await self._node.changed()
            except TimeoutError:
                continue

    def _may_ask(self, standing: Standing) -> bool:
        node = self._node
        if self._leaving or self.is_voter or not node.core.met or node.leader_id is None or not node.is_caught_up():
            return False
        was_voter = standing is Standing.VOTER or node.core.history.was_voter(node.node_id, node.directory_id)
        if was_voter and standing is not Standing.LEAVING:
            self._say("this node was taken out of the voters: it does not join again by itself", self._add_command)
            return False
        return True

    async def _ask(self) -> None:
        node, loop = self._node, asyncio.get_running_loop()
        request = pb.ChangeVotersRequest(add=pb.AddVoter(node_id=node.node_id, address=node.address))
        self._asking = asyncio.ensure_future(self._call(rpcs.CHANGE_VOTERS, request, ASK_TIMEOUT_MS))
        try:
            result = (await self._asking).result
        finally:
            self._asking = None
        if result.error == ApiError.NONE:
            _log.info("joined the voters", node_id=node.node_id, address=node.address)
            self._refusals, self._said = 0, ""
        else:
            self._say(f"not a voter yet: {result.error}: {result.message}", result.next)
        longest = min(WAIT_MAX_S, WAIT_FIRST_S * 2 ** min(self._refusals, 10))
        self._refusals += result.error != ApiError.NONE
        self._ask_at = loop.time() + self._random.uniform(longest / 2, longest)

    @property
    def _add_command(self) -> str:
        return f"kctl add-voter {self._node.node_id}@{self._node.address}"

    def _say(self, what: str, next_step: str) -> None:
        """Once, until something else is to be said."""
        if what != self._said:
            self._said = what
            _log.info(what, node_id=self._node.node_id, **({"next": next_step} if next_step else {}))

    # Leaving

    async def leave(self, timeout_ms: int) -> bool:
        """Have this node taken out of the voters, within `timeout_ms`; whether it is no voter now, as far as is known.

        Joins no more from now on.
        """
        self._leaving = True
        node, loop = self._node, asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        joined = await self._joined_meanwhile(timeout_ms)
        if not (joined or self.is_voter):
            return True
        await self._save(Standing.LEAVING)
        wait_s = LEAVE_RETRY_S
        while True:
            left_ms = max(1, int((deadline - loop.time()) * 1000))
            request = pb.ChangeVotersRequest(remove=pb.RemoveVoter(node_id=node.node_id))
            result = (await self._call(rpcs.CHANGE_VOTERS, request, left_ms)).result
            if result.error == ApiError.NONE:
                _log.info("left the voters", node_id=node.node_id)
                return True
            if result.error not in LEAVE_PASSING or loop.time() + wait_s >= deadline:
                break
            await asyncio.sleep(self._random.uniform(wait_s / 2, wait_s))  # back-off: no event tells that it passed
            wait_s *= 2
        _log.warning(
            "stops without having left the voters",
            node_id=node.node_id,
            error=result.error,
            reason=result.message,
            next=result.next or f"kctl remove-voter {node.node_id}, if it is not to come back",
        )
        if result.error not in (ApiError.OUTCOME_UNKNOWN, ApiError.REQUEST_TIMED_OUT):
            await self._save(Standing.VOTER)
        return False

    async def _joined_meanwhile(self, timeout_ms: int) -> bool:
        """Whether a request to be added, under way when this node was told to stop, has made it a voter, or may yet."""
        asking = self._asking
        if asking is None:
            return False
        await asyncio.wait({asking}, timeout=timeout_ms / 2000)  # half: there may be something to undo
        if not asking.done():
            return True
        failed = asking.cancelled() or asking.exception() is not None
        return not failed and asking.result().result.error == ApiError.NONE
