# SPDX-License-Identifier: Apache-2.0
"""Choose and check ports and folders at startup, with the same error messages in all programs.

Each message gives the reason and names the option or setting to change.
"""

import errno
import os
import secrets
import socket
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cometmq.remoting.errors import SettingsError

BACKLOG: Final = 1_024
"""Connections that the kernel queues; with fewer, a burst of them delays a probe by a second."""
# All are below Linux's ephemeral range, from which outgoing connections take ports at any time.
_PORTS: Final = range(22_000, 32_000)
_PORT_ATTEMPTS: Final = 100
_UNPRIVILEGED: Final = 1024
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def listening(
    host: str, port: int, *, setting: str, host_setting: str = "bindAddress", note: str = ""
) -> Iterator[None]:
    """Convert the OSError of a listener to a SettingsError that names the setting to change.

    `note` distinguishes the ports of a program with several ports.
    """
    try:
        yield
    except OSError as error:
        number = error.errno or 0
        reason = os.strerror(number) if number > 0 else (error.strerror or str(error))
        place = f"{f'[{host}]' if ':' in host else host or '*'}:{port}{note and f' ({note})'}"
        advice = _listen_advice(number, port, setting, host_setting)
        raise SettingsError(f"cannot listen on {place}: {reason}; {advice}") from error


def listen(
    host: str, port: int, *, setting: str, host_setting: str = "bindAddress"
) -> socket.socket:
    """Return a listening socket, for IPv4 and IPv6 without a host; raise SettingsError."""
    is_dual = not host and socket.has_dualstack_ipv6()
    with listening(host, port, setting=setting, host_setting=host_setting):
        found = socket.create_server(
            (host, port),
            family=socket.AF_INET6 if is_dual or ":" in host else socket.AF_INET,
            backlog=BACKLOG,
            dualstack_ipv6=is_dual,
        )
    found.setblocking(False)
    return found


def check_port(
    host: str, port: int, *, setting: str, host_setting: str = "bindAddress", note: str = ""
) -> None:
    """If the port cannot be used, raise the SettingsError of `listening`; 0 means any port.

    Programs call this function before they create folders, so that a failed start leaves nothing
    behind. It does not listen: a client that waits for the port would be accepted, and reset.
    """
    if port <= 0:
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with (
        listening(host, port, setting=setting, host_setting=host_setting, note=note),
        socket.socket(family) as probe,
    ):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        probe.bind((host, port))


def free_port(host: str, distances: Collection[int] = (0,)) -> int:
    """Return a random port that is free and whose neighbours at the given distances are free, too.

    Raise OSError if none was found, or if the host is not an address of this machine.
    """
    for _ in range(_PORT_ATTEMPTS):
        port = secrets.choice(_PORTS)
        if all(is_free(host, port + distance) for distance in distances):
            return port
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def is_free(host: str, port: int) -> bool:
    """Return whether a server could listen on the port now.

    Raise OSError if the host is not an address of this machine.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
    return True


def check_different(ports: Iterable[tuple[int, str, str]]) -> None:
    """Raise SettingsError if two ports are the same; each is given with its setting and a note."""
    taken: dict[int, str] = {}
    for port, setting, note in ports:
        name = f"{note} ({setting})" if note else setting
        if port > 0 and taken.setdefault(port, name) is not name:
            raise SettingsError(f"{taken[port]} and {name} have the same port, {port}: change one")


def _listen_advice(number: int, port: int, setting: str, host_setting: str) -> str:
    if number == errno.EADDRINUSE:
        return f"stop the program that uses the port, or choose another with {setting}"
    if number in {errno.EACCES, errno.EPERM} and port < _UNPRIVILEGED:
        return f"choose a port above 1023 with {setting}"
    if number in {errno.EACCES, errno.EPERM}:  # SELinux, a sandbox
        return f"let this program use the port, or choose another with {setting}"
    if number in {errno.EMFILE, errno.ENFILE}:
        return "raise the limit of open files (ulimit -n)"
    if number in {errno.ENOMEM, errno.ENOBUFS}:
        return "free memory"
    return f"choose an address of this machine with {host_setting}, or another port with {setting}"


def prepare_folder(path: Path, *, setting: str, is_private: bool = False) -> None:
    """Create a folder and check that the program can write to it; blocks. Raise SettingsError.

    Only this user may read a new folder that `is_private`. A full disk is accepted, because a
    broker that can only serve reads is still useful.
    """
    try:
        path.mkdir(mode=0o700 if is_private else 0o777, parents=True, exist_ok=True)
    except OSError as error:
        raise _folder_refusal(error, path, setting) from error
    # Of this start alone: in containers, processes have the same number. `tempfile` takes 0.4 MiB.
    probe = path / f".writable-{os.urandom(4).hex()}"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise _folder_refusal(error, path, setting) from error


def _folder_refusal(error: OSError, path: Path, setting: str) -> SettingsError:
    other = f"choose another folder with {setting}"
    blocking = next((one for one in (path, *path.parents) if one.is_file()), None)
    if blocking is not None:
        text = f"{blocking} is a file, not a folder; move it away, or {other}"
    elif error.errno in {errno.EACCES, errno.EPERM}:
        text = f"{error.strerror}; give this user the right to write there, or {other}"
    elif error.errno in _NO_SPACE:
        text = f"{error.strerror}; free space, or {other}"
    elif error.errno in {errno.EMFILE, errno.ENFILE}:
        text = f"{error.strerror}; raise the limit of open files (ulimit -n)"
    else:
        text = f"{error.strerror}; {other}"
    return SettingsError(f"cannot write to the folder {path}: {text}")
