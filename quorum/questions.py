"""Questions that the shell asks its own core.  Each question has a number, and exactly one effect answers it.

Current reads share their questions.  While one question is open, all further readers gather for the next question.  One
round of the quorum therefore serves any number of readers, and each reader waits for at most two rounds.  A reader
never joins a question that was asked before the reader arrived, because the answer could miss records committed in
between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from quorum.core.events import (
    ChangeVoters,
    ConfirmRead,
    Event,
    ReadConfirmed,
    ReadRefused,
    Transfer,
    Transferred,
    VoterChange,
    VoterChangeError,
    VoterChangeResult,
    VotersChanged,
)
from quorum.core.voters import VoterHistory
from quorum.ports import NotLeaderError

QUESTIONS_MAX = 8192
"""Maximum number of open questions.  Further questions are refused."""

QUESTION_GRACE_MS = 500
"""A caller waits this much longer than the core, because the core's answer says more about the outcome."""

CoreAnswer = VotersChanged | Transferred | ReadConfirmed | ReadRefused


class TooManyQuestionsError(Exception):
    """`QUESTIONS_MAX` questions are open."""


class Questions:
    """The open questions of one node."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._open: dict[int, asyncio.Future[Any]] = {}

    def ask(self) -> tuple[int, asyncio.Future[Any]]:
        """Return a number for the event, and the future that `answer` resolves with the effect of that number.

        Raises:
            TooManyQuestionsError: `QUESTIONS_MAX` questions are open.
        """
        if len(self._open) >= QUESTIONS_MAX:
            raise TooManyQuestionsError
        call = next(self._numbers)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open[call] = future
        future.add_done_callback(lambda _: self._open.pop(call, None))  # answered, or the caller stopped waiting
        return call, future

    def answer(self, effect: CoreAnswer) -> None:
        """Resolve the question that `effect` answers.  Drop the answer if the caller no longer waits."""
        future = self._open.get(effect.call)
        if future is not None and not future.done():
            future.set_result(effect)

    def fail(self, error: Exception) -> None:
        """Fail every open question, because the node stops and nothing will answer."""
        for future in list(self._open.values()):
            if not future.done():
                future.set_exception(error)


class Inquirer:
    """Asks the core on behalf of the controller's service.

    post: passes an event to the core.  is_ending: returns whether the node stops or has failed, so that nothing will
    answer.  history: returns the core's voter history.
    """

    def __init__(
        self, post: Callable[[Event], None], is_ending: Callable[[], bool], history: Callable[[], VoterHistory]
    ) -> None:
        self._post = post
        self._is_ending = is_ending
        self._history = history
        self._questions = Questions()
        self._confirming: asyncio.Future[ReadConfirmed | ReadRefused] | None = None
        self._gathering: asyncio.Future[ReadConfirmed | ReadRefused] | None = None

    def answer(self, effect: CoreAnswer) -> None:
        """Resolve the question that `effect` answers."""
        self._questions.answer(effect)

    def fail(self, error: Exception) -> None:
        """Fail every open question, because the node stops and nothing will answer."""
        self._questions.fail(error)

    async def change_voters(self, change: VoterChange, *, dry_run: bool, timeout_ms: int) -> VoterChangeResult:
        """Change the voters as the leader, and return the outcome, which may be a refusal or unknown.

        Cancelling the call does not stop the change.
        """
        event = partial(ChangeVoters, change=change, dry_run=dry_run, timeout_ms=timeout_ms)
        try:
            answer: VotersChanged = await self._question(event, timeout_ms)
        except (NotLeaderError, TimeoutError) as error:
            history = self._history()
            lost = isinstance(error, NotLeaderError)
            code = VoterChangeError.NOT_LEADER if lost else VoterChangeError.OUTCOME_UNKNOWN
            what = str(error) if lost else f"no answer within {timeout_ms} ms; the change may still take effect"
            return VoterChangeResult(code, what, "check the quorum, then ask again", False, 0, history.current, None)
        return answer.result

    async def transfer_leader(self, to: int | None, timeout_ms: int) -> Transferred:
        """Hand leadership to voter `to`, or to the best candidate, and return the outcome (`error`, `message`)."""
        try:
            answer: Transferred = await self._question(partial(Transfer, to=to, timeout_ms=timeout_ms), timeout_ms)
        except NotLeaderError as error:
            return Transferred(0, VoterChangeError.NOT_LEADER, str(error))
        except TimeoutError:
            return Transferred(0, VoterChangeError.OUTCOME_UNKNOWN, f"no answer within {timeout_ms} ms")
        return answer

    async def confirm_read(self, timeout_ms: int) -> int:
        """Return the end offset that a current read must have applied.

        Raises:
            NotLeaderError: this node does not lead, is paused, has too many requests, or is stopping.
            TimeoutError: no majority confirmed in time.
        """
        if self._is_ending():
            raise NotLeaderError("this node is stopping")
        loop = asyncio.get_running_loop()
        if self._gathering is None:
            self._gathering = loop.create_future()
            if self._confirming is None:
                loop.call_soon(self._confirm_gathered)  # later: all readers of this loop turn share it
        async with asyncio.timeout(timeout_ms / 1000):
            answer = await asyncio.shield(self._gathering)
        if isinstance(answer, ReadRefused):
            raise NotLeaderError(answer.reason)
        return answer.offset

    def _confirm_gathered(self) -> None:
        """Ask the core on behalf of the gathered readers, unless there are none or a question is open."""
        gathered = self._gathering
        if gathered is None or self._confirming is not None:
            return None
        self._gathering, self._confirming = None, gathered
        try:
            call, question = self._questions.ask()
        except TooManyQuestionsError:
            return self._confirm_ended(ReadRefused(0, "too many requests are in progress on this node"))
        question.add_done_callback(self._confirm_answered)
        if self._is_ending():
            question.set_exception(NotLeaderError("this node is stopping"))
        else:
            self._post(ConfirmRead(call))
        return None

    def _confirm_answered(self, question: asyncio.Future[ReadConfirmed | ReadRefused]) -> None:
        error = question.exception()
        self._confirm_ended(ReadRefused(0, str(error)) if error is not None else question.result())

    def _confirm_ended(self, answer: ReadConfirmed | ReadRefused) -> None:
        assert self._confirming is not None, f"{answer} answers nobody"
        self._confirming.set_result(answer)
        self._confirming = None
        self._confirm_gathered()

    async def _question(self, event: Callable[[int], Event], timeout_ms: int) -> Any:
        """Ask the core and return its answer, waiting a little longer than the core itself waits."""
        if self._is_ending():
            raise NotLeaderError("this node is stopping")
        try:
            call, future = self._questions.ask()
        except TooManyQuestionsError:
            raise NotLeaderError("too many requests are in progress on this node") from None
        self._post(event(call))
        async with asyncio.timeout((timeout_ms + QUESTION_GRACE_MS) / 1000):
            return await future
