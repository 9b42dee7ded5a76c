"""The pytest plugin, which is registered by installing quorumlog: docs/testing.md.

```python
def test_orders(quorumlog_broker, quorumlog_topic):
    producer = confluent_kafka.Producer({"bootstrap.servers": quorumlog_broker.bootstrap})
    producer.produce(quorumlog_topic, "one")
```
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from quorumlog.testing import Broker

_NAME_CHARS_MAX = 200
"""Kafka permits 249 characters in the name of a topic."""


@pytest.fixture(scope="session")
def quorumlog_broker() -> Iterator[Broker]:
    """A standalone broker for the whole session; give each test topics of its own."""
    from contextlib import ExitStack

    from quorumlog.errors import QuorumlogError
    from quorumlog.testing import standalone

    with ExitStack() as exits:
        try:
            broker = exits.enter_context(standalone())
        except QuorumlogError as error:
            pytest.fail(str(error), pytrace=False)  # the traceback would only show this plugin
        yield broker


@pytest.fixture
def quorumlog_topic(request: pytest.FixtureRequest) -> str:
    """The name of a topic that no other test uses.  The broker creates the topic when a client first asks for it."""
    name = re.sub(r"[^a-zA-Z0-9._-]", "-", request.node.name)[:_NAME_CHARS_MAX]
    return f"{name}-{os.urandom(4).hex()}"
