"""The settings of one process: `quorumlog.runtime.config.KEYS`."""

from __future__ import annotations

from quorumlog.runtime.config import BOTH, KEYS
from quorumlog.runtime.settings import BOOLEAN, Key, render
from tests.reference.markdown import code, span, table, with_meaning


def settings() -> str:
    head = ("key", "flag", "environment", "program", "default", "values", "meaning")
    return table(head, map(_row, KEYS))


def _row(key: Key) -> tuple[str, ...]:
    programs = "both" if key.roles == BOTH else ", ".join(key.roles)
    default = with_meaning(key.name, render(key.default))
    return (code(key.name), _flags(key), code(key.environment), programs, default, _values(key), key.help)


def _flags(key: Key) -> str:
    flags = dict(key.flags)
    if len(set(flags.values())) <= 1:
        return code(next(iter(flags.values()), ""))
    return ", ".join(f"`{flag}` ({program})" for program, flag in key.flags)


def _values(key: Key) -> str:
    if key.kind is BOOLEAN:
        return "`true`, `false`"
    if key.minimum is not None and key.maximum is not None:
        return span(key.minimum, key.maximum)
    return key.kind.name
