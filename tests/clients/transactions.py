"""The tool that shows and ends transactions whose clients were killed.

Such a transaction is open until its timeout, but it does not hang: its coordinator will end it.  It hangs once the
coordinator has ended it, and its marker is lost.
"""

from __future__ import annotations

from contextlib import ExitStack

from tests.clients.brokers import until_in_sync, until_state
from tests.clients.calls import Call, has
from tests.clients.catalog import PROGRAMS
from tests.clients.outcomes import Skipped, expect
from tests.clients.records import Harness
from tests.clients.running import Program

COMMAND = "TransactionsCommand"
OPENER = "confluent-kafka"
NONE_HANG = r"\ATopic\s+Partition\s+ProducerId\s.*\s*\Z"
"""The header alone."""
TIMEOUT_MS = 900_000
"""The longest that brokers permit.  No transaction expires while a row looks at it."""


def terminate(call: Call) -> None:
    """Find the open transaction of a killed client, and end it by its id."""
    topic = call.topic()
    name = _abandon(call, topic)
    call.harness.produce_values(topic, 1, ["later"])
    has(call.tool(COMMAND, "list"), r"TransactionalId\s+Coordinator\s+ProducerId", rf"(?m)^{name}\s.*\sOngoing\s*$")
    has(_described(call, name), rf"(?m)^[0-9]+\s+{name}\s.*\sOngoing\s+{TIMEOUT_MS}\s.*\s{topic}-0\s*$")
    has(_producers(call, topic), r"(?m)^[0-9]+\s+[0-9]+\s.*\s0\s*$")
    has(call.tool(COMMAND, "find-hanging", "--topic", topic, "--max-transaction-timeout", "0"), NONE_HANG)
    has(call.tool(COMMAND, "find-hanging", "--broker-id", str(call.peer.brokers[0])), NONE_HANG)
    expect("committed values", _values(call.harness, topic), [])

    call.tool(COMMAND, "forceTerminateTransaction", "--transactionalId", name)
    call.until(lambda: _described(call, name), r"\sEmpty\s")
    has(_producers(call, topic), r"(?m)^[0-9]+\s.*\sNone\s*$")
    expect("committed values", _values(call.harness, topic), ["later"])
    has(call.tool(COMMAND, "describe", "--transactional-id", "nobody", status=1), "the ID could not be found")


def abort(call: Call) -> None:
    """End the open transaction of a killed client in one partition, by its first offset."""
    topic = call.topic()
    name = _abandon(call, topic)
    call.harness.produce_values(topic, 1, ["later"])
    place = ("--topic", topic, "--partition", "0", "--start-offset")
    none = "Could not find any open transactions starting at offset"
    has(call.tool(COMMAND, "abort", *place, "1", status=1), f"{none} 1 on partition {topic}-0")
    expect("committed values", _values(call.harness, topic), [])
    call.tool(COMMAND, "abort", *place, "0")
    expect("committed values", _values(call.harness, topic), ["later"])
    has(_producers(call, topic), r"(?m)^[0-9]+\s.*\sNone\s*$")
    has(call.tool(COMMAND, "abort", *place, "0", status=1), f"{none} 0 on partition {topic}-0")
    has(_described(call, name), rf"\sOngoing\s.*\s{topic}-0\s")  # its coordinator is not informed


def end_hanging(call: Call) -> None:
    """Lose the marker of a transaction in an unclean election, find the transaction, and end it."""
    if not call.peer.servers:
        raise Skipped("the cluster has a single process")
    leader, follower, _ = call.peer.brokers
    topic = call.topic_on(leader, follower, config="min.insync.replicas=1")
    with ExitStack() as stack:
        for broker in (leader, follower):
            stack.callback(call.peer.servers[broker].start)
        name = _lose_marker(call, topic, leader, follower)
        call.harness.produce_values(topic, 1, ["later"])
        expect("committed values", _values(call.harness, topic), [])
        find = ("find-hanging", "--topic", topic, "--max-transaction-timeout", "0")
        has(call.tool(COMMAND, *find), rf"(?m)^{topic}\s+0\s+[0-9]+\s+[0-9]+\s+-?[0-9]+\s+0\s")
        if call.peer.kctl is not None:
            hangs = rf"(?m)^{topic} +0 +0 .* {name} +2 .*without this partition$"
            has(call.peer.kctl("transactions", "find-hanging", "--topic", topic), hangs)

        call.tool(COMMAND, "abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
        expect("committed values", _values(call.harness, topic), ["later"])
        has(call.tool(COMMAND, *find), NONE_HANG)
    until_in_sync(call)
    expect("committed values", _values(call.harness, topic), ["later"])


def _lose_marker(call: Call, topic: str, leader: int, follower: int) -> str:
    """End a transaction while only the leader can get its marker, then elect the follower; return the id."""
    name = _abandon(call, topic)
    call.peer.servers[follower].kill()
    call.until(lambda: _topic(call, topic), rf"Isr: {leader}\s")
    call.tool(COMMAND, "forceTerminateTransaction", "--transactionalId", name)
    call.until(lambda: _described(call, name), r"\sEmpty\s")
    call.peer.servers[leader].kill()
    call.peer.servers[follower].start()  # first, because a controller that is also a broker may need its vote
    call.until(lambda: _topic(call, topic), "Leader: none")
    until_state(call, follower, "unfenced")
    one = ("--election-type", "unclean", "--topic", topic, "--partition", "0")
    has(call.tool("LeaderElectionCommand", *one), f"Successfully completed leader election.*{topic}-0")
    call.until(lambda: _topic(call, topic), rf"Leader: {follower}\s")
    return name


def _abandon(call: Call, topic: str) -> str:
    """Kill a client with an open transaction; return its id.  The transaction begins at offset 0 of partition 0."""
    name = call.new_name("tool-transaction")
    (program,) = (each for each in PROGRAMS if each.name == OPENER)
    action = {"action": "hold", "bootstrap": call.peer.bootstrap, "topic": topic, "id": name, "value": "open"}
    with Program(program.prepare(), {**action, "timeout_ms": TIMEOUT_MS}) as client:
        client.until(lambda: bool(client.of("open")), "a transaction is open")
        client.kill()
    return name


def _topic(call: Call, topic: str) -> str:
    return call.tool("TopicCommand", "--describe", "--topic", topic)


def _described(call: Call, name: str) -> str:
    return call.tool(COMMAND, "describe", "--transactional-id", name)


def _producers(call: Call, topic: str) -> str:
    return call.tool(COMMAND, "describe-producers", "--topic", topic, "--partition", "0")


def _values(harness: Harness, topic: str) -> list[str]:
    """Return the values that readers of committed records get."""
    return [each["value"] for each in harness.read(topic, 2)]
