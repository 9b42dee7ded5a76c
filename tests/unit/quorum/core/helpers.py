"""A core in a given role.  The test acts as the other voters."""

from __future__ import annotations

from random import Random
from typing import Any

from msgspec.structs import replace

from quorum.core import RaftConfig, RaftCore
from quorum.core.events import (
    Effect,
    Event,
    ReplyReceived,
    RequestReceived,
    SendReply,
    SendRequest,
    Tick,
    Write,
    Written,
)
from quorum.core.messages import (
    BeginQuorumEpoch,
    BeginQuorumEpochReply,
    ErrorCode,
    Fetch,
    Knowledge,
    Reply,
    Request,
    Sender,
    Vote,
    VoteReply,
)
from quorum.core.types import LogEnd, ReplicaKey, Role
from tests.scenarios.lab import directory, founded_disks

FOUNDED = LogEnd(0, 1)  # the end of a log that contains only the founding batch
KNOWN = Knowledge("lab", 0, 0, None, None)


def key(node_id: int, disk: int | None = None) -> ReplicaKey:
    return ReplicaKey(node_id, directory(disk if disk is not None else node_id))


def sender(node_id: int, cluster_id: str | None = "lab", generation: int = 0, disk: int | None = None) -> Sender:
    return Sender(cluster_id, generation, key(node_id, disk))


class Bench:
    """Node 1 of a founded cluster of `voters`; every write is durable immediately, unless `slow_disk`."""

    def __init__(self, voters: int = 3, config: RaftConfig | None = None, seed: int = 0) -> None:
        addresses = {i: f"n{i}:1" for i in range(1, voters + 1)}
        self.disk = founded_disks(addresses)[1]
        self.config = config or RaftConfig(1, "n1:1", initial_voters=tuple(addresses.items()))
        self.random = Random(seed)
        self.now_ms = 0
        self.slow_disk = False
        self.core = RaftCore(self.config, self.disk.load(), self.random, 0)
        self.sent: list[SendRequest] = []
        self.calls = 0
        self.do(Tick())

    def role(self) -> Role:
        """Return the current role of the node."""
        return self.core.role.role

    def do(self, event: Event) -> list[Effect]:
        effects = self.core.step(event, self.now_ms)
        for effect in list(effects):
            if isinstance(effect, SendRequest):
                self.sent.append(effect)
            if isinstance(effect, Write):
                self.disk.pending.append(effect)
        while self.disk.pending and not self.slow_disk:
            effects += self.do(Written(self.disk.settle().id))
        return effects

    def ask(self, request: Request) -> Reply | None:
        """Return the core's reply, if the same step gives one."""
        self.calls += 1
        answers = [effect for effect in self.do(RequestReceived(self.calls, request)) if isinstance(effect, SendReply)]
        return next((answer.reply for answer in answers if answer.call == self.calls), None)

    def do_all(self, requests: list[Request]) -> list[Effect]:
        return [effect for request in requests for effect in self.do(RequestReceived(0, request))]

    def until(self, at_ms: int) -> list[Effect]:
        """Let time pass, with a tick at each deadline."""
        effects: list[Effect] = []
        while self.core.deadline_ms <= at_ms:
            self.now_ms = max(self.now_ms, self.core.deadline_ms)
            effects += self.do(Tick())
        self.now_ms = at_ms
        return effects

    def take(self, kind: type[Request]) -> list[SendRequest]:
        """Return and remove the requests of this kind that were sent."""
        found = [ask for ask in self.sent if isinstance(ask.request, kind)]
        self.sent = [ask for ask in self.sent if not isinstance(ask.request, kind)]
        return found

    def win(self) -> None:
        """Become the leader, with every other voter's vote."""
        while self.role() is not Role.LEADER:
            self.now_ms = max(self.now_ms, self.core.deadline_ms)
            self.do(Tick())
            while votes := self.take(Vote):
                for ask in votes:
                    known = replace(KNOWN, epoch=self.core.epoch)
                    self.do(ReplyReceived(ask.call, VoteReply(ErrorCode.NONE, known, True)))
        for ask in self.take(BeginQuorumEpoch):
            known = replace(KNOWN, epoch=self.core.epoch)
            self.do(ReplyReceived(ask.call, BeginQuorumEpochReply(ErrorCode.NONE, known)))

    def follow(self, leader_id: int = 2, epoch: int = 1) -> None:
        self.ask(BeginQuorumEpoch(sender(leader_id), self.core.key, epoch, f"n{leader_id}:1"))

    def fetch(self, node_id: int, end: int, last: int | None = None, **changes: Any) -> Reply | None:
        """Fetch from this node as node `node_id`."""
        last = self.core.log.last.epoch if last is None else last
        request = Fetch(sender(node_id), 1, self.core.epoch, end, last, 0, 0, 500, 1 << 20, f"n{node_id}:1")
        return self.ask(replace(request, **changes))

    def vote(self, node_id: int = 2, *, epoch: int = 1, end: LogEnd = FOUNDED, pre_vote: bool = False) -> Vote:
        return Vote(sender(node_id), self.core.key, epoch, end, pre_vote)
