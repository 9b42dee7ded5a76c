"""Settings by dotted key: their sources, their parsing, and the messages for invalid values.

The sources are, weakest first: the default, a TOML file, the environment, `--set key=value`, a flag.  A stronger source
replaces the whole value of a weaker one (lists are not merged).  Every given value is checked, even if a stronger
source replaces it, and all problems are reported together.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quorumlog.errors import ConfigError
from quorumlog.kafka_names import topic_config

ENV_PREFIX = "QUORUMLOG_"

_SERVICE_LINK = re.compile(r"QUORUMLOG_(.*_)?(SERVICE_(HOST|PORT)(_.*)?|PORT(_[0-9]+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?)")
"""Variables that Kubernetes sets in every container for a service named quorumlog…; not ours."""

FILE_MAX_BYTES = 1 << 20
NEAR_MIN = 0.6
"""Similarity from which a valid name is suggested instead of an unknown one."""

_OF_KAFKA = {
    "advertised.listeners": "kafka.advertise",
    "broker.id": "node.id",
    "controller.quorum.bootstrap.servers": "quorum.controllers",
    "controller.quorum.voters": "quorum.initial.voters",
    "inter.broker.listener.name": "kafka.inter.broker",
    "listeners": "kafka.listen",
    "log.dir": "data.dirs",
    "log.dirs": "data.dirs",
}
"""Kafka's names of some of these settings."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of value.  `parse` takes the text of a flag or variable, and raises ValueError with the problem.

    toml: the TOML type of the value; text that needs parsing is `str`; a list may be given as text or as an array.
    """

    name: str
    parse: Callable[[str], Any]
    toml: type
    is_list: bool = False
    metavar: str = ""

    @property
    def shown(self) -> str:
        """Return the placeholder for a value in a usage line."""
        return self.metavar or self.name


@dataclass(frozen=True, slots=True)
class Key:
    """One setting.  roles: the programs that have it.  flags: its command line flag in each program."""

    name: str
    kind: Kind
    default: Any
    help: str
    roles: tuple[str, ...]
    flags: tuple[tuple[str, str], ...] = ()  # (role, flag)
    minimum: int | None = None
    maximum: int | None = None

    @property
    def environment(self) -> str:
        return ENV_PREFIX + self.name.upper().replace(".", "_")

    def flag(self, role: str) -> str | None:
        """Return the flag of this key in `role`'s command line; None if it has no flag there."""
        return dict(self.flags).get(role)

    @property
    def allowed(self) -> str:
        """Return the permitted values, for messages."""
        if self.minimum is None:
            return self.kind.name
        return f"{self.kind.name} {self.minimum}..{self.maximum}"


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and its source."""

    value: Any
    source: str


def _parse_int(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text.strip()):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _parse_bool(text: str) -> bool:
    match text.strip().lower():
        case "true":
            return True
        case "false":
            return False
    raise ValueError(f"{text!r} is neither true nor false")


def _parse_text(text: str) -> str:
    if not text.strip() or any(ord(character) < 32 for character in text):
        raise ValueError("it is empty or has control characters")
    return text


INTEGER = Kind("a whole number", _parse_int, int, metavar="N")
BOOLEAN = Kind("true or false", _parse_bool, bool)
TEXT = Kind("text", _parse_text, str, metavar="NAME")


def choice(*words: str) -> Kind:
    """Return the kind of a value that is one of `words`."""

    def parse(text: str) -> str:
        if text.strip() not in words:
            raise ValueError(f"{text!r} is unknown")
        return text.strip()

    return Kind(f"one of {', '.join(words)}", parse, str, metavar="|".join(words))


def text_kind(name: str, parse: Callable[[str], Any], metavar: str = "") -> Kind:
    """Return the kind of a text with its own syntax."""
    return Kind(name, parse, str, metavar=metavar)


def list_kind(name: str, parse: Callable[[Iterable[str]], Any]) -> Kind:
    """Return the kind of a list, given as text with commas or as a TOML array of strings."""
    return Kind(name, lambda text: parse([text]), str, is_list=True)


class Settings:
    """Collects the values and problems of one program's keys."""

    def __init__(self, keys: Sequence[Key], role: str, record_keys: Collection[str]) -> None:
        self._keys = {key.name: key for key in keys}
        self._role = role
        self._record_keys = record_keys
        self.problems: list[str] = []
        self.refused: set[str] = set()  # keys with an invalid value
        self.values: dict[str, Setting] = {
            key.name: Setting(key.default, "default") for key in keys if role in key.roles
        }

    def add_file(self, path: str) -> None:
        """Read a TOML file; nested tables flatten to dotted keys."""
        try:
            with Path(path).open("rb") as file:
                data = file.read(FILE_MAX_BYTES + 1)
            if len(data) > FILE_MAX_BYTES:
                raise ValueError(f"larger than {FILE_MAX_BYTES} bytes")
            document = tomllib.loads(data.decode())
        except OSError as error:
            self.problems.append(f"config file {path}: {error.strerror or error}")
            return
        except (ValueError, RecursionError) as error:  # TOML and UTF-8 errors are ValueErrors
            self.problems.append(f"config file {path}: {error or 'nested too deeply'}")
            return
        source = f"file {path}"
        seen: set[str] = set()
        for name, value in _flatten(document, ""):
            if name in seen:
                self.problems.append(f"{source}: {name} is set twice")
            seen.add(name)
            if (key := self._known(name, source)) is not None:
                self._set_typed(key, value, source)

    def add_environment(self, environ: Mapping[str, str]) -> None:
        """Read every QUORUMLOG_… variable."""
        names = {key.environment: key.name for key in self._keys.values()}
        names |= {ENV_PREFIX + name.upper().replace(".", "_"): name for name in self._record_keys}
        for variable in sorted(environ):
            if not variable.startswith(ENV_PREFIX) or _SERVICE_LINK.fullmatch(variable):
                continue
            source = f"environment {variable}"
            if variable not in names:
                key_name = variable.removeprefix(ENV_PREFIX).lower().replace("_", ".")
                near = self._nearest(key_name)
                shown = near and ENV_PREFIX + near.upper().replace(".", "_")
                self.problems.append(f"{source}: unknown setting{f'; did you mean {shown}?' if shown else ''}")
            elif (key := self._known(names[variable], source)) is not None:
                self._set_text(key, environ[variable], source)

    def add_assignments(self, assignments: Iterable[str]) -> None:
        """Read the `key=value` of each `--set`."""
        for assignment in assignments:
            name, equals, text = assignment.partition("=")
            if not equals:
                self.problems.append(f"--set {assignment}: not key=value")
            elif (key := self._known(name.strip(), "--set")) is not None:
                self._set_text(key, text, "--set")

    def add_flag(self, key: Key, flag: str, texts: Sequence[str]) -> None:
        """Read the values of a flag; only the flag of a list may be repeated."""
        if len(texts) > 1 and not key.kind.is_list:
            self.problems.append(f"{flag} is given {len(texts)} times")
        self._set_text(key, ",".join(texts) if key.kind.is_list else texts[-1], flag)

    def _known(self, name: str, source: str) -> Key | None:
        key = self._keys.get(name)
        if key is not None and self._role in key.roles:
            return key
        if key is not None:
            self.problems.append(f"{source}: {name} is a setting of {' and '.join(key.roles)}, not of {self._role}")
        elif name in self._record_keys:
            self.problems.append(
                f"{source}: {name} is not a setting of a node, but a config in the metadata log "
                f"(next: kctl configs set {name}=…, with --cluster, --topic, --broker or --group)"
            )
        else:
            near = self._nearest(name)
            self.problems.append(f"{source}: unknown key {name!r}{f'; did you mean {near}?' if near else ''}")
        return None

    def _nearest(self, name: str) -> str | None:
        """Return the most similar key; None if no key is similar."""
        known = {*(key.name for key in self._keys.values() if self._role in key.roles), *self._record_keys}
        if (named := _OF_KAFKA.get(name) or topic_config(name)) in known:
            return named
        near = difflib.get_close_matches(name, sorted(known), 1, NEAR_MIN)
        return near[0] if near else None

    def _set_typed(self, key: Key, value: Any, source: str) -> None:
        if key.kind.is_list and isinstance(value, list) and all(isinstance(item, str) for item in value):
            if value:
                self._set_text(key, ",".join(value), source)
            else:
                self.values[key.name] = Setting((), source)
        elif type(value) is not key.kind.toml:
            self.refused.add(key.name)
            self.problems.append(f"{source}: {key.name} = {value!r} has the wrong type; expected: {key.allowed}")
        elif isinstance(value, str):
            self._set_text(key, value, source)
        else:
            self._set_value(key, value, source)

    def _set_text(self, key: Key, text: str, source: str) -> None:
        try:
            value = key.kind.parse(_text(text))
        except ValueError as error:
            self.refused.add(key.name)
            self.problems.append(f"{source}: {key.name}: {error}; expected: {key.allowed}")
            return
        self._set_value(key, value, source)

    def _set_value(self, key: Key, value: Any, source: str) -> None:
        if key.minimum is not None and key.maximum is not None and not key.minimum <= value <= key.maximum:
            self.refused.add(key.name)
            self.problems.append(f"{source}: {key.name} = {value} is out of range {key.minimum}..{key.maximum}")
            return
        self.values[key.name] = Setting(value, source)

    def check(self) -> None:
        """Raise all problems so far in one error.

        Raises:
            ConfigError: with all problems.
        """
        if self.problems:
            raise ConfigError(
                *self.problems, next_step=f"correct the above; `{self._role} config` prints every setting"
            )


def _text(text: str) -> str:
    """Return `text` if it can be printed and sent.

    Raises:
        ValueError: the argument or variable has bytes that are not UTF-8, which Python represents as surrogates.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{text!r} is not valid UTF-8") from None
    return text


def _flatten(table: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def render(value: Any) -> str:
    """Return a value as it is written on a command line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return ",".join(str(item) for item in value)
    return str(value)


def render_toml(key: Key, setting: Setting) -> str:
    """Return a line of a config file, with its source as a comment; commented out if there is no value."""
    if setting.value is None and key.kind.name.endswith(" or off"):
        text = '"off"'
    elif setting.value is None:
        return f"# {key.name} =  # {setting.source}"
    elif isinstance(setting.value, bool | int):
        text = render(setting.value)
    elif key.kind.is_list:
        text = "[" + ", ".join(_quote(str(item)) for item in setting.value) + "]"
    else:
        text = _quote(str(setting.value))
    return f"{key.name} = {text}  # {setting.source}"


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
