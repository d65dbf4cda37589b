# SPDX-License-Identifier: Apache-2.0
"""A name server without sockets: the tests pass frames in and get frames back."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from cometmq.namesrv.handlers import HANDLERS
from cometmq.namesrv.kv_config import KvConfig
from cometmq.namesrv.namesrv import Namesrv
from cometmq.namesrv.settings import NamesrvSettings
from cometmq.remoting import remarks
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Reply
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.connection import Codec, Connection
from cometmq.remoting.errors import CommandError
from cometmq.remoting.frame import FrameReader
from cometmq.remoting.header import decode_header
from cometmq.runtime.settings import load
from cometmq.testing.runtime.clock import FakeClock

from .routes import Routes


class Link:
    address = "127.0.0.1:5"
    is_open = True

    def __init__(self, namesrv: Namesrv) -> None:
        self.namesrv = namesrv
        self.codec = Codec(COMMANDS)
        self.connection = Connection(self.codec, cast("Any", self))

    def reply(self, call, reply):
        if not call.is_oneway:
            out = self.connection.out
            self.codec.encoder.encode_reply(out, call.serialization, call.opaque, reply)

    async def exchange(self, frame: bytes):
        """Return the answers to a frame as (raw header, body)."""
        for call in self.connection.receive(frame, self.namesrv.clock.now_ms()):
            await self._serve(call)
        for fault in self.connection.faults:
            fault.call.peer = self
            fault.call.fail(fault.error)
        self.connection.faults.clear()
        data = b"".join(bytes(part) for part in self.connection.out)
        self.connection.out.clear()
        return [
            (decode_header(serialization, head), bytes(body))
            for serialization, head, body in FrameReader(1 << 24).feed(data)
        ]

    async def _serve(self, call):
        handler = HANDLERS.get(call.code)
        if handler is None:
            remark = remarks.request_not_supported(call.code)
            call.answer(Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark))
            return
        try:
            reply = handler(self.namesrv, call)
            call.answer(await reply if inspect.isawaitable(reply) else reply)
        except CommandError as error:
            call.fail(error)


class Files:
    """Keeps saved files in memory; tests can make it refuse writes."""

    def __init__(self) -> None:
        self.saved: dict[str, bytes] = {}
        self.error: OSError | None = None

    async def __call__(self, path: Path, encode: Callable[[], bytes]) -> None:
        if self.error is not None:
            raise self.error
        self.saved[path.name] = encode()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def files():
    return Files()


@pytest.fixture
def namesrv(clock, files):
    settings = load(NamesrvSettings, prefix="COMETMQ_NAMESRV", env={})
    return Namesrv(settings, KvConfig(), clock=clock, save_file=files)


@pytest.fixture
def link(namesrv):
    return Link(namesrv)


@pytest.fixture
def routes():
    return Routes()
