"""Runs the matrix; see the package."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.clients import page
from tests.clients.catalog import PROGRAMS
from tests.clients.outcomes import Outcome, Skipped, Word
from tests.clients.peers import Peer, kafka_cluster, quorumlog_cluster, served_apis
from tests.clients.records import Harness
from tests.clients.rows import Run, perform, rows
from tests.clients.tools import TOOLS, perform_tool
from tests.termination import end_in_order_on_sigterm

PEERS = {"quorumlog": quorumlog_cluster, "kafka": kafka_cluster}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.clients",
        description="Run unmodified Kafka clients and tools against a fresh cluster.",
        epilog="Exit status: 0 if each failure has a written reason, 1 otherwise, 2 if the cluster cannot be started.",
    )
    parser.add_argument("--peer", choices=sorted(PEERS), default="quorumlog", help="the brokers (default quorumlog)")
    parser.add_argument("--program", default="", metavar="TEXT", help="only programs with this in their name")
    parser.add_argument("--row", default="", metavar="TEXT", help="only rows with this in their name")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result to this file")
    parser.add_argument("--update", action="store_true", help="store the results, and write docs/clients.md")
    parser.add_argument("--page", action="store_true", help="only write docs/clients.md, from the stored results")
    arguments = parser.parse_args()
    end_in_order_on_sigterm()
    if arguments.page:
        page.write()
        return 0
    outcomes = []
    try:
        with PEERS[arguments.peer]() as peer:
            for outcome in run_all(peer, arguments.program, arguments.row):
                outcomes.append(outcome)
                print(line(outcome), flush=True)
    except Skipped as reason:
        print(f"{arguments.peer} cannot be started: {reason}", file=sys.stderr)
        return 2
    found = Counter(outcome.word for outcome in outcomes)
    print(", ".join(f"{found[word]} {word}" for word in Word))
    result = page.as_result(outcomes)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.update:
        names = (*(program.name for program in PROGRAMS), *(tool.name for tool in TOOLS))
        page.store(arguments.peer, result, names)
        page.write()
    failed = [each for each in outcomes if each.word is Word.FAILED and page.reason(each) is None]
    return 1 if failed else 0


def run_all(peer: Peer, program_text: str, row_text: str) -> Iterator[Outcome]:
    served = served_apis(peer.bootstrap)
    harness = Harness(peer.bootstrap, len(peer.brokers))
    for program in PROGRAMS:
        wanted = [row for row in rows() if row_text in row.name and program.has(row.name)]
        if program_text not in program.name or not wanted:
            continue
        try:
            command = program.prepare()
        except Skipped as reason:
            yield from (row.not_run(program.name, str(reason)) for row in wanted)
            continue
        run = Run(program.name, command, harness, len(peer.brokers), served)
        for row in wanted:
            yield perform(run, row)
    for tool in TOOLS:
        if program_text in tool.name and (not row_text or row_text in tool.row):
            yield perform_tool(tool, peer, harness, served)


def line(outcome: Outcome) -> str:
    name = f"{outcome.program:22} {outcome.row:24} {outcome.word:12} {outcome.seconds:5.1f} s"
    return f"{name}  {outcome.detail}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
