"""`python -m tests.fuzz.offset_format [--seconds S] [--seed N]`: keys and values of committed offsets.

They are mutated under sanitizers.  Ends with 1 and the sanitizer's report at the first bad access.  The tests run a
short round of it.
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
