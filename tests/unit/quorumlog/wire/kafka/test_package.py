"""The modules that an import of the Kafka protocol loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODULES = ["broker.kafka.handlers", "quorumlog.client.kafka", "quorumlog.client.group_protocol"]


@pytest.mark.parametrize("module", MODULES)
def test_importing_the_kafka_protocol_does_not_import_hypothesis(module: str) -> None:
    """Hypothesis is often installed for a user's tests.  Its import takes longer than the start of a broker."""
    program = f"import sys, {module}; print('kio' in sys.modules, 'hypothesis' in sys.modules); import hypothesis"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "True False"
