"""The confirmation before records are deleted."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from quorumlog.kctl import groups
from quorumlog.kctl.main import run as kctl


def test_ctrl_c_at_a_confirmation_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """asyncio turns the first Ctrl-C into a cancellation of the task, which the prompt would ignore."""

    def answer(_question: str) -> str:
        signal.raise_signal(signal.SIGINT)
        return "y"

    def opened(*_: Any) -> Any:
        raise AssertionError("the command continued")

    monkeypatch.setattr("click.termui.visible_prompt_func", answer)
    monkeypatch.setattr(groups, "can_ask", lambda: True)
    monkeypatch.setattr(groups, "open_groups", opened)
    before = signal.getsignal(signal.SIGINT)
    assert kctl(["groups", "delete", "g"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted: nothing was changed"
    assert signal.getsignal(signal.SIGINT) == before


def test_a_declined_confirmation_changes_nothing_and_is_not_called_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _question: "n")
    monkeypatch.setattr(groups, "can_ask", lambda: True)
    assert kctl(["groups", "delete", "g"]) == 5
    assert capsys.readouterr().err.splitlines()[-1] == "declined: nothing was changed"
    assert kctl(["groups", "delete", "g", "-o", "json"]) == 5
    error = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (error["error"], error["message"]) == ("DECLINED", "nothing was changed")
