"""The rows of share groups: members share a partition, a killed one loses nothing, and rejected records get letters."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack

from tests.clients.outcomes import NotOffered, RowFailed, expect
from tests.clients.rows import Row, Run
from tests.clients.running import ROW_TIMEOUT_S, Event, Program

COUNT = 40
NEEDED = (76, 78, 79)


KINDS = ("good", "retry", "bad", "last")
"""The first words of the values: a member accepts "good" and "last", releases "retry" once, and rejects "bad"."""
SHARERS = ("confluent-kafka", "kafka-clients", "franz-go")


def _member(run: Run, stack: ExitStack, topic: str, group: str, mode: str, **fields: str) -> Program:
    if run.name not in SHARERS:
        raise NotOffered(f"{run.name} has no share consumer")
    return stack.enter_context(run.start("share", topic=topic, group=group, mode=mode, **fields))


def _share_groups(run: Run) -> None:
    """A member is killed with records that it has not acknowledged; two others get these and all later ones.

    A client that fetches ahead may have a fetch at the broker when it is killed, and that fetch may acquire some of the
    later records.  Their first delivery to another member is then the second one, and no member releases them.
    A share group begins with new records, so records are produced until the first member gets one.
    """
    topic, group = run.new_name("queue"), run.new_name("share")
    run.harness.create(topic, 1)
    with ExitStack() as stack:
        holder = _member(run, stack, topic, group, "hold")
        deadline, produced = time.monotonic() + ROW_TIMEOUT_S, 0
        while not holder.values:
            if time.monotonic() > deadline:
                raise RowFailed(f"the first member got none of {produced} records")
            run.harness.produce_values(topic, 1, [f"early-{produced}"])
            produced += 1
            time.sleep(0.2)  # a share group begins at the end, so each record before its first assignment is not for it
        held = list(holder.values)
        run.versions.add(holder.version)
        holder.kill()
        workers = [_member(run, stack, topic, group, "work") for _ in range(2)]
        fresh = [f"{kind}-{number}" for number in range(COUNT // 4) for kind in KINDS]
        run.harness.produce_values(topic, 1, fresh)
        known = {*fresh, *held}

        def delivered() -> Counter[str]:
            return Counter(value for each in workers for value in each.values if value in known)

        def wanted() -> Counter[str]:
            released = [one["value"] for each in workers for one in each.of("record") if _is_released(one)]
            return Counter(known) + Counter(released)

        deadline = time.monotonic() + ROW_TIMEOUT_S
        while not _covers(delivered(), wanted()):
            if time.monotonic() > deadline:
                raise RowFailed(f"the workers did not get {wanted() - delivered()}")
            time.sleep(0.05)  # threads read the output of the workers meanwhile
        expect("deliveries", delivered(), wanted())
        errors = [event["error"] for each in workers for event in each.of("committed") if event["error"]]
        expect("errors of acknowledgements", errors, [])
        for worker in workers:
            worker.finish()
        last = _member(run, stack, topic, group, "work")
        run.harness.produce_values(topic, 1, ["end"])
        last.until(lambda: "end" in last.values, "a later member gets the next record")
        expect("records after all were acknowledged", last.values, ["end"])
        last.finish()


def _is_released(delivery: Event) -> bool:
    return str(delivery["value"]).startswith("retry") and delivery["deliveries"] == 1


def _covers(found: Counter[str], wanted: Counter[str]) -> bool:
    return all(found[value] >= count for value, count in wanted.items())


def _dead_letters(run: Run) -> None:
    """Another client reads the dead letters of the records that a member rejects, and no others."""
    topic, group = run.new_name("queue"), run.new_name("share")
    letters = f"dlq.{topic}"
    run.harness.create(topic, 1)
    values = [f"{kind}-{number}" for number in range(COUNT // 4) for kind in KINDS]
    run.harness.produce_values(topic, 1, values)
    rejected = {offset: value for offset, value in enumerate(values) if value.startswith("bad")}
    with ExitStack() as stack:
        worker = _member(run, stack, topic, group, "work", letters=letters)
        worker.until(lambda: set(worker.values) == set(values), "the member gets all records")
        deadline = time.monotonic() + ROW_TIMEOUT_S
        while len(found := run.harness.read(letters, COUNT)) < len(rejected):
            if time.monotonic() > deadline:
                raise RowFailed(f"there are {len(found)} dead letters, not {len(rejected)}")
        worker.finish()
        run.versions.add(worker.version)
    letter_of = {int(each["headers"]["__dlq.errors.offset"]): each for each in found}
    expect("dead letters", {offset: each["value"] for offset, each in letter_of.items()}, rejected)
    expect("number of dead letters", len(run.harness.read(letters, COUNT)), len(rejected))
    for offset, each in letter_of.items():
        headers = {name.removeprefix("__dlq.errors."): text for name, text in each["headers"].items()}
        del headers["message"]  # words of the broker
        place = {"topic": topic, "partition": "0", "offset": str(offset), "group": group, "delivery.count": "1"}
        expect(f"headers of the letter of offset {offset}", headers, place)


SHARE_ROWS = (
    Row("share groups", _share_groups, NEEDED),
    Row("dead letters", _dead_letters, NEEDED),
)
