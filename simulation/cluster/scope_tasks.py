"""Producers of transaction scopes.  Each is a process on a host for producers, like a task attempt of Spark.

A producer begins under the name of an attempt, writes into several partitions, and reports to its driver.  Some are
killed, or paused for longer than their timeout.  Some fail, or abort themselves, even after their report.  Some
continue to write after the end of their scope.  A few try to commit themselves, which only the end of their scope may
do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import NamedTuple

from metadata.image.internal_topics import TRANSACTION_STATE
from quorumlog.client.cluster import Cluster
from quorumlog.client.producer import Producer
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.client.scope_client import OpenScope, ScopeClient, StagedProducer, Winner
from quorumlog.errors import ClusterError
from quorumlog.wire import scope_names
from quorumlog.wire.kafka.codec import Api
from simulation.cluster.coordinators import TRANSACTION_KEY, CoordinatorLink, GivenUpError
from simulation.cluster.history import Mark
from simulation.cluster.ledger import Ledger
from simulation.cluster.metadata import Spot
from simulation.cluster.plan import RESULTS
from simulation.cluster.scope_watch import Attempt, ScopeRun, ScopeWatch
from simulation.cluster.world import ClusterWorld
from simulation.kernel.loop import Process

REQUEST_S = 1.0
BATCHES = 3
BATCH_RECORDS = 2
FIRST_WRITER = 2_000_000
"""Above the writer numbers of other producers."""
KILL_SHARE, PAUSE_SHARE = 0.08, 0.08
PAUSE_S = (0.3, 3.0)
FAIL_SHARE, ABORT_SHARE, COMMIT_SHARE, CHANGE_SHARE = 0.05, 0.08, 0.04, 0.03
END_TXN_VERSION = 3
TOPICS = (RESULTS, TRANSACTION_STATE)


class Shared:
    """The state that the drivers and producers of a run share.  new_client: returns a new `Cluster`."""

    def __init__(self, world: ClusterWorld, new_client: Callable[[], Cluster]) -> None:
        self.world = world
        self.new_client = new_client
        self.ledger = Ledger(world.watch.evidence, RESULTS, self._check)
        self.watch = ScopeWatch(self.ledger, self._check)
        self.seen = world.watch.seen
        self.stop = asyncio.Event()
        self.owners: dict[str, str] = {}
        """By scope: the owner under which its drivers open it."""
        self.numbers = count(1)
        """The numbers of runs, owners and producers."""
        self.writers = count(FIRST_WRITER)
        self.processes: list[Process] = []
        """The processes of producers."""

    def _check(self, holds: bool, text: Callable[[], str]) -> None:
        """Check a promise, unless a partition has lost records in a permitted unclean election."""
        answers = self.world.watch.answers
        self.world.watch.check(holds or any(map(answers.has_lost, TOPICS)), text)

    @property
    def spots(self) -> list[Spot]:
        return [Spot(RESULTS, index) for index in range(self.world.plan.results_partitions)]


class Staged(NamedTuple):
    """The report of a producer that has written everything."""

    task: int
    attempt: Attempt
    winner: Winner


@dataclass(eq=False)
class Task:
    """The work of one producer.

    task: the number of the task, which may have several producers.  name: the name of the producer.
    is_careful: the producer does nothing that may prevent its success.
    """

    run: ScopeRun
    opened: OpenScope
    task: int
    name: str
    timeout_ms: int
    patience_s: float
    is_careful: bool
    report: Callable[[Staged], None]


def start(shared: Shared, task: Task, random: Random) -> None:
    """Start a producer on one of the hosts.  Some producers are killed or paused, independently of their driver."""
    world = shared.world
    host = random.choice(world.plan.executor_hosts)
    process, _ = world.start_process(host, _Writer(shared, task, Random(random.getrandbits(64))).run())
    shared.processes.append(process)
    fate = 1.0 if task.is_careful else random.random()
    after_s = random.uniform(0, 1.0)
    if fate < KILL_SHARE:
        world.loop.call_later(after_s, process.kill, context=Context())
    elif fate < KILL_SHARE + PAUSE_SHARE:
        world.loop.call_later(after_s, process.pause, context=Context())
        world.loop.call_later(after_s + random.uniform(*PAUSE_S), process.resume, context=Context())


class _Writer:
    """One producer."""

    def __init__(self, shared: Shared, task: Task, random: Random) -> None:
        self._shared = shared
        self._task = task
        self._random = random

    async def run(self) -> None:
        async with self._shared.new_client() as cluster:
            try:
                await self._work(cluster)
            except (ClusterError, GivenUpError) as error:
                code = error.code if isinstance(error, ClusterError) else "GIVEN_UP"
                self._shared.seen[f"producer of a scope failed: {code}"] += 1

    async def _work(self, cluster: Cluster) -> None:
        task, watch, random = self._task, self._shared.watch, self._random
        was_fenced = watch.is_fenced(task.run)
        staged = await ScopeClient(cluster).begin(task.opened, task.name, task.patience_s, task.timeout_ms)
        attempt = watch.begun(task.run, task.name, staged.identity, was_fenced=was_fenced)
        await self._write(cluster, staged, attempt)
        fate = 1.0 if task.is_careful else random.random()
        if fate < FAIL_SHARE:
            return
        if fate < FAIL_SHARE + COMMIT_SHARE:
            await self._commit(cluster, staged)
        if not FAIL_SHARE + COMMIT_SHARE <= fate < FAIL_SHARE + COMMIT_SHARE + ABORT_SHARE:
            task.report(Staged(task.task, attempt, staged.winner))
            if fate < 1 - CHANGE_SHARE or task.is_careful:
                return
            await asyncio.sleep(random.uniform(0, 0.2))
        await staged.abort(task.patience_s)
        self._shared.seen["producer of a scope aborted itself"] += 1

    async def _write(self, cluster: Cluster, staged: StagedProducer, attempt: Attempt) -> None:
        """Write some batches.  Return once all are acknowledged."""
        shared, random = self._shared, self._random
        writer, numbers = next(shared.writers), count()
        spots = random.sample(shared.spots, random.randint(1, len(shared.spots)))
        async with Producer(
            cluster, delivery_timeout_s=self._task.patience_s, request_timeout_s=REQUEST_S, transaction=staged
        ) as producer:
            for _ in range(random.randint(0, 1) + random.randint(0, BATCHES)):
                spot = random.choice(spots)
                marks = [Mark(writer, next(numbers)) for _ in range(random.randint(1, BATCH_RECORDS))]
                shared.ledger.sends(attempt.transaction, marks)
                now_ms = shared.world.wall_ms()
                batch = build_batch([NewRecord(None, mark.value, now_ms) for mark in marks])
                sent = await producer.send(spot.topic, spot.index, batch)
                sent.add_done_callback(
                    lambda done, spot=spot, marks=marks: _note(attempt, done, spot, marks)  # type: ignore[misc]
                )
                if random.random() < 0.4:
                    await asyncio.sleep(random.uniform(0, 0.4))

    async def _commit(self, cluster: Cluster, staged: StagedProducer) -> None:
        """Try to commit this producer alone, which must be refused."""
        producer_id, epoch = staged.identity
        link = CoordinatorLink(cluster, self._random)
        key = (TRANSACTION_KEY, scope_names.coordinator_key(self._task.run.scope))
        values = {
            "transactional_id": staged.transactional_id,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "committed": True,
        }
        try:
            reply = await link.ask(
                key, Api.END_TXN, END_TXN_VERSION, values, lambda reply: reply.error_code, (), self._task.patience_s
            )
        finally:
            await link.close()
        self._shared.seen["producer of a scope may not commit itself"] += 1
        if not reply.error_code:
            self._shared.watch.forbidden(f"producer {staged.winner} of {self._task.run} has committed itself")


def _note(attempt: Attempt, sent: asyncio.Future[int], spot: Spot, marks: list[Mark]) -> None:
    """Note that a batch was acknowledged."""
    if not sent.cancelled() and sent.exception() is None:
        attempt.transaction.acknowledged.setdefault(spot, set()).update(marks)
