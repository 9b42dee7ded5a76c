"""Requests of other nodes that the core does not answer."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from quorum import exchange as exchange_module
from quorum.core.events import Event, RequestReceived, SendReply
from quorum.core.messages import ErrorCode, Vote, VoteReply
from quorum.core.types import LogEnd
from quorum.exchange import Exchange
from quorum.ports import UnreachableError
from tests.contract.samples import KEYS, KNOWN, SENDER

VOTE = Vote(SENDER, KEYS[1], 3, LogEnd(2, 17), False)
REPLY = VoteReply(ErrorCode.NONE, KNOWN, True)


class Rig:
    def __init__(self) -> None:
        self.events: list[Event] = []
        unused = cast(Any, None)
        self.exchange = Exchange(unused, self.events.append, unused, unused)

    def answer(self, number: int) -> None:
        event = self.events[number]
        assert isinstance(event, RequestReceived)
        self.exchange.submit(SendReply(event.call, REPLY))


async def test_each_request_without_an_answer_fails_after_its_own_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchange_module, "REQUEST_MAX_S", 0.2)
    rig = Rig()
    first = asyncio.ensure_future(rig.exchange.handle(VOTE))
    await asyncio.sleep(0.1)
    second = asyncio.ensure_future(rig.exchange.handle(VOTE))
    answered = asyncio.ensure_future(rig.exchange.handle(VOTE))
    await asyncio.sleep(0)
    rig.answer(2)
    assert await answered == REPLY
    async with asyncio.timeout(10):
        with pytest.raises(UnreachableError, match=r"no answer within 0.2 s"):
            await first
        assert not second.done(), "it has waited for half of the time"
        with pytest.raises(UnreachableError):
            await second
        with pytest.raises(UnreachableError):  # a later request gets a timer, too
            await rig.exchange.handle(VOTE)
    assert rig.exchange.requests_in_progress == 0


async def test_a_late_answer_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_module, "REQUEST_MAX_S", 0.01)
    rig = Rig()
    with pytest.raises(UnreachableError):
        await rig.exchange.handle(VOTE)
    rig.answer(0)


async def test_a_stopped_exchange_fails_open_requests_and_cancels_its_timer() -> None:
    rig = Rig()
    asking = asyncio.ensure_future(rig.exchange.handle(VOTE))
    await asyncio.sleep(0)
    timer = rig.exchange._expiry
    rig.exchange.stop()
    with pytest.raises(UnreachableError, match="this node is stopping"):
        await asking
    assert timer is not None
    assert timer.cancelled()
