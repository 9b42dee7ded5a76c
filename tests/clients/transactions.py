"""The tool that shows and ends transactions whose clients were killed."""

from __future__ import annotations

from tests.clients.calls import Call, has
from tests.clients.catalog import PROGRAMS
from tests.clients.outcomes import expect
from tests.clients.records import Harness
from tests.clients.running import Program

COMMAND = "TransactionsCommand"
OPENER = "confluent-kafka"
NONE_HANG = r"\ATopic\s+Partition\s+ProducerId\s.*\s*\Z"
"""The header alone."""


def terminate(call: Call) -> None:
    """Find the open transaction of a killed client, and end it by its id."""
    topic, name = _abandoned(call)
    has(call.tool(COMMAND, "list"), r"TransactionalId\s+Coordinator\s+ProducerId", rf"(?m)^{name}\s.*\sOngoing\s*$")
    has(_described(call, name), rf"(?m)^[0-9]+\s+{name}\s.*\sOngoing\s+60000\s.*\s{topic}-0\s*$")
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
    topic, name = _abandoned(call)
    place = ("--topic", topic, "--partition", "0", "--start-offset")
    none = "Could not find any open transactions starting at offset"
    has(call.tool(COMMAND, "abort", *place, "1", status=1), f"{none} 1 on partition {topic}-0")
    expect("committed values", _values(call.harness, topic), [])
    call.tool(COMMAND, "abort", *place, "0")
    expect("committed values", _values(call.harness, topic), ["later"])
    has(_producers(call, topic), r"(?m)^[0-9]+\s.*\sNone\s*$")
    has(call.tool(COMMAND, "abort", *place, "0", status=1), f"{none} 0 on partition {topic}-0")
    has(_described(call, name), rf"\sOngoing\s.*\s{topic}-0\s")  # its coordinator is not informed


def _abandoned(call: Call) -> tuple[str, str]:
    """Kill a client with an open transaction; return its topic, to which another client writes then, and its id.

    The transaction begins at offset 0 of partition 0.
    """
    topic, name = call.topic(), call.new_name("tool-transaction")
    (program,) = (each for each in PROGRAMS if each.name == OPENER)
    action = {"action": "hold", "bootstrap": call.peer.bootstrap, "topic": topic, "id": name, "value": "open"}
    with Program(program.prepare(), action) as client:
        client.until(lambda: bool(client.of("open")), "a transaction is open")
        client.kill()
    call.harness.produce_values(topic, 1, ["later"])
    return topic, name


def _described(call: Call, name: str) -> str:
    return call.tool(COMMAND, "describe", "--transactional-id", name)


def _producers(call: Call, topic: str) -> str:
    return call.tool(COMMAND, "describe-producers", "--topic", topic, "--partition", "0")


def _values(harness: Harness, topic: str) -> list[str]:
    """Return the values that readers of committed records get."""
    return [each["value"] for each in harness.read(topic, 2)]
