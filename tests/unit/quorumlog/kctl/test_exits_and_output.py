"""The exit codes of errors, and the forms of output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from quorumlog.errors import ClusterError, ConfigError, QuorumlogError
from quorumlog.kctl.context import Context
from quorumlog.kctl.exits import exit_code
from quorumlog.kctl.main import run
from quorumlog.kctl.output import Output, OutputClosedError, bytes_value, node_or_none, uuid_text
from quorumlog.kctl.streams import discard
from quorumlog.wire.errors import ApiError


@pytest.mark.parametrize(
    ("code", "retriable", "exit_status"),
    [
        ("UNKNOWN_TOPIC_OR_PARTITION", False, 3),
        ("UNKNOWN_TOPIC_ID", False, 3),
        ("BROKER_ID_NOT_REGISTERED", False, 3),
        ("NOT_CONTROLLER", True, 4),
        ("NOT_A_NODE", False, 2),
        ("OUTCOME_UNKNOWN", True, 4),
        ("TIMED_OUT", True, 4),
        ("UNAVAILABLE", True, 4),
        ("TOPIC_ALREADY_EXISTS", False, 5),
        ("INVALID_REPLICATION_FACTOR", False, 5),
        ("POLICY_VIOLATION", False, 5),
        ("INVALID_CONFIG", False, 2),
        ("INVALID_TOPIC_EXCEPTION", False, 2),
        ("TOPIC_AUTHORIZATION_FAILED", False, 6),
        ("SASL_AUTHENTICATION_FAILED", False, 6),
        ("UNKNOWN_SERVER_ERROR", False, 1),
        ("FAILED", False, 1),
    ],
)
def test_error_codes_determine_the_exit_code(code: str, retriable: bool, exit_status: int) -> None:
    assert exit_code(ClusterError(code, "m", retriable=retriable)) == exit_status


FAILURES = {"CORRUPT_MESSAGE", "CORRUPT_STORE", "FAILED", "IO_ERROR", "UNKNOWN_SERVER_ERROR", "VERIFICATION_FAILED"}


def test_every_error_has_a_meaningful_exit_code() -> None:
    for error in ApiError:
        if error is not ApiError.NONE:
            code = exit_code(ClusterError(error, "m", retriable=error.retriable))
            assert code in ((3, 4) if error.retriable else (1,) if error in FAILURES else (2, 3, 5, 6)), error


def test_other_exceptions_determine_the_exit_code() -> None:
    assert exit_code(ConfigError("bad")) == 2
    assert exit_code(TimeoutError()) == 4
    assert exit_code(ConnectionRefusedError()) == 4
    assert exit_code(QuorumlogError("odd")) == 1
    assert exit_code(ZeroDivisionError()) == 1


def test_uuids_node_ids_and_bytes_are_shown_as_text_or_null() -> None:
    assert uuid_text(bytes(range(16))) == "AAECAwQFBgcICQoLDA0ODw"
    assert uuid_text(bytes(16)) is None
    assert uuid_text(b"") is None
    assert node_or_none(-1) is None
    assert node_or_none(0) == 0
    assert bytes_value("grüß".encode()) == "grüß"
    assert bytes_value(b"\xff\x00") == {"base64": "/wA="}
    assert bytes_value(None) is None


def test_an_error_is_one_line_of_problem_cause_and_next_step() -> None:
    error = ClusterError("NOT_CONTROLLER", "no\nleader", "wait", retriable=True)
    assert Output("table").describe(error) == "kctl: NOT_CONTROLLER: no leader (next: wait)"
    assert json.loads(Output("json").describe(error)) == {
        "error": "NOT_CONTROLLER", "message": "no\nleader", "next": "wait", "retriable": True,
    }  # fmt: skip
    assert "\n" not in Output("json").describe(error)


def test_table_cells_are_not_truncated(capsys: pytest.CaptureFixture[str]) -> None:
    Output("table").table(("id", "value"), [[1, "x" * 500], [2, None], [3, [1, 2]], [4, True], [5, []]], title="title")
    lines = capsys.readouterr().out.splitlines()
    assert lines == [line.rstrip() for line in lines], "no spaces at the ends of lines"
    rows = [line.split() for line in lines]
    assert rows == [["title"], ["id", "value"], ["1", "x" * 500], ["2", "-"], ["3", "1,2"], ["4", "yes"], ["5", "-"]]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_table_wider_than_10000_characters_keeps_all_its_columns(
    is_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member of a group may be subscribed to thousands of topics."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    row = ["member", "日" * 9_000, "y" * 9_000, "t-0"]
    Output("table").table(("member_id", "subscription", "assignment", "last"), [row, ["1", "2", "3", "4"]])
    assert row in [line.split() for line in capsys.readouterr().out.splitlines()]


def test_the_title_of_a_table_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    title = "orders  AAECAwQFBgcICQoLDA0ODw  retention.ms=86400000 cleanup.policy=compact"
    Output("table").table(("partition", "leader"), [[0, 1]], title=title)
    assert capsys.readouterr().out.splitlines() == [title, "partition  leader", "0          1"]


def test_table_cells_are_not_truncated_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    Output("table").table(("directory", "address"), [["SKbDh2iOTfOtwPdNN26aGA", "127.0.0.1:19104"]])
    lines = capsys.readouterr().out.splitlines()
    assert ["SKbDh2iOTfOtwPdNN26aGA", "127.0.0.1:19104"] in [line.split() for line in lines]


@pytest.mark.parametrize("ends_if_closed", [False, True])
def test_closed_output_is_an_error_only_for_commands_that_end_with_their_output(
    ends_if_closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code of `kctl cluster health | head -1` must not depend on the moment at which `head` ends."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as standard_output:
        monkeypatch.setattr("sys.stdout", standard_output)
        output = Output("table", ends_if_closed=ends_if_closed)
        with pytest.raises(OutputClosedError) if ends_if_closed else nullcontext():
            output.text("a line")
        discard(standard_output)


@pytest.mark.parametrize(
    ("command", "ends"),
    [
        ("consume t", True),
        ("metadata tail", True),
        ("cluster health --watch", True),
        ("cluster health --watch --exit-when-healthy", False),
        ("cluster health", False),
        ("groups lag --follow", True),
        ("groups lag", False),
        ("state-changes --follow", True),
        ("state-changes", False),
    ],
)
def test_commands_that_only_follow_changes_end_when_their_output_is_closed(
    command: str, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code of the other commands is their result, or they end without a closed output as well."""
    context = Context()
    monkeypatch.setattr("quorumlog.kctl.main.Context", lambda **_: context)
    monkeypatch.setattr(Context, "lift_limit", lambda _context: None)  # no node answers
    assert run([*command.split(), "--controllers", "127.0.0.1:1", "--timeout", "0.1"]) != 0
    assert context.ends_with_output == ends


def test_tables_do_not_interpret_markup_in_cells(capsys: pytest.CaptureFixture[str]) -> None:
    Output("table").table(("name",), [["[red]x[/red]"]])
    assert "[red]x[/red]" in capsys.readouterr().out


HOSTILE = "g\033[2J\r\n\x9b1mroot\u202e"
SHOWN = r"g\u001b[2J\r\n\u009b1mroot\u202e"


@pytest.mark.parametrize(
    "show",
    [
        lambda output: output.text(f"group {HOSTILE}"),
        lambda output: output.styled(f"group {HOSTILE}", "red"),
        lambda output: output.table(("group",), [[HOSTILE], [[HOSTILE]]]),
        lambda output: output.table(("group",), [["x" * 80]], title=HOSTILE),
    ],
)
def test_names_with_control_characters_are_shown_with_escapes(
    show: Callable[[Output], None], capsys: pytest.CaptureFixture[str]
) -> None:
    show(Output("table"))
    out = capsys.readouterr().out
    assert SHOWN in out
    assert all(line.isprintable() for line in out.splitlines())


def test_messages_and_wrapped_text_keep_only_line_breaks(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output("table")
    output.message("a\033[2J\nb")
    output.error(ClusterError("NO", f"group {HOSTILE}"))
    output.hanging("what", f"group {HOSTILE}")
    captured = capsys.readouterr()
    assert captured.err == f"a\\u001b[2J\nb\nkctl: NO: group {SHOWN.replace(chr(92) + 'r' + chr(92) + 'n', ' ')}\n"
    assert captured.out == f"what  group {SHOWN.replace(chr(92) + 'n', ' ')}\n"


def test_raw_data_is_printed_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    Output("table").raw(HOSTILE)
    assert capsys.readouterr().out == f"{HOSTILE}\n"


@pytest.mark.parametrize(
    ("is_terminal", "no_color", "coloured"), [(True, "", True), (True, "1", False), (False, "", False)]
)
def test_colours_are_used_only_on_a_terminal_without_no_color(
    is_terminal: bool,
    no_color: str,
    coloured: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    monkeypatch.setenv("NO_COLOR", no_color)
    Output("table").styled("two words", "red")
    out = capsys.readouterr().out
    assert out == ("\033[31mtwo words\033[0m\n" if coloured else "two words\n")


def test_long_text_is_wrapped_between_words_only_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = " ".join(["orders-12"] * 12)
    Output("table").hanging("    7", text)
    assert capsys.readouterr().out == f"    7  {text}\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "50")
    Output("table").hanging("    7", text)
    Output("table").wrapped(text, 3)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "    7  orders-12 orders-12 orders-12 orders-12",
        "       orders-12 orders-12 orders-12 orders-12",
    ]
    assert lines[3] == "   orders-12 orders-12 orders-12 orders-12"
    assert {word for line in lines for word in line.split()} == {"7", "orders-12"}


@pytest.mark.parametrize("given", ["", " "])
def test_an_empty_list_of_controllers_is_wrong_usage(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--controllers", given, "topics", "list"]) == 2
    assert "--controllers is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    "code", ["TOPIC_ALREADY_EXISTS", "INVALID_TOPIC_EXCEPTION", "INVALID_CONFIG", "MESSAGE_TOO_LARGE", "IO_ERROR"]
)
def test_an_error_without_a_next_step_gets_the_default_next_step_of_its_code(code: str) -> None:
    assert json.loads(Output("json").describe(ClusterError(code, "m")))["next"]
    assert json.loads(Output("json").describe(ClusterError(code, "m", "its own")))["next"] == "its own"
    assert json.loads(Output("json").describe(OSError(5, "Input/output error")))["next"] == ApiError.IO_ERROR.next_step


def test_the_error_of_a_missing_file_has_a_next_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["metadata", "dump", str(tmp_path / "nowhere")]) == 3
    assert "No such file or directory (next: give the data directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--timeout", "abc", "topics", "list"], "'abc' is not a number"),
        (["--timeout", "0", "topics", "list"], "0.0 is not in the range"),
        (["groups", "reset-offsets", "g", "--to", "earliest"], "--to-earliest"),
        (["--controllers", "http://127.0.0.1:1", "topics", "list"], "an address is HOST:PORT, without http://"),
        (["completion"], "Choose from: bash, zsh, fish"),
    ],
)
def test_wrong_usage_is_reported_in_one_line_that_names_the_mistake(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert text in line
    assert "--wait" not in line
