"""Numbers, lists and partitions in words, the same in all of kctl's output."""

from __future__ import annotations

from collections.abc import Iterable

from quorumlog.kctl.metadata_diff import ranges

SHOWN_MAX = 8

Key = tuple[str, int]


def named(partitions: Iterable[Key]) -> str:
    """Partitions in few words: t-0..4, u-1 and 17 more; only counted where they are scattered."""
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


def quoted(text: str) -> str:
    """Words of somebody else in double quotes, which they cannot close."""
    return '"' + text.replace('"', "'") + '"'


def listed(values: Iterable[object], word: str = "and") -> str:
    """1, 2 and 3."""
    *most, last = [str(value) for value in values] or ["none"]
    return f"{', '.join(most)} {word} {last}" if most else last


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """1 voter, 2 voters."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"
