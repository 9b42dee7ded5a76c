"""Early fencing of a broker without heartbeats: only if all addresses that accepted before refuse connections."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from metadata.controller import ControllerSettings
from metadata.controller.refusals import OVERDUE, PROBING_MAX, PROVING_MAX, ROUND_PAUSE_S, ROUNDS, Answer
from metadata.controller.sessions import Session
from quorumlog.wire import rpcs
from tests.unit.metadata.builders import directory
from tests.unit.metadata.controller.test_controller import beat, register, started
from tests.unit.metadata.fake_node import JumpingLoop, Plane, run, settle

CONTROL, KAFKA, OUTSIDE = ("control", 9093), ("kafka", 9092), ("outside", 9094)
REFUSED = ConnectionRefusedError(111, "refused")
ELSE = [
    TimeoutError(),
    ConnectionResetError(104, "reset"),
    OSError(113, "no route to host"),
    OSError(101, "network is unreachable"),
    socket.gaierror(-2, "name or service not known"),
    OSError("Multiple exceptions: refused, refused"),
    UnicodeError("label too long"),
]


class Net:
    """Connections of the running loop: an address accepts, hangs, or fails with an error."""

    def __init__(self) -> None:
        loop: Any = asyncio.get_running_loop()
        loop.create_connection = self.connect
        self.answers: dict[tuple[str, int], Exception | Callable[[], Exception] | None] = {}
        self.hangs: set[tuple[str, int]] = set()
        self.tried: list[tuple[str, int]] = []
        self.open = self.open_max = 0

    async def connect(self, factory: Any, host: str, port: int) -> Any:
        name = (host.removeprefix("number-of-"), port)
        self.tried.append((host, port))
        self.open += 1
        self.open_max = max(self.open_max, self.open)
        try:
            if name in self.hangs:
                await asyncio.sleep(1000)
            await asyncio.sleep(0.001)
            answer = self.answers.get(name)
            if answer is not None:
                raise answer if isinstance(answer, Exception) else answer()
        finally:
            self.open -= 1
        return Connection(f"number-of-{name[0]}", port), None

    def all(self, answer: Exception | None) -> None:
        for where in (CONTROL, KAFKA, OUTSIDE):
            self.answers[where] = answer


class Connection:
    def __init__(self, host: str, port: int) -> None:
        self._peer = (host, port)

    def get_extra_info(self, name: str) -> Any:
        return {"peername": self._peer}[name]

    def close(self) -> None:
        pass


def with_endpoints(broker_id: int, number: int, *endpoints: tuple[str, int]) -> Any:
    request = register(broker_id, number, directory_ids=(directory(broker_id),))
    del request.registration.endpoints[:]
    for host, port in endpoints:
        request.registration.endpoints.add(name=host, host=host, port=port, security="PLAINTEXT")
    return request


async def watched(*endpoints: tuple[str, int], settings: ControllerSettings | None = None) -> tuple[Plane, Net]:
    """Brokers 2 and 3 run; 2 is reachable at CONTROL and these endpoints, and its addresses have accepted."""
    plane = await started(2, 3, settings=settings)
    plane.node.auto_commit = True
    net = Net()
    plane.node.control_addresses[2] = f"{CONTROL[0]}:{CONTROL[1]}"
    await plane.call(rpcs.REGISTER_BROKER, with_endpoints(2, 1, *(endpoints or (KAFKA,))))
    await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 2))
    await heartbeats(plane, 3.0, 2, 3)
    return plane, net


async def heartbeats(plane: Plane, seconds: float, *broker_ids: int) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        for broker_id in broker_ids:
            await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, broker_id))
        await asyncio.sleep(0.5)


def fenced(plane: Plane, broker_id: int = 2) -> bool:
    return plane.replay.image.brokers[broker_id].fenced


def test_a_broker_whose_addresses_refuse_is_fenced_before_its_session_ends() -> None:
    async def test() -> None:
        plane, net = await watched()
        net.all(REFUSED)
        net.tried.clear()
        await heartbeats(plane, 1.5, 3)
        assert fenced(plane)
        assert not fenced(plane, 3)
        assert net.tried == [("number-of-control", 9093), ("number-of-kafka", 9092)] * ROUNDS
        assert plane.controller.fenced == {"refused_connections": 1, "session_timeout": 0}
        assert plane.controller.probes[Answer.REFUSED.value] == 2 * ROUNDS

    run(test())


def test_a_broker_that_sends_heartbeats_is_never_examined() -> None:
    async def test() -> None:
        plane, net = await watched()
        net.all(REFUSED)
        net.tried.clear()
        await heartbeats(plane, 20.0, 2, 3)
        assert net.tried == []
        assert not fenced(plane)

    run(test())


@pytest.mark.parametrize("where", [CONTROL, KAFKA])
@pytest.mark.parametrize("answer", [None, *ELSE], ids=repr)
def test_a_broker_is_fenced_early_only_if_all_its_addresses_refuse_connections(
    where: tuple[str, int], answer: Exception | None
) -> None:
    async def test() -> None:
        plane, net = await watched()
        net.all(REFUSED)
        net.answers[where] = answer
        await heartbeats(plane, 5.0, 3)
        assert not fenced(plane)
        await heartbeats(plane, 2.0, 3)
        assert fenced(plane)
        assert plane.controller.fenced == {"refused_connections": 0, "session_timeout": 1}

    run(test())


def test_a_broker_with_an_address_that_hangs_is_not_fenced_early() -> None:
    async def test() -> None:
        plane, net = await watched()
        net.all(REFUSED)
        net.hangs.add(CONTROL)
        await heartbeats(plane, 5.0, 3)
        assert not fenced(plane)
        assert net.open == 0, "each connection attempt has a deadline"

    run(test())


def test_the_count_of_refused_rounds_restarts_after_any_other_result() -> None:
    async def test() -> None:
        plane, net = await watched()
        answers = iter([REFUSED, REFUSED, TimeoutError(), REFUSED, REFUSED, TimeoutError()])
        net.all(REFUSED)
        net.answers[CONTROL] = lambda: next(answers, TimeoutError())
        await heartbeats(plane, 5.0, 3)
        assert next(answers, None) is None
        assert not fenced(plane)

    run(test())


def test_a_heartbeat_between_two_rounds_ends_the_examination() -> None:
    async def test() -> None:
        plane, net = await watched()
        net.all(REFUSED)
        await asyncio.sleep(OVERDUE - 0.5 + (ROUNDS - 1.5) * ROUND_PAUSE_S)
        assert net.tried[-1] == ("number-of-kafka", 9092), "two rounds were refused"
        await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 2))
        await asyncio.sleep(1.0)
        assert not fenced(plane)

    run(test())


def test_a_heartbeat_during_the_last_round_ends_the_examination() -> None:
    async def test() -> None:
        plane, net = await watched()
        session = plane.controller.session(2)
        assert session is not None
        examined = 0
        found: list[tuple[int, Session, float]] = []

        def refuse() -> Exception:
            nonlocal examined
            examined += 1
            if examined == ROUNDS:
                session.last_contact = asyncio.get_running_loop().time()
            return REFUSED

        net.all(REFUSED)
        net.answers[KAFKA] = refuse
        leadership = plane.controller._leadership
        assert leadership is not None
        assert leadership.refusals is not None
        leadership.refusals._on_gone = lambda *what: found.append(what)
        await heartbeats(plane, 1.5, 3)
        assert examined == ROUNDS
        assert found == []

    run(test())


def test_refused_connections_before_the_last_heartbeat_fence_no_broker() -> None:
    async def test() -> None:
        plane, _ = await watched()
        session = plane.controller.session(2)
        assert session is not None
        assert plane.controller._leadership is not None
        plane.controller._leadership.fencing.process_ended(2, session, session.last_contact - 0.1)
        await settle()
        assert not fenced(plane)
        plane.controller._leadership.fencing.process_ended(2, session, session.last_contact)
        await settle()
        assert fenced(plane)

    run(test())


def test_a_registration_after_the_refused_connections_prevents_the_fencing() -> None:
    async def test() -> None:
        plane, net = await watched()
        net.all(REFUSED)
        plane.node.busy = True
        await heartbeats(plane, 2.0, 3)
        assert plane.node.refused, "the controller tried to fence the broker"
        plane.node.busy = False
        await plane.call(rpcs.REGISTER_BROKER, with_endpoints(2, 2, KAFKA))
        await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 2))
        await settle()
        assert not fenced(plane)

    run(test())


def test_a_heartbeat_after_the_refused_connections_prevents_the_fencing() -> None:
    async def test() -> None:
        plane, net = await watched()
        net.all(REFUSED)
        plane.node.busy = True
        await heartbeats(plane, 2.0, 3)
        plane.node.busy = False
        await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 2))
        await asyncio.sleep(0.4)
        assert not fenced(plane)

    run(test())


def test_an_early_fencing_is_retried_until_the_quorum_accepts_it() -> None:
    async def test() -> None:
        plane, net = await watched()
        net.all(REFUSED)
        plane.node.busy = True
        await heartbeats(plane, 3.0, 3)
        plane.node.busy = False
        await heartbeats(plane, 0.5, 3)
        assert fenced(plane)

    run(test())


# The addresses that count


@pytest.mark.parametrize("deaf", [CONTROL, KAFKA])
def test_early_fencing_needs_a_control_address_and_a_listener_that_accepted_before(deaf: tuple[str, int]) -> None:
    """An address may always refuse: its name resolves to another host on this node, or a firewall closes its port."""

    async def test() -> None:
        plane = await started(2, 3)
        plane.node.auto_commit = True
        net = Net()
        net.answers[deaf] = REFUSED
        plane.node.control_addresses[2] = f"{CONTROL[0]}:{CONTROL[1]}"
        await plane.call(rpcs.REGISTER_BROKER, with_endpoints(2, 1, KAFKA))
        await heartbeats(plane, 3.0, 2, 3)
        assert deaf in net.tried
        net.all(REFUSED)
        await heartbeats(plane, 5.0, 3)
        assert not fenced(plane)

    run(test())


def test_early_fencing_ignores_a_listener_that_this_node_could_never_reach() -> None:
    async def test() -> None:
        plane = await started(2, 3)
        plane.node.auto_commit = True
        net = Net()
        net.hangs.add(OUTSIDE)
        plane.node.control_addresses[2] = f"{CONTROL[0]}:{CONTROL[1]}"
        await plane.call(rpcs.REGISTER_BROKER, with_endpoints(2, 1, KAFKA, OUTSIDE))
        await heartbeats(plane, 3.0, 2, 3)
        net.all(REFUSED)
        await heartbeats(plane, 1.5, 3)
        assert fenced(plane)

    run(test())


def test_early_fencing_needs_a_refusal_by_every_listener_that_accepted_before() -> None:
    async def test() -> None:
        plane, net = await watched(KAFKA, OUTSIDE)
        net.all(REFUSED)
        net.answers[OUTSIDE] = None
        await heartbeats(plane, 5.0, 3)
        assert not fenced(plane)

    run(test())


def test_attempts_to_reach_unconfirmed_addresses_back_off() -> None:
    async def test() -> None:
        plane = await started(2)
        plane.node.auto_commit = True
        net = Net()
        net.answers[KAFKA] = REFUSED  # its listener begins after the first heartbeat
        plane.node.control_addresses[2] = f"{CONTROL[0]}:{CONTROL[1]}"
        await plane.call(rpcs.REGISTER_BROKER, with_endpoints(2, 1, KAFKA))
        await heartbeats(plane, 64.0, 2)
        assert 5 <= net.tried.count(KAFKA) <= 7
        net.answers[KAFKA] = None
        await heartbeats(plane, 64.0, 2)
        tried = net.tried.count(KAFKA)
        await heartbeats(plane, 64.0, 2)
        assert net.tried.count(KAFKA) == tried, "confirmed addresses are not tried again"
        net.all(REFUSED)
        await asyncio.sleep(1.5)
        assert fenced(plane)

    run(test())


@pytest.mark.parametrize("address", [None, "nonsense", "host:99999999"])
def test_a_broker_without_a_usable_control_address_is_not_examined(address: str | None) -> None:
    async def test() -> None:
        plane = await started(2)
        plane.node.auto_commit = True
        net = Net()
        if address is not None:
            plane.node.control_addresses[2] = address
        await heartbeats(plane, 3.0, 2)
        assert net.tried == []
        assert plane.controller.active

    run(test())


def test_a_controllers_own_broker_is_not_examined() -> None:
    async def test() -> None:
        plane = await started(1, 3)
        plane.node.auto_commit = True
        net = Net()
        plane.node.control_addresses[1] = f"{CONTROL[0]}:{CONTROL[1]}"
        await heartbeats(plane, 3.0, 1, 3)
        assert net.tried == []

    run(test())


# Bounds


async def crowd(count: int) -> tuple[Plane, Net, range]:
    plane = await started()
    plane.node.auto_commit = True
    net, ids = Net(), range(2, 2 + count)
    for broker_id in ids:
        plane.node.control_addresses[broker_id] = f"control-{broker_id}:9093"
        await plane.call(rpcs.REGISTER_BROKER, with_endpoints(broker_id, 1, (f"kafka-{broker_id}", 9092)))
        await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, broker_id))
    return plane, net, ids


def test_the_number_of_concurrent_connection_attempts_is_limited() -> None:
    async def test() -> None:
        plane, net, ids = await crowd(3 * PROBING_MAX)
        await heartbeats(plane, 2.0, *ids)
        assert net.open_max <= PROVING_MAX
        net.open_max = 0
        for broker_id in ids:
            net.answers[f"control-{broker_id}", 9093] = net.answers[f"kafka-{broker_id}", 9092] = REFUSED
        await asyncio.sleep(3.0)
        assert all(fenced(plane, broker_id) for broker_id in ids)
        assert net.open_max == PROBING_MAX

    run(test())


def test_no_broker_is_examined_after_the_leadership_has_ended() -> None:
    async def test() -> None:
        plane, net = await watched()
        net.all(REFUSED)
        net.hangs.add(CONTROL)
        await asyncio.sleep(OVERDUE)
        assert net.open == 1
        plane.node.lose(4, "there:1")
        await settle()
        assert net.open == 0
        net.tried.clear()
        await asyncio.sleep(20)
        assert net.tried == []

    run(test())


def test_a_controller_that_was_suspended_examines_brokers_before_it_fences_them() -> None:
    async def test() -> None:
        plane, net = await watched()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        loop.now += 60
        await settle()
        await asyncio.sleep(1.0)
        assert not fenced(plane)
        assert not fenced(plane, 3)
        assert net.tried[-1] == ("number-of-control", 9093), "the control address accepts, so the listener is not tried"

    run(test())


def test_early_fencing_can_be_switched_off() -> None:
    async def test() -> None:
        plane, net = await watched(settings=ControllerSettings(fence_on_refusal=False))
        assert net.tried == []
        net.all(REFUSED)
        await heartbeats(plane, 5.0, 3)
        assert not fenced(plane)

    run(test())


def test_a_failed_assertion_in_an_examination_ends_the_process() -> None:
    async def test() -> None:
        plane, net = await watched()
        running = asyncio.ensure_future(plane.controller.run())
        net.answers[CONTROL] = AssertionError("this cannot be")
        with pytest.raises(AssertionError, match="this cannot be"):
            await running

    run(test())
