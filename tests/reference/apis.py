"""The Kafka requests that a broker serves, with their versions: `broker.kafka.handlers.HANDLERS`."""

from __future__ import annotations

from typing import Final

from broker.kafka.handlers import HANDLERS, Handler, Operation
from quorumlog.wire.kafka.codec import Api
from tests.reference.markdown import table

FIRST_OWN_KEY: Final = 10_000
_SECURITY: Final = ("ACLS", "DELEGATION_TOKEN", "SCRAM_CREDENTIALS", "CLIENT_QUOTAS")
_NOTES: Final = {
    Api.PRODUCE: "ApiVersions reports 0 as the first version, because some clients turn compression off otherwise",
    Api.INIT_PRODUCER_ID: "version 6 is not served: there is no two-phase commit (KIP-939)",
}


def requests() -> str:
    rows = []
    for api, handler in sorted(HANDLERS.items()):
        rows.append((_name(api), str(int(api)), _versions(handler), _note(api, handler)))
    return table(("request", "key", "versions", "note"), rows)


def _name(api: Api) -> str:
    return "".join(part.capitalize() for part in api.name.split("_"))


def _versions(handler: Handler) -> str:
    return str(handler.low) if handler.low == handler.offered else f"{handler.low} to {handler.offered}"


def _note(api: Api, handler: Handler) -> str:
    notes = [_NOTES[api]] if api in _NOTES else []
    if any(word in api.name for word in _SECURITY):
        notes.append("answered as by a broker without security and quotas; changes are refused")
    if api >= FIRST_OWN_KEY:
        notes.append("not a request of Kafka")
    if handler.access is not None and handler.access.operation is Operation.CLUSTER_ACTION:
        notes.append("sent by brokers only")
    if not handler.is_listed:
        notes.append("not listed in ApiVersions")
    return "; ".join(notes)
