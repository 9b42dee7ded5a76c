"""kctl configs: the configs of topics, brokers, groups and the cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import click

from quorumlog.errors import ClusterError
from quorumlog.kctl.context import WAIT_HELP, Context, Group, wait_until_applied, with_loop
from quorumlog.kctl.numbers import IntRange
from quorumlog.kctl.reads import Reads
from quorumlog.kctl.refusals import refusal
from quorumlog.kctl.topics import dry_run_option, parse_configs
from quorumlog.wire.errors import ApiError

F = TypeVar("F", bound=Callable[..., Any])


@click.group("configs", cls=Group)
def group() -> None:
    """Show and change the configs of topics, brokers, groups and the cluster.

    The settings of a node are in its config file.
    """


def _of_resource(function: F) -> F:
    options = (
        click.option("--topic", metavar="T", help="The topic."),
        click.option("--broker", metavar="ID", type=IntRange(0, 2**31 - 1), help="The broker."),
        click.option("--group", metavar="G", help="The consumer or share group, which need not exist yet."),
        click.option("--cluster", is_flag=True, help="The cluster, including the defaults of topics and groups."),
    )
    for option in reversed(options):
        function = option(function)
    return function


class _Of(NamedTuple):
    """The resource that the options name; exactly one field is set."""

    topic: str | None
    broker: int | None
    group: str | None
    cluster: bool

    def __str__(self) -> str:
        named = {"topic": self.topic, "broker": self.broker, "group": self.group}
        return next((f"{kind} {name}" for kind, name in named.items() if name is not None), "the cluster")


def _resource(of: _Of) -> Any:
    from quorumlog.wire.v1 import controller_pb2, metadata_pb2

    topic, broker, group, cluster = of
    given = [topic is not None, broker is not None, group is not None, cluster]
    if sum(given) != 1:
        raise click.UsageError("give one of --topic T, --broker ID, --group G and --cluster")
    scope = metadata_pb2.Config.SCOPE_CLUSTER
    name = ""
    if topic is not None:
        scope, name = metadata_pb2.Config.SCOPE_TOPIC, topic
    elif broker is not None:
        scope, name = metadata_pb2.Config.SCOPE_BROKER, str(broker)
    elif group is not None:
        scope, name = metadata_pb2.Config.SCOPE_GROUP, group
    return controller_pb2.ConfigResource(scope=scope, name=name)


@group.command("get")
@click.argument("key", required=False)
@_of_resource
@with_loop
async def get(
    context: Context, key: str | None, topic: str | None, broker: int | None, group: str | None, cluster: bool
) -> None:
    """Show all configs, or one: its value and the source of the value."""
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import controller_pb2

    request = controller_pb2.DescribeConfigsRequest(resources=[_resource(_Of(topic, broker, group, cluster))])
    async with context.client() as client:
        reads = Reads(context, client)
        reply = await reads.ask(rpcs.DESCRIBE_CONFIGS, request)
    (described,) = reply.resources
    if described.result.error != ApiError.NONE:
        raise reads.refused(refusal(described.result))
    found = [config for config in described.configs if key in (None, config.key)]
    if not found:
        known = ", ".join(config.key for config in described.configs)
        raise ClusterError(
            ApiError.CONFIG_NOT_FOUND,
            f"{key!a} is not a config of this resource; its configs are {known}",
            "give one of these",
        )
    reads.tell()
    if context.output.is_json:
        context.output.document(
            [{"name": each.key, "value": each.value, "source": each.source, **reads.validity} for each in found]
        )
    else:
        rows = [(each.key, each.value, each.source, each.allowed) for each in found]
        context.output.table(("name", "value", "source", "allowed"), rows)


@group.command("set")
@click.argument("pairs", nargs=-1, required=True, metavar="key=value...", callback=parse_configs)
@_of_resource
@dry_run_option
@click.option("--wait", is_flag=True, help=WAIT_HELP)
@with_loop
async def set_(
    context: Context,
    pairs: list[tuple[str, str]],
    topic: str | None,
    broker: int | None,
    group: str | None,
    cluster: bool,
    dry_run: bool,
    wait: bool,
) -> None:
    """Set configs; if one of them is refused, none is changed."""
    changes: list[tuple[str, str | None]] = [*pairs]
    await _alter(context, changes, _Of(topic, broker, group, cluster), dry_run=dry_run, wait=wait)


@group.command("unset")
@click.argument("keys", nargs=-1, required=True, metavar="key...")
@_of_resource
@dry_run_option
@click.option("--wait", is_flag=True, help=WAIT_HELP)
@with_loop
async def unset(
    context: Context,
    keys: tuple[str, ...],
    topic: str | None,
    broker: int | None,
    group: str | None,
    cluster: bool,
    dry_run: bool,
    wait: bool,
) -> None:
    """Reset configs to their defaults.

    The default of a topic's or a group's config is the cluster's value, or else the built-in one.
    """
    changes = [(key, None) for key in keys]
    await _alter(context, changes, _Of(topic, broker, group, cluster), dry_run=dry_run, wait=wait)


async def _alter(
    context: Context, changes: Sequence[tuple[str, str | None]], of: _Of, *, dry_run: bool, wait: bool
) -> None:
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import controller_pb2

    wanted = controller_pb2.ConfigChanges(
        resource=_resource(of),
        changes=[controller_pb2.ConfigChange(key=key, value=value) for key, value in changes],
    )
    header = controller_pb2.RequestHeader(validate_only=dry_run)
    async with context.client() as client:
        request = controller_pb2.AlterConfigsRequest(header=header, resources=[wanted])
        reply = await client.call(rpcs.ALTER_CONFIGS, request, context.left_s)
        (altered,) = reply.resources
        if altered.result.error != ApiError.NONE:
            raise refusal(altered.result)
        if wait and not dry_run:
            await wait_until_applied(context, client, reply.offset)
    document = {
        "changed": altered.changed,
        "offset": reply.offset,
        "topic": of.topic,
        "broker": of.broker,
        "group": of.group,
        "configs": [{"name": key, "value": value} for key, value in changes],
    }
    shown = ", ".join(f"{key} reset to its default" if value is None else f"{key}={value}" for key, value in changes)
    if context.output.is_json:
        context.output.document(document)
    elif dry_run:
        context.output.text(f"{of}: {shown} would be accepted")
    else:
        context.output.text(f"{of}: {shown}" + ("" if altered.changed else " (unchanged)"))
