"""A cluster of etcd (Debian: etcd-server) on this machine, for benches that commit small writes with it.

etcd keeps its defaults: each write is fsynced by a majority before its answer.  Only ports and folders are chosen here.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from bench.clusters import TIMEOUT_S, free_ports
from bench.processes import Servers
from tests.clients.outcomes import Skipped

ETCD: Final = "etcd"
HOST: Final = "127.0.0.1"
LOOK_S: Final = 0.1
STATUS_TIMEOUT_S: Final = 5.0
ONE_BYTE_MAX: Final = 127
"""The greatest length that protobuf encodes in one byte."""


@dataclass(frozen=True)
class EtcdCluster:
    """The running members.  addresses: HOST:PORT of each member, for clients."""

    servers: Servers
    addresses: Sequence[str]

    def leader(self) -> str:
        """Return the address of the leader, once all members agree on it."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                statuses = {address: _status(address) for address in self.addresses}
            except (OSError, HTTPException, ValueError):  # a member is starting, or knows no leader
                statuses = {}
            if (found := leader_of(statuses)) is not None:
                return found
            if time.monotonic() > deadline:
                raise RuntimeError(f"{', '.join(self.addresses)} have no leader after {TIMEOUT_S:g} s")
            time.sleep(LOOK_S)  # polls, because no event reports an election


@contextmanager
def etcd_cluster(members: int) -> Iterator[EtcdCluster]:
    """Run etcd until the block ends.

    Raises:
        Skipped: etcd is not installed.
    """
    program = shutil.which("etcd")
    if program is None:
        raise Skipped("etcd is not installed (Debian: the package etcd-server)")
    ports = free_ports(2 * members)
    peers = {f"member-{number}": f"http://{HOST}:{port}" for number, port in enumerate(ports[:members])}
    addresses = [f"{HOST}:{port}" for port in ports[members:]]
    everyone = ",".join(f"{name}={url}" for name, url in peers.items())
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="etcd-bench-")))
        pids = []
        for (name, peer), address in zip(peers.items(), addresses, strict=True):
            command = [program, "--name", name, "--data-dir", str(folder / name)]
            command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
            command += ["--listen-client-urls", f"http://{address}", "--advertise-client-urls", f"http://{address}"]
            command += ["--initial-cluster", everyone, "--initial-cluster-state", "new"]
            log = stack.enter_context((folder / f"{name}.log").open("w"))
            process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
            pids.append(process.pid)
        cluster = EtcdCluster(Servers(ETCD, tuple(pids)), addresses)
        cluster.leader()
        yield cluster


def leader_of(statuses: dict[str, dict[str, Any]]) -> str | None:
    """Return the address of the leader if all members report the same one; otherwise None.

    statuses: the answer to Maintenance/Status, by address.  A member that knows no leader omits it.
    """
    leaders = {status.get("leader") for status in statuses.values()}
    return next((each for each, status in statuses.items() if {status["header"]["member_id"]} == leaders), None)


def _status(address: str) -> dict[str, Any]:
    """Ask a member for its status through its JSON gateway.

    Raises:
        OSError, HTTPException: the member does not answer, or answers with an error, as while it starts.
    """
    host, _, port = address.partition(":")
    connection = HTTPConnection(host, int(port), timeout=STATUS_TIMEOUT_S)
    try:
        connection.request("POST", "/v3/maintenance/status", "{}")
        response = connection.getresponse()
        if response.status != HTTPStatus.OK:
            raise HTTPException(f"{address} answered {response.status}: {response.read()!r}")
        found: dict[str, Any] = json.load(response)
        return found
    finally:
        connection.close()


def put_request(key: bytes, value: bytes) -> bytes:
    """Return an encoded etcdserverpb.PutRequest: field 1 is `key`, field 2 is `value`, both of the type bytes.

    A field of bytes is its tag (its number times 8, plus 2), its length, and its contents.
    """
    assert len(key) <= ONE_BYTE_MAX, key
    assert len(value) <= ONE_BYTE_MAX, value
    return bytes([1 << 3 | 2, len(key)]) + key + bytes([2 << 3 | 2, len(value)]) + value


class EtcdClient:
    """Puts values through one member; an async context manager.  Without generated stubs, so answers stay bytes."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])
        self._put: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary("/etcdserverpb.KV/Put")

    async def __aenter__(self) -> EtcdClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def put(self, request: bytes) -> None:
        """Return when the write is committed.

        During an election, etcd refuses writes as UNAVAILABLE.  Then the write is sent again, as by our own client.

        Raises:
            grpc.aio.AioRpcError: refused for another reason.
        """
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                try:
                    await self._put(request, timeout=TIMEOUT_S)
                    return
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.UNAVAILABLE:
                        raise
                await asyncio.sleep(LOOK_S)
