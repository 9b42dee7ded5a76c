"""The note about the end of a process in its data directories."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker import cli as broker_cli
from quorumlog.errors import ConfigError, CorruptStoreError, FatalError
from quorumlog.runtime.addresses import DEFAULT_LISTENER, Address
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.config import BROKER, QUORUM_NODE, KafkaListener, NodeConfig
from quorumlog.runtime.last_end import FAILED, RUNNING, End, LastEnd
from quorumlog_server import quorum_node
from quorumlog_server.farewell import Farewell


def farewell(folder: Path) -> Farewell:
    config = cast(NodeConfig, SimpleNamespace(data_dirs=(str(folder),), node_id=1))
    return Farewell(config, Sources.seeded(1, lambda: 5))


def noted(folder: Path) -> End | None:
    """Return the end that the next process reads."""
    next_one = LastEnd([str(folder)], lambda: 9)
    next_one.begin()
    return next_one.before


async def test_a_refused_start_is_noted_once_the_process_has_begun(tmp_path: Path) -> None:
    """A broker locks its directories before it binds its ports.  Without a note it would count as killed."""
    one = farewell(tmp_path)
    one.begin()
    await one.end(2, ConfigError("cannot listen", next_step="stop the other process"))
    assert noted(tmp_path) == End(FAILED, 5, 2, "cannot listen", "stop the other process")


@pytest.mark.parametrize("is_refused", [True, False])
async def test_only_a_failure_is_reported_to_other_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    """A refusal is on the terminal from which the process was started, and no other node can do anything about it."""
    reported: list[End | None] = []

    async def report(_: Farewell, end: End | None) -> None:
        reported.append(end)

    monkeypatch.setattr(Farewell, "_report", report)
    one = farewell(tmp_path)
    one.begin()
    await one.end(*((2, ConfigError("cannot listen")) if is_refused else (7, FatalError("disk full"))))
    assert [None if end is None else end.cause for end in reported] == ([] if is_refused else ["disk full"])


async def test_an_end_before_the_quorum_directory_is_open_is_reported_to_the_configured_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Client:
        def __init__(self, peers: list[str]) -> None:
            self._peers = peers

        async def __aenter__(self) -> Client:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def ask_node(self, peer: str, *_: object) -> None:
            asked.append(peer)

    monkeypatch.setattr("quorumlog_server.farewell.ControllerClient", Client)
    config = NodeConfig(QUORUM_NODE, 1, (str(tmp_path),), bootstrap=(Address("127.0.0.1", 1), Address("127.0.0.1", 2)))
    await Farewell(config, Sources.seeded(1, lambda: 5)).end(7, FatalError("quorum.json is damaged"))
    assert asked == ["127.0.0.1:1", "127.0.0.1:2"]


async def test_a_process_refused_before_it_begins_keeps_the_note_of_the_running_process(tmp_path: Path) -> None:
    farewell(tmp_path).begin()
    await farewell(tmp_path).end(2, ConfigError("in use"))
    assert noted(tmp_path) == End(RUNNING, 5)


class Opening:
    """A broker whose store cannot be opened."""

    def __init__(self, steps: list[str]) -> None:
        self.plane = SimpleNamespace(before=None)
        self._steps = steps

    def checks(self) -> dict[str, object]:
        return {}

    async def __aenter__(self) -> None:
        self._steps.append("open")
        raise FatalError("disk full")

    async def __aexit__(self, *_: object) -> None:
        raise AssertionError("never entered")


async def test_a_broker_records_that_it_runs_before_it_opens_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, if it is killed while it opens the store, its next start reports the end of an older process."""
    steps: list[str] = []
    monkeypatch.setattr("broker.server.process.make_broker_process", lambda *_: Opening(steps))
    one: Any = SimpleNamespace(plane=None, begin=lambda: steps.append("begin"))
    process: Any = None
    any_port = Address("127.0.0.1", 0)
    listener = KafkaListener(DEFAULT_LISTENER, any_port)
    config = NodeConfig(BROKER, 1, ("d",), standalone=True, control_listen=any_port, kafka_listeners=(listener,))
    with pytest.raises(FatalError):
        await broker_cli._run_once(config, process, one, None)
    assert steps == ["begin", "open"]


async def test_a_damaged_quorum_directory_is_reported_to_the_other_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def damaged(_: NodeConfig) -> None:
        raise CorruptStoreError("quorum.json is damaged")

    plane = SimpleNamespace(before=None)
    monkeypatch.setattr("quorumlog_server.control_plane.check_start", damaged)
    monkeypatch.setattr("quorumlog_server.control_plane.make_control_plane", lambda *_: plane)
    one: Any = SimpleNamespace(plane=None)
    process: Any = None
    with pytest.raises(CorruptStoreError):
        await quorum_node._run_once(NodeConfig(QUORUM_NODE, 1, ("d",), standalone=True), process, one, None)
    assert one.plane is plane
