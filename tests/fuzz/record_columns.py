"""`python -m tests.fuzz.record_columns [--seconds S] [--seed N]`: records and columns, fuzzed under sanitizers.

Mutated records are read into columns, the columns are written as records, and the rows are assigned to partitions.
Ends with 1 and the sanitizer's report at the first bad access.  The tests run a short round of it.
"""

from __future__ import annotations

import sys
from enum import IntEnum

from tests.fuzz.native import main


class Outcome(IntEnum):
    """The outcomes of the harness: the same numbers as its `enum outcome`."""

    READ = 0
    MALFORMED = 1
    NO_ROOM = 2
    WRITTEN = 3
    OUT_FULL = 4
    TOO_SMALL = 5
    OUTSIDE = 6
    ASSIGNED = 7
    UNKNOWN_PARTITION = 8


if __name__ == "__main__":
    sys.exit(main("record_columns", Outcome, str(__doc__)))
