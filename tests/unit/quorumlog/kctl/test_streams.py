"""Standard streams in non-blocking mode.  `tests/integration/cli/test_streams.py` shows whole commands."""

from __future__ import annotations

import select
import subprocess
import sys

LINES = 5_000
PROGRAM = f"""
import os, sys
from quorumlog.kctl import streams
from quorumlog.kctl.output import Output
os.set_blocking(1, False)
streams.prepare()
print("ready", file=sys.stderr, flush=True)
for number in range({LINES}):
    Output("json").line({{"number": number, "padding": "x" * 100}})
print("done", file=sys.stderr, flush=True)
"""


def test_no_output_is_lost_if_another_program_left_the_pipe_non_blocking() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stderr.readline() == b"ready\n"
        select.select([process.stderr], [], [], 1)  # ends early if the full pipe does not block the program
        assert len(process.stdout.read().splitlines()) == LINES
        assert process.wait() == 0


def test_standard_error_is_made_blocking_as_well() -> None:
    """Otherwise the error of a command may be lost."""
    program = "import os; from quorumlog.kctl import streams; os.set_blocking(2, False); streams.prepare(); "
    program += "print(os.get_blocking(2))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"True\n"
