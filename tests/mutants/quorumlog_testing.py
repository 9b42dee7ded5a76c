"""Mutants of quorumlog/testing."""

from __future__ import annotations

from tests.mutants import Mutant

GUARD_TESTS = "tests/unit/quorumlog/testing/test_guard.py"
IMPORT_TESTS = "tests/unit/quorumlog/testing/test_plugin_imports.py"

MUTANTS = (
    Mutant(
        "every run of pytest imports the code that starts brokers",
        "quorumlog/testing/plugin.py",
        "import pytest\n",
        "import pytest\nimport quorumlog.testing.broker\n",
        (f"{IMPORT_TESTS}::test_the_plugin_imports_nothing_but_itself_and_works_without_fcntl",),
    ),
    Mutant(
        "the broker of a test survives a kill of pytest and of its guard",
        "quorumlog/testing/guard.py",
        "            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # sent when the guard ends\n",
        "            pass\n",
        (f"{GUARD_TESTS}::test_the_program_of_a_killed_guard_is_stopped",),
    ),
    Mutant(
        "the broker of a test ends with the thread that started it",
        "quorumlog/testing/guard.py",
        "    guard, libc = os.getpid(), ctypes.CDLL(None)\n",
        "    guard, libc = os.getpid(), ctypes.CDLL(None)\n    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)\n",
        (f"{GUARD_TESTS}::test_the_end_of_the_thread_that_started_a_guard_does_not_end_its_program",),
    ),
    Mutant(
        "standalone ends kctl before kctl can report that the configs are not set",
        "quorumlog/testing/broker.py",
        "    limit_s = CONFIGS_TIMEOUT_S + KCTL_GRACE_S\n",
        "    limit_s = CONFIGS_TIMEOUT_S\n",
        (f"{GUARD_TESTS}::test_configs_that_are_not_set_in_time_are_reported",),
    ),
)
