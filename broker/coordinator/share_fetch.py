"""Share fetches at the leader of partitions: serves ShareFetch and ShareAcknowledge within the sessions of members."""

from __future__ import annotations

import asyncio
from typing import Final

from broker.coordinator.led_share import Fetched, LedShare
from broker.coordinator.limits import CoordinatorLimits
from broker.coordinator.share_partitions import SharePartitions
from broker.coordinator.share_sessions import END_SESSION, NEW_SESSION, Place, SessionKey, ShareSession, ShareSessions
from broker.core.coordinator.share.states import ShareKey
from broker.core.share.partition import Acknowledgement, problem_of
from broker.core.share.requests import (
    ShareAcknowledged,
    ShareAcknowledgePlan,
    ShareFetched,
    ShareFetchPlan,
    SharePlace,
    ShareReply,
)
from quorumlog.runtime.clock import now_ms
from quorumlog.wire.errors import KafkaCode

_NAME_MAX_BYTES: Final = 1_024


class ShareFetchService:
    """Serves the members of share groups.  sessions_max: the maximum number of sessions, from the cluster's configs."""

    def __init__(self, partitions: SharePartitions, limits: CoordinatorLimits) -> None:
        self.sessions_max = 0
        self._partitions = partitions
        self._limits = limits
        self._sessions = ShareSessions(self._on_session_end)

    async def fetch(self, plan: ShareFetchPlan) -> ShareReply:
        """Apply the acknowledgements, then acquire records.

        Wait for records only if there is nothing to report: no acknowledgement and no error.
        """
        problem = self._problem(plan.group, plan.member_id, plan.acknowledgements, may_renew=plan.is_renewal)
        if problem is not None:
            return ShareReply(KafkaCode.INVALID_REQUEST, problem)
        if plan.session_epoch == NEW_SESSION and plan.acknowledgements:
            return ShareReply(KafkaCode.INVALID_REQUEST, "the first request of a session must not acknowledge records")
        if plan.is_renewal and (plan.max_wait_ms or plan.max_bytes or plan.max_records or plan.min_bytes):
            return ShareReply(KafkaCode.INVALID_REQUEST, "a request that renews locks must not fetch records")
        session = self._begin(plan)
        if isinstance(session, KafkaCode):
            return ShareReply(session)
        if len(plan.places) + len(session.places) > self._limits.share_partitions_max:
            return ShareReply(KafkaCode.INVALID_REQUEST, "the session has too many partitions")
        session.change(plan.places, plan.forgotten)
        acknowledged = await self._acknowledge(session, plan.acknowledgements)
        fetched: tuple[ShareFetched, ...] = ()
        if plan.session_epoch == END_SESSION:
            self._sessions.end(session)
        elif not plan.is_renewal and plan.max_records > 0:
            wait_ms = 0 if acknowledged else min(max(plan.max_wait_ms, 0), self._limits.share_wait_max_ms)
            load_wait_ms = 0 if acknowledged else self._limits.share_load_wait_ms
            fetched = await self._fetch(session, plan, wait_ms, load_wait_ms)
        return ShareReply(KafkaCode.NONE, None, acknowledged, fetched)

    async def acknowledge(self, plan: ShareAcknowledgePlan) -> ShareReply:
        """Apply the acknowledgements, and return once they are durable or refused."""
        problem = self._problem(plan.group, plan.member_id, plan.acknowledgements, may_renew=plan.is_renewal)
        if problem is not None:
            return ShareReply(KafkaCode.INVALID_REQUEST, problem)
        if plan.session_epoch == NEW_SESSION:
            return ShareReply(KafkaCode.INVALID_SHARE_SESSION_EPOCH)
        session = self._begin(plan)
        if isinstance(session, KafkaCode):
            return ShareReply(session)
        acknowledged = await self._acknowledge(session, plan.acknowledgements)
        if plan.session_epoch == END_SESSION:
            self._sessions.end(session)
        return ShareReply(KafkaCode.NONE, None, acknowledged)

    def disconnected(self, peer: str) -> None:
        """End the sessions of a connection that is lost, and release their records."""
        self._sessions.disconnected(peer)

    @staticmethod
    def _problem(
        group: str,
        member_id: str,
        acknowledgements: dict[SharePlace, tuple[Acknowledgement, ...]],
        *,
        may_renew: bool,
    ) -> str | None:
        if not group or not member_id:
            return "the group id or the member id is empty"
        if len(group.encode()) > _NAME_MAX_BYTES or len(member_id.encode()) > _NAME_MAX_BYTES:
            return f"the group id or the member id is longer than {_NAME_MAX_BYTES} bytes"
        problems = (problem_of(batches, may_renew=may_renew) for batches in acknowledgements.values())
        return next((each for each in problems if each is not None), None)

    def _begin(self, plan: ShareFetchPlan | ShareAcknowledgePlan) -> ShareSession | KafkaCode:
        key = SessionKey(plan.group, plan.member_id)
        return self._sessions.begin(key, plan.peer, plan.session_epoch, self.sessions_max, now_ms())

    async def _acknowledge(
        self, session: ShareSession, acknowledgements: dict[SharePlace, tuple[Acknowledgement, ...]]
    ) -> tuple[ShareAcknowledged, ...]:
        """Begin all acknowledgements, then wait until they are durable.

        A share coordinator that does not answer does not delay acknowledgements of loaded share partitions.
        """
        deadline = asyncio.get_running_loop().time() + self._limits.share_load_wait_ms / 1000
        begun: list[tuple[Place, asyncio.Future[KafkaCode] | KafkaCode]] = []
        group = session.key.group
        for place in sorted(acknowledgements, key=lambda each: not self._partitions.is_loaded(ShareKey(group, *each))):
            current = self._sessions.of(session.key)  # a newer session of the member has the same locks
            if current is None:  # the session's end released the locks; a state loaded now would never be dropped
                begun.append((place, KafkaCode.INVALID_RECORD_STATE))
                continue
            session = current
            if place not in session.places:
                session.former[place] = None
            led = await self._loaded(ShareKey(group, *place), deadline)
            if isinstance(led, LedShare):
                begun.append((place, led.acknowledge(session.key.member_id, acknowledgements[place])))
            else:
                begun.append((place, led))
        self._prune(session)
        return tuple(
            [ShareAcknowledged(place, found if isinstance(found, KafkaCode) else await found) for place, found in begun]
        )

    async def _loaded(self, key: ShareKey, deadline: float) -> LedShare | KafkaCode:
        """Return a share partition once it is loaded, or the error; REPLICA_NOT_AVAILABLE after the deadline."""
        if not self._partitions.is_loaded(key) and asyncio.get_running_loop().time() >= deadline:
            return KafkaCode.REPLICA_NOT_AVAILABLE
        try:
            async with asyncio.timeout_at(deadline):
                return await self._partitions.get(key)
        except TimeoutError:
            return KafkaCode.REPLICA_NOT_AVAILABLE

    def _prune(self, session: ShareSession) -> None:
        """Remove from a session the former partitions that this broker does not serve.

        So a session has at most as many former partitions as this broker serves.
        """
        group = session.key.group
        for place in [each for each in session.former if self._partitions.known(ShareKey(group, *each)) is None]:
            del session.former[place]

    async def _fetch(
        self, session: ShareSession, plan: ShareFetchPlan, wait_ms: int, load_wait_ms: int
    ) -> tuple[ShareFetched, ...]:
        """Acquire records.  Wait for them for `wait_ms`, or for at least `load_wait_ms` if no state is loaded yet.

        A session that ends or is replaced meanwhile gets no records: its client may use another connection by now, and
        these records would stay locked until their locks expire.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        deadline = begun + wait_ms / 1000
        event = asyncio.Event()
        places = list(session.places)
        loading: dict[Place, LedShare] = {}
        self._partitions.watch(places, event)
        try:
            while self._sessions.is_current(session):
                event.clear()
                fetched, is_any_loaded = await self._acquire(session, plan, loading)
                is_first_load = bool(loading) and not is_any_loaded
                left_s = max(deadline, begun + load_wait_ms / 1000 if is_first_load else 0) - loop.time()
                if fetched or left_s <= 0 or self._partitions.is_closed:
                    return fetched
                try:
                    async with asyncio.timeout(left_s):
                        await event.wait()
                except TimeoutError:
                    return ()
            return ()
        finally:
            self._partitions.unwatch(places, event)

    async def _acquire(
        self, session: ShareSession, plan: ShareFetchPlan, loading: dict[Place, LedShare]
    ) -> tuple[tuple[ShareFetched, ...], bool]:
        """Acquire the records that are available now, within the limits of the request.

        Return these records, and whether any state is loaded.
        loading: the share partitions whose states are being loaded.  They do not delay the others.
        """
        fetched: list[ShareFetched] = []
        is_any_loaded = False
        records_left, bytes_left = plan.max_records, plan.max_bytes
        group, member_id = session.key
        for place in list(session.places)[: self._limits.share_partitions_max]:
            if not self._sessions.is_current(session):
                return (), is_any_loaded  # a state that is loaded now would never be dropped
            if records_left <= 0 or bytes_left <= 0 or len(fetched) >= self._limits.share_partitions_per_fetch:
                break
            key = ShareKey(group, *place)
            led: LedShare | KafkaCode | None = loading.pop(place, None)
            if led is None:
                if len(loading) >= self._limits.share_loads_per_fetch and not self._partitions.is_loaded(key):
                    continue
                led = self._partitions.begin(key)
            found: Fetched | KafkaCode
            if isinstance(led, KafkaCode):
                found = led
            elif (code := led.loaded) is None:
                loading[place] = led
                continue
            elif code is not KafkaCode.NONE:
                found = code
            else:
                is_any_loaded = True
                size = min(bytes_left, self._limits.share_read_max_bytes)
                found = await led.fetch(
                    member_id,
                    size,
                    records_left,
                    is_exact=plan.is_exact,
                    is_wanted=lambda: self._sessions.is_current(session),
                )
            if isinstance(found, KafkaCode):
                fetched.append(ShareFetched(place, found))
                session.rotate(place)
            elif found.acquired:
                fetched.append(ShareFetched(place, KafkaCode.NONE, found.records, tuple(found.acquired)))
                records_left -= sum(each.end - each.first for each in found.acquired)
                bytes_left -= len(found.records)
                session.rotate(place)
        return tuple(fetched) if self._sessions.is_current(session) else (), is_any_loaded

    def _on_session_end(self, session: ShareSession) -> None:
        """Release the records of a member, and drop share partitions that no other session uses."""
        group, member_id = session.key
        for place in (*session.places, *session.former):
            key = ShareKey(group, *place)
            led = self._partitions.known(key)
            if led is not None:
                led.release(member_id, is_used=self._sessions.uses(group, place))
