"""Numbers, times, lists and partitions as text for people."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from datetime import UTC, datetime
from shlex import quote
from uuid import UUID

SHOWN_MAX = 8
"""Maximum number of topics, directories or causes that one line names; the others are only counted."""

_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

Key = tuple[str, int]
"""A partition: topic name and index."""


def named(partitions: Iterable[Key]) -> str:
    """Return the names of partitions in short form: `t-0..4, u-1 and 17 more`.

    The partitions of a topic are only counted if their indexes are scattered.
    """
    by_topic: dict[str, list[int]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(index)
    shown = []
    for topic in sorted(by_topic)[:SHOWN_MAX]:
        text = ranges(by_topic[topic])
        is_short = text.count(",") < SHOWN_MAX
        shown.append(f"{topic}-{text}" if is_short else f"{topic} ({counted(len(by_topic[topic]), 'partition')})")
    rest = sum(len(by_topic[topic]) for topic in sorted(by_topic)[SHOWN_MAX:])
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def ranges(numbers: Iterable[int]) -> str:
    """Return distinct numbers in short form: `0..2` for 0, 1, 2, and `{0..2,5}` for 0, 1, 2, 5."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    shown = ["..".join(map(str, dict.fromkeys(part))) for part in parts]
    return shown[0] if len(shown) == 1 else "{" + ",".join(shown) + "}"


def about(command: str, *names: str, options: str = "") -> str:
    """Return the command for names that clients choose: each is one word of a shell command, and never an option.

    options: begin with a space.
    """
    words = " ".join(map(quote, names))
    if any(name.startswith("-") for name in names):
        return f"{command}{options} -- {words}"
    return f"{command} {words}{options}"


def is_unicode(text: str) -> bool:
    """Return whether a text can be encoded.  Half of a surrogate pair cannot; JSON may contain one as an escape."""
    return text.isascii() or not any(0xD800 <= ord(character) <= 0xDFFF for character in text)


def printable(text: str, keep: str = "") -> str:
    """Return text with escapes instead of control characters, which could forge a line or control a terminal.

    keep: characters that stay.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else escaped(each) for each in text)


def escaped(character: str) -> str:
    """Return the escape of a character."""
    code = ord(character)
    return _ESCAPES.get(character) or (f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}")


def quoted(text: str) -> str:
    """Return text from an untrusted source in double quotes, with its own double quotes replaced."""
    return '"' + text.replace('"', "'") + '"'


def listed(values: Iterable[object], word: str = "and") -> str:
    """Return a list as text: `1, 2 and 3`; `none` for an empty one."""
    *most, last = [str(value) for value in values] or ["none"]
    return f"{', '.join(most)} {word} {last}" if most else last


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: `1 voter`, `2 voters`."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


def uuid_text(uuid: UUID) -> str:
    """Return a uuid as 22 characters of base64, as `kctl` shows topic and directory ids."""
    return base64.urlsafe_b64encode(uuid.bytes).rstrip(b"=").decode()


def rfc3339(wall_ms: int) -> str:
    """Return milliseconds since 1970 as RFC 3339 in UTC."""
    moment = datetime.fromtimestamp(wall_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{wall_ms % 1000:03d}Z"
