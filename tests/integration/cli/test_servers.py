"""The servers' command lines: refusals and their exit statuses."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import quorumlog

from .conftest import ANYWHERE, Server, StartServer, environment, run


@pytest.mark.parametrize("program", ["broker", "quorum-node", "kctl"])
def test_each_program_prints_its_version(program: str) -> None:
    shown = run(program, "--version")
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, f"{program}, version {quorumlog.__version__}\n", "")


def test_new_id_prints_another_valid_id_each_time() -> None:
    ids = {run("quorum-node", "new-id").stdout.strip() for _ in range(3)}
    assert len(ids) == 3
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", each) for each in ids)


def test_a_formatted_directory_refuses_another_format_and_another_cluster_id(tmp_path: Path) -> None:
    arguments = ("--data-dir", tmp_path / "d", "--node-id", "4", "--cluster-id")
    assert run("quorum-node", "format", *arguments, "one").returncode == 0
    again = run("quorum-node", "format", *arguments, "one")
    assert again.returncode == 2
    assert "already formatted" in again.stderr
    other = run("quorum-node", "run", *arguments, "two", "--standalone", "--listen", "127.0.0.1:0", "--http", "off")
    assert other.returncode == 2
    assert "one" in other.stderr
    assert "two" in other.stderr


def test_a_formatted_node_runs(start_server: StartServer, tmp_path: Path) -> None:
    arguments = ("--data-dir", tmp_path / "d", "--node-id", "4", "--cluster-id", "one")
    assert run("quorum-node", "format", *arguments).returncode == 0
    server = start_server("quorum-node", *arguments, "--standalone", "--listen", "127.0.0.1:0", "--http", "off")
    assert server.fields["node_id"] == "4", server.errors()
    status = json.loads(run("kctl", "--controllers", server.fields["control"], "quorum", "status", "-o", "json").stdout)
    assert (status["cluster_id"], status["leader_id"]) == ("one", 4)
    assert server.stop() == 0


def test_the_ready_line_and_the_log_lines_are_json_if_requested(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(
        "quorum-node", "--standalone", "--data-dir", tmp_path, "--node-id", "9", "--log-format", "json",
        "--listen", "127.0.0.1:0", "--http", "off",
    )  # fmt: skip
    ready = json.loads(server.ready_line)
    assert (ready["event"], ready["node_id"], ready["data_dir"]) == ("ready", 9, str(tmp_path))
    assert server.stop() == 0
    assert all(json.loads(line)["node_id"] == 9 for line in server.errors().splitlines())


@pytest.mark.parametrize(
    ("program", "arguments", "said"),
    [
        ("quorum-node", ("--standalone",), "--data-dir is missing"),
        ("quorum-node", ("--data-dir", "d", "--node-id", "1"), "--initial-voters ID@HOST:PORT"),
        ("quorum-node", ("--data-dir", "d", "--node-id", "1", "--initial-voters", "2@a:1"), "does not name this node"),
        ("broker", ("--standalone", "--listen", "0.0.0.0:9092"), "--advertise"),
        ("broker", ("--standalone", "--set", "nod.id=1"), "did you mean node.id?"),
        ("broker", ("--standalone", "--nonsense"), "--nonsense"),
        ("broker", (), "give one of --standalone"),
    ],
)
def test_bad_configuration_exits_with_2(program: str, arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    arguments = tuple(str(tmp_path / text) if text == "d" else text for text in arguments)
    done = run(program, "run", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_broker_whose_port_is_in_use_exits_with_2_and_names_the_address(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for flag in ("--listen", "--control-listen", "--http"):
            arguments = dict(zip(ANYWHERE[::2], ANYWHERE[1::2], strict=True)) | {flag: address}
            flags = [text for pair in arguments.items() for text in pair]
            done = run("broker", "run", "--standalone", "--data-dir", tmp_path / flag, *flags)
            assert (done.returncode, done.stdout) == (2, ""), done.stderr
            where = {"--listen": f"default={address}", "--http": f"{address} (http.listen)"}.get(flag, address)
            assert f"cannot listen on {where}: Address already in use (next: stop the process " in done.stderr
            assert not (tmp_path / flag).exists(), "found before anything was written"


def test_a_directory_in_use_exits_with_2(standalone: Server) -> None:
    done = run("broker", "run", "--standalone", "--data-dir", standalone.fields["data_dir"], *ANYWHERE)
    assert done.returncode == 2
    assert standalone.fields["data_dir"] in done.stderr
    assert str(standalone.process.pid) in done.stderr


def test_a_broker_on_the_directory_of_a_running_voter_does_not_change_it(
    start_server: StartServer, tmp_path: Path
) -> None:
    root = tmp_path / "v"
    arguments = ("--standalone", "--data-dir", root, "--node-id", "1", "--listen", "127.0.0.1:0", "--http", "off")
    voter = start_server("quorum-node", *arguments)
    before = {path.name: path.read_bytes() for path in root.iterdir() if path.is_file()}
    control = voter.fields["control"]
    done = run("broker", "run", "--data-dir", root, "--node-id", "14", "--controllers", control, *ANYWHERE)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"is in use by process {voter.process.pid}" in done.stderr
    assert "the previous process" not in done.stderr
    assert {path.name: path.read_bytes() for path in root.iterdir() if path.is_file()} == before
    voter.process.kill()
    voter.process.wait()
    again = start_server("quorum-node", *arguments)
    assert again.stop() == 0
    lines = again.errors()
    assert "the previous process recorded no cause" in lines
    assert "the previous process failed" not in lines


def test_a_directory_of_another_node_exits_with_2(start_server: StartServer, tmp_path: Path) -> None:
    assert start_server("broker", "--standalone", "--data-dir", tmp_path, *ANYWHERE).stop() == 0
    done = run("broker", "run", "--standalone", "--data-dir", tmp_path, "--node-id", "7", *ANYWHERE)
    assert done.returncode == 2
    assert "7" in done.stderr


def test_a_damaged_store_exits_with_7(start_server: StartServer, tmp_path: Path) -> None:
    assert start_server("broker", "--standalone", "--data-dir", tmp_path, *ANYWHERE).stop() == 0
    (database,) = [path for path in (tmp_path / "quorum").iterdir() if path.suffix in (".db", ".sqlite")]
    size = database.stat().st_size
    with database.open("r+b") as file:
        file.write(b"\xff" * size)
    done = run("broker", "run", "--standalone", "--data-dir", tmp_path, *ANYWHERE)
    assert done.returncode == 7, done.stderr
    assert database.name in done.stderr
    assert database.stat().st_size == size  # nothing was created again


def test_config_prints_values_and_sources(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('broker.rack = "r1"\n')
    done = run("broker", "config", "--standalone", "--config", file, "--set", "logging.level=debug")
    assert done.returncode == 0
    assert f'broker.rack = "r1"  # file {file}' in done.stdout
    assert 'logging.level = "debug"  # --set' in done.stdout
    assert "quorum.standalone = true  # --standalone" in done.stdout
    wrong = run("broker", "config", "--set", "x=1")
    assert wrong.returncode == 2
    assert "node.id" in wrong.stdout
    assert "unknown key 'x'" in wrong.stderr


def test_config_with_a_closed_output_is_not_an_error() -> None:
    command = [sys.executable, "-P", "-m", "broker.cli", "config", "--standalone", "--data-dir", "d"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(30) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_config_whose_output_cannot_be_written_fails_with_one_line() -> None:
    command = [sys.executable, "-P", "-m", "broker.cli", "config", "--standalone", "--data-dir", "d"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment(), check=False)
    said = "broker: cannot write the settings: No space left on device (next: check the output)\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_servers_import_only_modules_that_they_need() -> None:
    code = "import broker.cli, broker.server.process, quorumlog_server.quorum_node, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, env=environment()
    )
    modules = set(done.stdout.split())
    assert "broker.kafka.listener" in modules
    assert not {"click", "rich", "pyspark", "numpy", "pyarrow", "simulation"} & modules


@pytest.mark.parametrize("wait_s", [0, 0.002])
def test_a_second_signal_stops_a_server_at_once(start_server: StartServer, tmp_path: Path, wait_s: float) -> None:
    server = start_server("broker", "--standalone", "--data-dir", tmp_path / "d", *ANYWHERE)
    server.process.terminate()
    time.sleep(wait_s)  # the second signal comes at various points of the stop
    server.process.terminate()
    assert server.process.wait(20) in (0, 1, -signal.SIGTERM), server.errors()
