"""The data source on a standalone cluster with two workers, and through Spark Connect, all on loopback."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.spark.cluster_job import ROWS
from tests.unit.quorumlog.client.fake_cluster import ThreadedBrokers

pytestmark = pytest.mark.quiet  # Spark alone keeps two cores busy

ROOT = Path(__file__).parents[2]
CONNECT_PACKAGES = ROOT / ".dev" / "connect"
START_TIMEOUT_S = 120.0
JOB_TIMEOUT_S = 400.0
CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"


def environment(*folders: Path) -> dict[str, str]:
    path = os.pathsep.join(str(one) for one in (ROOT, *folders))
    added = {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return os.environ | added | {"SPARK_NO_DAEMONIZE": "1"}


def spark_home(folder: Path) -> Path:
    """Return a home of Spark with its programs, below which the workers of a cluster have their files."""
    home = folder / "spark"
    home.mkdir()
    for name in ("bin", "jars"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    return home


@contextmanager
def server(folder: Path, ready: str, command: list[str]) -> Iterator[str]:
    """Run a program of Spark; yield the part of its output that the group of `ready` matches."""
    spark = Path(pyspark.__file__).parent
    log = folder / f"{command[0].rpartition('.')[2]}-{len(list(folder.iterdir()))}.log"
    program = [str(spark / "bin" / command[0]), *command[1:]] if command[0] == "spark-submit" else command
    if program is command:
        program = [str(spark / "bin" / "spark-class"), *command]
    with log.open("wb") as output:
        process = subprocess.Popen(program, stdout=output, stderr=subprocess.STDOUT, env=environment(), cwd=folder)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (found := re.search(ready, log.read_text())):
            assert process.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(0.1)  # polls, because the other process sends no event
        yield found[1]
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run_job(url: str, cluster: ThreadedBrokers, folder: Path, *packages: Path) -> dict[str, Any]:
    cluster.run(cluster.brokers.create("t", [1, 2, 1, 2]))
    command = [sys.executable, "-m", "tests.spark.cluster_job", url, cluster.brokers.bootstrap, str(folder / "data")]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(*packages) | {"SPARK_HOME": str(spark_home(folder))},
        capture_output=True,
        text=True,
        timeout=JOB_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def check_lags(lags: list[int]) -> None:
    """The first batch is empty, and the second one has about half of the rows."""
    assert lags[0] == ROWS
    assert abs(lags[1] - ROWS // 2) < 10
    assert lags[-1] == 0


EXPECTED = {"count": ROWS, "sum": ROWS * (ROWS - 1) // 2, "streamed": ROWS}


@pytest.mark.timeout(700)
def test_a_standalone_cluster_runs_the_job_on_two_executors(cluster: ThreadedBrokers, tmp_path: Path) -> None:
    """Spark's standalone master and its workers run inside the driver's JVM, and the two executors in their own."""
    found = run_job("local-cluster[2,1,600]", cluster, tmp_path)
    refused = found.pop("refused")
    check_lags(found.pop("lags"))
    assert found == EXPECTED | {"executors": 2}
    assert "option subscibe is unknown; did you mean subscribe?" in refused


@pytest.mark.timeout(700)
@pytest.mark.skipif(
    not CONNECT_PACKAGES.is_dir(), reason="CONTRIBUTING.md explains how to install the client of Spark Connect"
)
def test_spark_connect_runs_the_job(cluster: ThreadedBrokers, tmp_path: Path) -> None:
    settings = {
        "spark.connect.grpc.binding.port": "0",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    command = ["spark-submit", "--class", CONNECT, "--master", "local[2]"]
    command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    ready = r"Spark Connect server started at: \S*?:(\d+)"
    with server(tmp_path, ready, [*command, "spark-internal"]) as port:
        found = run_job(f"sc://127.0.0.1:{port}", cluster, tmp_path, CONNECT_PACKAGES)
    refused = found.pop("refused")
    check_lags(found.pop("lags"))
    assert found == EXPECTED | {"executors": 1}
    assert "option subscibe is unknown; did you mean subscribe?" in refused
