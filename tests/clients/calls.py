"""Calls of the command-line tools of Apache Kafka, and checks of their output."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tests.clients.catalog import java
from tests.clients.outcomes import RowFailed, expect, shortened
from tests.clients.peers import Peer
from tests.clients.records import COUNT, Harness, record

TIMEOUT_S = 60.0
SETTLE_S = 60.0
"""Longer than a session of a broker that was killed."""
LARGE_VALUES = [f"{number}-" + "x" * 100_000 for number in range(80)]
SLOW_RATE = 1_000
"""Bytes per second.  Kafka copies a MiB before it applies a rate, so only the copy of a larger log is delayed."""
REASSIGN_COMMAND = "reassign.ReassignPartitionsCommand"

_numbers = count()


@dataclass(frozen=True)
class Call:
    """The context of a check: it runs tools against a cluster, and makes topics and files for them."""

    peer: Peer
    harness: Harness
    folder: Path

    def tool(self, name: str, *arguments: str, status: int = 0, lines: str = "") -> str:
        """Run a tool with the bootstrap servers, and `lines` as its input; return its output.

        Raises:
            RowFailed: it ended with another status, or not in time.
            Skipped: Java or the jars are missing.
        """
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        servers = ("--bootstrap-server", self.peer.bootstrap)
        is_first = name == "ClusterTool"  # its subcommand precedes the options
        options = (*arguments, *servers) if is_first else (*servers, *arguments)
        command = [*java(), quiet, f"org.apache.kafka.tools.{name}", *options]
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                input=lines,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as late:
            raise RowFailed(f"did not end within {TIMEOUT_S:g} s: {shortened(late.output)}") from None
        if done.returncode != status:
            raise RowFailed(f"exit status {done.returncode}: {_without_trace(done.stdout)[-300:]}")
        return done.stdout

    def new_name(self, kind: str = "tool") -> str:
        return f"{kind}-{next(_numbers)}"

    def file(self, name: str, content: object) -> str:
        path = self.folder / name
        path.write_text(json.dumps(content))
        return str(path)

    def topic(self, partitions: int = 1, *, filled: bool = False) -> str:
        name = self.new_name()
        self.harness.create(name, partitions)
        if filled:
            self.harness.produce(name, range(COUNT))
        return name

    def topic_on(self, *brokers: int, config: str = "") -> str:
        """Create a topic with one partition and return its name; the first broker is the preferred leader."""
        topic = self.new_name()
        options = ("--replica-assignment", ":".join(map(str, brokers)), *(("--config", config) if config else ()))
        self.tool("TopicCommand", "--create", "--topic", topic, *options)
        return topic

    def large_topic_on(self, *brokers: int) -> str:
        """Create such a topic with LARGE_VALUES."""
        topic = self.topic_on(*brokers)
        self.harness.produce_values(topic, 1, LARGE_VALUES)
        return topic

    def check_large_values(self, topic: str) -> None:
        expect("values", [each["value"] for each in self.harness.read(topic, len(LARGE_VALUES))], LARGE_VALUES)

    def check_records(self, topic: str) -> None:
        """Let the console consumer read a topic with the first COUNT records, and compare every line."""
        limits = ("--from-beginning", "--max-messages", str(COUNT), "--formatter-property", "print.key=true")
        output = self.tool("consumer.ConsoleConsumer", "--topic", topic, *limits)
        lines = [line for line in output.splitlines() if "\t" in line]
        expect("lines", lines, [f"{each['key']}\t{each['value']}" for each in map(record, range(COUNT))])
        has(output, f"Processed a total of {COUNT} messages")

    def until(self, look: Callable[[], str], pattern: str) -> str:
        """Repeat `look` until its output matches."""
        deadline = time.monotonic() + SETTLE_S
        while not re.search(pattern, output := look()):
            if time.monotonic() > deadline:
                raise RowFailed(f"{pattern!r} is not in: {shortened(output)}")
            time.sleep(0.2)  # another process, which sends no event: poll
        return output


def _without_trace(output: str) -> str:
    return " | ".join(line.strip() for line in output.splitlines() if line.strip() and not line.startswith("\tat "))


def has(output: str, *patterns: str) -> None:
    """
    Raises:
        RowFailed: a pattern is not in the output.
    """
    for pattern in patterns:
        if not re.search(pattern, output):
            raise RowFailed(f"{pattern!r} is not in: {shortened(_without_trace(output))}")
