"""The files in deploy/ fit the programs: configs load, commands parse, systemd accepts the units if it is installed."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker.cli import make_parser as broker_parser
from quorumlog.runtime import config as configuration
from quorumlog.runtime.config import NodeConfig
from quorumlog_server.quorum_node import make_parser as node_parser

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
PARSERS = {"quorum-node": node_parser, "broker": broker_parser}


def load(arguments: list[str], environ: dict[str, str]) -> NodeConfig:
    """Return the configuration of a command line such as [broker, run, …]."""
    program = Path(arguments[0]).name
    return configuration.load(program, PARSERS[program]().parse_args(arguments[1:]), environ)


@pytest.mark.parametrize("program", ["quorum-node", "broker"])
def test_config_examples_load(program: str) -> None:
    config = load([program, "run", "--config", str(DEPLOY / "config" / f"{program}.toml")], {})
    assert config.control_listen.is_wildcard
    assert config.control_advertise is not None
    assert str(config.http_listen) == "127.0.0.1:9644"


def unit(name: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=True, delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # as configparser documents it
    parser.read_string((DEPLOY / "systemd" / f"{name}.service").read_text())
    return parser


@pytest.mark.parametrize("program", ["quorum-node", "broker"])
def test_systemd_units_start_existing_programs(program: str) -> None:
    service = unit(program)["Service"]
    arguments = shlex.split(service["ExecStart"])
    assert Path(arguments[0]).name == program
    assert PARSERS[program]().parse_args(arguments[1:]).config == f"/etc/quorumlog/{program}.toml"
    assert service["Type"] == "notify"
    assert service["RestartPreventExitStatus"] == "2 7"
    config = load([program, "run", "--config", str(DEPLOY / "config" / f"{program}.toml")], {})
    assert config.data_dirs == (f"/var/lib/{service['StateDirectory']}",)
    assert float(service["TimeoutStopSec"]) * 1000 > config.shutdown_timeout_ms


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("program", ["quorum-node", "broker"])
def test_systemd_understands_the_units(program: str, tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / f"{program}.service").read_text()
    path = tmp_path / f"{program}.service"
    path.write_text(re.sub("ExecStart=.*", "ExecStart=/bin/true", text))  # the program is not installed on this machine
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True, check=False, timeout=60
    )
    complaints = [line for line in done.stderr.splitlines() if str(path) in line or f"{program}.service:" in line]
    assert complaints == []


def compose() -> dict[str, Any]:
    document = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
    assert isinstance(document, dict)
    return document


def image_environment() -> dict[str, str]:
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    return dict(re.findall(r"(QUORUMLOG_[A-Z_]+)=(\S+)", text))


def test_the_services_of_compose_make_a_cluster() -> None:
    document = compose()
    configs = {
        name: load(service["command"], image_environment() | service["environment"] | {"KCTL_CONTROLLERS": "x"})
        for name, service in document["services"].items()
    }
    voters = {name: config for name, config in configs.items() if config.role == "quorum-node"}
    brokers = {name: config for name, config in configs.items() if config.role == "broker"}
    assert (len(voters), len(brokers)) == (3, 3)
    assert len({config.node_id for config in configs.values()}) == 6
    for name, config in configs.items():
        assert config.control_advertise is not None
        assert config.control_advertise.host == name  # the address that other containers connect to
        assert config.data_dirs == ("/var/lib/quorumlog/data",)
        assert name in document["volumes"]
    (founders,) = {config.initial_voters for config in voters.values()}
    assert {str(voter.address) for voter in founders} == {str(c.control_advertise) for c in voters.values()}
    for name, config in brokers.items():
        assert {str(address) for address in config.bootstrap} == {str(voter.address) for voter in founders}
        inside, outside = config.kafka_listeners
        assert inside.advertise is not None
        assert outside.advertise is not None
        assert inside.advertise.host == name
        (published,) = document["services"][name]["ports"]
        assert published == f"127.0.0.1:{outside.advertise.port}:{outside.listen.port}"
    assert len({config.kafka_listeners[1].advertise for config in brokers.values()}) == 3


def test_the_image_runs_a_standalone_broker_as_an_unprivileged_user() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
    command = next(line for line in text.splitlines() if line.startswith("CMD ["))
    config = load(yaml.safe_load(command.removeprefix("CMD ")), image_environment())
    assert config.standalone
    assert str(config.kafka_listeners[0].advertise) == "localhost:9092"
    assert re.search(r"^USER quorumlog$", text, re.MULTILINE)
    assert "HEALTHCHECK" in text
    ignored = (DEPLOY.parent / ".dockerignore").read_text().splitlines()
    for source in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        for name in source.split():
            assert (DEPLOY.parent / name).exists()
            assert f"!{name}" in ignored


class _Livez(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/livez" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def test_the_health_check_of_the_image_uses_no_proxy() -> None:
    """Docker sets the proxies of its client's configuration in every container."""
    text = (DEPLOY / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
    found = re.search(r"^HEALTHCHECK .*?CMD (\[.*\])$", text, re.MULTILINE)
    assert found is not None
    _, *arguments = json.loads(found[1])
    proxies = dict.fromkeys(("http_proxy", "HTTP_PROXY"), "http://127.0.0.1:1")
    environ = {name: value for name, value in os.environ.items() if name.lower() != "no_proxy"} | proxies

    def status(port: int) -> int:
        command = [sys.executable, *(each.replace("9644", str(port)) for each in arguments)]
        return subprocess.run(command, env=environ, capture_output=True, check=False, timeout=60).returncode

    with HTTPServer(("127.0.0.1", 0), _Livez) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert status(server.server_port) == 0
        finally:
            server.shutdown()
            thread.join()
    assert status(server.server_port) != 0
