"""kctl doctor: transactions that hang, lack markers or hold back readers, and coordinators that are missing."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest

from quorumlog.client.transaction_admin import TransactionDescription
from quorumlog.client.transaction_logs import Hanging, OpenInLogs, OpenTransaction, StableRange
from quorumlog.doctor import examine as examination
from quorumlog.doctor.transactions import LONG_MS, STATE_TOPIC
from quorumlog.doctor.transactions_observed import ObservedTransactions
from quorumlog.runtime.clock import Sources
from quorumlog.words import Key, about
from tests.unit.quorumlog.doctor.clinic import Clinic, Diagnose

NOW_MS = 1_700_000_000_000
OPEN = OpenTransaction("ledger", 2, 40, 7, 3, 0)
STABLE = StableRange(40, 52)


def known(
    state: str = "Ongoing", open_ms: int | None = 1_000, name: str = "billing 1", timeout_ms: int = 600_000
) -> TransactionDescription:
    started_ms = None if open_ms is None else NOW_MS - open_ms
    return TransactionDescription(name, state, 7, 3, timeout_ms, started_ms, (OPEN.key,), 12)


def found(description: TransactionDescription | None, hanging: tuple[Hanging, ...] = ()) -> OpenInLogs:
    return OpenInLogs((OPEN,), {} if description is None else {7: description}, hanging, {OPEN.key: STABLE}, {})


@pytest.fixture
def seen(clinic: Clinic, monkeypatch: pytest.MonkeyPatch) -> ObservedTransactions:
    """The reports of the brokers of the clinic, whose topic of transactions has two partitions."""
    observed = ObservedTransactions(now_ms=NOW_MS)
    clinic.topic(STATE_TOPIC, (11, 12, 13), (12, 13, 11))
    clinic.topic("ledger", (11, 12, 13))

    async def look(
        addresses: Iterable[str], partitions: Collection[Key], now_ms: int, timeout_s: float
    ) -> ObservedTransactions:
        assert list(addresses) == ["h11:9092", "h12:9092", "h13:9092"]
        assert ("ledger", 0) in partitions
        return observed

    monkeypatch.setattr(examination, "look_at_transactions", look)
    return observed


def test_transactions_within_the_time_limit_cause_no_finding(seen: ObservedTransactions, diagnose: Diagnose) -> None:
    seen.found = found(known(open_ms=LONG_MS))
    assert diagnose() == ({}, 0)


def test_transactions_are_judged_by_the_clocks_of_the_nodes(
    clinic: Clinic, seen: ObservedTransactions, diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the clock of this machine were an hour ahead, every transaction would seem to exceed its timeout."""
    hour_ms = 3_600_000
    asked_ms: list[int] = []

    async def look(_addresses: object, _partitions: object, now_ms: int, _timeout_s: float) -> ObservedTransactions:
        asked_ms.append(now_ms)
        return seen

    monkeypatch.setattr(examination, "look_at_transactions", look)
    real_ms = Sources.real().wall_ms()
    for described in clinic.described.values():
        described.wall_ms = real_ms - hour_ms
    clinic.described[2].wall_ms = real_ms  # the clock of a single node differs
    diagnose()
    assert asked_ms[0] < real_ms - hour_ms / 2


def test_doctor_asks_no_broker_about_transactions_without_a_transaction_state_topic(
    clinic: Clinic, diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "look_at_transactions", None)
    assert diagnose() == ({}, 0)


def test_doctor_aborts_an_unknown_transaction_by_its_partition_and_start_offset(
    seen: ObservedTransactions, diagnose: Diagnose
) -> None:
    seen.found = found(None, (Hanging(OPEN, None, False, STABLE),))
    findings, code = diagnose()
    finding = findings["HANGING_TRANSACTION"]
    assert code == 1
    assert "1 transaction that nothing will end holds back all readers" in finding["what"]
    assert finding["cause"] == "ledger-2 at offset 40: no coordinator knows its producer"
    assert finding["commands"] == ["kctl transactions abort --topic ledger --partition 2 --start-offset 40 --yes"]
    assert finding["partitions"] == ["ledger-2"]


def test_doctor_reports_that_the_coordinator_does_not_know_the_partition_of_a_transaction(
    seen: ObservedTransactions, diagnose: Diagnose
) -> None:
    seen.found = found(known("CompleteCommit", None), (Hanging(OPEN, known("CompleteCommit", None), False, STABLE),))
    finding = diagnose()[0]["HANGING_TRANSACTION"]
    assert finding["cause"].endswith("the coordinator reports its producer as CompleteCommit, without this partition")


def test_doctor_aborts_an_overdue_transaction_by_its_quoted_transactional_id(
    seen: ObservedTransactions, diagnose: Diagnose
) -> None:
    late = known(open_ms=3_600_000)
    seen.found = found(late, (Hanging(OPEN, late, True, STABLE),))
    findings, _ = diagnose()
    assert findings.keys() == {"HANGING_TRANSACTION"}, "it is not reported as a long one as well"
    assert findings["HANGING_TRANSACTION"]["commands"] == ["kctl transactions abort 'billing 1' --yes"]


def test_the_commands_of_doctor_accept_names_that_begin_with_a_dash(
    seen: ObservedTransactions, diagnose: Diagnose
) -> None:
    late = known(open_ms=3_600_000, name="-tx")
    seen.found = found(late, (Hanging(OPEN, late, True, STABLE),))
    assert diagnose()[0]["HANGING_TRANSACTION"]["commands"] == ["kctl transactions abort --yes -- -tx"]
    assert about("kctl groups delete", "b", "-a c", options=" --yes") == "kctl groups delete --yes -- b '-a c'"


def test_doctor_reports_missing_markers_instead_of_aborting_a_prepared_transaction(
    seen: ObservedTransactions, diagnose: Diagnose
) -> None:
    late = known("PrepareCommit", 3_600_000, "billing")
    seen.found = found(late, (Hanging(OPEN, late, True, STABLE),))
    findings, code = diagnose()
    finding = findings["MARKERS_MISSING"]
    assert (findings.keys(), code) == ({"MARKERS_MISSING"}, 1)
    assert finding["commands"] == []
    assert finding["next"].startswith("kctl transactions describe billing; then look at the log of broker 12")


def test_a_transaction_that_lacks_markers_in_several_partitions_is_counted_once(
    seen: ObservedTransactions, diagnose: Diagnose
) -> None:
    late = known("PrepareCommit", 3_600_000, "billing")
    opened = (OPEN, OPEN._replace(partition=3))
    seen.found = found(late, tuple(Hanging(each, late, True, STABLE) for each in opened))
    finding = diagnose()[0]["MARKERS_MISSING"]
    assert finding["what"] == "1 transaction that is decided still lacks markers in ledger-2..3"
    other = opened[1]._replace(producer_id=8)
    seen.found = found(late, (Hanging(OPEN, late, True, STABLE), Hanging(other, late, True, STABLE)))
    finding = diagnose()[0]["MARKERS_MISSING"]
    assert finding["what"] == "2 transactions that are decided still lack markers in ledger-2..3"


def test_a_transaction_that_hangs_in_several_partitions_is_counted_once(
    seen: ObservedTransactions, diagnose: Diagnose
) -> None:
    late = known(open_ms=3_600_000)
    opened = (OPEN, OPEN._replace(partition=3))
    seen.found = found(late, tuple(Hanging(each, late, True, STABLE) for each in opened))
    finding = diagnose()[0]["HANGING_TRANSACTION"]
    assert finding["what"].startswith("1 transaction that nothing will end holds back all readers")


def test_a_long_transaction_is_advice_with_the_offsets_that_it_holds_back(
    seen: ObservedTransactions, diagnose: Diagnose
) -> None:
    seen.found = found(known(open_ms=LONG_MS + 1, name="billing"))
    findings, code = diagnose()
    finding = findings["LONG_TRANSACTION"]
    assert code == 0
    assert finding["cause"] == '"billing" for 5 of at most 10 minutes; 12 offsets held back'
    assert finding["next"].endswith("if it no longer runs: kctl transactions abort billing --yes")


def test_a_long_transaction_of_a_scope_is_left_to_its_driver_or_its_timeout(
    seen: ObservedTransactions, diagnose: Diagnose
) -> None:
    seen.found = found(known(open_ms=LONG_MS + 1, name="__scope/reports/0-1"))
    findings, code = diagnose()
    finding = findings["LONG_TRANSACTION"]
    assert (findings.keys(), code) == ({"LONG_TRANSACTION"}, 0)
    assert finding["cause"].startswith('"0-1" of scope "reports" for 5 of at most 10 minutes')
    assert finding["next"].startswith('kctl transactions describe __scope/reports/0-1; the driver of scope "reports"')
    assert "or wait 10 minutes until the coordinator aborts them" in finding["next"]
    assert "kctl transactions abort" not in finding["next"], "the driver would have to write the batch again"


def test_a_coordinator_that_does_not_answer_is_a_problem(seen: ObservedTransactions, diagnose: Diagnose) -> None:
    seen.problem = "broker 12: the coordinator is still loading"
    findings, code = diagnose()
    assert findings["TRANSACTIONS_UNKNOWN"]["cause"] == seen.problem
    assert code == 1


def test_transaction_partitions_without_a_coordinator_are_critical(
    seen: ObservedTransactions, clinic: Clinic, diagnose: Diagnose
) -> None:
    clinic.metadata.topics[0].partitions[1].leader = -1
    findings, _ = diagnose()
    finding = findings["NO_TRANSACTION_COORDINATOR"]
    assert (finding["severity"], finding["partitions"]) == ("critical", [f"{STATE_TOPIC}-1"])
