"""Consumer groups with unmodified confluent-kafka, kafka-python and aiokafka.

Each member is a process of its own.  The brokers are a standalone process, and a cluster of 3 voters and 3 brokers
whose coordinator is killed.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from broker.core.coordinator.placement import partition_of
from quorumlog.kctl import processes
from tests.integration.kafka.clients import TIMEOUT_S
from tests.integration.kafka.conftest import Standalone
from tests.integration.kafka.member import NEWER
from tests.integration.quorum.clusters import done, node_of, running

WAIT_S = 60.0
PARTITIONS = 4
RECORDS = 40
OFFSETS = "__consumer_offsets"
MAKE_QUICK = (
    *("configs", "set", "--cluster", "group.initial.rebalance.delay.ms=100", "group.min.session.timeout.ms=500"),
    *("group.consumer.min.session.timeout.ms=500", "group.consumer.session.timeout.ms=2000"),
    *("group.consumer.min.heartbeat.interval.ms=100", "group.consumer.heartbeat.interval.ms=300"),
)
"""Arguments of kctl that shorten the times of groups, so that the tests do not wait for them."""
EACH_CLIENT = pytest.mark.parametrize("client", ["Confluent", NEWER, "KafkaPython", "AioKafka"])

_numbers = count()


class Member:
    """A process that runs `member.py`; see there."""

    def __init__(self, **options: Any) -> None:
        command = [sys.executable, "-m", "tests.integration.kafka.member", json.dumps(options)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._changed = threading.Condition()
        self._has_ended = False
        self.assignments: list[list[int]] = []
        self.records: list[tuple[int, int, str]] = []
        self.commits = 0
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            with self._changed:
                if "assigned" in event:
                    self.assignments.append(event["assigned"])
                elif "record" in event:
                    self.records.append(tuple(event["record"]))
                elif "committed" in event:
                    self.commits += 1
                self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    @property
    def assigned(self) -> list[int]:
        return self.assignments[-1] if self.assignments else []

    @property
    def values(self) -> set[int]:
        return {int(value) for _, _, value in self.records}

    def until(self, condition: Callable[[], bool], what: str) -> None:
        with self._changed:
            fulfilled = self._changed.wait_for(lambda: condition() or self._has_ended, WAIT_S)
            assert fulfilled, f"not in time: {what}; assigned {self.assigned}, records {len(self.records)}"
            assert condition(), f"the member ended before: {what}"

    def has(self, partitions: int) -> None:
        """Wait until this member has a number of partitions."""
        self.until(lambda: len(self.assigned) == partitions, f"{partitions} partitions")

    def _say(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()

    def commit(self) -> None:
        """Commit the positions, which are after the records that were reported."""
        before = self.commits
        self._say("commit")
        self.until(lambda: self.commits > before, "a commit")

    def close(self) -> None:
        self._say("close")
        assert self._process.wait(WAIT_S) == 0
        self._end()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(WAIT_S)
        self._end()

    def _end(self) -> None:
        self._reader.join(WAIT_S)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None


class Group:
    """A group with a topic of its own."""

    def __init__(self, bootstrap: str, client: str, replicas: int) -> None:
        number = next(_numbers)
        self.bootstrap = bootstrap
        self.client = client
        self.name = f"group-{number}"
        self.topic = f"topic-{number}"
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.members: list[Member] = []
        made = self.admin.create_topics([NewTopic(self.topic, PARTITIONS, replicas)])
        made[self.topic].result(TIMEOUT_S)

    def produce(self, first: int = 0, number: int = RECORDS) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "acks": "all"})
        for value in range(first, first + number):
            producer.produce(self.topic, str(value), partition=value % PARTITIONS)
        assert producer.flush(TIMEOUT_S) == 0

    def join(self, **options: Any) -> Member:
        names = {"client": self.client, "bootstrap": self.bootstrap, "group": self.name, "topic": self.topic}
        member = Member(**{**names, **options})
        self.members.append(member)
        return member

    def committed(self) -> dict[int, int]:
        """Return the committed offset of each partition that has one.

        Each call has a client of its own.  librdkafka 2.16 drops a broker that is no longer in the metadata, and a
        client that knew it as the coordinator then waits for it without end.
        """
        wanted = [ConsumerGroupTopicPartitions(self.name)]
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        found = admin.list_consumer_group_offsets(wanted)[self.name].result(TIMEOUT_S)
        return {each.partition: each.offset for each in found.topic_partitions if each.offset >= 0}

    def state(self) -> str:
        described = self.admin.describe_consumer_groups([self.name])[self.name].result(TIMEOUT_S)
        return str(described.state.name)


@contextmanager
def group_of(bootstrap: str, client: str = "Confluent", replicas: int = 1) -> Iterator[Group]:
    group = Group(bootstrap, client, replicas)
    try:
        yield group
    finally:
        for member in group.members:
            if member.is_running:
                member.kill()


@pytest.fixture(scope="module")
def bootstrap(standalone: Standalone) -> str:
    command = [sys.executable, "-m", "quorumlog.kctl.main", "--controllers", standalone.control, *MAKE_QUICK]
    subprocess.run(command, check=True, capture_output=True, timeout=WAIT_S)
    return standalone.bootstrap


def has_more(member: Member, number: int) -> bool:
    return len(member.records) > number


@EACH_CLIENT
def test_members_share_the_partitions_and_take_over_from_closed_and_killed_members(bootstrap: str, client: str) -> None:
    with group_of(bootstrap, client) as group:
        group.produce()
        first = group.join()
        first.has(PARTITIONS)
        second = group.join()
        second.has(PARTITIONS // 2)
        first.has(PARTITIONS // 2)
        assert sorted(first.assigned + second.assigned) == list(range(PARTITIONS))
        second.close()
        first.has(PARTITIONS)
        third = group.join()
        third.has(PARTITIONS // 2)
        first.has(PARTITIONS // 2)
        third.kill()
        first.has(PARTITIONS)
        first.until(lambda: first.values == set(range(RECORDS)), "every record")
        first.close()
        assert group.state() == "EMPTY"


@EACH_CLIENT
def test_a_group_continues_after_its_committed_offsets(bootstrap: str, client: str) -> None:
    with group_of(bootstrap, client) as group:
        group.produce()
        first = group.join()
        first.until(lambda: first.values == set(range(RECORDS)), "every record")
        first.commit()
        first.close()
        assert group.committed() == dict.fromkeys(range(PARTITIONS), RECORDS // PARTITIONS)
        group.produce(RECORDS)
        second = group.join()
        second.until(lambda: len(second.values) >= RECORDS, "the new records")
        assert second.values == set(range(RECORDS, 2 * RECORDS))
        second.close()


@EACH_CLIENT
def test_a_group_without_offsets_starts_at_the_reset_position_of_the_client(bootstrap: str, client: str) -> None:
    with group_of(bootstrap, client) as group:
        group.produce()
        member = group.join(reset="latest")
        member.has(PARTITIONS)
        # Its positions are looked up after the assignment: write until it receives something from each partition.
        sent = RECORDS
        while {partition for partition, _, _ in member.records} != set(range(PARTITIONS)):
            assert sent < 100 * RECORDS
            group.produce(sent, PARTITIONS)
            sent += PARTITIONS
            with member._changed:
                member._changed.wait_for(partial(has_more, member, len(member.records)), 0.5)
        assert min(member.values) >= RECORDS
        member.close()


def test_cooperative_members_keep_their_partitions_during_a_rebalance(bootstrap: str) -> None:
    with group_of(bootstrap) as group:
        first = group.join(assignor="cooperative-sticky")
        first.has(PARTITIONS)
        before = len(first.assignments)
        second = group.join(assignor="cooperative-sticky")
        second.has(PARTITIONS // 2)
        first.has(PARTITIONS // 2)
        assert all(len(each) >= PARTITIONS // 2 for each in first.assignments[before:]), first.assignments
        second.close()
        first.has(PARTITIONS)
        first.close()


def test_a_group_changes_its_protocol_while_its_members_work(bootstrap: str) -> None:
    with group_of(bootstrap) as group:
        group.produce()
        old = group.join(assignor="cooperative-sticky")
        old.has(PARTITIONS)
        new = group.join(client=NEWER)
        new.has(PARTITIONS // 2)
        old.has(PARTITIONS // 2)
        assert sorted(old.assigned + new.assigned) == list(range(PARTITIONS))
        old.until(lambda: bool(old.records), "a record")
        old.commit()
        old.close()
        new.has(PARTITIONS)
        back = group.join(assignor="cooperative-sticky")
        back.has(PARTITIONS // 2)
        new.has(PARTITIONS // 2)
        new.close()
        back.has(PARTITIONS)
        back.close()


@pytest.mark.parametrize("client", ["Confluent", "KafkaPython"])
def test_a_static_member_restarts_without_a_rebalance(bootstrap: str, client: str) -> None:
    with group_of(bootstrap, client) as group:
        first = group.join(instance="one")
        second = group.join(instance="two")
        second.has(PARTITIONS // 2)
        first.has(PARTITIONS // 2)
        assigned, changes = second.assigned, len(first.assignments)
        second.kill()
        again = group.join(instance="two")
        again.has(PARTITIONS // 2)
        assert again.assigned == assigned
        group.produce()
        first.until(lambda: len(first.values) == RECORDS // 2, "half of the records")
        assert len(first.assignments) == changes, first.assignments


def test_groups_are_listed_described_and_deleted(bootstrap: str) -> None:
    with group_of(bootstrap) as group:
        member = group.join()
        member.has(PARTITIONS)
        listed = group.admin.list_consumer_groups().result(TIMEOUT_S)
        assert listed.errors == []
        assert group.name in [each.group_id for each in listed.valid]
        described = group.admin.describe_consumer_groups([group.name])[group.name].result(TIMEOUT_S)
        [found] = described.members
        assert (described.state.name, described.partition_assignor) == ("STABLE", "range")
        assert (found.host, len(found.assignment.topic_partitions)) == ("/127.0.0.1", PARTITIONS)
        with pytest.raises(Exception, match="NON_EMPTY_GROUP"):
            group.admin.delete_consumer_groups([group.name])[group.name].result(TIMEOUT_S)
        member.close()
        group.admin.delete_consumer_groups([group.name])[group.name].result(TIMEOUT_S)
        listed = group.admin.list_consumer_groups().result(TIMEOUT_S)
        assert group.name not in [each.group_id for each in listed.valid]


def test_the_committed_offsets_of_a_deleted_topic_are_deleted(bootstrap: str) -> None:
    with group_of(bootstrap) as group:
        group.produce()
        member = group.join()
        member.until(lambda: len(member.values) == RECORDS, "every record")
        member.commit()
        member.close()
        assert len(group.committed()) == PARTITIONS
        group.admin.delete_topics([group.topic])[group.topic].result(TIMEOUT_S)
        assert group.committed() == {}


def test_clients_cannot_write_to_or_delete_the_topic_of_committed_offsets(bootstrap: str) -> None:
    with group_of(bootstrap) as group:
        member = group.join()
        member.has(PARTITIONS)
        member.close()
        errors: list[Any] = []
        producer = Producer({"bootstrap.servers": bootstrap})
        producer.produce(OFFSETS, b"x", partition=0, on_delivery=lambda error, _: errors.append(error))
        producer.flush(TIMEOUT_S)
        assert [error.name() for error in errors] == ["TOPIC_EXCEPTION"]
        with pytest.raises(Exception, match="POLICY_VIOLATION"):
            group.admin.delete_topics([OFFSETS])[OFFSETS].result(TIMEOUT_S)


# -- a cluster


def positions(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    """Return the committed offsets, read by a client that has just started."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        wanted = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        return {each.partition: each.offset for each in consumer.committed(wanted, timeout=WAIT_S)}
    finally:
        consumer.close()


def commit_up_to(group: Group, members: list[Member], offset: int) -> None:
    """Commit until each partition has this offset.

    A member may also have counted records of partitions that it lost in a rebalance, and not have read its own yet.
    """
    deadline = time.monotonic() + WAIT_S
    while group.committed() != dict.fromkeys(range(PARTITIONS), offset):
        assert time.monotonic() < deadline, group.committed()
        for member in members:
            member.commit()


@pytest.mark.parametrize("client", ["Confluent", NEWER])
async def test_a_killed_coordinator_loses_no_commit_and_its_groups_continue(tmp_path: Path, client: str) -> None:
    fast = {"broker_session_timeout_ms": 1_500, "broker_heartbeat_interval_ms": 300}
    async with running(tmp_path, voters=3, brokers=3, **fast) as cluster:
        bootstrap = cluster.bootstrap
        await done(cluster, *MAKE_QUICK)
        with group_of(bootstrap, client, replicas=3) as group:

            def before() -> list[Member]:
                group.produce()
                members = [group.join(), group.join()]
                for member in members:
                    member.has(PARTITIONS // 2)
                for member in members:
                    member.until(partial(has_more, member, RECORDS // 2 - 1), "half of the records")
                commit_up_to(group, members, RECORDS // PARTITIONS)
                return members

            members = await asyncio.to_thread(before)
            [offsets] = await done(cluster, "topics", "describe", OFFSETS)
            index = partition_of(group.name, len(offsets["partitions"]))
            leader = offsets["partitions"][index]["leader"]
            processes.send(node_of(cluster, leader).pid, SIGKILL)

            def after() -> None:
                found = positions(bootstrap, group.name, group.topic)
                assert found == dict.fromkeys(range(PARTITIONS), RECORDS // PARTITIONS)
                group.produce(RECORDS)
                for member in members:
                    member.until(partial(has_more, member, RECORDS - 1), "the records after the failover")
                commit_up_to(group, members, 2 * RECORDS // PARTITIONS)
                found = positions(bootstrap, group.name, group.topic)
                assert found == dict.fromkeys(range(PARTITIONS), 2 * RECORDS // PARTITIONS)
                for member in members:
                    member.close()

            await asyncio.to_thread(after)
