"""kctl dev: start and stop a cluster of real processes on this machine."""

from __future__ import annotations

import asyncio
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quorumlog.errors import ClusterError
from quorumlog.kctl.context import Context, Group, with_loop
from quorumlog.kctl.numbers import IntRange
from quorumlog.runtime import paths
from quorumlog.wire.errors import ApiError

if TYPE_CHECKING:
    from quorumlog.kctl.dev_cluster import DevCluster, Node

UP_TIMEOUT_S = 90.0
PORT_BASE = 19_090
AUTO_CREATE = "auto.create.topics.enable"
REBALANCE_DELAY = "group.initial.rebalance.delay.ms"
FACTOR = "default.replication.factor"
FACTOR_DEFAULT = 3
CONFIG_TIMEOUT_S = 10.0


@click.group("dev", cls=Group)
def group() -> None:
    """Run a cluster on this machine, for experiments."""


_dir_option = click.option(
    "--dir", "directory", metavar="DIR", help="The cluster's folder (default under XDG_DATA_HOME)."
)


def _directory(given: str | None) -> Path:
    return Path(given).resolve() if given else paths.dev_dir(os.environ)


@group.command("up")
@_dir_option
@click.option("--voters", type=IntRange(1, 9), default=3, show_default=True, help="Voters, ids from 1.")
@click.option("--brokers", type=IntRange(1, 64), default=3, show_default=True, help="Brokers, ids from 11.")
@click.option("--port-base", type=IntRange(1024, 65_000), help=f"First port (default {PORT_BASE}).")
@with_loop
async def up(context: Context, directory: str | None, voters: int, brokers: int, port_base: int | None) -> None:
    """Start a cluster, and wait until it is ready.

    If the cluster exists already, its stopped nodes are started.  Without --timeout, the command gives up after 90 s.
    """
    from quorumlog.kctl import dev_cluster

    context.lift_limit()  # each process has its own timeouts
    home = _directory(directory)
    made_dir = not home.exists()
    home.mkdir(parents=True, exist_ok=True)
    say = context.output.message
    context.interrupted = "the processes that this command started were stopped"
    is_new = False
    with dev_cluster.locked(home):
        cluster = dev_cluster.load(home)
        if cluster is None:
            is_new = True
            try:
                cluster = dev_cluster.plan(home, voters, brokers, port_base or PORT_BASE, made_dir)
                cluster.save()
            except BaseException:
                dev_cluster.remove_record(home, made_dir)
                raise
        elif port_base not in (None, cluster.port_base or cluster.first_port):
            raise _other_ports(cluster, port_base)
        elif (voters, brokers) != (_count(cluster, "voter"), _count(cluster, "broker")):
            say(f"{home} already holds a cluster, which keeps its number of voters and brokers")
        changed = not all(node.is_running for node in cluster.nodes)
        try:
            await dev_cluster.start(cluster, UP_TIMEOUT_S if context.timeout_s is None else context.timeout_s, say)
        except BaseException:
            if is_new:
                dev_cluster.remove(cluster)
            raise
        context.interrupted = f"the cluster runs; to stop it: kctl dev down --dir {shlex.quote(cluster.dir)}"
        if await _set_defaults(context, cluster):
            changed = True
    document = {"changed": changed, "offset": None, **await _document(cluster)}
    if context.output.is_json:
        context.output.document(document)
        return
    _table(context, document)
    context.output.text(f"export KCTL_CONTROLLERS={cluster.controllers}")
    context.output.text(f"export BOOTSTRAP_SERVERS={cluster.bootstrap}")


@group.command("status")
@_dir_option
@with_loop
async def status(context: Context, directory: str | None) -> None:
    """Show the cluster's processes, and whether each is ready."""
    cluster = _existing(_directory(directory))
    document = await _document(cluster)
    if context.output.is_json:
        context.output.document(document)
        return
    _table(context, document)
    context.output.text(f"controllers {cluster.controllers}")
    context.output.text(f"bootstrap {cluster.bootstrap}")


@group.command("down")
@_dir_option
@with_loop
async def down(context: Context, directory: str | None) -> None:
    """Stop the cluster and delete everything that `up` created, including data."""
    from quorumlog.kctl import dev_cluster

    context.lift_limit()  # each process has its own timeouts
    home = _directory(directory)
    stopped: list[str] = []
    cluster = dev_cluster.load(home) if home.is_dir() else None
    if cluster is not None:
        with dev_cluster.locked(home):
            cluster = dev_cluster.load(home) or cluster  # an `up` that has just ended may have started more nodes
            stopped = [node.name for node in cluster.nodes if node.is_running]
            await dev_cluster.stop_nodes(cluster.nodes, context.output.message)
            dev_cluster.remove(cluster)
    if context.output.is_json:
        context.output.document({"changed": cluster is not None, "offset": None, "dir": str(home), "stopped": stopped})
    else:
        context.output.text(
            f"no cluster in {home}" if cluster is None else f"stopped and deleted the cluster in {home}"
        )


async def _set_defaults(context: Context, cluster: DevCluster) -> bool:
    """Set configs that experiments need, unless the cluster has values for them.  Return whether one was set.

    Programs that are tried on a cluster expect automatic topic creation, and groups that start without a delay.
    With fewer brokers than the default replication factor, the topic of consumer groups would never be created.  A
    failure is only reported: the cluster runs.
    """
    from quorumlog.client.controller import ControllerClient
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import controller_pb2, metadata_pb2

    resource = controller_pb2.ConfigResource(scope=metadata_pb2.Config.SCOPE_CLUSTER)
    try:
        async with ControllerClient(cluster.controllers.split(",")) as client:
            found = await client.call(
                rpcs.DESCRIBE_CONFIGS,
                controller_pb2.DescribeConfigsRequest(resources=[resource]),
                CONFIG_TIMEOUT_S,
            )
            sources = {config.key: config.source for each in found.resources for config in each.configs}
            wanted = {AUTO_CREATE: "true", REBALANCE_DELAY: "0"}
            if (brokers := _count(cluster, "broker")) < FACTOR_DEFAULT:
                wanted[FACTOR] = str(brokers)
            changes = controller_pb2.ConfigChanges(resource=resource)
            for key, value in wanted.items():
                if sources.get(key) == "default":
                    changes.changes.add(key=key, value=value)
            if not changes.changes:
                return False
            request = controller_pb2.AlterConfigsRequest(resources=[changes])
            reply = await client.call(rpcs.ALTER_CONFIGS, request, CONFIG_TIMEOUT_S)
            return any(each.changed for each in reply.resources)
    except ClusterError as error:
        context.output.message(f"the configs for experiments are not set: {error.message}")
        return False


def _existing(home: Path) -> DevCluster:
    from quorumlog.kctl import dev_cluster

    cluster = dev_cluster.load(home)
    if cluster is None:
        raise ClusterError(ApiError.NO_CLUSTER, f"no cluster exists in {home}", "kctl dev up")
    return cluster


def _other_ports(cluster: DevCluster, wanted: int | None) -> ClusterError:
    has = f"the cluster in {cluster.dir} keeps its ports, from {cluster.first_port} on"
    dir_ = shlex.quote(cluster.dir)
    return ClusterError(
        ApiError.CLUSTER_EXISTS, f"{has}, and cannot move to {wanted}; nothing was changed",
        f"omit --port-base, give another --dir, or delete that cluster first: kctl dev down --dir {dir_}",
    )  # fmt: skip


def _count(cluster: DevCluster, role: str) -> int:
    return sum(node.role == role for node in cluster.nodes)


async def _document(cluster: DevCluster) -> dict[str, Any]:
    states = await asyncio.gather(*(_state(node) for node in cluster.nodes))
    return {
        "dir": cluster.dir,
        "controllers": cluster.controllers,
        "bootstrap": cluster.bootstrap,
        "nodes": [
            {
                "role": node.role,
                "id": node.id,
                "pid": node.pid if state != "stopped" else None,
                "listen": node.listen,
                "control": node.control,
                "http": node.http,
                "data_dir": node.data_dir,
                "log": node.log,
                "state": state,
            }
            for node, state in zip(cluster.nodes, states, strict=True)
        ],
    }


async def _state(node: Node) -> str:
    from quorumlog.kctl import dev_cluster

    if not node.is_running:
        return "stopped"
    return "ready" if (await dev_cluster.readiness(node))[0] else "not ready"


def _table(context: Context, document: dict[str, Any]) -> None:
    columns = ("role", "id", "pid", "state", "listen", "control", "http", "log")
    context.output.table(columns, [[node[column] for column in columns] for node in document["nodes"]])
