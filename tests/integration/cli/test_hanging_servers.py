"""--timeout limits the whole command, regardless of the stage at which a server hangs.  Real processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from .conftest import ROOT, environment, run

GIVEN_S = 2
SLACK_S = 15
"""A busy machine starts a process slowly; an overrun of a whole request is 20 s."""


@pytest.fixture(scope="module", params=["connection", "description", "change"])
def hanging(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a server that hangs at a stage."""
    arguments = [sys.executable, "-m", "tests.integration.cli.hanging_server", request.param]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment()) as server:
        assert server.stdout is not None
        yield f"127.0.0.1:{server.stdout.readline().strip()}"
        server.kill()


@pytest.mark.parametrize(
    "arguments",
    [
        ("add-voter", "2@127.0.0.1:9", "--wait"),
        ("remove-voter", "2"),
        ("alter-quorum", "--target", "2@127.0.0.1:9", "--wait"),
        ("transfer-leader", "--to", "2"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_command_ends_within_its_timeout(hanging: str, arguments: tuple[str, ...]) -> None:
    began = time.monotonic()
    done = run("kctl", "--controllers", hanging, "--timeout", str(GIVEN_S), *arguments, "-o", "json")
    took_s = time.monotonic() - began
    assert done.returncode == 4, done.stderr
    assert json.loads(done.stderr.splitlines()[-1])["error"] in ("UNAVAILABLE", "TIMED_OUT", "OUTCOME_UNKNOWN")
    assert took_s < GIVEN_S + SLACK_S


@pytest.mark.quiet  # kctl has to start within the time that it is given
def test_a_resolver_that_does_not_answer_does_not_delay_the_end_of_a_command() -> None:
    """The look-up of a name runs in a thread, which cannot be cancelled."""
    program = (
        "import socket, sys, threading; look_up = socket.getaddrinfo\n"
        "socket.getaddrinfo = lambda host, *rest, **more: "
        "threading.Event().wait(60) if host == 'slow' else look_up(host, *rest, **more)\n"
        "from quorumlog.kctl.main import main\n"
        f"main(['--controllers', 'slow:1', '--timeout', '{GIVEN_S}', 'topics', 'list'])"
    )
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, env=environment(), check=False
    )
    assert done.returncode == 4, done.stderr
    assert "UNAVAILABLE" in done.stderr
    assert time.monotonic() - began < GIVEN_S + SLACK_S
