"""Measures the limits of this machine: no figure of a cluster can be better than these."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from statistics import median

ROUNDS = 200
COPY_BYTES = 64 << 20


def floors() -> dict[str, float]:
    """Return the median times of a durable write and of a round trip on the loopback, and the speed of memcpy."""
    return {
        "fdatasync_4_kib_ms": round(_fdatasync_ms(), 3),
        "loopback_round_trip_ms": round(_round_trip_ms(), 3),
        "memcpy_gb_s": round(_memcpy_gb_s(), 1),
    }


def _fdatasync_ms() -> float:
    taken = []
    with tempfile.TemporaryFile() as file:
        for number in range(ROUNDS):
            began = time.perf_counter()
            os.pwrite(file.fileno(), bytes(4096), 4096 * number)
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - began)
    return median(taken) * 1e3


def _round_trip_ms() -> float:
    def echo(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            while data := connection.recv(64):
                connection.sendall(data)

    taken = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=echo, args=(server,))
        thread.start()
        with socket.create_connection(server.getsockname()) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(ROUNDS):
                began = time.perf_counter()
                client.sendall(b"ping")
                client.recv(64)
                taken.append(time.perf_counter() - began)
        thread.join()
    return median(taken) * 1e3


def _memcpy_gb_s() -> float:
    source = bytearray(COPY_BYTES)
    target = bytearray(COPY_BYTES)
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        memoryview(target)[:] = source
        taken.append(time.perf_counter() - began)
    return COPY_BYTES / median(taken) / 1e9
