"""Streams under kill -9: `python -m tests.spark.kill_run --minutes 10`.

Three voters and three brokers, and a Spark process with two queries of one topic: one writes its rows to another topic,
one to Parquet files.  A writer fills the topic meanwhile.  At random, brokers, leaders and the active controller are
killed or paused, and the queries are stopped or killed and started again from their checkpoints, at times without their
last commit.  At the end, the outputs are compared with the input (`kill_check`): no row may be missing or
repeated.  `--seed` repeats the choices, not the timing.  `--pace 4` makes the time between faults, and the time for
which a killed node stays down, four times shorter; the time of suspensions does not change.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow.parquet as pq

from examples.demo.servers import Killed, Servers, started
from quorumlog.client.producer import Producer
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.kctl.dev_cluster import HOST, environment
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.spark import kill_check
from tests.spark.kill_check import Repeated, Row
from tests.spark.kill_queries import COPY, TABLE, slow_workers
from tests.termination import end_in_order_on_sigterm
from tests.transactions.reading import contents

PARTITIONS = 6
BATCH_RECORDS = 50
PAUSE_S = 0.05
CALL_TIMEOUT_S = 60.0
SPARK_TIMEOUT_S = 240.0


@dataclass(frozen=True)
class Pauses:
    """Ranges of seconds.

    settle: between two faults, after the cluster has recovered from the first one.
    down: until a killed node is started again.
    suspended: how long SIGSTOP lasts; the default range begins below a broker's session and ends above it.
    """

    settle: tuple[float, float] = (1.0, 8.0)
    down: tuple[float, float] = (0.0, 10.0)
    suspended: tuple[float, float] = (1.0, 12.0)

    def at_pace(self, pace: float) -> Pauses:
        """Return these pauses, with `settle` and `down` divided by `pace`."""
        (settle, settle_max), (down, down_max) = self.settle, self.down
        return replace(self, settle=(settle / pace, settle_max / pace), down=(down / pace, down_max / pace))


@dataclass
class Report:
    """The result of a kill run.  rows: records in the input.  duplicates: repeated rows in the output topic."""

    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    duplicates: int = 0
    repeated_batches: int = 0
    slow_workers: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        faults = ", ".join(f"{count} x {name}" for name, count in sorted(self.faults.items()))
        return (
            f"{self.seconds / 60:.1f} minutes; {sum(self.faults.values())} faults: {faults}; {self.rows} rows; "
            f"{self.repeated_batches} batches were repeated, with {self.duplicates} duplicates in the topic; "
            f"{self.slow_workers} queries ended because a Python worker of Spark started too slowly; "
            + ("; ".join(self.problems) or "no problem")
        )


class Spark:
    """The process with the queries; it can be killed and started again."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self._command = [sys.executable, "-m", "tests.spark.kill_queries", bootstrap, str(folder)]
        self._log = folder / "spark.log"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment() | {"SPARK_LOCAL_IP": HOST},
                start_new_session=True,
            )
        await self._expect("started")

    async def kill(self) -> None:
        """End Python and its JVM as kill -9 does."""
        process = self._process
        assert process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    async def command(self, text: str, answer: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n".encode())
        await self._expect(answer)

    async def _expect(self, answer: str) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async with asyncio.timeout(SPARK_TIMEOUT_S):
            said = (await self._process.stdout.readline()).decode().strip()
            if said != answer:
                rest = (await self._process.stdout.read()).decode()
                log = self._log.read_text(errors="replace")
                raise AssertionError(f"Spark answered {said!r} instead of {answer!r}:\n{rest}\n{log[-20_000:]}")


class Writer:
    """Appends numbered records to the input, and notes the acknowledged ones."""

    def __init__(self, servers: Servers, choices: random.Random) -> None:
        self._servers = servers
        self._choices = choices
        self.acknowledged: list[str] = []
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        number = 0
        async with Producer(self._servers.kafka) as producer:
            while not self.stopping.is_set():
                values = [str(one) for one in range(number, number + BATCH_RECORDS)]
                number += BATCH_RECORDS
                now_ms = int(time.time() * 1000)
                batch = build_batch([NewRecord(None, value.encode(), now_ms) for value in values])
                sent = await producer.send("in", self._choices.randrange(PARTITIONS), batch)
                sent.add_done_callback(lambda done, values=values: self._note(done, values))  # type: ignore[misc]
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.stopping.wait(), PAUSE_S)
            await producer.flush()

    def _note(self, done: asyncio.Future[int], values: list[str]) -> None:
        if done.exception() is None:
            self.acknowledged += values


class KillRun:
    """One run.  Call `run` once.  say: receives a line for each fault."""

    def __init__(self, servers: Servers, folder: Path, seed: int, say: Callable[[str], None], pauses: Pauses) -> None:
        self._servers = servers
        self._pauses = pauses
        self._choices = random.Random(seed)
        self._folder = folder
        self._say = say
        self._spark = Spark(servers.bootstrap, folder)
        self._writer = Writer(servers, random.Random(seed + 1))
        self._report = Report()
        self._faults: dict[str, Callable[[], Awaitable[None]]] = {
            "kill a leader": self._kill_leader,
            "kill the active controller": self._kill_controller,
            "kill a leader and the active controller": self._kill_both,
            "suspend a leader": self._suspend_leader,
            "suspend the active controller": self._suspend_controller,
            "restart the queries": lambda: self._spark.command("restart", "restarted"),
            "kill Spark": self._kill_spark,
            "kill Spark, which forgets its last commit": self._kill_forgetful_spark,
        }

    async def run(self, minutes: float, faults: list[str] | None = None) -> Report:
        """Apply faults in random order for `minutes`, or exactly the given `faults`."""
        began = time.monotonic()
        for topic in ("in", "out"):
            await self._servers.create_topic(topic, PARTITIONS, 3, 2)
        writing = asyncio.create_task(self._writer.run())
        try:
            await self._spark.start()
            names = iter(faults) if faults is not None else self._random_faults(began + 60 * minutes)
            for name in names:
                await asyncio.sleep(self._choices.uniform(*self._pauses.settle))
                if writing.done():
                    writing.result()
                self._say(f"{time.monotonic() - began:5.0f} s: {name}")
                self._report.faults[name] += 1
                await self._faults[name]()
                await self._whole()
            self._writer.stopping.set()
            await writing
            await self._spark.command("finish", "finished")
        finally:
            writing.cancel()
            await self._spark.kill()
        self._report.seconds = time.monotonic() - began
        self._check()
        return self._report

    def _random_faults(self, deadline: float) -> Iterator[str]:
        while time.monotonic() < deadline:
            yield self._choices.choice(list(self._faults))

    async def _leader(self) -> int:
        topic, index = self._choices.choice(("in", "out")), self._choices.randrange(PARTITIONS)
        return (await self._servers.leaders(topic))[index]

    async def _killed(self, *node_ids: int) -> None:
        killed: list[Killed] = [await self._servers.kill(one) for one in node_ids]
        await asyncio.sleep(self._choices.uniform(*self._pauses.down))
        await self._servers.restart(killed[0])  # starts all that do not run

    async def _kill_leader(self) -> None:
        await self._killed(await self._leader())

    async def _kill_controller(self) -> None:
        await self._killed((await self._servers.active_controller()).id)

    async def _kill_both(self) -> None:
        await self._killed(await self._leader(), (await self._servers.active_controller()).id)

    async def _suspended(self, node_id: int) -> None:
        with self._servers.suspended(node_id):
            await asyncio.sleep(self._choices.uniform(*self._pauses.suspended))

    async def _suspend_leader(self) -> None:
        await self._suspended(await self._leader())

    async def _suspend_controller(self) -> None:
        await self._suspended((await self._servers.active_controller()).id)

    async def _kill_spark(self) -> None:
        await self._first_batches()
        await self._spark.kill()
        await self._spark.start()

    async def _kill_forgetful_spark(self) -> None:
        await self._first_batches()
        await self._spark.kill()
        commits = self._folder / f"checkpoint-{COPY}" / "commits"
        numbers = [int(file.name) for file in commits.glob("[0-9]*") if file.name.isdecimal()]
        if numbers:
            (commits / str(max(numbers))).unlink()
            (commits / f".{max(numbers)}.crc").unlink(missing_ok=True)
        await self._spark.start()

    async def _first_batches(self) -> None:
        """Wait until each query has committed a batch.

        A query that is killed while it writes its first batch to the checkpoint leaves a temporary file there, and
        Spark refuses that checkpoint.
        """
        commits = [self._folder / f"checkpoint-{name}" / "commits" for name in (COPY, TABLE)]
        async with asyncio.timeout(SPARK_TIMEOUT_S):
            while True:
                if all(any(folder.glob("[0-9]*")) for folder in commits):  # Spark deletes the oldest of many
                    return
                await asyncio.sleep(0.2)  # no event reports it

    async def _whole(self) -> None:
        """Wait until every partition has all its replicas in sync, so that the next fault cannot stop the writes."""
        request = pb.DescribeTopicsRequest(names=["in", "out"])
        async with asyncio.timeout(2 * CALL_TIMEOUT_S):
            while True:
                topics = (await self._servers.control.call(rpcs.DESCRIBE_TOPICS, request, CALL_TIMEOUT_S)).topics
                partitions = [one for topic in topics for one in topic.partitions]
                if len(partitions) == 2 * PARTITIONS and all(len(one.isr) == 3 and one.leader for one in partitions):
                    return
                await asyncio.sleep(0.2)  # no event reports it

    def _check(self) -> None:
        source: dict[Row, str] = {
            (partition, offset): value
            for partition, offset, value in contents(self._servers.bootstrap, "in", PARTITIONS)
        }
        copied = []
        for _, _, text in contents(self._servers.bootstrap, "out", PARTITIONS):
            partition, offset, value = text.split(":")
            copied.append(((int(partition), int(offset)), value))
        table = pq.read_table(self._folder / "table.parquet").to_pydict()
        rows = list(zip(zip(table["partition"], table["offset"], strict=True), table["value"], strict=True))
        report = self._report
        report.rows, report.duplicates = len(source), kill_check.duplicates(copied)
        if (slow := slow_workers(self._folder)).exists():
            report.slow_workers = len(slow.read_text().splitlines())
        report.repeated_batches = len(self._repeated(COPY)) + len(self._repeated(TABLE))
        report.problems = kill_check.problems(self._writer.acknowledged, source, {COPY: copied, TABLE: rows}, {})

    def _repeated(self, name: str) -> list[Repeated]:
        path = self._folder / f"repeated-{name}.jsonl"
        found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [Repeated(one["batch"], _by_partition(one["first"]), _by_partition(one["end"])) for one in found]


def _by_partition(value: dict[str, int]) -> dict[int, int]:
    return {int(partition): offset for partition, offset in value.items()}


@contextlib.asynccontextmanager
async def prepared(
    seed: int, say: Callable[[str], None], logs_to: Path | None = None, pauses: Pauses | None = None
) -> AsyncIterator[KillRun]:
    """A cluster with its Spark process, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="quorumlog-kill-run-") as name:
        folder = Path(name)
        try:
            async with started(folder / "cluster", say, logs_to) as servers:
                yield KillRun(servers, folder, seed, say, pauses or Pauses())
        finally:
            if logs_to is not None and (folder / "spark.log").exists():
                (logs_to / "spark.log").write_bytes((folder / "spark.log").read_bytes())


async def _main(minutes: float, seed: int, logs_to: Path | None, pace: float) -> Report:
    async with prepared(seed, lambda line: print(line, flush=True), logs_to, Pauses().at_pace(pace)) as run:
        return await run.run(minutes)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.kill_run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace", type=float, default=1.0)
    parser.add_argument("--logs", type=Path, help="an existing folder for the logs of all processes")
    arguments = parser.parse_args()
    end_in_order_on_sigterm()
    report = asyncio.run(_main(arguments.minutes, arguments.seed, arguments.logs, arguments.pace))
    print(report)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
