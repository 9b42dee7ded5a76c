"""`./dev` on incomplete machines: it installs what it may, or names in one line what to install."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TOOLS = ("sh", "dirname", "cat", "cksum", "sed", "head", "readlink", "mktemp", "mkdir", "rm", "chmod")
SHELL = shutil.which("dash") or "/bin/sh"
MARK = "mark." + "quiet"


class Machine:
    """A copy of the script in its own folder, which has only the tools that a test adds."""

    def __init__(self, home: Path, user: int) -> None:
        self.home, self.tools = home, home / "tools"
        self.tools.mkdir()
        for name in ("dev", "requirements.lock", "pyproject.toml"):
            shutil.copy(ROOT / name, home / name)
        for name in TOOLS:
            found = shutil.which(name)
            assert found is not None, name
            (self.tools / name).symlink_to(found)
        self.tool("id", f"echo {user}")
        self.tool("cc", "exit 0")
        self.headers = home / "Python.h"
        self.headers.touch()
        script = (ROOT / "dev").read_text()
        assert "/usr/lib/jvm/" in script
        (home / "dev").write_text(script.replace("/usr/lib/jvm/", f"{home}/jvm/"))

    def tool(self, name: str, script: str) -> None:
        path = self.tools / name
        path.write_text(f"#!{SHELL}\n{script}\n")
        path.chmod(0o755)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SHELL, str(self.home / "dev"), *arguments],
            capture_output=True, text=True, check=False, timeout=60, env={"PATH": str(self.tools)},
        )  # fmt: skip

    @property
    def log(self) -> list[str]:
        path = self.home / "log"
        return path.read_text().splitlines() if path.exists() else []

    def python(self, version_is_good: str = "exit 0", ensurepip: str = "exit 0", ignoring: str = "exit 0") -> str:
        """A python3 that records its arguments, and creates environments from itself.

        ignoring: its action as pytest without the quiet tests and with a folder to ignore.
        """
        return f"""
case "$*" in
*sys.version_info\\ *) {version_is_good} ;;
*ensurepip*) {ensurepip} ;;
*Python.h*) echo "{self.headers}" ;;
*'("CC")'*) echo "cc -pthread" ;;
*python%d.%d-dev*) echo python3.11-dev ;;
*python%d*) echo python3.11-venv ;;
*"-m venv"*) echo "python $*" >>"{self.home}/log"
    for folder in "$@"; do :; done
    mkdir -p "$folder/bin"; cat "$0" >"$folder/bin/python"; chmod 755 "$folder/bin/python" ;;
*--ignore=*not\\ quiet*) echo "python $*" >>"{self.home}/log"; {ignoring} ;;
*) echo "python $*" >>"{self.home}/log" ;;
esac"""


@pytest.fixture
def user(tmp_path: Path) -> Machine:
    return Machine(tmp_path, 1000)


@pytest.fixture
def root(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path, 0)
    machine.tool("apt-cache", '[ "$2" = openjdk-17-jre-headless ]')
    return machine


GOOD_JAVA = "echo 'openjdk version \"17.0.1\" 2021-10-19' >&2"


def test_dev_prints_its_usage_and_refuses_unknown_commands(user: Machine) -> None:
    assert user.run("help").returncode == 0
    assert "demo" in user.run("help").stdout
    wrong = user.run("nonsense")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert user.run().returncode == 2


@pytest.mark.parametrize(
    ("python", "said"),
    [
        (None, "Python 3.11 or newer is needed"),
        ({"version_is_good": "exit 1"}, "Python 3.11 or newer is needed"),
        ({"ensurepip": "exit 1"}, "apt-get install python3.11-venv"),
    ],
)
def test_a_missing_python_is_reported_in_one_line(user: Machine, python: dict[str, str] | None, said: str) -> None:
    if python is not None:
        user.tool("python3", user.python(**python))
    done = user.run("test")
    assert done.returncode == 1
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert user.log == []


def test_a_missing_java_is_reported(user: Machine) -> None:
    user.tool("python3", user.python())
    user.tool("java", "echo 'openjdk version \"11.0.2\" 2019-01-15' >&2")
    done = user.run("test")
    assert done.returncode == 1
    assert "Java 17+" in done.stderr.splitlines()[-1]
    (user.home / "jvm" / "17" / "bin").mkdir(parents=True)
    (user.tools / "java").rename(user.home / "java-11")
    user.tool("java", GOOD_JAVA)
    (user.tools / "java").rename(user.home / "jvm" / "17" / "bin" / "java")  # a Java outside the PATH is also found
    assert user.run("test").returncode == 0


@pytest.mark.parametrize("missing", ["tools/cc", "Python.h"])
def test_a_missing_compiler_or_headers_are_reported(user: Machine, missing: str) -> None:
    user.tool("python3", user.python())
    user.tool("java", GOOD_JAVA)
    (user.home / missing).unlink()
    done = user.run("test")
    assert done.returncode == 1
    assert "apt-get install gcc libc6-dev python3.11-dev" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert user.log == []


def test_root_installs_a_compiler_and_headers(root: Machine) -> None:
    root.headers.unlink()
    (root.tools / "cc").unlink()
    root.tool("python3", root.python())
    root.tool("java", GOOD_JAVA)
    root.tool(
        "apt-get",
        f"""echo "apt-get $*" >>"{root.home}/log"
case "$*" in *install*gcc*) echo >"{root.headers}" ;; esac""",
    )
    assert root.run("setup").returncode == 0
    assert "apt-get install -y -qq --no-install-recommends gcc libc6-dev python3.11-dev" in root.log


@pytest.mark.parametrize("changed", ["wire/native/one.c", "runtime/native/two.h", "../hatch_build.py"])
def test_the_extensions_are_compiled_again_after_a_change_of_a_source(user: Machine, changed: str) -> None:
    user.tool("python3", user.python())
    user.tool("java", GOOD_JAVA)
    package = user.home / "quorumlog"
    compiled = [package / "wire" / "_record_scan.abi3.so", package / "runtime" / "_sync_threads.abi3.so"]
    sources = [package / "wire/native/one.c", package / "runtime/native/two.h", user.home / "hatch_build.py"]
    for path in (*sources, *compiled):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (2_000, 2_000) if path in compiled else (1_000, 1_000))

    def compiles() -> bool:
        assert user.run("test").returncode == 0
        return "python hatch_build.py" in user.log

    assert not compiles()
    os.utime(package / changed, (3_000, 3_000))
    assert compiles()


def test_packages_are_installed_once_and_again_after_the_lock_changed(user: Machine) -> None:
    user.tool("python3", user.python())
    user.tool("java", GOOD_JAVA)
    assert user.run("test", "-k", "x").returncode == 0
    made = [line for line in user.log if "install" in line or "-m venv" in line]
    assert made == [
        "python -m venv --clear .venv",
        "python -m pip install -q --disable-pip-version-check --no-deps --require-hashes -r requirements.lock",
        "python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .",
    ]
    (user.home / "log").unlink()
    assert user.run("test").returncode == 0
    assert not [line for line in user.log if "install" in line]
    with (user.home / "requirements.lock").open("a") as file:
        file.write("# changed\n")
    assert user.run("test").returncode == 0
    assert [line for line in user.log if "--require-hashes" in line]


def stages(machine: Machine) -> list[str]:
    """Return the calls of pytest."""
    return [line for line in machine.log if line.startswith("python -m pytest")]


def test_the_stages_run_every_test_once(user: Machine) -> None:
    user.tool("python3", user.python())
    user.tool("java", GOOD_JAVA)
    assert user.run("test").returncode == 0
    *selected, others, quiet = stages(user)
    assert quiet.endswith(" -m quiet")
    assert all(" -m not quiet" in stage for stage in (*selected, others))
    folders = [word for stage in selected for word in stage.split() if word.startswith("tests/")]
    assert len(folders) == len(set(folders))
    assert all((ROOT / folder).is_dir() for folder in folders)
    for last in (others, quiet):
        assert [word.removeprefix("--ignore=") for word in last.split() if word.startswith("--ignore=")] == folders
        assert " tests" not in last, "the last stages run every folder that is not ignored"
    marked = [path for folder in folders for path in (ROOT / folder).rglob("*.py") if MARK in path.read_text()]
    assert marked == [], "the quiet stage ignores these folders"


def test_the_fast_tests_are_the_first_stage(user: Machine) -> None:
    user.tool("python3", user.python())
    user.tool("java", GOOD_JAVA)
    assert user.run("test").returncode == 0
    first = stages(user)[0]
    (user.home / "log").unlink()
    assert user.run("test", "--fast").returncode == 0
    assert stages(user) == [first]
    (user.home / "log").unlink()
    assert user.run("test", "--fast", "-x").returncode == 0
    assert stages(user) == [f"{first} -x"]


def test_arguments_are_passed_to_pytest(user: Machine) -> None:
    user.tool("python3", user.python())
    user.tool("java", GOOD_JAVA)
    assert user.run("test", "tests/unit", "-k", "config or clock").returncode == 0
    assert stages(user) == ["python -m pytest tests/unit -k config or clock"]


def test_a_stage_that_fails_does_not_prevent_the_others(user: Machine) -> None:
    user.tool("python3", user.python(ignoring="exit 1"))
    user.tool("java", GOOD_JAVA)
    done = user.run("test")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "dev: tests failed in these stages: other"
    assert stages(user)[-1].endswith(" -m quiet")


def test_root_installs_missing_packages(root: Machine) -> None:
    root.tool("python3", root.python(ensurepip=f'[ -f "{root.home}/venv-installed" ]'))
    root.tool(
        "apt-get",
        f"""echo "apt-get $*" >>"{root.home}/log"
case "$*" in *install*venv*) echo >"{root.home}/venv-installed" ;; esac""",
    )
    done = root.run("lint")
    assert "apt-get install -y -qq --no-install-recommends python3.11-venv" in root.log, done.stderr
    assert "python -m venv --clear .venv" in root.log


def test_root_installs_java(root: Machine) -> None:
    root.tool("python3", root.python())
    root.tool(
        "apt-get",
        f"""echo "apt-get $*" >>"{root.home}/log"
case "$*" in *install*jre*) printf '%s\\n' '#!{SHELL}' "echo 'openjdk version \\"17.0.1\\"' >&2" >"{root.tools}/java"
    chmod 755 "{root.tools}/java" ;; esac""",
    )
    assert root.run("setup").returncode == 0
    assert any("openjdk-17-jre-headless" in line for line in root.log)


def test_a_failed_installation_is_reported(root: Machine) -> None:
    root.tool("python3", root.python(ensurepip="exit 1"))
    root.tool("apt-get", "exit 100")
    done = root.run("lint")
    assert done.returncode == 1
    assert "could not install python3.11-venv" in done.stderr


def test_the_scripts_are_executable_and_parse() -> None:
    for script in ("dev", ".ci/run"):
        assert os.access(ROOT / script, os.X_OK)
        assert subprocess.run([SHELL, "-n", str(ROOT / script)], check=False, timeout=30).returncode == 0
