# SPDX-License-Identifier: Apache-2.0
"""Provides a network with ::1 for tests of IPv6, even if this machine or container has none."""

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cometmq.peers.errors import PeerError

_CLONE_NEWNET: Final = 0x4000_0000
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 1
_OURS: Final = Path("/proc/thread-self/ns/net")


def has_ipv6_loopback() -> bool:
    """Return whether this network namespace has ::1."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@contextmanager
def ipv6_loopback() -> Iterator[None]:
    """Provide ::1: in this network namespace, or in a new one for this thread."""
    if has_ipv6_loopback():
        yield
    else:
        with own_network():
            if not has_ipv6_loopback():
                raise PeerError("the kernel has no IPv6")
            yield


@contextmanager
def own_network() -> Iterator[None]:
    """Move this thread and its children into a network namespace with a loopback device only."""
    with _back_again() as libc:
        if libc.unshare(_CLONE_NEWNET):
            raise PeerError(f"no network of our own: {os.strerror(ctypes.get_errno())}")
        _bring_loopback_up()
        yield


@contextmanager
def inside(namespace: int) -> Iterator[None]:
    """Move this thread and its children into the network namespace of a descriptor."""
    with _back_again() as libc:
        if libc.setns(namespace, _CLONE_NEWNET):
            raise PeerError(f"cannot enter the network: {os.strerror(ctypes.get_errno())}")
        yield


@contextmanager
def _back_again() -> Iterator[ctypes.CDLL]:
    """Return this thread to its network namespace on leaving."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open(_OURS, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield libc
    finally:
        try:
            if libc.setns(before, _CLONE_NEWNET):
                raise PeerError(f"no way back: {os.strerror(ctypes.get_errno())}")
        finally:
            os.close(before)


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
