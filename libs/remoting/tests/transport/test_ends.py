# SPDX-License-Identifier: Apache-2.0
"""The ends of connections: what they leave behind, and how long many of them hold the loop."""

import asyncio
import contextlib
import gc
import socket
import ssl
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from cometmq.remoting import Call, RawCommand, Reply, RequestCode
from cometmq.remoting.header import encode_frame

from .conftest import TLS_KINDS, StartServer, starter

QUERY = RequestCode.QUERY_CONSUMER_OFFSET
REQUEST = encode_frame(
    RawCommand(code=QUERY, opaque=1, ext={"consumerGroup": "g", "topic": "t", "queueId": "3"})
)
COUNT = 200
PARTS = ("cometmq.", "builtins.Session", "_ssl._SSLSocket", "ssl.SSLObject", "uvloop.loop.TCP")


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def living() -> Counter[str]:
    """Count the objects that connections consist of, by type."""
    found: Counter[str] = Counter()
    for kind, count in Counter(map(type, gc.get_objects())).items():
        found[f"{kind.__module__}.{kind.__qualname__}"] += count
    return Counter({name: count for name, count in found.items() if name.startswith(PARTS)})


async def later(_: None, call: Call[Any]) -> Reply:
    await asyncio.sleep(0)
    return Reply(body=bytes(call.body))


def ask(port: int, count: int, context: ssl.SSLContext | None) -> None:
    """Open connections one after the other, and end each after one answer."""
    for _ in range(count):
        with contextlib.ExitStack() as stack:
            raw = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            one = raw if context is None else stack.enter_context(context.wrap_socket(raw))
            one.sendall(REQUEST)
            assert one.recv(4_096)


@pytest.mark.parametrize("is_tls", [False, True])
@pytest.mark.parametrize("kind", TLS_KINDS)
async def test_a_server_leaves_nothing_for_the_garbage_collector(
    start_plain_server: StartServer, eventually: Any, kind: str, is_tls: bool
) -> None:
    server, port = await starter(start_plain_server, kind)({QUERY: later})
    context = ssl._create_unverified_context() if is_tls else None

    async def connect(count: int) -> None:
        await asyncio.to_thread(ask, port, count, context)
        await eventually(lambda: not server.peers)

    await connect(10)
    with no_collections():
        before = living()
        await connect(COUNT)
        left = living() - before
    assert {name: count for name, count in left.items() if count >= COUNT // 10} == {}
