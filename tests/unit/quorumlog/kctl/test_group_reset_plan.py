"""The offsets that a reset of a group chooses, and the times and files that it accepts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.errors import ClusterError
from quorumlog.kctl.group_reset_plan import (
    Kind,
    LogRange,
    Move,
    Target,
    moves,
    parse_datetime,
    parse_duration,
    parse_file,
)
from quorumlog.kctl.main import run

A, B = ("a", 0), ("a", 1)
RANGES = {B: LogRange(10, 50, at_time=-1), A: LogRange(0, 100, at_time=30)}


def after(target: Target, committed: dict[tuple[str, int], int] | None = None) -> list[tuple[int, str | None]]:
    return [(each.after, each.note) for each in moves(target, RANGES, committed or {}, {A: 7, B: 7})]


def test_each_reset_target_determines_its_offset() -> None:
    assert after(Target(Kind.EARLIEST)) == [(0, None), (10, None)]
    assert after(Target(Kind.LATEST)) == [(100, None), (50, None)]
    assert after(Target(Kind.OFFSET, 20)) == [(20, None), (20, None)]
    assert after(Target(Kind.SHIFT, -5), {A: 40, B: 30}) == [(35, None), (25, None)]
    assert after(Target(Kind.TIME, 1)) == [(30, None), (50, "no record is as new as that")]


def test_offsets_outside_the_log_are_moved_into_it_with_a_note() -> None:
    assert after(Target(Kind.OFFSET, 70)) == [(70, None), (50, "70 is after the log end")]
    assert after(Target(Kind.FILE)) == [(7, None), (10, "7 is before the log start")]
    assert after(Target(Kind.SHIFT, -45), {A: 40, B: 30}) == [
        (0, "-5 is before the log start"),
        (10, "-15 is before the log start"),
    ]


def test_a_partition_without_an_offset_cannot_be_shifted() -> None:
    with pytest.raises(ClusterError, match="a-1: there is no committed offset to shift") as refusal:
        moves(Target(Kind.SHIFT, 1), RANGES, {A: 5}, {})
    assert refusal.value.code == "OFFSET_NOT_COMMITTED"


def test_only_a_different_offset_is_a_change() -> None:
    planned = moves(Target(Kind.EARLIEST), RANGES, {A: 0}, {})
    assert [each.is_change for each in planned] == [False, True]
    assert planned[1] == Move("a", 1, None, 10, 10, 50, None, None)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(-(2**62), 2**62), st.integers(0, 10**6))
def test_a_shifted_offset_stays_within_the_log(start: int, size: int, shift: int, committed: int) -> None:
    log = LogRange(start, start + size)
    (move,) = moves(Target(Kind.SHIFT, shift), {A: log}, {A: committed}, {})
    assert log.start <= move.after <= log.end
    assert (move.note is None) == (move.after == committed + shift)


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01", 1_000),
        ("1970-01-01T00:00:01.5Z", 1_500),
        ("1970-01-01T02:00:00.001+02:00", 1),
    ],
)
def test_datetimes_are_parsed_to_milliseconds(text: str, at_ms: int) -> None:
    assert parse_datetime(text) == at_ms


@pytest.mark.parametrize("text", ["", "yesterday", "1969-12-31T23:59:59Z", "2026-13-01"])
def test_invalid_datetimes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not like|is before 1970"):
        parse_datetime(text)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [("90s", 90_000), ("1h30m", 5_400_000), ("2d1h", 176_400_000), ("PT1H30M", 5_400_000), ("P1DT0.5S", 86_400_500)],
)
def test_durations_are_parsed_to_milliseconds(text: str, duration_ms: int) -> None:
    assert parse_duration(text) == duration_ms


@pytest.mark.parametrize("text", ["", "P", "PT", "5", "1h 30m", "-1h", "1y", "30m1h"])
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not like 90s"):
        parse_duration(text)


def test_offset_files_of_kafkas_tool_and_of_kctl_are_parsed() -> None:
    assert parse_file("a,0,5\n\na,1,6\n", "g") == {A: 5, B: 6}
    assert parse_file('"g","a",0,5\nother,a,1,6\n', "g") == {A: 5}
    assert parse_file("TOPIC,PARTITION,NEW-OFFSET\na, 0, 5", "g") == {A: 5}
    rows = [{"group": "g", "topic": "a", "partition": 0, "committed_offset": 5}, {"topic": "a", "partition": 1}]
    rows[1]["committed_offset"] = None
    assert parse_file(json.dumps(rows), "g") == {A: 5}
    reset = {"group": "g", "partitions": [{"topic": "a", "partition": 1, "before": 1, "after": 6}]}
    assert parse_file(json.dumps(reset), "g") == {B: 6}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no offset of group g"),
        ("other,a,0,5", "no offset of group g"),
        ("a,0", "line 1 is not"),
        ("a,0,-5", "line 1 is not"),
        ("a,0,5\na,zero,5", "line 2 is not"),
        ("a,0,5\na,0,6", "row 2: a-0 has two different offsets"),
        ("a,9999999999,5", "are not a topic, partition and offset"),
        ("a,0,9223372036854775808", "are not a topic, partition and offset"),
        (",0,5", "are not a topic, partition and offset"),
        ('"' + "x" * 140_000 + '",0,5', "line 1 is not CSV: field larger than field limit"),
        ("caf\udce9,0,5", "are not a topic, partition and offset"),  # as a file with bytes that are not UTF-8 is read
        ('[{"topic": "\\ud800", "partition": 0, "offset": 1}]', "are not a topic, partition and offset"),
        ("[", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"group": "g"}', "no list of partitions"),
        ("[1]", "row 1 is not an object"),
        ('[{"topic": "a", "partition": 0}]', "row 1 has no offset"),
        ('[{"topic": 5, "partition": 0, "offset": 1}]', "row 1 has no topic"),
        ('[{"topic": "a", "partition": true, "offset": 1}]', "row 1 has no topic"),
        ('[{"topic": "a", "partition": 0, "offset": 1.5}]', "row 1 has no topic"),
        ('[{"group": 1, "topic": "a", "partition": 0, "offset": 1}]', "a group that is not text"),
    ],
)
def test_invalid_offset_files_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_file(text, "g")


def test_offsets_on_standard_input_that_are_not_text_are_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "offsets").write_bytes(b"\xff,0,1")
    with (tmp_path / "offsets").open() as standard_input:
        monkeypatch.setattr("sys.stdin", standard_input)
        assert run(["groups", "reset-offsets", "g", "--from-file", "-"]) == 2
    assert capsys.readouterr().err.startswith("kctl: --from-file -: row 1: '\\udcff', 0, 1 are not a topic")
