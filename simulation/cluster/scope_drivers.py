"""Drivers of transaction scopes.  Each life of a driver is a process that opens a run of the scope and ends the scope.

Without an answer to an end, a driver repeats the end, or has other producers write the sequence again, or ends itself.
Now and then it ends the scope with an old sequence.  Some lives write a job into a scope of its own.  Others are
strangers: they try to open the scope, and to begin one of its producers by an ordinary request.  A few reset the scope
under another owner; the other drivers then use that owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from quorumlog.client.scope_client import OpenScope, ScopeClient, ScopeEnd, Winner
from quorumlog.errors import ClusterError
from quorumlog.wire import scope_names
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka.codec import Api
from simulation.cluster.coordinators import TRANSACTION_KEY, CoordinatorLink, GivenUpError
from simulation.cluster.scope_tasks import Shared, Staged, Task, start
from simulation.cluster.scope_watch import End, ScopeRun

PRODUCER_TIMEOUT_MS = (1_000, 2_500)
FINAL_TIMEOUT_MS = 5_000
PATIENCE_S = (0.2, 4.0)
"""How long a driver repeats a request, drawn for each of its lives."""
FINAL_PATIENCE_S = 10.0
FINAL_TASKS_S = 4.0
"""How long the last driver waits for its tasks in each round.  An earlier driver on another host may have fenced it.
Then no task succeeds, and another last driver must begin within the time of L13."""
BRIEF_SHARE, BRIEF_S = 0.4, (0.0, 0.008)
"""The probability that a driver waits only briefly for the answer to an end, and the length of this wait."""
TASKS_S = 1.2
"""How long a driver waits for the reports of its tasks before it starts other producers."""
TASKS = 3
ROUNDS = 4
"""Maximum number of times that a driver starts producers for a sequence."""
SEQUENCES = 5
STRANGER_SHARE, JOB_SHARE, RESET_SHARE = 0.1, 0.2, 0.06
OLD_SHARE, TWIN_SHARE, REPLACE_SHARE, REPEAT_SHARE, COMPLETE_SHARE = 0.15, 0.35, 0.12, 0.15, 0.3
INIT_PRODUCER_ID_VERSION = 4


@dataclass(eq=False)
class _Open:
    """A run that this driver has opened."""

    run: ScopeRun
    opened: OpenScope


class Driver:
    """One life of a driver of `scope`.

    is_last: the life at the end of the run, which does all that it can to commit a sequence.
    """

    def __init__(self, shared: Shared, scope: str, random: Random, *, is_last: bool) -> None:
        self._shared = shared
        self._watch = shared.watch
        self._seen = shared.seen
        self._scope = scope
        self._random = random
        self.is_last = is_last
        self.has_committed = False
        self._patience_s = FINAL_PATIENCE_S if is_last else random.uniform(*PATIENCE_S)

    async def run(self) -> None:
        async with self._shared.new_client() as self._cluster:
            self._client = ScopeClient(self._cluster)
            try:
                await self._live()
            except (ClusterError, GivenUpError) as error:
                code = error.code if isinstance(error, ClusterError) else "GIVEN_UP"
                self._seen[f"driver of a scope ended: {code}"] += 1
                if code == KafkaCode.DUPLICATE_RESOURCE.name:
                    await self._adopt()

    async def _live(self) -> None:
        kind = 1.0 if self.is_last else self._random.random()
        if kind < STRANGER_SHARE:
            await self._intrude()
        elif kind < STRANGER_SHARE + JOB_SHARE:
            await self._run_job()
        else:
            await self._run_stream(resets=kind < STRANGER_SHARE + JOB_SHARE + RESET_SHARE)

    async def _adopt(self) -> None:
        """Use the current owner of the scope from now on.  Another driver has set this owner."""
        try:
            self._shared.owners[self._scope] = (await self._client.describe(self._scope, self._patience_s)).owner
        except ClusterError:
            self._seen["owner of a scope not found"] += 1

    async def _open(self, scope: str, owner: str, *, resets: bool = False) -> _Open:
        run = self._watch.asks_to_open(scope, owner, f"run {next(self._shared.numbers)}", resets=resets)
        opened = await self._client.open(scope, owner, run.name, self._patience_s, reset=resets)
        self._watch.opened(run, opened.epoch, opened.last_sequence)
        self._seen["run of a scope opened"] += 1
        return _Open(run, opened)

    # Kinds of lives

    async def _run_stream(self, *, resets: bool) -> None:
        """Write some sequences, as a streaming query does."""
        random = self._random
        owner = f"owner {next(self._shared.numbers)}" if resets else self._shared.owners[self._scope]
        current = await self._open(self._scope, owner, resets=resets)
        if resets:
            self._shared.owners[self._scope] = owner
            self._seen["scope reset"] += 1
        sequence = current.opened.last_sequence
        for _ in range(1 if self.is_last else random.randint(1, SEQUENCES)):
            if self._shared.stop.is_set() and not self.is_last:
                break
            if sequence >= 0 and random.random() < OLD_SHARE and not self.is_last:
                await self._write(current, random.randint(0, sequence))
                continue
            sequence += random.choice((1, 1, 1, 3))
            while not await self._write(current, sequence):
                pass
            await asyncio.sleep(random.uniform(0, 0.2))

    async def _run_job(self) -> None:
        """Write one result into a scope of its own, and delete the scope, as a batch query does."""
        name = f"job {next(self._shared.numbers)}"
        current = await self._open(name, name)
        await self._write(current, 1)
        if self._random.random() < 0.2:  # as after the loss of the epoch
            opened = await self._client.open(name, name, current.run.name, self._patience_s)
            self._watch.opened(current.run, opened.epoch, opened.last_sequence)
            current.opened = opened
        await self._client.delete(current.opened, self._patience_s)
        self._seen["scope deleted"] += 1

    async def _intrude(self) -> None:
        """Send requests that must be refused, because this driver does not own the scope."""
        owner = f"stranger {next(self._shared.numbers)}"
        try:
            await self._open(self._scope, owner)
        except ClusterError as error:
            if error.code != KafkaCode.DUPLICATE_RESOURCE.name:
                raise
            self._seen["stranger refused"] += 1
        else:
            self._shared.owners[self._scope] = owner  # nobody had opened the scope before
        values = {
            "transactional_id": scope_names.transactional_id(self._scope, "0 again"),
            "transaction_timeout": FINAL_TIMEOUT_MS,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        link = CoordinatorLink(self._cluster, self._random)
        key = (TRANSACTION_KEY, scope_names.coordinator_key(self._scope))
        retried = (KafkaCode.CONCURRENT_TRANSACTIONS,)
        try:
            reply = await link.ask(
                key,
                Api.INIT_PRODUCER_ID,
                INIT_PRODUCER_ID_VERSION,
                values,
                lambda reply: reply.error_code,
                retried,
                self._patience_s,
            )
        finally:
            await link.close()
        if not reply.error_code:
            self._watch.forbidden(f"{owner} has begun a producer of {self._scope} by an ordinary request")

    # A sequence

    async def _write(self, current: _Open, sequence: int) -> bool:
        """Have tasks write, and end the scope.  Return False if the sequence is to be written again."""
        staged = await self._stage(current)
        if staged is None:
            self._seen["scope aborted"] += 1
            await self._abort(current)
            return self._random.random() < 0.5 and not self.is_last
        winners = [one.winner for one in staged]
        end = self._watch.asks_to_end(current.run, sequence, [one.attempt for one in staged])
        while True:
            try:
                ended = await self._end(current, end, winners)
                break
            except ClusterError as error:
                if error.code == KafkaCode.INVALID_TXN_STATE.name:
                    self._seen["end of a scope refused"] += 1
                    self._watch.refused(end)
                    await self._abort(current)
                    return self._random.random() < 0.3 and not self.is_last
                chance = self._random.random()
                if not error.retriable or (chance < 0.2 and not self.is_last):
                    raise
                self._seen["end of a scope in doubt"] += 1
                if chance < 0.5:
                    return False
        if ended.changed:
            self.has_committed = True
            if self._random.random() < COMPLETE_SHARE:
                await self._complete(current, end)
            if self._random.random() < REPEAT_SHARE:
                repeated = await self._end(current, end, winners)
                self._watch.check(not repeated.changed, lambda: f"I43: {end} has changed the scope twice")
        elif self._random.random() < 0.7:
            await self._abort(current)
        return True

    async def _end(self, current: _Open, end: End, winners: list[Winner]) -> ScopeEnd:
        is_brief = self._random.random() < BRIEF_SHARE and not self.is_last
        try:
            async with asyncio.timeout(self._random.uniform(*BRIEF_S) if is_brief else None):
                ended = await self._client.end(current.opened, end.sequence, winners, self._patience_s)
        except TimeoutError as cause:
            raise ClusterError(ApiError.TIMED_OUT, "the driver has not waited", retriable=True) from cause
        self._watch.ended(end, changed=ended.changed, sequence=ended.last_sequence)
        self._seen["scope ended" if ended.changed else "end of a scope changed nothing"] += 1
        return ended

    async def _complete(self, current: _Open, end: End) -> None:
        """Wait until the scope is open again, unless it was ended or opened once more."""
        while True:
            found = await self._client.describe(current.run.scope, self._patience_s)
            if found.epoch > current.opened.epoch or found.last_sequence > end.sequence:
                return
            if (found.last_sequence, found.state) == (end.sequence, "Open"):
                self._seen["end of a scope complete"] += 1
                self._watch.completed(end)
                return
            await asyncio.sleep(0.02)  # of virtual time: a coordinator reports no event to drivers

    async def _abort(self, current: _Open) -> None:
        attempts = self._watch.attempts_of(current.run)
        await self._client.abort(current.opened, self._patience_s)
        self._watch.aborted(attempts)

    async def _stage(self, current: _Open) -> list[Staged] | None:
        """Return for each task a producer that has written everything; None if a task has no such producer in time."""
        tasks = range(self._random.randint(1, TASKS))
        reports: dict[int, Staged] = {}
        news = asyncio.Event()

        def report(staged: Staged) -> None:
            if staged.task not in reports or self._random.random() < 0.3:
                reports[staged.task] = staged
            news.set()

        for round_number in range(ROUNDS):
            for task in tasks:
                if task not in reports:
                    self._start(current, task, report)
                    if round_number == 0 and self._random.random() < TWIN_SHARE:
                        self._start(current, task, report)
            try:
                async with asyncio.timeout(FINAL_TASKS_S if self.is_last else TASKS_S):
                    while len(reports) < len(tasks):
                        news.clear()
                        await news.wait()
                if self._random.random() < REPLACE_SHARE and not self.is_last:
                    await self._replace(current, self._random.choice(list(reports.values())), report)
                return [reports[task] for task in tasks]
            except TimeoutError:
                self._seen["task of a scope repeated"] += 1
        return None

    async def _replace(self, current: _Open, staged: Staged, report: Callable[[Staged], None]) -> None:
        """Start a producer under the name of one that is done writing, which aborts the earlier producer."""
        self._seen["producer of a scope replaced"] += 1
        self._start(current, staged.task, report, staged.attempt.name)
        await asyncio.sleep(self._random.uniform(0, 0.5))

    def _start(self, current: _Open, task: int, report: Callable[[Staged], None], name: str = "") -> None:
        """Start a producer.  name: the name of the producer to replace, of the same task; empty: a new name."""
        random = self._random
        name = name or f"{task}.{next(self._shared.numbers)}"
        timeout_ms = FINAL_TIMEOUT_MS if self.is_last else random.randint(*PRODUCER_TIMEOUT_MS)
        made = Task(current.run, current.opened, task, name, timeout_ms, self._patience_s, self.is_last, report)
        start(self._shared, made, random)
