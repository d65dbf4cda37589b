# SPDX-License-Identifier: Apache-2.0
"""A forked `cometmq` is a process like one that is executed."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from cometmq.peers.comet import PROGRAM
from cometmq.peers.forks import forked_programs, is_forked
from cometmq.peers.processes import Child, wait_until

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


def test_environment_folder_and_input_are_the_given_ones(tmp_path: Path) -> None:
    (tmp_path / "x.conf").write_text("listenPort=0\nkvConfigPath=kv.json\n")
    environment = {**os.environ, "COMETMQ_NAMESRV_CLUSTER_TEST": "true"}  # noqa: TID251  # of a child
    words = ("namesrv", "-c", "x.conf", "-p")
    status, shown, _ = outcome(str(PROGRAM), *words, cwd=tmp_path, env=environment)
    assert status == 0
    assert b"COMETMQ_NAMESRV_CLUSTER_TEST" in shown
    assert b"x.conf:2" in shown
    given = ("produce", "T", "-n", "127.0.0.1:1", "--timeout", "1")
    outcomes = [outcome(*it, *given, input=b"a\n") for it in ((str(PROGRAM),), REAL)]
    assert outcomes[0] == outcomes[1]


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


def test_a_closed_pipe_is_noticed() -> None:
    for start in ((str(PROGRAM),), REAL):
        reader, writer = os.pipe()
        os.close(reader)
        child = subprocess.Popen([*start, "version"], stdout=writer)
        os.close(writer)
        assert child.wait(TIMEOUT_S) == -signal.SIGPIPE


async def test_asyncio_waits_for_a_fork() -> None:
    child = await asyncio.create_subprocess_exec(
        str(PROGRAM), "version", stdout=asyncio.subprocess.PIPE
    )
    shown, _ = await child.communicate()
    assert child.returncode == 0
    assert shown.startswith(b"cometmq ")


def test_what_only_a_start_does_is_not_forked(tmp_path: Path) -> None:
    assert is_forked([str(PROGRAM), "version"])
    for other in ([*REAL, "version"], [sys.executable, "-m", "cometmq.peers.demo"], ["true"]):
        assert not is_forked(other)
    with pytest.raises(FileNotFoundError):
        subprocess.Popen([str(PROGRAM), "version"], cwd=tmp_path / "missing")
    environment = {**os.environ, "PYTHONVERBOSE": "1"}  # noqa: TID251  # of a child
    _, _, errors = outcome(str(PROGRAM), "version", env=environment)
    assert b"import 'cometmq.cli.entry'" in errors


def test_a_fork_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path;"
        "from cometmq.peers.forks import forked_programs;"
        "from cometmq.peers.processes import Child, wait_until;"
        "forked_programs().__enter__();"
        f"child = Child('namesrv', {list(NAMESRV)}, log_path=Path(sys.argv[1]));"
        "child.wait_for_log('ready', 60);"
        "print(child.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    parent = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "log"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip

    def is_over() -> bool:
        stat = Path(f"/proc/{int(parent.stdout)}/stat")
        return not stat.exists() or ") Z " in stat.read_text(encoding="ascii")

    assert parent.returncode == -9, parent.stderr
    wait_until(is_over, 60, "the program ended")
