"""A cluster in which tests cause problems, and doctor, which examines it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quorumlog.kctl.main import run
from tests.unit.quorumlog.doctor.clinic import Clinic, Diagnose, check_commands, use


@pytest.fixture
def clinic(monkeypatch: pytest.MonkeyPatch) -> Clinic:
    made = Clinic()
    use(made, monkeypatch)
    return made


@pytest.fixture
def diagnose(capsys: pytest.CaptureFixture[str]) -> Diagnose:
    """Return a function that runs doctor and returns the first finding with each word, and the exit code."""

    def diagnose(*arguments: str) -> tuple[dict[str, Any], int]:
        code = run(["doctor", "-o", "json", *arguments])
        document = json.loads(capsys.readouterr().out)
        findings = {finding["finding"]: finding for finding in reversed(document["findings"])}
        wrong = [finding for finding in document["findings"] if finding["severity"] != "advice"]
        assert document["healthy"] == (not wrong)
        for finding in document["findings"]:
            assert finding["what"]
            assert finding["next"]
            check_commands(finding)
        assert code == (4 if "UNREACHABLE" in findings else 1 if wrong else 0)
        return findings, code

    return diagnose
