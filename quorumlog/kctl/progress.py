"""Prints the progress of a change of voters on standard error, for `--wait`.

The progress is the lag of a new voter (`kctl add-voter`), or the current step towards the target voters (`kctl
alter-quorum`).

A line is printed only if it differs from the previous one.  A failed request is reported, and the command continues to
wait.  The active controller makes the change, and this module only watches it.  So Ctrl-C and the deadline end only the
command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from quorumlog.errors import ClusterError
from quorumlog.kctl.context import Context
from quorumlog.kctl.nodes import is_leaders
from quorumlog.wire.errors import ApiError
from quorumlog.words import counted

if TYPE_CHECKING:
    from quorumlog.client.controller import ControllerClient

LOOK_S = 0.5
ATTEMPT_S = 20.0
"""A request that waits on the server is repeated after this long, so that a new controller is found."""
ATTEMPT_MIN_S = 2.0
"""A request is repeated only if at least this time is left.  With less time, the answer could arrive too late, and the
outcome would be unknown."""

PASSING = frozenset(
    {
        ApiError.NOT_CAUGHT_UP,
        ApiError.UNREACHABLE,
        ApiError.CHANGE_PENDING,
        ApiError.NOT_COMMITTED_YET,
        ApiError.TARGET_IN_PROGRESS,
    }
)
"""Refusals that are temporary, so that the command waits and repeats the request."""


class Progress:
    """Prints the progress of one change."""

    def __init__(self, context: Context, client: ControllerClient) -> None:
        self._output = context.output
        self._client = client
        self._deadline = asyncio.get_running_loop().time() + context.left_s
        self._timeout_s = context.deadline_s
        self._said = ""

    @property
    def left_s(self) -> float:
        """Return the seconds that remain of the command's time; negative after its end."""
        return self._deadline - asyncio.get_running_loop().time()

    def report(self, line: str) -> None:
        """Print a line, unless it equals the last line."""
        if line != self._said:
            self._said = line
            self._output.message(line)

    async def taken(self, request: Callable[[float], Coroutine[Any, Any, Any]], node_id: int) -> Any:
        """Request the addition of `node_id` until it succeeds, and return the reply.

        request: sends the request; called with its timeout in seconds.

        Raises:
            ClusterError: the addition was refused for a permanent reason; OUTCOME_UNKNOWN; or TIMED_OUT.
        """
        while True:
            asking = asyncio.ensure_future(request(max(0.001, min(self.left_s, ATTEMPT_S))))
            try:
                while not asking.done():
                    await asyncio.wait({asking}, timeout=LOOK_S)
                    if not asking.done():
                        await self._report(lambda described: lag_line(described, node_id))
                return await asking
            except ClusterError as error:
                passing = error.code in PASSING or (error.retriable and error.code != ApiError.OUTCOME_UNKNOWN)
                if not passing:
                    raise
                if self.left_s <= LOOK_S + ATTEMPT_MIN_S:
                    raise self._not_added(node_id, error) from error
                self.report(f"waiting: {error.message}")
            finally:
                asking.cancel()
            await asyncio.sleep(LOOK_S)

    def _not_added(self, node_id: int, why: ClusterError) -> ClusterError:
        text = f"node {node_id} was not added within {self._timeout_s:g} s: {why.message}"
        return ClusterError(ApiError.TIMED_OUT, text, why.next_step, retriable=True)

    async def reached(self, wanted: Sequence[int] | None, offset: int) -> Any:
        """Wait until a target is reached, and return the last description of the quorum.

        wanted: the ids of the target voters; None for the current target.  offset: the end offset of the records that
        set the target; 0 if unknown.

        Raises:
            ClusterError: TARGET_CHANGED: the target was replaced or cancelled.  TIMED_OUT: the target was not reached
                within the command's time; the change continues.
        """
        names = "the target" if wanted is None else f"voters {join(wanted)}"
        while True:
            described = await self._report(target_line)
            if described is not None:
                target, now = ids_of_target(described), ids(described)
                if target is None and (wanted is None or now == sorted(wanted)):
                    return described
                if target is not None and wanted is None:
                    wanted = target
                elif target is not None and target != sorted(wanted or ()):
                    raise _changed(f"the target was replaced by voters {join(target)}")
                elif target is None and is_leaders(described) and described.high_watermark >= offset:
                    raise _changed(f"the target was cancelled or replaced; the voters are {join(now)}")
            if self.left_s <= 0:
                raise ClusterError(
                    ApiError.TIMED_OUT,
                    f"{names}: not reached within {self._timeout_s:g} s; {self._said}",
                    "the change continues; to watch it: kctl alter-quorum --wait",
                    retriable=True,
                )
            await asyncio.sleep(max(0.001, min(LOOK_S, self.left_s)))

    async def _report(self, line: Callable[[Any], str | None]) -> Any:
        """Return a description of the quorum and print its `line`; None if no node answers."""
        try:
            described = await self._client.describe_quorum(max(0.001, min(self.left_s, ATTEMPT_S)))
        except ClusterError as error:
            self.report(f"waiting: {error.message}")
            return None
        if (text := line(described)) is not None:
            self.report(text)
        return described


def _changed(message: str) -> ClusterError:
    return ClusterError(ApiError.TARGET_CHANGED, message, "see `kctl quorum status`")


def join(node_ids: Sequence[int]) -> str:
    return ",".join(map(str, node_ids)) or "none"


def ids(described: Any) -> list[int]:
    """Return the ids of the current voters."""
    return sorted(status.replica.key.node_id for status in described.voters)


def ids_of_target(described: Any) -> list[int] | None:
    """Return the ids of the target voters; None if there is no target."""
    if not described.HasField("target_voters"):
        return None
    return sorted(voter.key.node_id for voter in described.target_voters.voters)


def lag_line(described: Any, node_id: int) -> str | None:
    """Describe a new voter's lag; None if the node is already a voter, or the leader did not send this description."""
    for status in described.observers:
        if status.replica.key.node_id == node_id:
            return (
                f"node {node_id} lags by {counted(status.lag, 'record')}"
                if status.lag
                else f"node {node_id} is caught up"
            )
    if node_id in ids(described) or not is_leaders(described):
        return None
    return f"node {node_id} does not fetch from the controller yet"


def target_line(described: Any) -> str | None:
    """Describe the progress towards the target."""
    target = ids_of_target(described)
    if target is None:
        return f"voters {join(ids(described))}"
    said = f"voters {join(ids(described))}, target {join(target)}"
    if described.HasField("target_step"):
        said += f": {described.target_step}"
        voters = ids(described)
        lags = [lag_line(described, node_id) for node_id in target if node_id not in voters]
        said += "".join(f"; {lag}" for lag in lags if lag is not None)
    if described.HasField("target_problem"):
        said += f"; blocked: {described.target_problem}"
    return said
