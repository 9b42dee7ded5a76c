"""Carries ISR proposals to the active controller: batched, one request under way at a time.

Theory of operation
-------------------
`LeaderState` decides what to propose and when to say it again; this only asks those leaders that may have something to
propose (a follower reached the watermark, a broker came back, the periodic look, a ballot that is still open), joins
their proposals into one AlterPartition, and brings each its answer.  No leader is scanned without cause but in the
periodic look, which finds followers that have fallen silent.

What an answer means: only INELIGIBLE_REPLICA says that the proposal is void; a refusal because of an epoch says that
the log knows better; everything else (NOT_CONTROLLER, a timeout, an unknown outcome) says nothing at all.
"""

from __future__ import annotations

import asyncio

from broker.core.fetch_session import PartitionKey
from broker.core.partition import Answer, LeaderState, Proposal
from broker.log.turns import Turn
from broker.replica.replica import Replica
from broker.replica.replica_manager import ReplicaManager
from quorumlog.runtime.clock import now_ms
from quorumlog.runtime.logging import get_logger
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.rpcs import ControllerCall
from quorumlog.wire.v1 import controller_pb2 as pb

log = get_logger("broker")

MAX_ITEMS = 5_000
REQUEST_TIMEOUT_MS = 5_000
PENDING_ISR_MS = 250
"""How soon an open ballot is looked at again."""

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

Asked = tuple[Replica, LeaderState, Proposal, int]
"""The last: by how many members the ISR would grow."""


def answer_of(word: str) -> Answer:
    """What a refusal, or NONE, means for a proposal."""
    if word == ApiError.NONE:
        return Answer.ACCEPTED
    if word == ApiError.INELIGIBLE_REPLICA:
        return Answer.REFUSED
    return Answer.OVERTAKEN if word in _OVERTAKEN else Answer.UNKNOWN


class IsrKeeper:
    def __init__(self, replicas: ReplicaManager, call: ControllerCall, lag_max_ms: int) -> None:
        self._replicas = replicas
        self._call = call
        self._interval_ms = max(50, lag_max_ms // replicas.limits.isr_check_divisor)
        self._candidates: dict[PartitionKey, Replica] = {}
        self._news = asyncio.Event()
        replicas.on_isr_candidate = self.consider

    def consider(self, hosted: Replica) -> None:
        """This leader may have something to propose."""
        self._candidates[hosted.partition] = hosted
        self._news.set()

    def consider_missing(self) -> None:
        """Brokers have changed: every leader that misses a member looks again."""
        for hosted in self._replicas.hosted.values():
            if hosted.leader is not None and hosted.leader.under_replicated:
                self.consider(hosted)

    async def run(self) -> None:
        """Until cancelled."""
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
        """For a candidate, or until the time is up.  Candidates with an open ballot are looked at when it is."""
        self._news.clear()
        try:
            async with asyncio.timeout(max(wait_ms, 0) / 1000):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _look_at_all(self) -> None:
        turn = Turn()
        for hosted in list(self._replicas.hosted.values()):
            leader = hosted.leader
            if leader is not None and (leader.followers or leader.has_pending_isr):
                if leader.wanted_isr(now_ms()) != leader.isr:
                    self._candidates[hosted.partition] = hosted
                await turn.passed()

    def _propose(self) -> list[Asked]:
        """The proposals of all candidates.  Those with an open ballot stay candidates."""
        now = now_ms()
        asked: list[Asked] = []
        for key, hosted in list(self._candidates.items()):
            if len(asked) == MAX_ITEMS:
                break  # the others are asked for once these are answered
            leader = hosted.leader
            if leader is None or self._replicas.leads(hosted) is None:
                del self._candidates[key]
                continue
            proposal = leader.propose(now)
            if proposal is not None:
                asked.append((hosted, leader, proposal, len(proposal.isr) - len(leader.isr)))
            elif not leader.has_pending_isr and leader.wanted_isr(now) == leader.isr:
                del self._candidates[key]
        return asked

    async def _send(self, asked: list[Asked]) -> None:
        request = pb.AlterPartitionRequest(
            broker_id=self._replicas.broker_id,
            broker_epoch=self._replicas.broker_epoch,
        )
        for hosted, _, proposal, _ in asked:
            item = request.items.add(
                topic_id=hosted.topic_id.bytes,
                index=hosted.key.index,
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
        for hosted, leader, proposal, change in asked:
            word = words.get((hosted.topic_id.bytes, hosted.key.index), "") if whole == ApiError.NONE else whole
            self._on_answer(hosted, leader, proposal, change, word)

    def _on_answer(self, hosted: Replica, leader: LeaderState, proposal: Proposal, change: int, word: str) -> None:
        answer = answer_of(word)
        if answer is Answer.ACCEPTED:
            self._replicas.counters.isr_shrinks += change < 0
            self._replicas.counters.isr_expands += change > 0
        log.debug("isr proposal", replica=repr(hosted), isr=proposal.members, answer=word)
        if leader.on_answer(proposal, answer, now_ms()) and hosted.leader is leader:
            self._replicas.on_watermark(hosted)
