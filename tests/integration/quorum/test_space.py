"""A file system that hangs in `statvfs` blocks no scrape, no DescribeNode and no shutdown."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from quorumlog.runtime import space
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.last_end import FAILED, End
from quorumlog.runtime.metrics import Metrics
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import node_pb2
from quorumlog_server.control_plane import make_control_plane
from quorumlog_server.farewell import Farewell
from tests.integration.quorum.test_control_plane import configure, free_ports, ready

AT_MS = 5_000


async def test_a_hanging_mount_blocks_no_request_for_its_free_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, hangs = threading.Event(), threading.Event()
    statvfs = os.statvfs
    asked = 0

    def first_answers(path: Any) -> Any:
        nonlocal asked
        assert threading.current_thread() is not threading.main_thread(), "it would block the event loop"
        asked += 1
        if asked > 1:
            hangs.set()
            released.wait()
        return statvfs(path)

    monkeypatch.setattr(space, "SAMPLE_S", 0.01)
    (port,) = free_ports(1)
    config = configure(tmp_path, 1, port, standalone=True)
    plane = make_control_plane(config, Sources.real())
    farewell = Farewell(config, Sources.real())
    farewell.plane = plane
    metrics = Metrics()
    monkeypatch.setattr(os, "statvfs", first_answers)
    try:
        async with plane:
            plane.register_metrics(metrics)
            await ready(plane)
            while not hangs.is_set():
                await plane.node.confirm_read(1_000)
            (path,) = plane.disk_paths
            for _ in range(3):
                page = metrics.render()[0].decode()
                reply: Any = await plane.node_service.handle(rpcs.DESCRIBE_NODE, node_pb2.DescribeNodeRequest())
                assert [directory.path for directory in reply.directories] == [path]
                assert reply.directories[0].total_bytes > 0
                for name in ("free_bytes", "total_bytes", "space_age_seconds"):
                    assert f'quorumlog_directory_{name}{{directory="{path}"}}' in page
        message = farewell._message(End(FAILED, AT_MS, 7, "disk full", ""), plane.space.latest())
        assert [directory.path for directory in message.directories] == [path]
        await farewell.end(7, OSError("disk full"))
        assert asked == 2
    finally:
        released.set()
