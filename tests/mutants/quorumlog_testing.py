"""Mutants of quorumlog/testing."""

from __future__ import annotations

from tests.mutants import Mutant

IMPORT_TESTS = "tests/unit/quorumlog/testing/test_plugin_imports.py"

MUTANTS = (
    Mutant(
        "every run of pytest imports the code that starts brokers",
        "quorumlog/testing/plugin.py",
        "import pytest\n",
        "import pytest\nimport quorumlog.testing.broker\n",
        (f"{IMPORT_TESTS}::test_the_plugin_imports_nothing_but_itself_and_works_without_fcntl",),
    ),
)
