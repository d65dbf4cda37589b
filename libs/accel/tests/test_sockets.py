# SPDX-License-Identifier: Apache-2.0
"""Native reads and writes on sockets owned by other code."""

import contextlib
import os
import select
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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


class Readers:
    """Sockets of an epoll object, whose connections are their names."""

    def __init__(self, **sockets: socket.socket) -> None:
        self.sockets = accel.Sockets()
        self.epoll = select.epoll()
        self.peers: dict[int, Any] = {one.fileno(): name for name, one in sockets.items()}
        for fd in self.peers:
            self.epoll.register(fd, select.EPOLLIN | select.EPOLLRDHUP)

    def receive(self, count_max: int = 128) -> tuple[dict[Any, bytes], list[Any]]:
        chunks, ended, *taken = self.sockets.receive(self.epoll.fileno(), self.peers, count_max)
        assert taken == [None, None]
        return dict(chunks), ended


def test_one_read_of_each_readable_socket(pair):
    near, far = pair
    others = socket.socketpair(), socket.socketpair()
    with contextlib.ExitStack() as stack:
        for one in (*others[0], *others[1]):
            stack.enter_context(one).setblocking(False)
        readers = Readers(first=near, silent=others[0][0], ended=others[1][0])
        assert readers.receive() == ({}, [])
        far.sendall(b"request")
        others[1][1].sendall(b"left to the transport")
        others[1][1].shutdown(socket.SHUT_WR)
        assert readers.receive() == ({"first": b"request"}, ["ended"])
        assert others[1][0].recv(100) == b"left to the transport"
        assert readers.receive() == ({}, ["ended"])
        others[0][1].sendall(b"another")
        far.sendall(b"late")
        found = [readers.receive(1) for _ in range(3)]
    assert sorted(map(repr, found)) == sorted(
        map(repr, [({"first": b"late"}, []), ({"silent": b"another"}, []), ({}, ["ended"])])
    )


@dataclass(eq=False)
class Reader:
    """A connection that is read directly."""

    name: str
    is_polled: bool = True


def test_a_lone_sender_is_read_without_asking_and_delays_others_by_few_reads(pair):
    near, far = pair
    other, other_far = socket.socketpair()
    other.setblocking(False)
    with other, other_far:
        readers = Readers(lone=near, other=other)
        peers = {fd: Reader(name) for fd, name in readers.peers.items()}
        readers.peers = peers

        def receive() -> dict[str, bytes]:
            chunks, ended = readers.receive()
            assert not ended
            return {peer.name: data for peer, data in chunks.items()}

        def send_alone() -> None:
            for number in range(12):
                far.sendall(b"%d" % number)
                assert receive() == {"lone": b"%d" % number}

        send_alone()
        other_far.sendall(b"now")
        found: list[dict[str, bytes]] = []
        while "other" not in (found[-1] if found else {}):
            far.sendall(b"more")
            found.append(receive())
        assert found[-1] == {"lone": b"more", "other": b"now"}
        assert len(found) <= 5
        send_alone()
        other_far.sendall(b"only")
        assert receive() == {"other": b"only"}  # the lone socket was tried, and had nothing
        send_alone()
        readers.epoll.unregister(near)
        peers[near.fileno()].is_polled = False
        far.sendall(b"not read")
        assert receive() == {}


def test_a_long_input_is_read_in_pieces(pair):
    near, far = pair
    near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    sent = os.urandom(3 * READ_BYTES)
    far.setblocking(False)
    readers, data, at = Readers(one=near), b"", 0
    while len(data) < len(sent):
        if at < len(sent):
            with contextlib.suppress(BlockingIOError):
                at += far.send(sent[at:])
        chunks, _ = readers.receive()
        assert all(len(piece) <= READ_BYTES for piece in chunks.values())
        data += b"".join(chunks.values())
    assert data == sent


def test_reads_of_one_call_share_a_bound():
    with contextlib.ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(64)]
        for near, far in pairs:
            stack.enter_context(near).setblocking(False)
            stack.enter_context(far)
            far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            far.sendall(bytes(70_000))
        readers = Readers(**{f"{number}": near for number, (near, _) in enumerate(pairs)})
        sizes: dict[str, int] = dict.fromkeys(readers.peers.values(), 0)
        while min(sizes.values()) < 70_000:
            for name, piece in readers.receive()[0].items():
                assert len(piece) <= (4 << 20) // 64
                sizes[name] += len(piece)


def test_an_unknown_socket_or_a_closed_epoll_object_is_an_error(pair):
    near, far = pair
    readers = Readers(one=near)
    readers.peers.clear()
    far.sendall(b"request")
    with pytest.raises(KeyError):
        readers.receive()
    for fd in (-1, near.fileno()):
        with pytest.raises(OSError, match=r"os error|not connected"):
            readers.sockets.receive(fd, {}, 128)


def test_a_reset_connection_ends_the_input_and_takes_no_output(pair):
    near, far = pair
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    far.close()
    readers = Readers(reset=near)
    assert readers.receive() == ({}, ["reset"])
    sockets = readers.sockets
    assert sockets.send(near.fileno(), b"answer") == 0
    row = (Peer(near.fileno()), b"answer", 1)
    assert sockets.send_rows([row]) == (0, [(0, b"answer")])


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
    assert sockets.send_rows(first) == (6, [(1, None)])
    assert received(far, 6) == b"onetwo"
    long = os.urandom(32 << 20)
    total, unsent = sockets.send_rows([(peer, long, 1), (peer, b"behind", 1)])
    assert unsent == [(0, long[total:]), (1, b"behind")]
    assert 0 < total < len(long)
    assert received(far, total) == long[:total]


def test_rows_of_another_form_are_refused():
    sockets = accel.Sockets()
    with pytest.raises(TypeError):
        sockets.send_rows([(Peer(-1), "text", 1)])
    with pytest.raises(AttributeError):
        sockets.send_rows([(object(), b"", 1)])
