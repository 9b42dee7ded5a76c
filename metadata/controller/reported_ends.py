"""The reasons for the ends of other nodes, as they reported them.

A node that has ended answers no request, so it reports its end to other nodes (`ReportEnd`), which keep it in memory.
These reports are not authenticated.  So only the ends of nodes that this node knows are kept; an end is dropped when
its node is active again; the number of log lines is limited; and the text of a report is always shown as a quotation of
that node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol

from metadata.control.errors import OK, Outcome
from metadata.image import ClusterImage
from quorum.core.messages import DescribeQuorumReply
from quorumlog.runtime.clock import now_ms
from quorumlog.runtime.logging import LineBudget, get_logger
from quorumlog.wire.errors import ApiError
from quorumlog.wire.v1 import node_pb2 as pb

ENDS_MAX = 100
"""Maximum number of nodes whose ends are kept; the oldest report is dropped first."""
END_DIRECTORIES_MAX = 16
END_TEXT_MAX = 600
"""Maximum number of characters of each text in a report."""
TIME_MAX_MS = 253_402_300_799_999
"""The end of the year 9999: later times cannot be formatted."""
LINES = 10
LINES_INTERVAL_S = 60.0
"""At most `LINES` reports are logged in this time; the others are counted."""

logger = get_logger("controller")


class Node(Protocol):
    """The part of `quorum.node.QuorumNode` that this module uses."""

    @property
    def node_id(self) -> int: ...

    def describe(self) -> DescribeQuorumReply: ...


class _Reported(NamedTuple):
    """at_ms: loop time at arrival.  broker_epoch: of the node's registration at that time; None if it had none."""

    end: pb.NodeEnd
    at_ms: int
    broker_epoch: int | None


class ReportedEnds:
    """The last reported end of each node.  image: returns the committed image."""

    def __init__(self, node: Node, image: Callable[[], ClusterImage]) -> None:
        self._node = node
        self._image = image
        self._reported: dict[int, _Reported] = {}  # by node id; the latest reports last
        self._lines = LineBudget(logger, lambda: asyncio.get_running_loop().time(), LINES, LINES_INTERVAL_S)

    def listed(self) -> list[pb.NodeEnd]:
        """Return the ends of nodes that have not been active since; the latest reports last."""
        self._forget_heard()
        return [reported.end for reported in self._reported.values()]

    def report(self, request: pb.ReportEndRequest) -> Outcome:
        """Keep a node's end, or drop it if the request has none."""
        node_id, end = request.node_id, request.end
        if node_id < 0 or not 0 <= end.at_ms <= TIME_MAX_MS or not 0 <= end.exit_status <= 255:
            text = f"node {node_id}, time {end.at_ms}, exit status {end.exit_status}"
            return Outcome(ApiError.INVALID_REQUEST, f"not the end of a node: {text}")
        if not request.HasField("end"):
            self._reported.pop(node_id, None)
            return OK
        own = self._node.node_id
        if node_id == own:
            return OK  # this node runs
        if not self._is_known(node_id):
            return Outcome(ApiError.INVALID_REQUEST, f"node {own} knows no voter, observer or broker with id {node_id}")
        self._forget_heard()
        self._reported.pop(node_id, None)
        if len(self._reported) >= ENDS_MAX:
            del self._reported[next(iter(self._reported))]
        kept = _checked(node_id, end)
        self._reported[node_id] = _Reported(kept, now_ms(), self._broker_epoch(node_id))
        self._lines.warning("a node reports its end", node=node_id, status=kept.exit_status, cause=kept.cause)
        return OK

    def _is_known(self, node_id: int) -> bool:
        if node_id in self._image().brokers:
            return True
        quorum = self._node.describe()
        return any(status.replica.key.node_id == node_id for status in (*quorum.voters, *quorum.observers))

    def _broker_epoch(self, node_id: int) -> int | None:
        broker = self._image().brokers.get(node_id)
        return None if broker is None else broker.epoch

    def _forget_heard(self) -> None:
        """Drop the ends of nodes that have registered or fetched since then, because they run again.  Only the leader
        receives fetches."""
        if not self._reported:
            return
        quorum, now = self._node.describe(), now_ms()
        for status in (*quorum.voters, *quorum.observers):
            node_id = status.replica.key.node_id
            if status.last_fetch_ms is None or node_id not in self._reported:
                continue
            if now - status.last_fetch_ms > self._reported[node_id].at_ms:
                del self._reported[node_id]
        for node_id, reported in list(self._reported.items()):
            if self._broker_epoch(node_id) not in (None, reported.broker_epoch):
                del self._reported[node_id]


def _checked(node_id: int, end: pb.NodeEnd) -> pb.NodeEnd:
    return pb.NodeEnd(
        node_id=node_id,
        at_ms=end.at_ms,
        exit_status=end.exit_status,
        cause=_line(end.cause),
        next=_line(end.next),
        directories=[
            pb.Directory(path=_line(each.path), free_bytes=each.free_bytes, total_bytes=each.total_bytes)
            for each in end.directories[:END_DIRECTORIES_MAX]
        ],
    )


def _line(text: str) -> str:
    """Return another node's text in the form that is stored: one short line without control characters."""
    return "".join(each if each.isprintable() else " " for each in text[:END_TEXT_MAX])
