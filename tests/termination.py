"""SIGTERM as an orderly end: a command stops the servers that it started, as after Ctrl-C."""

from __future__ import annotations

import signal
import sys
from types import FrameType


def end_in_order_on_sigterm() -> None:
    """Let SIGTERM raise SystemExit in the main thread, so that its context managers and `finally` blocks run.

    Further SIGTERMs do not interrupt them.  A clean-up that hangs must be ended with SIGINT or SIGKILL.
    """
    signal.signal(signal.SIGTERM, _end)


def _end(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, _ignore)  # not SIG_IGN, which programs that the clean-up starts would inherit
    sys.exit(128 + number)


def _ignore(number: int, frame: FrameType | None) -> None:
    pass
