"""The names of transaction scopes, and the transactional ids of their producers.  Imports nothing.

The producer of `attempt` in `scope` has the transactional id `__scope/SCOPE/ATTEMPT`.  Ids with this prefix are
reserved: an ordinary InitProducerId refuses them, so no other id is treated as an id of a scope, even if it has
slashes.  An attempt has no slash, so the last slash ends the scope, which may have slashes of its own.

The coordinator of a scope coordinates all its producers.  So an id with the prefix is placed by its scope alone, and
every other id by its whole text.  `coordinator_key` is the id to look up (FindCoordinator) before a producer exists.
"""

from __future__ import annotations

PREFIX = "__scope/"
SCOPE_MAX_BYTES = 249
"""Maximum size of a scope's name in UTF-8; the same as for a topic."""
ATTEMPT_MAX_BYTES = 64
"""Maximum size of an attempt's name in UTF-8.  It is small because one record has the names of all winners."""
LABEL_MAX_BYTES = 249
"""Maximum size of the name of an owner or a run in UTF-8."""


def is_reserved(transactional_id: str) -> bool:
    """Return whether only scopes may have such an id."""
    return transactional_id.startswith(PREFIX)


def transactional_id(scope: str, attempt: str) -> str:
    """Return the transactional id of a producer of a scope."""
    return f"{PREFIX}{scope}/{attempt}"


def coordinator_key(scope: str) -> str:
    """Return the key by which FindCoordinator finds the coordinator of a scope."""
    return transactional_id(scope, "")


def placement_key(transactional_id: str) -> str:
    """Return the text whose hash chooses the coordinator of a transactional id: its scope, if it has one."""
    if not is_reserved(transactional_id):
        return transactional_id
    scope, slash, _ = transactional_id[len(PREFIX) :].rpartition("/")
    return scope if slash else transactional_id


def scope_of(transactional_id: str) -> str | None:
    """Return the scope of the producer with this id; None if it is not an id of a scope's producer."""
    if not is_reserved(transactional_id):
        return None
    scope, _, attempt = transactional_id[len(PREFIX) :].rpartition("/")
    return scope if scope and attempt else None


def attempt_of(transactional_id: str) -> str:
    """Return the attempt of an id that `scope_of` accepts."""
    return transactional_id.rpartition("/")[2]


def label_problem(what: str, text: str, max_bytes: int = LABEL_MAX_BYTES) -> str:
    """Return the problem of the name of a scope, an owner or a run; an empty string if the name is valid."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if not 0 < size <= max_bytes:
        return f"the {what} has {size} bytes, not 1 to {max_bytes}"
    if any(ord(each) < 0x20 or 0x7F <= ord(each) < 0xA0 or 0xD800 <= ord(each) < 0xE000 for each in text):
        return f"the {what} has a control character"
    return ""


def attempt_problem(text: str) -> str:
    """Return the problem of the name of an attempt; an empty string if the name is valid."""
    if "/" in text:
        return "the attempt has a slash"
    return label_problem("attempt", text, ATTEMPT_MAX_BYTES)
