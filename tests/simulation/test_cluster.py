"""Seeds of the cluster simulation: promises hold, rare faults occur, and a seed replays in any process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from quorumlog.runtime.clock import Sources
from quorumlog.wire.record_batch import Codec
from simulation.__main__ import CLUSTER, ClusterTotals, attack_cluster_seed, main
from simulation.cluster.draw import KINDS, draw
from simulation.cluster.mutants import MUTANTS
from simulation.cluster.plan import DAY_MS, ClusterPlan
from simulation.kernel.mutation import hunt

ROOT = Path(__file__).parents[2]
SEEDS = 42
WITH_REAL_FILES = 7
WITH_REAL_STORE = 14
REBUILT = 55
BLOCK = 3

QUICKLY_CAUGHT = {
    "a leader does not check for divergence",
    "a leader counts records that it has not flushed",
    "a follower fetches from an offset that it has not flushed",
    "a duplicate is acknowledged before the watermark",
    "a retry is not recognised",
    "a proposed shrink counts before it is committed",
    "a broker keeps its epoch after a crash",
    "strays are set aside before the metadata has caught up",
    "leader epochs start over when a topic is recreated",
    "consumers see uncommitted records",
    "retention deletes uncommitted records",
    "the last record of a key is removed as well",
    "keys with the same beginning count as one",
    "retention deletes one segment too many",
    "producers expire when the wall clock jumps",
    "an unclean stop loses nothing with write.caching",
    "a damaged replica is silently replaced by an empty one",
    "a new coordinator does not read its partition",
    "the last stable offset ignores open transactions",
    "a transaction begins without a verification",
    "aborted transactions are missing in the snapshots of producers",
    "an end commits the losing producers of a scope as well",
    "a fenced run of a scope continues",
    "a member that is no longer in the group may commit",
    "a deletion of records is answered before followers have made it",
    "a deletion of records is answered before it is durable",
    "a record is archived although its dead letter was not written",
    "accepted records get dead letters",
    "nobody reminds a new leader of missing dead letters",
    "records are acknowledged while the move of their log is decided",
    "a moved replica stays in its former directory as well",
    "a broker does not report the new directory of a replica",
    "a timeout does not raise the epoch",
    "a batch behind one that was refused for the moment is reported as a loss",
}
"""All other mutants need more seeds than a test has time for: `python -m simulation --cluster --mutants`."""
MUTANT_SEEDS = 30
MUTANT_FIRST_SEED = {
    "a damaged replica is silently replaced by an empty one": 31,
    "producers expire when the wall clock jumps": 220,
    "a deletion of records is answered before followers have made it": 19,
    "a deletion of records is answered before it is durable": 19,
    "a record is archived although its dead letter was not written": 26,
    "accepted records get dead letters": 10,
    "nobody reminds a new leader of missing dead letters": 10,
    "a batch behind one that was refused for the moment is reported as a loss": 8,
    "a timeout does not raise the epoch": 63,
    "a transaction begins without a verification": 13,
}
"""The first seed of the search for a mutant, if not 0.

About one seed in 200 catches the mutant of the wall clock, and one in 20 catches each of the others.
"""

totals = ClusterTotals()


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_runs_of_all_seeds_keep_every_invariant(first: int) -> None:
    for seed in range(first, first + BLOCK):
        result = CLUSTER.run(seed)
        totals.add(result)
        assert result.violation is None, f"python -m simulation --cluster --seed {seed}: {result.violation}"


def test_the_seeds_together_reach_rare_faults_and_events() -> None:
    """This test runs after the seeds above.  A promise that no run challenges proves nothing."""
    if totals.seeds < SEEDS:
        pytest.skip("only part of the seeds were run")
    assert sum(totals.faults[kind] > 0 for kind in KINDS) > len(KINDS) * 3 // 4, totals.faults
    assert totals.acknowledged > 50 * SEEDS
    assert totals.consumed > 300 * SEEDS
    for what in (
        "truncation",
        "duplicate recognised",
        "broker_fenced",
        "new_incarnation",
        "isr_expand",
        "elected out of the elr",
        "reassignment_completed",
        "directory_offline",
        "controlled_shutdown",
        "metadata snapshot loaded",
        "acks=1 lost",
        "records deleted by retention",
        "log restarted",
        "consumer out of range",
        "last replica dropped after a crash",
        "damaged replica read to the end",
        "leader from a restored backup",
        "rot in a log",
        "rot in a checkpoint",
        "segments replaced by compaction",
        "crash in a swap",
        "offset committed",
        "group member started over",
        "offset committed with the newer protocol",
        "member of the newer protocol started over",
        "transaction committed",
        "transaction aborted",
        "transaction abandoned",
        "batch of a transaction delayed",
        "transactional producer fenced",
        "offset committed in a transaction",
        "record of a transaction read",
        "scope ended",
        "end of a scope in doubt",
        "end of a scope changed nothing",
        "end of a scope refused",
        "end of a scope complete",
        "driver of a scope killed",
        "driver of a scope paused",
        "stranger refused",
        "scope reset",
        "scope deleted",
        "record completed by a worker",
        "record released by a worker",
        "lock of a worker renewed",
        "worker vanished",
        "dead letter written",
        "dead letter written without members",
        "run with recompression",
        "replica moved",
    ):
        assert totals.seen[what] > 0, what


@pytest.fixture(scope="module")
def plans() -> list[ClusterPlan]:
    return [draw(seed) for seed in range(300)]


def test_every_kind_of_fault_is_drawn(plans: list[ClusterPlan]) -> None:
    assert {fault.kind for plan in plans for fault in plan.faults} == set(KINDS)


CONDITIONS: dict[str, Callable[[ClusterPlan], bool]] = {
    "logs are maintained often": lambda plan: plan.upkeep is not None,
    "segments are small": lambda plan: plan.upkeep is not None and plan.upkeep.segment_bytes <= 400,
    "segments are closed early": lambda plan: plan.upkeep is not None and plan.upkeep.segment_ms == 150,
    "checkpoints are frequent": lambda plan: plan.upkeep is not None and plan.upkeep.checkpoint_bytes == 1,
    "producers expire": lambda plan: plan.upkeep is not None and plan.upkeep.producers_ms < DAY_MS,
    "strays are deleted": lambda plan: plan.upkeep is not None and plan.upkeep.strays_ms < DAY_MS,
    "retention by age": lambda plan: any(topic.retention_ms >= 0 for topic in plan.topics),
    "retention by size": lambda plan: any(topic.retention_bytes >= 0 for topic in plan.topics),
    "retention of a topic with unclean elections": lambda plan: any(
        topic.unclean and topic.retention_ms >= 0 for topic in plan.topics
    ),
    "a wall clock that jumps while producers expire": lambda plan: (
        plan.upkeep is not None
        and plan.upkeep.producers_ms < DAY_MS
        and any(fault.kind == "jump" for fault in plan.faults)
    ),
    "write.caching": lambda plan: any(topic.caching for topic in plan.topics),
    "batches that producers compress": lambda plan: any(topic.codec is not Codec.NONE for topic in plan.topics),
    "batches that brokers recompress": lambda plan: any(topic.compression != "producer" for topic in plan.topics),
    "many partitions": lambda plan: any(topic.partitions >= 5 for topic in plan.topics),
    "disks of some nodes that stay slow": lambda plan: 0 < len(plan.slow_disks) < len(plan.node_ids),
    "disks of all voters that stay slow": lambda plan: (
        plan.voters > 1 and {node for node, _ in plan.slow_disks} >= set(plan.node_ids[: plan.voters])
    ),
    "an older release": lambda plan: bool(plan.older_releases),
    "a spare voter": lambda plan: plan.spares > 0,
    "a quorum that is rebuilt": lambda plan: bool(plan.rebuilds),
    "a real quorum store": lambda plan: plan.real_store,
    "the real conversion of messages": lambda plan: plan.converts,
    "real files": lambda plan: plan.real_files,
}
"""Properties of a run besides its faults."""


@pytest.mark.parametrize("condition", CONDITIONS)
def test_every_special_condition_of_a_run_is_drawn(plans: list[ClusterPlan], condition: str) -> None:
    assert any(map(CONDITIONS[condition], plans))


def output_of(seed: int, hash_seed: int) -> list[str]:
    finished = subprocess.run(
        [sys.executable, "-m", "simulation", "--cluster", "--seed", str(seed), "--trace"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-2000:]
    assert not finished.stderr, finished.stderr[-2000:]
    return [line for line in finished.stdout.splitlines() if not line.startswith("seeds ")]  # that line has a duration


@pytest.mark.parametrize("seed", [3, WITH_REAL_FILES, WITH_REAL_STORE, REBUILT])
def test_a_seed_replays_in_any_process(seed: int) -> None:
    first, second = output_of(seed, hash_seed=1), output_of(seed, hash_seed=2)
    assert len(first) > 500, "the trace is not empty"
    assert first == second
    assert draw(WITH_REAL_FILES).real_files
    assert draw(WITH_REAL_STORE).real_store
    assert draw(REBUILT).rebuilds


def test_a_run_takes_no_time_or_randomness_from_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sources, "real", lambda: pytest.fail("a seed would not replay"))
    assert CLUSTER.play(draw(3)).violation is None


def test_the_digest_is_the_same_with_and_without_a_trace() -> None:
    plan = draw(3)
    first = CLUSTER.play(plan).digest
    assert CLUSTER.trace(plan).digest == first
    assert CLUSTER.play(plan.only(set())).digest != first


def test_the_command_shrinks_and_names_a_failing_seed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulation", "--cluster", "--seeds", "0:3"])
    mutant = next(one for one in MUTANTS if one.name == "consumers see uncommitted records")
    with mutant.alive():
        assert main() == 1
    printed = capsys.readouterr().out
    assert "I21: " in printed
    assert "python -m simulation --cluster --seed" in printed


@pytest.mark.parametrize("name", sorted(QUICKLY_CAUGHT))
def test_a_known_mistake_is_caught(name: str) -> None:
    mutant = next(one for one in MUTANTS if one.name == name)
    assert hunt(mutant, attack_cluster_seed, MUTANT_SEEDS, MUTANT_FIRST_SEED.get(name, 0)).caught_by is not None


def test_a_mutant_is_removed_after_its_run() -> None:
    for mutant in MUTANTS:
        with mutant.alive():
            pass
    assert attack_cluster_seed(1) is None
