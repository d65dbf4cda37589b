# SPDX-License-Identifier: Apache-2.0
"""No request holds the loop for more than 20 ms: each code with its longest header and body.

Registrations, whose bodies may be longer, are in `test_loop_holds.py`.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import product

import msgspec
import pytest

from cometmq.namesrv.handlers import HANDLERS
from cometmq.namesrv.namesrv import Namesrv
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.frame import REQUEST_HEADER_BYTES_MAX
from cometmq.remoting.transport.bodies import HEAD_BYTES_MAX, LONG_HEADERS, bytes_max
from cometmq.testing.broker.holds import HOLD_S_MAX, adjusted, longest_hold
from cometmq.testing.broker.scripted import Wire
from cometmq.testing.broker.scripts import frame

from .test_loop_holds import ATTEMPTS, CHUNK_BYTES, Port

Body = Callable[[int], bytes]


def repeated(piece: bytes, start: bytes = b"", end: bytes = b"") -> Body:
    """Return a function that repeats a piece in a body of at most this number of bytes."""
    return lambda size: start + piece * ((size - len(start) - len(end)) // len(piece)) + end


def numbered(form: bytes) -> Body:
    return lambda size: b"".join(form % number for number in range(size // len(form % 10**6)))


BODIES: dict[int, dict[str, Body]] = {
    Code.UPDATE_NAMESRV_CONFIG: {
        "one setting": repeated(b"x", b"orderMessageEnable="),
        "many settings": numbered(b"k%d=\n"),
        "one setting often": repeated(b"orderMessageEnable=true\n"),
        "escapes": repeated(b"\\u0041", b"k="),
        "continued lines": repeated(b"\\\n", b"k="),
        "comments": repeated(b"#\n"),
        "no settings": repeated(b"\n"),
    },
    Code.QUERY_DATA_VERSION: {
        "one long text": repeated(b"x", b'{"x":"', b'"}'),
        "unknown members": repeated(b'"x":1,', b"{", b'"counter":1}'),
        "nested": repeated(b"["),
        "not strict": repeated(b"x:1,", b"{", b"counter:1}"),
        "digits": repeated(b"1", b'{"counter":', b"}"),
    },
}
ZEROS: dict[str, Body] = {"zeros": repeated(b"\0")}
EXAMINED_ELSEWHERE = {Code.REGISTER_BROKER}


def long_text(code: int, size: int, piece: str) -> dict[str, str]:
    """Fill the text that a request may choose freely; the others are short."""
    fields = msgspec.structs.fields(COMMANDS[code].header_type)
    ext = {field.encode_name: "1" for field in fields}
    texts = [field.encode_name for field in fields if "str" in str(field.type)] or ["unknown"]
    return {**ext, texts[-1]: piece * (size // len(piece.encode()))}


HEADS: dict[str, Callable[[int, int], dict[str, str]]] = {
    "one long text": partial(long_text, piece="x"),
    "control characters": partial(long_text, piece="\x01"),
    "emoji": partial(long_text, piece="\U0001f600"),
    "unknown fields": lambda code, size: {
        **long_text(code, 1, "x"), **{f"k{number}": "" for number in range(size // 8)}
    },
}  # fmt: skip


def requests(code: int) -> dict[str, bytes]:
    """Return the largest requests of a code, in both forms of headers."""
    found: dict[str, bytes] = {}
    body_bytes_max = bytes_max(code) or 0
    for name, make in BODIES.get(code, ZEROS).items():
        found[f"body: {name}"] = frame(code, long_text(code, 1, "x"), make(body_bytes_max))
    head_bytes_max = REQUEST_HEADER_BYTES_MAX if code in LONG_HEADERS else HEAD_BYTES_MAX
    for (name, fill), is_binary in product(HEADS.items(), (False, True)):
        is_escaped = name == "control characters" and not is_binary
        size = (head_bytes_max - 1_000) // (6 if is_escaped else 1)
        data = frame(code, fill(code, size), is_binary=is_binary, is_ascii=False)
        found[f"header: {name}, {is_binary=}"] = data
    return found


async def answered(wire: Wire) -> None:
    """Wait until the server has answered or closed the connection."""
    async with asyncio.timeout(30):
        while not wire.sent and not wire.is_closing():  # noqa: ASYNC110  # no event
            await asyncio.sleep(0)


def test_every_code_is_examined() -> None:
    assert {code for code in HANDLERS if bytes_max(code) is None} == EXAMINED_ELSEWHERE
    with_bodies = {code for code in HANDLERS if COMMANDS[code].body is not None}
    assert with_bodies - EXAMINED_ELSEWHERE == BODIES.keys()
    assert LONG_HEADERS & HANDLERS.keys() == {Code.PUT_KV_CONFIG}


@pytest.mark.load
@pytest.mark.parametrize("code", sorted(HANDLERS.keys()))
async def test_the_largest_requests_hold_the_loop_for_a_bounded_time(
    namesrv: Namesrv, code: int
) -> None:
    port = Port(namesrv)
    late: dict[str, list[float]] = {}
    for name, data in requests(code).items():
        holds: list[float] = []
        while not holds or (holds[-1] >= HOLD_S_MAX and len(holds) < ATTEMPTS):
            peer, wire = port.connect()
            with longest_hold() as held:
                for start in range(0, len(data), CHUNK_BYTES):
                    chunk = data[start : start + CHUNK_BYTES]
                    held.measure(partial(peer.data_received, chunk))
                    await asyncio.sleep(0)
                await answered(wire)
            holds.append(adjusted(held.longest_s))
            peer.connection_lost(None)
        if holds[-1] >= HOLD_S_MAX:
            late[name] = holds
    assert late == {}
