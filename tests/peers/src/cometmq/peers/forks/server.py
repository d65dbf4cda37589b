# SPDX-License-Identifier: Apache-2.0
"""The process that has imported `cometmq` and forks it: `cometmq.peers.forks.server SOCKET`."""

import atexit
import ctypes
import gc
import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
from importlib import import_module
from typing import Any, Final, NamedTuple

_PR_SET_PDEATHSIG: Final = 1  # prctl(2)
_HEAD_BYTES: Final = 8
_LATER: Final = (
    "uvloop", "ssl", "structlog", "yaml", "prometheus_client", "cometmq.accel",
    "cometmq.broker.copies.control", "cometmq.broker.filters.sql.parser", "cometmq.cli.input",
    "cometmq.cli.tables", "cometmq.client.errors", "cometmq.runtime.http.admin_pages",
    "cometmq.runtime.variables",
)  # fmt: skip
"""Modules that programs and commands import only when they need them; not all are installed."""


class Request(NamedTuple):
    """A program to become."""

    words: list[str]
    """The arguments, beginning with the path of `cometmq`, or with `-m` and a module."""
    folder: str
    environment: dict[str, str]
    has_session: bool
    """Whether it leads a session of its own."""
    files: list[int]
    """Descriptors: standard input, output and error, and where to tell the process id."""


def preload() -> None:
    """Import what any command may need."""
    gc.disable()
    commands = import_module("cometmq.cli.main").COMMANDS
    programs = import_module("cometmq.runtime.programs").COMMANDS
    for name in dict.fromkeys([*(info.module for info in commands.values()), *_LATER]):
        try:
            import_module(name)
        except ModuleNotFoundError:
            continue  # an extra, or the native path
    for program in programs.values():
        program.settings_type()
        program.app_type()
    service: Any = import_module("cometmq.runtime.service")
    service.sweep = _sweep_own
    gc.freeze()


def _sweep_own() -> int:
    """Collect only what the program has created; the rest is shared with all forks.

    A real sweep visits all that was imported, which is more here than in any program, and copies
    its pages for the fork: 0.15 s of processor time for each start.
    """
    freed_count = gc.collect()
    gc.freeze()
    return freed_count


def receive(requests: socket.socket) -> Request | None:
    """Return the next request; None at the end."""
    head, files, _, _ = socket.recv_fds(requests, _HEAD_BYTES, 4)
    if not head:
        return None
    with requests.makefile("rb", buffering=0) as rest:
        data, size = b"", int.from_bytes(head)
        while len(data) < size:
            data += rest.read(size - len(data))
    return Request(**json.loads(data), files=files)


def serve(requests: socket.socket) -> Request | None:
    """Fork for each request and return it in the fork; return None in this process at the end."""
    while (request := receive(requests)) is not None:
        child = os.fork()
        if child == 0:
            parent = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == parent:  # until the one who asked is our parent
                os.sched_yield()
            requests.detach()
            return request
        os.waitpid(child, 0)
        for file in request.files:
            os.close(file)
    return None


def become(request: Request) -> None:
    """Give this process what the program would begin with."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if request.has_session:
        os.setsid()
    os.chdir(request.folder)
    *streams, telling = request.files
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.environ.clear()  # noqa: TID251  # what its caller gives it
    os.environ.update(request.environment)  # noqa: TID251
    time.tzset()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.write(telling, b"%d" % os.getpid())
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    sys.stdin = sys.__stdin__ = _text(0, sys.stdin)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _text(1, sys.stdout)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _text(2, sys.stderr)  # type: ignore[misc]
    gc.enable()


def _text(number: int, like: Any) -> Any:
    """Open a standard stream as the interpreter does at its start."""
    is_lines = number == 2 or (number == 1 and os.isatty(number))
    return open(  # for the rest of the process
        number, "r" if number == 0 else "w", 1 if is_lines else -1, encoding=like.encoding,
        errors=like.errors, newline="\n", closefd=False,
    )  # fmt: skip


def run(words: list[str]) -> None:
    """Run the program as the interpreter does."""
    if words[0] == "-m":
        _, module, *sys.argv[1:] = words
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


def end_early(code: object) -> None:
    """End without what takes longer than most commands: freeing all modules, one by one.

    Returns if the interpreter would print something.
    """
    if not (code is None or isinstance(code, int)):
        return
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return
    os._exit((code or 0) & 0xFF)


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends whoever asks, and so this process
    requests = socket.socket(fileno=int(sys.argv[1]))
    preload()
    request = serve(requests)
    if request is not None:
        become(request)
        try:
            run(request.words)
        except SystemExit as end:
            end_early(end.code)
            raise


if __name__ == "__main__":
    _main()
