"""`python -m tests.fuzz.record_scan [--seconds S] [--seed N]`: the compiled check of records, fuzzed under sanitizers.

Ends with 1 and the sanitizer's report at the first bad access.  The tests run a short round of it.
"""

from __future__ import annotations

import sys

from quorumlog.wire.record_framing import Problem
from tests.fuzz.native import main

if __name__ == "__main__":
    sys.exit(main("record_scan", Problem, str(__doc__)))
