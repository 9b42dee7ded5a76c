"""Reads a quorum directory or a snapshot, offline: `python -m quorumlog_server.dump PATH`.

`kctl metadata dump` runs this program, because kctl imports no package of the servers.  The program writes its findings
to standard output as frames: kind (1 byte), length (4 bytes, big-endian), content.

    I  JSON: what is being read            N  DescribeMetadataReply: names of the topics where the log begins
    B  MetadataBatch of the log            S  DescribeMetadataReply: the state that a snapshot holds
    E  JSON: error, message, next; the last frame, if reading failed

Nothing is written to the directory.  SQLite folds the write-ahead log into a database that it opens, so the program
opens a copy: it copies the log's files and links to the snapshots.  The store itself opens the copy, with all its
checks, so the program refuses everything that the store would refuse, with the same error.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import shutil
import signal
import struct
import sys
import tempfile
from collections.abc import Callable, Sequence

from google.protobuf.message import DecodeError

from metadata.controller.describe import describe_metadata
from metadata.controller.node_service import batch_message
from metadata.controller.voters import addresses
from metadata.image import ClusterImage
from metadata.snapshot import ImageLoader
from quorum.codec import MalformedError
from quorum.core.types import VoterSet
from quorum.snapshot_file import SnapshotHeader, SnapshotParser, snapshot_name
from quorum.store import SqliteQuorumStore
from quorum.store.directory import DATABASE, IDENTITY, LOCK, WAL, Identity, find_identity, unused, write_mark
from quorumlog.errors import ClusterError, CorruptStoreError, FatalError, QuorumlogError
from quorumlog.runtime.clock import Sources
from quorumlog.wire.errors import ApiError
from quorumlog.words import uuid_text

QUORUM_FOLDER = "quorum"
SNAPSHOT_SUFFIX = ".snapshot"
READ_BYTES = 1 << 20
FRAME = struct.Struct(">cI")
RUNNING_STEP = "ask the node: kctl metadata tail --from beginning; or stop it first"

Emit = Callable[[bytes, bytes], None]


def main() -> None:
    """Run the program.  Arguments: the path and, for a snapshot, names of topics."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the copy is deleted
    try:
        dump(sys.argv[1], sys.argv[2:], _emit)
    except BrokenPipeError:  # the reader has closed its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (QuorumlogError, OSError) as error:
        _emit(b"E", json.dumps(_error(error)).encode())
        sys.exit(1)


def _emit(kind: bytes, content: bytes) -> None:
    sys.stdout.buffer.write(FRAME.pack(kind, len(content)) + content)
    sys.stdout.buffer.flush()


def _error(error: QuorumlogError | OSError) -> dict[str, str]:
    code: str = ApiError.IO_ERROR
    next_step = ""
    match error:
        case ClusterError():
            code, next_step = error.code, error.next_step
        case QuorumlogError():
            code = ApiError.CORRUPT_STORE if isinstance(error, CorruptStoreError) else ApiError.STORE_REFUSED
            next_step = error.next_step
        case FileNotFoundError():
            code = ApiError.NO_SUCH_FILE
    if isinstance(error, QuorumlogError):
        text = error.message
    else:
        text = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return {"error": code, "message": text, "next": next_step}


def dump(path: str, topics: Sequence[str], emit: Emit) -> None:
    """Read `path`: a data directory, a quorum directory, its database, or a snapshot.

    Raises:
        QuorumlogError: the path is not one of these, is in use, or is damaged.  The content before the damage was
            emitted.
        OSError: the path does not exist or cannot be read.
    """
    if os.path.isdir(path):
        for directory in (path, os.path.join(path, QUORUM_FOLDER)):
            if _exists(os.path.join(directory, DATABASE)) or _exists(os.path.join(directory, IDENTITY)):
                return asyncio.run(_dump_directory(os.path.abspath(directory), emit))
        raise ClusterError(
            ApiError.NOT_METADATA, f"{path} holds no metadata", "give a node's data directory, or a .snapshot file"
        )
    if os.path.basename(path) == DATABASE:
        return asyncio.run(_dump_directory(os.path.dirname(os.path.abspath(path)), emit))
    return asyncio.run(_dump_snapshot(path, topics, emit))


def _exists(path: str) -> bool:
    """Return whether a file exists.  Unlike `os.path.exists`, raise PermissionError if the path cannot be examined."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


# A snapshot


async def _dump_snapshot(path: str, topics: Sequence[str], emit: Emit) -> None:
    header, image = load_snapshot(path)
    base = header.base
    voters = [f"{voter.key.node_id}@{voter.address}" for voter in base.voters.voters]
    about = {
        "kind": "snapshot", "path": path, "cluster_id": base.voters.cluster_id, "end": base.end.offset,
        "epoch": base.end.epoch, "generation": base.voters.generation, "voters": voters,
    }  # fmt: skip
    emit(b"I", json.dumps(about).encode())
    state = await describe_metadata(image, base.voters.cluster_id, topics)
    if state.result.error != ApiError.NONE:
        raise ClusterError(state.result.error, state.result.message, state.result.next)
    state.history_begins = base.end.offset
    state.voters.extend(addresses(base.voters.voters))
    state.target_voters.extend(addresses(base.target or VoterSet()))
    state.timestamp_ms = header.timestamp_ms
    emit(b"S", state.SerializeToString())


def load_snapshot(path: str) -> tuple[SnapshotHeader, ClusterImage]:
    """Return the header and the image of a snapshot file.

    Raises:
        CorruptStoreError: the file is damaged.
        ClusterError: the file is not a snapshot.
        OSError: the file does not exist or cannot be read.
    """
    parser, loader = SnapshotParser(), ImageLoader(path)
    try:
        with open(path, "rb") as file:
            while data := file.read(READ_BYTES):
                for chunk in parser.feed(data):
                    loader.feed(chunk)
        return parser.finish(), loader.finish()
    except MalformedError as error:
        if parser.header is None:
            raise ClusterError(
                ApiError.NOT_METADATA,
                f"{path} is not a snapshot: {error}",
                "give a node's data directory, or a .snapshot file",
            ) from error
        raise CorruptStoreError(f"{path}: {error}", next_step="read the same snapshot of another node") from error


# A quorum directory


async def _dump_directory(directory: str, emit: Emit) -> None:
    identity = find_identity(directory)
    if identity is None:
        raise CorruptStoreError(f"{directory}: {IDENTITY} is missing", next_step="give the directory of a node")
    with _temporary_folder() as folder:
        copy = os.path.join(folder, QUORUM_FOLDER)
        try:
            os.mkdir(copy)
            copy_quietly(directory, copy)
            write_mark(copy, identity)  # else the store would warn that the copy has no mark
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise _not_copied(f"{copy}: {error.strerror}") from error  # the OSError may name a file of the node
        store = SqliteQuorumStore(copy, Sources.real())
        try:
            await _dump_store(store, directory, identity, emit)
        except QuorumlogError as error:
            if isinstance(error, FatalError) and not isinstance(error, CorruptStoreError):  # the disk of the copy
                raise _not_copied(error.message) from error
            # The store's message names the copy.
            error.message = error.message.replace(copy, directory)
            raise
        finally:
            await store.close()


def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Raises: ClusterError: no folder for temporary files can be used, for example because all disks are full."""
    try:
        return tempfile.TemporaryDirectory(prefix="quorumlog-dump-")
    except OSError as error:
        raise _not_copied(str(error.strerror)) from error  # as an OSError, it would mean that the path is missing


def _not_copied(cause: str) -> ClusterError:
    return ClusterError(
        ApiError.IO_ERROR,
        f"there is no usable copy of the log in the folder for temporary files: {cause}",
        "free space there, or set TMPDIR to a folder on another disk",
    )


async def _dump_store(store: SqliteQuorumStore, directory: str, identity: Identity, emit: Emit) -> None:
    stored = await store.open(identity.node_id, None)
    about = {
        "kind": "log", "path": directory, "node_id": stored.node_id, "directory_id": uuid_text(stored.directory_id),
        "cluster_id": stored.state.cluster_id, "epoch": stored.state.election.epoch, "begins": stored.log_start,
        "end": stored.log_end, "snapshots": [snapshot_name(end) for end in stored.snapshots],
    }  # fmt: skip
    emit(b"I", json.dumps(about).encode())
    below = [end for end in stored.snapshots if end.offset <= stored.log_start]
    if below:
        with contextlib.suppress(CorruptStoreError):  # without this snapshot, topics are shown by id
            _, image = load_snapshot(os.path.join(directory, snapshot_name(max(below, key=lambda end: end.offset))))
            names = await describe_metadata(image, stored.state.cluster_id or "", (), partitions=False)
            emit(b"N", names.SerializeToString())
    offset = stored.log_start
    while offset < stored.log_end:
        try:
            batches = await store.read(offset, stored.log_end, READ_BYTES)
        except CorruptStoreError:  # read the batches before the damage one by one
            batches = await store.read(offset, offset + 1, 1)
        if not batches:
            raise CorruptStoreError(
                f"{directory}: the log ends at offset {stored.log_end}, but has no batch at offset {offset}"
            )
        for batch in batches:
            try:
                message = batch_message(batch)
            except DecodeError as error:
                raise CorruptStoreError(f"{directory}: the batch at offset {batch.base_offset}: {error}") from error
            emit(b"B", message.SerializeToString())
        offset = batches[-1].end_offset


def copy_quietly(directory: str, copy: str) -> None:
    """Copy the files of the log, and link to the snapshots.

    If the directory has a lock file, no process can open the directory while the log is copied.

    Raises:
        StoreRefusedError: a process uses the directory.
    """
    with unused(directory, RUNNING_STEP):
        for name in (DATABASE, WAL, IDENTITY, LOCK):
            source = os.path.join(directory, name)
            if os.path.exists(source):
                shutil.copyfile(source, os.path.join(copy, name))
    for name in os.listdir(directory):
        if name.endswith(SNAPSHOT_SUFFIX):
            os.symlink(os.path.join(directory, name), os.path.join(copy, name))


if __name__ == "__main__":
    main()
