# SPDX-License-Identifier: Apache-2.0
"""Tests network namespaces, where the kernel permits them."""

import socket
import subprocess
from pathlib import Path

import pytest

from cometmq.peers.errors import PeerError
from cometmq.peers.loopback import has_ipv6_loopback, own_network

ROUTES = Path("/proc/thread-self/net/dev")


def _devices() -> list[str]:
    return [line.split(":")[0].strip() for line in ROUTES.read_text().splitlines()[2:]]


def test_a_network_of_our_own_has_a_loopback_alone_and_is_left_again() -> None:
    before = _devices()
    unshare = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    if unshare.returncode:
        with pytest.raises(PeerError, match="no network of our own"), own_network():
            pass
        return
    with own_network():
        assert "lo" in _devices()
        assert has_ipv6_loopback()
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = server.getsockname()
            socket.create_connection(address, timeout=60).close()
    assert _devices() == before
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(address, timeout=60)
