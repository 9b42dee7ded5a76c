"""A transaction hangs if it is open in a log before and after its coordinator reports that it does not know it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, cast

import pytest

from quorumlog.client import transaction_logs
from quorumlog.client.cluster import Cluster
from quorumlog.client.coordinators import Answers
from quorumlog.client.transaction_admin import ListedTransaction, TransactionClient, TransactionDescription
from quorumlog.client.transaction_logs import (
    OVERDUE_MS,
    OpenInLogs,
    OpenTransaction,
    StableRange,
    is_overdue,
    look_at_logs,
)
from quorumlog.errors import ClusterError

NOW_MS = 1_700_000_000_000
KEY = ("ledger", 0)
OPEN = OpenTransaction("ledger", 0, 5, 7, 3, 0)


def described(
    state: str = "Ongoing", partitions: tuple[tuple[str, int], ...] = (KEY,), open_ms: int | None = 10
) -> TransactionDescription:
    started_ms = None if open_ms is None else NOW_MS - open_ms
    return TransactionDescription("billing", state, 7, 3, 60_000, started_ms, partitions, 1)


class Coordinators:
    """A `TransactionClient` that knows one producer, or none."""

    def __init__(self, known: TransactionDescription | None) -> None:
        self.known = known
        self.missing: ClusterError | None = None
        """The error of a coordinator that does not answer."""
        self.meanwhile: Callable[[], None] = lambda: None
        """Changes the log while the coordinator is asked."""

    async def list_answered(self, timeout_s: float, *, producer_ids: Collection[int]) -> Answers[ListedTransaction]:
        assert 7 in producer_ids
        listed = [] if self.known is None else [ListedTransaction("billing", self.known.state, 7, 1)]
        return Answers(listed, self.missing)

    async def describe_answered(self, names: Collection[str], timeout_s: float) -> Answers[TransactionDescription]:
        self.meanwhile()
        return Answers([] if self.known is None else [self.known], None)


class Logs:
    """The logs of partitions: open transactions, and the last stable offsets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: dict[tuple[str, int], tuple[OpenTransaction, ...] | ClusterError] = {KEY: (OPEN,)}
        self.stable = {KEY: StableRange(5, 9)}
        self.asked: list[list[tuple[str, int]]] = []
        monkeypatch.setattr(transaction_logs, "stable_ranges", self._stable_ranges)
        monkeypatch.setattr(transaction_logs, "open_transactions", self._open_transactions)

    async def _stable_ranges(self, cluster: object, keys: Iterable[tuple[str, int]], timeout_s: float) -> Any:
        return {key: self.stable[key] for key in keys}

    async def _open_transactions(self, cluster: object, keys: Iterable[tuple[str, int]], timeout_s: float) -> Any:
        self.asked.append(list(keys))
        return {key: self.opened[key] for key in self.asked[-1]}

    async def look(self, coordinators: Coordinators) -> OpenInLogs:
        client, cluster = cast(TransactionClient, coordinators), cast(Cluster, None)
        return await look_at_logs(client, cluster, list(self.stable), NOW_MS, 1)


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Logs:
    return Logs(monkeypatch)


async def test_a_transaction_that_its_coordinator_knows_does_not_hang(logs: Logs) -> None:
    for state in ("Ongoing", "PrepareCommit", "PrepareAbort"):
        found = await logs.look(Coordinators(described(state)))
        assert (found.hanging, found.opened) == ((), (OPEN,))


@pytest.mark.parametrize(
    "known", [None, described("CompleteCommit", (), None), described("Ongoing", (("ledger", 1),))],
    ids=["no producer", "another state", "another partition"],
)  # fmt: skip
async def test_a_transaction_that_its_coordinator_does_not_know_hangs(
    logs: Logs, known: TransactionDescription | None
) -> None:
    (hanging,) = (await logs.look(Coordinators(known))).hanging
    assert (hanging.transaction, hanging.known, hanging.overdue, hanging.stable.lag) == (OPEN, known, False, 4)


async def test_a_known_transaction_in_the_same_log_as_a_hanging_one_does_not_hang(logs: Logs) -> None:
    stranger = OPEN._replace(start_offset=6, producer_id=8)
    logs.opened[KEY] = (OPEN, stranger)
    assert [each.transaction for each in (await logs.look(Coordinators(described()))).hanging] == [stranger]


async def test_a_transaction_that_ends_while_the_coordinator_is_asked_does_not_hang(logs: Logs) -> None:
    coordinators = Coordinators(described("CompleteCommit", (), None))
    coordinators.meanwhile = lambda: logs.opened.update({KEY: ()})
    assert (await logs.look(coordinators)).hanging == ()


async def test_a_later_transaction_of_the_producer_is_not_mistaken_for_the_earlier_one(logs: Logs) -> None:
    coordinators = Coordinators(described("CompleteCommit", (), None))
    coordinators.meanwhile = lambda: logs.opened.update({KEY: (OPEN._replace(start_offset=8),)})
    assert (await logs.look(coordinators)).hanging == ()


async def test_partitions_that_hold_back_no_readers_are_not_asked_for_open_transactions(logs: Logs) -> None:
    logs.stable = {KEY: StableRange(9, 9)}
    assert (await logs.look(Coordinators(None))).opened == ()
    assert logs.asked == [[], []]


async def test_a_transaction_far_beyond_its_timeout_hangs_although_it_is_known(logs: Logs) -> None:
    late = described(open_ms=60_000 + OVERDUE_MS + 1)
    (hanging,) = (await logs.look(Coordinators(late))).hanging
    assert hanging.overdue
    assert not is_overdue(described(open_ms=60_000 + OVERDUE_MS), NOW_MS)
    assert not is_overdue(described("CompleteAbort", open_ms=10_000_000), NOW_MS)


async def test_a_partition_that_does_not_answer_is_reported_and_does_not_hide_others(logs: Logs) -> None:
    logs.stable["ledger", 1] = StableRange(None, None, "no leader")
    logs.stable["x", 0] = StableRange(0, 1)
    logs.opened["x", 0] = ClusterError("NOT_LEADER_OR_FOLLOWER", "it moved")
    found = await logs.look(Coordinators(None))
    assert len(found.hanging) == 1
    assert found.problems == {("ledger", 1): "no leader", ("x", 0): "it moved"}


async def test_a_transaction_is_not_reported_as_hanging_while_a_coordinator_does_not_answer(logs: Logs) -> None:
    coordinators = Coordinators(None)
    coordinators.missing = ClusterError("TIMED_OUT", "broker 2: no answer", retriable=True)
    found = await logs.look(coordinators)
    assert (found.hanging, found.opened, found.missing) == ((), (OPEN,), coordinators.missing)
    assert found.problems == {KEY: "another coordinator may know producer 7: broker 2: no answer"}


@pytest.mark.parametrize(("known", "count"), [(described(), 0), (described("CompleteCommit", (), None), 1)])
async def test_a_transaction_is_judged_once_its_own_coordinator_has_answered(
    logs: Logs, known: TransactionDescription, count: int
) -> None:
    coordinators = Coordinators(known)
    coordinators.missing = ClusterError("TIMED_OUT", "broker 2: no answer", retriable=True)
    found = await logs.look(coordinators)
    assert (len(found.hanging), found.problems, found.missing) == (count, {}, None)
