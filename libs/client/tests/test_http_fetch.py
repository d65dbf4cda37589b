# SPDX-License-Identifier: Apache-2.0
"""Answers over HTTP have a limit in total time and in bytes."""

import socket
import threading
from contextlib import contextmanager
from http.client import HTTPException
from time import monotonic
from urllib.error import HTTPError

import pytest

from cometmq.client.http_fetch import fetch

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
TIMEOUT_S = 0.5
STEP_S = TIMEOUT_S / 5
"""Each read gets a byte long before its own time ends."""


@contextmanager
def server(*answers, trickled=b""):
    """Serve each answer to one connection, and then `trickled`, a byte per step."""
    stopped = threading.Event()

    def serve():
        for answer in answers:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)
                for byte in trickled:
                    if stopped.wait(STEP_S):
                        return
                    try:
                        connection.send(bytes([byte]))
                    except OSError:
                        return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        stopped.set()
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize(("head", "trickled"), [(HEAD, b"x" * 1000), (b"", HEAD * 20)])
def test_a_server_that_sends_a_byte_at_a_time_is_given_up(head, trickled):
    began_s = monotonic()
    with server(head, trickled=trickled) as url, pytest.raises(OSError, match="no whole answer"):
        fetch(url, timeout_s=TIMEOUT_S, bytes_max=4096)
    assert monotonic() - began_s < 20


def test_redirects_share_the_time():
    with server(HEAD, trickled=b"x" * 1000) as last:
        moved = f"HTTP/1.1 302 Found\r\nLocation: {last}\r\nContent-Length: 0\r\n\r\n".encode()
        with server(moved) as first, pytest.raises(OSError, match="no whole answer"):
            fetch(first, timeout_s=TIMEOUT_S, bytes_max=4096)


def test_the_body_is_returned_up_to_the_limit():
    answer = HEAD.replace(b"1000", b"10") + b"0123456789"
    with server(answer, answer) as url:
        assert fetch(url, timeout_s=60, bytes_max=10) == b"0123456789"
        with pytest.raises(ValueError, match="more than 9 bytes"):
            fetch(url, timeout_s=60, bytes_max=9)


def test_refusals_and_other_answers_raise():
    refusal = b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy"
    with server(refusal, b"no HTTP\r\n\r\n") as url:
        with pytest.raises(HTTPError, match="503") as raised:
            fetch(url, timeout_s=60, bytes_max=10)
        assert raised.value.read(200) == b"busy"
        raised.value.close()
        with pytest.raises(HTTPException):
            fetch(url, timeout_s=60, bytes_max=10)
