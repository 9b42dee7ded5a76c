"""The requests of a group member: joining, heartbeats, leaving, and look-ups of topics."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from quorumlog.client import group_member
from quorumlog.client import membership as core
from quorumlog.client.cluster import Cluster
from quorumlog.client.group_member import GroupMember, MemberSettings, Owner
from quorumlog.client.groups import GroupClient
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError
from quorumlog.wire.kafka import codec
from quorumlog.wire.kafka.codec import Api
from tests.unit.broker.kafka.wellness import until

SETTINGS = MemberSettings("g", ("range",), None, 0.6, 0.2, 10.0, 10.0)


class Broker:
    """The coordinator of all groups.  Heartbeats on its first connection, and JoinGroup, get no answer."""

    def __init__(self) -> None:
        self.port = 0
        self.connections = 0
        self.beats = 0
        self.joins = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        is_cut = self.connections == 1
        try:
            while True:
                frame = memoryview(await reader.readexactly(int.from_bytes(await reader.readexactly(4))))
                header = codec.parse_request_header(frame)
                api = Api(header.api_key)
                self.joins += api == Api.JOIN_GROUP
                if (is_cut and api == Api.HEARTBEAT) or api == Api.JOIN_GROUP:
                    continue
                self.beats += api == Api.HEARTBEAT
                body = codec.encode_response_body(api, header.api_version, self._answer(api))
                flexible = codec.response_header_is_flexible(api, header.api_version)
                writer.write(codec.response_prefix(header.correlation_id, len(body), flexible) + body)
        except asyncio.IncompleteReadError:
            writer.close()

    def _answer(self, api: Api) -> dict[str, Any]:
        match api:
            case Api.API_VERSIONS:
                newest = {Api.HEARTBEAT: 4, Api.JOIN_GROUP: 7}
                keys = [{"api_key": key, "min_version": 0, "max_version": version} for key, version in newest.items()]
                return {"error_code": 0, "api_keys": keys}
            case Api.METADATA:
                brokers = [{"node_id": 1, "host": "127.0.0.1", "port": self.port, "rack": None}]
                return {"brokers": brokers, "cluster_id": "fake", "controller_id": 1, "topics": []}
            case Api.FIND_COORDINATOR:
                found = {"key": "g", "node_id": 1, "host": "127.0.0.1", "port": self.port, "error_code": 0}
                return {"coordinators": [{**found, "error_message": None}]}
        assert api == Api.HEARTBEAT, api
        return {"error_code": 0}


async def test_a_heartbeat_without_an_answer_is_not_repeated_on_the_same_connection() -> None:
    broker = Broker()
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    broker.port = server.sockets[0].getsockname()[1]
    async with Cluster(f"127.0.0.1:{broker.port}") as cluster:

        async def no_topics() -> tuple[frozenset[str], dict[str, int]]:
            return frozenset(), {}

        member = GroupMember(cluster, GroupClient(cluster), cast(Owner, None), SETTINGS, no_topics)
        await member._beat(core.Heartbeat("m", 1))
        assert member.failure is not None
        await member._beat(core.Heartbeat("m", 1))
        assert member.failure is None
    assert (broker.connections, broker.beats) == (2, 1)
    server.close()


async def test_a_failure_ends_when_the_coordinator_holds_the_next_join_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rebalance may take minutes.  It would be reported as TIMED_OUT, although no request fails any more."""

    async def no_topics() -> tuple[frozenset[str], dict[str, int]]:
        return frozenset(), {}

    monkeypatch.setattr(group_member, "HELD_AFTER_S", 0.05)
    broker = Broker()
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    broker.port = server.sockets[0].getsockname()[1]
    async with Cluster(f"127.0.0.1:{broker.port}") as cluster:
        member = GroupMember(cluster, GroupClient(cluster), cast(Owner, None), SETTINGS, no_topics)
        member._noted(ClusterError(ApiError.NOT_COORDINATOR, "it has moved", retriable=True))
        joining = asyncio.ensure_future(member._join(core.Join(1, "", ())))
        await until(lambda: broker.joins == 1)
        await until(lambda: member.failing_since is None)
        joining.cancel()
        await asyncio.wait({joining})
        assert member._line is not None
        await member._line.close()
    server.close()


async def test_a_hanging_coordinator_look_up_delays_close_only_until_the_leave_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def hang(key: str, timeout_s: float) -> None:
        await asyncio.Event().wait()

    async def no_topics() -> tuple[frozenset[str], dict[str, int]]:
        return frozenset(), {}

    monkeypatch.setattr(group_member, "LEAVE_TIMEOUT_S", 0.05)
    async with Cluster("127.0.0.1:1") as cluster:
        groups = GroupClient(cluster)
        monkeypatch.setattr(groups.calls, "known_or_found", hang)
        member = GroupMember(cluster, groups, cast(Owner, None), SETTINGS, no_topics)
        member.core.member_id = "m"
        async with asyncio.timeout(10):
            await member.close()


async def test_a_close_that_is_cancelled_closes_the_connection_for_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_topics() -> tuple[frozenset[str], dict[str, int]]:
        return frozenset(), {}

    async def hang() -> None:
        await asyncio.Event().wait()

    broker = Broker()
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    broker.port = server.sockets[0].getsockname()[1]
    async with Cluster(f"127.0.0.1:{broker.port}") as cluster:
        member = GroupMember(cluster, GroupClient(cluster), cast(Owner, None), SETTINGS, no_topics)
        joining = asyncio.ensure_future(member._join(core.Join(1, "", ())))
        await until(lambda: broker.joins == 1)
        monkeypatch.setattr(member._tasks, "stop", hang)
        closing = asyncio.ensure_future(member.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait({closing})
        assert member._line is not None
        assert not member._line.is_open
        await joining
    server.close()


async def test_the_leader_looks_up_the_topics_of_the_other_members(monkeypatch: pytest.MonkeyPatch) -> None:
    async def my_topics() -> tuple[frozenset[str], dict[str, int]]:
        return frozenset("t"), {"t": 1}

    async def partition_counts(topics: frozenset[str], timeout_s: float) -> dict[str, int]:
        assert topics == {"u", "v"}
        return {"u": 2}

    async with Cluster("127.0.0.1:1") as cluster:
        monkeypatch.setattr(cluster, "partition_counts", partition_counts)
        member = GroupMember(cluster, GroupClient(cluster), cast(Owner, None), SETTINGS, my_topics)
        monkeypatch.setattr(member.core, "others_topics", lambda: frozenset("uv"))
        watching = asyncio.ensure_future(member._watch_topics())
        counts = {"t": 1, "u": 2, "v": 0}
        assert await member._events.get() == core.Subscribe(frozenset("t"), counts, frozenset("uv"))
        watching.cancel()


@pytest.mark.parametrize("joins_fail", [False, True])
async def test_a_look_up_of_topics_ends_the_failures_of_look_ups_only(
    monkeypatch: pytest.MonkeyPatch, joins_fail: bool
) -> None:
    """While a member has no topics, or waits for others to join, no other request has success for minutes."""
    answers: asyncio.Queue[ClusterError | None] = asyncio.Queue()

    async def topics() -> tuple[frozenset[str], dict[str, int]]:
        if (error := await answers.get()) is not None:
            raise error
        return frozenset(), {}

    def failure() -> ClusterError:
        return ClusterError(ApiError.TIMED_OUT, "no answer", retriable=True)

    monkeypatch.setattr(group_member, "TOPICS_PAUSE_MIN_S", 0.01)
    async with Cluster("127.0.0.1:1") as cluster:
        member = GroupMember(cluster, GroupClient(cluster), cast(Owner, None), SETTINGS, topics)
        watching = asyncio.ensure_future(member._watch_topics())
        for error in (failure(), failure()):
            answers.put_nowait(error)
            await until(lambda error=error: member.failure is error)  # type: ignore[misc]  # its type is inferred
        if joins_fail:
            member._noted(failure())
        answers.put_nowait(None)
        await member._events.get()
        assert (member.failing_since is None, member.failure is None) == (not joins_fail, not joins_fail)
        watching.cancel()
