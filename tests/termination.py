"""Lets a command that has started servers stop them when it gets SIGTERM, as it does after Ctrl-C."""

from __future__ import annotations

import signal
import sys
from types import FrameType


def end_in_order_on_sigterm() -> None:
    """Let SIGTERM raise SystemExit in the main thread, so that its context managers and `finally` blocks run."""
    signal.signal(signal.SIGTERM, _end)


def _end(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal does not interrupt the clean-up
    sys.exit(128 + number)
