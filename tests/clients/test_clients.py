"""Each client that needs no other runtime, against one standalone broker; and the page of the last complete run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients import page
from tests.clients.catalog import PROGRAMS, SOURCES, Program
from tests.clients.outcomes import Outcome, Skipped, Word
from tests.clients.peers import Peer, quorumlog_standalone, served_apis
from tests.clients.records import Harness
from tests.clients.rows import Run, perform, rows

QUICK_ROWS = ("produce, gzip", "consume", "group, eager")


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with quorumlog_standalone() as found:
        yield found


@pytest.mark.parametrize("name", QUICK_ROWS)
@pytest.mark.parametrize("program", [each for each in PROGRAMS if each.is_python], ids=lambda program: program.name)
def test_an_unmodified_client_passes_the_checks_of_the_row(peer: Peer, program: Program, name: str) -> None:
    try:
        command = program.prepare()
    except Skipped as reason:
        pytest.skip(str(reason))  # names the package or runtime of this client that is missing
    harness = Harness(peer.bootstrap, len(peer.brokers))
    run = Run(program.name, command, harness, len(peer.brokers), served_apis(peer.bootstrap))
    (row,) = (each for each in rows() if each.name == name)
    outcome = perform(run, row)
    assert outcome.word is Word.PASSED, outcome.detail
    assert outcome.version, "the program reports its version"


def test_the_page_shows_the_last_results() -> None:
    assert page.PAGE.read_text() == page.text(page.load(page.OURS), page.load(page.KAFKA))


def test_the_results_have_all_programs_and_rows() -> None:
    found = {(each.program, each.row) for each in page.load(page.OURS)}
    assert {(program.name, row.name) for program in PROGRAMS for row in rows() if program.has(row.name)} <= found


@pytest.mark.parametrize(
    "outcome",
    [each for each in page.load(page.OURS) if page.needs_reason(each)],
    ids=lambda each: f"{each.program}, {each.row}",
)
def test_each_row_that_does_not_pass_has_a_reason(outcome: Outcome) -> None:
    assert page.reason(outcome), outcome.detail


def test_no_lock_file_has_resolved_addresses() -> None:
    locks = [path for path in SOURCES.rglob("*") if path.name in ("package-lock.json", "go.sum", "Cargo.lock")]
    for path in locks:
        assert '"resolved"' not in path.read_text(), path
