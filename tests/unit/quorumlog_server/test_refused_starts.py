"""A start that is refused changes nothing in the data directories."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from broker.server.process import make_disks
from quorum.store import directory
from quorum.store.directory import Lock
from quorumlog.errors import StoreRefusedError
from quorumlog.runtime.addresses import DEFAULT_LISTENER, Address
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.config import BROKER, QUORUM_NODE, KafkaListener, NodeConfig
from quorumlog_server.control_plane import locked_directory, make_store

SOURCES = Sources.real()


def voter(root: Path, node_id: int = 1) -> NodeConfig:
    return NodeConfig(QUORUM_NODE, node_id, (str(root),), standalone=True)


def broker(*roots: Path, node_id: int = 14) -> NodeConfig:
    listener = KafkaListener(DEFAULT_LISTENER, Address("127.0.0.1", 0))
    return NodeConfig(BROKER, node_id, tuple(map(str, roots)), standalone=True, kafka_listeners=(listener,))


def contents(*roots: Path) -> dict[str, bytes | None]:
    return {
        str(path): path.read_bytes() if path.is_file() else None
        for root in roots
        for path in (root, *sorted(root.rglob("*")))
        if path.exists()
    }


def format_voter(root: Path) -> None:
    async def work() -> None:
        with locked_directory(voter(root)):
            store = make_store(voter(root), SOURCES)
            await store.open(1, None)
            await store.close()

    asyncio.run(work())


def refuses_broker(text: str, config: NodeConfig, *roots: Path) -> None:
    before = contents(*roots)
    with pytest.raises(StoreRefusedError, match=text):
        make_disks(config, SOURCES)
    assert contents(*roots) == before


def test_broker_on_the_directory_of_a_running_voter(tmp_path: Path) -> None:
    root = tmp_path / "v"
    format_voter(root)
    with locked_directory(voter(root)):
        refuses_broker("in use by pid=", broker(root, node_id=1), root)
        lock = Lock(str(root / "quorum"))
        refuses_broker("in use by process", broker(root), root)
        lock.release()


def test_broker_on_the_directory_of_a_stopped_voter_with_another_id(tmp_path: Path) -> None:
    root = tmp_path / "v"
    format_voter(root)
    refuses_broker("belongs to node 1, not to node 14", broker(root), root)


def test_broker_whose_quorum_directory_is_read_by_another_process(tmp_path: Path) -> None:
    root = tmp_path / "v"
    format_voter(root)
    lock = Lock(str(root / "quorum"))
    refuses_broker("quorum is in use by process", broker(root, node_id=1), root)
    lock.release()


def test_broker_with_a_later_directory_in_use(tmp_path: Path) -> None:
    new, used = tmp_path / "new", tmp_path / "used"
    other = make_disks(broker(used, node_id=2), SOURCES)
    refuses_broker("in use by pid=.*node_id=2", broker(new, used), new, used)
    for disk in other:
        disk.close()
    refuses_broker("belongs to node 2; this is node 14", broker(new, used), new, used)


def test_voter_on_the_directory_of_a_broker(tmp_path: Path) -> None:
    root = tmp_path / "b"
    disks = make_disks(broker(root), SOURCES)
    before = contents(root)
    with pytest.raises(StoreRefusedError, match=r"in use by pid=.*node_id=14"), locked_directory(voter(root)):
        pass
    for disk in disks:
        disk.close()
    assert {path: data for path, data in contents(root).items() if "facts" not in path} == {
        path: data for path, data in before.items() if "facts" not in path
    }


def test_voter_beside_the_files_of_a_broker_that_has_no_quorum_directory(tmp_path: Path) -> None:
    root = tmp_path / "v"
    for disk in make_disks(broker(root), SOURCES):
        disk.close()
    (root / "meta.json").unlink()
    (root / "logs").mkdir(exist_ok=True)
    format_voter(root)


def test_identity_of_a_quorum_directory_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "v"
    format_voter(root)

    def refused(folder: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", folder)

    monkeypatch.setattr(directory, "read_identity", refused)
    with pytest.raises(StoreRefusedError, match="EACCES"), locked_directory(voter(root)):
        pass


def test_lock_that_another_process_holds_for_an_instant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process that starts takes the lock to find out whether it is free."""
    first = Lock(str(tmp_path))
    monkeypatch.setattr("quorum.store.directory.time.sleep", lambda _: first.release())
    Lock(str(tmp_path)).release()


def test_second_voter_on_the_same_directory(tmp_path: Path) -> None:
    root = tmp_path / "v"
    with locked_directory(voter(root)):
        before = contents(root)
        with pytest.raises(StoreRefusedError, match="in use by pid="), locked_directory(voter(root)):
            pass
        assert contents(root) == before


@pytest.mark.parametrize("below", ["", "folder"])
def test_a_file_as_data_directory(tmp_path: Path, below: str) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    what = "it" if not below else str(file)
    refuses_broker(f"{what} is not a directory", broker(file / below), file)
    with pytest.raises(StoreRefusedError, match=f"{what} is not a directory"), locked_directory(voter(file / below)):
        pass
