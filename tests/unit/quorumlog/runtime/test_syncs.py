"""The threads that make files durable: results, failures, cancels, closing, and a disk that hangs."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from quorumlog.runtime import syncs
from quorumlog.runtime._sync_threads import SyncThreads as NativeThreads
from quorumlog.runtime.syncs import (
    HAS_SYNC_SYSTEM,
    Sync,
    SyncJob,
    SyncThreads,
    is_fully_synced,
    reports_lost_writes,
    type_of_file_system,
)
from tests.fuzz.native import compile_c

NATIVE_TESTS = Path(__file__).parent / "native"
NATIVE = Path(syncs.__file__).parent / "native"


def opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT)


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def unsyncable() -> tuple[int, int]:
    """Return a descriptor for which each sync fails with EINVAL, and its other end."""
    return os.pipe()


async def test_each_operation_succeeds_and_closes_its_descriptor(tmp_path: Path) -> None:
    threads = SyncThreads(2)
    jobs = [SyncJob(Sync.DATA, opened(tmp_path / "a")), SyncJob(Sync.ALL, os.open(tmp_path, os.O_RDONLY))]
    if HAS_SYNC_SYSTEM:
        jobs.append(SyncJob(Sync.SYSTEM, os.open(tmp_path, os.O_RDONLY)))
    await threads.run(jobs)
    assert not any(is_open(job.fd) for job in jobs)
    threads.close()


async def test_all_jobs_of_a_batch_are_done_although_one_fails(tmp_path: Path) -> None:
    threads = SyncThreads(1)
    bad, end = unsyncable()
    jobs = [SyncJob(Sync.DATA, bad), SyncJob(Sync.DATA, opened(tmp_path / "a"))]
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        await threads.run(jobs)
    assert not any(is_open(job.fd) for job in jobs)
    await threads.run([SyncJob(Sync.DATA, opened(tmp_path / "b"))])
    os.close(end)
    threads.close()


async def test_each_batch_gets_its_own_result(tmp_path: Path) -> None:
    threads = SyncThreads(8)
    ends = []

    async def one(number: int) -> bool:
        if number % 5:
            await threads.run([SyncJob(Sync.DATA, opened(tmp_path / f"{number}-{part}")) for part in range(3)])
            return True
        bad, end = unsyncable()
        ends.append(end)
        with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
            await threads.run([SyncJob(Sync.ALL, bad), SyncJob(Sync.DATA, opened(tmp_path / str(number)))])
        return False

    assert await asyncio.gather(*map(one, range(200))) == [bool(number % 5) for number in range(200)]
    for end in ends:
        os.close(end)
    threads.close()


async def test_a_cancelled_batch_is_still_executed(tmp_path: Path) -> None:
    threads = SyncThreads(1)
    job = SyncJob(Sync.DATA, opened(tmp_path / "a"))
    cancelled = asyncio.ensure_future(threads.run([job]))
    await asyncio.sleep(0)
    cancelled.cancel()
    await threads.run([SyncJob(Sync.DATA, opened(tmp_path / "b"))])
    assert cancelled.cancelled()
    assert not is_open(job.fd)
    threads.close()


async def test_the_failure_of_a_cancelled_batch_is_raised_by_later_batches(tmp_path: Path) -> None:
    threads = SyncThreads(1)
    bad, end = unsyncable()
    cancelled = asyncio.ensure_future(threads.run([SyncJob(Sync.ALL, bad)]))
    await asyncio.sleep(0)
    cancelled.cancel()
    for name in ("a", "b"):
        with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
            await threads.run([SyncJob(Sync.DATA, opened(tmp_path / name))])
    assert cancelled.cancelled()
    os.close(end)
    threads.close()


async def test_a_failure_that_arrives_together_with_the_cancel_is_raised_by_later_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = SyncThreads(1)
    bad, end = unsyncable()
    cancelled: list[asyncio.Future[None]] = []
    collect = threads._collect

    def collect_and_cancel() -> None:
        collect()
        for each in cancelled:
            each.cancel()

    monkeypatch.setattr(threads, "_collect", collect_and_cancel)
    cancelled.append(asyncio.ensure_future(threads.run([SyncJob(Sync.ALL, bad)])))
    with pytest.raises(asyncio.CancelledError):
        await cancelled[0]
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        await threads.run([SyncJob(Sync.DATA, opened(tmp_path / "a"))])
    os.close(end)
    threads.close()


@pytest.mark.parametrize("release", ["5.8.0", "5.15.0-91-generic", "6.1", "10.0.1"])
def test_kernels_since_5_8_report_lost_writes_in_a_sync_of_the_file_system(release: str) -> None:
    assert reports_lost_writes(release)


@pytest.mark.parametrize("release", ["5.7.19", "5.4.0-150-generic", "4.18.0-553.el8", "2.6", "unknown"])
def test_kernels_before_5_8_are_treated_as_hiding_lost_writes(release: str) -> None:
    assert not reports_lost_writes(release)


MOUNTS = (
    "26 1 254:1 / / rw,relatime shared:1 - overlay overlay rw\n",
    "27 26 254:0 / /data rw,relatime - ext4 /dev/vda rw\n",
    "28 27 0:40 / /data/a\\040b rw - fuse.sshfs host:/ rw\n",
    "29 27 0:41 / /data/c rw - ext4 /dev/vdb rw\n",
    "30 29 0:42 / /data/c rw - cifs //host/c rw\n",
)


@pytest.mark.parametrize(
    ("path", "system"),
    [
        ("/", "overlay"),
        ("/data2", "overlay"),
        ("/data", "ext4"),
        ("/data/broker", "ext4"),
        ("/data/a b/broker", "fuse.sshfs"),
        ("/data/c/broker", "cifs"),  # the later mount hides the earlier one
    ],
)
def test_the_innermost_mount_determines_the_type_of_the_file_system(path: str, system: str) -> None:
    assert type_of_file_system(path, MOUNTS) == system


@pytest.mark.parametrize("system", ["ext4", "overlay"])
def test_is_fully_synced_is_false_for_an_overlay_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    monkeypatch.setattr(syncs, "type_of_file_system", lambda path, _: system if path == str(tmp_path) else None)
    (tmp_path / "link").symlink_to(tmp_path)
    assert is_fully_synced(str(tmp_path / "link")) is (HAS_SYNC_SYSTEM and system == "ext4")


async def test_an_empty_batch_succeeds() -> None:
    threads = SyncThreads(1)
    await threads.run([])
    threads.close()


async def test_descriptors_are_closed_when_the_jobs_are_refused(tmp_path: Path) -> None:
    threads = SyncThreads(1)
    threads.close()
    fd = opened(tmp_path / "a")
    with pytest.raises(ValueError, match="closed"):
        await threads.run([SyncJob(Sync.DATA, fd)])
    assert not is_open(fd)


def test_one_pool_of_sync_threads_serves_one_event_loop_after_another(tmp_path: Path) -> None:
    threads = SyncThreads(1)
    for name in "ab":
        asyncio.run(threads.run([SyncJob(Sync.DATA, opened(tmp_path / name))]))
    threads.close()


def test_native_sync_threads_refuse_invalid_arguments() -> None:
    for threads_max in (0, -1):
        with pytest.raises(ValueError, match="at least 1"):
            NativeThreads(threads_max)
    threads = NativeThreads(1)
    with pytest.raises(ValueError, match="at least one job"):
        threads.submit(1, [])
    with pytest.raises(TypeError):
        threads.submit(1, [("a", 1)])  # type: ignore[list-item]
    assert threads.take() == []
    threads.close()
    threads.close()
    with pytest.raises(ValueError, match="closed"):
        threads.take()


@pytest.mark.skipif(sys.platform != "linux", reason="replaces fdatasync with LD_PRELOAD")
def test_a_hanging_sync_delays_neither_other_syncs_nor_the_end_of_the_process(tmp_path: Path) -> None:
    """The library makes each `fdatasync` of a file named "hangs" wait forever, without the lock of the interpreter."""
    library = compile_c(NATIVE_TESTS / "hanging_fdatasync.c", tmp_path / "hanging.so", "-shared", "-fPIC")
    program = """if True:
        import asyncio, os, sys
        from quorumlog.runtime.syncs import Sync, SyncJob, SyncThreads

        def job(name):
            return SyncJob(Sync.DATA, os.open(os.path.join(sys.argv[1], name), os.O_RDWR | os.O_CREAT))

        async def main():
            threads = SyncThreads(3)
            hung = asyncio.ensure_future(threads.run([job("hangs"), job("a")]))
            for _ in range(20):
                await threads.run([job("b"), job("c")])
            assert not hung.done()
            waiting = asyncio.ensure_future(threads.run([job("hangs"), job("hangs"), job("d")]))
            await asyncio.sleep(0)
            threads.close()
            async with asyncio.timeout(30):
                done = await asyncio.gather(hung, waiting, return_exceptions=True)
            print(*(error.errno for error in done))

        asyncio.run(main())
    """
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.stderr == ""
    assert done.stdout.split() == [str(errno.ECANCELED)] * 2
    assert done.returncode == 0


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_each_batch_of_random_sync_pools_is_completed_once(tmp_path: Path, sanitizer: str) -> None:
    flags = (f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-pthread", f"-I{NATIVE}")
    program = compile_c(NATIVE_TESTS / "sync_pool_stress.c", tmp_path / "stress", *flags)
    done = subprocess.run([program, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    pools, completed, dropped = map(int, done.stdout.split())
    assert pools == 60
    assert completed > 1000
    assert dropped > 0
