"""A network of its own for a few processes, whose cables can be pulled.

Everything lives in namespaces of one process (user, network, pid): no name of the machine changes, no privilege is
needed if user namespaces are allowed, and everything ends with that process, regardless of how it ends.  `alone` starts
it.

Each node has two links: one to a switch, which connects the nodes, and one to this process, over which a test can reach
a disconnected node.  A pulled cable silently loses every packet, in both directions.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).parents[3]
CONTROL_PORT = 9093
ALONE = ("unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--mount-proc", "--kill-child")


def refusal() -> str | None:
    """Return why this machine does not permit a network of our own; None if it does."""
    command = "ip link add switch type bridge && ip link add one type veth peer name other && unshare --net true"
    try:
        tried = subprocess.run([*ALONE, "sh", "-c", command], capture_output=True, text=True, timeout=30, check=False)
    except FileNotFoundError:
        return "there is no unshare(1)"
    return None if tried.returncode == 0 else f"namespaces are not allowed here: {tried.stderr.strip()}"


async def alone(module: str, *arguments: str | Path) -> tuple[int, str]:
    """Run a module in namespaces of its own; return its status and output."""
    process = await asyncio.create_subprocess_exec(
        *ALONE,
        *(sys.executable, "-P", "-m", module, *map(str, arguments)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
    )
    try:
        output, _ = await process.communicate()
    except BaseException:
        process.kill()
        raise
    assert process.returncode is not None
    return process.returncode, output.decode(errors="replace")


class Lan:
    """Hosts 1 to `count`; `async with` sets them up."""

    def __init__(self, count: int) -> None:
        self._hosts = range(1, count + 1)
        self._holders: dict[int, asyncio.subprocess.Process] = {}

    def address(self, host: int) -> str:
        """Return the address at which the other hosts reach this host."""
        return f"10.9.0.{host}"

    def side_door(self, host: int) -> str:
        """Return the address at which this process reaches the host, even while the host is disconnected."""
        return f"10.8.{host}.2"

    async def __aenter__(self) -> Lan:
        await _ip("link", "set", "lo", "up")
        await _ip("link", "add", "switch", "type", "bridge")
        await _ip("addr", "add", "10.9.0.254/24", "dev", "switch")
        await _ip("link", "set", "switch", "up")
        for host in self._hosts:
            self._holders[host] = await _holder()
            await self._connect(host)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for holder in self._holders.values():
            holder.kill()
            await holder.wait()

    async def _connect(self, host: int) -> None:
        where = str(self._holders[host].pid)
        for link, inside, address in (
            (f"lan{host}", "lan", f"{self.address(host)}/24"),
            (f"door{host}", "door", f"{self.side_door(host)}/24"),
        ):
            await _ip("link", "add", link, "type", "veth", "peer", "name", inside, "netns", where)
            await _run(*self.inside(host), "ip", "addr", "add", address, "dev", inside)
            await _run(*self.inside(host), "ip", "link", "set", inside, "up")
        await _run(*self.inside(host), "ip", "link", "set", "lo", "up")
        await _ip("addr", "add", f"10.8.{host}.1/24", "dev", f"door{host}")
        await _ip("link", "set", f"door{host}", "up")
        await _ip("link", "set", f"lan{host}", "master", "switch", "up")

    def inside(self, host: int) -> tuple[str, ...]:
        """Return the prefix of a command that runs it on this host."""
        return ("nsenter", "--target", str(self._holders[host].pid), "--net", "--")

    async def cut(self, host: int) -> None:
        """Pull its cable out of the switch."""
        await _ip("link", "set", f"lan{host}", "nomaster")

    async def heal(self, host: int) -> None:
        await _ip("link", "set", f"lan{host}", "master", "switch")


async def _holder() -> asyncio.subprocess.Process:
    """Start a process that only holds a network namespace."""
    holder = await asyncio.create_subprocess_exec(
        *("unshare", "--net", "sh", "-c", "echo there; exec sleep infinity"), stdout=asyncio.subprocess.PIPE
    )
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"there\n"
    return holder


async def _ip(*arguments: str) -> None:
    await _run("ip", *arguments)


async def _run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, complaint = await process.communicate()
    assert process.returncode == 0, (command, complaint)
