"""Results as files, and the page docs/clients.md made from them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from tests.clients.outcomes import Outcome, Word
from tests.clients.reasons import reason_of
from tests.clients.running import ROOT

RESULTS: Final = Path(__file__).resolve().parent / "results"
PAGE: Final = ROOT / "docs" / "clients.md"
OURS, KAFKA = "quorumlog", "kafka"
WIDTH: Final = 120
CELLS: Final = {
    Word.PASSED: "yes",
    Word.FAILED: "**no**",
    Word.NOT_SERVED: "not served",
    Word.NOT_OFFERED: "-",
    Word.SKIPPED: "not run",
}
INTRODUCTION: Final = """\
# Clients and tools

These clients and tools run unmodified against a cluster of 3 voters and 3 brokers. This command starts a fresh cluster
and runs them:

```
python -m tests.clients [--peer kafka] [--program TEXT] [--row TEXT]
```

With `--update` it also stores the results and writes this page. With `--peer kafka` it runs the same programs against
Apache Kafka, which shows whether a failure is caused by the brokers. The programs need Java and Maven, Go, Node.js and
npm, Cargo with CMake and a C compiler, and kcat. A program whose tools are missing is not run.

Each check compares data: the client reads the records of another client, and another client reads the records of this
one. The checks of groups have two members that share four partitions. One of them leaves, and its successor resumes at
the committed offsets.

`yes`: passed. `-`: the client does not have this feature. An empty cell: the check is not made with this release.
`not served`: the brokers do not advertise the requests that the check needs. `not run`: see
[Differences](#differences).
"""


def as_result(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    return [
        {
            "program": each.program,
            "row": each.row,
            "outcome": str(each.word),
            "detail": each.detail,
            "version": each.version,
            "seconds": round(each.seconds, 1),
        }
        for each in outcomes
    ]


def store(peer: str, result: list[dict[str, Any]], names: Iterable[str]) -> None:
    """Replace the stored rows of a peer that are in `result`.  Times differ in each run, and are left out."""
    RESULTS.mkdir(exist_ok=True)
    order = {name: index for index, name in enumerate(names)}
    rows = {(each["program"], each["row"]): each for each in (*as_result(load(peer)), *result)}
    known = sorted(
        (each for each in rows.values() if each["program"] in order), key=lambda each: order[each["program"]]
    )
    kept = [{name: value for name, value in each.items() if name != "seconds"} for each in known]
    lines = ",\n".join(json.dumps(each) for each in kept)
    (RESULTS / f"{peer}.json").write_text(f"[\n{lines}\n]\n")


def load(peer: str) -> list[Outcome]:
    """Return the stored result; empty if there is none."""
    try:
        stored = json.loads((RESULTS / f"{peer}.json").read_text())
    except FileNotFoundError:
        return []
    return [
        Outcome(each["program"], each["row"], Word(each["outcome"]), each["detail"], each["version"]) for each in stored
    ]


def write() -> None:
    PAGE.write_text(text(load(OURS), load(KAFKA)))


def reason(outcome: Outcome) -> str | None:
    """Return why this row does not pass; None if there is no written reason."""
    return reason_of(outcome.program, outcome.row)


def needs_reason(outcome: Outcome) -> bool:
    return outcome.word in (Word.FAILED, Word.NOT_SERVED)


def text(ours: list[Outcome], kafka: list[Outcome]) -> str:
    """Return the page."""
    clients = [each for each in ours if each.row != TOOL_ROW]
    tools = [each for each in ours if each.row == TOOL_ROW]
    theirs = {(each.program, each.row): each for each in kafka}
    parts = [INTRODUCTION, "\n## Clients\n\n", *_client_table(clients)]
    if tools:
        parts += ["\n## Command-line tools\n\nThe tools of Apache Kafka, from its jars.\n\n"]
        parts += _tool_table(tools, theirs)
    parts += ["\n## Differences\n\n", *_differences(ours, theirs)]
    return "".join(parts)


TOOL_ROW: Final = "tool"


def _client_table(outcomes: list[Outcome]) -> Iterator[str]:
    names = list(dict.fromkeys(each.row for each in outcomes))
    found = {(each.program, each.row): each for each in outcomes}
    yield f"| client | version | {' | '.join(names)} |\n"
    yield f"|---|---|{'---|' * len(names)}\n"
    for program in dict.fromkeys(each.program for each in outcomes):
        version = max((each.version for each in outcomes if each.program == program), default="")
        cells = " | ".join(CELLS[found[program, name].word] if (program, name) in found else "" for name in names)
        yield f"| {program} | {version} | {cells} |\n"


def _tool_table(outcomes: list[Outcome], theirs: dict[tuple[str, str], Outcome]) -> Iterator[str]:
    yield "| tool | quorumlog | Apache Kafka |\n|---|---|---|\n"
    for each in outcomes:
        other = theirs.get((each.program, each.row))
        yield f"| {each.program} | {CELLS[each.word]} | {CELLS[other.word] if other else ''} |\n"


def _differences(ours: list[Outcome], theirs: dict[tuple[str, str], Outcome]) -> Iterator[str]:
    """Yield a line for each reason, with the rows that it explains."""
    if not theirs:
        yield "The programs have not been run against Apache Kafka.\n\n"
    rows: dict[str, list[Outcome]] = {}
    for each in ours:
        if each.word is not Word.PASSED and each.word is not Word.NOT_OFFERED:
            why = each.detail if each.word is Word.SKIPPED else reason(each) or f"Not explained: {each.detail}"
            rows.setdefault(why, []).append(each)
    for why, outcomes in rows.items():
        names = dict.fromkeys(each.program if each.row == TOOL_ROW else each.row for each in outcomes)
        also = [
            each for each in outcomes if (other := theirs.get((each.program, each.row))) and other.word is each.word
        ]
        suffix = " The same happens with Apache Kafka." if len(also) == len(outcomes) else ""
        yield f"- {'; '.join(names)}: {why}{suffix}\n"
    failed = [each for each in theirs.values() if each.word is Word.FAILED]
    passed = {(each.program, each.row) for each in ours if each.word is Word.PASSED}
    for each in failed:
        if (each.program, each.row) in passed:
            yield f"- {each.program}, {each.row}: this passes here and fails with Apache Kafka.\n"
    if not rows and not failed:
        yield "There are none.\n"
