"""kctl with closed, full, broken and odd standard streams.  Real processes."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from .conftest import END_TIMEOUT_S, Server, command, environment, run


def shell(standalone: Server, line: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line in a shell, in which `kctl` is the installed command, connected to `standalone`."""
    kctl = shlex.join(command("kctl", "--controllers", standalone.fields["control"]))
    script = f'kctl() {{ {kctl} "$@"; }}; {line}'
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, timeout=END_TIMEOUT_S, check=False,
        env={**environment(), **variables},
    )  # fmt: skip


@pytest.fixture(scope="module")
def topic(standalone: Server) -> str:
    made = run("kctl", "--controllers", standalone.fields["control"], "topics", "create", "odd", "--partitions", "1",
               "--replication-factor", "1", "--wait")  # fmt: skip
    assert made.returncode == 0, made.stderr
    return "odd"


@pytest.mark.parametrize(
    "line",
    [
        "kctl topics list >&-",
        "kctl topics list 2>&-",
        "kctl topics list >&- 2>&- <&-",
        "kctl topics list -o json <&-",
        "kctl --help >&-",
        "kctl consume odd --from beginning --exit-at-end >&-",
        "echo x | kctl produce odd >&- 2>&-",
        "kctl topics delete nothing --if-exists <&-",
        "kctl produce odd < /dev/null",
        "set -o pipefail; kctl topics list | true",
        "set -o pipefail; kctl --help | true",
        "kctl topics list 2> >(true)",
    ],
)
def test_a_standard_stream_closed_by_the_caller_is_not_an_error(standalone: Server, topic: str, line: str) -> None:
    done = shell(standalone, line)
    assert done.returncode == 0, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("kctl produce odd <&-", 2, "standard input is closed, but the records would be read from it"),
        ("kctl reassign verify --plan - <&-", 2, "standard input is closed, but the plan would be read from it"),
        ("kctl topics remove-partitions odd --to 1 <&-", 0, ""),
        ("kctl topics list > /dev/full", 1, "IO_ERROR: standard output cannot be written: No space left on device"),
        ("kctl topics list 1< /dev/null", 1, "IO_ERROR: standard output cannot be written: Bad file descriptor"),
        ("kctl topics nonsense 2>&-", 2, ""),
        ("kctl topics describe nothing 2> /dev/full", 3, ""),
        ("kctl --help > /dev/full", 1, "IO_ERROR: No space left on device"),
        ("kctl topics describe $'caf\\xe9'", 2, "an argument is not valid UTF-8"),
    ],
)
def test_an_unusable_standard_stream_or_argument_causes_no_traceback_and_names_the_next_step(
    standalone: Server, topic: str, line: str, code: int, message: str
) -> None:
    done = shell(standalone, line)
    errors = done.stderr.decode()
    assert done.returncode == code, errors
    assert message in errors
    assert "Traceback" not in errors
    assert len(errors.splitlines()) <= 1 or code == 0
    assert not message or "(next: " in errors


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("seq 20000 | kctl produce odd | head -1", 0),
        ("kctl groups delete nobody --yes -o json | true", 3),
        ("kctl reassign verify --topic odd --brokers 7 | true", 1),
    ],
)
def test_the_exit_status_is_the_same_if_no_process_reads_the_output(
    standalone: Server, topic: str, line: str, code: int
) -> None:
    done = shell(standalone, f"set -o pipefail; {line}")
    assert done.returncode == code, done.stderr.decode()
    if "produce" in line:
        assert b"20000 records written" in done.stderr


def test_text_is_escaped_for_an_ascii_terminal(standalone: Server, topic: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("grüße 😀\n", encoding="utf-8")
    written = shell(standalone, f"kctl produce odd {tmp_path / 'lines'}")
    assert written.returncode == 0, written.stderr
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    for line in ("kctl --help", "kctl topics --help", "kctl topics list", "kctl quorum status"):
        done = shell(standalone, line, **ascii_only)
        assert (done.returncode, done.stdout.isascii()) == (0, True), done.stderr
    text = shell(standalone, "kctl consume odd --from beginning --exit-at-end", **ascii_only)
    assert b"gr\\xfc\\xdfe \\U0001f600" in text.stdout
    objects = shell(standalone, "kctl consume odd --from beginning --exit-at-end -o json", **ascii_only)
    assert json.loads(objects.stdout.splitlines()[-1])["value"] == "grüße 😀"
    assert objects.stdout.isascii()
