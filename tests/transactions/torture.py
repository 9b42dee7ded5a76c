"""Transactions under faults: `python -m tests.transactions.torture --minutes 10 --seed 1`.

Three voters and three brokers.  Writers of confluent-kafka, `quorumlog.client` and the Java client fill a topic with
transactions, and loops of the first two copy it exactly once (`workers`).  At random, leaders, coordinators and the
active controller are killed, suspended or disconnected, and workers are killed.  At the end, the views of readers are
compared with the outcomes that the writers know (`check`), and no transaction may be open.  `--seed` repeats the
choices, not the timing.

The run happens in network namespaces of its own (`lan`).  Where these are not permitted, no link is cut.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from broker.core.coordinator.placement import partition_of
from examples.demo.servers import CALL_TIMEOUT_S
from quorumlog.client.transaction_logs import stable_ranges
from quorumlog.errors import ClusterError
from quorumlog.kctl.dev_cluster import environment
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.clients.catalog import PROGRAMS
from tests.clients.outcomes import NotOffered, RowFailed, Skipped
from tests.clients.running import Program
from tests.integration.quorum import lan
from tests.transactions import check, hosts
from tests.transactions.check import Fate, Transaction
from tests.transactions.hosts import Hosts
from tests.transactions.reading import contents

Say = Callable[[str], None]

PARTITIONS = 6
SETTLED_S = 180.0
"""Time limit, after a fault, until replicas are in sync, transactions have ended, and loops have caught up."""
POLL_S = 0.5
LATEST_EVENTS = 8
"""Events of a worker that a report of a stall shows."""
INPUT = "in"
WRITERS = {"confluent-writer": "confluent writer", "our-writer": "our writer"}
LOOPS = {"confluent-loop": "confluent loop", "our-loop": "our loop"}
JAVA = "java-writer"
TRANSACTION_STATE = "__transaction_state"
CONSUMER_OFFSETS = "__consumer_offsets"
SETTINGS = (
    "transaction.state.log.num.partitions=6",
    "offsets.topic.num.partitions=6",
    "group.initial.rebalance.delay.ms=100",
)
SETTLE_S = (1.0, 6.0)
DOWN_S = (0.0, 8.0)
SUSPENDED_S = (1.0, 12.0)
"""Shorter and longer than the session of a broker, and than an election timeout."""


@dataclass
class Report:
    seed: int
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    fates: Counter[Fate] = field(default_factory=Counter)
    committed: int = 0
    everything: int = 0
    copied: int = 0
    restarts: int = 0
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        faults = ", ".join(f"{count} x {name}" for name, count in sorted(self.faults.items()))
        fates = ", ".join(f"{self.fates[each]} {each}" for each in (Fate.COMMITTED, Fate.ABORTED, Fate.UNKNOWN))
        return (
            f"seed {self.seed}: {self.seconds / 60:.1f} minutes; {sum(self.faults.values())} faults: {faults}; "
            f"transactions: {fates}; records: {self.everything} written, {self.committed} of them committed, "
            f"{self.copied} copied by loops; {self.restarts} producers began again; "
            f"{''.join(f'{note}; ' for note in self.notes)}"
            f"{len(self.problems)} violations{''.join(f'; {each}' for each in self.problems)}"
        )


class Worker:
    """A program that is started again after a kill.  One transactional id, which is also the group of a loop."""

    def __init__(self, name: str, command: list[str], action: dict[str, object]) -> None:
        self.name = name
        self._command = command
        self._action = action
        self._programs: list[Program] = []
        """In the order of their starts.  The last one runs until `finish`."""
        self._has_finished = False
        self._start()

    def _start(self) -> None:
        first = max((number for _, number in self.history()), default=0)
        self._programs.append(Program(self._command, self._action | {"id": self.name, "first": first}))

    def history(self) -> dict[tuple[str, int], Transaction]:
        """Return the transactions that it has begun."""
        found = {}
        for program in self._programs:
            ended = program.of("ended")  # first, because a transaction may begin and end between two looks
            for event in program.of("begun"):
                fate = Fate.ABORTED if event["aborts"] else Fate.UNKNOWN
                found[self.name, event["number"]] = Transaction(event["size"], fate)
            for event in ended:
                key = self.name, event["number"]
                found[key] = found[key]._replace(fate=Fate(event["fate"]))
        return found

    @property
    def restarts(self) -> int:
        """Return how often its producer began again, apart from kills."""
        return sum(len(program.of("restarted")) for program in self._programs)

    def failures(self) -> Counter[str]:
        """Return the errors that its client reported."""
        events = [event for program in self._programs for kind in ("failed", "restarted") for event in program.of(kind)]
        return Counter(str(event["why"]) for event in events)

    def latest(self) -> str:
        """Return its last events, each with its age in seconds, so that a stall can be explained."""
        now_s, program = time.monotonic(), self._programs[-1]
        latest = list(zip(program.arrivals_s, program.events, strict=False))[-LATEST_EVENTS:]
        events = [
            f"{now_s - at_s:.0f} s ago: {event['event']} {event.get('why', event.get('fate', ''))}".rstrip()
            for at_s, event in latest
        ]
        return f"{self.name}: {'; '.join(events) or 'no events since its last start'}"

    def kill(self) -> None:
        self._programs[-1].kill()
        self._programs[-1].__exit__(None, None, None)
        self._start()

    def finish(self) -> str:
        """Stop the worker after its open transaction; return the problem, or an empty string.  Idempotent."""
        if self._has_finished:
            return ""
        self._has_finished = True
        try:
            self._programs[-1].finish()
        except (RowFailed, NotOffered) as error:
            return f"{self.name}: {error}; {self.latest()}"
        finally:
            self._programs[-1].__exit__(None, None, None)
        return ""


class Torture:
    def __init__(self, run_hosts: Hosts, seed: int, say: Say) -> None:
        self._hosts = run_hosts
        self._servers = run_hosts.servers
        self._choices = random.Random(seed)
        self._seed = seed
        self._say = say
        self._writers: list[Worker] = []
        self._loops: list[Worker] = []
        self._report = Report(seed)
        self._ways: dict[str, Callable[[int], Awaitable[None]]] = {"kill": self._kill, "suspend": self._suspend}
        if run_hosts.can_cut:
            self._ways["cut off"] = self._cut
        else:
            self._report.notes.append("no link was cut")
        self._whom: dict[str, Callable[[], Awaitable[int]]] = {
            "a partition's leader": self._leader,
            "a transaction coordinator": self._transaction_coordinator,
            "a group coordinator": self._group_coordinator,
            "the active controller": self._controller,
        }

    async def run(self, minutes: float) -> Report:
        """Apply faults for `minutes`, then check."""
        began = time.monotonic()
        for topic in (INPUT, *LOOPS):
            await self._servers.create_topic(topic, PARTITIONS, 3, 2)
        try:
            self._start()
            await self._settled(self._are_in_sync, "all replicas are in sync")
            for number, fault in enumerate(self._faults(began + 60 * minutes), 1):
                await asyncio.sleep(self._choices.uniform(*SETTLE_S))
                self._say(f"{time.monotonic() - began:5.0f} s: {number}: {' '.join(fault)}; {self._progress()}")
                await self._apply(*fault)
                await self._settled(self._are_in_sync, "all replicas are in sync")
            self._report.seconds = time.monotonic() - began
            await self._end()
        finally:
            for worker in (*self._writers, *self._loops):
                worker.finish()
        return self._report

    def _start(self) -> None:
        action: dict[str, object] = {
            "bootstrap": self._servers.bootstrap,
            "seed": self._seed,
            "topic": INPUT,
            "partitions": PARTITIONS,
        }
        python = [sys.executable, "-m", "tests.transactions.workers"]
        self._writers += [Worker(name, python, action | {"kind": kind}) for name, kind in WRITERS.items()]
        self._loops += [Worker(name, python, action | {"kind": kind, "output": name}) for name, kind in LOOPS.items()]
        try:
            java = next(each for each in PROGRAMS if each.language == "Java").prepare()
        except Skipped as reason:
            self._report.notes.append(f"no Java client: {reason}")
        else:
            self._writers.append(Worker(JAVA, java, action | {"action": "transactions"}))

    def _faults(self, deadline: float) -> Iterator[tuple[str, str]]:
        pairs = [(way, whom) for way in self._ways for whom in self._whom]
        while time.monotonic() < deadline:
            yield self._choices.choice([*pairs, ("kill", "a worker")])

    def _progress(self) -> str:
        fates = Counter(each.fate for worker in self._writers for each in worker.history().values())
        return ", ".join(f"{fates[each]} {each}" for each in Fate)

    # -- faults

    async def _apply(self, way: str, whom: str) -> None:
        self._report.faults[f"{way} {whom}"] += 1
        if whom == "a worker":
            worker = self._choices.choice([*self._writers, *self._loops])
            await asyncio.to_thread(worker.kill)
        else:
            await self._ways[way](await self._whom[whom]())

    async def _kill(self, node_id: int) -> None:
        killed = await self._servers.kill(node_id)
        await asyncio.sleep(self._choices.uniform(*DOWN_S))
        await self._servers.restart(killed)

    async def _suspend(self, node_id: int) -> None:
        with self._servers.suspended(node_id):
            await asyncio.sleep(self._choices.uniform(*SUSPENDED_S))

    async def _cut(self, node_id: int) -> None:
        async with self._hosts.cut(node_id):
            await asyncio.sleep(self._choices.uniform(*SUSPENDED_S))

    async def _leader(self) -> int:
        leaders = await self._servers.leaders(self._choices.choice((INPUT, *LOOPS)))
        return leaders[self._choices.randrange(PARTITIONS)]

    async def _transaction_coordinator(self) -> int:
        return await self._coordinator(TRANSACTION_STATE, self._choices.choice([*self._writers, *self._loops]))

    async def _group_coordinator(self) -> int:
        return await self._coordinator(CONSUMER_OFFSETS, self._choices.choice(self._loops))

    async def _coordinator(self, topic: str, worker: Worker) -> int:
        leaders = await self._servers.leaders(topic)
        return leaders[partition_of(worker.name, len(leaders))]

    async def _controller(self) -> int:
        return (await self._servers.active_controller()).id

    # -- waiting

    async def _settled(self, is_so: Callable[[], Awaitable[bool]], what: str) -> None:
        try:
            async with asyncio.timeout(SETTLED_S):
                while not await is_so():  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)  # no event reports it
        except TimeoutError:
            raise AssertionError(f"not within {SETTLED_S:g} s: {what}") from None

    async def _are_in_sync(self) -> bool:
        names = [INPUT, *LOOPS, TRANSACTION_STATE, CONSUMER_OFFSETS]
        request = pb.DescribeTopicsRequest(names=names)
        try:
            topics = (await self._servers.control.call(rpcs.DESCRIBE_TOPICS, request, CALL_TIMEOUT_S)).topics
        except ClusterError:  # no active controller yet
            return False
        partitions = [partition for topic in topics for partition in topic.partitions]
        return {topic.name for topic in topics if topic.partitions} == set(names) and all(
            len(each.isr) == hosts.BROKERS and each.leader for each in partitions
        )

    async def _open(self) -> list[str]:
        """Return the partitions whose last stable offset is not their end."""
        counts = await self._servers.kafka.partition_counts(None, CALL_TIMEOUT_S)
        keys = [(topic, index) for topic, count in counts.items() for index in range(count)]
        ranges = await stable_ranges(self._servers.kafka, keys, CALL_TIMEOUT_S)
        return sorted(f"{topic}-{index}: {each}" for (topic, index), each in ranges.items() if each.lag != 0)

    async def _nothing_is_open(self) -> None:
        async def is_so() -> bool:
            return not await self._open()

        try:
            await self._settled(is_so, "no transaction is open")
        except (AssertionError, ClusterError) as error:
            self._report.problems += [str(error), *check.shown(await self._open())]

    # -- the end

    async def _end(self) -> None:
        report = self._report
        report.problems += [problem for problem in await self._finished(self._writers) if problem]
        await self._nothing_is_open()
        bootstrap = self._servers.bootstrap
        committed = await asyncio.to_thread(contents, bootstrap, INPUT, PARTITIONS)
        everything = await asyncio.to_thread(contents, bootstrap, INPUT, PARTITIONS, committed=False)

        async def is_copied() -> bool:
            outputs = [await asyncio.to_thread(contents, bootstrap, name, PARTITIONS) for name in LOOPS]
            return all(len(each) >= len(committed) for each in outputs)

        try:
            await self._settled(is_copied, "the loops have copied everything")
        except AssertionError as error:
            report.problems += [str(error), *(each.latest() for each in self._loops)]
        report.problems += [problem for problem in await self._finished(self._loops) if problem]
        await self._nothing_is_open()
        history = {key: each for worker in self._writers for key, each in worker.history().items()}
        report.problems += check.writer_problems(history, committed, everything)
        for name in LOOPS:
            output = await asyncio.to_thread(contents, bootstrap, name, PARTITIONS)
            report.copied += len(output)
            report.problems += check.loop_problems(name, committed, output)
        report.fates = Counter(each.fate for each in history.values())
        report.committed, report.everything = len(committed), len(everything)
        for worker in (*self._writers, *self._loops):
            report.restarts += worker.restarts
            for why, count in worker.failures().most_common(check.SHOWN_MAX):
                self._say(f"{worker.name}: {count} x {why}")
        for worker in self._writers:
            if not any(each.fate is Fate.COMMITTED for each in worker.history().values()):
                report.problems.append(f"{worker.name} committed no transaction")

    async def _finished(self, workers: list[Worker]) -> list[str]:
        return list(await asyncio.gather(*[asyncio.to_thread(each.finish) for each in workers]))


async def _run(minutes: float, seed: int, logs_to: Path | None, has_lan: bool) -> Report:
    def say(line: str) -> None:
        print(line, flush=True)

    with tempfile.TemporaryDirectory(prefix="quorumlog-torture-") as name:
        first_port = 20_000 + os.getpid() % 8_000
        async with hosts.started(Path(name) / "cluster", say, logs_to, first_port, has_lan) as run_hosts:
            kctl = [sys.executable, "-m", "quorumlog.kctl.main", "configs", "set", "--cluster", *SETTINGS]
            settings = environment() | {"KCTL_CONTROLLERS": run_hosts.controllers}
            await asyncio.to_thread(subprocess.run, kctl, check=True, env=settings, stdout=subprocess.DEVNULL)
            return await Torture(run_hosts, seed, say).run(minutes)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.transactions.torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--logs", type=Path, help="an existing folder for the logs of all servers")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)  # in namespaces of its own
    arguments = parser.parse_args()
    if not arguments.alone:
        refusal = lan.refusal()
        if refusal is None:
            again = [sys.executable, "-m", "tests.transactions.torture", *sys.argv[1:], "--alone"]
            os.execvp(lan.ALONE[0], [*lan.ALONE, *again])
        print(f"no link is cut: {refusal}", flush=True)
    report = asyncio.run(_run(arguments.minutes, arguments.seed, arguments.logs, arguments.alone))
    print(report)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
