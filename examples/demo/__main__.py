"""Run the demo: `./dev demo`, or `python -m examples.demo`.

Three voters and three brokers start as real processes.  Spark writes every flight that left New York City in 2013 into
the topic `flights`.  At 30 % of the rows, the active controller is killed with SIGKILL.  At 60 %, the broker that leads
the most partitions is killed.  Both are started again.  Then Spark reads the topic, which must contain exactly the
written rows.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from examples.demo import flights, spark_job
from examples.demo.flights import Truth
from examples.demo.servers import Progress, Servers, started
from examples.demo.spark_job import Comparison

TOPIC = "flights"
PARTITIONS = 6
REPLICAS = 3
MIN_INSYNC = 2
CONTROLLER_AT = 0.3
BROKER_AT = 0.6
KILL_EARLIEST, KILL_LATEST = 0.1, 0.9
WRITE_TIMEOUT_S = 300

console = Console(highlight=False)
_begun = time.monotonic()


class DemoFailedError(Exception):
    """The demo has failed."""


@dataclass(frozen=True, slots=True)
class Kill:
    name: str
    acknowledged: int
    failover_ms: int


@dataclass(frozen=True, slots=True)
class Written:
    controller: Kill
    broker: Kill
    seconds: float


def say(line: str) -> None:
    console.print(f"[dim]{time.monotonic() - _begun:6.1f} s[/dim]  {line}", soft_wrap=True)


async def run(directory: Path, seconds: int, row_count: int | None, threads: Executor, logs: Path | None) -> int:
    loop = asyncio.get_running_loop()
    csv = await loop.run_in_executor(threads, flights.unpack, directory)
    if row_count is not None:
        flights.first_rows(csv, row_count)
    truth = await loop.run_in_executor(threads, flights.count, csv)
    say(f"the source holds {truth.row_count:,} rows with {len(truth.by_key)} keys")
    spark_starts = loop.run_in_executor(threads, spark_job.start_spark, directory)
    try:
        async with started(directory / "cluster", say, logs) as servers:
            await servers.create_topic(TOPIC, PARTITIONS, REPLICAS, MIN_INSYNC)
            say(f"created {TOPIC}: {PARTITIONS} partitions, replication {REPLICAS}, min.insync.replicas {MIN_INSYNC}")
            spark = await spark_starts
            say(f"Spark {spark.version} is ready")
            source = await loop.run_in_executor(threads, spark_job.source_rows, spark, csv)
            rate = max(1, truth.row_count // seconds)
            say(f"Spark writes, one task, at most {rate:,} rows/s")
            write = loop.run_in_executor(threads, spark_job.write, source, servers.bootstrap, TOPIC, rate)
            written = await _while_spark_writes(servers, truth, asyncio.ensure_future(write))
            say("Spark reads everything back and compares")
            compared = await loop.run_in_executor(
                threads, spark_job.read_and_compare, spark, source, servers.bootstrap, TOPIC
            )
    finally:
        await asyncio.gather(spark_starts, return_exceptions=True)  # a server that is still starting cannot be stopped
        await loop.run_in_executor(threads, spark_job.stop_spark)
    return _report(truth, written, compared)


async def _while_spark_writes(servers: Servers, truth: Truth, write: asyncio.Future[None]) -> Written:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    progress = Progress(servers, TOPIC, PARTITIONS)
    watching = asyncio.create_task(progress.watch())
    killing = asyncio.create_task(_kill_and_restart(servers, truth, progress, write))
    try:
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            tasks: list[asyncio.Future[Any]] = [write, watching, killing]
            while not write.done():  # the others raise their errors; only `killing` ends without one
                await asyncio.wait([task for task in tasks if not task.done()], return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    if task.done():
                        if (failure := task.exception()) is not None:
                            say(f"failed: {failure}")  # Spark's own failures can be read only while it runs
                        task.result()
            seconds = loop.time() - begun
            await progress.look()
            say(f"Spark has written {truth.row_count:,} rows")
            if progress.acknowledged < truth.row_count * BROKER_AT:
                raise DemoFailedError(f"only {progress.acknowledged:,} rows are acknowledged after the write")
            controller, broker = await killing
    finally:
        for task in (watching, killing):
            task.cancel()
        await asyncio.gather(watching, killing, return_exceptions=True)
    return Written(controller, broker, seconds)


async def _kill_and_restart(
    servers: Servers, truth: Truth, progress: Progress, write: asyncio.Future[None]
) -> tuple[Kill, Kill]:
    async with asyncio.TaskGroup() as restarts:
        at = await progress.reached(round(truth.row_count * CONTROLLER_AT))
        say(f"{at:,} rows ({at / truth.row_count:.0%}) are acknowledged: killing the active controller")
        killed = await servers.kill((await servers.active_controller()).id)
        failover_ms = await servers.controller_failover_ms(killed)
        say(f"a new controller acknowledged a change {failover_ms:,} ms after the kill")
        controller = Kill(killed.node.name, at, failover_ms)
        restarts.create_task(servers.restart(killed))

        at = await progress.reached(round(truth.row_count * BROKER_AT))
        leaders = await servers.leaders(TOPIC)
        led = _busiest(leaders, progress.ends)
        say(f"{at:,} rows ({at / truth.row_count:.0%}) are acknowledged: killing the leader of {len(led)} partitions")
        ends = {index: progress.ends[index] for index in led if progress.ends[index]}
        killed = await servers.kill(leaders[led[0]])
        failover_ms = await servers.partition_failover_ms(killed, TOPIC, ends, write)
        say(f"a new leader acknowledged a row {failover_ms:,} ms after the kill")
        broker = Kill(killed.node.name, at, failover_ms)
        restarts.create_task(servers.restart(killed))
    return controller, broker


def _busiest(leaders: dict[int, int], ends: dict[int, int]) -> list[int]:
    """Return the partitions of the broker that leads the most partitions, and among equals, the most rows."""
    led: dict[int, list[int]] = {}
    for index, leader in sorted(leaders.items()):
        led.setdefault(leader, []).append(index)
    return max(led.values(), key=lambda indexes: (len(indexes), sum(ends[index] for index in indexes)))


def _report(truth: Truth, written: Written, compared: Comparison) -> int:
    table = Table(title="quorumlog demo", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("rows written", f"{truth.row_count:,}")
    for kill, role in ((written.controller, "active controller"), (written.broker, "leader")):
        share = kill.acknowledged / truth.row_count
        table.add_row(f"acknowledged when {kill.name} ({role}) was killed", f"{kill.acknowledged:,} ({share:.1%})")
    table.add_row("rows read", f"{compared.rows_read:,}")
    table.add_row("duplicates", f"{compared.duplicated:,}")
    table.add_row("lost", f"{compared.lost:,}")
    table.add_row("keys whose count differs", f"{len(_differing(truth, compared)):,} of {len(truth.by_key)}")
    table.add_row("checksum of the written rows", f"{compared.checksum_source:016x}")
    table.add_row("checksum of the read rows", f"{compared.checksum_read:016x}")
    table.add_row("controller failover: SIGKILL to first acknowledged change", f"{written.controller.failover_ms:,} ms")
    table.add_row(
        "partition failover: SIGKILL to first acknowledged row",
        f"{written.broker.failover_ms:,} ms",
    )
    table.add_row("write (paced)", f"{truth.row_count / written.seconds:,.0f} rows/s in {written.seconds:.1f} s")
    console.print(table)
    problems = compared.problems(truth)
    for kill in (written.controller, written.broker):
        if not KILL_EARLIEST <= kill.acknowledged / truth.row_count <= KILL_LATEST:
            problems.append(f"{kill.name} was killed outside of {KILL_EARLIEST:.0%} to {KILL_LATEST:.0%} of the rows")
    for problem in problems:
        console.print(f"[bold red]failed:[/bold red] {problem}")
    if not problems:
        console.print("[bold green]nothing lost, nothing duplicated[/bold green]")
    return 1 if problems else 0


def _differing(truth: Truth, compared: Comparison) -> set[str]:
    return {key for key in {*truth.by_key, *compared.by_key} if truth.by_key[key] != compared.by_key[key]}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=(__doc__ or "").replace("%", "%%"))
    parser.add_argument("--seconds", type=int, default=26, help="how long the paced write takes without a failure")
    parser.add_argument("--rows", type=int, help="only the first ROWS rows of the data set")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the logs of nodes and Spark in this folder")
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    logs: Path | None = arguments.logs
    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="quorumlog-demo-"))
    threads = ThreadPoolExecutor(4)
    status = 1
    try:
        status = asyncio.run(run(directory, max(arguments.seconds, 1), arguments.rows, threads, logs))
    except KeyboardInterrupt:
        status = 130
    except Exception as error:
        for failure in _leaves(error):
            console.print("[bold red]failed:[/bold red]", escape(f"{type(failure).__name__}: {failure}"))
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        if logs is not None and (directory / "spark.log").exists():
            shutil.copy(directory / "spark.log", logs)
        shutil.rmtree(directory, ignore_errors=True)
    return status


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for one in error.exceptions for leaf in _leaves(one)]


if __name__ == "__main__":
    sys.exit(main())
