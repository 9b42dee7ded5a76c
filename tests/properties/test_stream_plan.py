"""A stream's batches against a model of logs that grow, are truncated, deleted and created: each record is read
once."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_quorumlog.options import Partition, TriggerLimits
from pyspark_quorumlog.plan import Bounds, split
from pyspark_quorumlog.stream_plan import Offsets, StreamPlanner, from_json, ranges_of, to_json

partitions = st.tuples(st.sampled_from("ab"), st.integers(0, 2))
appends = st.tuples(st.just("append"), partitions, st.integers(1, 50))
creations = st.tuples(st.just("create"), partitions, st.integers(0, 5))
batches = st.tuples(st.just("batch"), st.sampled_from([1, 7, 40, 1 << 62]), st.booleans())
restarts = st.tuples(st.just("restart"), st.none(), st.booleans())
histories = st.lists(appends | creations | batches | restarts, max_size=40)


@dataclass
class Query:
    """Spark's part: it logs the end of a batch before its tasks run, and repeats a batch that did not finish."""

    planner: StreamPlanner
    logs: dict[Partition, Bounds]
    position: Offsets
    rows: dict[Partition, list[int]] = field(default_factory=dict)
    now_s: float = 0.0

    def batch(self, limit: int | None, is_repeated: bool) -> None:
        ends = {one: bounds.end for one, bounds in self.logs.items()}
        needed = self.planner.needs_start(self.position, ends, limit)
        starts = {one: self.logs[one].start for one in needed}
        found = self.planner.next_end(self.position, ends, starts, self.now_s, limit)
        self.now_s += 1
        assert found.losses == []
        end = from_json(to_json(found.offsets))
        assert self.position.keys() <= end.keys(), "an end contains each partition of its start"
        assert all(end[one] >= offset for one, offset in self.position.items()), "an end never goes back"
        advanced = sum(end[one] - self.position.get(one, 0) for one in end)
        waiting = [one for one, bounds in self.logs.items() if bounds.end > self.position.get(one, 0)]
        least = max(0, len(waiting) - 1)  # a share below one record is rounded up, of all partitions but the largest
        assert limit is None or advanced <= limit + least
        assert all(end[one] > self.position.get(one, 0) for one in waiting), "no partition starves"
        tasks, losses = ranges_of(self.position, end, self.logs)
        assert losses == []
        if is_repeated:
            assert ranges_of(self.position, end, self.logs) == (tasks, [])
        for task in split(tasks, 5, 9):
            self.rows.setdefault((task.topic, task.partition), []).extend(range(task.first, task.end))
        self.position = end


@given(histories)
@settings(deadline=None)
def test_each_record_is_read_once_and_in_order(history: list[tuple[str, Partition, int]]) -> None:
    query = Query(StreamPlanner(TriggerLimits()), {}, {})
    for event, subject, number in history:
        if event == "append" and subject in query.logs:
            query.logs[subject] = Bounds(0, query.logs[subject].end + number)
        elif event == "create":
            query.logs.setdefault(subject, Bounds(0, number))
        elif event == "batch":
            query.batch(subject, bool(number))  # type: ignore[arg-type]
        elif event == "restart":
            query.planner = StreamPlanner(TriggerLimits())
    while any(bounds.end > query.position.get(one, -1) for one, bounds in query.logs.items()):
        query.batch(1 << 62, False)
    assert query.rows == {one: list(range(bounds.end)) for one, bounds in query.logs.items() if bounds.end}


sizes = st.dictionaries(partitions, st.integers(0, 1000), max_size=6)


@given(sizes, sizes, st.integers(1, 300))
@settings(deadline=None)
def test_a_pinned_query_reaches_its_ends_and_stops(pinned: Offsets, later: Offsets, limit: int) -> None:
    planner = StreamPlanner(TriggerLimits(offsets_min=5))
    planner.pin(pinned)
    position: Offsets = {}
    for _ in range(sum(pinned.values()) + 2):
        ends = {one: pinned.get(one, 0) + later.get(one, 0) for one in pinned.keys() | later.keys()}
        found = planner.next_end(position, ends, dict.fromkeys(ends, 0), 0.0, limit)
        if found.offsets == position:
            break
        position = found.offsets
    assert position == pinned


@given(sizes, sizes, sizes, st.none() | st.integers(1, 300))
@settings(deadline=None)
def test_any_answer_of_the_brokers_gives_an_end_that_can_be_read(
    position: Offsets, ends: Offsets, starts: Offsets, limit: int | None
) -> None:
    logs = {one: Bounds(min(starts.get(one, 0), end), end) for one, end in ends.items()}
    low = {one: bounds.start for one, bounds in logs.items()}
    planner = StreamPlanner(TriggerLimits())
    given = {one: low[one] for one in planner.needs_start(position, ends, limit)}
    found = planner.next_end(position, ends, given, 0.0, limit)
    assert position.keys() | ends.keys() == found.offsets.keys()
    for one, offset in found.offsets.items():
        if one not in ends:
            assert offset == position[one]
        elif offset < position.get(one, 0):
            assert (ends[one] < position[one], offset) == (True, low[one]), "only a log below its position goes back"
        else:
            assert offset <= ends[one]
    is_lossless = all(position.get(one, 0) <= end and (one in position or not low[one]) for one, end in ends.items())
    assert (not found.losses) == (is_lossless and position.keys() <= ends.keys())
    tasks, _ = ranges_of(position, found.offsets, logs)
    unread = {one: max(0, end - max(position.get(one, 0), low[one])) for one, end in ends.items()}
    if limit is not None and limit < sum(unread.values()):
        waiting = [one for one, count in unread.items() if count > 0 and position.get(one, 0) <= ends[one]]
        assert {(task.topic, task.partition) for task in tasks} == set(waiting), "no batch is spent on deleted offsets"
    assert all(
        logs[task.topic, task.partition].start <= task.first < task.end <= ends[task.topic, task.partition]
        for task in tasks
    )
