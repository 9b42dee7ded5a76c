"""A member of a consumer group in a process of its own, so that it can be killed.

    python -m tests.integration.kafka.member '{"client": "Confluent", "bootstrap": …, "group": …, "topic": …}'

It prints one JSON line for each event: `assigned` (the partitions, whenever they change), `record` ([partition,
offset, value]), `committed`, `closed`.  Its input has one command in each line: `commit` or `close`.
"""

from __future__ import annotations

import asyncio
import json
import queue
import sys
import threading
from typing import Any, Protocol

POLL_S = 0.1
SESSION_MS = 2_000
HEARTBEAT_MS = 300
NEWER = "ConfluentNewer"
"""The client that uses the newer protocol of groups (KIP-848)."""


class GroupConsumer(Protocol):
    """A consumer of one topic.  `poll` returns (partition, offset, value)."""

    def poll(self) -> list[tuple[int, int, str]]: ...
    def assigned(self) -> list[int]: ...
    def commit(self) -> None: ...
    def close(self) -> None: ...


class Confluent:
    def __init__(self, options: dict[str, Any]) -> None:
        from confluent_kafka import Consumer

        config: dict[str, Any] = {
            "bootstrap.servers": options["bootstrap"],
            "group.id": options["group"],
            "auto.offset.reset": options["reset"],
            "enable.auto.commit": False,
        }
        if options["client"] == NEWER:  # the coordinator has the timeouts and the assignor
            config["group.protocol"] = "consumer"
        else:
            config["session.timeout.ms"] = SESSION_MS
            config["heartbeat.interval.ms"] = HEARTBEAT_MS
            config["partition.assignment.strategy"] = options["assignor"]
        if options["instance"]:
            config["group.instance.id"] = options["instance"]
        self._consumer = Consumer(config)
        self._consumer.subscribe([options["topic"]])

    def poll(self) -> list[tuple[int, int, str]]:
        found = []
        for message in self._consumer.consume(100, POLL_S):
            assert message.error() is None, message.error()
            value = message.value()
            assert value is not None
            found.append((int(message.partition() or 0), int(message.offset() or 0), value.decode()))
        return found

    def assigned(self) -> list[int]:
        return sorted(each.partition for each in self._consumer.assignment())

    def commit(self) -> None:
        from confluent_kafka import KafkaError, KafkaException

        try:
            for each in self._consumer.commit(asynchronous=False) or ():
                assert each.error is None, each
        except KafkaException as error:
            if error.args[0].code() != KafkaError._NO_OFFSET:  # nothing was read yet since the last rebalance
                raise

    def close(self) -> None:
        self._consumer.close()


class KafkaPython:
    def __init__(self, options: dict[str, Any]) -> None:
        from kafka import KafkaConsumer

        self._consumer = KafkaConsumer(
            options["topic"],
            bootstrap_servers=options["bootstrap"],
            group_id=options["group"],
            auto_offset_reset=options["reset"],
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            group_instance_id=options["instance"],
        )

    def poll(self) -> list[tuple[int, int, str]]:
        batches = self._consumer.poll(timeout_ms=int(POLL_S * 1000))
        return [(each.partition, each.offset, each.value.decode()) for batch in batches.values() for each in batch]

    def assigned(self) -> list[int]:
        return sorted(each.partition for each in self._consumer.assignment())

    def commit(self) -> None:
        self._consumer.commit()

    def close(self) -> None:
        self._consumer.close()


class AioKafka:
    def __init__(self, options: dict[str, Any]) -> None:
        from aiokafka import AIOKafkaConsumer

        self._runner = asyncio.Runner()

        async def start() -> Any:
            consumer = AIOKafkaConsumer(
                options["topic"],
                bootstrap_servers=options["bootstrap"],
                group_id=options["group"],
                auto_offset_reset=options["reset"],
                enable_auto_commit=False,
                session_timeout_ms=SESSION_MS,
                heartbeat_interval_ms=HEARTBEAT_MS,
                group_instance_id=options["instance"],
            )
            await consumer.start()
            return consumer

        self._consumer = self._runner.run(start())

    def poll(self) -> list[tuple[int, int, str]]:
        batches = self._runner.run(self._consumer.getmany(timeout_ms=int(POLL_S * 1000)))
        return [(each.partition, each.offset, each.value.decode()) for batch in batches.values() for each in batch]

    def assigned(self) -> list[int]:
        return sorted(each.partition for each in self._consumer.assignment())

    def commit(self) -> None:
        self._runner.run(self._consumer.commit())

    def close(self) -> None:
        self._runner.run(self._consumer.stop())
        self._runner.close()


CLIENTS = {**{each.__name__: each for each in (Confluent, KafkaPython, AioKafka)}, NEWER: Confluent}


def report(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def main() -> None:
    options = {"reset": "earliest", "assignor": "range", "instance": None, **json.loads(sys.argv[1])}
    consumer: GroupConsumer = CLIENTS[options["client"]](options)
    commands: queue.Queue[str] = queue.Queue()

    def read_commands() -> None:
        for line in sys.stdin:
            commands.put(line.strip())
        commands.put("close")

    threading.Thread(target=read_commands, daemon=True).start()
    assigned: list[int] = []
    while True:
        for record in consumer.poll():
            report(record=record)
        if consumer.assigned() != assigned:
            assigned = consumer.assigned()
            report(assigned=assigned)
        try:
            command = commands.get_nowait()
        except queue.Empty:
            continue
        if command == "commit":
            consumer.commit()
            report(committed=True)
        else:
            consumer.close()
            report(closed=True)
            return


if __name__ == "__main__":
    main()
