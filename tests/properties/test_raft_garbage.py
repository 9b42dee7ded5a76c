"""No message of a peer, valid or not, early or late, makes a core raise, loop, or break a promise.

The core asserts its invariants at the end of each step, so a completed run has kept them.
"""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest

from quorum.core import RaftConfig, RaftCore
from quorum.core.events import (
    AddVoter,
    CancelTarget,
    ChangeVoters,
    ConfirmRead,
    Effect,
    Event,
    LoadSnapshot,
    LogRead,
    NodeRefused,
    Prefer,
    Propose,
    ReadLog,
    ReadSnapshot,
    ReceiveSnapshot,
    RemoveVoter,
    ReplyReceived,
    RequestFailed,
    RequestReceived,
    Resign,
    SendReply,
    SendRequest,
    SetTarget,
    SnapshotFailed,
    SnapshotLoaded,
    SnapshotPart,
    SnapshotRead,
    SnapshotTaken,
    StoreSnapshotPart,
    Tick,
    Transfer,
    TrimLog,
    UpdateVoter,
    VoterChange,
    Written,
)
from quorum.core.messages import (
    BeginQuorumEpoch,
    BeginQuorumEpochReply,
    DescribeQuorum,
    DescribeQuorumReply,
    EndQuorumEpoch,
    EndQuorumEpochReply,
    ErrorCode,
    Fetch,
    FetchReply,
    FetchSnapshot,
    FetchSnapshotReply,
    Introduce,
    IntroduceReply,
    Knowledge,
    Reply,
    Request,
    Sender,
    Vote,
    VoteReply,
)
from quorum.core.types import (
    Batch,
    ControlRecord,
    LeaderChange,
    LogBase,
    LogEnd,
    ReplicaKey,
    TargetVoters,
    Voter,
    Voters,
    VoterSet,
)
from tests.scenarios.lab import Lab, directory, founded_disks

ADDRESSES = {1: "n1:1", 2: "n2:1", 3: "n3:1"}
KEYS = [ReplicaKey(i, directory(i)) for i in (1, 2, 3, 4)] + [ReplicaKey(2, directory(99)), ReplicaKey(-1, UUID(int=0))]


class Noise:
    """Draws messages that are similar enough to valid ones to pass some of the checks."""

    def __init__(self, random: Random, lab: Lab) -> None:
        self.random = random
        self.lab = lab

    @property
    def core(self) -> RaftCore:
        core = self.lab.nodes[1].core
        assert core is not None
        return core

    def epoch(self) -> int:
        now = self.core.epoch
        return self.random.choice([now, now, now, now + 1, now + 1, now - 1, 0, -1, 2**31 - 1])

    def offset(self) -> int:
        log = self.core.log
        return self.random.choice(
            [log.end, log.end, log.end - 1, log.end + 1, self.core.high_watermark, 0, 1, -1, 10**12]
        )

    def key(self) -> ReplicaKey:
        return self.random.choice(KEYS)

    def mine(self) -> ReplicaKey:
        return self.core.key if self.random.random() < 0.9 else self.key()

    def cluster(self) -> str | None:
        return self.random.choice(["lab"] * 8 + ["other", None])

    def sender(self) -> Sender:
        return Sender(self.cluster(), self.random.choice([0] * 9 + [1]), self.key())

    def known(self) -> Knowledge:
        leader = self.random.choice([None, 1, 2, 3, 4])
        address = self.random.choice([f"n{leader}:1", None, "elsewhere:1"])
        return Knowledge(self.cluster(), 0, self.epoch(), leader, address)

    def end(self) -> LogEnd:
        return LogEnd(self.epoch(), self.offset())

    def error(self) -> ErrorCode:
        return self.random.choice([ErrorCode.NONE] * 6 + list(ErrorCode))

    def voter_set(self) -> VoterSet:
        ids = sorted(self.random.sample([1, 2, 3, 4], self.random.randint(0, 4)))
        return VoterSet(tuple(Voter(ReplicaKey(i, directory(self.random.choice([i, i, 99]))), f"n{i}:1") for i in ids))

    def control(self) -> ControlRecord | None:
        match self.random.randrange(8):
            case 0:
                return LeaderChange(self.key(), (), ())
            case 1:
                return Voters(self.random.choice(["lab", "other"]), self.random.choice([0, 1]), self.voter_set())
            case 2:
                return TargetVoters(self.random.choice([None, self.voter_set()]))
        return None

    def batches(self) -> tuple[Batch, ...]:
        found: list[Batch] = []
        offset, epoch = self.core.log.end, self.core.log.last.epoch
        for _ in range(self.random.randrange(4)):
            if self.random.random() < 0.1:
                offset, epoch = self.offset(), self.epoch()
            control = self.control()
            count = 1 if control is not None else self.random.choice([1, 1, 3, 0, -1])
            found.append(Batch(offset, epoch, count, 0, b"" if control is not None else b"x", control))
            offset += count
            epoch = max(epoch, self.random.choice([epoch, self.core.epoch]))
        return tuple(found)

    def request(self) -> Request:
        match self.random.randrange(7):
            case 0:
                return Vote(self.sender(), self.mine(), self.epoch(), self.end(), self.random.random() < 0.5)
            case 1:
                return BeginQuorumEpoch(self.sender(), self.mine(), self.epoch(), "n2:1")
            case 2:
                keys = tuple(self.random.sample(KEYS, self.random.randrange(4)))
                return EndQuorumEpoch(self.sender(), self.mine(), self.epoch(), keys)
            case 3:
                wait, size = self.random.choice([0, 500, 10**9, -1]), self.random.choice([1, 10**6, 0, -1])
                target, end = self.random.choice([1, 1, None, 2]), self.end()
                hw = self.offset()
                return Fetch(
                    self.sender(),
                    target,
                    self.epoch(),
                    end.offset,
                    end.epoch,
                    hw,
                    self.random.choice([0, 0, 1, 9]),
                    wait,
                    size,
                    "n4:1",
                )
            case 5:
                at, size = self.random.choice([0, 0, 7, 10**12]), self.random.choice([1, 1000])
                target, round_ = self.random.choice([1, 2]), self.random.choice([0, 0, 1, 9])
                return FetchSnapshot(self.sender(), target, self.epoch(), self.end(), at, size, round_)
            case 4:
                return Introduce(self.sender(), tuple(ADDRESSES.items())[: self.random.randrange(4)])
            case _:
                return DescribeQuorum(self.sender())

    def work(self) -> Event:
        """Requests of an operator or the shell to the core."""
        random = self.random
        node_id = random.choice([1, 2, 3, 4])
        address = f"n{random.choice([node_id, node_id, 3])}:1"
        directory_id = random.choice([None, None, directory(node_id), directory(99)])
        chosen = random.sample([1, 2, 3, 4], random.randint(0, 4))
        call = random.randrange(10**9)
        match random.randrange(4):
            case 0:
                asked: list[Event] = [Prefer(tuple(chosen)), ConfirmRead(call)]
                return random.choice(asked)
            case 1:
                return Transfer(call, random.choice([None, *chosen]), random.choice([0, 5000]))
        changes: list[VoterChange] = [
            AddVoter(node_id, address, directory_id, random.random() < 0.5),
            RemoveVoter(node_id, directory_id),
            UpdateVoter(self.key(), address),
            SetTarget(tuple((chosen_id, f"n{chosen_id}:1") for chosen_id in chosen)),
            CancelTarget(),
        ]
        return ChangeVoters(call, random.choice(changes), random.random() < 0.2, random.choice([0, 5000]))

    def reply(self, to: Request | None) -> Reply:
        kinds = [Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch, FetchSnapshot, Introduce, DescribeQuorum]
        kind = type(to) if to is not None and self.random.random() < 0.95 else self.random.choice(kinds)
        error, known = self.error(), self.known()
        if kind is Vote:
            return VoteReply(error, known, self.random.random() < 0.7)
        if kind is BeginQuorumEpoch:
            return BeginQuorumEpochReply(error, known)
        if kind is EndQuorumEpoch:
            return EndQuorumEpochReply(error, known)
        if kind is Fetch:
            match self.random.randrange(6):
                case 0:
                    return FetchReply(error, known, diverging=self.end())
                case 1:
                    return FetchReply(error, known, snapshot=self.end())
                case _:
                    return FetchReply(error, known, self.offset(), 0, 0, batches=self.batches())
        if kind is FetchSnapshot:
            return self.part(to, error, known)
        if kind is Introduce:
            founding = self.random.choice([None, *self.batches()[:1]])
            listed = tuple(ADDRESSES.items())[: self.random.choice([3, 3, 2])]
            newborn = self.random.random() < 0.5
            return IntroduceReply(error, known, self.key(), newborn, listed, founding, self.voter_set())
        return DescribeQuorumReply(error, known, self.key(), 0, 0, False, (), (), None, None, None)

    def part(self, to: Request | None, error: ErrorCode, known: Knowledge) -> FetchSnapshotReply:
        snapshot, position = self.end(), self.random.choice([0, 10, -1])
        if isinstance(to, FetchSnapshot) and self.random.random() < 0.9:
            snapshot, position = to.snapshot, to.position
        data = self.random.choice([b"", b"0123456789", b"0123456789"])
        size = self.random.choice([position + len(data), 10, 30, 0])
        return FetchSnapshotReply(error, known, snapshot, size, position, data)

    def shell(self) -> Event:
        """The actions of a correct shell for snapshots from any sender."""
        node, random = self.lab.nodes[1], self.random
        if node.receiving:
            match node.receiving.pop(0):
                case ReceiveSnapshot(end):
                    return SnapshotPart(end, random.choice([0, 0, 10, 30]))
                case StoreSnapshotPart(end, position, data):
                    return SnapshotPart(end, position + len(data))
                case LoadSnapshot(end):
                    if random.random() < 0.3:
                        return SnapshotFailed(end, "noise")
                    record = Voters(random.choice(["lab"] * 9 + ["other"]), 0, self.voter_set())
                    node.disk.snapshots[end] = b"state"
                    return SnapshotLoaded(LogBase(end, record, random.choice([None, self.voter_set()])))
        whole = [batch for batch in node.disk.batches if batch.end_offset <= node.applied]
        if whole and not node.disk.pending and random.random() < 0.5:
            end = LogEnd(whole[-1].epoch, whole[-1].end_offset)
            node.disk.snapshots[end] = b"state"
            return SnapshotTaken(end)
        return TrimLog(random.choice([*node.disk.snapshots, LogEnd(1, 10**9)]))


def make(random: Random) -> Lab:
    """Node 1, founded, newborn or observing; the others are only names."""
    lab = Lab()
    kind = random.choice(["founded", "founded", "newborn", "observer", "alone"])
    match kind:
        case "founded" | "alone":
            addresses = ADDRESSES if kind == "founded" else {1: "n1:1"}
            lab.add(RaftConfig(1, "n1:1", initial_voters=tuple(addresses.items())), founded_disks(addresses)[1])
        case "newborn":
            lab.add(RaftConfig(1, "n1:1", initial_voters=tuple(ADDRESSES.items()), new_cluster_id="lab"))
        case _:
            lab.add(RaftConfig(1, "n1:1", bootstrap=("n2:1", "n3:1")))
    lab.start(1, random)
    return lab


def run(seed: int) -> set[str]:
    random = Random(seed)
    lab = make(random)
    noise = Noise(random, lab)
    node = lab.nodes[1]
    waiting: list[tuple[int, Request]] = []
    roles = set()
    for _ in range(400):
        core = node.core
        assert core is not None
        roles.add(core.role.role.value)
        if core.log.start > 0:
            roles.add("after a snapshot")
        event: Event
        match random.randrange(13):
            case 11 | 12:
                event = noise.shell()
            case 10:
                event = noise.work()
            case 0 | 1 | 2:
                event = RequestReceived(random.randrange(10**9), noise.request())
            case 3 | 4 | 5 if waiting:
                call, request = waiting.pop(random.randrange(len(waiting)))
                event = ReplyReceived(call, noise.reply(request))
            case 6:
                call = waiting.pop()[0] if waiting and random.random() < 0.7 else random.randrange(100)
                event = RequestFailed(call, "noise")
            case 7:
                lab.now_ms = max(lab.now_ms, core.deadline_ms)
                event = Tick()
            case 8:
                events: list[Event] = [Propose(core.epoch, b"p", 1, 0), Resign("noise"), LogRead(1, noise.batches())]
                event = random.choice(events)
            case _ if node.disk.pending:
                event = Written(node.disk.settle().id)
            case _:
                continue
        effects = step(lab, event)
        if isinstance(event, RequestReceived):
            assert not any(isinstance(effect, NodeRefused) for effect in effects), f"{event} stops the node"
        for effect in effects:
            if isinstance(effect, SendRequest):
                waiting.append((effect.call, effect.request))
            elif isinstance(effect, ReadLog) and random.random() < 0.7:
                effects += step(lab, node.disk.read(effect))
            elif isinstance(effect, ReadSnapshot):
                effects += step(lab, SnapshotRead(effect.read_id, 20, random.choice([None, b"", b"x"])))
        if core.refused is not None:
            break
    return roles


def step(lab: Lab, event: Event) -> list[Effect]:
    """One step of node 1, whose messages go nowhere but whose writes reach its disk."""
    node = lab.nodes[1]
    assert node.core is not None
    effects = node.core.step(event, lab.now_ms)
    for effect in effects:
        if not isinstance(effect, SendRequest | SendReply | ReadLog | ReadSnapshot):
            lab.execute(node, effect)
    lab.wire.clear()
    return effects


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_no_message_of_a_peer_makes_a_core_fail(first: int) -> None:
    roles: set[str] = set()
    for seed in range(first, first + 100):
        try:
            roles |= run(seed)
        except AssertionError as failure:
            raise AssertionError(f"seed {seed}: {failure}") from failure
    assert roles == {"after a snapshot", "unattached", "follower", "prospective", "candidate", "leader", "resigned"}
