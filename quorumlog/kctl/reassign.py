"""kctl reassign: move replicas to other brokers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from quorumlog.errors import ClusterError
from quorumlog.kctl import brokers as brokers_module
from quorumlog.kctl.context import Context, Group, so_on_return, with_loop
from quorumlog.kctl.directories import PlannedDirectories, open_log_dirs, summary, wanted_in, worst_state
from quorumlog.kctl.numbers import IntRange
from quorumlog.kctl.reads import Reads
from quorumlog.kctl.reassign_options import (
    broker_ids,
    brokers_option,
    factor_option,
    load,
    plan_option,
    throttle_option,
    topic_option,
)
from quorumlog.kctl.reassign_plan import ID_MAX, Move, document, moved, propose
from quorumlog.kctl.reassign_progress import Sizes, Watch, blocked_reason, list_ongoing, state_of, waited_for
from quorumlog.kctl.reassign_requests import alter, cancelled
from quorumlog.kctl.topic_reads import describe_all_topics, describe_topics
from quorumlog.kctl.topics import dry_run_option
from quorumlog.wire.errors import ApiError
from quorumlog.words import Key, counted, listed, named

if TYPE_CHECKING:
    from quorumlog.client.controller import ControllerClient
    from quorumlog.client.reads import Caller

TOPICS_SHOWN_MAX = 5
DIRECTORIES_SHOWN_MAX = 20
CANCEL_PLAN = "kctl reassign cancel --plan FILE.json"
CANCEL_DIRECTORY_MOVE = "to cancel a move between directories, start a plan that names the current directory"


@click.group("reassign", cls=Group)
def group() -> None:
    """Move replicas to other brokers while reads and writes continue.

    `generate` writes a plan, `start` executes it, `status` shows the progress, `cancel` returns to the previous
    replicas, and `verify` compares a plan with the cluster.  Plans have the format of Kafka's own tool.
    """


# generate


@group.command("generate")
@topic_option
@brokers_option
@factor_option
@plan_option
@click.option(
    "--drain",
    type=IntRange(0, ID_MAX),
    metavar="ID",
    help="Move all replicas off this broker (default: of all topics).",
)
@with_loop
async def generate(
    context: Context,
    topics: tuple[str, ...],
    brokers: tuple[int, ...] | None,
    replication_factor: int | None,
    path: str | None,
    drain: int | None,
) -> None:
    """Write a plan that spreads replicas evenly over brokers and racks.

    The plan moves few replicas.  The command prints the plan on standard output, and the current assignment on standard
    error.  Keep the current assignment: it is the plan that undoes the move.  With `-o json`, both are in one document,
    which `start --plan` accepts as well.  Without --brokers, the plan uses all brokers that are unfenced and not
    cordoned.  With --plan instead of --topic, the new plan is for the partitions in that plan.
    """
    plan = await load(path)
    if (bool(topics) == (plan is not None)) and (drain is None or plan is not None):
        raise click.UsageError("give --topic, --drain, or a --plan whose partitions are to be reassigned")
    if drain is not None and drain in (brokers or ()):
        raise click.UsageError(f"--brokers names broker {drain}, which --drain is to empty")
    async with context.client() as client:
        reads = Reads(context, client)
        if names := topics or {move.topic for move in plan or ()}:
            found = await _described(reads, context, names)
        else:
            found = await describe_all_topics(reads, lambda: context.left_s)
        current, leaving = _moves(found), []
        if plan is not None:
            current = _named(current, plan)
        if drain is not None:
            leaving = _leaving(found, drain, brokers, replication_factor)
            current = [move for move in current if drain in move.replicas]
        planned = await _proposed(reads, context, current, brokers, replication_factor, drain)
        current, planned = [*current, *leaving], [*planned, *leaving]
    reads.tell()
    copied, changed = moved(current, planned)
    if context.output.is_json:
        context.output.document(
            {
                "plan": document(planned),
                "current": document(current),
                "replicas_moved": copied,
                "changed": changed,
                **reads.validity,
            }
        )
        return
    context.output.text(json.dumps(document(planned)))
    context.output.message(f"the current assignment, to undo the plan: {json.dumps(document(current))}")
    context.output.message(
        f"{counted(copied, 'replica')} would be copied, {changed} of {counted(len(current), 'partition')} changed"
    )


def _named(current: Sequence[Move], plan: Sequence[Move]) -> list[Move]:
    known = {(move.topic, move.partition): move for move in current}
    _check_known(known, [(move.topic, move.partition) for move in plan])
    return [known[move.topic, move.partition] for move in plan]


def _check_known(known: Container[Key], wanted: Iterable[Key]) -> None:
    """Raise UNKNOWN_TOPIC_OR_PARTITION if one of the wanted partitions does not exist."""
    for topic, index in wanted:
        if (topic, index) not in known:
            text = f"partition {topic}-{index} does not exist"
            raise ClusterError(ApiError.UNKNOWN_TOPIC_OR_PARTITION, text, "kctl topics describe")


async def _current(client: Caller, context: Context, topics: Iterable[str]) -> list[Move]:
    """Return the replicas of all partitions of the topics, as `_moves` does."""
    return _moves(await _described(client, context, topics))


def _moves(topics: Iterable[Any]) -> list[Move]:
    """Return the replicas of all partitions: the current ones, or the target of a reassignment."""
    return [
        Move(topic.name, each.index, tuple(r.broker_id for r in each.replicas if r.broker_id not in each.removing))
        for topic in topics
        for each in topic.partitions
    ]


def _leaving(topics: Iterable[Any], drained: int, brokers: Container[int] | None, factor: int | None) -> list[Move]:
    """Return the targets of reassignments in progress that move a replica off a broker, and fit the other options.

    A plan contains them, so that `start --wait` waits for them if the commands are repeated after a timeout.
    """
    removed = {(topic.name, each.index) for topic in topics for each in topic.partitions if drained in each.removing}
    return [
        move
        for move in _moves(topics)
        if (move.topic, move.partition) in removed
        and (brokers is None or all(each in brokers for each in move.replicas))
        and factor in (None, len(move.replicas))
    ]


async def _described(client: Caller, context: Context, topics: Iterable[str]) -> list[Any]:
    """Raises: ClusterError: a topic does not exist; or no node answers."""
    from quorumlog.kctl.refusals import refusal

    found = await describe_topics(client, topics, lambda: context.left_s)
    for topic in found:
        if topic.result.error not in (ApiError.NONE, ""):
            raise refusal(topic.result)
    return found


async def _proposed(
    client: Caller,
    context: Context,
    current: list[Move],
    wanted: tuple[int, ...] | None,
    factor: int | None,
    drained: int | None = None,
) -> list[Move]:
    known = {each["id"]: each for each in await brokers_module.fetch(context, client)}
    if drained is not None and drained not in known and not current:
        raise _unregistered([drained])
    ids = wanted if wanted is not None else [each for each in _open_brokers(context, known) if each != drained]
    missing = [id_ for id_ in ids if id_ not in known]
    if missing:
        raise _unregistered(missing)
    racks = {id_: known[id_]["rack"] for id_ in ids}
    # In a thread, because a large plan takes many seconds, in which Ctrl-C and the time limit must end the command.
    return await asyncio.get_running_loop().run_in_executor(None, propose, current, racks, factor)


def _unregistered(missing: list[int]) -> ClusterError:
    text = f"broker {','.join(map(str, missing[:20]))} is not registered"
    return ClusterError(ApiError.BROKER_ID_NOT_REGISTERED, text, "kctl brokers list")


def _open_brokers(context: Context, known: dict[int, dict[str, Any]]) -> list[int]:
    """Return the brokers that a plan uses without --brokers; print a message about cordoned ones, which it omits."""
    unfenced = [id_ for id_ in sorted(known) if known[id_]["state"] == "unfenced"]
    cordoned = [id_ for id_ in unfenced if known[id_]["cordoned"]]
    if cordoned:
        are = "is cordoned, and gets" if len(cordoned) == 1 else "are cordoned, and get"
        context.output.message(f"broker {listed(cordoned)} {are} no replicas unless named in --brokers")
    return [id_ for id_ in unfenced if id_ not in cordoned]


# start


@group.command("start")
@plan_option
@topic_option
@brokers_option
@factor_option
@throttle_option
@click.option("--replace", is_flag=True, help="Give an unfinished reassignment another target.")
@dry_run_option
@click.option("--wait", is_flag=True, help="Wait until all replicas are moved; show progress on standard error.")
@with_loop
async def start(
    context: Context,
    path: str | None,
    topics: tuple[str, ...],
    brokers: tuple[int, ...] | None,
    replication_factor: int | None,
    throttle: int | None,
    replace: bool,
    dry_run: bool,
    wait: bool,
) -> None:
    """Start to move replicas: the controller accepts the whole plan, or nothing.

    A plan with more than 9,999 partitions is sent in several requests, after all of them have been checked.
    A plan may name a data directory for each replica (`log_dirs`).  A replica that stays on its broker then moves to
    that directory; a new replica is created in it.  `--throttle` alone changes the current throttle.
    A plan without partitions succeeds and changes nothing: `generate --drain` makes one for an empty broker.
    """
    plan = await load(path, may_be_empty=True)
    _check_sources(plan, topics, brokers, replication_factor, alone=throttle is not None, takes_factor=True)
    if plan == []:
        _report_empty(context)
        return
    async with context.client() as client:
        moves = plan or []
        if topics:
            moves = await _proposed(
                client, context, await _current(client, context, topics), brokers, replication_factor
            )
        try:
            directories = await _place(client, context, moves, dry_run, replace)
            reply = await alter(client, context, moves, dry_run, throttle=throttle, replace=replace)
        except ClusterError as error:
            wanted = {broker for move in moves for broker in move.replicas}
            raise await brokers_module.specific_refusal(error, client, context, wanted) from error
        keys = [(move.topic, move.partition) for move in moves]
        under_way = await _under_way(client, reply, context.left_s)
        if under_way:
            waits = "; waiting for it" if wait and not dry_run else ""
            context.output.message(f"{named(under_way)}: already under way to the same replicas{waits}")
        moving = under_way or any(each.changed for each in reply.partitions)
        if wait and moving and not dry_run:
            await Watch(context, client, {(move.topic, move.partition): move.replicas for move in moves}).run()
            found = await _actual(client, context, sorted({topic for topic, _ in keys}))
            rows = [_verified(move, found.get((move.topic, move.partition)), exact=True) for move in moves]
            _judge(rows, "; the reassignment was cancelled or replaced elsewhere")
        if wait and directories and not dry_run:
            async with open_log_dirs(context) as log_dirs:
                await PlannedDirectories(context, log_dirs, wanted_in(moves)).wait()
    done = "moved" if wait else "being moved"
    _report(
        context,
        reply,
        moves,
        dry_run,
        done=done,
        planned="would be moved",
        under_way=under_way,
        directories=directories,
        has_throttle=throttle is not None,
    )


def _report_empty(context: Context) -> None:
    if context.output.is_json:
        context.output.document({"changed": False, "offset": None, "partitions": []})
    else:
        context.output.text("nothing to do: the plan names no partitions")


async def _place(
    client: ControllerClient, context: Context, moves: Sequence[Move], dry_run: bool, replace: bool
) -> list[dict[str, Any]]:
    """Request the directories that a plan names, and return the JSON of each replica with a planned directory.

    This happens before the reassignment, so that new replicas are created in their directories.  Nothing is requested
    if a directory does not exist or is offline, or if the controller would refuse the reassignment.
    """
    wanted = wanted_in(moves)
    if not wanted:
        return []
    async with open_log_dirs(context) as log_dirs:
        planned = PlannedDirectories(context, log_dirs, wanted)
        before = await planned.look()
        if not dry_run:
            await alter(client, context, moves, dry_run=True, replace=replace)
            await planned.request(before)
    return planned.rows(before)


async def _under_way(client: Caller, reply: Any, timeout_s: float) -> set[Key]:
    """Return the unchanged partitions of a request that are already being moved to the same target."""
    unchanged = [(each.topic, each.index) for each in reply.partitions if not each.changed]
    ongoing = (await list_ongoing(client, unchanged, timeout_s))[0] if unchanged else []
    return {(each.topic, each.index) for each in ongoing}


def _check_sources(
    plan: object, topics: object, brokers: object, factor: object = None, *, alone: bool = False, takes_factor: bool
) -> None:
    if (plan is not None) and topics:
        raise click.UsageError("give --plan or --topic, not both")
    if plan is None and not topics and not alone:
        raise click.UsageError("give --plan FILE.json, or --topic T with --brokers 1,2,3")
    if topics and brokers is None and factor is None:
        raise click.UsageError("--topic needs --brokers 1,2,3" + (" (or --replication-factor)" if takes_factor else ""))
    if not topics and plan is None and (brokers is not None or factor is not None):
        raise click.UsageError("--brokers and --replication-factor need --topic")
    if plan is not None and (brokers is not None or factor is not None):
        raise click.UsageError("a plan names the brokers itself")


def _report(
    context: Context,
    reply: Any,
    moves: Sequence[Move],
    dry_run: bool,
    *,
    done: str,
    planned: str,
    under_way: Container[Key] = (),
    directories: Sequence[dict[str, Any]] = (),
    has_throttle: bool = False,
) -> None:
    """Print the result of a request.

    done, planned: the outcome in words; `planned` is for a dry run.  under_way: the partitions that were already moving
    to the same target.  directories: the JSON of the replicas for which the plan names a directory.  has_throttle:
    whether the request sets the throttle.
    """
    wanted = {(move.topic, move.partition): list(move.replicas) or None for move in moves}
    if context.output.is_json:
        rows = [
            {
                "topic": each.topic,
                "partition": each.index,
                "replicas": wanted[each.topic, each.index],
                "changed": each.changed and not dry_run,
            }
            for each in reply.partitions
        ]
        places = [{**row, "changed": row["changed"] and not dry_run} for row in directories]
        changed_any = reply.changed or any(row["changed"] for row in places)
        result = {"changed": changed_any, "offset": reply.offset or None, "partitions": rows}
        context.output.document({**result, "directories": places} if places else result)
        return
    if directories:
        context.output.message(summary(directories, dry_run))
    changed = sum(each.changed for each in reply.partitions)
    old = [each for each in reply.partitions if not each.changed]
    going = sum((each.topic, each.index) in under_way for each in old)
    placed = {(row["topic"], row["partition"]) for row in directories if row["changed"]}
    so_already = [
        each.result.message
        for each in old
        if (each.topic, each.index) not in under_way and (each.topic, each.index) not in placed
    ]
    for text in list(filter(None, so_already))[:5]:
        context.output.message(text)
    if has_throttle and dry_run:  # the reply to a dry run does not say whether the throttle would change
        context.output.text("the throttle would be set")
    elif not moves:
        context.output.text("the throttle is changed" if reply.changed else "the throttle is unchanged")
    elif reply.changed and not changed:
        context.output.text("the throttle is changed")
    if not moves:
        return
    if changed or (going and done == "moved" and not dry_run):
        count = changed + (0 if dry_run else going)
        context.output.text(f"{count} of {counted(len(moves), 'partition')} {planned if dry_run else done}")
    elif going:
        context.output.text("nothing to do: already in progress (kctl reassign status)")
    elif not reply.changed and not any(row["changed"] for row in directories) and not (has_throttle and dry_run):
        context.output.text("nothing to do: already as requested")


# status


@group.command("status")
@plan_option
@topic_option
@click.option(
    "--brokers", callback=broker_ids, metavar="1,2,3",
    help="Only partitions that add or remove a replica on one of these brokers.",
)  # fmt: skip
@with_loop
async def status(context: Context, path: str | None, topics: tuple[str, ...], brokers: tuple[int, ...] | None) -> None:
    """Show the reassignments in progress, and the bytes that remain to copy.

    state: copying; waiting (all added replicas are in sync, but too few replicas would remain in sync); broker_down (it
    needs brokers that are down); no_leader.
    """
    plan = await load(path)
    async with context.client() as client:
        reads = Reads(context, client)
        everything, throttle = await list_ongoing(reads, (), context.left_s)
        moving = {(each.topic, each.index) for each in everything}
        keys = moving if plan is None else moving.intersection((move.topic, move.partition) for move in plan)
        ongoing = [
            each for each in everything if (each.topic, each.index) in keys and _is_wanted(each, topics, brokers)
        ]
        left = await Sizes(client).left(ongoing, context.left_s) if ongoing else {}
        waits = await waited_for(reads, ongoing, context.left_s)
    reads.tell()
    rows = [
        {
            "topic": each.topic,
            "partition": each.index,
            "adding": list(each.adding),
            "removing": list(each.removing),
            "isr": list(each.isr),
            "bytes_left": left[each.topic, each.index],
            "state": state_of(each, waits[each.topic, each.index]),
            "waits_for": waits[each.topic, each.index],
            **reads.validity,
        }
        for each in ongoing
    ]
    if context.output.is_json:
        context.output.document(rows)
    elif not rows:
        context.output.text("no reassignment is in progress")
    else:
        columns = ("topic", "partition", "adding", "removing", "isr", "bytes_left", "state")
        context.output.table(columns, [[row[column] for column in columns] for row in rows])
        context.output.message(f"throttle: {'none' if throttle < 0 else f'{throttle} bytes per second per broker'}")
        _report_blocked(context, ongoing, waits, moving)


def _report_blocked(context: Context, ongoing: Sequence[Any], waits: dict[Key, list[int]], moving: set[Key]) -> None:
    """Report, for each set of unavailable brokers, the partitions that wait for them and the next steps.

    moving: all partitions that are being reassigned, including those that are not shown.
    """
    from quorumlog.doctor.steps import cancel

    groups: dict[tuple[int, ...], list[Any]] = {}
    for each in ongoing:
        brokers = waits[each.topic, each.index]
        if state_of(each, brokers) == "broker_down":
            groups.setdefault(tuple(brokers), []).append(each)
    for waits_for, held in sorted(groups.items()):
        verb, topics = "waits" if len(held) == 1 else "wait", sorted({each.topic for each in held})
        text = blocked_reason(held[0], waits_for).removeprefix("waits")
        start = listed(f"broker {broker}" for broker in waits_for)
        keys = [(each.topic, each.index) for each in held]
        back = "; ".join(cancel(keys, moving)) if len(topics) <= TOPICS_SHOWN_MAX else CANCEL_PLAN
        context.output.message(f"{named(keys)} {verb}{text} (next: start {start}, or {back})")


def _is_wanted(ongoing: Any, topics: Sequence[str], brokers: tuple[int, ...] | None) -> bool:
    if topics and ongoing.topic not in topics:
        return False
    return brokers is None or not set(brokers).isdisjoint((*ongoing.adding, *ongoing.removing))


# cancel


@group.command("cancel")
@plan_option
@topic_option
@click.option(
    "--partition",
    "indexes",
    multiple=True,
    type=IntRange(0, 2**31 - 1),
    metavar="P",
    help="Only this partition of the topic; may be repeated.",
)
@click.option("--all", "everything", is_flag=True, help="All reassignments in progress.")
@dry_run_option
@so_on_return
@with_loop
async def cancel(
    context: Context,
    path: str | None,
    topics: tuple[str, ...],
    indexes: tuple[int, ...],
    everything: bool,
    dry_run: bool,
) -> None:
    """Return to the replicas from before a reassignment.

    The command is refused if only new replicas hold all acknowledged records.  It does not change partitions of --plan
    or --partition that are no longer being reassigned.  A move to another directory of the same broker is not a
    reassignment: to cancel it, start a plan that names the current directory.
    """
    plan = await load(path)
    if (plan is not None) + bool(topics) + everything != 1:
        raise click.UsageError("give one of --plan FILE.json, --topic T and --all")
    if indexes and len(topics) != 1:
        raise click.UsageError("--partition needs one --topic")
    planned = {(move.topic, move.partition) for move in plan or ()}
    planned.update((topic, index) for topic in topics for index in indexes)
    async with context.client() as client:
        if topics:
            found = await _described(client, context, topics)
            _check_known({(topic.name, each.index) for topic in found for each in topic.partitions}, sorted(planned))
        try:
            reply, moves = await cancelled(client, context, planned, topics, dry_run)
        except ClusterError as error:
            if error.code == ApiError.NO_REASSIGNMENT_IN_PROGRESS and wanted_in(plan or ()):
                raise ClusterError(error.code, error.message, CANCEL_DIRECTORY_MOVE) from error
            raise
    if ended := planned.difference((move.topic, move.partition) for move in moves):
        are = "is" if len(ended) == 1 else "are"
        context.output.message(f"{named(ended)} {are} not being reassigned (any more), and {are} not changed")
    _report(
        context,
        reply,
        moves,
        dry_run,
        done="returned to their previous replicas",
        planned="would return to their previous replicas",
    )


# verify


@group.command("verify")
@plan_option
@topic_option
@brokers_option
@with_loop
async def verify(context: Context, path: str | None, topics: tuple[str, ...], brokers: tuple[int, ...] | None) -> None:
    """Compare a plan, or a topic and its brokers, with the cluster.

    state: complete; in_progress (exit code 4); different (exit code 1); missing (exit code 3).  If the plan names data
    directories, each replica must be in the planned directory, and the command shows the replicas that are not.
    """
    plan = await load(path)
    _check_sources(plan, topics, brokers, takes_factor=False)
    async with context.client() as client:
        reads = Reads(context, client)
        if topics:
            await _described(reads, context, topics)
        found = await _actual(reads, context, topics or sorted({move.topic for move in plan or ()}))
    reads.tell()
    wanted = plan or [Move(topic, index, brokers or ()) for topic, index in sorted(found)]
    rows = [_verified(move, found.get((move.topic, move.partition)), exact=plan is not None) for move in wanted]
    elsewhere: list[str] = []
    if directories := wanted_in(wanted):
        async with open_log_dirs(context) as log_dirs:
            differences = await PlannedDirectories(context, log_dirs, directories).differences()
        for row in rows:
            found_there = differences.get((row["topic"], row["partition"]), [])
            row["directories"] = [each.document() for each in found_there]
            if found_there and row["state"] == "complete":
                row["state"] = worst_state(found_there)
            elsewhere += (f"{row['topic']}-{row['partition']}: {each}" for each in found_there)
    if context.output.is_json:
        context.output.document([{**row, **reads.validity} for row in rows])
    else:
        columns = ("topic", "partition", "replicas", "wanted", "adding", "removing", "isr", "state")
        context.output.table(columns, [[row[column] for column in columns] for row in rows])
        for text in elsewhere[:DIRECTORIES_SHOWN_MAX]:
            context.output.message(text)
        if len(elsewhere) > DIRECTORIES_SHOWN_MAX:
            context.output.message(f"and {len(elsewhere) - DIRECTORIES_SHOWN_MAX} more (shown by -o json)")
    _judge(rows)


async def _actual(client: Caller, context: Context, topics: Iterable[str]) -> dict[Key, Any]:
    found = await describe_topics(client, topics, lambda: context.left_s)
    return {(topic.name, each.index): each for topic in found for each in topic.partitions}


def _verified(move: Move, found: Any, exact: bool) -> dict[str, Any]:
    """Compare a partition with its plan.

    exact: the replicas must be the same in the same order; otherwise each replica must be on a broker of the plan.
    """
    if found is None:
        state, replicas, target = "missing", [], ()
    else:
        replicas = [each.broker_id for each in found.replicas]
        target = tuple(each for each in replicas if each not in found.removing)
        matches = target == move.replicas if exact else set(target) <= set(move.replicas)
        under_way = bool(found.adding or found.removing)
        state = "different" if not matches else "in_progress" if under_way else "complete"
    return {
        "topic": move.topic,
        "partition": move.partition,
        "replicas": replicas,
        "wanted": list(move.replicas),
        "adding": [] if found is None else list(found.adding),
        "removing": [] if found is None else list(found.removing),
        "isr": [] if found is None else list(found.isr),
        "state": state,
    }


def _judge(rows: Sequence[dict[str, Any]], cause: str = "") -> None:
    """Raise a ClusterError unless all partitions are as planned.  cause: a possible reason for differences."""
    by_state = {
        state: [row for row in rows if row["state"] == state] for state in ("missing", "different", "in_progress")
    }

    def names(state: str) -> str:
        shown = ", ".join(f"{row['topic']}-{row['partition']}" for row in by_state[state][:5])
        return shown + (f" and {len(by_state[state]) - 5} more" if len(by_state[state]) > 5 else "")

    if by_state["missing"]:
        raise ClusterError(ApiError.UNKNOWN_TOPIC_OR_PARTITION, f"missing: {names('missing')}", "kctl topics list")
    if by_state["different"]:
        raise ClusterError(
            ApiError.VERIFICATION_FAILED, f"not as planned: {names('different')}{cause}", "kctl reassign start"
        )
    if by_state["in_progress"]:
        text = f"still being moved: {names('in_progress')}"
        between_brokers = any(row["adding"] or row["removing"] for row in by_state["in_progress"])
        next_step = "kctl reassign status" if between_brokers else "kctl brokers moves"
        raise ClusterError(ApiError.REASSIGNMENT_IN_PROGRESS, text, next_step, retriable=True)
