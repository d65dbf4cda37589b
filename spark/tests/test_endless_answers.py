# SPDX-License-Identifier: Apache-2.0
"""A request ends in time if its server sends other things without an end."""

import socket
import struct
from time import monotonic

import pytest

from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import RequestTimeout
from cometmq.spark.cluster.connection import BrokerConnection, LinkSettings

ANSWER_TO_NOBODY = b'{"code":0,"flag":1,"opaque":999999}'
FRAME = struct.pack(">II", 4 + len(ANSWER_TO_NOBODY), len(ANSWER_TO_NOBODY)) + ANSWER_TO_NOBODY
DEADLINE_S = 30


class Flooded:
    """A socket on which there is always something to read."""

    def __init__(self):
        self.end_s = monotonic() + DEADLINE_S

    def settimeout(self, _): ...

    def sendall(self, _): ...

    def recv(self, _):
        assert monotonic() < self.end_s, "the request does not end"
        return FRAME

    def close(self): ...


def test_a_server_that_answers_everything_else_is_not_waited_for():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with BrokerConnection(address, LinkSettings(timeout_ms=100)) as connection:
            connection._socket.close()
            connection._socket = Flooded()
            with pytest.raises(RequestTimeout):
                connection.invoke(RequestCode.GET_BROKER_RUNTIME_INFO)
