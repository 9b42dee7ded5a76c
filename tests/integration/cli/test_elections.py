"""Leaders when brokers are killed and restart: real processes and the real kctl."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .conftest import Server, StartServer, run_kctl

WAIT_S = 60
FAST = ("--set", "broker.session.timeout.ms=1500", "--set", "broker.heartbeat.interval.ms=200")
PORTS = ("--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--http", "off")


class Brokers:
    """Broker 1 is the controller as well; 2 and 3 join it."""

    def __init__(self, start: StartServer, root: Path) -> None:
        self._start = start
        self._root = root
        self.servers: dict[int, Server] = {}
        self.control = ""
        for broker_id in (1, 2, 3):
            self.start(broker_id)

    def start(self, broker_id: int) -> None:
        directory = ("--data-dir", self._root / str(broker_id))
        if broker_id == 1:
            server = self._start("broker", "--standalone", *directory, *PORTS, *FAST)
            self.control = server.fields["control"]
        else:
            joining = ("--node-id", broker_id, "--controllers", self.control)
            server = self._start("broker", *joining, *directory, *PORTS, *FAST)
        assert server.ready_line.startswith("ready "), server.errors()
        self.servers[broker_id] = server

    def kill(self, broker_id: int) -> None:
        self.servers[broker_id].process.send_signal(signal.SIGKILL)
        self.servers[broker_id].process.wait(WAIT_S)
        self.until(lambda: self.state(broker_id) == "fenced", f"{broker_id} is fenced")

    def kctl(self, *arguments: str) -> tuple[int, Any]:
        done = run_kctl("--controllers", self.control, "-o", "json", *arguments)
        text = done.stdout if done.returncode == 0 else done.stderr.strip().splitlines()[-1]
        return done.returncode, json.loads(text)

    def ok(self, *arguments: str) -> Any:
        code, document = self.kctl(*arguments)
        assert code == 0, document
        return document

    def state(self, broker_id: int) -> str:
        return next(str(each["state"]) for each in self.ok("brokers", "list") if each["id"] == broker_id)

    def partition(self, topic: str, index: int = 0) -> tuple[int | None, list[int], list[int]]:
        found = self.ok("topics", "describe", topic)[0]["partitions"][index]
        return found["leader"], sorted(found["isr"]), found["elr"]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """kctl has no option to wait for this: poll."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"never: {what}"
            time.sleep(0.05)  # another process, which sends no event: poll


def test_killed_leaders_are_replaced_and_may_be_elected_again(start_node: StartServer, tmp_path: Path) -> None:
    brokers = Brokers(start_node, tmp_path)
    brokers.ok("topics", "create", "t", "--assignment", "2:3:1", "--config", "min.insync.replicas=2", "--wait")
    assert brokers.partition("t") == (2, [1, 2, 3], [])

    brokers.kill(2)
    assert brokers.partition("t") == (3, [1, 3], [])
    code, refused = brokers.kctl("elect-leaders", "--preferred", "--topic", "t")
    assert (code, refused["error"]) == (4, "PREFERRED_LEADER_NOT_AVAILABLE")
    brokers.start(2)
    brokers.until(lambda: brokers.partition("t") == (3, [1, 2, 3], []), "2 is in sync again")
    elected = brokers.ok("elect-leaders", "--preferred", "--topic", "t", "--partition", "0")
    assert (elected["changed"], elected["partitions"][0]["leader"]) == (True, 2)
    assert brokers.partition("t")[0] == 2
    again = brokers.ok("elect-leaders", "--preferred", "--topic", "t")
    assert (again["changed"], again["partitions"][0]["error"]) == (False, "ELECTION_NOT_NEEDED")

    # A replica that leaves an ISR below the minimum remains eligible, and leads as soon as it restarts.
    brokers.kill(3)
    brokers.kill(2)
    assert brokers.partition("t") == (1, [1], [2])
    brokers.start(3)
    brokers.until(lambda: brokers.partition("t") == (1, [1, 3], []), "3 is in sync again")


def test_leaderships_return_automatically_if_configured(start_node: StartServer, tmp_path: Path) -> None:
    brokers = Brokers(start_node, tmp_path)
    brokers.ok("configs", "set", "--cluster", "leader.rebalance.interval.ms=1000")
    brokers.ok("topics", "create", "t", "--assignment", "2:3:1,3:1:2", "--wait")
    brokers.kill(2)
    assert brokers.partition("t")[0] == 3
    brokers.start(2)
    brokers.until(lambda: brokers.partition("t") == (2, [1, 2, 3], []), "2 leads again without a request")
    chain = brokers.ok("explain", "t-0")["chain"]
    assert chain[-1]["reason"] == "preferred_balance"
    assert brokers.partition("t", 1)[0] == 3, "which leads the partitions that prefer it"


def test_an_unclean_election_is_made_on_request(start_node: StartServer, tmp_path: Path) -> None:
    brokers = Brokers(start_node, tmp_path)
    brokers.ok("topics", "create", "u", "--assignment", "2:3", "--wait")
    brokers.kill(3)
    brokers.kill(2)
    code, refused = brokers.kctl("elect-leaders", "--unclean", "--topic", "u")
    assert (code, refused["error"]) == (4, "ELIGIBLE_LEADERS_NOT_AVAILABLE")
    brokers.start(3)
    brokers.until(lambda: brokers.state(3) == "unfenced", "3 is unfenced")
    assert brokers.partition("u") == (None, [2], [])
    would = brokers.ok("elect-leaders", "--unclean", "--topic", "u", "--dry-run")
    assert (would["changed"], would["partitions"][0]["leader"], would["partitions"][0]["unclean"]) == (False, 3, True)
    elected = brokers.ok("elect-leaders", "--unclean")
    assert [each["topic"] for each in elected["partitions"]] == ["u"]
    assert brokers.partition("u") == (3, [3], [])


def test_a_stopped_broker_is_unregistered_once_it_has_no_replicas(start_node: StartServer, tmp_path: Path) -> None:
    brokers = Brokers(start_node, tmp_path)
    brokers.ok("topics", "create", "v", "--assignment", "3", "--wait")
    assert brokers.servers[3].stop() == 0
    brokers.until(lambda: brokers.state(3) == "fenced", "3 is fenced")
    code, refused = brokers.kctl("brokers", "unregister", "3")
    assert (code, refused["error"], refused["message"]) == (5, "BROKER_IN_USE", "broker 3 has 1 replica of v")
    brokers.ok("topics", "delete", "v")
    assert brokers.ok("brokers", "unregister", "3", "--dry-run")["changed"] is False
    assert brokers.ok("brokers", "unregister", "3")["changed"] is True
    assert [each["id"] for each in brokers.ok("brokers", "list")] == [1, 2]
    assert brokers.kctl("brokers", "unregister", "3")[0] == 3
    brokers.start(3)
    brokers.until(lambda: brokers.state(3) == "unfenced", "3 has registered again")
