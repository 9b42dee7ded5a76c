"""The note about the end of a process in its data directories."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from quorumlog.errors import ConfigError, FatalError
from quorumlog.runtime.addresses import Address
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.config import QUORUM_NODE, NodeConfig
from quorumlog.runtime.last_end import FAILED, RUNNING, End, LastEnd
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
