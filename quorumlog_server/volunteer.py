"""Joins the voters and leaves them without an operator, for orchestrators that start and stop nodes.

Theory of operation.  `quorum.auto.join`: a node that is caught up asks the active controller to be added, as `kctl
add-voter` does, and with the same checks.  It has at most one request in progress.  With each refusal the wait doubles,
up to `WAIT_MAX_S`.  Each wait is shortened by a random part, so that many new nodes do not all ask at the same time.

It asks only if its disk was never a voter, or if it left on its own request.  **A voter that an operator has removed
does not join again**, even after a restart and after the log has lost the record of the removal.  Without this rule a
running node would rejoin within seconds of its removal (KAFKA-19850).  So the disk keeps its `Standing`.  A node never
takes the place of another disk either: only an operator can know that a disk is lost (`kctl add-voter --replace`).

`quorum.leave.on.shutdown`: before a voter stops, it asks to be removed.  The controller refuses if no other voters
would remain or if no majority of them is live; then the node stops and remains a voter.  LEAVING is durable before the
request is sent.  So the node may join again even if it does not learn the outcome.  If an operator has removed it
first, it does not join again.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Protocol
from uuid import UUID

from quorum.core.core import RaftCore
from quorumlog.runtime.backoff import Backoff
from quorumlog.runtime.logging import get_logger
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.rpcs import ControllerCall
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog_server.standing import Standing, StandingStore

ASK_TIMEOUT_MS = 30_000
"""Time limit of a request to be added.  The controller answers when the new voter has caught up."""
LOOK_S = 5.0
"""Longest time between two checks of whether the node should ask.  No event reports that a wait is over."""
WAIT_FIRST_S = 1.0
WAIT_MAX_S = 60.0
"""First and longest wait after a refusal."""
LEAVE_RETRY_S = 0.2
SAVE_SHARE = 1 / 8
"""The part of the time to leave that is reserved for storing the outcome."""
LEAVE_PASSING = frozenset(
    {ApiError.CHANGE_PENDING, ApiError.NOT_COMMITTED_YET, ApiError.NOT_CONTROLLER, ApiError.OVERLOADED, ApiError.PAUSED}
)
"""Refusals of a removal that may no longer apply a second later."""
UNKNOWN_OUTCOMES = frozenset({ApiError.OUTCOME_UNKNOWN, ApiError.REQUEST_TIMED_OUT})
"""After one of these errors, the change may have been made."""

logger = get_logger("quorum")


class Node(Protocol):
    """The part of `QuorumNode` that this module uses."""

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
    """Asks for the addition and the removal of one node as a voter.

    `run` asks for the addition until it is cancelled.  Call `leave` once, at the end.
    """

    def __init__(self, node: Node, call: ControllerCall, standing: StandingStore, random: Random) -> None:
        self._node = node
        self._call = call
        self._store = standing
        self._saving = asyncio.Lock()  # saves happen in the order of the calls, so the newest standing is written last
        self._random = random
        self._standing: Standing | None = None  # as stored on disk; None until it is read
        self._leaving = False
        self._asking: asyncio.Future[pb.ChangeVotersReply] | None = None
        self._backoff = Backoff(WAIT_FIRST_S, WAIT_MAX_S, random)
        self._ask_at = 0.0
        self._said = ""

    async def _save(self, standing: Standing) -> None:
        async with self._saving:
            await self._store.save(standing)
            self._standing = standing

    @property
    def is_voter(self) -> bool:
        """Return whether this disk is in the committed voter set, as far as this node knows.

        After a start, it knows only the voters in its newest snapshot until it has fetched from the leader.
        """
        core, end = self._node.core, self._node.high_watermark
        if not core.met or end == 0:
            return False
        return core.key in core.history.in_force_below(end)[0].voters

    # Joining

    async def run(self) -> None:
        """Ask to be added whenever a request is due."""
        self._standing = await self._store.load()
        loop = asyncio.get_running_loop()
        while True:
            # A node that left may have a snapshot in which it is a voter.  It stays LEAVING until it has caught up.
            is_voter = self.is_voter and self._node.is_caught_up()
            if is_voter and not self._leaving and self._standing is not Standing.VOTER:
                await self._save(Standing.VOTER)
            wait_s = LOOK_S
            if self._may_ask():
                wait_s = self._ask_at - loop.time()
                if wait_s <= 0:
                    await self._ask()
                    continue
            try:
                async with asyncio.timeout(min(wait_s, LOOK_S)):
                    await self._node.changed()
            except TimeoutError:
                continue

    def _may_ask(self) -> bool:
        node = self._node
        if node.high_watermark == 0:  # no voter set is known to be committed, so the node does not count as removed
            return False
        if self._leaving or self.is_voter or not node.core.met or node.leader_id is None or not node.is_caught_up():
            return False
        standing = self._standing
        was_voter = standing is Standing.VOTER or node.core.history.was_voter(node.node_id, node.directory_id)
        if was_voter and standing is not Standing.LEAVING:
            self._say("this node was removed from the voters: it does not rejoin automatically", self._add_command)
            return False
        return True

    async def _ask(self) -> None:
        node, loop = self._node, asyncio.get_running_loop()
        # The request names the directory: another node may have taken over this address while this one was suspended.
        add = pb.AddVoter(node_id=node.node_id, address=node.address, directory_id=node.directory_id.bytes)
        request = pb.ChangeVotersRequest(add=add)
        self._asking = asyncio.ensure_future(self._call(rpcs.CHANGE_VOTERS, request, ASK_TIMEOUT_MS))
        try:
            result = (await self._asking).result
        finally:
            self._asking = None
        if result.error == ApiError.NONE:
            logger.info("joined the voters", node_id=node.node_id, address=node.address)
            self._backoff.reset()
            self._said = ""
            wait_s = WAIT_FIRST_S  # not a pause of the backoff: this node still has to apply the new voter set
        else:
            self._say(f"not a voter yet: {result.error}: {result.message}", result.next)
            wait_s = self._backoff.next_s()
        self._ask_at = loop.time() + wait_s

    @property
    def _add_command(self) -> str:
        return f"kctl add-voter {self._node.node_id}@{self._node.address}"

    def _say(self, what: str, next_step: str) -> None:
        """Log `what`, unless this method logged the same text last."""
        if what != self._said:
            self._said = what
            logger.info(what, node_id=self._node.node_id, **({"next": next_step} if next_step else {}))

    # Leaving

    async def leave(self, timeout_ms: int) -> bool:
        """Ask to be removed from the voters; return whether this node certainly is not a voter now.

        Takes at most `timeout_ms`, also if the disk hangs.  From now on the node does not ask to be added.
        """
        self._leaving = True
        node, loop = self._node, asyncio.get_running_loop()
        end = loop.time() + timeout_ms / 1000
        deadline = end - timeout_ms / 1000 * SAVE_SHARE
        joined = await self._joined_meanwhile(timeout_ms)
        was_voter = joined is True or self.is_voter
        if not was_voter and joined is False:
            return True
        # A node that left before may not have fetched the record of its removal yet.
        had_left = self._standing is Standing.LEAVING
        if not await self._save_until(Standing.LEAVING, deadline):
            return False
        backoff = Backoff(LEAVE_RETRY_S, WAIT_MAX_S, self._random)
        while True:
            left_ms = max(1, int((deadline - loop.time()) * 1000))
            # The request names the directory: another disk may have become the voter of this id meanwhile.
            remove = pb.RemoveVoter(node_id=node.node_id, directory_id=node.directory_id.bytes)
            reply = await self._call(rpcs.CHANGE_VOTERS, pb.ChangeVotersRequest(remove=remove), left_ms)
            result = reply.result
            is_removed = not reply.changed and result.error in (ApiError.NONE, ApiError.VOTER_NOT_FOUND)
            if is_removed and was_voter and not had_left:
                logger.info("was removed from the voters before it could leave them", node_id=node.node_id)
                await self._save_until(Standing.VOTER, end)
                return True
            if result.error == ApiError.NONE:
                logger.info("left the voters", node_id=node.node_id)
                return True
            if result.error not in LEAVE_PASSING or loop.time() + (pause_s := backoff.next_s()) >= deadline:
                break
            await asyncio.sleep(pause_s)  # no event reports the change
        logger.warning(
            "stops without having left the voters",
            node_id=node.node_id,
            error=result.error,
            reason=result.message,
            next=result.next or f"kctl remove-voter {node.node_id}, if it will not restart",
        )
        # If the request to be added is unanswered, it is unknown whether the node is a voter.  It stays LEAVING, so it
        # may ask again after a restart.  A refusal does not show whether an earlier request to leave took effect.
        is_voter = was_voter and not had_left
        if is_voter and result.error not in UNKNOWN_OUTCOMES:
            await self._save_until(Standing.VOTER, end)
        return False

    async def _save_until(self, standing: Standing, end: float) -> bool:
        """Store the standing durably; return False if the disk needs longer, in which case either standing may remain.

        No other save may follow: the disk may still write this one.
        """
        try:
            async with asyncio.timeout_at(end):
                await self._save(standing)
        except TimeoutError:
            what = "stops before its standing among the voters was stored: the disk hangs"
            next_step = f"check the disk; kctl remove-voter {self._node.node_id}, if it will not restart"
            logger.warning(what, node_id=self._node.node_id, standing=standing.value, next=next_step)
            return False
        return True

    async def _joined_meanwhile(self, timeout_ms: int) -> bool | None:
        """Wait for the answer to the request in progress that asks to add this node, if there is one.

        Return whether that request has added this node; None if this is unknown.
        """
        asking = self._asking
        if asking is None:
            return False
        await asyncio.wait({asking}, timeout=timeout_ms / 2000)  # half, because the removal also needs time
        if not asking.done():
            return None
        if asking.cancelled() or asking.exception() is not None:
            return False
        error = asking.result().result.error
        return None if error in UNKNOWN_OUTCOMES else error == ApiError.NONE
