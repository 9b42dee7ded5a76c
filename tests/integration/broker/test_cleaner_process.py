"""The cleaner's process on a real directory: results, priority, throttle, failures, and its end with the broker."""

from __future__ import annotations

import asyncio
import io
import os
import resource
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from broker.log import LogConfig, PartitionLog
from broker.log.cleaner import CleanerLimits, LogCleaner
from broker.log.cleaning.job import Replacement
from broker.log.cleaning.ports import WorkerError
from broker.log.cleaning.process import NICENESS, SESSION_NICENESS, Child, ProcessWorker, start_child
from broker.log.cleaning.worker import Failed, Order, Worker
from quorumlog.client.records import NewRecord, build_batch, decode_batches
from quorumlog.wire.record_batch import CODEC_MASK, HEADER_SIZE, LENGTH_END, Codec, parse_header, seal
from tests.unit.broker.log.compaction_rig import compacted, read_all
from tests.unit.broker.log.rig import Rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path / "disk")
    await rig.start()
    yield rig
    await rig.kill()


async def filled(rig: Rig, config: LogConfig | None = None) -> PartitionLog:
    log = rig.create(config or compacted(2_000))
    for number in range(60):
        record = NewRecord(b"key-%d" % (number % 4), b"%d" % number * 20, timestamp_ms=1_000 + number)
        log.append_as_leader(build_batch([record], list(Codec)[number % 5]), 0, 0)
    await rig.settle(log)
    return log


def cleaner(rig: Rig, worker: ProcessWorker) -> LogCleaner:
    return LogCleaner(rig.logs, worker, CleanerLimits(), lambda: 10_000)


def has_a_session_of_low_priority(pid: int) -> bool:
    autogroup = Path(f"/proc/{pid}/autogroup")
    priority = autogroup.read_text() if autogroup.exists() else ""
    return os.getsid(pid) == pid and (not priority or priority.endswith(f"nice {SESSION_NICENESS}\n"))


async def test_the_process_compacts_a_log_and_a_restart_keeps_the_result(rig: Rig) -> None:
    log = await filled(rig)
    size = log.size
    worker = ProcessWorker(-1)
    cleaning = cleaner(rig, worker)
    assert await cleaning.clean_next(), cleaning.uncleanable
    pid = worker.pid
    assert pid is not None
    assert os.getpriority(os.PRIO_PROCESS, pid) == NICENESS
    assert has_a_session_of_low_priority(pid)
    await worker.close()
    assert log.size < size / 2
    assert cleaning.removed_bytes == size - log.size
    data = read_all(log)
    latest = {one.key: one.value for one in decode_batches(data)}
    assert latest == {b"key-%d" % (number % 4): b"%d" % number * 20 for number in range(56, 60)}
    for clean in (False, True):
        await rig.restart(clean=clean)
        assert read_all(rig.log) == data
        assert not [one for one in rig.files(rig.log, "cleaned") + rig.files(rig.log, "swap")]


async def test_a_batch_that_inflates_beyond_the_limit_makes_its_log_uncleanable(rig: Rig) -> None:
    log = rig.create(compacted(2_000))
    batch = build_batch([NewRecord(b"k", bytes(200 << 20), timestamp_ms=1)], Codec.ZSTD)
    log.append_as_leader(batch, 0, 0)
    for number in range(20):
        log.append_as_leader(build_batch([NewRecord(b"k", b"%d" % number * 100, timestamp_ms=1)]), 0, 0)
    await rig.settle(log)
    before = read_all(log)
    worker = ProcessWorker(-1)
    cleaning = cleaner(rig, worker)
    assert await cleaning.clean_next()
    blocked = cleaning.uncleanable[log.key]
    assert blocked.is_final
    assert blocked.cause == f"the batch at offset 0 inflates to more than {64 << 20} bytes"
    assert not await cleaning.clean_next()
    assert read_all(log) == before
    await worker.close()


async def test_a_batch_that_its_codec_cannot_open_makes_its_log_uncleanable(rig: Rig) -> None:
    log = await filled(rig)
    batch = bytearray(build_batch([NewRecord(b"k", b"v", timestamp_ms=1)]))
    header = parse_header(batch)
    batch += bytes(50)
    seal(batch, header._replace(attributes=Codec.GZIP & CODEC_MASK, batch_length=len(batch) - LENGTH_END))
    log.append_as_leader(bytes(batch), 0, 0)
    assert len(batch) > HEADER_SIZE
    for number in range(30):
        log.append_as_leader(build_batch([NewRecord(b"k", b"%d" % number * 50, timestamp_ms=1)]), 0, 0)
    await rig.settle(log)
    worker = ProcessWorker(-1)
    cleaning = cleaner(rig, worker)
    assert await cleaning.clean_next()
    assert cleaning.uncleanable[log.key].cause.startswith(
        "the batch at offset 60 cannot be opened: a record batch is not gzip"
    )
    await worker.close()


async def test_the_throttle_limits_the_bytes_per_second(rig: Rig) -> None:
    log = await filled(rig)
    loop = asyncio.get_running_loop()
    began = loop.time()
    worker = ProcessWorker(3 * log.size)  # a job reads the log twice and writes it, at the end nearly nothing
    assert await cleaner(rig, worker).clean_next()
    assert loop.time() - began >= 0.5
    await worker.close()


async def test_a_worker_that_ends_hangs_or_reports_nonsense_fails_its_job_and_leaves_the_log_unchanged(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await filled(rig)
    before = read_all(log)
    wall = log.compaction.dirty(log.config, 10_000)
    planned = log.compaction.plan(log.config, wall, 10_000, 1 << 20)
    for program, cause, silence_max_s in (
        ("pass", "ended before", 60.0),
        ("import time; time.sleep(99)", "no report for", 0.5),
        ("print(1)", "an invalid report", 60.0),
        ("print('x' * 1_000_000)", "a line that is too long", 60.0),
    ):
        worker = ProcessWorker(-1, silence_max_s)
        monkeypatch.setattr(worker, "_started", lambda program=program: start_child("-c", program))
        with pytest.raises(WorkerError, match=f"{cause}|does not read"):
            async for _ in worker.run(rig.disk, planned.job):
                pass
    assert read_all(log) == before


async def test_the_worker_fails_rather_than_use_the_last_free_space(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    log = await filled(rig)
    before = read_all(log)
    real = os.fstatvfs(0)
    blocks = (1 << 30) // real.f_frsize
    full = SimpleNamespace(f_bavail=blocks // 21, f_blocks=blocks, f_frsize=real.f_frsize)
    monkeypatch.setattr(os, "fstatvfs", lambda fd: full)
    # The worker runs in this process, whose later children would inherit the limit of its memory.
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: None)
    planned = log.compaction.plan(log.config, log.compaction.dirty(log.config, 10_000), 10_000, 1 << 20)
    reports = io.BytesIO()
    orders = msgspec.json.encode(Order(str(rig.folder), -1, planned.job)) + b"\n"
    Worker(io.BytesIO(orders), reports).run()
    (failed,) = [msgspec.json.decode(line, type=Failed) for line in reports.getvalue().splitlines()]
    assert failed.kind == "failed"
    assert "No space left on device" in failed.cause
    assert not rig.files(log, "cleaned")
    assert read_all(log) == before


async def test_a_killed_worker_leaves_no_file(rig: Rig) -> None:
    log = await filled(rig)
    worker = ProcessWorker(-1)
    cleaning = cleaner(rig, worker)
    started = worker._started

    async def killed_later() -> Child:
        child = await started()
        rig.path(log, f"{0:020d}.cleaned").write_bytes(b"half")
        child.process.kill()
        return child

    worker._started = killed_later  # type: ignore[method-assign]
    assert await cleaning.clean_next()
    assert not cleaning.uncleanable[log.key].is_final
    assert not rig.files(log, "cleaned")
    await worker.close()


async def test_the_process_of_an_abandoned_job_is_killed(rig: Rig) -> None:
    log = await filled(rig)
    planned = log.compaction.plan(log.config, log.compaction.dirty(log.config, 10_000), 10_000, 1 << 20)
    worker = ProcessWorker(-1)
    steps = worker.run(rig.disk, planned.job)
    assert isinstance(await anext(steps), Replacement)
    child = worker._child
    assert child is not None
    await steps.aclose()
    assert await worker._started() is not child, "a killed process takes no other job"
    assert child.process.wait(10) < 0
    await worker.close()


async def test_a_worker_that_has_ended_is_replaced(rig: Rig) -> None:
    await filled(rig)
    worker = ProcessWorker(-1)
    child = await worker._started()
    child.process.kill()
    child.process.wait(10)
    cleaning = cleaner(rig, worker)
    assert await cleaning.clean_next()
    assert not cleaning.uncleanable
    assert worker._child is not child
    assert child.writer.is_closing()
    await worker.close()
