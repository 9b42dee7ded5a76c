"""kcat, the command-line tool on librdkafka: translates actions into its arguments."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable

from tests.clients.programs.python.common import (
    HEARTBEAT_MS,
    SESSION_MS,
    TIMEOUT_S,
    Action,
    Contents,
    Input,
    Partitions,
    report,
    run,
    unsupported,
)

FORMAT = '{"offset":%o,"partition":%p,"timestamp":%T,"key":"%k","value":"%s","headers":"%h"}\n'


def produce(action: Action) -> None:
    """kcat sets the same headers on all records, and no timestamps."""
    lines = []
    for number in range(action["count"]):
        one = Contents(number, action["base_ms"])
        lines.append(f"{one.key}|{one.value}")
    command = ["kcat", "-P", "-b", action["bootstrap"], "-t", action["topic"], "-p", "0", "-K", "|"]
    command += ["-z", action["compression"], "-X", f"enable.idempotence={str(action['idempotent']).lower()}"]
    subprocess.run(command, input="\n".join(lines), text=True, check=True, timeout=TIMEOUT_S)
    report("produced", offsets=list(range(action["count"])), fields=["key", "value"])


def consume(action: Action) -> None:
    start = {"beginning": "beginning", "end": "end"}.get(action["from"]) or f"s@{action['timestamp']}"
    command = ["kcat", "-C", "-b", action["bootstrap"], "-t", action["topic"], "-p", "0", "-o", start, "-u"]
    command += ["-c", str(action["count"]), "-f", FORMAT]
    if action["from"] == "end":  # kcat does not report its position: it reads from the offset that it looks up
        query = ["kcat", "-Q", "-b", action["bootstrap"], "-t", f"{action['topic']}:0:-1"]
        said = subprocess.run(query, stdout=subprocess.PIPE, text=True, check=True, timeout=TIMEOUT_S).stdout
        command[command.index("end")] = said.split()[-1]
    report("positioned")
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=TIMEOUT_S)
    for line in done.stdout.splitlines():
        record = json.loads(line)
        del record["partition"]
        headers = dict(pair.split("=", 1) for pair in record.pop("headers").split(",") if pair)
        report("record", headers=headers, **record)


def member(action: Action) -> None:
    if action["strategy"] == "consumer":
        unsupported(f"librdkafka {_librdkafka()} has only the classic protocol of groups")
    strategy = "cooperative-sticky" if action["strategy"] == "cooperative" else "range"
    settings = {
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 100,
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "partition.assignment.strategy": strategy,
    }
    if action["instance"]:
        settings["group.instance.id"] = action["instance"]
    command = ["kcat", "-b", action["bootstrap"], "-u", "-f", FORMAT]
    command += [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]
    command += ["-G", action["group"], action["topic"]]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    partitions, held = Partitions(), set[int]()

    def read_rebalances() -> None:
        for line in process.stderr or ():
            sys.stderr.write(line)
            named = {int(number) for number in re.findall(r"\[(\d+)\]", line)}
            if "rebalanced" not in line:
                continue
            if "assign" in line and "unassign" not in line:
                held.update(named)
            elif "revo" in line or "unassign" in line:
                held.difference_update(named)
            partitions.now(sorted(held))

    def read_records() -> None:
        for line in process.stdout or ():
            record = json.loads(line)
            report("record", partition=record["partition"], offset=record["offset"], value=record["value"])

    for work in (read_rebalances, read_records):
        threading.Thread(target=work, daemon=True).start()
    standard_input = Input()
    standard_input.wait()
    process.terminate()  # kcat commits and leaves
    process.wait(TIMEOUT_S)
    report("closed")


def admin(action: Action) -> None:
    """kcat lists brokers, topics and partitions, and looks up offsets."""
    command = ["kcat", "-L", "-J", "-b", action["bootstrap"]]
    said = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=TIMEOUT_S).stdout)
    report("saw", aspect="brokers", value=len(said["brokers"]))
    offsets = []
    for wanted in (-2, -1):
        query = ["kcat", "-Q", "-b", action["bootstrap"], "-t", f"{action['data']}:0:{wanted}"]
        answer = subprocess.run(query, stdout=subprocess.PIPE, text=True, check=True, timeout=TIMEOUT_S).stdout
        offsets.append(int(answer.split()[-1]))
    report("saw", aspect="offsets", value=offsets)


def transact(action: Action) -> None:
    unsupported("kcat cannot abort a transaction, or send offsets in one")


def _version() -> tuple[str, str]:
    said = subprocess.run(["kcat", "-V"], stdout=subprocess.PIPE, text=True, check=True, timeout=TIMEOUT_S).stdout
    found = re.search(r"Version (\S+) .*librdkafka (\S+)", said)
    assert found, said
    return found[1], found[2]


def _librdkafka() -> str:
    return _version()[1]


if __name__ == "__main__":
    version, library = _version()
    actions: dict[str, Callable[[Action], None]] = {
        "produce": produce,
        "consume": consume,
        "member": member,
        "admin": admin,
        "transact": transact,
    }
    run(f"{version} (librdkafka {library})", actions)
