"""Known mistakes with transaction scopes, planted one at a time; `mutants.py` has the others."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from broker.core.coordinator.scope_records import ScopeState, ScopeValue
from broker.core.coordinator.scope_requests import EndScope, EndScopeResponse, InitScope, InitScopeResponse
from broker.core.coordinator.scopes import Refusal, Scopes
from quorumlog.wire.scope_names import attempt_of
from simulation.kernel.mutation import Mutant, mutant_of

MUTANTS: list[Mutant] = []

_mutant = mutant_of(MUTANTS)


@_mutant("the stored sequence of a scope counts once more")
def _sequences_repeat() -> list[Any]:
    end = Scopes._end

    def again(self: Scopes, step: Any, request: EndScope) -> EndScopeResponse:
        known = self._scopes.get(request.scope)
        if known is not None and known.state is ScopeState.OPEN and known.sequence == request.sequence:
            self._scopes[request.scope] = replace(known, sequence=known.sequence - 1)
        return end(self, step, request)

    return [patch.object(Scopes, "_end", again)]


@_mutant("an end commits the losing producers of a scope as well")
def _losers_win() -> list[Any]:
    decide = Scopes._decide

    def all_of_them(self: Scopes, name: str, value: ScopeValue) -> None:
        everyone = tuple([attempt_of(member) for member in self._members.get(name, {})])
        decide(self, name, replace(value, winners=everyone) if value.winners else value)

    return [patch.object(Scopes, "_decide", all_of_them)]


@_mutant("a fenced run of a scope continues")
def _zombies_continue() -> list[Any]:
    refusal = Scopes._refusal

    def any_epoch(self: Scopes, known: ScopeValue | None, epoch: int) -> Refusal | None:
        return refusal(self, known, epoch if known is None else max(epoch, known.epoch))

    return [patch.object(Scopes, "_refusal", any_epoch)]


@_mutant("a stranger opens a scope")
def _strangers_enter() -> list[Any]:
    init = Scopes._init

    def as_its_owner(self: Scopes, step: Any, request: InitScope) -> InitScopeResponse:
        known = self._scopes.get(request.scope)
        return init(self, step, request if known is None else replace(request, owner=known.owner))

    return [patch.object(Scopes, "_init", as_its_owner)]
