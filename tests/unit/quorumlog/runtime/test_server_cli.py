"""Wrong arguments and addresses of `broker` and `quorum-node`."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator

import pytest

from broker.cli import make_parser
from broker.cli import run as broker
from quorumlog.errors import ConfigError
from quorumlog.runtime import config as configuration
from quorumlog.runtime import server_cli
from quorumlog.runtime.metrics import Metrics
from quorumlog_server.quorum_node import run as quorum_node


@pytest.mark.parametrize(
    ("line", "problems"),
    [
        ("run --standalon", ["unknown flag --standalon; did you mean --standalone?"]),
        ("run --data-dri=/x", ["unknown flag --data-dri; did you mean --data-dir?"]),
        ("config --node.id 3", ["unknown flag --node.id; did you mean --node-id?"]),
        (
            "run --log-cleaner-backoff-ms 3",
            ["unknown flag --log-cleaner-backoff-ms; did you mean --set log.cleaner.backoff.ms?"],
        ),
        ("run --nope 3 --bogus", ["unknown flag --nope", "unknown flag --bogus"]),
        ("run now", ["unexpected argument 'now'"]),
        ("run --listen", ["--listen needs a value"]),
        ("run --standalone=true", ["--standalone takes no value"]),
        ("--standalone run", ["unknown flag --standalone; it follows the command: broker run --standalone"]),
        ("rum", ["unknown command 'rum'; did you mean run?"]),
        ("", ["COMMAND is missing"]),
    ],
)
def test_wrong_arguments_are_named_with_the_nearest_valid_ones(
    line: str, problems: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert broker(line.split(), {}) == 2
    *named, following = capsys.readouterr().err.splitlines()
    assert named == [f"broker: {problem}" for problem in problems]
    assert following.startswith("broker: next: `broker ")
    assert "--help` lists the " in following


def test_an_unknown_flag_is_reported_together_with_the_missing_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert quorum_node(["format", "--data-dri", "x", "--node-id", "1"], {}) == 2
    assert capsys.readouterr().err.splitlines() == [
        "quorum-node: unknown flag --data-dri; did you mean --data-dir?",
        "quorum-node: --data-dir is missing",
        "quorum-node: --cluster-id is missing",
        "quorum-node: next: `quorum-node format --help` lists the flags",
    ]


def test_a_key_of_the_other_program_is_not_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert quorum_node(["run", "--log-cleaner-backoff-ms=3"], {}) == 2
    assert capsys.readouterr().err.startswith("quorum-node: unknown flag --log-cleaner-backoff-ms\n")


@pytest.mark.parametrize("wanted", [["--log-format", "json"], ["--log-format=json"]])
def test_wrong_arguments_are_reported_as_json_if_the_log_is_json(
    wanted: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert broker(["run", *wanted, "--standalon"], {}) == 2
    assert json.loads(capsys.readouterr().err) == {
        "error": "ConfigError",
        "message": "unknown flag --standalon; did you mean --standalone?",
        "next": "`broker run --help` lists the flags",
        "retriable": False,
    }


@contextlib.contextmanager
def taken_address() -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield f"127.0.0.1:{taken.getsockname()[1]}"


async def test_all_addresses_in_use_are_reported_in_one_error() -> None:
    with taken_address() as control, taken_address() as inside, taken_address() as outside, taken_address() as http:
        line = ["run", "--standalone", "--data-dir", "d", "--control-listen", control, "--http", http]
        line += ["--listen", f"INSIDE={inside},OUTSIDE={outside}", "--inter-broker", "INSIDE"]
        config = configuration.load("broker", make_parser().parse_args(line), {})
        with pytest.raises(ConfigError) as refused:
            async with server_cli.observed(config, {}, Metrics()):
                pass
    places = (control, f"INSIDE={inside}", f"OUTSIDE={outside}", f"{http} (http.listen)")
    assert refused.value.problems == tuple(f"cannot listen on {place}: Address already in use" for place in places)
    assert refused.value.next_step == "stop the processes that listen there, or give other addresses"


async def test_a_single_address_in_use_is_reported_with_its_own_alternative() -> None:
    with taken_address() as taken:
        line = ["run", "--standalone", "--data-dir", "d", "--control-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"]
        config = configuration.load("broker", make_parser().parse_args([*line, "--http", taken]), {})
        with pytest.raises(ConfigError) as refused:
            async with server_cli.observed(config, {}, Metrics()):
                pass
    assert refused.value.problems == (f"cannot listen on {taken} (http.listen): Address already in use",)
    assert refused.value.next_step.endswith("or give another --http HOST:PORT, or off")
