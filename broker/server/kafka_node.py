"""The data about this process that the Kafka listener serves: its directories, settings and metadata quorum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from broker.kafka.api import DataDirectory, NodeSetting, QuorumReplica, QuorumState, SettingType
from broker.log import LogManager
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.config import KEYS
from quorumlog.runtime.settings import Key, Setting
from quorumlog_server.control_plane import ControlPlane

if TYPE_CHECKING:
    from quorum.core.messages import ReplicaStatus


class KafkaNode:
    """The `broker.kafka.api.Node` of a broker.

    paths: the paths of its directories, by directory id.
    settings: the settings of its configuration, by name; see `NodeConfig`.
    """

    def __init__(
        self,
        plane: ControlPlane,
        logs: LogManager,
        paths: Mapping[UUID, str],
        sources: Sources,
        settings: Mapping[str, Setting],
    ) -> None:
        self._plane = plane
        self._logs = logs
        self._paths = paths
        self._sources = sources
        self._settings = tuple(_described(key, settings[key.name]) for key in KEYS if key.name in settings)

    def directories(self) -> list[DataDirectory]:
        spaces = {space.path: space for space in self._plane.space.latest()}
        failed = self._logs.failed_disks
        found = []
        for directory_id, path in self._paths.items():
            space = spaces.get(path)
            total, free = (-1, -1) if space is None else (space.total_bytes, space.free_bytes)
            found.append(DataDirectory(directory_id, path, directory_id in failed, total, free))
        return found

    def settings(self) -> Sequence[NodeSetting]:
        return self._settings

    async def quorum(self, timeout_ms: int) -> QuorumState | None:
        reply = await self._plane.describe_quorum(timeout_ms)
        if reply is None:
            return None
        leader_id, now_ms = reply.answered_by.node_id, self._sources.wall_ms()
        return QuorumState(
            leader_id,
            reply.known.epoch,
            reply.high_watermark,
            tuple(_replica(each, leader_id, now_ms) for each in reply.voters),
            tuple(_replica(each, leader_id, now_ms) for each in reply.observers),
        )


def _described(key: Key, setting: Setting) -> NodeSetting:
    if key.kind.is_list:
        kind = SettingType.LIST
    else:
        kind = {bool: SettingType.BOOLEAN, int: SettingType.INTEGER}.get(key.kind.toml, SettingType.TEXT)
    value, default = (_text(key, each) for each in (setting.value, key.default))
    return NodeSetting(key.name, kind, value, default, setting.source != "default", f"{key.help}; {key.allowed}")


def _text(key: Key, value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if key.kind.is_list and isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value)


def _replica(status: ReplicaStatus, leader_id: int, now_ms: int) -> QuorumReplica:
    """Convert the status of a replica.  The leader does not fetch; as in Kafka, its times are the current time."""
    key = status.replica.key
    is_leader = key.node_id == leader_id

    def at(age_ms: int | None) -> int:
        return now_ms if is_leader else -1 if age_ms is None else now_ms - age_ms

    return QuorumReplica(
        key.node_id,
        key.directory_id,
        status.replica.address,
        status.log_end_offset,
        at(status.last_fetch_ms),
        at(status.last_caught_up_ms),
    )
