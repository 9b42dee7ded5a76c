"""`python -m bench [--tiny] [NAME…]`: run the benches one after another; each prints its parameters and figures.

JSON goes to `bench/results/NAME.json` (real size only), a table to standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import broker_rates, codec, memory, quorum_commit, startup

BENCHES: dict[str, Callable[[bool], dict[str, Any]]] = {
    "broker_rates": broker_rates.run,
    "codec": codec.run,
    "memory": memory.run,
    "quorum_commit": quorum_commit.run,
    "startup": startup.run,
}
RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    return {"cores": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="seconds instead of minutes; writes no result file")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHES)}; all by default")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in BENCHES]
    if unknown:
        parser.error(f"no such bench: {', '.join(unknown)}")
    for name in options.names or BENCHES:
        print(f"== {name}", file=sys.stderr)
        result = {"bench": name, "machine": machine(), **BENCHES[name](options.tiny)}
        text = json.dumps(result, indent=2)
        print(text)
        if not options.tiny:
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / f"{name}.json").write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
