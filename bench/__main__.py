"""`python -m bench [--tiny] [NAME…]`: run the benches one after another; each prints its parameters and figures.

The name `growth` stands for all benches `growth_…`.

JSON goes to standard output, and with the real size also to `bench/results/NAME.json`.  Some benches add a plot beside
that file, if matplotlib is installed (the `bench` extra).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import (
    broker_failover,
    broker_kill,
    broker_rates,
    client_rates,
    codec,
    compaction,
    comparison,
    controller_failover,
    groups,
    memory,
    performance_page,
    quorum_commit,
    record_check,
    snapshot,
    spark_connectors,
    spark_rates,
    stability,
    startup,
    transactions,
    workloads,
)
from bench.growth import brokers, connections, cores, metadata, partitions, record_sizes
from bench.plots import Panel, draw
from tests.termination import end_in_order_on_sigterm


class Bench(NamedTuple):
    """run: returns the figures; its argument is `--tiny`.

    present: prints them as a table, and returns the data to plot.
    """

    run: Callable[[bool], dict[str, Any]]
    present: Callable[[dict[str, Any]], list[Panel]] | None = None


BENCHES = {
    "broker_failover": Bench(broker_failover.run, broker_failover.present),
    "broker_kill": Bench(broker_kill.run),
    "broker_rates": Bench(broker_rates.run),
    "client_rates": Bench(client_rates.run),
    "codec": Bench(codec.run),
    "compaction": Bench(compaction.run, compaction.present),
    "comparison": Bench(comparison.run, comparison.present),
    "controller_failover": Bench(controller_failover.run, controller_failover.present),
    "groups": Bench(groups.run, groups.present),
    "growth_brokers": Bench(brokers.run, brokers.present),
    "growth_connections": Bench(connections.run, connections.present),
    "growth_cores": Bench(cores.run, cores.present),
    "growth_metadata": Bench(metadata.run, metadata.present),
    "growth_partitions": Bench(partitions.run, partitions.present),
    "growth_record_sizes": Bench(record_sizes.run, record_sizes.present),
    "memory": Bench(memory.run),
    "quorum_commit": Bench(quorum_commit.run, quorum_commit.present),
    "record_check": Bench(record_check.run),
    "snapshot": Bench(snapshot.run, snapshot.present),
    "spark_connectors": Bench(spark_connectors.run, spark_connectors.present),
    "spark_rates": Bench(spark_rates.run, spark_rates.present),
    "stability": Bench(stability.run, stability.present),
    "startup": Bench(startup.run),
    "transactions": Bench(transactions.run, transactions.present),
    "workloads": Bench(workloads.run, workloads.present),
}
GROWTH = "growth"
RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    return {"cores": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()}


def expanded(names: Sequence[str]) -> list[str]:
    """Return the benches of these names, each one once; GROWTH stands for several, and no name for all benches."""
    every = [name for name in BENCHES if name.startswith(f"{GROWTH}_")]
    found = [each for name in names or BENCHES for each in (every if name == GROWTH else [name])]
    return list(dict.fromkeys(found))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="seconds instead of minutes; writes no result file")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"one of {', '.join((*BENCHES, GROWTH))}; all by default"
    )
    options = parser.parse_args()
    end_in_order_on_sigterm()
    names = expanded(options.names)
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        parser.error(f"no such bench: {', '.join(unknown)}")
    for name in names:
        print(f"== {name}", file=sys.stderr)
        bench = BENCHES[name]
        result = {"bench": name, "machine": machine(), **bench.run(options.tiny)}
        text = json.dumps(result, indent=2)
        print(text)
        if not options.tiny:
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / f"{name}.json").write_text(text + "\n")
            if name == "comparison":
                performance_page.write()
        panels = bench.present(result) if bench.present is not None else []
        if panels and not options.tiny and not draw(RESULTS / f"{name}.png", panels):
            print("no plot: matplotlib is not installed (pip install 'quorumlog[bench]')", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
