# SPDX-License-Identifier: Apache-2.0
"""A forked `cometmq` is a process like one that is executed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from cometmq.peers.comet import PROGRAM
from cometmq.peers.forks import forked_programs
from cometmq.peers.processes import Child

TIMEOUT_S: Final = 120
REAL: Final = ("env", str(PROGRAM))
NAMESRV: Final = (str(PROGRAM), "namesrv", "--listen-port", "0", "--admin-http-port", "-1")


@pytest.fixture(autouse=True)
def fork_programs() -> Iterator[None]:
    with forked_programs():
        yield


def comes_from_server(pid: int) -> bool:
    return b"forks.server" in Path(f"/proc/{pid}/cmdline").read_bytes()


def outcome(*command: str, **options: object) -> tuple[int, bytes, bytes]:
    done = subprocess.run(
        command,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
        **options,  # type: ignore[call-overload]
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("version",),
        ("broker", "--help"),
        ("no-such-command",),
        ("topic", "list", "-n", "127.0.0.1:1"),
        ("namesrv", "-p"),
        ("broker", "-c", "missing.conf"),
    ],
)
def test_status_output_and_errors_are_those_of_the_program(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    for command in ((str(PROGRAM),), (sys.executable, "-m", "cometmq.cli")):
        forked = outcome(*command, *words, cwd=tmp_path)
        assert forked == outcome("env", *command, *words, cwd=tmp_path)


@pytest.fixture
def namesrvs(tmp_path: Path) -> Iterator[tuple[Child, Child]]:
    """Run a forked name server, and one that is executed."""
    started = []
    try:
        for name, prefix in (("forked", ()), ("executed", ("env",))):
            folder = tmp_path / name
            folder.mkdir()
            words = [*prefix, *NAMESRV, "--kv-config-path", str(folder / "kv.json")]
            started.append(Child(name, words, log_path=folder / "log", cwd=folder))
            started[-1].wait_for_log("ready", TIMEOUT_S)
        forked, executed = started
        yield forked, executed
    finally:
        for child in started:
            child.kill()


def test_a_fork_has_a_session_files_and_signals_of_its_own(namesrvs: tuple[Child, Child]) -> None:
    forked, executed = namesrvs
    assert comes_from_server(forked.pid)
    assert not comes_from_server(executed.pid)
    for child in namesrvs:
        assert os.getsid(child.pid) == os.getpgid(child.pid) == child.pid
        assert parent_of(child.pid) == os.getpid()
    kinds = [
        sorted(kind_of(link) for link in Path(f"/proc/{child.pid}/fd").iterdir())
        for child in namesrvs
    ]
    assert kinds[0] == kinds[1]
    assert ignored_and_blocked(forked.pid) == ignored_and_blocked(executed.pid)
    assert [child.stop(TIMEOUT_S) for child in namesrvs] == [0, 0]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kind_of(link: Path) -> str:
    return link.readlink().name.partition(":")[0]


def ignored_and_blocked(pid: int) -> list[str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return [line for line in lines if line.startswith(("SigIgn", "SigBlk", "SigCgt"))]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_fork_as_it_ends_the_program(number: signal.Signals) -> None:
    statuses = []
    for start in ((str(PROGRAM),), REAL):
        command = [*start, *NAMESRV[1:], "--log-text"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
            assert child.stdout is not None
            while b"ready" not in child.stdout.readline():
                assert child.poll() is None
            child.send_signal(number)
            child.stdout.read()
            statuses.append(child.wait(TIMEOUT_S))
    assert statuses[0] == statuses[1] == (-number if number == signal.SIGKILL else 0)
