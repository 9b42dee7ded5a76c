"""The data directories of one broker are opened together."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.server.process import make_disks
from quorumlog.errors import StoreRefusedError
from quorumlog.runtime.addresses import DEFAULT_LISTENER, Address
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.config import BROKER, KafkaListener, NodeConfig
from quorumlog.words import uuid_text

SOURCES = Sources.real()


def config(*roots: Path) -> NodeConfig:
    listener = KafkaListener(DEFAULT_LISTENER, Address("127.0.0.1", 0))
    return NodeConfig(BROKER, 1, tuple(map(str, roots)), standalone=True, kafka_listeners=(listener,))


def test_a_copied_directory_is_refused_and_both_locks_are_released(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    [made] = make_disks(config(first), SOURCES)
    made.close()
    shutil.copytree(first, second)
    text = f"b and .*a are both directory {uuid_text(made.directory_id)}: one is a copy of the other"
    with pytest.raises(StoreRefusedError, match=text):
        make_disks(config(first, second), SOURCES)
    shutil.rmtree(second)
    disks = make_disks(config(first, second), SOURCES)
    assert len({disk.directory_id for disk in disks}) == 2
    for disk in disks:
        disk.close()


def test_a_new_directory_beside_others_is_reported(tmp_path: Path) -> None:
    """The directory may be the mount point of a disk that is not mounted."""
    first, second = tmp_path / "a", tmp_path / "b"
    reported = []
    for roots in ((first,), (first, second), (first, second)):
        with capture_logs() as lines:
            for disk in make_disks(config(*roots), SOURCES):
                disk.close()
        reported.append([line["directory"] for line in lines if line["event"].startswith("data directory is new")])
    assert reported == [[], [str(second)], []]


def test_all_directories_together_leave_descriptors_for_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections may use half of the descriptors, and those of the control plane an eighth."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (400, 400))
    disks = make_disks(config(*(tmp_path / name for name in "abcd")), SOURCES)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(100):
        for disk in disks:
            disk.open(str(number), create=True)
    opened = len(os.listdir("/proc/self/fd")) - before
    for disk in disks:
        disk.close()
    assert opened == 100
