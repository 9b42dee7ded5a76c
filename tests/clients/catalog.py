"""The programs: how each is built, and the command that runs it.

Builds and downloads go to `.dev/clients`; each is made once for each version of its sources.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.clients.outcomes import Skipped
from tests.clients.running import HOME

SOURCES: Final = Path(__file__).resolve().parent / "programs"
BUILD_TIMEOUT_S = 1800.0
SHOWN_LINES = 5
GENTLY = ("nice", "-n", "10")
JAVA: Final = ("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp")


@dataclass(frozen=True)
class Program:
    """prepare: builds it if necessary, and returns its command.  Raises Skipped if that is not possible here.

    is_python: it needs only packages that are installed for the tests; kcat also needs its program.
    without: rows whose names contain one of these words do not apply to it.
    """

    name: str
    language: str
    prepare: Callable[[], list[str]]
    is_python: bool = False
    without: tuple[str, ...] = ()

    def has(self, row: str) -> bool:
        return not any(word in row for word in self.without)


@dataclass(frozen=True)
class Jars:
    """The jars of Apache Kafka: its clients, its tools and its server."""

    pom: Path = SOURCES / "java" / "pom.xml"

    @property
    def version(self) -> str:
        found = re.search(r"<kafka.version>(.*?)<", self.pom.read_text())
        assert found
        return found[1]

    def folder(self) -> Path:
        """Return the folder with the jars, after a download if they are missing."""
        folder = HOME / "java" / "libs"
        command = ["mvn", "-q", "-B", "-f", str(self.pom), "dependency:copy-dependencies"]
        _build("java", [self.pom], [*command, f"-DoutputDirectory={folder}"])
        return folder


JARS: Final = Jars()


def _needs(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            raise Skipped(f"{tool} is not installed")


def _build(name: str, sources: list[Path], command: list[str], environment: dict[str, str] | None = None) -> None:
    """Run `command` unless it has succeeded for the same contents of `sources`.

    Raises:
        Skipped: the program to run is not installed, or `command` failed.
    """
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(sources))).hexdigest()
    stamp = HOME / f"{name}.built"
    if stamp.exists() and stamp.read_text() == digest:
        return
    _needs(command[0])
    HOME.mkdir(parents=True, exist_ok=True)
    print(f"building {name} in {HOME}", file=sys.stderr, flush=True)
    done = subprocess.run(
        [*GENTLY, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        env={**os.environ, **(environment or {})},
    )
    if done.returncode:
        last = " | ".join(done.stdout.strip().splitlines()[-SHOWN_LINES:])
        raise Skipped(f"{name} could not be built: {last}")
    stamp.write_text(digest)


def java() -> list[str]:
    """Return the beginning of a command that runs a class of Kafka's jars."""
    _needs("java")
    return [*JAVA, f"{JARS.folder()}/*"]


def _python(module: str) -> Callable[[], list[str]]:
    return lambda: [sys.executable, "-m", f"tests.clients.programs.python.{module}"]


def _kcat() -> list[str]:
    _needs("kcat")
    return _python("kcat_program")()


def _java() -> list[str]:
    sources = [SOURCES / "java" / f"{name}.java" for name in ("JavaProgram", "NewerProgram")]
    return _java_program("java", JARS.folder(), sources)


def _older_java(release: str) -> Callable[[], list[str]]:
    """Return a function that builds the Java program with an older release of the clients."""

    def prepare() -> list[str]:
        name, folder = f"java-{release}", SOURCES / "java"
        libraries, pom = HOME / name / "libs", folder / "older" / "pom.xml"
        download = ["mvn", "-q", "-B", "-f", str(pom), f"-Dkafka.version={release}", "dependency:copy-dependencies"]
        _build(name, [pom], [*download, f"-DoutputDirectory={libraries}"])
        return _java_program(name, libraries, [folder / "JavaProgram.java"])

    return prepare


def _java_program(name: str, libraries: Path, sources: list[Path]) -> list[str]:
    """Compile sources with these libraries; return the command that runs the last one."""
    _needs("java")
    classes = HOME / name / "classes"
    compile_all = ["javac", "-cp", f"{libraries}/*", "-d", str(classes), *map(str, sources)]
    _build(f"{name}-program", sources, compile_all)
    command = [*JAVA, f"{libraries}/*:{classes}", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    return [*command, sources[-1].stem]


def _go(name: str) -> Callable[[], list[str]]:
    def prepare() -> list[str]:
        folder, binary = SOURCES / "go", HOME / "go" / name
        sources = [folder / "go.mod", folder / "go.sum", *folder.rglob("*.go")]
        command = ["go", "build", "-C", str(folder), "-p", "1", "-o", str(binary), f"./{name}"]
        _build(name, sources, command, {"GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local"})
        return [str(binary)]

    return prepare


def _node() -> list[str]:
    _needs("node")
    folder, home = SOURCES / "node", HOME / "node"
    files = [folder / name for name in ("package.json", "package-lock.json", ".npmrc", "kafkajs_program.js")]
    home.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copy(file, home)
    _build("kafkajs", files[:2], ["npm", "ci", "--prefix", str(home), "--ignore-scripts", "--no-audit", "--no-fund"])
    return ["node", str(home / "kafkajs_program.js")]


def _rust() -> list[str]:
    folder, home = SOURCES / "rust", HOME / "rust"
    sources = [folder / "Cargo.toml", folder / "Cargo.lock", folder / "src" / "main.rs"]
    command = ["cargo", "build", "--release", "-j1", "--locked", "--manifest-path", str(folder / "Cargo.toml")]
    _build("rdkafka", sources, command, {"CARGO_TARGET_DIR": str(home)})
    return [str(home / "release" / "rdkafka-program")]


OLDER_JAVA: Final = ("2.8.2", "3.4.1", "3.8.1")
"""Releases of the Java clients that are still in use: 3.4.1 is that of Spark 3.5.  Those before 3.9 read the answer to
ApiVersions differently."""
NEWER_ROWS: Final = ("new protocol", "admin", "share groups", "dead letters")
PROGRAMS: Final = (
    Program("confluent-kafka", "Python", _python("confluent_program"), is_python=True),
    Program("kafka-python", "Python", _python("kafka_python_program"), is_python=True),
    Program("aiokafka", "Python", _python("aiokafka_program"), is_python=True),
    Program("kcat", "C", _kcat, is_python=True),
    Program("kafka-clients", "Java", _java),
    *(Program(f"kafka-clients {release}", "Java", _older_java(release), without=NEWER_ROWS) for release in OLDER_JAVA),
    Program("franz-go", "Go", _go("franzgo")),
    Program("sarama", "Go", _go("sarama")),
    Program("kafkajs", "JavaScript", _node),
    Program("rust-rdkafka", "Rust", _rust),
)
