"""Reads files and standard input as their bytes arrive.

A read from a pipe, a named pipe, a socket or a terminal may wait for a writer.  Such a read must not block the event
loop or a thread, because Ctrl-C and the time limit of the command could not end it.
"""

from __future__ import annotations

import asyncio
import io
import os
import socket
import stat
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import BinaryIO

from quorumlog.kctl.streams import standard_input

CHUNK_BYTES = 256 * 1024
STANDARD_INPUT = "-"


async def chunks(file: str, what: str) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a file, or of standard input for `-`.

    what: the data that is read, in words.

    Raises:
        click.UsageError: standard input is closed.
        OSError: the file cannot be read.
    """
    loop = asyncio.get_running_loop()
    if file == STANDARD_INPUT:
        descriptor = _standard_input(what)
    else:
        descriptor = await loop.run_in_executor(None, _open_at_once, file)
    if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        async with aclosing(_from_socket(descriptor)) as arriving:
            async for chunk in arriving:
                yield chunk
        return
    with os.fdopen(descriptor, "rb") as source:
        if not _may_block(source):
            while chunk := await loop.run_in_executor(None, os.read, descriptor, CHUNK_BYTES):
                yield chunk
            return
        reader = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
        try:
            while chunk := await reader.read(CHUNK_BYTES):
                yield chunk
        finally:
            transport.close()


async def _from_socket(descriptor: int) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a socket, and close the descriptor.

    The socket must stay blocking: standard output is often the same socket (sshd, inetd), and Python loses output to a
    non-blocking descriptor.
    """
    loop = asyncio.get_running_loop()
    with socket.socket(fileno=descriptor) as source:
        while True:
            readable = asyncio.Event()
            loop.add_reader(descriptor, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(descriptor)
            try:
                chunk = source.recv(CHUNK_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:  # another process that has the socket was faster
                continue
            if not chunk:
                return
            yield chunk


async def read(file: str, what: str, size_max: int) -> bytes:
    """Return the contents of a file, or of standard input, as `chunks` does.

    Contents of more than `size_max` bytes may be incomplete, but then the result also has more than `size_max` bytes.

    Raises:
        click.UsageError, OSError: as `chunks`.
    """
    found = bytearray()
    async with aclosing(chunks(file, what)) as arriving:
        async for chunk in arriving:
            found += chunk
            if len(found) > size_max:
                break
    return bytes(found)


def text_of(data: bytes, errors: str = "strict") -> str:
    """Decode the contents of a text file, and replace the line ends of other systems.

    Raises:
        UnicodeDecodeError: the data is not UTF-8, and `errors` is "strict".
    """
    return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", errors=errors).read()


def _standard_input(what: str) -> int:
    """Return a descriptor for standard input, which the caller closes.

    Reads must not block.  If the descriptor of a terminal became non-blocking, writes to standard output could fail,
    because it often shares the terminal.  So a terminal is opened anew.
    """
    source = standard_input(what).buffer
    if source.isatty():
        with suppress(OSError):  # its name may belong to another mount namespace
            return _open_at_once(os.ttyname(source.fileno()))
    return os.dup(source.fileno())


def _open_at_once(path: str) -> int:
    """Open a file for reading, without waiting for a writer if it is a named pipe."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def _may_block(source: BinaryIO) -> bool:
    """Return whether a read may wait for a writer.

    epoll refuses files and devices like /dev/null.  asyncio notices that only in a callback, and the reader would wait
    permanently.
    """
    mode = os.fstat(source.fileno()).st_mode
    return stat.S_ISFIFO(mode) or source.isatty()
