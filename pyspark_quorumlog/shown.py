"""Prepares errors for Spark, which shows only their text: the text then contains the next step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from quorumlog.client.cluster import CHECK_BROKERS
from quorumlog.errors import ClusterError


@contextmanager
def shown_by_spark(bootstrap: Sequence[str]) -> Iterator[None]:
    """Add the next step to the text of a ClusterError.  If no broker answers, name the option that lists them."""
    try:
        yield
    except ClusterError as error:
        step = error.next_step
        if step == CHECK_BROKERS:
            step = f"check the option bootstrap.servers ({','.join(bootstrap)}), and that brokers run"
        if step and step not in error.message:
            error.message += f"; {step}"
            error.args = (error.message, *error.args[1:])
        raise
