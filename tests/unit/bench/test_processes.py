"""Processes of benches: measured with their children, suspended together, and limited to cores with all threads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.processes import (
    Servers,
    family_processor_s,
    family_resident_mib,
    limit_cores,
    processor_s,
    resident_mib,
)

WORK_S = 0.3
_WORK = f"import time\nwhile time.process_time() < {WORK_S}: pass\nprint(flush=True)\ninput()"

PROGRAM = """
import threading, sys
for _ in range(3):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Run a program with four threads."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_servers_are_suspended_and_continued(process: subprocess.Popen[bytes]) -> None:
    servers = Servers("x", (process.pid,))
    servers.pause()
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    assert _state(process.pid) == "T"
    servers.resume()
    os.waitid(os.P_PID, process.pid, os.WCONTINUED)
    assert _state(process.pid) != "T"


def test_servers_that_have_ended_do_not_prevent_the_others_from_being_continued(
    process: subprocess.Popen[bytes],
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    servers = Servers("x", (ended.pid, process.pid))
    servers.pause()
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    servers.resume()
    os.waitid(os.P_PID, process.pid, os.WCONTINUED)


def test_all_threads_are_limited_to_the_cores(process: subprocess.Popen[bytes]) -> None:
    cores = sorted(os.sched_getaffinity(0))
    limit_cores([process.pid], {cores[0]})
    threads = os.listdir(f"/proc/{process.pid}/task")
    assert len(threads) == 4
    assert all(os.sched_getaffinity(int(thread)) == {cores[0]} for thread in threads)
    limit_cores([process.pid], set(cores))
    assert all(os.sched_getaffinity(int(thread)) == set(cores) for thread in threads)


def test_a_family_has_the_time_and_memory_of_a_child_while_it_runs_and_its_time_afterwards() -> None:
    pid = os.getpid()
    before = family_processor_s(pid) - processor_s(pid)
    with subprocess.Popen([sys.executable, "-c", _WORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        beside = family_processor_s(pid) - processor_s(pid)
        memory = family_resident_mib(pid) - resident_mib(pid)
        child.communicate(b"\n")
    after = family_processor_s(pid) - processor_s(pid)
    assert beside - before > WORK_S / 2
    assert memory > 1
    assert after - before > WORK_S / 2
