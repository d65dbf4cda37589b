# SPDX-License-Identifier: Apache-2.0
"""Native reads and writes on sockets owned by other code."""

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

accel = pytest.importorskip("cometmq.accel", reason="cometmq-accel is built only with cargo")

READ_BYTES = 256 << 10


@dataclass
class Peer:
    direct_fd: int


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        far = socket.create_connection(listener.getsockname())
        near, _ = listener.accept()
    near.setblocking(False)
    with near, far:
        yield near, far


def received(far: socket.socket, count: int) -> bytes:
    far.settimeout(60)
    data = b""
    while len(data) < count:
        data += far.recv(count - len(data))
    return data


def test_one_read_per_socket_in_order(pair):
    near, far = pair
    silent = socket.socketpair()
    silent[0].setblocking(False)
    far.sendall(b"request")
    far.shutdown(socket.SHUT_WR)
    sockets = accel.Sockets()
    with silent[0], silent[1]:
        fds = [near.fileno(), silent[0].fileno(), near.fileno(), -1]
        assert sockets.receive(fds) == [b"request", b"", None, None]


def test_a_long_input_is_read_in_pieces(pair):
    near, far = pair
    near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    sent = os.urandom(3 * READ_BYTES)
    far.setblocking(False)
    sockets, data, at = accel.Sockets(), b"", 0
    while len(data) < len(sent):
        if at < len(sent):
            with contextlib.suppress(BlockingIOError):
                at += far.send(sent[at:])
        (piece,) = sockets.receive([near.fileno()])
        assert len(piece) <= READ_BYTES
        data += piece
    assert data == sent


def test_reads_of_one_call_share_a_bound(pair):
    near, far = pair
    near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    far.sendall(bytes(100_000))
    sockets, size = accel.Sockets(), 0
    while size < 100_000:
        pieces = [piece for piece in sockets.receive([near.fileno()] * 128) if piece]
        assert all(len(piece) <= (4 << 20) // 128 for piece in pieces)
        size += sum(map(len, pieces))


def test_a_reset_connection_ends_the_input_and_takes_no_output(pair):
    near, far = pair
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    far.close()
    sockets = accel.Sockets()
    assert sockets.receive([near.fileno()]) == [None]
    assert sockets.send(near.fileno(), b"answer") == 0
    assert sockets.send_rows([(Peer(near.fileno()), b"answer", 1)]) == (0, [(0, 0)])


def test_the_sockets_stay_open(pair):
    near, far = pair
    sockets = accel.Sockets()
    for _ in range(3):
        assert sockets.send(near.fileno(), b"answer") == 6
        assert received(far, 6) == b"answer"


def test_rows_are_sent_in_order_and_none_overtakes_an_incomplete_one(pair):
    near, far = pair
    sockets, peer = accel.Sockets(), Peer(near.fileno())
    first = [(peer, b"one", 1), (Peer(-1), b"left", 1), (peer, b"two", 2)]
    assert sockets.send_rows(first) == (6, [(1, 0)])
    assert received(far, 6) == b"onetwo"
    long = os.urandom(32 << 20)
    total, unsent = sockets.send_rows([(peer, long, 1), (peer, b"behind", 1)])
    assert unsent == [(0, total), (1, 0)]
    assert 0 < total < len(long)
    assert received(far, total) == long[:total]


def test_rows_of_another_form_are_refused():
    sockets = accel.Sockets()
    with pytest.raises(TypeError):
        sockets.send_rows([(Peer(-1), "text", 1)])
    with pytest.raises(AttributeError):
        sockets.send_rows([(object(), b"", 1)])
