"""Workers of a share group (KIP-932): each accepts the records of a queue with the product's own `ShareConsumer`.

I40: While a member certainly holds the lock on a record, no other member receives it.  I41: A record is not delivered
once its acceptance or rejection has been acknowledged.  (Both hold unless a partition lost records in a permitted
unclean election.)  L12: After healing, every committed record of the queue is accepted or rejected.

In some runs the group has a dead-letter topic.  I46: Once a dead letter of a record is committed, the record is not
delivered.  No acceptance of such a record is acknowledged, before or after.  A letter with a copy has the contents of
its record.  L12 then also requires that each record whose rejection was acknowledged, or that was delivered too often,
has a letter.

Locks are not durable: a new leader of the partition delivers a locked record again.  So I40 compares only deliveries of
one `LedShare`.  A broker also releases the records of a member whose connection breaks.  The member learns of the break
later.  So a second delivery counts as wrong only if the first member's connection is still intact `RESET_S` later.

A leader that has not learned of its successor does not know what the successor has completed.  So I41 permits it to
deliver such a record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from broker.coordinator.led_share import LedShare
from broker.core.coordinator.share.states import ShareKey
from metadata.image.internal_topics import CONSUMER_OFFSETS, SHARE_GROUP_STATE
from quorumlog.client.cluster import Cluster
from quorumlog.client.coordinators import CoordinatorCalls
from quorumlog.client.kafka import KafkaConnection
from quorumlog.client.share_consumer import (
    NEWEST_VERSIONS,
    Place,
    RecordLock,
    ShareConsumer,
    ShareRecord,
    ShareSession,
)
from quorumlog.errors import ClusterError
from simulation.cluster.coordinators import LOCK_MS, WORKERS
from simulation.cluster.history import Committed, History, marks_in
from simulation.cluster.metadata import Check, Spot
from simulation.cluster.plan import LETTERS, QUEUE
from simulation.cluster.world import CLOCK_RATE_MAX, ClusterWorld

GROUP = WORKERS
MAX_RECORDS = 5
GET_S = 0.5
RESET_S = 1.5
"""True time in which a client has learned that its connection is broken, even in a slow network."""
RELEASE_SHARE, REJECT_SHARE, RENEW_SHARE, SLOW_SHARE, VANISH_SHARE = 0.1, 0.05, 0.05, 0.03, 0.03
DEAD_SHARE = 0.25
"""The probability that a worker rejects a record in a run with dead letters."""
ACCEPTED = 0.5
"""A random number with which a worker accepts a record, without a pause."""

NEWEST_EPOCH = 1 << 31
"""Above each leader epoch: a delivery by an unknown leader is judged as one by the newest leader."""

Record = tuple[int, int]
"""Partition and offset of a record of the queue."""


@dataclass(eq=False)
class Lock:
    """A delivery.  until_s: the true time up to which the lock certainly lasts.

    share: the share partition that gave the lock.  leader_epoch: at least the epoch of the leader that gave it.
    connection: when it breaks, the broker releases the record.
    """

    member: str
    received_s: float
    until_s: float
    share: object
    leader_epoch: int
    connection: KafkaConnection

    def holds_at(self, now_s: float) -> bool:
        """Return whether the lock certainly exists now."""
        is_led = isinstance(self.share, LedShare) and not self.share.has_ended
        return is_led and now_s < self.until_s and self.connection.is_open


class Completion(NamedTuple):
    """When (true time) an acceptance or rejection was acknowledged, and the newest leader epoch at that time."""

    done_s: float
    leader_epoch: int
    is_rejection: bool = False


@dataclass
class QueueWatch:
    """I40, I41 and I46.

    letters: when (true time) the first dead letter of a record was committed, and the newest leader epoch of the record
        at that time.
    doubtful: records whose acceptance or rejection was sent.  locks: the latest delivery of each record that its member
    has not given up.  suspects: second deliveries that are wrong if the connection of the first one is intact.
    """

    check: Check
    completed: dict[Record, Completion] = field(default_factory=dict)
    doubtful: set[Record] = field(default_factory=set)
    letters: dict[Record, Completion] = field(default_factory=dict)
    locks: dict[Record, Lock] = field(default_factory=dict)
    suspects: list[tuple[float, Lock, str]] = field(default_factory=list)

    def delivered(self, record: Record, lock: Lock, asked_s: float) -> None:
        """Check a delivery.  asked_s: the true time at which the member had asked for records."""
        if (done := self.completed.get(record)) is not None:
            self.check(
                done.done_s >= asked_s or lock.leader_epoch < done.leader_epoch,
                lambda: (
                    f"I41: {lock.member} gets {record} at {lock.received_s:.3f}, it was completed at {done.done_s:.3f}"
                ),
            )
        if (written := self.letters.get(record)) is not None:
            self.check(
                written.done_s >= asked_s or lock.leader_epoch < written.leader_epoch,
                lambda: (
                    f"I46: {lock.member} gets {record} at {lock.received_s:.3f}, its letter is of {written.done_s:.3f}"
                ),
            )
        held = self.locks.get(record)
        if (
            held is not None
            and held.member != lock.member
            and held.share is lock.share
            and held.received_s < asked_s
            and lock.received_s < held.until_s
        ):
            text = f"I40: {lock.member} gets {record} at {lock.received_s:.3f}, but {held.member} holds it"
            self.suspects.append((lock.received_s, held, text))
        self.locks[record] = lock

    def completes(self, record: Record, completion: Completion, lock: Lock | None) -> None:
        """Note, and check, that an acceptance or rejection was acknowledged.  lock: the member's lock.

        After a lock has ended, the record may be archived, and the share partition may start behind it.  A late
        acceptance is then ignored, but the answer reports success.
        """
        if completion.is_rejection or record not in self.letters:
            self.completed.setdefault(record, completion)
            return
        self.check(
            lock is None or not lock.holds_at(completion.done_s),
            lambda: f"I46: the acceptance of {record} is acknowledged, but it has a dead letter",
        )

    def wrote_letter(self, record: Record, written: Completion) -> None:
        """Note, and check, that a dead letter became committed."""
        if record in self.letters:
            return
        self.letters[record] = written
        done = self.completed.get(record)
        self.check(
            done is None or done.is_rejection,
            lambda: f"I46: {record} gets a dead letter, although its acceptance was acknowledged",
        )

    def lacks_letter(self, record: Record) -> bool:
        """Return whether the record lacks a dead letter although its rejection was acknowledged."""
        done = self.completed.get(record)
        return done is not None and done.is_rejection and record not in self.letters

    def given_up(self, member: str, records: Iterable[Record]) -> None:
        """Note that this member has asked, or is about to ask, to end its locks."""
        for record in records:
            if (held := self.locks.get(record)) is not None and held.member == member:
                del self.locks[record]

    def judge(self, now_s: float, connection: KafkaConnection | None = None) -> None:
        """Judge the suspects that are old enough.  connection: the member is about to close it."""
        kept = []
        for since_s, held, text in self.suspects:
            if now_s - since_s >= RESET_S:
                self.check(not held.connection.is_open, lambda text=text: text)  # type: ignore[misc]
            elif held.connection is not connection:
                kept.append((since_s, held, text))
        self.suspects = kept


class Workers:
    """The members of the group, each on a host of its own.  new_client: returns a new `Cluster`."""

    def __init__(self, world: ClusterWorld, new_client: Callable[[], Cluster]) -> None:
        self.world = world
        self.watch = QueueWatch(self._check)
        self.stop = asyncio.Event()
        self.are_diligent = False
        """At the end, workers only accept records, without a pause.

        Before that, a worker with batches of five records lets locks expire in nearly half of its batches.  It then
        completes about six records per second, so a queue may need a minute."""
        self.working = asyncio.Event()
        """Cleared while the workers rest; see `rests.py`."""
        self.working.set()
        self.at_work = 0
        """Number of workers that have begun, and have not stopped."""
        self.tasks: list[asyncio.Task[None]] = []
        self.new_client = new_client
        if world.plan.letter_partitions:
            world.watch.evidence.on_committed.append(self._on_committed)

    def _check(self, holds: bool, text: Callable[[], str]) -> None:
        """Check a promise, unless a partition has lost records in a permitted unclean election."""
        self.world.watch.check(holds or self.has_lost(), text)

    def has_lost(self) -> bool:
        """Return whether a topic that decides which records of the queue are complete has lost records."""
        return any(map(self.world.watch.answers.has_lost, (QUEUE, LETTERS, SHARE_GROUP_STATE, CONSUMER_OFFSETS)))

    def _on_committed(self, history: History, batch: Committed) -> None:
        if history.spot.topic != LETTERS:
            return
        seen = self.world.watch.seen
        self._check(bool(batch.letters), lambda: f"I46: {history} has a batch without letters at {batch.base_offset}")
        for letter in batch.letters:
            record = (letter.partition, letter.offset)
            seen["dead letter written again" if record in self.watch.letters else "dead letter written"] += 1
            seen["dead letter written without members"] += not self.at_work
            source = self.world.watch.current(Spot(QUEUE, letter.partition))
            expected = None if source is None else source.mark_at(letter.offset)
            self._check(
                letter.mark == (expected if self.world.plan.letter_copies else None),
                lambda record=record, letter=letter: f"I46: the letter of {record} contains {letter.mark}",  # type: ignore[misc]
            )
            self.watch.wrote_letter(record, self.completion(letter.partition))

    def completion(self, index: int, *, is_rejection: bool = False) -> Completion:
        """Return the completion of a record in this partition of the queue, at the current time and leader epoch."""
        image = self.world.watch.metadata.image
        partition = image.partition(image.topic_ids[QUEUE], index)
        assert partition is not None, "the queue is not deleted"
        return Completion(self.world.loop.true_time(), partition.leader_epoch, is_rejection)

    def start(self) -> None:
        for name in self.world.plan.worker_hosts:
            self.tasks.append(self.world.start_client(name, self._work(name)))
        if (rest := self.world.plan.rest) is not None:
            self.world.loop.call_later(rest.at_s, self.working.clear)

    def is_at_rest(self) -> bool:
        return not self.working.is_set()

    def unfinished(self) -> list[str]:
        """Return why not every record of the queue is complete; nothing if records were lost."""
        watch, found = self.world.watch, []
        if self.has_lost():
            return []
        for index in range(self.world.plan.queue_partitions):
            history = watch.current(Spot(QUEUE, index))
            end = 0 if history is None else history.end
            done = self.watch.completed.keys() | self.watch.doubtful | self.watch.letters.keys()
            left = [
                offset
                for offset in range(end)
                if (index, offset) not in done
                or (self.world.plan.letter_partitions and self.watch.lacks_letter((index, offset)))
            ]
            if left:
                found.append(f"{QUEUE}-{index}: {len(left)} of {end}, from {left[0]}")
        return found

    def share_at(self, node_host: str, place: Place) -> LedShare | None:
        """Return the share partition at the broker on this host; None if the broker has not loaded it."""
        broker = next((host.broker for host in self.world.brokers if host.name == node_host), None)
        return None if broker is None else broker.role.shares.partitions.known(ShareKey(GROUP, *place))

    async def _work(self, name: str) -> None:
        random, lives, seen = Random(f"{self.world.plan.seed} {name}"), 0, self.world.watch.seen
        while not self.stop.is_set():
            await self.working.wait()
            lives += 1
            worker = _Worker(self, f"{name}-{lives}", random)
            self.at_work += 1
            try:
                async with worker:
                    await worker.work()
            except ClusterError:
                seen["worker started over"] += 1
                await asyncio.sleep(random.uniform(0.05, 0.2))
            finally:
                self.at_work -= 1


class _Worker(ShareConsumer):
    """A share consumer whose requests and locks are watched."""

    def __init__(self, group: Workers, member: str, random: Random) -> None:
        super().__init__(group.world.bootstrap, GROUP, topics=[QUEUE], max_records=random.randint(1, MAX_RECORDS))
        self._cluster = group.new_client()
        self._calls = CoordinatorCalls(self._cluster, self._calls.kind, NEWEST_VERSIONS)
        self._member_id = member
        self._workers = group
        self._watch = group.watch
        self._world = group.world
        self._random = random
        self._asked: dict[ShareSession, tuple[float, dict[Place, LedShare | None]]] = {}
        """By session: when the request in progress was sent, and the share partitions at that time."""

    # -- work

    async def work(self) -> None:
        rest = self._world.plan.rest
        while not self._workers.stop.is_set():
            if self._workers.is_at_rest():
                if rest is not None and rest.vanishes:
                    await self._vanish()
                return
            self._watch.judge(self._world.loop.true_time())
            record = await self.get(GET_S)
            if record is None:
                continue
            if self._random.random() < VANISH_SHARE and not self._workers.are_diligent:
                await self._vanish()
                return
            try:
                await self._process(record)
            except ClusterError:  # the lock or the answer was lost
                self._world.watch.seen["acknowledgement of a worker failed"] += 1

    async def _process(self, record: ShareRecord) -> None:
        key, kind, seen = (record.partition, record.offset), self._random.random(), self._world.watch.seen
        if self._workers.are_diligent:
            kind = ACCEPTED
        if kind < SLOW_SHARE:
            await asyncio.sleep(1.3 * LOCK_MS / 1000)  # the lock expires, and the acceptance is refused
        elif kind < SLOW_SHARE + RENEW_SHARE:
            await asyncio.sleep(0.3 * LOCK_MS / 1000)  # virtual time, in which the first lock does not expire
            await self.renew(record)
            await asyncio.sleep(0.8 * LOCK_MS / 1000)  # the first lock would have expired; the second one holds
            seen["lock of a worker renewed"] += 1
        lock = self._watch.locks.get(key)
        self._watch.given_up(self._member_id, [key])
        if 1 - kind < RELEASE_SHARE:
            await self.release(record)
            seen["record released by a worker"] += 1
            return
        self._watch.doubtful.add(key)
        rejected = DEAD_SHARE if self._world.plan.letter_partitions else REJECT_SHARE
        if is_rejection := 1 - kind < RELEASE_SHARE + rejected:
            await self.reject(record)
        else:
            await self.accept(record)
        lock = lock if lock is not None and lock.member == self._member_id else None
        self._watch.completes(key, self._workers.completion(record.partition, is_rejection=is_rejection), lock)
        seen["record completed by a worker"] += 1

    async def _vanish(self) -> None:
        """End as a killed process does: the group is not left, and no record is released by a request."""
        self._world.watch.seen["worker vanished"] += 1
        self._epoch = 0
        if self._heart is not None:
            self._heart.cancel()
            with suppress(asyncio.CancelledError):
                await self._heart

    # -- watching

    async def _ask_locked(self, session: ShareSession, api: Any, values: dict[str, Any]) -> Any:
        places = session.places | frozenset(self._assigned)
        shares = {place: self._workers.share_at(session.address.host, place) for place in sorted(places)}
        self._asked[session] = (self._world.loop.true_time(), shares)
        return await super()._ask_locked(session, api, values)

    def _take(self, session: ShareSession, lock: RecordLock, result: Any) -> None:
        before = len(self._records)
        super()._take(session, lock, result)
        asked_s, shares = self._asked[session]
        now_s = self._world.loop.true_time()
        share: object = self._workers.share_at(session.address.host, lock.place)
        # The share partition that gave the locks may have ended meanwhile.  Its epoch was not above the current one.
        epoch = share.leader.leader_epoch if isinstance(share, LedShare) else NEWEST_EPOCH
        if share is None or share is not shares.get(lock.place):
            share = object()  # it is not known which share partition gave the locks: this object equals none
        until_s = asked_s + LOCK_MS / 1000 / CLOCK_RATE_MAX
        watched = Lock(self._member_id, now_s, until_s, share, epoch, session.connection)
        for _, record in list(self._records)[before:]:
            self._watch.delivered((record.partition, record.offset), watched, asked_s)
            marks = marks_in(record.value or b"")
            self._world.watch.answers.consumed(self._member_id, Spot(QUEUE, record.partition), record.offset, marks)
            self._world.watch.seen["record delivered again"] += record.deliveries > 1

    def _end(self, session: ShareSession) -> None:
        self._watch.judge(self._world.loop.true_time(), session.connection)
        indexes = {index for _, index in session.places | frozenset(self._assigned)}
        self._watch.given_up(self._member_id, [key for key in list(self._watch.locks) if key[0] in indexes])
        super()._end(session)
