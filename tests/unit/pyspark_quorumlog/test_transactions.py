"""The decisions of a write's driver, and the beginning of a task, against scopes in this process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from pyspark_quorumlog.options import OptionError, parse_write
from pyspark_quorumlog.transactions import (
    BATCH_ID,
    QUERY_ID,
    RUN_ID,
    Attempt,
    Staged,
    abort,
    attempt_of_batch,
    attempt_of_stream,
    begun,
    commit,
    commit_batch,
    open_batch,
    opened,
)
from quorumlog.client.scope_client import OpenScope, ScopeDescription, ScopeEnd, StagedProducer, Winner
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import KafkaCode

TIMEOUT_S = 5.0


@dataclass
class FakeScope:
    owner: str
    run: str
    epoch: int = 1
    sequence: int = -1
    state: str = "Open"
    producers: dict[str, Winner] = field(default_factory=dict)


class FakeScopes:
    """Fake coordinators.  `visible` and `aborted` name producers; `looks` counts the descriptions of scopes."""

    def __init__(self) -> None:
        self.scopes: dict[str, FakeScope] = {}
        self.visible: list[str] = []
        self.aborted: list[str] = []
        self.looks = 0
        self.replaced: set[tuple[str, str, str]] = set()

    def _find(self, scope: OpenScope) -> FakeScope:
        found = self.scopes.get(scope.name)
        if found is None:
            raise refused(KafkaCode.RESOURCE_NOT_FOUND)
        if scope.epoch != found.epoch:
            raise refused(KafkaCode.PRODUCER_FENCED)
        return found

    async def open(self, scope: str, owner: str, run: str, timeout_s: float, *, reset: bool = False) -> OpenScope:
        found = self.scopes.setdefault(scope, FakeScope(owner, run))
        if found.owner != owner and not reset:
            raise refused(KafkaCode.DUPLICATE_RESOURCE)
        if (scope, owner, run) in self.replaced:
            raise refused(KafkaCode.PRODUCER_FENCED)
        if (found.owner, found.run) != (owner, run):
            self.replaced.add((scope, found.owner, found.run))
            self.aborted += found.producers
            sequence = -1 if reset else found.sequence
            found = self.scopes[scope] = FakeScope(owner, run, found.epoch + 1, sequence)
        return OpenScope(scope, found.epoch, found.sequence)

    async def begin(
        self, scope: OpenScope, attempt: str, timeout_s: float, transaction_timeout_ms: int = 1
    ) -> StagedProducer:
        producers = self._find(scope).producers
        producers[attempt] = Winner(attempt, len(producers), 0)
        return cast(StagedProducer, producers[attempt])

    async def end(self, scope: OpenScope, sequence: int, winners: Iterable[Winner], timeout_s: float) -> ScopeEnd:
        found = self._find(scope)
        if sequence <= found.sequence:
            return ScopeEnd(False, found.sequence)
        names = [winner.attempt for winner in winners]
        if not set(names) <= found.producers.keys():
            raise refused(KafkaCode.INVALID_TXN_STATE)
        self.visible += names
        self.aborted += found.producers.keys() - set(names)
        found.sequence, found.producers, found.state = sequence, {}, "Ending"
        return ScopeEnd(True, sequence)

    async def abort(self, scope: OpenScope, timeout_s: float) -> None:
        found = self._find(scope)
        self.aborted += found.producers
        found.producers = {}

    async def delete(self, scope: OpenScope, timeout_s: float) -> None:
        if scope.name in self.scopes:
            await self.abort(scope, timeout_s)
            del self.scopes[scope.name]

    async def describe(self, scope: str, timeout_s: float) -> ScopeDescription:
        found = self.scopes.get(scope)
        if found is None:
            raise refused(KafkaCode.RESOURCE_NOT_FOUND)
        self.looks += 1
        state, found.state = found.state, "Open"  # complete at the second look
        return ScopeDescription(scope, found.owner, found.run, found.epoch, state, found.sequence, 0, ())

    async def task(self, attempt: Attempt) -> Staged:
        """Do what a task does: open the scope, and write unless the batch is committed."""
        scope = await opened(self, attempt, TIMEOUT_S)
        if scope.last_sequence >= attempt.sequence:
            return Staged(scope)
        return Staged(scope, cast(Winner, await self.begin(scope, attempt.name, TIMEOUT_S)))


def refused(code: KafkaCode) -> ClusterError:
    return ClusterError(code.name, "refused")


def attempt(batch: int, name: str = "0.0", run: str = "run-1", owner: str = "query", **changes: Any) -> Attempt:
    return Attempt("scope", owner, run, batch + 1, name)._replace(**changes)


async def test_a_commit_shows_the_winners_and_aborts_the_others() -> None:
    scopes = FakeScopes()
    staged = [await scopes.task(attempt(0, name)) for name in ("0.0", "1.1", "0.2")]
    await commit(scopes, staged[1:], 1, TIMEOUT_S)
    assert (scopes.visible, scopes.aborted) == (["1.1", "0.2"], ["0.0"])
    assert scopes.looks == 2, "the commit waits until readers see it"


async def test_a_repeated_batch_is_not_written_again() -> None:
    scopes = FakeScopes()
    await commit(scopes, [await scopes.task(attempt(0))], 1, TIMEOUT_S)
    again = await scopes.task(attempt(0, "0.7", run="run-2"))
    assert again.winner is None, "the task writes nothing"
    await commit(scopes, [again], 1, TIMEOUT_S)
    assert scopes.visible == ["0.0"]
    following = await scopes.task(attempt(1, "0.8", run="run-2"))
    await commit(scopes, [following], 2, TIMEOUT_S)
    assert scopes.visible == ["0.0", "0.8"]


async def test_a_batch_of_an_older_checkpoint_is_skipped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A checkpoint was restored from a copy.  Its next batch may have other rows than the one with the same number."""
    scopes = FakeScopes()
    for batch in range(3):
        await commit(scopes, [await scopes.task(attempt(batch, f"0.{batch}"))], batch + 1, TIMEOUT_S)
    await commit(scopes, [await scopes.task(attempt(2, "0.3", run="run-2"))], 3, TIMEOUT_S)
    assert caplog.messages == [], "a repeated batch is no reason to warn"
    await commit(scopes, [await scopes.task(attempt(1, "0.4", run="run-2"))], 2, TIMEOUT_S)
    (message,) = caplog.messages
    assert message.startswith("batch 1 was not written, because the brokers have batch 2 of scope scope already")
    assert scopes.visible == ["0.0", "0.1", "0.2"]


async def test_an_older_driver_is_fenced() -> None:
    scopes = FakeScopes()
    old = await scopes.task(attempt(0))
    new = await scopes.task(attempt(0, "0.1", run="run-2"))
    with pytest.raises(ClusterError) as fenced:
        await commit(scopes, [old], 1, TIMEOUT_S)
    assert fenced.value.code == KafkaCode.PRODUCER_FENCED.name
    await commit(scopes, [new], 1, TIMEOUT_S)
    assert (scopes.visible, scopes.aborted) == (["0.1"], ["0.0"])


async def test_an_attempt_of_a_replaced_run_is_fenced_and_does_not_fence_the_current_run() -> None:
    scopes = FakeScopes()
    await scopes.task(attempt(0))
    new = await scopes.task(attempt(0, "0.1", run="run-2"))
    with pytest.raises(ClusterError) as fenced:
        await scopes.task(attempt(0, "0.2"))
    assert fenced.value.code == KafkaCode.PRODUCER_FENCED.name
    await commit(scopes, [new], 1, TIMEOUT_S)
    assert scopes.visible == ["0.1"]


async def test_a_repeated_attempt_begins_the_run_whose_first_attempt_failed_before_it_opened_the_scope() -> None:
    """The first task of a restarted query lost its executor, for example.  The scope shows the run before."""
    scopes = FakeScopes()
    await commit(scopes, [await scopes.task(attempt(0))], 1, TIMEOUT_S)
    one = attempt_of_stream(
        parse_write(WRITE), Context(0, 7, 1, **PROPERTIES | {QUERY_ID: "scope", RUN_ID: "run-2", BATCH_ID: "1"})
    )
    staged = await scopes.task(one._replace(owner="query"))
    await commit(scopes, [staged], 2, TIMEOUT_S)
    assert scopes.visible == ["0.0", "0.7"]


async def test_attempts_of_two_runs_are_not_committed_together() -> None:
    scopes = FakeScopes()
    staged = [await scopes.task(attempt(0, "0.0")), await scopes.task(attempt(0, "1.1", run="run-2"))]
    with pytest.raises(ClusterError, match="another run began while the tasks were running"):
        await commit(scopes, staged, 1, TIMEOUT_S)
    assert scopes.visible == []


async def test_attempts_of_a_batch_that_another_driver_committed_are_aborted() -> None:
    scopes = FakeScopes()
    staged = await scopes.task(attempt(0))
    scopes.scopes["scope"].sequence = 1
    await commit(scopes, [staged], 1, TIMEOUT_S)
    assert (scopes.visible, scopes.aborted) == ([], ["0.0"])


async def test_the_commit_of_an_already_committed_batch_succeeds_even_if_its_attempts_cannot_be_aborted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer to the end was lost, and a partition has no leader that could write its marker."""
    scopes = FakeScopes()

    async def refuse(scope: OpenScope, timeout_s: float) -> None:
        raise ClusterError("TIMED_OUT", "its previous end is not complete", retriable=True)

    staged = await scopes.task(attempt(0))
    await scopes.end(OpenScope("scope", 1, -1), 1, [cast(Winner, staged.winner)], TIMEOUT_S)
    monkeypatch.setattr(scopes, "abort", refuse)
    await commit(scopes, [staged], 1, TIMEOUT_S)
    assert scopes.visible == ["0.0"]


async def test_a_scope_of_another_query_is_refused_unless_it_is_reset() -> None:
    scopes = FakeScopes()
    await commit(scopes, [await scopes.task(attempt(6))], 7, TIMEOUT_S)
    with pytest.raises(ClusterError) as refusal:
        await scopes.task(attempt(0, owner="new checkpoint", run="run-2"))
    assert refusal.value.code == KafkaCode.DUPLICATE_RESOURCE.name
    assert "resetTransactionScope" in str(refusal.value.next_step)
    reset = attempt(0, "0.1", owner="new checkpoint", run="run-2", may_reset=True)
    await commit(scopes, [await scopes.task(reset)], 1, TIMEOUT_S)
    assert scopes.visible == ["0.0", "0.1"]
    again = reset._replace(run="run-3", name="0.2")
    assert (await scopes.task(again)).winner is None, "the option does not forget this query's own last batch"


async def test_a_batch_write_deletes_its_scope() -> None:
    scopes = FakeScopes()
    scope = await open_batch(scopes, "mine", TIMEOUT_S)
    one = attempt_of_batch(scope, Context(partition=3, task=9))
    assert (one.scope, one.sequence, one.name) == ("mine", 1, "3.9")
    await commit_batch(scopes, scope, [await scopes.task(one), Staged()], TIMEOUT_S)
    assert (scopes.visible, scopes.scopes) == (["3.9"], {})


async def test_a_batch_write_without_rows_deletes_its_scope() -> None:
    scopes = FakeScopes()
    await commit_batch(scopes, await open_batch(scopes, "mine", TIMEOUT_S), [Staged()], TIMEOUT_S)
    assert (scopes.visible, scopes.scopes) == ([], {})


async def test_an_attempt_that_begins_after_the_end_of_its_write_is_refused() -> None:
    scopes = FakeScopes()
    scope = await open_batch(scopes, "mine", TIMEOUT_S)
    await commit_batch(scopes, scope, [await scopes.task(attempt_of_batch(scope, Context()))], TIMEOUT_S)
    with pytest.raises(ClusterError) as refusal:
        await scopes.task(attempt_of_batch(scope, Context(task=1)))
    assert refusal.value.code == KafkaCode.RESOURCE_NOT_FOUND.name
    assert scopes.scopes == {}


async def test_a_write_whose_scope_cannot_be_deleted_is_committed_nevertheless(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A partition has no leader that could write its marker.  With an error, the user would write the rows again."""
    scopes = FakeScopes()

    async def delete(scope: OpenScope, timeout_s: float) -> None:
        raise ClusterError("TIMED_OUT", "given up after 120 s", retriable=True)

    monkeypatch.setattr(scopes, "delete", delete)
    scope = await open_batch(scopes, "mine", TIMEOUT_S)
    await commit_batch(scopes, scope, [await scopes.task(attempt_of_batch(scope, Context()))], TIMEOUT_S)
    assert scopes.visible == ["0.0"]
    (message,) = caplog.messages
    assert message.startswith("the write is committed, but readers")
    assert message.endswith("scope mine was not deleted: given up after 120 s")


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (KafkaCode.POLICY_VIOLATION, "fewer tasks"),
        (KafkaCode.INVALID_TRANSACTION_TIMEOUT, "kafka.transaction.timeout.ms"),
        (KafkaCode.PRODUCER_FENCED, "as before"),
    ],
)
async def test_a_refused_attempt_names_the_option_to_change(
    monkeypatch: pytest.MonkeyPatch, code: KafkaCode, remedy: str
) -> None:
    scopes = FakeScopes()

    async def begin(*_: Any) -> StagedProducer:
        raise ClusterError(code.name, "refused", "as before")

    monkeypatch.setattr(scopes, "begin", begin)
    with pytest.raises(ClusterError) as refusal:
        await begun(scopes, OpenScope("scope", 1, -1), attempt(0), TIMEOUT_S, 1_000)
    assert remedy in refusal.value.next_step


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_commit_of_an_attempt_that_was_aborted_names_the_timeout(is_stream: bool) -> None:
    scopes = FakeScopes()
    staged = await scopes.task(attempt(0))
    assert staged.scope is not None
    await scopes.abort(staged.scope, TIMEOUT_S)
    work = (
        commit(scopes, [staged], 1, TIMEOUT_S) if is_stream else commit_batch(scopes, staged.scope, [staged], TIMEOUT_S)
    )
    with pytest.raises(ClusterError) as refusal:
        await work
    assert refusal.value.code == KafkaCode.INVALID_TXN_STATE.name
    assert "took longer than kafka.transaction.timeout.ms" in refusal.value.next_step


async def test_an_abort_keeps_the_last_batch_of_a_stream() -> None:
    scopes = FakeScopes()
    await commit(scopes, [await scopes.task(attempt(0))], 1, TIMEOUT_S)
    await abort(scopes, [await scopes.task(attempt(1, "0.1"))], TIMEOUT_S)
    assert scopes.aborted == ["0.1"]
    assert scopes.scopes["scope"].sequence == 1


async def test_a_batch_write_whose_commit_got_no_answer_reports_that_its_rows_may_be_visible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scopes = FakeScopes()

    async def end(*_: Any) -> ScopeEnd:
        raise ClusterError("TIMED_OUT", "given up after 120 s", retriable=True)

    monkeypatch.setattr(scopes, "end", end)
    scope = await open_batch(scopes, "mine", TIMEOUT_S)
    staged = await scopes.task(attempt_of_batch(scope, Context()))
    with pytest.raises(ClusterError) as failure:
        await commit_batch(scopes, scope, [staged], TIMEOUT_S)
    assert failure.value.next_step == "the rows may be visible: look for them before you repeat the write"


async def test_an_abort_of_attempts_that_a_later_run_has_aborted_is_no_error() -> None:
    """Its warning would announce that they stay open until their timeout."""
    scopes = FakeScopes()
    old = await scopes.task(attempt(0))
    await scopes.task(attempt(0, "0.1", run="run-2"))
    await abort(scopes, [old], TIMEOUT_S)
    assert scopes.aborted == ["0.0"]
    del scopes.scopes["scope"]
    await abort(scopes, [old], TIMEOUT_S)


async def test_a_commit_or_abort_of_tasks_without_transactions_sends_no_request() -> None:
    scopes = FakeScopes()
    await commit(scopes, [Staged()], 1, TIMEOUT_S)
    await abort(scopes, [], TIMEOUT_S)
    assert (scopes.scopes, scopes.looks) == ({}, 0)


class Context:
    """The part of Spark's TaskContext that is used here."""

    def __init__(self, partition: int = 0, task: int = 0, number: int = 0, **properties: str) -> None:
        self._values = partition, task, number
        self._properties = properties

    def partitionId(self) -> int:
        return self._values[0]

    def taskAttemptId(self) -> int:
        return self._values[1]

    def attemptNumber(self) -> int:
        return self._values[2]

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name)


PROPERTIES = {QUERY_ID: "query", RUN_ID: "run", BATCH_ID: "4"}
WRITE = {"bootstrap.servers": "h:9092", "topic": "t"}


def test_the_attempt_of_a_stream_is_named_by_its_query_its_run_and_its_batch() -> None:
    context = Context(2, 30, 1, **PROPERTIES)
    assert attempt_of_stream(parse_write(WRITE), context) == Attempt("query", "query", "run", 5, "2.30", False)
    named = parse_write(WRITE | {"transactionScope": "mine", "resetTransactionScope": "true"})
    found = attempt_of_stream(named, context)
    assert (found.scope, found.owner, found.may_reset) == ("mine", "query", True)


@pytest.mark.parametrize("missing", PROPERTIES)
def test_a_stream_whose_batch_is_unknown_is_refused(missing: str) -> None:
    context = Context(0, 0, 0, **{name: value for name, value in PROPERTIES.items() if name != missing})
    with pytest.raises(OptionError, match="to write without transactions, set the option atomic to false"):
        attempt_of_stream(parse_write(WRITE), context)
