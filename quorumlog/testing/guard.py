"""Run a program until the process that requested it ends, then delete the program's folder.

`python -m quorumlog.testing.guard FOLDER COMMAND…` prints the program's pid before all output of the program.  When
standard input ends, or the parent has ended (by kill -9 as well), the guard stops the program.  It deletes the folder
once the program has ended, for whatever reason.  The end of standard input shows on every system that the parent has
ended.  The guard also watches the parent's id, because a fork of the parent may keep the pipe open.

If the guard itself is killed, Linux stops the program.  The folder then remains until the next session deletes it.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys

from quorumlog.testing import STOP_TIMEOUT_S

KILL_TIMEOUT_S = 5.0
"""How long the guard waits for a killed program, which ends only when its disk answers."""
LOOK_S = 0.2
_PR_SET_PDEATHSIG = 1


def main() -> int:
    parent = os.getppid()
    folder, command = sys.argv[1], sys.argv[2:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # the parent decides when this ends
    guard, libc = os.getpid(), ctypes.CDLL(None)

    def prepare() -> None:
        """Prepare the process that becomes the program."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if hasattr(libc, "prctl"):
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # sent when the guard ends
        if os.getppid() != guard:  # it was killed before that call
            os._exit(1)
        os.write(1, b"%d\n" % os.getpid())  # the guard itself could print it too late

    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=prepare)
        os.close(1)  # otherwise the reader of the program's output would wait for this process
        while process.poll() is None and not _is_asked_to_stop(parent):
            continue
        return _stop(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_asked_to_stop(parent: int) -> bool:
    """Return whether the program must stop; wait for up to `LOOK_S`."""
    ready, _, _ = select.select([0], [], [], LOOK_S)
    return os.getppid() != parent or (bool(ready) and not os.read(0, 1))


def _stop(process: subprocess.Popen[bytes]) -> int:
    """Stop the program within `STOP_TIMEOUT_S` and `KILL_TIMEOUT_S`; return its status, or 1 if it does not end."""
    process.terminate()
    try:
        return process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
    try:
        return process.wait(KILL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return 1


if __name__ == "__main__":
    sys.exit(main())
