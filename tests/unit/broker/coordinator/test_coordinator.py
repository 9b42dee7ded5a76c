"""The shell of coordinators with a counting machine: loads, shared appends, answers, dropped machines and limits."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from broker.coordinator.limits import CoordinatorLimits
from broker.coordinator.partition import State
from broker.core.coordinator.fields import BadRecord
from broker.core.coordinator.machine import Answer, Record, Step
from broker.core.transactions import Marker, ProducerKey
from broker.log import Refused
from broker.log.produced import Produced
from quorumlog.client.records import NewRecord, build_batch, decode_batches
from quorumlog.runtime.disk import DiskError
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import iter_headers, parse_header
from tests.unit.broker.coordinator.counting import WAIT_S, WALL_MS, Bench, Counting, coordinating, turns, until
from tests.unit.broker.replica.rig import Rig


def batches(bench: Bench) -> list[list[bytes | None]]:
    """Return the values in the log, grouped by batch."""
    log = bench.replica.log
    assert log is not None
    data = log.read(0, 1 << 20, log.end_offset)
    values = [record.value for record in decode_batches(data)]
    return [[values.pop(0) for _ in range(header.record_count)] for _, header in iter_headers(data)]


async def test_a_call_is_applied_to_the_machine_and_its_record_is_logged(bench: Bench) -> None:
    await bench.create(1)
    await bench.serving()
    assert await bench.ask("add") == 1
    assert await bench.ask("add") == 2
    assert await bench.ask("get") == 2
    log = bench.replica.log
    assert log is not None
    [first, second] = decode_batches(log.read(0, 1 << 20, log.end_offset))
    assert (first.key, first.value, first.timestamp_ms) == (b"count", b"1", WALL_MS)
    assert second.value == b"2"


async def test_a_call_to_a_partition_of_another_broker_is_refused(bench: Bench) -> None:
    assert await bench.ask("get") is KafkaCode.NOT_COORDINATOR
    await bench.create(2, 1)
    assert await bench.ask("get") is KafkaCode.NOT_COORDINATOR
    assert bench.shell.led() == []


async def test_answers_to_writes_and_reads_wait_for_the_high_watermark(bench: Bench) -> None:
    await bench.create(1, 2)
    await bench.serving()
    added, read = bench.call("add"), bench.call("get")
    await bench.flush()
    later = bench.call("get")
    await turns()
    assert not added.done()
    assert not read.done()
    assert not later.done()
    await bench.acknowledge()
    assert [await added, await read, await later] == [1, 1, 1]


async def test_calls_that_wait_at_the_same_time_share_one_append(bench: Bench) -> None:
    await bench.create(1)
    await bench.serving()
    calls = [bench.call("add") for _ in range(5)]
    assert await asyncio.gather(*calls) == [1, 2, 3, 4, 5]
    assert batches(bench) == [[b"1", b"2", b"3", b"4", b"5"]]


async def test_an_operation_after_a_transaction_marker_sees_the_appended_marker(bench: Bench) -> None:
    await bench.create(1)
    await bench.serving()
    log = bench.replica.log
    assert log is not None
    marked: list[int] = []

    def end(machine: Counting, call: int, now_ms: int) -> Step:
        marker = Marker(ProducerKey(7, 0), is_commit=True, coordinator_epoch=0)
        return Step((Record(b"", None, marker=marker),), (Answer(call, None),))

    def look(machine: Counting, call: int, now_ms: int) -> Step:
        producer = log.producers.get(7)
        marked.append(-1 if producer is None else producer.last_marker)
        return Step(answers=(Answer(call, None),))

    await asyncio.gather(*[bench.shell.call(0, each, 1, is_read=False) for each in (end, look)])
    assert marked == [0]


async def test_an_append_takes_a_bounded_number_of_bytes(rig: Rig) -> None:
    async with coordinating(rig, CoordinatorLimits(retry_ms=10, append_bytes=12)) as bench:
        await bench.create(1)
        await bench.serving()
        assert await asyncio.gather(*[bench.call("add") for _ in range(5)]) == [1, 2, 3, 4, 5]
        assert [len(batch) for batch in batches(bench)] == [2, 2, 1]


async def test_the_end_of_the_leadership_refuses_waiting_calls(bench: Bench) -> None:
    await bench.create(1, 2)
    await bench.serving()
    applied, parked = bench.call("add"), bench.call("park")
    await turns()
    queued = bench.call("add")
    await bench.change(leader=2)
    for call in (applied, parked, queued):
        assert await call is KafkaCode.NOT_COORDINATOR
    assert await bench.ask("get") is KafkaCode.NOT_COORDINATOR


async def test_a_new_leader_replays_the_log(bench: Bench) -> None:
    await bench.create(1, 2)
    await bench.serving()
    call = bench.call("add")
    await turns()
    await bench.acknowledge()
    assert await call == 1
    await bench.change(leader=2)
    await bench.change(leader=1)
    await bench.serving()
    assert await bench.ask("get") == 1
    assert bench.coordinator.leader_epoch == 2


async def test_a_load_replays_transactional_records_with_their_producer(bench: Bench) -> None:
    await bench.create(1)
    await bench.serving()
    marker = Marker(ProducerKey(7, 0), is_commit=True, coordinator_epoch=0)
    records = [Record(b"count", b"8", ProducerKey(7, 0)), Record(b"", None, marker=marker)]

    def write(machine: Counting, call: int, now_ms: int) -> Step:
        return Step((records.pop(0),), (Answer(call, None),))

    for _ in range(2):
        await bench.shell.call(0, write, 1, is_read=False)
    await bench.ask("add")
    await bench.change(leader=1)
    await bench.serving()
    assert bench.machine.replayed == [(b"8", (7, 0)), (None, (7, 0)), (b"1", None)]


async def test_a_load_replays_a_large_batch_in_parts_of_250_records(bench: Bench) -> None:
    await bench.create(1)
    await bench.serving()
    await asyncio.gather(*[bench.call("add") for _ in range(501)])
    assert list(map(len, batches(bench))) == [501]
    await bench.change(leader=1)
    await bench.serving()
    assert bench.machine.replayed_at_once == [250, 250, 1]


async def test_a_machine_is_closed_when_its_leadership_ends(bench: Bench) -> None:
    await bench.create(1, 2)
    await bench.serving()
    machine = bench.machine
    assert not machine.is_closed
    await bench.change(leader=2)
    assert machine.is_closed


async def test_the_memory_of_a_machine_is_freed_when_its_leadership_ends(bench: Bench) -> None:
    await bench.create(1, 2)
    await bench.serving()
    machine = weakref.ref(bench.machine)
    gc.disable()
    try:
        await bench.change(leader=2)
        await turns()
        assert machine() is None
    finally:
        gc.enable()


async def test_a_load_begins_at_the_log_start_offset_even_within_a_batch(bench: Bench) -> None:
    await bench.create(1)
    await bench.serving()
    await asyncio.gather(*[bench.call("add") for _ in range(3)])
    assert batches(bench) == [[b"1", b"2", b"3"]]
    bench.replica.advance_start(1)
    await bench.change(leader=1)
    await bench.serving()
    assert bench.machine.replayed == [(b"2", None), (b"3", None)]


async def test_a_later_leader_epoch_of_the_same_leader_starts_a_new_coordinator(bench: Bench) -> None:
    await bench.create(1, 2)
    await bench.serving()
    first = bench.coordinator
    call = bench.call("add")
    await turns()
    await bench.change(leader=1)
    assert first.state is State.ENDED
    assert await call is KafkaCode.NOT_COORDINATOR
    assert bench.coordinator is not first


async def test_records_of_an_earlier_leader_epoch_are_not_appended(bench: Bench) -> None:
    await bench.create(1, 2)
    await bench.serving()
    first = bench.coordinator
    await bench.change(leader=1)
    batch = build_batch([NewRecord(b"count", b"7", WALL_MS)])
    produced = Produced(batch, [parse_header(batch)], [WALL_MS])
    refused = bench.replica.append_as_coordinator(produced, first.leader_epoch)
    assert isinstance(refused, Refused)
    assert refused.code == KafkaCode.FENCED_LEADER_EPOCH
    assert batches(bench) == []


async def test_no_record_is_appended_until_the_last_truncation_is_durable(bench: Bench) -> None:
    """Otherwise a power failure could leave old and new records side by side."""
    await bench.create(1)
    await bench.serving()
    log = bench.replica.log
    assert log is not None
    log.durability.is_truncating = True
    batch = build_batch([NewRecord(b"count", b"7", WALL_MS)])
    refused = bench.replica.append_as_coordinator(
        Produced(batch, [parse_header(batch)], [WALL_MS]), bench.coordinator.leader_epoch
    )
    assert isinstance(refused, Refused)
    machine = bench.machine
    assert await bench.ask("add") is KafkaCode.COORDINATOR_NOT_AVAILABLE
    assert (batches(bench), bench.machine) == ([], machine), "the machine is not dropped either"
    log.durability.is_truncating = False
    call = bench.call("add")
    await turns()
    await bench.flush()
    assert await call == 1


async def test_a_read_from_a_freshly_loaded_machine_is_refused_while_the_isr_is_below_min_isr(bench: Bench) -> None:
    await bench.create(1, 2, min_isr=2)
    await bench.serving()
    bench.coordinator._is_fresh = True
    call = bench.call("get")
    bench.coordinator._leader.isr = (1,)
    async with asyncio.timeout(WAIT_S):
        assert await call is KafkaCode.COORDINATOR_NOT_AVAILABLE


async def test_a_new_leader_serves_no_call_until_all_records_of_its_log_are_committed(bench: Bench) -> None:
    await bench.create(1, 2)
    await bench.serving()
    bench.call("add")
    await bench.flush()
    await bench.change(leader=1)
    await turns()
    assert bench.state is State.LOADING
    assert await bench.ask("get") is KafkaCode.COORDINATOR_LOAD_IN_PROGRESS
    await bench.acknowledge()
    await bench.serving()
    assert await bench.ask("get") == 1


async def test_only_reads_are_served_while_too_few_replicas_are_in_sync(bench: Bench) -> None:
    await bench.create(1, 2, min_isr=2)
    await bench.serving()
    await bench.change(isr=(1,))
    assert await bench.ask("add") is KafkaCode.COORDINATOR_NOT_AVAILABLE
    assert await bench.ask("get") == 0
    assert bench.machine.count == 0
    await bench.change(isr=(1, 2))
    call = bench.call("add")
    await turns()
    await bench.acknowledge()
    assert await call == 1


async def test_a_call_that_waits_for_its_turn_is_refused_when_the_isr_shrinks(bench: Bench) -> None:
    await bench.create(1, 2, min_isr=2)
    await bench.serving()
    call = bench.call("add")
    bench.coordinator._leader.isr = (1,)
    assert await call is KafkaCode.COORDINATOR_NOT_AVAILABLE
    assert bench.machine.count == 0


async def test_a_failed_append_drops_the_machine_and_loads_it_anew(bench: Bench) -> None:
    await bench.create(1, 2, min_isr=2)
    await bench.serving()
    call = bench.call("add")
    await turns()
    await bench.acknowledge()
    assert await call == 1
    dropped = bench.machine
    await bench.change(isr=(1,))
    assert await bench.ask("sly") is KafkaCode.NOT_COORDINATOR
    assert dropped.count == 2
    assert bench.state is State.LOADING
    await bench.change(isr=(1, 2))
    await bench.serving()
    assert bench.machine is not dropped
    assert await bench.ask("get") == 1


async def test_a_disk_failure_refuses_waiting_calls_and_takes_the_log_offline(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.create(1)
    await bench.serving()
    coordinator, log = bench.coordinator, bench.replica.log

    def fail(*_: object, **__: object) -> None:
        raise DiskError("the disk failed")

    monkeypatch.setattr(log, "append_as_leader", fail)
    assert await bench.ask("add") is KafkaCode.NOT_COORDINATOR
    assert coordinator.state is State.ENDED
    assert bench.replica.offline


async def test_ticks_come_at_the_machines_deadline(bench: Bench) -> None:
    await bench.create(1)
    await bench.serving()
    assert await bench.ask("park") == 1
    assert batches(bench) == [[b"1"]]


async def test_a_tick_that_cannot_append_for_too_long_drops_the_machine(rig: Rig) -> None:
    async with coordinating(rig, CoordinatorLimits(retry_ms=5, commit_timeout_ms=30)) as bench:
        await bench.create(1, 2, min_isr=2)
        await bench.serving()
        await bench.change(isr=(1,))
        assert await bench.ask("park") is KafkaCode.NOT_COORDINATOR
        assert bench.state is State.LOADING
        assert batches(bench) == []


async def test_a_call_is_refused_if_its_record_is_not_committed_in_time(rig: Rig) -> None:
    async with coordinating(rig, CoordinatorLimits(retry_ms=5, commit_timeout_ms=30)) as bench:
        await bench.create(1, 2)
        await bench.serving()
        assert await bench.ask("add") is KafkaCode.COORDINATOR_NOT_AVAILABLE
        assert bench.machine.count == 1
        assert await bench.ask("get") is KafkaCode.COORDINATOR_NOT_AVAILABLE
        await bench.acknowledge()
        assert await bench.ask("get") == 1


async def test_the_machine_drops_a_parked_call_whose_client_disconnects(bench: Bench) -> None:
    await bench.create(1)
    await bench.serving()
    call = bench.call("park")
    await turns()
    call.cancel()
    await until(lambda: bench.machine.forgotten == [0])
    assert bench.machine.deadline_ms is None


async def test_a_request_that_was_cancelled_before_its_turn_is_not_applied(bench: Bench) -> None:
    await bench.create(1)
    await bench.serving()
    bench.call("add").cancel()
    assert await bench.ask("get") == 0


async def test_waiting_calls_are_bounded(rig: Rig) -> None:
    async with coordinating(rig, CoordinatorLimits(calls_max=2)) as bench:
        await bench.create(1)
        await bench.serving()
        parked = [bench.call("park"), bench.call("park")]
        assert await bench.ask("get") is KafkaCode.COORDINATOR_NOT_AVAILABLE
        await asyncio.gather(*parked)
        assert await bench.ask("get") > 0


async def test_the_bytes_of_waiting_calls_are_bounded(rig: Rig) -> None:
    async with coordinating(rig, CoordinatorLimits(call_bytes_max=100)) as bench:
        await bench.create(1)
        await bench.serving()
        parked = bench.call("park", size=1000)
        assert await bench.ask("get") is KafkaCode.COORDINATOR_NOT_AVAILABLE
        assert await parked == 1
        assert await bench.ask("get") == 1


async def test_uncommitted_records_are_bounded(rig: Rig) -> None:
    async with coordinating(rig, CoordinatorLimits(uncommitted_bytes_max=5)) as bench:
        await bench.create(1, 2)
        await bench.serving()
        first = bench.call("add")
        await turns()
        assert await bench.ask("add") is KafkaCode.COORDINATOR_NOT_AVAILABLE
        await bench.acknowledge()
        assert await first == 1
        second = bench.call("add")
        await turns()
        await bench.acknowledge()
        assert await second == 2


async def test_a_damaged_record_stops_the_load(bench: Bench) -> None:
    await bench.create(1)
    await bench.serving()
    batch = build_batch([NewRecord(b"count", b"no number", WALL_MS)])
    produced = Produced(batch, [parse_header(batch)], [WALL_MS])
    bench.replica.append_as_coordinator(produced, bench.coordinator.leader_epoch)
    await bench.change(leader=1)
    await until(lambda: bench.state is State.FAILED)
    assert await bench.ask("get") is KafkaCode.COORDINATOR_NOT_AVAILABLE


async def test_a_record_that_cannot_be_encoded_fails_the_coordinator_and_refuses_its_calls(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> Step:
        raise BadRecord("a name has no room in a record")

    await bench.create(1, 2)
    await bench.serving()
    waiting = bench.call("add")
    await turns()
    monkeypatch.setattr(bench.machine, "request", fails)
    failed = bench.call("add")
    await until(lambda: bench.state is State.FAILED)
    for call in (waiting, failed):
        assert call.done()
        assert call.result() is KafkaCode.COORDINATOR_NOT_AVAILABLE


async def test_an_operation_without_a_call_is_applied_after_the_load(bench: Bench) -> None:
    await bench.create(1, 2)
    await bench.serving()
    bench.call("add")
    await bench.flush()
    await bench.change(leader=1)
    bench.shell.tell_all(lambda machine, now: machine.request(-1, "add", now))
    await bench.acknowledge()
    await until(lambda: bench.coordinator.machine is not None and bench.machine.count == 2)


@pytest.mark.parametrize("is_fenced", [False, True])
async def test_an_operation_that_must_wait_does_not_keep_the_loop_busy(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_fenced: bool
) -> None:
    await bench.create(1, 2, min_isr=2)
    await bench.serving()
    turns_begun = 0
    apply_queued = bench.coordinator._apply_queued

    def counted(machine: Counting) -> bool:
        nonlocal turns_begun
        turns_begun += 1
        return apply_queued(machine)

    monkeypatch.setattr(bench.coordinator, "_apply_queued", counted)
    if is_fenced:
        bench.rig.context.cluster.own_epoch -= 1
    else:
        await bench.change(isr=(1,))
    bench.shell.tell_all(lambda machine, now: machine.request(-1, "add", now))
    await turns(200)
    assert 1 <= turns_begun <= 20
    if is_fenced:
        bench.rig.context.cluster.own_epoch += 1
    else:
        await bench.change(isr=(1, 2))
    await until(lambda: bench.machine.count == 1)


async def test_a_large_log_is_loaded_in_bounded_reads(rig: Rig) -> None:
    async with coordinating(rig, CoordinatorLimits(retry_ms=10, load_bytes=1)) as bench:
        await bench.create(1)
        await bench.serving()
        for number in range(20):
            assert await bench.ask("add") == number + 1
        await bench.change(leader=1)
        await bench.serving()
        assert await bench.ask("get") == 20


async def test_a_process_whose_broker_id_another_process_has_registered_refuses_calls(bench: Bench) -> None:
    await bench.create(1)
    await bench.serving()
    queued = bench.call("get")
    bench.rig.context.cluster.own_epoch -= 1  # another process has registered under this id
    async with asyncio.timeout(WAIT_S):
        assert await queued is KafkaCode.NOT_COORDINATOR
    assert await bench.ask("get") is KafkaCode.NOT_COORDINATOR
