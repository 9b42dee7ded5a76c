"""Errors that cross processes."""

from __future__ import annotations

import pickle

import pytest

from pyspark_quorumlog.options import OptionError
from pyspark_quorumlog.plan import DataLossError
from quorumlog.client.consumer import OffsetOutOfRangeError
from quorumlog.client.records import UnreadableBatchError
from quorumlog.errors import ClusterError, ConfigError, QuorumlogError


@pytest.mark.parametrize(
    "error",
    [
        QuorumlogError("it failed", "repeat it"),
        ConfigError("a is missing", "b is wrong", next_step="correct both"),
        OptionError("a is missing", "b is wrong"),
        ClusterError("TIMED_OUT", "no answer", "repeat it", retriable=True, refresh_metadata=True),
        OffsetOutOfRangeError("t", 0, 9, 1, 5),
        UnreadableBatchError("damaged", 3, 7),
        DataLossError(["t-0 was deleted", "t-1 was deleted"]),
    ],
)
def test_an_error_of_a_worker_process_reaches_its_parent_unchanged(error: Exception) -> None:
    """A process pool pickles the error of a worker."""
    received = pickle.loads(pickle.dumps(error))
    assert type(received) is type(error)
    assert (str(received), received.args, vars(received)) == (str(error), error.args, vars(error))
