"""Plausible messages of peers, mostly correct, in any order: they lead a core to states that noise does not reach.

`test_raft_garbage` sends mostly wrong messages, and most of those are refused at once.  Here each run draws how often
its peers are correct, up to 199 times of 200, so leaders commit, voters change, leadership moves, and the next messages
meet all of that half done.  Each step asserts the core's invariants.
"""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from quorum.core.events import (
    Effect,
    Event,
    Peer,
    Propose,
    ReadLog,
    ReadSnapshot,
    ReplyReceived,
    RequestFailed,
    RequestReceived,
    Resign,
    RoleChanged,
    SendRequest,
    SnapshotRead,
    Tick,
    VotersChanged,
    Written,
)
from quorum.core.messages import DescribeQuorum, ErrorCode, Fetch, Introduce, IntroduceReply, Knowledge, Reply, Request
from quorum.core.roles import Leader
from quorum.core.types import Batch, ControlRecord, LogEnd, ReplicaKey, Voter, Voters, VoterSet
from tests.properties.test_raft_garbage import KEYS, Noise, make, step
from tests.scenarios.lab import Lab, directory

STEPS = 600
PEERS = (1, 2, 3, 4)


class Plausible(Noise):
    """rightness: how often a drawn message is one that a correct and current peer would send."""

    def __init__(self, random: Random, lab: Lab) -> None:
        super().__init__(random, lab)
        self.rightness = random.choice([0.8, 0.9, 0.97, 0.995])

    def right(self) -> bool:
        return self.random.random() < self.rightness

    def epoch(self) -> int:
        return self.core.epoch if self.right() else super().epoch()

    def cluster(self) -> str | None:
        return "lab" if self.right() else super().cluster()

    def error(self) -> ErrorCode:
        return ErrorCode.NONE if self.right() else super().error()

    def key(self) -> ReplicaKey:
        if not self.right():
            return super().key()
        others = [voter.key for voter in self.core.history.current if voter.key != self.core.key]
        return self.random.choice([*others, ReplicaKey(4, directory(4))])

    def offset(self) -> int:
        log = self.core.log
        if not self.right():
            return super().offset()
        return self.random.choice(
            [log.end, log.end, log.end, log.durable_end, max(log.end - 1, 0), self.core.high_watermark]
        )

    def end(self) -> LogEnd:
        offset = self.offset()
        epoch = self.core.log.epoch_at(offset - 1) if self.right() else self.epoch()
        return LogEnd(self.core.log.last.epoch if epoch is None else epoch, offset)

    def known(self) -> Knowledge:
        leader_id = self.core.election.leader_id
        if not self.right():
            return super().known()
        return Knowledge("lab", 0, self.core.epoch, leader_id, None if leader_id is None else f"n{leader_id}:1")

    def address(self, node_id: int) -> str:
        """Let some voters move, some of them to the address of another one."""
        return f"n{node_id}:{self.random.choice([1, 1, 1, 1, 2])}" if self.random.random() < 0.95 else "n3:1"

    def request(self) -> Request:
        sender = self.sender()
        draw = self.random.random()
        if draw < 0.55:
            end, address = self.end(), self.address(sender.key.node_id)
            known_round = self.core.role.round if isinstance(self.core.role, Leader) else 0
            watermark, round_ = self.random.choice([0, self.core.high_watermark]), self.random.choice([0, known_round])
            return Fetch(sender, 1, self.epoch(), end.offset, end.epoch, watermark, round_, 500, 1 << 20, address)
        if draw < 0.7:
            seeker = replace(sender, key=self.random.choice([*KEYS, ReplicaKey(5, directory(5))]))
            epoch = max(0, self.core.epoch + self.random.choice([0, 0, 1, 2, 5]))
            return DescribeQuorum(seeker, self.address(seeker.key.node_id), epoch)
        return super().request()

    def answer(self, to: Peer, request: Request) -> Reply:
        """Reply as the node at that address would."""
        if not isinstance(request, Introduce) or not self.right():
            return self.reply(request)
        node_id = int(to.address[1])
        voter = self.core.history.current.by_id(node_id)
        is_same = voter is not None and self.random.random() < 0.8
        key = voter.key if voter is not None and is_same else ReplicaKey(node_id, directory(node_id))
        known = Knowledge("lab", 0, self.core.epoch, None, None)
        return IntroduceReply(ErrorCode.NONE, known, key, False, (), None, VoterSet())

    def control(self) -> ControlRecord | None:
        record = super().control()
        voters = list(self.core.history.current.voters)
        if not isinstance(record, Voters) or not voters:
            return None if isinstance(record, Voters) else record
        absent = [node_id for node_id in PEERS if all(voter.key.node_id != node_id for voter in voters)]
        if len(voters) > 1 and (not absent or self.random.random() < 0.5):
            voters.pop(self.random.randrange(len(voters)))
        else:
            node_id = self.random.choice(absent)
            voters.append(Voter(ReplicaKey(node_id, directory(node_id)), f"n{node_id}:1"))
        return Voters("lab", 0, VoterSet(tuple(sorted(voters, key=lambda voter: voter.key.node_id))))

    def batches(self) -> tuple[Batch, ...]:
        found: list[Batch] = []
        offset, epoch = self.core.log.end, self.core.log.last.epoch
        for _ in range(self.random.randrange(4)):
            control = self.control()
            epoch = self.random.choice([epoch, max(epoch, self.core.epoch)])
            found.append(Batch(offset, epoch, 1, 0, b"" if control is not None else b"x", control))
            offset += 1
        return tuple(found)


class Run:
    """One node among peers that exist only as messages. seen: the events of the run."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.lab = make(self.random)
        self.peers = Plausible(self.random, self.lab)
        self.waiting: list[tuple[int, Peer, Request]] = []
        self.seen: set[str] = set()

    def go(self) -> None:
        node = self.lab.nodes[1]
        for _ in range(STEPS):
            assert node.core is not None
            self.seen.add(node.core.role.role.value)
            event = self.draw()
            if event is not None:
                self.meet(step(self.lab, event))
            if node.core.refused is not None:
                return
            if self.random.random() < 0.004:
                self.lab.crash(1)
                self.lab.start(1, self.random)
                self.waiting.clear()

    def draw(self) -> Event | None:
        node, random = self.lab.nodes[1], self.random
        assert node.core is not None
        match random.choices(range(7), (30, 25, 15, 8, 6, 4, 12))[0]:
            case 0:
                return RequestReceived(random.randrange(10**9), self.peers.request())
            case 1 if self.waiting:
                call, to, request = self.waiting.pop(random.randrange(len(self.waiting)))
                is_heard = random.random() < 0.9
                return ReplyReceived(call, self.peers.answer(to, request)) if is_heard else RequestFailed(call, "lost")
            case 2:
                due_ms = max(self.lab.now_ms, node.core.deadline_ms)
                later_ms = self.lab.now_ms + random.choice([1, 10, 100, 1000])
                self.lab.now_ms = random.choice([due_ms, due_ms, later_ms])
                return Tick()
            case 3:
                return self.peers.work()
            case 4:
                return self.peers.shell()
            case 5:
                propose = Propose(node.core.epoch, b"p", 1, 0)
                drawn: list[Event] = [propose, propose, propose, Resign("told to")]
                return random.choice(drawn)
            case _ if node.disk.pending:
                return Written(node.disk.settle().id)
        return None

    def meet(self, effects: list[Effect]) -> None:
        """Execute the effects on the disk, the peers and the callers."""
        for effect in effects:
            match effect:
                case SendRequest():
                    self.waiting.append((effect.call, effect.to, effect.request))
                case ReadLog():
                    effects += step(self.lab, self.lab.nodes[1].disk.read(effect))
                case ReadSnapshot():
                    effects += step(self.lab, SnapshotRead(effect.read_id, 20, b"x"))
                case VotersChanged():
                    self.seen.add(effect.result.error.name)
                case RoleChanged() if "starts a new epoch" in effect.reason:
                    self.seen.add("starts a new epoch")


@pytest.mark.parametrize("first", range(0, 240, 60))
def test_no_plausible_message_of_a_peer_makes_a_core_fail(first: int) -> None:
    seen: set[str] = set()
    for seed in range(first, first + 60):
        run = Run(seed)
        try:
            run.go()
        except AssertionError as failure:
            raise AssertionError(f"seed {seed}: {failure}") from failure
        seen |= run.seen
    assert seen >= {"leader", "resigned", "follower", "NONE", "starts a new epoch", "TIMED_OUT", "LAST_VOTER"}, (
        "the messages no longer reach some roles or answers"
    )
