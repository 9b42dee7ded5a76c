"""The report of a node whose quorum was rebuilt while the node was down."""

from __future__ import annotations

from typing import Any

from structlog.testing import capture_logs

from quorum.core.types import Batch, LogBase, LogEnd, Voters
from quorum.core.voters import VoterHistory
from quorum.ports import OutlivedError
from quorumlog_server.generations import log_lost_metadata
from tests.contract.samples import CLUSTER, VOTERS


def voters(generation: int) -> Voters:
    return Voters(CLUSTER, generation, VOTERS)


def history(*rebuilt_at: int) -> VoterHistory:
    """The voters of a log whose quorum was rebuilt at these offsets."""
    offsets = enumerate((0, *rebuilt_at))
    return VoterHistory([Batch(offset, 1, 1, 0, control=voters(generation)) for generation, offset in offsets])


def warned(log_end: int, found: VoterHistory, generation: int = 0) -> dict[str, Any] | None:
    """Return the warning or error of a node whose log ended at `log_end`; None if it has none."""
    record = found.record
    assert record is not None
    before = OutlivedError("the quorum was rebuilt", generation, record.generation, log_end, was_voter=False)
    with capture_logs() as lines:
        log_lost_metadata(before, found)
    return next((dict(line) for line in lines if line["log_level"] != "info"), None)


def lost(line: dict[str, Any] | None) -> tuple[int, int]:
    """Return the offsets of the records that an error reports as lost."""
    assert line is not None
    assert line["log_level"] == "error"
    return line["from_offset"], line["to_offset"]


def test_records_after_the_offset_of_a_rebuild_are_reported_as_lost() -> None:
    assert lost(warned(830, history(812))) == (812, 830)
    assert warned(812, history(812)) is None


def test_records_after_the_first_of_two_rebuilds_are_reported_as_lost() -> None:
    """`recover` is repeated after an interruption, and each run begins a generation."""
    assert lost(warned(830, history(812, 840))) == (812, 830)
    assert warned(830, history(812, 840), generation=1) is None


def test_a_snapshot_taken_after_the_rebuild_causes_a_warning_instead_of_an_error() -> None:
    found = history(812)
    found.trim(LogBase(LogEnd(1, 900), voters(1)))
    line = warned(830, found)
    assert line is not None
    assert (line["log_level"], line["log_end"]) == ("warning", 830)
