"""The life of a broker: registration, heartbeat, fencing, controlled shutdown, failed directories, producer ids.

Theory of operation.  A broker epoch is the offset of a registration.  A request with an older epoch is refused, so late
requests of an earlier incarnation change nothing.  The registration of a new incarnation fences the broker.  The same
batch, or batches before it, remove the broker from its leaderships and ISRs; it stays the last member of an ISR only if
its replica cannot have lost records.  So a broker that restarts with less data than before is never treated as in sync.
A broker is unfenced when its heartbeat reports that it has applied its own registration and any later fencing.

Duplicate ids: a data directory is locked by the process that uses it.  A registration with a directory of the
registered broker therefore comes from that broker after a restart, and is accepted immediately.  A registration with
none of its directories comes from another broker with the same id.  It is refused while heartbeats of the registered
broker arrive, unless that broker has completed a controlled shutdown.  While they arrive, a registration of a process
that started before the registered one is also refused: it is late, or its directories were restored from a backup.

A heartbeat is decided repeatedly, each time on the image that includes its own earlier records, until nothing changes.
Each step is one valid batch.  The times of heartbeats are soft state of the shell, never in the image.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from metadata.control.decision import Decision, batch_with_head
from metadata.control.election import Lost, departures, elections
from metadata.control.errors import OK, Outcome
from metadata.image import BrokerImage, ClusterImage, PartitionImage, TopicImage
from metadata.records import (
    LOST,
    METADATA_VERSION,
    METADATA_VERSION_MIN,
    NO_OFFSET,
    RECORDS_PER_BATCH_MAX,
    UNASSIGNED,
    BrokerChange,
    Config,
    ConfigScope,
    ProducerIds,
    Reason,
    Record,
    RegisterBroker,
    Replica,
    UnregisterBroker,
)
from metadata.records.incarnation import is_earlier
from quorumlog.wire.errors import ApiError

PRODUCER_ID_BLOCK = 1000
_INT64_MAX = 2**63 - 1
_WILDCARDS = ("", "*", "0.0.0.0", "::", "[::]")


class Registered(msgspec.Struct, frozen=True):
    """broker_epoch: -1 if the registration is refused."""

    outcome: Outcome
    broker_epoch: int = NO_OFFSET


class Heartbeat(msgspec.Struct, frozen=True):
    """applied_offset: the (exclusive) end of the metadata that the broker has applied."""

    broker_id: int
    broker_epoch: int
    applied_offset: int
    want_fence: bool = False
    want_shutdown: bool = False
    directories_offline: tuple[UUID, ...] = ()


class HeartbeatAnswer(msgspec.Struct, frozen=True):
    """caught_up: whether the broker has applied its own registration.  should_shutdown: whether it may stop now.
    leaders_left: number of partitions that it leads."""

    outcome: Outcome
    fenced: bool = True
    caught_up: bool = False
    should_shutdown: bool = False
    leaders_left: int = 0


class ProducerIdBlock(msgspec.Struct, frozen=True):
    """The ids from `first_producer_id` on; -1 and 0 if the request is refused."""

    outcome: Outcome
    first_producer_id: int = -1
    count: int = 0


def check_broker(image: ClusterImage, broker_id: int, broker_epoch: int) -> Outcome | None:
    """Return why a request of this broker is refused, or None."""
    broker = image.brokers.get(broker_id)
    if broker_epoch >= image.end_offset:
        return Outcome(
            ApiError.NOT_CONTROLLER,
            f"broker epoch {broker_epoch} is ahead of this controller's log, which ends at {image.end_offset}",
        )
    if broker is None:
        return Outcome(ApiError.BROKER_ID_NOT_REGISTERED, f"broker {broker_id} is not registered", "register first")
    if broker_epoch != broker.epoch:
        return Outcome(
            ApiError.STALE_BROKER_EPOCH,
            f"broker {broker_id} has epoch {broker.epoch}; the request has {broker_epoch}",
            "another incarnation has registered since then; register again",
        )
    return None


# Registration


def register(
    image: ClusterImage,
    request: RegisterBroker,
    early_topics: frozenset[UUID] = frozenset(),
    *,
    session_live: bool,
) -> Decision[Registered]:
    """Decide a registration.

    early_topics: the topics whose logs on this broker had write.caching when its last process ended, by the ids with
        which they were created.  Releases that do not report them give none.
    session_live: whether the registered incarnation has a live session.
    """
    refusal = _refuse_registration(image, request)
    if refusal is not None:
        return Decision(Registered(refusal))
    old = image.brokers.get(request.broker_id)
    epoch = image.end_offset
    if old is None:
        return Decision(Registered(OK, epoch), (msgspec.structs.replace(request, fenced=True),))
    if old.incarnation_id == request.incarnation_id:
        return _amend(old, request)
    common = set(old.directory_ids).intersection(request.directory_ids)
    has_stopped = old.fenced and old.in_controlled_shutdown
    # A fenced broker that sends heartbeats is also running; it may be recovering its logs.  A registration without its
    # directories would make its replicas count as lost, even where they are the last members of an ISR.
    if session_live and not has_stopped and not common:
        return Decision(
            Registered(
                Outcome(
                    ApiError.DUPLICATE_BROKER_REGISTRATION,
                    f"broker id {request.broker_id} is in use by a live broker with other data directories",
                    "stop the other broker, or give this one another id",
                )
            )
        )
    if session_live and common and is_earlier(request.incarnation_id, old.incarnation_id):
        return Decision(
            Registered(
                Outcome(
                    ApiError.DUPLICATE_BROKER_REGISTRATION,
                    f"a newer process of broker {request.broker_id} with these data directories is live",
                    "if the directories were restored from a backup, wait until its session ends",
                )
            )
        )
    head = msgspec.structs.replace(request, fenced=True)
    lost = _lost_by(image, old, request, early_topics)
    changes = departures(image, request.broker_id, Reason.NEW_INCARNATION, lost=lost)
    records, more = batch_with_head(head, changes)
    return Decision(Registered(OK, epoch), records, more)


def _refuse_registration(image: ClusterImage, request: RegisterBroker) -> Outcome | None:
    problem = None
    names = [endpoint.name for endpoint in request.endpoints]
    if request.broker_id < 0:
        problem = f"broker id {request.broker_id} is negative"
    elif not request.endpoints:
        problem = "a broker needs at least one listener"
    elif len(set(names)) < len(names):
        problem = "two listeners have the same name"
    elif any(endpoint.host in _WILDCARDS for endpoint in request.endpoints):
        problem = "a wildcard address cannot be advertised"
    elif not request.directory_ids:
        problem = "a broker needs at least one data directory"
    elif UNASSIGNED in request.directory_ids or LOST in request.directory_ids:
        problem = "the directory ids 0 and 1 are reserved"
    else:
        for broker_id in sorted(image.brokers):
            taken = set(image.brokers[broker_id].directory_ids).intersection(request.directory_ids)
            if broker_id != request.broker_id and taken:
                problem = f"data directory {min(taken)} is registered by broker {broker_id}"
                break
    if problem is not None:
        return Outcome(ApiError.INVALID_REGISTRATION, f"broker {request.broker_id}: {problem}")
    level = image.features.get(METADATA_VERSION, METADATA_VERSION_MIN)
    if not request.feature_min <= level <= request.feature_max:
        return Outcome(
            ApiError.UNSUPPORTED_VERSION,
            f"the cluster is at level {level} of {METADATA_VERSION}; broker {request.broker_id} supports"
            f" {request.feature_min} to {request.feature_max}",
            "start a release that supports that level",
        )
    return None


def _amend(old: BrokerImage, request: RegisterBroker) -> Decision[Registered]:
    """Decide a repeated registration of the same incarnation: a retry, or a new address.  The broker epoch stays."""
    if set(old.directory_ids) != set(request.directory_ids):
        return Decision(
            Registered(
                Outcome(
                    ApiError.INVALID_REGISTRATION,
                    f"broker {old.broker_id}: its data directories changed while it was running",
                    "data directories are opened at the start; report failed directories by heartbeat",
                )
            )
        )
    amended = msgspec.structs.replace(request, fenced=old.fenced, directory_ids=old.directory_ids)
    same = (old.endpoints, old.rack, old.feature_min, old.feature_max) == (
        request.endpoints,
        request.rack,
        request.feature_min,
        request.feature_max,
    )
    return Decision(Registered(OK, old.epoch), () if same else (amended,))


def _lost_by(image: ClusterImage, old: BrokerImage, request: RegisterBroker, early_topics: frozenset[UUID]) -> Lost:
    """Return a predicate that says whether a replica of this broker may lack records that an ISR member must have.

    It is true for replicas on a missing directory.  If any directory is missing, it is also true for replicas whose
    directory was never reported.  After an unclean stop, it is true for replicas of topics with write.caching, since
    acknowledged records may never have reached the disk.  This includes topics that had write.caching when the broker
    stopped (`early_topics`).  A sole replica is exempt from this last rule, since no other replica could hold more
    records.
    """
    # If the previous process ended before it received its broker epoch, it wrote nothing.  The mark of the earlier
    # clean stop is then still on the disk.
    clean = request.previous_broker_epoch in {old.epoch, old.clean_epoch} - {NO_OFFSET}
    all_there = set(old.directory_ids) <= set(request.directory_ids)

    def lost(topic: TopicImage, partition: PartitionImage, replica: Replica) -> bool:
        if replica.directory_id == UNASSIGNED:
            if not all_there:
                return True
        elif replica.directory_id not in request.directory_ids:
            return True
        if clean or len(partition.replicas) == 1:
            return False
        return topic.origin in early_topics or image.topic_config(topic.topic_id, "write.caching") == "true"

    return lost


# Fencing


def fence(image: ClusterImage, broker_id: int) -> Decision[None]:
    """Fence a broker, and remove it from its leaderships and from ISRs with other members."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.fenced:
        return Decision(None)
    head = BrokerChange(broker_id, broker.epoch, fenced=True)
    records, more = batch_with_head(head, departures(image, broker_id, Reason.BROKER_FENCED))
    return Decision(None, records, more)


def elect_leaderless(image: ClusterImage) -> Decision[None]:
    """Elect leaders, where possible, for partitions without one: at most one batch; `more` is set if it is full."""
    changes = elections(image, cause_offset=NO_OFFSET)
    return Decision(None, tuple(changes), more=len(changes) == RECORDS_PER_BATCH_MAX)


# Unregistration


class Unregistered(msgspec.Struct, frozen=True):
    """changed: False for a refusal or a dry run."""

    outcome: Outcome
    changed: bool = False


def unregister(image: ClusterImage, broker_id: int, *, validate_only: bool = False) -> Decision[Unregistered]:
    """Unregister a broker permanently, if it is fenced and has no replicas.

    The replicas of a broker that is lost must be reassigned first.  A partition whose only replica was on this broker
    has lost its records.  An operator must decide about its topic; the loss must not be a side effect of unregistering.
    """
    broker = image.brokers.get(broker_id)
    refusal = None
    if broker is None:
        refusal = Outcome(
            ApiError.BROKER_ID_NOT_REGISTERED, f"no broker {broker_id} is registered", "kctl brokers list"
        )
    elif not broker.fenced:
        text = f"broker {broker_id} is unfenced"
        refusal = Outcome(ApiError.BROKER_IN_USE, text, "stop it, then wait until it is fenced")
    elif image.replica_count(broker_id):
        names = sorted(image.topics[topic_id].name for topic_id in image.hostings(broker_id))
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more topics" if len(names) > 3 else "")
        count = image.replica_count(broker_id)
        text = f"broker {broker_id} has {count} {'replica' if count == 1 else 'replicas'} of {shown}"
        step = f"kctl reassign generate --drain {broker_id} | kctl reassign start --plan - --wait"
        refusal = Outcome(ApiError.BROKER_IN_USE, text, step)
    if refusal is not None or broker is None or validate_only:
        return Decision(Unregistered(refusal or OK))
    records: list[Record] = [UnregisterBroker(broker_id, broker.epoch)]
    own = image.config(ConfigScope.BROKER, str(broker_id))
    records += [Config(ConfigScope.BROKER, str(broker_id), key, None) for key in sorted(own)]
    return Decision(Unregistered(OK, changed=True), tuple(records))


# Heartbeats


def heartbeat(
    image: ClusterImage, request: Heartbeat, *, others_applied: int, again: bool = False
) -> Decision[HeartbeatAnswer]:
    """Decide a heartbeat.

    others_applied: the lowest (exclusive) end of metadata that any other unfenced broker has applied.
    again: this heartbeat has been decided before; elections that remain are then decided as well.
    """
    refusal = check_broker(image, request.broker_id, request.broker_epoch)
    if refusal is not None:
        return Decision(HeartbeatAnswer(refusal))
    broker = image.brokers[request.broker_id]
    strange = set(request.directories_offline).difference(broker.directory_ids)
    if strange:
        text = f"directory {min(strange)} is not one of broker {broker.broker_id}"
        return Decision(HeartbeatAnswer(Outcome(ApiError.INVALID_REQUEST, text)))
    failed = tuple(sorted(set(request.directories_offline).difference(broker.directories_offline)))
    if failed:
        head = BrokerChange(broker.broker_id, broker.epoch, directories_offline=failed)
        changes = departures(
            image, broker.broker_id, Reason.DIRECTORY_OFFLINE, concerned=lambda replica: replica.directory_id in failed
        )
        return Decision(_answer(image, broker, request), batch_with_head(head, changes)[0], more=True)
    if request.want_shutdown:
        return _shut_down(image, broker, request, others_applied)
    if request.want_fence:
        decided = fence(image, broker.broker_id)
        return Decision(_answer(image, broker, request), decided.records, more=bool(decided.records))
    if broker.fenced and not broker.in_controlled_shutdown and request.applied_offset > broker.last_offset:
        head = BrokerChange(broker.broker_id, broker.epoch, fenced=False)
        found = elections(image, cause_offset=image.end_offset, broker_id=broker.broker_id, joining=True)
        return Decision(_answer(image, broker, request), (head, *found[: RECORDS_PER_BATCH_MAX - 1]), more=True)
    if again and broker.active:
        left = elections(image, cause_offset=broker.last_offset, broker_id=broker.broker_id)
        return Decision(_answer(image, broker, request), tuple(left), more=bool(left))
    return Decision(_answer(image, broker, request))


def _answer(
    image: ClusterImage, broker: BrokerImage, request: Heartbeat, should_shutdown: bool = False
) -> HeartbeatAnswer:
    return HeartbeatAnswer(
        OK,
        fenced=broker.fenced,
        caught_up=request.applied_offset > broker.epoch,
        should_shutdown=should_shutdown,
        leaders_left=image.leader_count(broker.broker_id),
    )


def _shut_down(
    image: ClusterImage, broker: BrokerImage, request: Heartbeat, others_applied: int
) -> Decision[HeartbeatAnswer]:
    """Decide a step of a controlled shutdown.

    First the broker loses its leaderships, and leaves the ISRs of which it is not the last member.  Once every other
    unfenced broker has applied these changes, none sends clients to this broker.  Then it is fenced and may stop.
    Brokers apply whole batches, so a broker that has applied the last record about this broker has applied these
    changes as well.
    """
    if broker.fenced:
        return Decision(_answer(image, broker, request, should_shutdown=True))
    changes = departures(image, broker.broker_id, Reason.CONTROLLED_SHUTDOWN)
    if changes or not broker.in_controlled_shutdown:
        # Each batch of changes begins with this record, which is their cause.  The others must have applied its offset.
        head = BrokerChange(broker.broker_id, broker.epoch, in_controlled_shutdown=True)
        return Decision(_answer(image, broker, request), batch_with_head(head, changes)[0], more=True)
    if image.leader_count(broker.broker_id) == 0 and others_applied > broker.last_offset:
        gone = BrokerChange(broker.broker_id, broker.epoch, fenced=True)
        return Decision(_answer(image, broker, request), (gone,), more=True)
    return Decision(_answer(image, broker, request))


# Producer ids


def allocate_producer_ids(image: ClusterImage, broker_id: int, broker_epoch: int) -> Decision[ProducerIdBlock]:
    """Allocate the next block of producer ids to a broker.  No block is allocated twice, even if an answer was lost."""
    refusal = check_broker(image, broker_id, broker_epoch)
    if refusal is not None:
        return Decision(ProducerIdBlock(refusal))
    first = image.next_producer_id
    if first > _INT64_MAX - PRODUCER_ID_BLOCK:
        return Decision(ProducerIdBlock(Outcome(ApiError.POLICY_VIOLATION, "all producer ids are allocated")))
    record = ProducerIds(broker_id, broker_epoch, first + PRODUCER_ID_BLOCK)
    return Decision(ProducerIdBlock(OK, first, PRODUCER_ID_BLOCK), (record,))
