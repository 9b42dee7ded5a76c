"""A broker that leaves hanging transactions to the operator, so that a test on a slow machine has time to examine one.

`python -m tests.patient_broker` takes the arguments of `python -m broker.cli`.
"""

from __future__ import annotations

import asyncio

from broker import cli
from broker.coordinator.hanging import HangingTransactions


async def _wait(self: HangingTransactions) -> None:
    """Wait until the task is cancelled."""
    await asyncio.Event().wait()


if __name__ == "__main__":
    HangingTransactions.run = _wait  # type: ignore[method-assign]  # no other code runs in this process
    cli.main()
