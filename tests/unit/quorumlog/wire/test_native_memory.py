"""The reader of records when memory runs out: every failed allocation of a call is a MemoryError."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.unit.quorumlog.wire.framing import record

NAME = b"\x28" + b"n" * 20
VALUE = b"\x28" + b"v" * 20
LONG = b"\x50" + b"k" * 40
BODIES = [
    pytest.param(record(0, key=LONG, value=LONG, headers=b"\x04" + 2 * (NAME + VALUE)), id="a valid record"),
    pytest.param(record(0, key=LONG, value=b"\x7ev"), id="a malformed value"),
    pytest.param(record(0, key=LONG, headers=b"\x04" + NAME + VALUE + b"\x28n"), id="a malformed header"),
    pytest.param(record(0, key=LONG, headers=b"\x02" + NAME + VALUE, rest=b"xx"), id="bytes after the headers"),
]
PROGRAM = """
import sys
from _testcapi import remove_mem_hooks, set_nomemory
from quorumlog.wire._record_scan import decode

body = bytes.fromhex(sys.argv[1])
wants = decode(body, 1, "t", 0, 10_000, 0, 10**12, None, 0, 2**62)
failures = 0
for number in range(100):  # the allocation that fails; the last ones are never reached
    set_nomemory(number, number + 1)
    try:
        found = decode(body, 1, "t", 0, 10_000, 0, 10**12, None, 0, 2**62)
    except MemoryError:
        found = None
    finally:
        remove_mem_hooks()
    assert found in (None, wants), (number, found)
    failures += found is None
assert 0 < failures < 100, failures
"""
"""Runs in a process of its own, because failing allocations would affect every thread of the tests."""


@pytest.mark.parametrize("body", BODIES)
def test_a_failed_allocation_raises_a_memory_error(body: bytes) -> None:
    pytest.importorskip("_testcapi", reason="this Python cannot make allocations fail")
    subprocess.run([sys.executable, "-c", PROGRAM, body.hex()], check=True)
