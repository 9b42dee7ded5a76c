"""Runs `quorumlog_server.dump` on a quorum directory or a snapshot, and parses its output.

Only the servers' packages know the formats on disk, and kctl must not import these packages.  So kctl runs their reader
as a process, which writes messages of node.proto.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import sys
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from quorumlog.errors import ClusterError
from quorumlog.kctl.dev_cluster import environment
from quorumlog.wire.errors import ApiError
from quorumlog.wire.v1 import node_pb2

STOP_S = 5.0
"""How long the reader may take to end; a disk that hangs may delay it."""
KILL_S = 1.0
"""How long the reader may then take to end after SIGKILL.  If it takes longer, kctl ends without waiting for it."""
_FRAME = struct.Struct(">cI")
_MESSAGES: dict[bytes, tuple[str, Any]] = {
    b"B": ("batch", node_pb2.MetadataBatch),
    b"N": ("names", node_pb2.DescribeMetadataReply),
    b"S": ("state", node_pb2.DescribeMetadataReply),
}


class Found(NamedTuple):
    """One item of the reader's output.

    kind: `about`, with a sentence as `content`; `names`, `batch` or `state`, with a message as `content`.
    """

    kind: str
    content: Any


class Dump:
    """Runs the reader within `async with`; `async for` yields its output.

    Iteration raises ClusterError if the reader reports an error, or ends early.
    """

    def __init__(self, path: str, topics: Sequence[str]) -> None:
        self._command = [sys.executable, "-P", "-m", "quorumlog_server.dump", path, *topics]
        self._process: asyncio.subprocess.Process

    async def __aenter__(self) -> Dump:
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            env=environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # kctl handles Ctrl-C and ends the reader
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                self._process.terminate()  # on SIGTERM, it deletes its copy of the log
        try:
            async with asyncio.timeout(STOP_S):
                await self._process.communicate()  # reads the rest of the output, so that the pipe is closed
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()  # safe: it does not write to the directory; only its copy of the log remains
            with contextlib.suppress(TimeoutError):  # a disk that hangs delays even SIGKILL
                async with asyncio.timeout(KILL_S):
                    await self._process.communicate()

    async def __aiter__(self) -> AsyncIterator[Found]:
        output = self._process.stdout
        assert output is not None, "it was started with a pipe"
        while True:
            try:
                kind, length = _FRAME.unpack(await output.readexactly(_FRAME.size))
                content = await output.readexactly(length)
            except asyncio.IncompleteReadError as error:
                if error.partial or await self._process.wait() != 0:
                    raise ClusterError(
                        ApiError.FAILED, "the reader ended before its output was complete", "see the messages above"
                    ) from error
                return
            if kind == b"E":
                said = json.loads(content)
                raise ClusterError(said["error"], said["message"], said["next"])
            if kind == b"I":
                yield Found("about", _about(json.loads(content)))
                continue
            word, message = _MESSAGES[kind]
            yield Found(word, message.FromString(content))


def _about(said: dict[str, Any]) -> str:
    cluster = f"cluster {said['cluster_id']}" if said["cluster_id"] else "no cluster yet"
    if said["kind"] == "snapshot":
        return (
            f"{said['path']}: {cluster}, generation {said['generation']}, epoch {said['epoch']}, "
            f"voters {', '.join(said['voters'])}"
        )
    snapshots = f"; snapshots: {', '.join(said['snapshots'])}" if said["snapshots"] else ""
    return (
        f"{said['path']}: node {said['node_id']}, {cluster}, epoch {said['epoch']}, the log contains offsets "
        f"{said['begins']} to {said['end']}; its last records may not be committed{snapshots}"
    )
