# SPDX-License-Identifier: Apache-2.0
"""A proxy that makes a few changes in the answers of real servers."""

import asyncio
import json
import re
import struct
import threading
from contextlib import contextmanager
from random import Random
from typing import Any, Final

TEXTS: Final = (
    "", "\x1b[2J\x1b]0;evil\x07", "a\nb\r\x9b31m", "\u202egnp.exe", "\x00", "9" * 400, "NaN", "-1",
    "1e999", "../../etc", "x" * 70_000, "{0}%s[red]", "\U0001f4a3\ufffe", "\ud800", "a:b:c",
    "<script>alert(1)</script>",
)  # fmt: skip
PLACES: Final = ("a..b:10911", "\ufffd:1", "host:99999", "127.0.0.1:1", "\x1b[2J:5", "[::")
"""Texts that replace addresses in answers."""
NUMBERS: Final = (
    -1, 0, -(2**31), 2**31, -(2**63), 2**63 - 1, 2**63, 10**30, 1.5, 1e308, float("nan"),
    float("inf"), 253_402_300_800_000,
)  # fmt: skip
OTHERS: Final[tuple[Any, ...]] = (None, True, False, [], {}, [[]], {"": {}}, [None] * 3)
CODES: Final = (0, 1, 2, 11, 16, 17, 22, 26, 206, -1, 2**31 - 1)
BODIES: Final = (b"", b"\xff\xfe", b"[" * 99_999, b"null", b"{}", b"[]", b'{"a"')
_TOKEN: Final = re.compile(rb'"[^"]*"|-?\d+')
PREFIX: Final = struct.Struct(">II")


def _replaced(random: Random, tree: Any) -> Any:
    """Return a tree with one of its nodes replaced by something that does not belong there."""
    if isinstance(tree, str) and ":" in tree and random.random() < 0.5:
        return random.choice(PLACES)
    if random.random() < 0.2 or not isinstance(tree, dict | list) or not tree:
        kinds: Any = (TEXTS, NUMBERS, NUMBERS, OTHERS, (_deep(random), [tree] * 300))
        return random.choice(random.choice(kinds))
    if isinstance(tree, list):
        at = random.randrange(len(tree))
        return [*tree[:at], _replaced(random, tree[at]), *tree[at + 1 :]]
    key = random.choice(list(tree))
    kind = random.random()
    if kind < 0.1:
        return {name: it for name, it in tree.items() if name != key}
    if kind < 0.3:
        return {(random.choice(TEXTS) if name == key else name): it for name, it in tree.items()}
    return {**tree, key: _replaced(random, tree[key])}


def _deep(random: Random) -> Any:
    tree: Any = 0
    for _ in range(random.choice((60, 500))):
        tree = [tree] if random.random() < 0.5 else {"a": tree}
    return tree


def _changed(random: Random, header: bytes, body: bytes, earlier: bytes) -> tuple[bytes, bytes]:
    """Return an answer with one or more changes; `earlier` is the body of another answer."""
    for _ in range(random.choice((1, 1, 2, 4))):
        fields = json.loads(header)
        kind = random.random()
        if kind < 0.2 and fields.get("extFields"):
            ext = fields["extFields"]
            ext[random.choice(list(ext))] = str(random.choice((*NUMBERS, *TEXTS)))
        elif kind < 0.3:
            fields["code"], fields["remark"] = random.choice(CODES), random.choice(TEXTS)
        elif kind < 0.4:
            body = random.choice((*BODIES, earlier, body[: len(body) // 2]))
        elif kind < 0.5 and body:
            at = random.randrange(len(body))
            body = body[:at] + bytes([random.randrange(256)]) + body[at + 1 :]
        else:
            body = _tree_changed(random, body)
        header = json.dumps(fields).encode()
    return header, body


def _tree_changed(random: Random, body: bytes) -> bytes:
    try:
        return json.dumps(_replaced(random, json.loads(body))).encode()
    except ValueError:
        return _token_changed(random, body)


def _token_changed(random: Random, body: bytes) -> bytes:
    """Change a text or number; RocketMQ's tables have numbers and objects as keys, unlike JSON."""
    if not (tokens := [*_TOKEN.finditer(body)]):
        return body
    token = random.choice(tokens)
    kinds = (PLACES,) if b":" in token[0] else (TEXTS, NUMBERS, OTHERS)
    other = json.dumps(random.choice(random.choice(kinds))).encode()
    return body[: token.start()] + other + body[token.end() :]


class Rogue:
    """Passes requests on to real servers, and changes a share of the answers."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.random, self.share = Random(0), 0.0
        self._ports: dict[int, int] = {}
        """The port of the real server by the port here."""
        self._servers: list[asyncio.Server] = []
        self._earlier = b""
        self._loop = loop

    def stand_for(self, address: str) -> str:
        """Listen in place of a server; return the address."""
        listening = asyncio.start_server(self._serve, "127.0.0.1", 0)
        server = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        self._servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        self._ports[port] = int(address.rpartition(":")[2])
        return f"127.0.0.1:{port}"

    async def end(self) -> None:
        """Close the listeners and all connections."""
        for server in self._servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = self._ports[writer.get_extra_info("sockname")[1]]
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            async with asyncio.TaskGroup() as passing:
                passing.create_task(self._pass_requests(reader, far_writer))
                await self._pass_answers(far_reader, writer)
        except* (OSError, EOFError):
            pass
        finally:
            writer.close()
            far_writer.close()

    async def _pass_requests(self, reader: asyncio.StreamReader, far: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            far.write(data)
        raise EOFError

    async def _pass_answers(self, far: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            length, mark = PREFIX.unpack(await far.readexactly(8))
            frame = await far.readexactly(length - 4)
            header, body = frame[:mark], frame[mark:]  # JSON has the serialization 0
            for here, there in self._ports.items():
                body = body.replace(b":%d" % there, b":%d" % here)
            if self.random.random() < self.share:
                header, body = _changed(self.random, header, body, self._earlier)
                if self.random.random() < 0.01:
                    writer.write(PREFIX.pack(1 << 30, mark))
            self._earlier = body
            writer.write(PREFIX.pack(4 + len(header) + len(body), len(header)) + header + body)
            await writer.drain()


@contextmanager
def rogue():
    """Run a proxy in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    found = Rogue(loop)
    try:
        yield found
    finally:
        asyncio.run_coroutine_threadsafe(found.end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
