"""The command-line tools of Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.clients.outcomes import Outcome
from tests.clients.peers import Peer
from tests.clients.records import Harness


@dataclass(frozen=True)
class Tool:
    name: str
    check: Callable[[], None]
    row: str = "tool"


TOOLS: tuple[Tool, ...] = ()


def perform_tool(tool: Tool, peer: Peer, harness: Harness, served: dict[int, tuple[int, int]]) -> Outcome:
    raise NotImplementedError
