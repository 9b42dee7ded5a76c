from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from quorumlog.kctl import dev_cluster
from tests.integration import warm_nodes


class Standalone(NamedTuple):
    """control: its control address."""

    bootstrap: str
    control: str
    pid: int

    @property
    def port(self) -> int:
        return int(self.bootstrap.rpartition(":")[2])


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A broker process, one for all tests of a module, which must outlive them and stop on request."""
    folder = tmp_path_factory.mktemp("standalone")
    command = [sys.executable, "-P", "-m", "broker.cli", "run", "--standalone", "--data-dir", str(folder / "data")]
    command += ["--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--http", "off"]
    with (folder / "log").open("w") as log:
        process = warm_nodes.popen(command, dev_cluster.environment(), log)
    assert process.stdout is not None
    try:
        ready = process.stdout.readline()
        found = re.search(r"kafka=(\S+) control=(\S+)", ready)
        assert found, f"not ready: {ready!r}\n{(folder / 'log').read_text()}"
        yield Standalone(found[1], found[2], process.pid)
        assert process.poll() is None, (folder / "log").read_text()
    finally:
        process.terminate()
        assert process.wait(30) == 0, (folder / "log").read_text()
        process.stdout.close()
