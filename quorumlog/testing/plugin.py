"""The pytest plugin, which is registered by installing quorumlog.

```python
def test_orders(quorumlog_broker):
    producer = confluent_kafka.Producer({"bootstrap.servers": quorumlog_broker.bootstrap})
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from quorumlog.testing import Broker


@pytest.fixture(scope="session")
def quorumlog_broker() -> Iterator[Broker]:
    """A standalone broker for the whole session; give each test topics of its own."""
    from quorumlog.testing import standalone

    with standalone() as broker:
        yield broker
