# SPDX-License-Identifier: Apache-2.0
"""Standard streams whose errors are handled in the same way for all commands.

A write error is reported as one line; a closed pipe (`| head`) ends the command silently by
SIGPIPE; a stream that was closed before startup (`>&-`) counts as unwritable.
"""

import errno
import io
import os
import select
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, NoReturn, TextIO

from cometmq.remoting.errors import CometError
from cometmq.remoting.types import Buffer

EXIT_FAILED: Final = 1
_STDOUT: Final = 1
CLOSED_CHECK_S: Final = 0.5


class OutputFailed(CometError):
    """Standard output cannot be written."""


class OutputClosed(OutputFailed):
    """The reader of standard output has closed it."""


class _Output(io.FileIO):
    """Standard output whose write errors are raised as OutputFailed or OutputClosed."""

    def write(self, data: Buffer, /) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except BrokenPipeError as error:
            raise _closed() from error
        except OSError as error:
            raise _failed(error) from error


class _ClosedOutput(io.RawIOBase):
    """Stands in for a standard output that was closed before startup."""

    def writable(self) -> bool:
        return True

    def write(self, _data: Buffer, /) -> int:  # type: ignore[override]
        raise _failed(OSError(errno.EBADF, "it is closed"))


def _closed() -> OutputClosed:
    return OutputClosed("the reader of the output is gone")


def _failed(error: OSError) -> OutputFailed:
    return OutputFailed(f"cannot write to standard output: {error.strerror or error}")


def is_terminal(stream: object) -> bool:
    """Return whether a standard stream is a terminal; `stream` is None if it is closed."""
    return stream is not None and bool(getattr(stream, "isatty", bool)())


@contextmanager
def checked_streams() -> Iterator[None]:
    """Run a command with checked standard streams; write errors are raised as SystemExit."""
    _occupy_closed()
    before = sys.stdout
    sys.stdout = _checked(before)
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OutputFailed as error:
        _give_up(error)
    finally:
        sys.stdout = before


async def fail_if_output_closes() -> None:
    """Wait, and raise OutputClosed when the reader of standard output has closed it.

    Otherwise a command that waits for messages would not notice, because it may write nothing for a
    long time. Returns at once if the output is not a pipe or a socket.
    """
    import asyncio  # noqa: PLC0415  # `--help` loads this module, but not asyncio

    try:
        descriptor = sys.stdout.fileno()
        mode = os.fstat(descriptor).st_mode
    except (OSError, ValueError):
        return
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return
    poll = select.poll()
    poll.register(descriptor, 0)  # errors and hang-ups are always reported
    while not poll.poll(0):  # noqa: ASYNC110  # asyncio has no event for this
        await asyncio.sleep(CLOSED_CHECK_S)
    raise _closed()


def _occupy_closed() -> None:
    """Open /dev/null for closed streams, so that no socket gets their descriptors."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def _checked(stream: TextIO | None) -> TextIO:
    """Return standard output, wrapped to raise the errors of this module."""
    if stream is None:
        closed = io.BufferedWriter(_ClosedOutput())  # type: ignore[type-var]  # errors differ
        return io.TextIOWrapper(closed, encoding="utf-8")
    try:
        if stream.fileno() != _STDOUT or not isinstance(stream, io.TextIOWrapper):
            return stream  # a test's or an embedding program's own
    except (OSError, ValueError):
        return stream
    stream.flush()
    raw = _Output(_STDOUT, "wb", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),  # type: ignore[type-var]  # write's parameter has a different name
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
    )


def _give_up(error: OutputFailed) -> NoReturn:
    """Discard buffered output and exit with the status or signal that the shell expects."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, _STDOUT)
    os.close(null)
    if isinstance(error, OutputClosed):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
    with suppress(OSError):
        sys.stderr.write(f"cometmq: {error}\n")
    raise SystemExit(EXIT_FAILED)
