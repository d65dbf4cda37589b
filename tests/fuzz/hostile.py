# SPDX-License-Identifier: Apache-2.0
"""Builds invalid requests: every captured request with damaged fields, body or bytes.

Most leave the framing intact, so that they reach the handlers; the others end their connection.
"""

import json
import struct
from collections.abc import Collection
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from tests.fuzz.mutate import mutated

from cometmq.remoting.bodies.codec import PROPERTIES_TEXT
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.commands.pull import PullMessage
from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.frame import FrameReader
from cometmq.remoting.header import decode_header
from cometmq.remoting.raw import RawCommand
from cometmq.testing.remoting.golden import load_exchanges

_NUMBERS: Final = (
    *("-1", "0", "1", "-2147483648", "2147483647", "2147483648", "9223372036854775807"),
    *("-9223372036854775808", "9223372036854775808", "1e9", "0x10", "NaN", "", " 1", "1.5"),
    *("16", "32", "48", "64", "4", "12", "255", "65535", "99999999999999999999999"),
)
_NAMES: Final = (
    *("", ".", "..", "../../etc", "a/b", "a\0b", "\0", "%RETRY%", "%RETRY%../x", "%DLQ%G", "%"),
    *("TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "OFFSET_MOVED_EVENT"),
    *(
        "x" * 127,
        "x" * 128,
        "x" * 300,
        "ü" * 100,
        "\u2028",
        "\ud7ff",
        "T\nlistenPort=1",
        "@",
        "T@G",
    ),
    *("DefaultCluster", "broker-a", "true", "null", "{}", "a b", "*", "||", "SQL92", "%RETRY%G"),
)
_PROPERTIES: Final = (
    *(
        "KEYS\x01a b c\x02TAGS\x01T\x02",
        "DELAY\x01-1\x02",
        "DELAY\x0199999\x02",
        "\x01\x02\x01\x02",
    ),
    *("TRAN_MSG\x01true\x02PGROUP\x01g\x02", "INNER_MULTI_DISPATCH\x01%LMQ%a,b\x02", "K" * 33_000),
    *(
        "INNER_MULTI_QUEUE_OFFSET\x01x\x02",
        "INNER_NUM\x01-5\x02",
        "UNIQ_KEY\x01\0\x02WAIT\x01no\x02",
    ),
    *("REAL_TOPIC\x01../x\x02REAL_QID\x01-9\x02DELAY\x011\x02", "KEYS\x01" + "k " * 5_000 + "\x02"),
)
_BODIES: Final = (
    *(b"", b"{", b"{}", b"[]", b"null", b'"x"', b"[" * 5_000, b'{"a":' * 2_000, b"\x00" * 100),
    *(b"a=b\nlistenPort=1\nx", b"=\n\\u12", b"\xff" * 40, b"x" * 70_000, b"\x7f\xff\xff\xff" * 9),
    *(b'{"clientID":"\\u0000","consumerDataSet":[{"groupName":"../g"}],"producerDataSet":[{}]}',),
    *(b'{"consumerGroup":1e999,"mqSet":[{"topic":"..","brokerName":"\\ud800","queueId":-1}]}',),
)
_TEXT_FIELDS: Final = frozenset({"i", "properties", "subscription", "attributes"})
_UNSAFE: Final = frozenset(code for code, it in COMMANDS.items() if it.body is PROPERTIES_TEXT)
_MAY_WAIT: Final = frozenset(code for code, it in COMMANDS.items() if it.header_type is PullMessage)
_CODES: Final = (*RequestCode, 0, -1, 9_999, 2**31 - 1)
_FIXED: Final = struct.Struct(">hBhii")


class Shot(NamedTuple):
    """One frame and the opaque of its answer, or None if the frame may go unanswered."""

    data: bytes
    opaque: int | None
    code: int


class Hostile:
    """An endless source of frames, determined by a seed."""

    def __init__(self, golden: Path, random: Random, codes: Collection[int] = ()) -> None:
        self._random = random
        self._requests: list[RawCommand] = []
        self._frames: list[bytes] = []
        for exchange in load_exchanges(golden):
            if exchange.request.code not in _UNSAFE and exchange.receiver != "client":
                self._frames.append(exchange.request.data)
                self._requests.append(_decoded(exchange.request.data))
        captured = {request.code for request in self._requests} | _UNSAFE
        self._requests += [_plain(code) for code in codes if code not in captured]
        self._served = [request for request in self._requests if request.code in codes]

    def shots(self, count: int) -> list[Shot]:
        """Return `count` frames for one connection; only the last may break it."""
        random = self._random
        shots: list[Shot] = []
        while len(shots) < count - 1:
            shots.append(self._bent_fields(1000 + len(shots)))
        breakers = (self._bent_bytes, self._bent_lengths, self._noise)
        shots.append(Shot(random.choice(breakers)(), None, -1))
        return shots

    def _bent_fields(self, opaque: int) -> Shot:
        random = self._random
        is_served = self._served and random.random() < 0.85
        request = random.choice(self._served if is_served else self._requests)
        code = request.code if random.random() < 0.9 else int(random.choice(_CODES))
        ext = dict(request.ext)
        for _ in range(random.choice((0, 1, 1, 1, 2, 4))):
            self._bend_ext(ext)
        body = self._bent_body(bytes(request.body))
        if code in _UNSAFE:
            body = random.choice(_BODIES)  # no change that would affect a good client
        if code == RequestCode.DISCONNECT_CLIENT:
            ext["clientId"] = "nobody"  # a damaged heartbeat may have registered any other name
        oneway = random.random() < 0.05
        flag = 2 if oneway else 0
        version = random.choice((401, 401, 0, 121, 2**31 - 1, -5))
        encode = _binary if random.random() < 0.4 and -(2**15) <= code < 2**15 else _json
        data = encode(code, flag, opaque, version, ext, body)
        return Shot(data, None if oneway or code in _MAY_WAIT else opaque, code)

    def _bend_ext(self, ext: dict[str, str]) -> None:
        random = self._random
        names = sorted(ext) or ["topic"]
        name = random.choice(names)
        kind = random.random()
        if kind < 0.1:
            ext.pop(name, None)
        elif kind < 0.15:
            ext[random.choice(_NAMES)] = random.choice(_NUMBERS)
        elif name in _TEXT_FIELDS and kind < 0.8:
            ext[name] = random.choice(_PROPERTIES)
        elif ext.get(name, "").lstrip("-").isdigit() and kind < 0.9:
            ext[name] = random.choice(_NUMBERS)
        else:
            ext[name] = random.choice(_NAMES)

    def _bent_body(self, body: bytes) -> bytes:
        kind = self._random.random()
        if kind < 0.5:
            return body
        if kind < 0.8 and body:
            return mutated(self._random, [body])
        return self._random.choice(_BODIES)

    def _bent_bytes(self) -> bytes:
        """Damage a captured frame, then set its length field to the new length."""
        while True:
            data = mutated(self._random, [self._random.choice(self._frames)])[4:]
            frame = struct.pack(">i", len(data)) + data
            if not _is_unsafe(frame):
                return frame

    def _bent_lengths(self) -> bytes:
        random = self._random
        frame = bytearray(random.choice(self._frames))
        length = random.choice((0, 1, 3, 4, 2**31 - 1, 2**32 - 1, 16 << 20, (16 << 20) + 5))
        frame[random.choice((0, 4)) :][:4] = length.to_bytes(4, "big")
        position = random.choice((0, 4))
        frame[position : position + 4] = length.to_bytes(4, "big")
        return bytes(frame)

    def _noise(self) -> bytes:
        random = self._random
        tls = b"\x16\x03\x01" + random.randbytes(random.choice((2, 60, 600)))
        http = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"
        return random.choice((tls, http, random.randbytes(random.randint(1, 300)), b"\0", b""))


def _decoded(frame: bytes) -> RawCommand:
    ((serialization, head, body),) = FrameReader().feed(frame)
    return decode_header(serialization, head, bytes(body))


def _plain(code: int) -> RawCommand:
    """Return a request with a number in every field, for a code that no golden file contains."""
    fields = COMMANDS[code].header_type.__struct_encode_fields__
    return RawCommand(code=code, ext=dict.fromkeys(fields, "1"))


def _is_unsafe(frame: bytes) -> bool:
    """Return whether a damaged frame may still change settings that the good client depends on."""
    try:
        return any(
            decode_header(serialization, head).code in _UNSAFE
            for serialization, head, _ in FrameReader().feed(frame)
        )
    except RemoteProtocolError:
        return False


def _framed(serialization: int, head: bytes, body: bytes) -> bytes:
    return struct.pack(">iI", 4 + len(head) + len(body), serialization << 24 | len(head)) + (
        head + body
    )


def _json(
    code: int, flag: int, opaque: int, version: int, ext: dict[str, str], body: bytes
) -> bytes:
    header: dict[str, Any] = {"code": code, "language": "JAVA", "version": version}
    header |= {"opaque": opaque, "flag": flag, "extFields": ext}
    return _framed(0, json.dumps(header).encode(), body)


def _binary(
    code: int, flag: int, opaque: int, version: int, ext: dict[str, str], body: bytes
) -> bytes:
    fields = b""
    for name, value in ext.items():
        key, text = name.encode()[:32_767], value.encode()
        fields += struct.pack(">h", len(key)) + key + struct.pack(">i", len(text)) + text
    version = (version + 2**15) % 2**16 - 2**15
    head = _FIXED.pack(code, 0, version, opaque, flag) + struct.pack(">ii", 0, len(fields))
    return _framed(1, head + fields, body)
