"""Converts the refusal of one item in a reply to an error."""

from __future__ import annotations

from typing import Any

from quorumlog.errors import ClusterError


def refusal(result: Any) -> ClusterError:
    """Return the error of a refused item.  result: a Result of controller.proto whose `error` is set."""
    return ClusterError(result.error, result.message or result.error, result.next, retriable=result.retriable)
