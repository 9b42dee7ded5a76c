"""`python -m tests.fuzz.key_offsets [--seconds S] [--seed N]`: the compiled part of compaction, under sanitizers.

Mutated records are noted in a map of keys, selected, and get other timestamps.  Ends with 1 and the sanitizer's report
at the first bad access.  The tests run a short round of it.
"""

from __future__ import annotations

import sys
from enum import IntEnum

from tests.fuzz.native import main


class Outcome(IntEnum):
    """The outcomes of the harness: the same numbers as its `enum outcome`."""

    NOTED = 0
    RECORD_LENGTH = 1
    CUT_OFF = 2
    OFFSET_DELTA = 3
    BATCH_REST = 4
    FULL = 5
    ALL_SURVIVE = 6
    SOME_SURVIVE = 7
    NONE_SURVIVE = 8
    SHIFTED = 9
    NOT_SHIFTED = 10


if __name__ == "__main__":
    sys.exit(main("key_offsets", Outcome, str(__doc__)))
