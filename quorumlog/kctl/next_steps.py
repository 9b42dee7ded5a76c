"""The next step for errors that do not name one, by error code."""

from __future__ import annotations

_NEXT = {
    "CORRUPT_MESSAGE": "send the record again; if that fails as well: kctl doctor",
    "INVALID_CONFIG": "kctl configs get --topic T, --broker ID or --cluster shows the keys and their allowed values",
    "INVALID_RECORD": "correct the record; the records before it were written",
    "INVALID_TOPIC_EXCEPTION": "use 1 to 249 letters, digits, dots, dashes and underscores",
    "IO_ERROR": "check the file or disk named in the message",
    "MESSAGE_TOO_LARGE": "split the record, or raise max.message.bytes of the topic: kctl configs set",
    "RECORD_LIST_TOO_LARGE": "split the record, or raise max.message.bytes of the topic: kctl configs set",
    "TOPIC_ALREADY_EXISTS": "kctl topics describe shows the topic that exists; use another name, or delete it first",
    "UNKNOWN_TOPIC_OR_PARTITION": "kctl topics list",
}


def next_step_of(code: str) -> str:
    """Return the general next step for an error code, or an empty string."""
    return _NEXT.get(code, "")
