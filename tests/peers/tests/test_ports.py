# SPDX-License-Identifier: Apache-2.0
"""A port is reserved across processes until the process that reserved it ends."""

import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.peers import ports

PROGRAM = """
import sys
from pathlib import Path
from cometmq.peers import ports
ports._LOCKS, ports._PORTS = Path(sys.argv[1]), [int(text) for text in sys.argv[2:]]
print(ports.free_port())
"""


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[int, int]:
    """Return the only two ports that can be drawn; neither is reserved yet."""
    drawn = (ports.free_port(), ports.free_port())
    monkeypatch.setattr(ports, "_LOCKS", tmp_path)
    monkeypatch.setattr(ports, "_PORTS", drawn)
    return drawn


def test_a_port_is_given_out_once(two: tuple[int, int]) -> None:
    assert {ports.free_port(), ports.free_port()} == set(two)
    with pytest.raises(OSError, match="no free port"):
        ports.free_port()


def test_other_processes_get_others(two: tuple[int, int], tmp_path: Path) -> None:
    (left,) = set(two) - {ports.free_port()}
    for _ in range(2):  # ports of the first process are free once it has ended
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), *map(str, two)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert int(done.stdout) == left


def test_a_broker_has_its_neighbours_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    port = ports.free_broker_port()
    monkeypatch.setattr(ports, "_LOCKS", tmp_path)
    monkeypatch.setattr(ports, "_PORTS", (port - 2,))
    assert ports.free_port() == port - 2

    monkeypatch.setattr(ports, "_PORTS", (port,))
    with pytest.raises(OSError, match="no free port"):
        ports.free_broker_port()
