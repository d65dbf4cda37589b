# SPDX-License-Identifier: Apache-2.0
"""Starts `cometmq` as a fork of a process that has imported it already.

The interpreter and the imports take most of the processor time of a short command. Tests that start
hundreds of them start forks instead: processes like any other, each a child of this one, with its
own arguments, environment, folder, streams, signals and exit status. Only what happens before the
first line of `cometmq.cli.entry` is not repeated.

Tests of memory, of imports, or of the start itself need the real program. They either turn this off
(see the fixture `forked_programs`), or give a command with a prefix, such as `env`.
"""

import atexit
import ctypes
import inspect
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from cometmq.peers.paths import ROOT

_STARTS: Final = (
    (str(ROOT / ".venv" / "bin" / "cometmq"),),
    (sys.executable, "-m", "cometmq.cli"),
)
_FIXED: Final = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_")
"""Prefixes of the variables that matter before `cometmq` begins; with others, it is executed."""
_PLAIN: Final = {
    "executable": None, "preexec_fn": None, "pass_fds": (), "shell": False, "gid": None,
    "gids": None, "uid": None, "umask": -1, "process_group": -1,
}  # fmt: skip
"""What `Popen` passes unless its caller asks for something that only a real start has."""
_STREAMS: Final = ("p2cread", "c2pwrite", "errwrite")
_PIPES: Final = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_PR_SET_CHILD_SUBREAPER: Final = 36  # prctl(2)
_HEAD_BYTES: Final = 8

_execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_signature: Final = inspect.signature(_execute)
_servers: Final[list["_Server"]] = []


@contextmanager
def forked_programs() -> Iterator[None]:
    """Let `subprocess` and asyncio fork the `cometmq` commands that they start meanwhile."""
    subprocess.Popen._execute_child = _start  # type: ignore[attr-defined]
    try:
        yield
    finally:
        subprocess.Popen._execute_child = _execute  # type: ignore[attr-defined]


def is_forked(command: Sequence[str]) -> bool:
    """Return whether a command would be forked now; it then ends with this process."""
    is_on = subprocess.Popen._execute_child is _start  # type: ignore[attr-defined]
    return is_on and _words(command) is not None


def _words(command: Any) -> list[str] | None:
    """Return the words of a `cometmq` command, beginning with its path or `-m`, or None."""
    if isinstance(command, str | bytes | os.PathLike):
        return None
    words = [os.fsdecode(word) for word in command]
    for start in _STARTS:
        if tuple(words[: len(start)]) == start:
            return words if len(start) == 1 else words[1:]
    return None


def _fixed(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_FIXED)}


class _Server:
    """The process that forks; it ends with this one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        self._fixed = _fixed(os.environ)  # noqa: TID251  # of children
        command = [sys.executable, "-P", "-m", "cometmq.peers.forks.server", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, cwd=ROOT,
            )  # fmt: skip
        self._prctl = ctypes.CDLL(None).prctl
        atexit.register(self._stop)

    def _stop(self) -> None:
        self._socket.close()
        self._process.wait()

    def takes(self, environment: Mapping[str, str]) -> bool:
        return _fixed(environment) == self._fixed

    def start(self, request: Mapping[str, Any], streams: Sequence[int]) -> int:
        """Fork; return the process id once the program has its streams, folder and session.

        The server's child forks again and exits. An orphan goes to the nearest ancestor that asks
        for orphans, so only meanwhile does this process ask for them.
        """
        data = json.dumps(request).encode()
        told, telling = os.pipe()
        with self._lock, os.fdopen(told, "rb") as answer:
            self._prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                head = len(data).to_bytes(_HEAD_BYTES)
                socket.send_fds(self._socket, [head], [*streams, telling])
                os.close(telling)
                self._socket.sendall(data)
                pid = answer.read()
            finally:
                self._prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        if not pid:
            raise ChildProcessError("a program could not be forked")
        return int(pid)


def _start(popen: "subprocess.Popen[Any]", *arguments: Any) -> None:
    """Fork a command, or start it as ever; stands in for `Popen._execute_child`."""
    given = _signature.bind(popen, *arguments).arguments
    words = _words(given["args"])
    folder = os.fsdecode(given["cwd"] or Path.cwd())
    is_plain = all(given.get(name, plain) == plain for name, plain in _PLAIN.items())
    if words is None or not is_plain or not Path(folder).is_dir():
        _execute(popen, *arguments)
        return
    if not _servers:
        _servers.append(_Server())
    own = os.environ if given["env"] is None else given["env"]  # noqa: TID251  # of a child
    environment = {os.fsdecode(name): os.fsdecode(value) for name, value in own.items()}
    if not _servers[0].takes(environment):
        _execute(popen, *arguments)
        return
    request = {
        "words": words, "folder": folder, "environment": environment,
        "has_session": bool(given["start_new_session"]),
    }  # fmt: skip
    streams = [given[name] if given[name] >= 0 else n for n, name in enumerate(_STREAMS)]
    popen.pid = _servers[0].start(request, streams)
    popen._child_created = True  # type: ignore[attr-defined]
    popen._close_pipe_fds(*(given[name] for name in _PIPES))  # type: ignore[attr-defined]
