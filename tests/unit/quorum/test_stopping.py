"""A stopping node refuses requests and gives no vote."""

from __future__ import annotations

import pytest

from quorum.core.messages import Sender, Vote
from quorum.core.types import LogEnd
from quorum.ports import UnreachableError
from tests.contract.samples import CLUSTER, KEYS, VOTERS
from tests.unit.quorum.test_node import running


async def test_a_stopping_node_refuses_requests_with_unavailable() -> None:
    async with running(VOTERS) as rig:
        handler = rig.transport.handler
    before = len(rig.store.writes)
    with pytest.raises(UnreachableError, match="stopping"):
        await handler(Vote(Sender(CLUSTER, 0, KEYS[1]), KEYS[0], 7, LogEnd(1, 100), False))
    assert len(rig.store.writes) == before, "no vote was given"
