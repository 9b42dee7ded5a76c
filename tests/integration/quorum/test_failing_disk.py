"""Real servers whose disk fails one sync: they end with status 7 and write nothing more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from quorumlog.kctl.dev_cluster import environment
from tests.failing_syncs import contents

ROOT = Path(__file__).parents[3]
PROGRAM = """
import os, shutil, sys
from pathlib import Path
from tests.failing_syncs import FailingDisk, failing_syncs
from {module} import run
from quorumlog.runtime import server_cli

folder = Path({folder!r})
disk = FailingDisk(folder, fails={file!r}, spared=4)

def sync(path):
    fails = disk.sync(path)
    if fails:
        shutil.copytree(folder, {left!r})
    return fails

with failing_syncs(sync):
    status = run(sys.argv[1:], os.environ)
server_cli.leave(status)
"""
ANYWHERE = ("--http", "off", "--listen", "127.0.0.1:0")
NODE, BROKER = "quorumlog_server.quorum_node", "broker.cli"
SERVERS = {NODE: ("--node-id", "1", *ANYWHERE), BROKER: ("--control-listen", "127.0.0.1:0", *ANYWHERE)}


@pytest.mark.parametrize(
    ("module", "file"), [(NODE, "quorum.db-wal"), (BROKER, "quorum.db-wal"), (BROKER, "facts.db-wal")]
)
def test_a_server_ends_without_a_write_after_a_failed_sync(tmp_path: Path, module: str, file: str) -> None:
    folder = tmp_path / "data" if file.startswith("facts") else tmp_path / "data" / "quorum"
    program = PROGRAM.format(module=module, folder=str(folder), left=str(tmp_path / "left"), file=file)
    finished = subprocess.run(
        [sys.executable, "-c", program, "run", "--standalone", "--data-dir", str(tmp_path / "data"), *SERVERS[module]],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 7, finished.stderr
    database = file.removesuffix("-wal")
    left, now = contents(tmp_path / "left"), contents(folder)
    assert {name: now.get(name) for name in (database, file)} == {name: left[name] for name in (database, file)}
    quorum = contents(tmp_path / "data" / "quorum")
    assert quorum["lock"].split()[1:] == [b"open"], "the next start looks for the write-ahead log"
    assert quorum["quorum.db-wal"]
