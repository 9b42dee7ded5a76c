"""Sends ISR proposals to the active controller: batched, one request under way at a time.

Theory of operation
-------------------
`LeaderState` decides the proposal and when to repeat it.  `IsrKeeper` calls only the leaders that may have something to
propose.  A leader may have something to propose when a follower has reached the watermark, a broker has changed, a
proposal is undecided, or the periodic check has found that the ISR should change.  `IsrKeeper` joins their proposals
into one AlterPartition request, and passes each leader its answer.

INELIGIBLE_REPLICA is the only error that voids a proposal.  The errors in `_OVERTAKEN` mean that the partition or the
broker has changed in the metadata log.  Any other error (NOT_CONTROLLER, a timeout) leaves the outcome open.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from broker.core.fetch_session import PartitionKey
from broker.core.partition import Answer, LeaderState, Proposal
from broker.replica.replica import Replica
from broker.replica.table import ReplicaTable
from quorumlog.runtime.clock import now_ms
from quorumlog.runtime.logging import get_logger
from quorumlog.runtime.turns import Turn
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.rpcs import ControllerCall
from quorumlog.wire.v1 import controller_pb2 as pb

logger = get_logger("broker")

ITEMS_MAX = 5_000
REQUEST_TIMEOUT_MS = 5_000
PENDING_ISR_MS = 250
"""Time until an undecided proposal is checked again."""

_OVERTAKEN = frozenset(
    {
        ApiError.FENCED_LEADER_EPOCH,
        ApiError.INVALID_UPDATE_VERSION,
        ApiError.INVALID_REQUEST,
        ApiError.STALE_BROKER_EPOCH,
        ApiError.BROKER_ID_NOT_REGISTERED,
        ApiError.UNKNOWN_TOPIC_ID,
        ApiError.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class _Asked(NamedTuple):
    """A proposal under way.  growth: the number of members by which the ISR would grow."""

    replica: Replica
    leader: LeaderState
    proposal: Proposal
    growth: int


def answer_of(word: str) -> Answer:
    """Return the outcome of a proposal.  word: the controller's answer, an error code or NONE."""
    if word == ApiError.NONE:
        return Answer.ACCEPTED
    if word == ApiError.INELIGIBLE_REPLICA:
        return Answer.REFUSED
    return Answer.OVERTAKEN if word in _OVERTAKEN else Answer.UNKNOWN


class IsrKeeper:
    """Proposes the ISR changes of all partitions that this broker leads."""

    def __init__(self, table: ReplicaTable, call: ControllerCall, lag_max_ms: int) -> None:
        self._table = table
        self._context = table.context
        self._call = call
        self._interval_ms = max(50, lag_max_ms // self._context.limits.isr_check_divisor)
        self._candidates: dict[PartitionKey, Replica] = {}
        self._news = asyncio.Event()
        self._context.events.isr_candidate.subscribe(self.consider)
        self._context.events.brokers_changed.subscribe(self.consider_missing)

    def consider(self, replica: Replica) -> None:
        """Note that this leader may have something to propose."""
        self._candidates[replica.partition] = replica
        self._news.set()

    def consider_missing(self) -> None:
        """Note every leader whose ISR lacks a replica, because brokers have changed."""
        for replica in self._table:
            if replica.leader is not None and replica.leader.under_replicated:
                self.consider(replica)

    async def run(self) -> None:
        """Propose until cancelled."""
        next_look_ms = now_ms() + self._interval_ms
        while True:
            if now_ms() >= next_look_ms:
                await self._look_at_all()
                next_look_ms = now_ms() + self._interval_ms
            asked = self._propose()
            if asked:
                await self._send(asked)
            else:
                wait_ms = next_look_ms - now_ms()
                if self._candidates:
                    wait_ms = min(wait_ms, PENDING_ISR_MS)
                await self._wait(wait_ms)

    async def _wait(self, wait_ms: int) -> None:
        """Wait for a candidate, or until the time is up."""
        self._news.clear()
        try:
            async with asyncio.timeout(max(wait_ms, 0) / 1000):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _look_at_all(self) -> None:
        turn = Turn()
        for replica in list(self._table):
            leader = replica.leader
            if leader is not None and (leader.followers or leader.has_pending_isr):
                # While this broker does not serve, `_propose` drops candidates even if their proposals are undecided.
                if leader.has_pending_isr or leader.wanted_isr(now_ms()) != leader.isr:
                    self._candidates[replica.partition] = replica
                await turn.passed()

    def _propose(self) -> list[_Asked]:
        """Return the proposals of all candidates.  A leader whose proposal is not decided yet stays a candidate."""
        now = now_ms()
        asked: list[_Asked] = []
        for key, replica in list(self._candidates.items()):
            if len(asked) == ITEMS_MAX:
                break  # the other leaders are asked once these proposals are answered
            leader = replica.serving()
            if leader is None:
                del self._candidates[key]
                continue
            proposal = leader.propose(now)
            if proposal is not None:
                asked.append(_Asked(replica, leader, proposal, len(proposal.isr) - len(leader.isr)))
            elif not leader.has_pending_isr and leader.wanted_isr(now) == leader.isr:
                del self._candidates[key]
        return asked

    async def _send(self, asked: list[_Asked]) -> None:
        request = pb.AlterPartitionRequest(
            broker_id=self._context.broker_id,
            broker_epoch=self._context.cluster.own_epoch,
        )
        for replica, _, proposal, _ in asked:
            item = request.items.add(
                topic_id=replica.topic_id.bytes,
                index=replica.key.index,
                leader_epoch=proposal.leader_epoch,
                partition_epoch=proposal.partition_epoch,
            )
            for broker_id, broker_epoch in proposal.isr:
                item.isr.add(broker_id=broker_id, broker_epoch=broker_epoch)
        reply = await self._call(rpcs.ALTER_PARTITION, request, REQUEST_TIMEOUT_MS)
        whole = reply.result.error
        words = (
            {(item.topic_id, item.index): item.result.error for item in reply.items} if whole == ApiError.NONE else {}
        )
        for each in asked:
            key = (each.replica.topic_id.bytes, each.replica.key.index)
            self._on_answer(each, words.get(key, "") if whole == ApiError.NONE else whole)

    def _on_answer(self, asked: _Asked, word: str) -> None:
        answer = answer_of(word)
        if answer is Answer.ACCEPTED:
            self._context.counters.isr_shrinks += asked.growth < 0
            self._context.counters.isr_expands += asked.growth > 0
        logger.debug("isr proposal", replica=repr(asked.replica), isr=asked.proposal.members, answer=word)
        asked.replica.on_isr_answer(asked.leader, asked.proposal, answer)
