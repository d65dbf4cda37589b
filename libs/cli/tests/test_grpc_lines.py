# SPDX-License-Identifier: Apache-2.0
"""Strangers at a control port cannot make gRPC print lines on standard error."""

import socket
from typing import Final

import pytest

from cometmq.peers.comet import PROGRAM
from cometmq.peers.ports import HOST, free_broker_port, free_port
from cometmq.peers.processes import Child

DEADLINE_S: Final = 120
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000 04 00 00000000")
GOAWAY: Final = bytes.fromhex("000008 07 00 00000000 00000000 0000000b")
CALL: Final = b"\x83\x86\x44\x02/a\x41\x01a\x5f\x10application/grpc\x40\x02te\x08trailers"
LARGE: Final = b"\x40\x03x-a\x7f\xbd\x1d" + b"a" * 3900 + b"\xbe" * 2000  # each repeats the 3,900


def calls(count: int) -> bytes:
    """Return calls with more metadata than gRPC accepts; it notes some of them as errors."""
    block = CALL + LARGE
    head = len(block).to_bytes(3, "big") + b"\x01\x05"
    return b"".join(head + (2 * at + 1).to_bytes(4, "big") + block for at in range(count))


STRANGE: Final = {
    "other protocol": b"GET / HTTP/1.1\r\n\r\n",
    "handshake": b"\x16\x03\x01\x02\x00" + bytes(200),
    "broken preface": PREFACE[:-4] + b"\xff" * 100,
    "goaway": PREFACE + GOAWAY,
    "large metadata": PREFACE + calls(16),
}
MARK: Final = ".cc:"  # each line of gRPC names its source


@pytest.fixture
def broker(tmp_path, monkeypatch, request):
    """A member of a broker group; the parameter is the user's level of gRPC's lines, if any."""
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    level = {"GRPC_VERBOSITY": request.param} if request.param else {}
    port, control = free_broker_port(), free_port()
    config = tmp_path / "broker.conf"
    config.write_text(
        f"brokerName=orders\nbrokerId=0\nbrokerIP1={HOST}\nlistenPort={port}\n"
        f"controlPort={control}\nstorePathRootDir={tmp_path}/store\n"
        f"mappedFileSizeCommitLog=1048576\ngroupRecord=file:{tmp_path}/record/orders.json\n"
        f"groupMembers=0={HOST}:{port}\n"
    )
    command = [str(PROGRAM), "broker", "-c", str(config), "--log-text"]
    # With an environment of its own, it is no fork of a process that has imported gRPC.
    child = Child("broker", command, log_path=tmp_path / "log", env={"LC_ALL": "C", **level})
    child.wait_for_log("broker.ready", DEADLINE_S)
    yield child, control
    child.stop(DEADLINE_S)


def send(port: int, data: bytes) -> None:
    """Send bytes, and wait until the server has read them and closes the connection."""
    with socket.create_connection((HOST, port), timeout=DEADLINE_S) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        try:
            while sock.recv(4096):
                pass
        except ConnectionResetError:
            pass


@pytest.mark.parametrize("broker", [""], indirect=True)
def test_peers_cause_no_line(broker):
    child, port = broker
    for data in STRANGE.values():
        send(port, data)
    assert MARK not in child.log()


@pytest.mark.parametrize("broker", ["INFO"], indirect=True)
def test_a_level_that_the_user_has_set_stays(broker):
    child, port = broker
    send(port, STRANGE["goaway"])
    child.wait_for_log(MARK, DEADLINE_S)
