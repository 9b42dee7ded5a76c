"""Records why a process ends: in its own directories and at other nodes.

A node that has ended answers no questions.  It therefore writes the reason into its directories (`LastEnd`), where its
next start finds it.  It also sends the reason to the other nodes that it knows.  They keep it in memory for `kctl
doctor`.  Both are attempts: neither may make a stop fail or delay it for long.  The other nodes drop the reason once
the node runs again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from quorumlog.client.controller import ControllerClient
from quorumlog.errors import ConfigError
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.config import NodeConfig
from quorumlog.runtime.last_end import FAILED, RUNNING, End, LastEnd
from quorumlog.runtime.logging import get_logger
from quorumlog.runtime.run import in_words
from quorumlog.runtime.space import Space
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import node_pb2 as pb
from quorumlog.words import rfc3339
from quorumlog_server.control_plane import ControlPlane, listed_peers

REPORT_S = 1.0
PEERS_MAX = 16
"""Maximum number of nodes to which an end is reported, voters first."""

logger = get_logger("run")


class Farewell:
    """Records the end of one process.

    plane: its latest control plane; the caller sets it.  Before that, an end is reported to the addresses in the
        configuration: the quorum directory may be damaged.
    """

    def __init__(self, config: NodeConfig, sources: Sources) -> None:
        self._config = config
        self._note = LastEnd(config.data_dirs, sources.wall_ms)
        self.plane: ControlPlane | None = None

    def begin(self) -> None:
        """Log the end of the previous process, and record that this process runs.  The directories must be locked."""
        if not self._note.begin():
            return  # this process has already begun: its quorum was rebuilt while it ran
        before = self._note.before
        if before is None:
            return
        if before.state == FAILED:
            logger.warning(
                "the previous process failed",
                at=rfc3339(before.at_ms),
                exit_status=before.exit_status,
                cause=before.cause,
                next=before.next_step,
            )
        elif before.state == RUNNING:
            logger.warning(
                "the previous process recorded no cause: it was killed, or the machine failed",
                started_at=rfc3339(before.at_ms),
            )

    async def ready(self) -> None:
        """Report to the other nodes that this process serves, so that they drop the end of an earlier process."""
        if self._note.before is not None and self._note.before.state in (FAILED, RUNNING):
            await self._report(None)

    async def end(self, status: int, cause: BaseException | None) -> None:
        """Record and report the end.

        A refused configuration is not reported, because the error is on the terminal from which this process was
        started.  It is recorded only after `begin`: before that, the directories may belong to another process.
        """
        is_refused = isinstance(cause, ConfigError)
        if is_refused and not self._note.has_begun:
            return
        end = self._note.ended(status, *(("", "") if cause is None else in_words(cause)))
        noting = asyncio.ensure_future(self._note.write(end))
        if status and not is_refused:
            await self._report(end)
        await noting

    async def _report(self, end: End | None) -> None:
        plane = self.plane
        peers = (listed_peers(self._config) if plane is None else plane.peers())[:PEERS_MAX]
        if not peers:
            return
        request = pb.ReportEndRequest(node_id=self._config.node_id)
        request.header.cluster_id = (self._config.cluster_id if plane is None else plane.cluster_id) or ""
        if end is not None:
            request.end.CopyFrom(self._message(end, () if plane is None else plane.space.latest()))
        async with ControllerClient(peers) as client:
            asked = (client.ask_node(peer, rpcs.REPORT_END, request, REPORT_S) for peer in peers)
            for peer, outcome in zip(peers, await asyncio.gather(*asked, return_exceptions=True), strict=True):
                if isinstance(outcome, BaseException):
                    logger.debug("not reported", peer=peer, cause=str(outcome))

    def _message(self, end: End, spaces: Sequence[Space]) -> pb.NodeEnd:
        return pb.NodeEnd(
            node_id=self._config.node_id,
            at_ms=end.at_ms,
            exit_status=end.exit_status,
            cause=end.cause,
            next=end.next_step,
            directories=[pb.Directory(**space._asdict()) for space in spaces],
        )
