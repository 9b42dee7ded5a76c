"""Refusals of single items in replies, as errors."""

from __future__ import annotations

from typing import Any

from quorumlog.errors import ClusterError


def refusal(result: Any) -> ClusterError:
    """Return a refused item of a reply as an error."""
    return ClusterError(result.error, result.message or result.error, result.next, retriable=result.retriable)
