"""Seeds of the quorum simulation: promises hold, rare faults occur, and a seed replays in any process."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from quorum.core.types import Role
from simulation.__main__ import QUORUM, Totals, main, replay
from simulation.kernel.shrink import shrink
from simulation.quorum import mutants
from simulation.quorum.coverage import ROWS
from simulation.quorum.plan import DISK_FAULTS, LINK_FAULTS, NODE_FAULTS, ORDERS, Plan, draw
from simulation.quorum.run import play
from simulation.quorum.world import Result

ROOT = Path(__file__).parents[2]
SEEDS = 240
WITH_REAL_STORE = 31
BLOCK = 30

totals = Totals()


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_runs_of_all_seeds_keep_every_invariant(first: int) -> None:
    for seed in range(first, first + BLOCK):
        result = play(draw(seed))
        totals.add(result)
        assert result.violation is None, f"python -m simulation --seed {seed}: {result.violation}"


def test_the_seeds_together_reach_rare_faults_and_events() -> None:
    """This test runs after the seeds above.  A promise that no run challenges proves nothing."""
    if totals.seeds < SEEDS:
        pytest.skip("only part of the seeds were run")
    assert all(totals.faults[kind] > 0 for kind in (*LINK_FAULTS, *NODE_FAULTS, *DISK_FAULTS, *ORDERS)), totals.faults
    assert totals.acknowledged > 20 * SEEDS
    assert totals.undecided <= SEEDS // 20
    for what in (
        "truncation",
        "paused",
        "snapshot compared with the log",
        "torn snapshot",
        "disaster",
        "old generation refused",
    ):
        assert totals.seen[what] > 0, what
    missed = [row for row in ROWS if totals.transitions[row] == 0]
    assert len(missed) <= 15, missed
    assert (Role.LEADER, Role.RESIGNED, "hands over by preference") not in missed


def output_of(seed: int, hash_seed: int) -> list[str]:
    finished = subprocess.run(
        [sys.executable, "-m", "simulation", "--seed", str(seed), "--trace"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-2000:]
    return [line for line in finished.stdout.splitlines() if not line.startswith("seeds ")]  # that line has a duration


def test_the_digest_is_the_same_with_and_without_a_trace() -> None:
    plan = draw(3)
    first = play(plan).digest
    assert QUORUM.trace(plan).digest == first
    assert play(plan.only(set())).digest != first


@pytest.mark.parametrize("seed", [6, WITH_REAL_STORE])
def test_a_seed_replays_in_any_process(seed: int) -> None:
    first, second = output_of(seed, hash_seed=1), output_of(seed, hash_seed=2)
    assert len(first) > 1000, "the trace is not empty"
    assert first == second
    assert draw(WITH_REAL_STORE).real_store


def test_a_failing_seed_is_shrunk() -> None:
    mutant = next(one for one in mutants.MUTANTS if one.name == "truncates its log below the watermark")
    with mutant.alive():
        found = next(result for seed in range(60) if (result := play(draw(seed))).violation is not None)
        best, runs = shrink(found, play)
        assert best.violation is not None
        assert runs >= len(best.plan.faults)
        assert len(best.plan.faults) <= len(found.plan.faults)
        numbers = {fault.number for fault in best.plan.faults}
        again = play(draw(found.plan.seed).only(numbers))
        assert again.violation == best.violation, "the numbers of the faults are enough to replay it"


def test_the_reported_time_of_a_single_seed_includes_its_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]

    def timed(plan: Plan) -> Result:
        now_s[0] += 4.0
        return play(plan)

    monkeypatch.setattr("simulation.__main__.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    assert replay(dataclasses.replace(QUORUM, play=timed), 0, "none", traced=False) == 0
    assert "seeds         1 in 4.0 s (0.2 per second)" in capsys.readouterr().out


def test_the_command_can_continue_after_a_failing_seed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulation", "--seeds", "0:3", "--keep-going"])
    mutant = next(one for one in mutants.MUTANTS if one.name == "acknowledges before fsync")
    with mutant.alive():
        assert main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines if line.startswith("seed ")] == ["seed 0", "seed 1", "seed 2"]
    assert lines[-1] == "3 seeds failed"


def test_the_command_fails_for_a_failing_seed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulation", "--seeds", "0:5"])
    mutant = next(one for one in mutants.MUTANTS if one.name == "acknowledges before fsync")
    with mutant.alive():
        assert main() == 1
    printed = capsys.readouterr().out
    assert "I6: " in printed
    assert "python -m simulation --seed 0 --faults none --trace" in printed, "the seed fails without any fault"
