# SPDX-License-Identifier: Apache-2.0
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cometmq.runtime.places import free_port
from cometmq.testing.runtime import reserved_ports
from cometmq.testing.runtime.reserved_ports import HOST, reserve_port

BLOCK = 4
# Reserves a port of two blocks; prints it, or the error, and ends with its input.
RESERVE = """
import sys
from cometmq.testing.runtime import reserved_ports
reserved_ports._PORTS, reserved_ports._BLOCK = range({first}, {last} + 1), {block}
try:
    print(reserved_ports.reserve_port(), flush=True)
except OSError as error:
    print(error, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> range:
    """The only ports that can be reserved: two blocks, all free."""
    first = free_port(HOST, range(2 * BLOCK))
    ports = range(first, first + 2 * BLOCK)
    monkeypatch.setattr(reserved_ports, "_PORTS", ports)
    monkeypatch.setattr(reserved_ports, "_BLOCK", BLOCK)
    monkeypatch.setattr(reserved_ports, "_rest", [])
    return ports


@contextmanager
def other_process(ports: range) -> Iterator[str]:
    """Another process that reserves one of the ports; yield what it says."""
    program = RESERVE.format(first=ports[0], last=ports[-1], block=BLOCK)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        yield child.stdout.readline().strip()
        child.stdin.close()


def test_a_process_reserves_no_port_twice_though_no_server_uses_it(ports: range) -> None:
    assert {reserve_port() for _ in ports} == set(ports)
    with pytest.raises(OSError, match=rf"all ports of {ports[0]}\.\.{ports[-1]} are reserved"):
        reserve_port()


def test_neighbours_are_reserved_too_and_no_block_is_crossed(ports: range) -> None:
    given = [reserve_port((-1, 0, 1)) for _ in range(2)]
    assert sorted(given) == [ports[1], ports[BLOCK + 1]]
    assert reserve_port() == given[-1] + 2
    with pytest.raises(OSError, match="are reserved"):
        reserve_port()


def test_ports_in_use_are_not_reserved(ports: range) -> None:
    with socket.create_server((HOST, ports[1])), socket.create_server((HOST, ports[BLOCK])):
        given = {reserve_port() for _ in range(len(ports) - 2)}
    assert given == set(ports) - {ports[1], ports[BLOCK]}


def test_a_block_is_reserved_for_one_process_until_it_ends(ports: range) -> None:
    with other_process(ports) as theirs:
        ours = reserve_port()
        assert {ours, int(theirs)} == {ports[0], ports[BLOCK]}
        with other_process(ports) as third:
            assert third.endswith("are reserved")
    for _ in range(BLOCK - 1):
        reserve_port()
    assert reserve_port() == int(theirs)
