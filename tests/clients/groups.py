"""The rows of consumer groups: two members share four partitions; one leaves; their successor resumes."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from tests.clients.outcomes import expect
from tests.clients.rows import Row, Run
from tests.clients.running import Program

PARTITIONS = 4
EACH = 40
"""Records of each round, the same number in each partition."""
CLASSIC = (8, 9, 10, 11, 12, 13, 14)
NEW = (8, 9, 10, 68)


class Scenario:
    def __init__(self, run: Run, strategy: str) -> None:
        self._run = run
        self._strategy = strategy
        self._group = run.new_name("group")
        self._topic = run.new_name("members")
        self._rounds = 0
        run.harness.create(self._topic, PARTITIONS)

    def member(self, stack: ExitStack, instance: str) -> Program:
        is_static = self._strategy == "static"
        program = self._run.start(
            "member",
            topic=self._topic,
            group=self._group,
            strategy=self._strategy,
            instance=instance if is_static else None,
        )
        return stack.enter_context(program)

    def produce(self) -> set[str]:
        """Produce one round of records; return their values."""
        self._rounds += 1
        values = [f"{self._rounds}-{number}" for number in range(EACH)]
        self._run.harness.produce_values(self._topic, PARTITIONS, values)
        return set(values)

    def check(self) -> None:
        with ExitStack() as stack:
            first, all_values = self.member(stack, "a"), self.produce()
            first.until(lambda: len(first.assigned) == PARTITIONS, f"the only member has {PARTITIONS} partitions")
            self._run.versions.add(first.version)
            first.until(lambda: all_values <= set(first.values), "the only member reads everything")
            second = self.member(stack, "b")
            self._until_shared(first, second)
            all_values |= self.produce()
            self._until_read(first, second, all_values)
            if self._strategy == "cooperative":
                expect("lists without partitions after the first", [] in first.assignments[1:], False)
            if self._strategy == "static":
                second = self._restart(stack, first, second)
            second.finish()
            if self._strategy == "static":  # it leaves only if an administrator removes it
                asyncio.run(self._run.harness.remove_static_member(self._group, "b"))
            first.until(lambda: len(first.assigned) == PARTITIONS, "the member that stays has all partitions")
            first.finish()
            each = self._rounds * EACH // PARTITIONS
            expect("committed", self._run.harness.committed(self._group, self._topic, PARTITIONS), [each] * PARTITIONS)
            fresh = self.produce()
            successor = self.member(stack, "a")
            successor.until(lambda: len(successor.values) >= EACH, "the successor reads the new records")
            successor.finish()
            expect("values of the successor", sorted(successor.values), sorted(fresh))

    def _until_shared(self, first: Program, second: Program) -> None:
        half = PARTITIONS // 2
        second.until(lambda: len(second.assigned) == half, f"the second member has {half} partitions")
        first.until(lambda: len(first.assigned) == half, f"the first member has {half} partitions")
        expect("partitions of both", sorted(first.assigned + second.assigned), list(range(PARTITIONS)))

    def _until_read(self, first: Program, second: Program, values: set[str]) -> None:
        share = EACH // 2
        second.until(lambda: len(second.values) >= share, "the second member reads its share")
        first.until(lambda: len(first.values) >= EACH + share, "the first member reads its share")
        expect("values of both", sorted(first.values + second.values), sorted(values))

    def _restart(self, stack: ExitStack, first: Program, second: Program) -> Program:
        """A static member that restarts gets its partitions again, and the others notice nothing."""
        before, partitions = len(first.assignments), second.assigned
        second.finish()
        again = self.member(stack, "b")
        again.until(lambda: again.assigned == partitions, f"the restarted member has {partitions} again")
        expect("assignments of the other member meanwhile", first.assignments[before:], [])
        return again


def _row(strategy: str, name: str, needs: tuple[int, ...]) -> Row:
    return Row(name, lambda run: Scenario(run, strategy).check(), needs)


GROUP_ROWS = (
    _row("eager", "group, eager", CLASSIC),
    _row("cooperative", "group, cooperative", CLASSIC),
    _row("static", "group, static", CLASSIC),
    _row("consumer", "group, new protocol", NEW),
)
