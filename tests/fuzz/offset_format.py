"""`python -m tests.fuzz.offset_format [--seconds S] [--seed N]`: keys and values of committed offsets.

The command mutates them under sanitizers.  At the first bad access, it prints the sanitizer's report and ends with
status 1.  The tests run the harness with few rounds.
"""

from __future__ import annotations

import sys
from enum import IntEnum

from tests.fuzz.native import main


class Outcome(IntEnum):
    """Whether a key or value was recognised as that of a plain offset."""

    KEY_OTHER = 0
    KEY_PLAIN = 1
    VALUE_OTHER = 2
    VALUE_PLAIN = 3


if __name__ == "__main__":
    sys.exit(main("offset_format", Outcome, str(__doc__)))
