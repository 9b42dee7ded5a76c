"""The tool that unregisters brokers, and the states of brokers that rows kill and start."""

from __future__ import annotations

from tests.clients.calls import REASSIGN_COMMAND, Call, has
from tests.clients.outcomes import Skipped
from tests.clients.records import COUNT

COMMAND = "ClusterTool"


def refuse(call: Call) -> None:
    """Name a broker that is not registered."""
    has(call.tool(COMMAND, "unregister", "--id", "999", status=1), "BrokerIdNotRegisteredException")


def unregister(call: Call) -> None:
    """Start a new broker, move its replica away, kill it, and unregister it."""
    spare = call.peer.spare
    if spare is None:
        raise Skipped("the cluster has a single process")
    first, second, _ = call.peer.brokers
    server = call.peer.servers[spare]
    server.start()
    try:
        until_state(call, spare, "unfenced")
        topic = call.topic_on(spare, first)
        call.harness.produce(topic, range(COUNT))
        move = {"topic": topic, "partition": 0, "replicas": [first, second]}
        plan = ("--reassignment-json-file", call.file("plan.json", {"version": 1, "partitions": [move]}))
        call.tool(REASSIGN_COMMAND, "--execute", *plan)
        call.until(lambda: call.tool(REASSIGN_COMMAND, "--verify", *plan), f"{topic}-0 is completed")
    finally:
        server.kill()
    until_state(call, spare, "fenced")
    has(call.tool(COMMAND, "unregister", "--id", str(spare)), f"Broker {spare} is no longer registered")
    call.until(lambda: _endpoints(call), rf"(?m)\A(?!(.|\n)*^{spare} )")
    has(call.tool(COMMAND, "unregister", "--id", str(spare), status=1), "BrokerIdNotRegisteredException")
    call.check_records(topic)


def until_state(call: Call, broker: int, state: str) -> None:
    """Wait until a broker is fenced or unfenced."""
    call.until(lambda: _endpoints(call), rf"(?m)^{broker} .* {state} +broker")


def until_in_sync(call: Call) -> None:
    """Wait until all replicas of all partitions are in sync."""
    call.until(lambda: call.tool("TopicCommand", "--describe", "--under-replicated-partitions"), r"\A\s*\Z")


def _endpoints(call: Call) -> str:
    return call.tool(COMMAND, "list-endpoints", "--include-fenced-brokers")
