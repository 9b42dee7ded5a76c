"""Three replicas under random delivery: every ISR member has all records that were acknowledged with acks=all.

The pure leader and follower states run against a small model of everything else: logs with a flushed part, a controller
that compares and sets, images that arrive late, requests and replies that are lost, repeated and reordered, brokers
that lose power and restart.  One seed determines everything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from broker.core.epochs import EpochCache
from broker.core.partition import (
    Answer,
    AppendRecords,
    Assignment,
    Contact,
    Divergence,
    FollowerState,
    LeaderReply,
    LeaderState,
    Limits,
    Proposal,
    SentPosition,
    TruncateTo,
    check_leader_epoch,
    check_position,
)
from quorumlog.wire.errors import KafkaCode

BROKERS = (1, 2, 3)
STEPS = 1_500
LIMITS = Limits(lag_max_ms=150, min_isr=2, retry_ms=5, overdue_ms=40)


@dataclass(frozen=True)
class Image:
    """The state of the controller's log at some offset."""

    version: int
    assignment: Assignment
    broker_epochs: dict[int, int]
    fenced: frozenset[int]

    def broker_epoch(self, broker_id: int) -> int:
        return self.broker_epochs[broker_id]

    def may_join(self, broker_id: int) -> bool:
        return broker_id not in self.fenced


class Controller:
    def __init__(self) -> None:
        self.image = Image(0, Assignment(BROKERS, BROKERS, 1, 0, 0), {id_: id_ for id_ in BROKERS}, frozenset())
        self.next_epoch = 10

    def _commit(
        self,
        *,
        isr: tuple[int, ...],
        leader: int,
        new_leader: bool,
        broker_epochs: dict[int, int] | None = None,
        fenced: frozenset[int] | None = None,
    ) -> None:
        old = self.image
        assignment = Assignment(
            BROKERS,
            isr,
            leader,
            old.assignment.leader_epoch + new_leader,
            old.assignment.partition_epoch + 1,
        )
        self.image = Image(
            old.version + 1,
            assignment,
            old.broker_epochs if broker_epochs is None else broker_epochs,
            old.fenced if fenced is None else fenced,
        )

    def alter(self, sender: int, proposal: Proposal) -> Answer:
        now = self.image.assignment
        if proposal.leader_epoch != now.leader_epoch or proposal.partition_epoch != now.partition_epoch:
            return Answer.OVERTAKEN
        assert sender == now.leader, "one leader a leader epoch"
        for broker_id, epoch in proposal.isr:
            joins = broker_id not in now.isr
            if joins and (broker_id in self.image.fenced or epoch != self.image.broker_epochs[broker_id]):
                return Answer.REFUSED
        self._commit(isr=proposal.members, leader=now.leader, new_leader=False)
        return Answer.ACCEPTED

    def broker_failed(self, broker_id: int) -> None:
        now = self.image.assignment
        fenced = self.image.fenced | {broker_id}
        isr = tuple(id_ for id_ in now.isr if id_ != broker_id) or now.isr
        leader = next((id_ for id_ in isr if id_ not in fenced), -1) if now.leader == broker_id else now.leader
        self._commit(isr=isr, leader=leader, new_leader=leader != now.leader, fenced=fenced)

    def broker_back(self, broker_id: int) -> None:
        now = self.image.assignment
        self.next_epoch += 1
        epochs = {**self.image.broker_epochs, broker_id: self.next_epoch}
        fenced = self.image.fenced - {broker_id}
        leader = broker_id if now.leader == -1 and broker_id in now.isr else now.leader
        self._commit(isr=now.isr, leader=leader, new_leader=leader != now.leader, broker_epochs=epochs, fenced=fenced)


@dataclass
class Broker:
    id: int
    log: list[tuple[int, int]] = field(default_factory=list)  # (leader epoch, value)
    flushed: int = 0
    image: Image | None = None
    leader: LeaderState | None = None
    follower: FollowerState | None = None
    watermark: int = 0
    broker_epoch: int = 0
    up: bool = True
    waiting: list[int] = field(default_factory=list)  # ends of unanswered acks=all writes
    epochs: list[tuple[int, int]] = field(default_factory=list)
    contacts: dict[int, Contact] = field(default_factory=dict)

    @property
    def history(self) -> EpochCache:
        return EpochCache(self.epochs, len(self.log))

    def assign(self, epoch: int, start: int) -> None:
        if not self.epochs or epoch > self.epochs[-1][0]:
            self.epochs = [each for each in self.epochs if each[1] < start]
            self.epochs.append((epoch, start))

    def truncate(self, end: int) -> None:
        del self.log[end:]
        self.flushed = min(self.flushed, end)
        self.epochs = [each for each in self.epochs if each[1] < end]

    def last_epoch(self) -> int:
        return self.log[-1][0] if self.log else -1


class World:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.now_ms = 0
        self.controller = Controller()
        self.brokers = {id_: Broker(id_) for id_ in BROKERS}
        self.fetches: list[tuple[int, int, SentPosition, int]] = []  # from, to, position, broker epoch
        self.replies: list[tuple[int, int, SentPosition, LeaderReply, list[tuple[int, int]]]] = []
        self.proposals: list[tuple[int, Proposal]] = []
        self.answers: list[tuple[int, Proposal, Answer]] = []
        self.acked: list[tuple[int, int]] = []
        self.value = 0
        for broker in self.brokers.values():
            broker.broker_epoch = broker.id
            self.learn(broker)

    # -- invariants

    def check(self) -> None:
        end = len(self.acked)
        for id_ in self.controller.image.assignment.isr:
            broker = self.brokers[id_]
            assert broker.flushed >= end, f"{id_} in the ISR has {broker.flushed} of {end} on disk"
            assert broker.log[:end] == self.acked, f"{id_} in the ISR holds another history"
        for broker in self.brokers.values():
            if broker.leader is not None:
                assert broker.leader.high_watermark <= len(broker.log)

    def settle(self, broker: Broker) -> None:
        """Answer the requests that the leader may answer."""
        leader = broker.leader
        assert leader is not None
        broker.watermark = leader.high_watermark
        left = []
        for end in broker.waiting:
            verdict = leader.verdict(-1, end)
            if verdict is KafkaCode.NONE and end > len(self.acked):
                assert broker.log[: len(self.acked)] == self.acked
                self.acked = broker.log[:end]
            elif verdict is None:
                left.append(end)
        broker.waiting = left

    # -- actions

    def learn(self, broker: Broker) -> None:
        image = self.controller.image
        if not broker.up or (broker.image is not None and broker.image.version == image.version):
            return
        old, broker.image = broker.image, image
        now = image.assignment
        same = old is not None and old.assignment.leader_epoch == now.leader_epoch
        if now.leader == broker.id:
            if image.broker_epochs[broker.id] != broker.broker_epoch:
                return
            if same and broker.leader is not None:
                broker.leader.cluster = image
                broker.leader.on_assignment(now, self.now_ms)
            else:
                broker.follower = None
                broker.waiting = []
                broker.assign(now.leader_epoch, len(broker.log))
                broker.leader = LeaderState(
                    broker.id,
                    now,
                    log_end=len(broker.log),
                    flushed_end=broker.flushed,
                    high_watermark=min(broker.watermark, len(broker.log)),
                    cluster=image,
                    limits=LIMITS,
                    now_ms=self.now_ms,
                )
            self.settle(broker)
        elif not same or broker.follower is None:
            broker.leader = None
            broker.waiting = []
            broker.follower = FollowerState(now.leader, now.leader_epoch, min(broker.watermark, len(broker.log)))

    def produce(self, broker: Broker) -> None:
        if broker.leader is None or broker.leader.admits(-1) is not KafkaCode.NONE:
            return
        self.value += 1
        broker.log.append((broker.leader.leader_epoch, self.value))
        broker.leader.on_appended(len(broker.log))
        broker.waiting.append(len(broker.log))

    def flush(self, broker: Broker) -> None:
        if broker.up:
            broker.flushed = len(broker.log)
            if broker.leader is not None:
                broker.leader.on_flushed(broker.flushed)
                self.settle(broker)

    def fetch(self, broker: Broker) -> None:
        if broker.follower is None or broker.follower.leader_id < 0 or broker.flushed != len(broker.log):
            return
        sent = SentPosition(broker.follower.leader_epoch, broker.flushed, broker.last_epoch())
        self.fetches.append((broker.id, broker.follower.leader_id, sent, broker.broker_epoch))

    def deliver_fetch(self) -> None:
        if not self.fetches:
            return
        at = self.random.randrange(len(self.fetches))
        source, target, sent, broker_epoch = self.fetches[at]
        if self.random.random() < 0.9 or len(self.fetches) > 12:
            del self.fetches[at]
        broker = self.brokers[target]
        leader = broker.leader
        if leader is None or check_leader_epoch(sent.leader_epoch, leader.leader_epoch) is not KafkaCode.NONE:
            return
        verdict = check_position(sent.offset, sent.last_fetched_epoch, 0, broker.history, is_replica=True)
        data: list[tuple[int, int]] = []
        diverging = verdict if isinstance(verdict, Divergence) else None
        if verdict == KafkaCode.NONE and diverging is None:
            contact = broker.contacts.setdefault(source, Contact(self.now_ms))
            contact.last_fetch_ms = self.now_ms
            leader.on_fetch(source, broker_epoch, sent.offset, self.now_ms, contact)
            self.settle(broker)
            data = broker.log[sent.offset : sent.offset + self.random.randrange(1, 4)]
        code = 0 if isinstance(verdict, Divergence) else int(verdict)
        first = sent.offset if data else -1
        answer = LeaderReply(code, leader.high_watermark, 0, diverging, first)
        self.replies.append((target, source, sent, answer, data))

    def deliver_reply(self) -> None:
        if not self.replies:
            return
        _, target, sent, answer, data = self.replies.pop(self.random.randrange(len(self.replies)))
        broker = self.brokers[target]
        if broker.follower is None or not broker.up:
            return
        match broker.follower.on_reply(sent, answer, 0, broker.history):
            case TruncateTo(end):
                broker.truncate(end)
                broker.follower.on_truncated(end)
            case AppendRecords(watermark):
                for epoch, value in data:
                    broker.assign(epoch, len(broker.log))
                    broker.log.append((epoch, value))
                broker.follower.on_leader_watermark(watermark, len(broker.log))
            case _:
                return
        broker.watermark = broker.follower.high_watermark

    def propose(self, broker: Broker) -> None:
        if broker.leader is not None:
            proposal = broker.leader.propose(self.now_ms)
            if proposal is not None:
                self.proposals.append((broker.id, proposal))

    def deliver_proposal(self) -> None:
        """Deliver a proposal, or report UNKNOWN to its sender.  Then it is lost, or is delivered later."""
        if not self.proposals:
            return
        at = self.random.randrange(len(self.proposals))
        sender, proposal = self.proposals[at]
        if self.random.random() < 0.3:
            self.answers.append((sender, proposal, Answer.UNKNOWN))
            if self.random.random() < 0.5:
                del self.proposals[at]
            return
        del self.proposals[at]
        self.answers.append((sender, proposal, self.controller.alter(sender, proposal)))

    def deliver_answer(self) -> None:
        if not self.answers:
            return
        sender, proposal, answer = self.answers.pop(self.random.randrange(len(self.answers)))
        broker = self.brokers[sender]
        if broker.leader is not None and broker.up:
            broker.leader.on_answer(proposal, answer, self.now_ms)
            self.settle(broker)

    def power_cut(self, broker: Broker) -> None:
        if not broker.up or sum(each.up for each in self.brokers.values()) < 2:
            return
        broker.up = False
        broker.leader = broker.follower = None
        broker.waiting = []
        broker.truncate(broker.flushed)
        # The watermark that was checkpointed may be an old one.
        broker.watermark = self.random.randrange(min(broker.watermark, len(broker.log)) + 1)
        self.controller.broker_failed(broker.id)

    def power_on(self, broker: Broker) -> None:
        if broker.up:
            return
        broker.up = True
        self.controller.broker_back(broker.id)
        broker.broker_epoch = self.controller.image.broker_epochs[broker.id]
        broker.image = None
        self.learn(broker)

    def step(self) -> None:
        self.now_ms += self.random.randrange(4)
        broker = self.brokers[self.random.choice(BROKERS)]
        roll = self.random.random()
        if roll < 0.15:
            self.produce(broker)
        elif roll < 0.28:
            self.flush(broker)
        elif roll < 0.43:
            self.fetch(broker)
        elif roll < 0.60:
            self.deliver_fetch()
        elif roll < 0.77:
            self.deliver_reply()
        elif roll < 0.83:
            self.propose(broker)
        elif roll < 0.88:
            self.deliver_proposal()
        elif roll < 0.92:
            self.deliver_answer()
        elif roll < 0.975:
            self.learn(broker)
        elif roll < 0.979:
            self.power_cut(broker)
        else:
            self.power_on(broker)
        self.check()

    def heal(self) -> None:
        """End all faults: all brokers restart and must get in sync."""
        for broker in self.brokers.values():
            self.power_on(broker)
        for _ in range(3_000):
            self.now_ms += 1
            for broker in self.brokers.values():
                self.learn(broker)
                self.flush(broker)
                self.fetch(broker)
                self.propose(broker)
            for _ in range(6):
                self.deliver_fetch()
                self.deliver_reply()
                self.deliver_proposal()
                self.deliver_answer()
            self.check()
            del self.fetches[:-20]
            if set(self.controller.image.assignment.isr) == set(BROKERS) and self._all_equal():
                return
        raise AssertionError(f"no progress: {self.controller.image}")

    def _all_equal(self) -> bool:
        ends = {(len(each.log), each.flushed) for each in self.brokers.values()}
        leader = self.brokers[self.controller.image.assignment.leader].leader
        return len(ends) == 1 and leader is not None and leader.high_watermark == len(self.brokers[1].log)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
@example(287_870)  # a divergence reported twice: the log had grown back to the offset, under another epoch
def test_acknowledged_writes_survive_every_election(seed: int) -> None:
    world = World(Random(seed))
    for _ in range(STEPS):
        world.step()
    world.heal()


def test_the_model_acknowledges_writes_and_elects_leaders() -> None:
    """Without writes and elections, the property above would prove nothing."""
    acked = elections = joins = 0
    for seed in range(20):
        world = World(Random(seed))
        for _ in range(STEPS):
            world.step()
        acked += len(world.acked)
        elections += world.controller.image.assignment.leader_epoch
        joins += world.controller.image.assignment.partition_epoch
    assert acked > 200
    assert elections > 10
    assert joins > 60


@pytest.mark.parametrize("rule", ["unflushed", "pending", "refusal"])
def test_the_property_notices_a_broken_rule(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one of these rules of the theory of operation, some schedule violates the property."""
    if rule == "unflushed":

        def fetch_from_log_end(world: World, broker: Broker) -> None:
            if broker.follower is not None and broker.follower.leader_id >= 0:
                sent = SentPosition(broker.follower.leader_epoch, len(broker.log), broker.last_epoch())
                world.fetches.append((broker.id, broker.follower.leader_id, sent, broker.broker_epoch))

        monkeypatch.setattr(World, "fetch", fetch_from_log_end)
    elif rule == "pending":
        monkeypatch.setattr(LeaderState, "maximal_isr", lambda state: frozenset(state.isr))
        original = LeaderState.propose

        def propose(state: LeaderState, now_ms: int) -> Proposal | None:
            proposal = original(state, now_ms)
            state._pending.additions.clear()
            return proposal

        monkeypatch.setattr(LeaderState, "propose", propose)
    else:
        answer = LeaderState.on_answer

        def on_answer(state: LeaderState, proposal: Proposal, what: Answer, now_ms: int) -> bool:
            return answer(state, proposal, Answer.REFUSED if what is Answer.UNKNOWN else what, now_ms)

        monkeypatch.setattr(LeaderState, "on_answer", on_answer)

    def break_it() -> None:
        for seed in range(2_000):
            world = World(Random(seed))
            for _ in range(STEPS):
                world.step()

    with pytest.raises(AssertionError):
        break_it()
