"""kctl dev: the plan, the stored record, and protection of other programs' processes and files."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from broker.cli import make_parser as broker_parser
from quorumlog.errors import ClusterError, ConfigError, QuorumlogError
from quorumlog.kctl import dev, dev_cluster, processes
from quorumlog.kctl.context import wait_until
from quorumlog.kctl.dev_cluster import DevCluster, Node
from quorumlog.kctl.main import run as kctl
from quorumlog.runtime import config as configuration
from quorumlog_server.quorum_node import make_parser as node_parser

SLEEPER = "import sys; sys.stdin.read()"


def test_the_plan_has_ids_ports_and_commands_that_the_servers_accept(tmp_path: Path) -> None:
    cluster = dev_cluster.plan(tmp_path, 3, 3, 21_000, made_dir=False)
    assert [(node.role, node.id) for node in cluster.nodes] == [
        ("voter", 1), ("voter", 2), ("voter", 3), ("broker", 11), ("broker", 12), ("broker", 13),
    ]  # fmt: skip
    ports = [address for node in cluster.nodes for address in (node.control, node.http, node.listen) if address]
    assert len(set(ports)) == len(ports) == 3 * 2 + 3 * 3
    for node in cluster.nodes:
        role, parser = ("quorum-node", node_parser()) if node.role == "voter" else ("broker", broker_parser())
        module = "quorumlog_server.quorum_node" if node.role == "voter" else "broker.cli"
        assert node.command[:4] == [sys.executable, "-P", "-m", module]
        config = configuration.load(role, parser.parse_args(node.command[4:]), {})
        assert (config.node_id, config.cluster_id) == (node.id, cluster.cluster_id)
    assert len(cluster.controllers.split(",")) == len(cluster.bootstrap.split(",")) == 3


def test_ports_in_use_are_skipped(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        cluster = dev_cluster.plan(tmp_path, 1, 0, port, made_dir=False)
    assert cluster.nodes[0].control != f"127.0.0.1:{port}"


async def test_a_node_is_not_started_if_another_program_uses_one_of_its_ports(tmp_path: Path) -> None:
    """The other program might be a node of another cluster, which would report that it is ready."""
    cluster = dev_cluster.plan(tmp_path, 1, 1, 22_000, made_dir=False)
    broker = cluster.nodes[1]
    assert broker.listen is not None
    for attribute in ("control", "http", "listen"):
        with socket.socket() as taken:
            taken.bind((dev_cluster.HOST, 0))
            taken.listen()
            address = f"{dev_cluster.HOST}:{taken.getsockname()[1]}"
            broken = replace(broker)
            setattr(broken, attribute, address)
            with pytest.raises(
                QuorumlogError, match=f"broker-11 cannot start: another program uses its address {address}"
            ):
                await dev_cluster.start(replace(cluster, nodes=[broken]), 1, lambda _line: None)
            assert broken.pid == 0


async def test_all_ports_that_other_programs_use_are_named_before_any_node_is_started(tmp_path: Path) -> None:
    cluster = dev_cluster.plan(tmp_path, 1, 1, 22_000, made_dir=False)
    voter, broker = (replace(node) for node in cluster.nodes)
    with socket.socket() as one, socket.socket() as two, socket.socket() as three:
        taken = []
        for each in (one, two, three):
            each.bind((dev_cluster.HOST, 0))
            each.listen()
            taken.append(f"{dev_cluster.HOST}:{each.getsockname()[1]}")
        broker.control, broker.http, voter.http = taken
        with pytest.raises(QuorumlogError) as refused:
            await dev_cluster.start(replace(cluster, nodes=[voter, broker]), 1, lambda _line: None)
    assert refused.value.message == (
        f"voter-1 cannot start: another program uses its address {taken[2]}; "
        f"broker-11 cannot start: other programs use its addresses {taken[0]}, {taken[1]}"
    )
    assert (voter.pid, broker.pid) == (0, 0)


def test_a_plan_without_enough_free_ports_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no free port"):
        dev_cluster.plan(tmp_path, 9, 64, 65_500, made_dir=False)


@pytest.mark.parametrize("existed", [True, False])
def test_dev_up_without_enough_free_ports_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existed: bool
) -> None:
    monkeypatch.setattr(dev_cluster, "PORT_MAX", 65_010)
    home = tmp_path / "cluster"
    if existed:
        home.mkdir()
    up = ["dev", "up", "--dir", str(home), "--voters", "9", "--brokers", "64", "--port-base", "65000"]
    assert kctl(up) == 2
    assert sorted(tmp_path.rglob("*")) == ([home] if existed else [])


def test_the_stored_cluster_is_loaded_unchanged_and_a_broken_file_is_reported(tmp_path: Path) -> None:
    assert dev_cluster.load(tmp_path) is None
    cluster = dev_cluster.plan(tmp_path, 1, 1, 22_000, made_dir=True)
    cluster.save()
    assert dev_cluster.load(tmp_path) == cluster
    document = json.loads((tmp_path / "cluster.json").read_text())
    assert document["controllers"] == cluster.controllers
    for broken in ("", "[]", '{"nodes": [{}]}'):
        (tmp_path / "cluster.json").write_text(broken)
        with pytest.raises(ConfigError, match=r"cluster\.json"):
            dev_cluster.load(tmp_path)


def test_a_cluster_of_an_older_release_is_loaded_with_current_module_names(tmp_path: Path) -> None:
    cluster = dev_cluster.plan(tmp_path, 1, 1, 22_000, made_dir=True)
    cluster.save()
    path = tmp_path / "cluster.json"
    path.write_text(path.read_text().replace("quorumlog_server.quorum_node", "quorum.cli"))
    assert dev_cluster.load(tmp_path) == cluster


def test_a_port_base_that_differs_from_the_clusters_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[DevCluster] = []

    async def start(cluster: DevCluster, *_: object) -> None:
        started.append(cluster)

    async def set_defaults(*_: object) -> bool:
        return False

    monkeypatch.setattr(dev_cluster, "start", start)
    monkeypatch.setattr(dev, "_set_defaults", set_defaults)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        base = taken.getsockname()[1]
        up = ["dev", "up", "--dir", str(tmp_path), "--voters", "1", "--brokers", "1"]
        assert kctl([*up, "--port-base", str(base)]) == 0
    cluster = dev_cluster.load(tmp_path)
    assert cluster is not None
    assert cluster.first_port > base == cluster.port_base
    assert kctl([*up, "--port-base", str(base)]) == 0, "the repeated command is accepted"
    assert kctl(up) == 0
    capsys.readouterr()
    assert kctl([*up, "--port-base", str(base - 1)]) == 5
    assert f"keeps its ports, from {cluster.first_port} on, and cannot move to" in capsys.readouterr().err
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "port_base": None}))
    assert kctl([*up, "--port-base", str(cluster.first_port)]) == 0
    assert kctl([*up, "--port-base", str(base)]) == 5
    assert len(started) == 4


def test_an_interrupt_after_the_start_does_not_say_that_the_nodes_were_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def start(*_: object) -> None: ...

    async def set_defaults(*_: object) -> bool:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # as a terminal does
        await asyncio.sleep(60)
        return False

    monkeypatch.setattr(dev_cluster, "start", start)
    monkeypatch.setattr(dev, "_set_defaults", set_defaults)
    home = tmp_path / "my cluster"
    assert kctl(["dev", "up", "--dir", str(home), "--voters", "1", "--brokers", "1"]) == 130
    assert f"the cluster runs; to stop it: kctl dev down --dir '{home}'" in capsys.readouterr().err
    assert dev_cluster.load(home) is not None


def test_two_commands_on_one_folder_exclude_each_other(tmp_path: Path) -> None:
    with (
        dev_cluster.locked(tmp_path),
        pytest.raises(ClusterError, match="another kctl dev") as caught,
        dev_cluster.locked(tmp_path),
    ):
        pass
    assert caught.value.retriable


def test_dev_down_stops_nodes_that_were_started_while_it_waited_for_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "cluster"
    home.mkdir()
    cluster = dev_cluster.plan(home, 1, 1, 23_000, made_dir=True)
    cluster.save()
    locked = dev_cluster.locked
    stopped: list[int] = []

    @contextmanager
    def late(directory: Path) -> Iterator[None]:
        with locked(directory):
            cluster.nodes[1].pid = 12345
            cluster.save()
            yield

    async def stop_nodes(nodes: list[Node], *_: object) -> None:
        stopped.extend(one.pid for one in nodes)

    monkeypatch.setattr(dev_cluster, "locked", late)
    monkeypatch.setattr(dev_cluster, "stop_nodes", stop_nodes)
    assert kctl(["dev", "down", "--dir", str(home)]) == 0
    assert stopped == [0, 12345]
    assert not home.exists()


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    code = f"print(flush=True); {SLEEPER}"
    with subprocess.Popen(
        [sys.executable, "-c", code, "/data/of/a/stranger"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # a process that has only just started has no arguments yet, and counts as recorded
        yield process
        process.kill()


def node(process: subprocess.Popen[bytes], mark: str | None, data_dir: str, home: Path) -> Node:
    return Node(
        "voter", 1, "127.0.0.1:1", "127.0.0.1:2", data_dir, str(home / "log"), [], None, process.pid, mark or ""
    )


def test_a_process_that_is_being_started_counts_as_running(
    stranger: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = processes.start_mark(stranger.pid)
    assert mark is not None
    monkeypatch.setattr(processes, "command_line", lambda _pid: [])
    assert processes.is_ours(stranger.pid, mark, "/data")
    assert not processes.is_ours(stranger.pid, "another start time", "/data")
    stranger.kill()
    stranger.wait()
    assert not processes.is_ours(stranger.pid, mark, "/data")


async def test_stop_nodes_ends_only_the_recorded_process(stranger: subprocess.Popen[bytes], tmp_path: Path) -> None:
    mark = processes.start_mark(stranger.pid)
    assert mark is not None
    said: list[str] = []
    wrong = [
        node(stranger, "another start time", "/data/of/a/stranger", tmp_path),  # the pid was reused meanwhile
        node(stranger, mark, "/data/of/mine", tmp_path),
        Node("voter", 2, "", "", "/x", "", []),  # never started
    ]
    await dev_cluster.stop_nodes(wrong, said.append)
    assert stranger.poll() is None
    assert said == []
    right = node(stranger, mark, "/data/of/a/stranger", tmp_path)
    assert right.is_running
    await dev_cluster.stop_nodes([right], said.append)
    assert not right.is_running
    assert said == ["voter-1 has stopped"]


async def test_a_process_that_does_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev_cluster, "STOP_TIMEOUT_S", 0.1)
    code = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        said: list[str] = []
        await dev_cluster.stop_nodes(
            [node(process, processes.start_mark(process.pid), str(tmp_path), tmp_path)], said.append
        )
        assert said == ["voter-1 did not stop within 0.1 s: killed"]


def test_removal_deletes_only_files_that_dev_up_created(tmp_path: Path) -> None:
    home, theirs = tmp_path / "dev", tmp_path / "theirs" / "data"
    theirs.mkdir(parents=True)
    (home / "voter-1" / "data").mkdir(parents=True)
    (home / "notes.txt").write_text("mine")
    cluster = DevCluster(str(home), "c", made_dir=True)
    cluster.nodes = [
        Node("voter", 1, "", "", str(home / "voter-1" / "data"), "", []),
        Node("voter", 2, "", "", str(theirs), "", []),  # a record that was tampered with
    ]
    cluster.save()
    dev_cluster.remove(cluster)
    assert sorted(os.listdir(home)) == ["notes.txt"]
    assert theirs.is_dir()


async def test_dev_start_shows_the_log_of_a_node_that_failed_and_stops_the_others(tmp_path: Path) -> None:
    cluster = dev_cluster.plan(tmp_path, 1, 1, 23_000, made_dir=False)
    sleeper = [sys.executable, "-c", "import signal; print('here'); signal.pause()", cluster.nodes[0].data_dir]
    cluster.nodes[0].command = sleeper
    cluster.nodes[1].command = [
        sys.executable,
        "-c",
        "print('port taken by a cat'); raise SystemExit(2)",
        cluster.nodes[1].data_dir,
    ]
    said: list[str] = []
    with pytest.raises(QuorumlogError, match="broker-11 ended before it was ready; the nodes were stopped"):
        await dev_cluster.start(cluster, 60, said.append)
    assert "  port taken by a cat" in said
    assert not any(each.is_running for each in cluster.nodes)
    assert processes.start_mark(cluster.nodes[0].pid) != cluster.nodes[0].mark


async def test_dev_start_stops_nodes_that_are_not_ready_within_the_timeout(tmp_path: Path) -> None:
    cluster = dev_cluster.plan(tmp_path, 1, 0, 24_000, made_dir=False)
    cluster.nodes[0].command = [sys.executable, "-c", "import signal; signal.pause()", cluster.nodes[0].data_dir]
    with pytest.raises(QuorumlogError, match=r"voter-1 was not ready within 0\.2 s"):
        await dev_cluster.start(cluster, 0.2, lambda _line: None)
    assert not cluster.nodes[0].is_running


async def test_an_interrupted_dev_start_stops_its_nodes(tmp_path: Path) -> None:
    cluster = dev_cluster.plan(tmp_path, 1, 0, 25_000, made_dir=False)
    cluster.nodes[0].command = [sys.executable, "-c", "import signal; signal.pause()", cluster.nodes[0].data_dir]
    started = asyncio.Event()
    task = asyncio.create_task(dev_cluster.start(cluster, 600, lambda _line: started.set()))
    await asyncio.wait_for(started.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not cluster.nodes[0].is_running


async def test_a_second_interrupt_kills_the_nodes_that_do_not_stop(tmp_path: Path) -> None:
    """Their record is deleted afterwards, so `kctl dev down` could not stop them."""
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
    cluster = dev_cluster.plan(tmp_path, 1, 1, 25_500, made_dir=False)
    for each in cluster.nodes:
        each.command = [sys.executable, "-c", code, each.data_dir]
    said: list[str] = []
    task = asyncio.create_task(dev_cluster.start(cluster, 600, said.append))

    async def ignore_sigterm() -> bool:
        return all(processes.last_lines(Path(each.log), 1) for each in cluster.nodes)

    await wait_until(ignore_sigterm, 60, "the nodes ignored SIGTERM", interval_s=0.02)
    task.cancel()
    await asyncio.wait({task}, timeout=0.1)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    left = [each.name for each in cluster.nodes if not await processes.gone(each.pid, each.mark, 10)]
    for each in cluster.nodes:
        processes.send(each.pid, signal.SIGKILL)
    assert left == []


def test_an_ended_process_has_no_start_mark_and_gets_no_signal() -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert processes.start_mark(process.pid) is None  # a zombie counts as ended
    assert processes.start_mark(process.pid) is None
    processes.send(process.pid, signal.SIGTERM)
    assert processes.command_line(process.pid) == []


def test_a_process_counts_as_running_until_its_last_thread_has_ended() -> None:
    """Threads of a killed process may end after its main thread.  Until then its ports are in use."""
    program = """
import ctypes, sys, threading
threading.Thread(target=sys.stdin.read).start()
print("ready", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
        assert processes.start_mark(process.pid) is not None
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert processes.start_mark(process.pid) is None
