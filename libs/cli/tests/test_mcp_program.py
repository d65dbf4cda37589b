# SPDX-License-Identifier: Apache-2.0
"""The program `cometmq mcp`: its streams, its end, and clients that misbehave."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, StdioServerParameters, stdio_client

from cometmq.cli.input import CHUNK_BYTES
from cometmq.cli.main import COMMANDS
from cometmq.cli.mcp.server import (
    CALLS_MAX,
    LINE_BYTES_MAX,
    UNREAD_MAX,
    WAIT_S,
    _Answers,
    _Input,
    on_own_thread,
    server_of,
)
from cometmq.cli.mcp.tool import Session
from cometmq.client.admin import AdminClient
from cometmq.client.errors import InvalidArgument
from cometmq.peers.comet import PROGRAM

from .mcp_tools import TIMEOUT_S

# -- the program ----------------------------------------------------------------------------------


def test_the_program_serves_a_client_on_its_standard_streams(suite, tmp_path):
    async def talk():
        args = ["mcp", "-n", suite.namesrv, "--audit-dir", str(tmp_path)]
        command = StdioServerParameters(command=str(PROGRAM), args=args)
        async with asyncio.timeout(TIMEOUT_S), Client(stdio_client(command)) as client:
            found = await client.call_tool("cluster", {})
            assert client.server_info is not None
            return client.server_info.name, found.structured_content["namesrv"]

    assert asyncio.run(talk()) == ("cometmq", suite.namesrv)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 130), (None, 0)])
def test_the_program_ends_on_a_signal_and_at_the_end_of_its_input(
    pipe_to, tmp_path, number, status
):
    client = {"name": "test", "version": "1"}
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    child = pipe_to("mcp", "--audit-dir", str(tmp_path))
    child.stdin.write(json.dumps(hello).encode() + b"\n")
    child.stdin.flush()
    assert json.loads(child.stdout.readline())["result"]["serverInfo"]["name"] == "cometmq"
    if number is None:
        child.stdin.close()
    else:
        child.send_signal(number)
    assert child.wait(TIMEOUT_S) == status


def test_without_the_sdk_one_line_says_how_to_install_it():
    code = (
        "import sys; sys.modules['mcp'] = sys.modules['mcp_types'] = None;"
        "sys.argv = ['cometmq', 'mcp']; from cometmq.cli.entry import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=180
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "install cometmq-cli[mcp]" in done.stderr
    assert "mcp" in COMMANDS


# -- a client that misbehaves ---------------------------------------------------------------------


def test_a_line_without_an_end_ends_the_program(tmp_path):
    """A line of 64 MiB took 1 GB, and one without an end all memory."""
    done = subprocess.run(
        [PROGRAM, "mcp", "--audit-dir", str(tmp_path)],
        input=b"a" * (LINE_BYTES_MAX + CHUNK_BYTES + 1),
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode != 0
    assert b"a line of the input has more than 16,777,216 bytes" in done.stderr
    assert b"Traceback" not in done.stderr


def wrong(members):
    return b'{"jsonrpc":"2.0",' + members + b"}"


WRONG_LINES = {
    b"[" * 100_000: (-32600, None, "a batch is not accepted"),
    b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]': (-32600, None, "a batch is not accepted"),
    b'{"jsonrpc"': (-32700, None, "Invalid JSON"),
    b"\xff\xfe": (-32700, None, "Invalid JSON"),
    b'{"a":' * 100_000: (-32700, None, "Invalid JSON"),
    wrong(b'"id":3,"method":"x","params":{"a":' + b"[" * 900 + b"]" * 900 + b"}"): (
        -32700, 3, "recursion limit"),
    wrong(b'"id":4,"method":5'): (-32600, 4, "method: Input should be a valid string"),
    wrong(b'"id":"five","method":"x","params":[1]'): (-32600, "five", "params: Input should be"),
    wrong(b'"id":6'): (-32600, 6, "method: Field required"),
    wrong(b'"id":1.5,"method":"ping"'): (-32600, None, "id: Input should be"),
    wrong(b'"id":null,"method":"ping"'): (-32600, None, "id: Input should be"),
    wrong(b'"id":[1],"method":"ping"'): (-32600, None, "id: Input should be"),
    wrong(b'"id":' + b"7" * 100_000 + b',"method":"x"'): (-32700, None, "Invalid JSON"),
    wrong(b'"id":"' + b"i" * 1_000 + b'","method":8'): (-32600, None, "method"),
    b'{"id":9,"method":"x"}': (-32600, 9, "jsonrpc"),
    wrong(b'"id":"\xff","method":"x"'): (-32700, None, "Invalid JSON"),
}  # fmt: skip


def test_lines_that_are_no_messages_are_answered(tmp_path):
    lines = [wrong(b'"id":10,"method":"ping"'), *WRONG_LINES]
    done = subprocess.run(
        [PROGRAM, "mcp", "--audit-dir", str(tmp_path)],
        input=b"".join(b"\n\n" + line + b"\n" for line in lines),
        capture_output=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    answers.remove({"jsonrpc": "2.0", "id": 10, "result": {}})
    for answer, (code, number, text) in zip(answers, WRONG_LINES.values(), strict=True):
        assert (answer["error"]["code"], answer["id"]) == (code, number), answer
        assert "no message of JSON-RPC 2.0, and was ignored" in answer["error"]["message"]
        assert text in answer["error"]["message"]
        assert len(answer["error"]["message"]) < 300


class Stuck:
    """The stream of a client that reads no answers."""

    def __init__(self):
        self.is_read = asyncio.Event()

    async def send(self, _answer):
        await self.is_read.wait()


def test_the_input_waits_for_a_client_that_reads_no_answers(monkeypatch):
    one, two = (f'{{"jsonrpc":"2.0","method":"{name}"}}' for name in ("one", "two"))

    async def next_of(lines):
        return await anext(lines)

    async def talk():
        reading, writing = os.pipe()
        monkeypatch.setattr("sys.stdin", SimpleNamespace(fileno=lambda: reading))
        stuck, source = Stuck(), _Input()
        source.answers = _Answers(stuck)
        os.write(writing, f"{one}\n{two}\n".encode())
        lines = aiter(source)
        async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
            assert await anext(lines) == one
            for _ in range(UNREAD_MAX):
                tasks.create_task(source.answers.send(0))
            following = tasks.create_task(next_of(lines))
            await asyncio.wait({following}, timeout=5 * WAIT_S)
            assert not following.done()
            stuck.is_read.set()
            assert await following == two
        assert source.answers.waiting == 0
        os.close(writing)
        assert [line async for line in lines] == []

    asyncio.run(talk())


def test_calls_beyond_the_bound_are_refused_and_pings_are_answered(suite, tmp_path, monkeypatch):
    """Eight calls that decoded MessagePack held up the answer to a ping for 40 s."""
    goes_on = threading.Event()

    async def busy(*_):
        goes_on.wait(TIMEOUT_S)  # blocks its loop, as a long step of a tool does
        goes_on.set()  # also after a failure
        raise InvalidArgument("served")

    monkeypatch.setattr("cometmq.cli.mcp.server._answer", busy)
    made = []
    absent: Any = None

    @asynccontextmanager
    async def session():
        async with AdminClient(suite.namesrv) as admin:
            made.append(threading.current_thread())
            yield Session(admin, reader=admin, audit=absent, user="ada")

    async def talk():
        texts = []

        async def call(client):
            found = await client.call_tool("cluster", {})
            assert found.is_error
            texts.append(found.content[0].text)
            if len(texts) == 70 - CALLS_MAX:
                try:
                    await client.session.send_request(types.PingRequest(), types.EmptyResult)
                finally:
                    goes_on.set()

        async with (
            asyncio.timeout(TIMEOUT_S),
            on_own_thread(session()) as one,
            Client(server_of(one, allow_changes=False), mode="legacy") as client,
            asyncio.TaskGroup() as tasks,
        ):
            for _ in range(70):
                tasks.create_task(call(client))
        return texts

    texts = asyncio.run(talk())
    refused = "64 calls have no answer yet, and nothing was done: call again once some have one"
    assert texts == [refused] * (70 - CALLS_MAX) + ["served"] * CALLS_MAX
    assert made != [threading.current_thread()]


def test_why_a_session_cannot_be_opened_is_raised():
    @asynccontextmanager
    async def session():
        raise InvalidArgument("no folder")
        yield

    async def use():
        async with asyncio.timeout(TIMEOUT_S), on_own_thread(session()):
            pass

    with pytest.raises(InvalidArgument, match="no folder"):
        asyncio.run(use())


def test_a_session_is_closed_although_its_user_was_cancelled_before_it_was_open():
    closed = threading.Event()

    @asynccontextmanager
    async def session():
        await asyncio.sleep(0.2)
        yield
        closed.set()

    async def use():
        async with on_own_thread(session()):
            pass

    async def cancelled():
        async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
            task = tasks.create_task(use())
            await asyncio.sleep(0)
            task.cancel()

    asyncio.run(cancelled())
    assert closed.is_set()
