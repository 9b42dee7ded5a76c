"""The check of transaction scopes: compares the records that readers see with the requests of drivers.

I42: A record of a scope's producer becomes visible only if a request to end the scope (an *end*) names the producer.
For each sequence, exactly the producers of one end become visible: all of them, and no other.  This end was not
refused.  If an end of the sequence was acknowledged as a change of the scope, its producers are the visible ones.  Once
the scope is open again, all of them are visible.
I43: An end whose sequence is not greater than the stored one changes nothing, and a stored sequence is never lost.
I44: Once a run of a scope has been acknowledged, no earlier run begins a producer or changes the scope.
I45: A scope has one owner, until another one resets it.  Ordinary requests (InitProducerId, EndTxn) neither begin
nor commit its producers.
L13: After healing, every scope commits another sequence, and no transaction remains open.

Theory of operation.  The check knows nothing of the coordinator.  It gets each request before it is sent, and each
answer when it has arrived.  The markers of the committed logs show the visible records (`Ledger.on_end`).  The ledger
of the same topic compares the markers with the records that readers get (I33), and the partitions of a producer with
each other (I34).

An end without an answer may have been decided or not.  So the check keeps all ends of a sequence (`Decision`).  It
rules out the ends that contradict an answer or the visible producers, and reports a violation when none is left.

An owner that takes a scope over begins with new sequences.  So a sequence belongs to an owner (`_Tenure`), and each
reset has a new owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from simulation.cluster.ledger import Ledger, Transaction
from simulation.cluster.metadata import Check, Spot

NO_EPOCH = -1
NO_SEQUENCE = -1


@dataclass(eq=False)
class ScopeRun:
    """A run of a scope.

    above: the newest acknowledged epoch of the scope when the run was first asked for.
    floor: the highest sequence that was certainly stored at that time.
    is_stranger: another owner certainly had the scope at that time.
    epoch: NO_EPOCH until the run is acknowledged.
    """

    scope: str
    owner: str
    name: str
    resets: bool
    above: int
    floor: int
    is_stranger: bool
    epoch: int = NO_EPOCH

    def __str__(self) -> str:
        return f"{self.name} of {self.scope} with epoch {self.epoch}"


@dataclass(eq=False)
class Attempt:
    """A producer of a scope.

    is_aborted: its transaction has certainly ended by now, other than by an end that names it.
    """

    run: ScopeRun
    name: str
    transaction: Transaction
    is_aborted: bool = False
    ends: list[End] = field(default_factory=list)

    def __str__(self) -> str:
        return f"producer {self.name} of {self.run}"


@dataclass(eq=False)
class End:
    """A request to end a scope, which may be repeated.

    problem: why the end must not change anything; None if it may.  The reason is an answer that arrived before the end
        was first sent, or a later event.
    """

    run: ScopeRun
    sequence: int
    winners: tuple[Attempt, ...]
    problem: str | None = None

    def __str__(self) -> str:
        return f"end {self.sequence} by {self.run} with {[one.name for one in self.winners]}"


@dataclass(eq=False)
class Decision:
    """All ends of one sequence.

    shown: the producers in these ends that became visible.  hidden: the aborted ones.
    acknowledged: the end that was acknowledged as the one that changed the scope.
    """

    ends: list[End] = field(default_factory=list)
    shown: set[Attempt] = field(default_factory=set)
    hidden: set[Attempt] = field(default_factory=set)
    acknowledged: End | None = None

    @property
    def possible(self) -> list[End]:
        """The ends that may be the one that was decided."""
        candidates = self.ends if self.acknowledged is None else [self.acknowledged]
        return [
            end
            for end in candidates
            if end.problem is None and self.shown <= set(end.winners) and not self.hidden & set(end.winners)
        ]

    def __str__(self) -> str:
        shown, hidden = (sorted(one.name for one in each) for each in (self.shown, self.hidden))
        ends = [f"{end}{f' ({end.problem})' if end.problem else ''}" for end in self.ends]
        return f"visible: {shown}, aborted: {hidden}, acknowledged: {self.acknowledged}, asked for: {ends}"


@dataclass(eq=False)
class _Tenure:
    """The time in which a scope belongs to one owner.

    stored: the highest sequence that is certainly stored.  reported: all sequences that an answer named.
    """

    stored: int = NO_SEQUENCE
    reported: set[int] = field(default_factory=set)
    decisions: dict[int, Decision] = field(default_factory=dict)


@dataclass(eq=False)
class _Scope:
    """newest: the acknowledged run with the highest epoch.  resetters: all owners that have asked to reset the scope.

    epochs: the acknowledged runs, by epoch.
    """

    newest: ScopeRun | None = None
    resetters: set[str] = field(default_factory=set)
    epochs: dict[int, ScopeRun] = field(default_factory=dict)
    tenures: dict[str, _Tenure] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def epoch(self) -> int:
        return NO_EPOCH if self.newest is None else self.newest.epoch


class ScopeWatch:
    """The checks of all scopes of one run.  ledger: the ledger of the topic to which their producers write."""

    def __init__(self, ledger: Ledger, check: Check) -> None:
        self.check = check
        self._ledger = ledger
        self._scopes: dict[str, _Scope] = {}
        self._attempts: dict[Transaction, Attempt] = {}
        ledger.on_end = self._on_end

    def _scope(self, name: str) -> _Scope:
        return self._scopes.setdefault(name, _Scope())

    def _tenure(self, run: ScopeRun) -> _Tenure:
        return self._scope(run.scope).tenures.setdefault(run.owner, _Tenure())

    # Runs

    def asks_to_open(self, name: str, owner: str, run: str, *, resets: bool = False) -> ScopeRun:
        """Note that a driver will ask for a run that was never asked for before."""
        scope = self._scope(name)
        is_stranger = scope.newest is not None and owner not in (scope.newest.owner, *scope.resetters)
        if resets:
            scope.resetters.add(owner)
        made = ScopeRun(name, owner, run, resets, scope.epoch, NO_SEQUENCE, is_stranger and not resets)
        made.floor = self._tenure(made).stored
        return made

    def opened(self, run: ScopeRun, epoch: int, sequence: int) -> None:
        """Note, and check, that a run was acknowledged."""
        scope, tenure = self._scope(run.scope), self._tenure(run)
        if run.epoch != NO_EPOCH:
            run.epoch = max(run.epoch, epoch)  # opened once more, perhaps after the scope was deleted
            return
        run.epoch = epoch
        before = max((one for one in scope.epochs if one < epoch), default=None)
        owner = run.owner if before is None else scope.epochs[before].owner
        self.check(
            not run.is_stranger and (run.owner == owner or run.owner in scope.resetters),
            lambda: f"I45: {run.owner} opens {run.scope}, which belongs to {scope.newest and scope.newest.owner}",
        )
        self.check(epoch > run.above, lambda: f"I44: {run} begins after epoch {run.above} of its scope")
        other = scope.epochs.setdefault(epoch, run)
        self.check(other is run, lambda: f"I44: {run} has the epoch of {other}")
        self.check(
            run.resets or sequence >= run.floor,
            lambda: f"I43: {run} begins with sequence {sequence}, although {run.floor} was stored",
        )
        if not run.resets:
            self._fence(run, sequence, tenure)
        self._store(tenure, sequence)
        if epoch > scope.epoch:
            scope.newest = run
            for attempt in scope.attempts:
                attempt.is_aborted |= attempt.run.epoch < epoch

    def _fence(self, run: ScopeRun, sequence: int, tenure: _Tenure) -> None:
        """Rule out the ends of earlier runs that had not been decided when this run began."""
        for one, decision in tenure.decisions.items():
            if one > sequence:
                for end in decision.ends:
                    if end.run.epoch < run.epoch and end.problem is None:
                        end.problem = f"I44: {run} began before it"
                self._check_decision(one, decision)

    def _store(self, tenure: _Tenure, sequence: int) -> None:
        """Note that a sequence is stored."""
        tenure.stored = max(tenure.stored, sequence)
        if sequence != NO_SEQUENCE:
            tenure.reported.add(sequence)

    def forbidden(self, what: str) -> None:
        """Report a request that must be refused, and was not."""
        self.check(False, lambda: f"I45: {what}")

    # Producers

    def is_fenced(self, run: ScopeRun) -> bool:
        """Return whether a later run was acknowledged."""
        return self._scope(run.scope).epoch > run.epoch

    def begun(self, run: ScopeRun, name: str, identity: tuple[int, int], *, was_fenced: bool) -> Attempt:
        """Note, and check, that a producer has begun.  was_fenced: the run was fenced when it was asked for."""
        self.check(not was_fenced, lambda: f"I44: producer {name} of {run} begins, although a later run has begun")
        self._ledger.begun(f"{run.scope}/{name}", identity)
        attempt = Attempt(run, name, self._ledger.new_transaction(0, identity))
        self._attempts[attempt.transaction] = attempt
        self._scope(run.scope).attempts.append(attempt)
        return attempt

    def aborted(self, attempts: Sequence[Attempt]) -> None:
        """Note that an abort of these producers was acknowledged."""
        for attempt in attempts:
            attempt.is_aborted = True

    def attempts_of(self, run: ScopeRun) -> list[Attempt]:
        """Return the producers of a scope that have begun so far."""
        return list(self._scope(run.scope).attempts)

    # Ends

    def asks_to_end(self, run: ScopeRun, sequence: int, winners: Sequence[Attempt]) -> End:
        """Note that a driver will end its scope.  The end may be repeated."""
        tenure = self._tenure(run)
        end = End(run, sequence, tuple(winners))
        if self.is_fenced(run):
            end.problem = f"I44: epoch {self._scope(run.scope).epoch} had begun before"
        elif sequence <= tenure.stored:
            end.problem = f"I43: sequence {tenure.stored} was stored before"
        elif dead := [one.name for one in winners if one.is_aborted or one.transaction.is_committed is False]:
            end.problem = f"I42: {dead} had ended before"
        tenure.decisions.setdefault(sequence, Decision()).ends.append(end)
        for winner in winners:
            assert all(one.sequence == sequence for one in winner.ends), winner
            winner.ends.append(end)
            winner.transaction.has_asked = True
        return end

    def ended(self, end: End, *, changed: bool, sequence: int) -> None:
        """Note, and check, a successful answer to an end."""
        tenure = self._tenure(end.run)
        decision = tenure.decisions[end.sequence]
        self.check(
            sequence == end.sequence if changed else sequence >= end.sequence,
            lambda: f"I43: {end} is answered with sequence {sequence}, changed: {changed}",
        )
        self._store(tenure, sequence)
        if changed:
            self.check(end.problem is None, lambda: f"{end.problem}, but {end} has changed the scope")
            self.check(
                decision.acknowledged in (None, end), lambda: f"I42: {end} and {decision.acknowledged} have changed it"
            )
            decision.acknowledged = end
            for winner in end.winners:
                self._ledger.ended(winner.transaction, True)
            self._check_decision(end.sequence, decision)

    def completed(self, end: End) -> None:
        """Check that the winners are visible: the scope was described as open again after this end had changed it."""
        decision = self._tenure(end.run).decisions[end.sequence]
        missing = [one.name for one in end.winners if one.transaction.acknowledged and one not in decision.shown]
        self.check(not missing, lambda: f"I42: {end} is complete, but {missing} are not visible")

    def refused(self, end: End) -> None:
        """Note, and check, that an end was refused because a winner was aborted or replaced."""
        if end.problem is None:
            end.problem = "I42: it was refused"
        self._check_decision(end.sequence, self._tenure(end.run).decisions[end.sequence])

    # Visible records

    def _on_end(self, transaction: Transaction, spot: Spot, commits: bool) -> None:
        attempt = self._attempts[transaction]
        if not attempt.ends:
            self.check(not commits, lambda: f"I42: {attempt} becomes visible in {spot}, and no end names it")
            return
        tenure, sequence = self._tenure(attempt.run), attempt.ends[0].sequence
        decision = tenure.decisions[sequence]
        (decision.shown if commits else decision.hidden).add(attempt)
        problems = [end.problem for end in attempt.ends]
        self.check(
            not commits or None in problems,
            lambda: f"{problems[0]}, but {attempt} becomes visible in {spot}: {decision}",
        )
        self._check_decision(sequence, decision)
        if commits:
            self._store(tenure, sequence)

    def _check_decision(self, sequence: int, decision: Decision) -> None:
        """Check that the visible producers are those of one end, and no other end was acknowledged."""
        is_decided = bool(decision.shown) or decision.acknowledged is not None
        self.check(
            not is_decided or bool(decision.possible), lambda: f"I42: no end explains sequence {sequence}: {decision}"
        )

    # At the end

    def check_all(self) -> None:
        """Check each decision after all transactions have ended."""
        for name, scope in self._scopes.items():
            for owner, tenure in scope.tenures.items():
                for sequence in sorted(tenure.reported | tenure.decisions.keys()):
                    self._check_whole(f"sequence {sequence} of {name} ({owner})", tenure, sequence)

    def _check_whole(self, what: str, tenure: _Tenure, sequence: int) -> None:
        decision = tenure.decisions.get(sequence)
        self.check(decision is not None, lambda: f"I43: {what} is stored, and nobody has asked for it")
        assert decision is not None
        if not decision.shown and decision.acknowledged is None and sequence not in tenure.reported:
            return
        whole = [
            end
            for end in decision.possible
            if all(one in decision.shown for one in end.winners if one.transaction.acknowledged)
        ]
        self.check(bool(whole), lambda: f"I42: {what} is decided, but no end is visible as a whole: {decision}")
